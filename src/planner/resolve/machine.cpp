// Capacities, and what to report.
#include <algorithm>
#include <charconv>

#include "core/document.h"
#include "core/format.h"
#include "core/prediction.h"
#include "planner/resolve/resolver.h"
#include "sim/window.h"

namespace dsplan {
namespace {

// Measured figures stand above those of configs/hardware. They are of one model of device: whoever uses them names it.
void resolve_calibration(Resolver& resolver) {
  const Setting<Calibration>& said = resolver.request.measured;
  if (!said.given()) return;
  Job& job = resolver.job;
  if (!job.hardware) {
    return resolver.fault(said.place, formatted("is of {}, and no device is named", said->gpu),
                          "name it with --hardware");
  }
  if (!same_device(said->gpu, job.hardware->name)) {
    return resolver.fault(said.place, formatted("is of {}, and the job runs on {}", said->gpu, job.hardware->name),
                          "a calibration holds for one model of device");
  }
  job.calibration = *said;
  const auto given = [&](const char* what, const std::optional<Bytes>& bytes) {
    if (bytes) resolver.given(what, formatted("{} bytes", bytes->value()), said.place, "--calibration");
  };
  job.context = said->context;
  given("context", said->context);
  given("cuBLAS workspace", said->cublas_workspace);
  given("cuBLASLt workspace", said->cublaslt_workspace);
  // PyTorch makes a communicator with the first collective; alone on one GPU only DeepSpeed runs any.
  const auto measured = said->communicators.find(job.parallelism.world);
  if (measured == said->communicators.end() || (job.parallelism.world == 1 && !resolver.deepspeed())) return;
  job.communicators = measured->second;
  given("communicators", measured->second);
}

void resolve_capacity(Resolver& resolver) {
  const Setting<Bytes>& wished = resolver.request.capacity;
  Job& job = resolver.job;
  if (wished.given()) {
    job.capacity = *wished;
    resolver.given("capacity", human(*wished), wished.place, "--capacity");
  } else if (resolver.hardware != nullptr) {
    job.capacity = resolver.hardware->capacity;
    resolver.derived("capacity", human(*job.capacity),
                     formatted("{}: what {} calls total", resolver.hardware->name,
                               resolver.hardware->capacity_is_driver_figure ? "the driver" : "cudaMemGetInfo"),
                     "--capacity");
  }
  if (!job.capacity || job.context) return;
  const bool calibrated = resolver.hardware != nullptr && resolver.hardware->context.has_value();
  job.context = calibrated ? *resolver.hardware->context : kUncalibratedContext;
  if (calibrated) {
    resolver.derived("context", human(*job.context), resolver.hardware->name, "--hardware");
  } else {
    resolver.assumed("context", human(*job.context), "no calibration", "--hardware FILE with \"context_bytes\"");
  }
}

void resolve_reserve(Resolver& resolver) {
  const Setting<Bytes>& wished = resolver.request.reserve;
  if (!wished.given()) return;
  Job& job = resolver.job;
  job.reserve = *wished;
  resolver.given("reserve", human(*wished), wished.place, "--reserve");
  if (job.capacity && *wished >= *job.capacity) {
    resolver.fault(wished.place,
                   formatted("a reserve of {} leaves nothing of {}", human(*wished), human(*job.capacity)));
  }
}

void resolve_host(Resolver& resolver) {
  const Setting<Bytes>& wished = resolver.request.host_memory;
  if (wished.given()) {
    resolver.job.host_memory = *wished;
    resolver.given("host memory per node", human(*wished), wished.place, "--host-memory");
  } else if (resolver.cluster != nullptr && resolver.cluster->host_memory) {
    resolver.job.host_memory = resolver.cluster->host_memory;
    resolver.derived("host memory per node", human(*resolver.job.host_memory), resolver.cluster->name, "--host-memory");
  }
}

void resolve_nvme(Resolver& resolver) {
  const Setting<Bytes>& wished = resolver.request.nvme_memory;
  if (wished.given()) {
    resolver.job.nvme_memory = *wished;
    resolver.given("NVMe memory per node", human(*wished), wished.place, "--nvme-memory");
  } else if (resolver.cluster != nullptr && resolver.cluster->nvme_memory) {
    resolver.job.nvme_memory = resolver.cluster->nvme_memory;
    resolver.derived("NVMe memory per node", human(*resolver.job.nvme_memory), resolver.cluster->name, "--nvme-memory");
  }
}

void resolve_rank(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.rank;
  if (!wished.given()) return;
  const std::string& text = *wished;
  resolver.job.rank = text;
  if (text == "all" || text == "worst") return;
  std::int64_t rank = -1;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  const std::int64_t world = resolver.job.parallelism.world;
  if (error != std::errc() || at != text.data() + text.size() || rank < 0 || rank >= world) {
    resolver.fault(wished.place, formatted("rank \"{}\" is none of 0 to {}, all, worst", text, world - 1));
  }
}

void resolve_phase(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.phase;
  if (!wished.given()) return;
  resolver.job.phase = *wished;
  const Training& training = resolver.job.training;
  if (*wished == name(Stretch::Save)) {
    const bool saves = training.runtime == Runtime::DeepSpeed && training.zero.stage == 3 &&
                       training.zero.gather_16bit_weights_on_model_save;
    if (saves || (is_fsdp(training.runtime) && training.fsdp.saves_whole())) return;
    return resolver.fault(wished.place, "phase \"save\" takes no memory of the device here",
                          "what gathers is stage3_gather_16bit_weights_on_model_save under ZeRO-3, and fsdp.state_dict "
                          "full or full-device");
  }
  if (*wished == kRecord && !(training.runtime == Runtime::DeepSpeed && training.zero.stage == 3)) {
    return resolver.fault(wished.place, "phase \"record\" is of ZeRO stage 3",
                          "only its coordinator records which parameters are asked for");
  }
  if (window_named(*wished)) return;
  const std::vector<std::string_view> known = {"init",    "first_step",       "record",   "middle_steps", "steady",
                                               "forward", "outputs_released", "backward", "step",         "save"};
  const std::string_view meant = nearest(*wished, known);
  resolver.fault(
      wished.place, formatted("phase \"{}\" is not known", *wished),
      meant.empty() ? formatted("known are {}", joined(known, ", ")) : formatted("did you mean \"{}\"?", meant));
}

}  // namespace

void resolve_machine(Resolver& resolver) {
  Job& job = resolver.job;
  if (resolver.hardware != nullptr) job.hardware = *resolver.hardware;
  if (resolver.cluster != nullptr) job.cluster = *resolver.cluster;
  resolve_calibration(resolver);
  resolve_capacity(resolver);
  resolve_reserve(resolver);
  resolve_host(resolver);
  resolve_nvme(resolver);
  resolve_rank(resolver);
  resolve_phase(resolver);
}

}  // namespace dsplan
