// A run whose ranks are processes (`--transport tcp|nccl`): which of them this is, what all must have alike, and one
// end for all.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/machine.h"
#include "exec/rendezvous.h"
#include "exec/run.h"

namespace dsplan {

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
