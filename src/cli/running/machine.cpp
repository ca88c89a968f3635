#include "cli/running/machine.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "cli/commands.h"
#include "cli/output.h"
#include "core/error.h"
#include "core/format.h"
#include "core/units.h"
#include "exec/device.h"
#include "exec/host/kernels.h"
#include "exec/plugin.h"
#include "exec/transport/library_transport.h"
#include "exec/transport/tcp.h"

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

std::string device_name(const dsplan_device_info& info) {
  return formatted("{}{}", info.name, exec::computes(info) ? "" : " (dry device)");
}

std::string describe_cuda() {
  const exec::Plugin plugin = exec::load_plugin("cuda");
  if (plugin.table == nullptr) return "not available: " + plugin.why;
  const Opened opened = open_once(*plugin.table);
  if (!opened.why.empty()) return formatted("not available: {} (plugin {})", opened.why, plugin.path);
  return formatted("{}, {}, driver {}, runtime {} (plugin {})", device_name(opened.info),
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

namespace {

// What happened before the run, or around it, as everywhere else: wrong words, or a machine that is not there.
[[noreturn]] void tell(const exec::Failure& failure, const MachineWords& words) {
  const std::string text = exec::describe(failure);
  if (failure.status == DSPLAN_INVALID) throw Refusal("--transport " + *words.transport, text);
  throw Unavailable(formatted("--transport {}: {}\n", *words.transport, text));
}

}  // namespace

Processes::Processes(const MachineWords& words, std::chrono::milliseconds timeout) : words_(words), timeout_(timeout) {
  const std::optional<exec::LaunchPlace> place = exec::launch_place([](const char* name) { return std::getenv(name); });
  if (!place) {
    throw Refusal("--transport " + *words.transport, "nobody launched this process as one rank of several",
                  "torchrun --no-python, mpirun or srun: docs/running.md");
  }
  place_ = *place;
}

void Processes::expect(std::int64_t world) const {
  if (world == place_.ranks) return;
  throw Refusal("--ranks", formatted("{} launched {} process{}, and the plan is of {} rank{}", place_.launcher,
                                     place_.ranks, place_.ranks == 1 ? "" : "es", world, world == 1 ? "" : "s"));
}

void Processes::agree(const std::vector<RunTerm>& terms) {
  std::vector<std::string> own;
  for (const RunTerm& term : terms) own.push_back(term.value);
  const std::vector<exec::Blob> all = rendezvous_->exchange(exec::packed(own), "the words");
  const auto of_first = exec::unpacked<std::vector<std::string>>(all.front());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const auto theirs = exec::unpacked<std::vector<std::string>>(all[rank]);
    for (std::size_t at = 0; at < terms.size(); ++at) {
      if (theirs.at(at) == of_first.at(at)) continue;
      throw exec::RunFailure({DSPLAN_INVALID, static_cast<int>(rank), exec::kNoEvent, terms[at].name,
                              formatted("\"{}\", and on rank 0 \"{}\"", theirs.at(at), of_first.at(at))});
    }
  }
}

int Processes::together(const std::vector<RunTerm>& terms, const std::function<int()>& body) {
  try {
    rendezvous_ = std::make_unique<exec::Rendezvous>(place_, timeout_);
    agree(terms);
  } catch (const exec::RunFailure& failure) {
    tell(failure.failure(), words_);
  }
  int code = 0;
  try {
    code = body();
  } catch (const exec::RunFailure& failure) {
    rendezvous_->abort(failure.failure());
    tell(failure.failure(), words_);
  } catch (const std::exception& error) {
    const bool missing = dynamic_cast<const Unavailable*>(&error) != nullptr;
    rendezvous_->abort(
        {missing ? DSPLAN_UNAVAILABLE : DSPLAN_INVALID, place_.rank, exec::kNoEvent, "run", error.what()});
    throw;
  }
  // Nobody ends before rank 0 has written what there is: launchers end all ranks when one has ended badly.
  if (first()) {
    rendezvous_->announce(exec::packed(code));
    return code;
  }
  const std::optional<exec::Blob> word = rendezvous_->await_announcement();
  if (word) return exec::unpacked<int>(*word);
  if (const std::optional<exec::Failure> failure = rendezvous_->failure().get()) say(exec::describe(*failure) + "\n");
  return code == kDone ? kUnavailable : code;
}

std::unique_ptr<exec::Transport> Processes::transport(const dsplan_backend& backend) {
  if (*words_.transport == "tcp") return std::make_unique<exec::TcpTransport>(*rendezvous_);
  return std::make_unique<exec::LibraryTransport>(*rendezvous_, backend, words_.most_blocks);
}

exec::RunResult Processes::run(const exec::RankPlan& plan, const exec::RunOptions& options) {
  const std::unique_ptr<exec::Transport> carries = transport(*options.backend);
  return exec::run_process(plan, options, *rendezvous_, *carries);
}

}  // namespace dsplan
