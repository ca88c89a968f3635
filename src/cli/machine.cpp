#include "cli/machine.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "core/format.h"
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

Opened open_once(const dsplan_backend& backend, int ordinal = 0) {
  Opened opened;
  try {
    exec::Device device(backend, {0, ordinal, ""});
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
    fault("--backend", formatted("no backend \"{}\"", words.backend), "host or cuda");
  if (!words.transport) return;
  struct Kind {
    std::string_view name;
    bool cuda;
    const char* ranks;  // What they are.
  };
  constexpr Kind kKinds[] = {{"threads", false, "threads on a host"},
                             {"tcp", false, "processes on hosts"},
                             {"virtual", true, "virtual ranks, those of one GPU"},
                             {"nccl", true, "processes, each with a GPU"}};
  const auto kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                 [&](const Kind& each) { return each.name == *words.transport; });
  const char* these = cuda ? "virtual or nccl" : "threads or tcp";
  if (kind == std::end(kKinds)) {
    fault("--transport", formatted("no transport \"{}\"", *words.transport), these);
  } else if (kind->cuda != cuda) {
    fault("--transport", formatted("its ranks are {}; the backend is {}", kind->ranks, words.backend), these);
  }
}

Machine find_machine(const MachineWords& words, int local_rank) {
  Machine machine;
  if (words.backend == "host") {
    exec::HostOptions options;
    options.kernels = exec::host_kernels;
    machine.host = std::make_unique<exec::HostBackend>(options);
    machine.backend = &machine.host->table();
    machine.level = words.processes() ? Receipt::Level::Tcp : Receipt::Level::Threads;
    return machine;
  }
  const exec::Plugin plugin = exec::load_plugin(words.backend);
  if (plugin.table == nullptr) {
    throw Unavailable(formatted("--backend {}: not available: {}\n", words.backend, plugin.why));
  }
  // A launcher may show each process its own device alone.
  std::int32_t devices = 0;
  if (plugin.table->devices(plugin.table, &devices) == DSPLAN_OK && devices > 1) machine.ordinal = local_rank;
  const Opened opened = open_once(*plugin.table, machine.ordinal);
  if (!opened.why.empty()) {
    throw Unavailable(formatted("--backend {}: not available: {}\n", words.backend, opened.why));
  }
  machine.backend = plugin.table;
  machine.info = opened.info;
  machine.level = words.processes() ? Receipt::Level::Nccl : Receipt::Level::Virtual;
  machine.device = Receipt::Device::Cuda;
  return machine;
}

std::string describe_cuda() {
  const exec::Plugin plugin = exec::load_plugin("cuda");
  if (plugin.table == nullptr) return "not available: " + plugin.why;
  const Opened opened = open_once(*plugin.table);
  if (!opened.why.empty()) return formatted("not available: {} (plugin {})", opened.why, plugin.path);
  return formatted("{}, {}, driver {}, runtime {} (plugin {})", opened.info.name,
                   human(Bytes(opened.info.memory_bytes)), opened.info.driver, opened.info.runtime, plugin.path);
}

std::string describe_nccl() {
  const exec::Plugin plugin = exec::load_plugin("cuda");
  if (plugin.table == nullptr) return "not available: it is the CUDA plugin's";
  char text[256] = "";
  if (plugin.table->comm_library == nullptr) return "not available: the plugin has no communicators";
  if (plugin.table->comm_library(plugin.table, text, sizeof text) != DSPLAN_OK) {
    return formatted("not available: {}", plugin.table->last_error(plugin.table, nullptr));
  }
  return formatted("{}{}", text, open_once(*plugin.table).why.empty() ? "" : "; without a device it is of no use");
}

}  // namespace dsplan
