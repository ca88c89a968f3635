#include "cli/machine.h"

#include <fmt/format.h>

#include "core/units.h"
#include "exec/device.h"
#include "exec/host/kernels.h"
#include "exec/plugin.h"

namespace dsplan {
namespace {

// Of the first device, if it can be opened; what it says when not.
struct Opened {
  dsplan_device_info info{};
  std::string why;
};

Opened open_once(const dsplan_backend& backend) {
  Opened opened;
  try {
    exec::Device device(backend, {});
    opened.info = device.info();
    device.close();
  } catch (const exec::RunFailure& failure) {
    opened.why = failure.failure().text.empty() ? failure.what() : failure.failure().text;
  }
  return opened;
}

}  // namespace

void check_words(const MachineWords& words, Diagnostics& faults) {
  const auto fault = [&](const char* name, std::string text, const char* hint) {
    faults.add({name, 0, 0, {}, std::move(text), hint});
  };
  const bool cuda = words.backend == "cuda";
  if (!cuda && words.backend != "host")
    fault("--backend", fmt::format("no backend \"{}\"", words.backend), "host or cuda");
  if (!words.transport) return;
  if (*words.transport == "nccl") {
    fault("--transport", "\"nccl\" is not built in yet", cuda ? "virtual" : "threads");
  } else if (*words.transport != "threads" && *words.transport != "virtual") {
    fault("--transport", fmt::format("no transport \"{}\"", *words.transport), "threads or virtual");
  } else if (cuda != (*words.transport == "virtual")) {
    fault("--transport",
          cuda ? "ranks of one GPU are virtual ranks, not threads on a host" : "virtual ranks are those of one GPU",
          cuda ? "virtual" : "threads");
  }
}

Machine find_machine(const MachineWords& words) {
  Machine machine;
  if (words.backend == "host") {
    exec::HostOptions options;
    options.kernels = exec::host_kernels;
    machine.host = std::make_unique<exec::HostBackend>(options);
    machine.backend = &machine.host->table();
    return machine;
  }
  const exec::Plugin plugin = exec::load_plugin(words.backend);
  if (plugin.table == nullptr) {
    throw Unavailable(fmt::format("--backend {}: not available: {}\n", words.backend, plugin.why));
  }
  const Opened opened = open_once(*plugin.table);
  if (!opened.why.empty()) {
    throw Unavailable(fmt::format("--backend {}: not available: {}\n", words.backend, opened.why));
  }
  machine.backend = plugin.table;
  machine.info = opened.info;
  machine.level = Receipt::Level::Virtual;
  machine.device = Receipt::Device::Cuda;
  return machine;
}

std::string describe_cuda() {
  const exec::Plugin plugin = exec::load_plugin("cuda");
  if (plugin.table == nullptr) return "not available: " + plugin.why;
  const Opened opened = open_once(*plugin.table);
  if (!opened.why.empty()) return fmt::format("not available: {} (plugin {})", opened.why, plugin.path);
  return fmt::format("{}, {}, driver {}, runtime {} (plugin {})", opened.info.name,
                     human(Bytes(opened.info.memory_bytes)), opened.info.driver, opened.info.runtime, plugin.path);
}

}  // namespace dsplan
