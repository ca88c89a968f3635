#include "report/write_calibration.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "core/format.h"
#include "io/json_text.h"
#include "io/own_file.h"

namespace dsplan {
namespace {

// The largest value of rows that begin so; 0: there is none.
double largest(const MeasuredMachine& machine, std::string_view prefix) {
  double most = 0;
  for (const MeasuredRow& row : machine.rows) {
    if (row.name.starts_with(prefix)) most = std::max(most, static_cast<double>(row.value()));
  }
  return most;
}

// Of the rows that begin so the one of the largest size, which the name ends with: no cache holds that. 0: there is
// none.
double of_largest_size(const MeasuredMachine& machine, std::string_view prefix) {
  std::int64_t most = -1;
  double value = 0;
  for (const MeasuredRow& row : machine.rows) {
    if (!row.name.starts_with(prefix)) continue;
    std::int64_t size = 0;
    const char* end = row.name.data() + row.name.size();
    const auto [at, error] = std::from_chars(row.name.data() + row.name.rfind(':') + 1, end, size);
    if (error != std::errc() || at != end || size <= most) continue;
    most = size;
    value = static_cast<double>(row.value());
  }
  return value;
}

Json rows_of(const MeasuredMachine& machine) {
  Json rows = Json::array();
  for (const MeasuredRow& row : machine.rows) {
    rows.push_back({{"name", row.name},
                    {"value", row.value()},
                    {"unit", name(row.unit)},
                    {"how", row.how},
                    {"samples", row.samples}});
  }
  return rows;
}

Json environment_of(const MeasuredMachine& machine, const CalibratedFile& file) {
  const bool host = machine.backend == "host";
  const auto version = [](std::int32_t number) { return number == 0 ? Json(nullptr) : Json(formatted("{}", number)); };
  return {{"gpu", host ? formatted("host ({})", file.processor) : machine.device},
          {"capacity_bytes", machine.memory.value()},
          {"driver", version(machine.driver)},
          {"cuda", version(machine.runtime)},
          {"python", nullptr},
          {"torch", nullptr},
          {"transformers", nullptr},
          {"deepspeed", nullptr},
          {"peft", nullptr},
          {"allocator_conf", ""},
          {"limit_bytes", nullptr},
          {"recorded", file.recorded}};
}

Json calibration_of(const MeasuredMachine& machine, const CalibratedFile& file) {
  Json failed = Json::array();
  for (const NotMeasured& each : machine.failed) failed.push_back({{"name", each.name}, {"message", each.why}});
  return {{"schema", "dsplan.calibration/1"},
          {"source", file.source},
          {"name", file.name},
          {"device", machine.backend},
          {"complete", machine.failed.empty() && !machine.interrupted},
          {"environment", environment_of(machine, file)},
          {"rows", rows_of(machine)},
          {"failed", std::move(failed)}};
}

// Peaks: the data sheet's where it is known, else the fastest product.
Json peaks(const MeasuredMachine& machine, const CalibratedFile& file) {
  std::map<std::string, double> tflops;
  if (file.like) tflops = file.like->tflops;
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    const double most = largest(machine, formatted("gemm:{}:", dtype));
    if (most > 0 && !tflops.contains(dtype)) tflops[dtype] = most / 1e12;
  }
  Json object = Json::object();
  for (const char* dtype : {"fp32", "tf32", "bf16", "fp16", "fp8"}) {
    if (const auto found = tflops.find(dtype); found != tflops.end()) object.set(dtype, found->second);
  }
  return object;
}

}  // namespace

std::string calibrated_hardware_json(const MeasuredMachine& machine, const CalibratedFile& file) {
  const bool host = machine.backend == "host";
  Json json = {{"dsplan", kFileVersion}, {"kind", "hardware"}, {"name", file.name}, {"source", file.source}};
  json.set("architecture", host ? "host" : file.like ? file.like->architecture : "unknown");
  json.set(host ? "driver_memory_bytes" : "torch_total_bytes", machine.memory);
  if (const MeasuredRow* context = machine.find("context")) json.set("context_bytes", context->value());
  if (Json tflops = peaks(machine, file); !tflops.empty()) json.set("tflops", std::move(tflops));
  const auto rate = [&](const char* key, double measured, double told) {
    const double bytes_per_s = measured > 0 ? measured / 1e9 : told;
    if (bytes_per_s > 0) json.set(key, bytes_per_s);
  };
  const auto told = [&](double Hardware::*member) { return file.like ? (*file.like).*member : 0; };
  rate("memory_gb_per_s", 2 * of_largest_size(machine, "copy_d2d:"), told(&Hardware::memory_gb_per_s));
  // Between threads; virtual ranks of one GPU say nothing of links between GPUs.
  rate("link_gb_per_s", of_largest_size(machine, "collective_threads:all_gather:"), told(&Hardware::link_gb_per_s));
  if (file.like && file.like->link_devices > 0) json.set("link_devices", file.like->link_devices);
  const double up = of_largest_size(machine, "copy_h2d_pinned:");
  const double down = of_largest_size(machine, "copy_d2h_pinned:");
  rate("host_link_gb_per_s", std::min(up, down), told(&Hardware::host_link_gb_per_s));
  if (host) json.set("multiprocessors", 1);  // A rank is one thread.
  if (file.like && file.like->multiprocessors > 0) json.set("multiprocessors", file.like->multiprocessors);
  json.set("calibration", calibration_of(machine, file));
  return json_text(json, 2) + "\n";
}

}  // namespace dsplan
