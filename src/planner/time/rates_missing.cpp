// Which rows of configs/hardware and configs/clusters a job needs.
#include <algorithm>
#include <vector>

#include "core/format.h"
#include "planner/time/machine.h"
#include "planner/time/rates.h"

namespace dsplan {
namespace {

class Missing {
 public:
  explicit Missing(const Job& job) : job_(job), hardware_(*job.hardware) {}

  std::string all() {
    kernels();
    groups();
    host();
    std::string text;
    for (const std::string& row : rows_) text += (text.empty() ? "" : "; ") + row;
    return text;
  }

 private:
  void hardware(bool there, std::string_view row, std::string_view why) {
    if (!there) rows_.push_back(formatted("configs/hardware: {} has no \"{}\" rate ({})", hardware_.name, row, why));
  }
  void cluster(bool there, std::string_view row, std::string_view why) {
    if (there) return;
    if (job_.cluster) {
      rows_.push_back(formatted("configs/clusters: {} has no \"{}\" ({})", job_.cluster->name, row, why));
    } else {
      rows_.push_back(formatted("no cluster is named, and with it no \"{}\" ({})", row, why));
    }
  }

  void kernels() {
    const Training& t = job_.training;
    const DType dtype = t.compute_dtype();
    const std::string_view peak = name(dtype);
    hardware(hardware_.tflops.contains(std::string(peak)), peak, "matrix products");
    // Losses and tables are fp32 everywhere.
    if (dtype != DType::Float32) hardware(hardware_.tflops.contains("fp32"), "fp32", "products of fp32 tensors");
    hardware(hardware_.memory_gb_per_s > 0, "memory_gb_per_s", "kernels that only read and write");
    hardware(hardware_.multiprocessors > 0, "multiprocessors", "how many tiles run at once");
  }

  void groups() {
    const Parallelism& p = job_.parallelism;
    if (p.world == 1) return;
    const std::int64_t node = machine::ranks_of_node(job_);
    if (node > 1) {
      hardware(hardware_.link_gb_per_s > 0 || hardware_.host_link_gb_per_s > 0, "link_gb_per_s",
               "collectives inside a node");
      const std::int64_t joined = machine::link_devices(hardware_);
      const bool linked = hardware_.link_gb_per_s > 0 && (joined == 0 || node <= joined);
      if (!linked && hardware_.link_gb_per_s > 0) {
        hardware(hardware_.host_link_gb_per_s > 0, "host_link_gb_per_s", "collectives among more than a pair of cards");
      }
    }
    if (p.world > node) {
      cluster(job_.cluster && job_.cluster->node_network_gb_per_s > 0, "node_network_gb_per_s",
              "collectives between nodes");
    }
  }

  void host() {
    const Training& t = job_.training;
    const bool zero = t.runtime == Runtime::DeepSpeed;
    const auto on = [&](OffloadDevice device) {
      return zero && (t.zero.offload_optimizer.device == device || t.zero.offload_param.device == device);
    };
    const bool copies = on(OffloadDevice::Cpu) || on(OffloadDevice::Nvme) ||
                        (t.checkpoint.by_deepspeed() && t.checkpoint.deepspeed.cpu);
    if (copies) hardware(hardware_.host_link_gb_per_s > 0, "host_link_gb_per_s", "copies to and from the host");
    if (!on(OffloadDevice::Nvme)) return;
    cluster(machine::nvme_read(job_) > 0 || measured("file_read:"), "nvme_read_gb_per_s", "files");
    cluster(machine::nvme_write(job_) > 0 || measured("file_write:"), "nvme_write_gb_per_s", "files");
  }
  [[nodiscard]] bool measured(std::string_view family) const {
    return job_.calibration && std::any_of(job_.calibration->rates.begin(), job_.calibration->rates.end(),
                                           [&](const auto& one) { return one.first.starts_with(family); });
  }

  const Job& job_;
  const Hardware& hardware_;
  std::vector<std::string> rows_;
};

}  // namespace

std::string Rates::missing(const Job& job) {
  if (!job.hardware) return "no device is named, and with it no rate: name one with --hardware or --cluster";
  return Missing(job).all();
}

}  // namespace dsplan
