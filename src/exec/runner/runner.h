// Carries out one rank's schedule: a reader of the only replay loop, riding behind the meter of the prediction. Every
// allocation that belongs to an operator has the size that the operator wants; after each event both sums are compared,
// and the first event at which they part ends the run. What happens at an event stands in runner.cpp; how operators,
// flat work, collectives and optimizer steps are carried out, in files of their own.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "core/schedule.h"
#include "exec/runner/collective_work.h"
#include "exec/runner/flat_work.h"
#include "exec/runner/operator_work.h"
#include "exec/runner/optimizer_step.h"
#include "exec/runner/rank_plan.h"
#include "exec/runner/stream_events.h"
#include "sim/memory.h"

namespace dsplan::exec {

// Prediction and measurement part at an event of this rank.
class Parted : public std::exception {
 public:
  Parted(std::int64_t rank, std::size_t event, std::string text);
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] std::size_t event() const { return event_; }

 private:
  std::size_t event_;
  std::string text_;
};

// What a test or a report may look at while the run goes on. Pointers are the host's: only where the backend says so.
struct Observer {
  // The gradient of a parameter is ready, before the runtime takes it.
  std::function<void(ParameterId, const dsplan_tensor&)> gradient;
  // Everything up to this mark has happened.
  std::function<void(const Mark&, const RankMemory&)> mark;
};

class Runner : public Ignores<Enter, Exit> {
 public:
  // `meter` sees every event before this does. Throws Refusal for what cannot be executed.
  Runner(const RankPlan& plan, const RunSettings& settings, const MemoryMeter& meter, Device& device,
         RankMemory& memory, Communicators& communicators, const Text& text, const Observer& observer = {});

  using Ignores<Enter, Exit>::on;
  void on(std::size_t at, const Allocate& event);
  void on(std::size_t at, const Release& event);
  void on(std::size_t at, const Compute& event);
  void on(std::size_t at, const Communicate& event);
  void on(std::size_t at, const RecordEvent& event);
  void on(std::size_t at, const WaitEvent& event);
  void on(std::size_t at, const EmptyCache& event);
  void on(std::size_t at, const Mark& event);

  [[nodiscard]] const std::vector<CollectiveWork::Sent>& sent() const { return collectives_.sent(); }
  // Nanoseconds of exposed communication; on a device that only enqueues, of what had happened at the last mark.
  [[nodiscard]] std::int64_t communicating() const { return exposed_.nanoseconds(); }
  [[nodiscard]] const std::vector<double>& losses() const { return operators_.losses(); }
  [[nodiscard]] const std::vector<OptimizerStep::Taken>& steps() const { return optimizer_.taken(); }

 private:
  void arrive(std::size_t at);
  [[nodiscard]] const Task& task_at(std::size_t at);
  [[nodiscard]] Bytes size_of(std::size_t at, BufferId buffer);

  const RankPlan plan_;
  const RunSettings settings_;
  const MemoryMeter& meter_;
  Device& device_;
  RankMemory& memory_;
  const Observer& observer_;

  BufferMakers makers_;
  Values values_;
  Launcher launcher_;
  StreamEvents stream_events_;
  ExposedTime exposed_;
  OperatorWork operators_;
  FlatWork flat_;
  CollectiveWork collectives_;
  OptimizerStep optimizer_;

  std::size_t next_task_ = 0;
  std::size_t next_loss_ = 0;
};

}  // namespace dsplan::exec
