// What a rank's memory was while it ran: a reader that rides behind the runner and takes notes at the schedule's marks,
// in the words of a prediction (core/receipt.h). It looks at counters of what was really asked for, never at sizes in
// the schedule.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "core/receipt.h"
#include "core/schedule.h"
#include "exec/memory/memory.h"
#include "exec/runner/runner.h"

namespace dsplan::exec {

// Wall time of a stretch by what it was spent on, in nanoseconds.
struct PhaseTime {
  Stretch stretch = Stretch::Init;
  std::int64_t forward = 0;
  std::int64_t backward = 0;
  std::int64_t step = 0;
  std::int64_t communication = 0;  // Of these: within collectives.
};

class Measurer : public Ignores<RecordEvent, WaitEvent, EmptyCache, Enter, Exit> {
 public:
  Measurer(const Schedule& schedule, const Device& device, RankMemory& memory, const Runner& runner);

  using Ignores<RecordEvent, WaitEvent, EmptyCache, Enter, Exit>::on;
  void on(std::size_t at, const Allocate& event);
  void on(std::size_t at, const Release&) { event_ = at; }
  void on(std::size_t at, const Compute&) { event_ = at; }
  void on(std::size_t at, const Communicate&) { event_ = at; }
  void on(std::size_t at, const Mark& event);

  // As far as the run has come. Complete after the last event.
  [[nodiscard]] RankFigures figures() const;
  [[nodiscard]] const std::vector<PhaseTime>& times() const { return times_; }

 private:
  [[nodiscard]] Counters now() const;
  [[nodiscard]] std::vector<TrafficFigure> traffic() const;
  void note_time(Moment moment);

  const Schedule& schedule_;
  const Device& device_;
  RankMemory& memory_;
  const Runner& runner_;
  std::size_t event_ = 0;
  Stretch stretch_ = Stretch::Init;
  std::optional<HostPeaks> before_saving_;  // Peaks of the host are training's, as those of the device are.
  bool repeated_ = false;
  bool saving_ = false;
  std::vector<FigurePhase> phases_;
  Counters persistent_;
  Counters peak_;
  std::string peak_phase_;
  Bytes most_requested_;
  Bytes phase_requested_;
  Bytes requested_total_;  // When the stretch began.
  std::int64_t allocations_ = 0;
  Bytes host_requested_total_;
  Bytes file_read_;  // When the stretch began.
  Bytes file_written_;
  std::optional<Bytes> step_read_;  // In the steady step.
  std::optional<Bytes> step_written_;
  std::vector<PhaseTime> times_;
  std::chrono::steady_clock::time_point since_;
  std::int64_t communicated_ = 0;
};

}  // namespace dsplan::exec
