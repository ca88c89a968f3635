// What a run is carried out on: a backend, its device, and what carries collectives between the ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/receipt.h"
#include "exec/backend.h"
#include "exec/host/host_backend.h"
#include "exec/rendezvous/rendezvous.h"
#include "exec/run.h"

namespace dsplan {

// A device, its driver, or a library that is not here: exit code 6. main.cpp catches it.
class Unavailable : public std::exception {
 public:
  explicit Unavailable(std::string text) : text_(std::move(text)) {}
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// What was asked for by name; the faults say what there is.
struct MachineWords {
  std::string backend = "host";          // host, cuda
  std::optional<std::string> transport;  // threads or tcp on the host, virtual or nccl on GPUs
  int most_blocks = 0;                   // Of a GPU that one call of NCCL may occupy; 0: as NCCL likes.
  // Whether each rank is a process of its own, which a launcher started.
  [[nodiscard]] bool processes() const { return transport && (*transport == "tcp" || *transport == "nccl"); }
};
void check_words(const MachineWords& words, Diagnostics& faults);

struct Machine {
  std::unique_ptr<exec::HostBackend> host;  // Where the host itself is the device.
  const dsplan_backend* backend = nullptr;
  dsplan_device_info info{};
  Receipt::Level level = Receipt::Level::Threads;
  Receipt::Device device = Receipt::Device::Host;
  int ordinal = 0;  // Of the device, among those of its kind that this process sees.
};
// Loads the backend and opens its device once: of processes the one of `local_rank`, the process's number on its node,
// or the only one that it sees. Throws Unavailable with what is missing and why.
[[nodiscard]] Machine find_machine(const MachineWords& words, int local_rank = 0);

// What the driver calls the device; of a stand-in, with that said.
[[nodiscard]] std::string device_name(const dsplan_device_info& info);

// One line for people: which device, or why there is none.
[[nodiscard]] std::string describe_cuda();
// Likewise of NCCL: which one, or why there is none.
[[nodiscard]] std::string describe_nccl();

// A run whose ranks are processes (`--transport tcp|nccl`): which of them this is, what all must have alike, and one
// end for all.

// Something that must be the same in all processes, and what it is here.
struct RunTerm {
  std::string name;
  std::string value;
};

class Processes {
 public:
  // From the launcher's variables. Refuses where nobody launched this process as a rank.
  Processes(const MachineWords& words, std::chrono::milliseconds timeout);

  [[nodiscard]] int rank() const { return place_.rank; }
  [[nodiscard]] int local_rank() const { return place_.local_rank; }
  [[nodiscard]] bool first() const { return place_.rank == 0; }
  // Refuses a job of another number of ranks than were launched.
  void expect(std::int64_t world) const;

  // Meets the others, holds them to the same terms, and does `body`, which returns an exit code: all return rank 0's.
  // What `body` throws ends the run of all. Throws Refusal where the processes do not agree, Unavailable where one does
  // not come.
  int together(const std::vector<RunTerm>& terms, const std::function<int()>& body);
  // Within `body`: this rank of the run.
  [[nodiscard]] exec::RunResult run(const exec::RankPlan& plan, const exec::RunOptions& options);

 private:
  void agree(const std::vector<RunTerm>& terms);
  [[nodiscard]] std::unique_ptr<exec::Transport> transport(const dsplan_backend& backend);

  MachineWords words_;
  std::chrono::milliseconds timeout_;
  exec::LaunchPlace place_;
  std::unique_ptr<exec::Rendezvous> rendezvous_;
};

}  // namespace dsplan
