// What runtimes do to buckets, partitions and states, and loading: work on bytes, whatever tensors lie in them.
#pragma once

#include "exec/runner/launcher.h"
#include "exec/runner/rank_plan.h"

namespace dsplan::exec {

class FlatWork {
 public:
  // All must outlive this.
  FlatWork(const RankPlan& plan, const RunSettings& settings, Device& device, RankMemory& memory, Launcher& launcher)
      : plan_(plan), settings_(settings), device_(device), memory_(memory), launcher_(launcher) {}

  void run(const Task& task);

 private:
  void load_parameters(const Task& task);
  void load_buffer(const Task& task);
  void copy(const Task& task);
  void add(const Task& task);
  void move_file(const Task& task);

  const RankPlan& plan_;
  const RunSettings& settings_;
  Device& device_;
  RankMemory& memory_;
  Launcher& launcher_;
};

}  // namespace dsplan::exec
