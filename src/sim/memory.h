// The memory meter: adds and subtracts buffer sizes while a schedule is replayed, in requested bytes and rounded to the
// allocator's 512-byte blocks, by role, on the device; of the host it counts only what a phase asks for in all. It
// knows nothing of models or of ZeRO.
#pragma once

#include <optional>
#include <vector>

#include "core/prediction.h"
#include "core/schedule.h"
#include "sim/window.h"

namespace dsplan {

class MemoryMeter : public Ignores<Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit> {
 public:
  // `only`: peaks are those within that window, with what was there when it began; everything else is as ever.
  explicit MemoryMeter(const Schedule& schedule, std::optional<Window> only = std::nullopt)
      : schedule_(schedule), inside_(!only) {
    if (only) only_.emplace(*only);
  }

  using Ignores<Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit>::on;
  void on(std::size_t at, const Allocate& event);
  void on(std::size_t at, const Release& event);
  void on(std::size_t at, const Mark& event);

  [[nodiscard]] Bytes requested() const { return requested_; }
  [[nodiscard]] Bytes allocated() const { return allocated_; }
  [[nodiscard]] const ByRole& by_role() const { return by_role_; }

  // The first event at which requested bytes are largest.
  [[nodiscard]] std::size_t peak_event() const { return peak_event_; }
  [[nodiscard]] Bytes peak_requested() const { return peak_requested_; }
  [[nodiscard]] const ByRole& peak_by_role() const { return peak_by_role_; }
  [[nodiscard]] Stretch peak_stretch() const { return peak_stretch_; }
  // The largest sum of rounded blocks, which may be at another event.
  [[nodiscard]] Bytes peak_allocated() const { return peak_allocated_; }
  // In what the schedule says alone: active and reserved are the allocator's business, and 0 here.
  [[nodiscard]] const std::vector<Phase>& phases() const { return phases_; }

 private:
  void take_peak(std::size_t at);

  const Schedule& schedule_;
  std::optional<WindowWalk> only_;
  bool inside_;
  Bytes requested_;
  Bytes allocated_;
  ByRole by_role_;
  Bytes peak_requested_;
  Bytes peak_allocated_;
  ByRole peak_by_role_;
  std::size_t peak_event_ = 0;
  Stretch stretch_ = Stretch::Init;
  bool repeated_ = false;  // Within a middle step that is not the first.
  Stretch peak_stretch_ = Stretch::Init;
  std::vector<Phase> phases_;
  Bytes most_requested_;  // Since the last mark, as the next.
  Bytes most_allocated_;
  Bytes requested_total_;
  std::int64_t allocations_ = 0;
  Bytes host_requested_total_;
};

// The buffers on the device that are live right after event `at`, in order of allocation.
[[nodiscard]] std::vector<BufferId> live_after(const Schedule& schedule, std::size_t at);

// What an op-graph takes above its own tensors, in requested bytes (interface.md, "Op-graph").

class AboveInputsMeter : public Ignores<Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit> {
 public:
  explicit AboveInputsMeter(const Schedule& schedule) : schedule_(schedule) {}

  using Ignores<Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit>::on;
  void on(std::size_t at, const Allocate& event);
  void on(std::size_t at, const Release& event);
  void on(std::size_t at, const Mark& event);

  // All four; whoever knows that there is no gradient takes the last two away.
  [[nodiscard]] const AboveInputs& figures() const { return figures_; }
  [[nodiscard]] Bytes inputs() const { return inputs_; }

 private:
  const Schedule& schedule_;
  AboveInputs figures_;
  Bytes inputs_;
  Bytes now_;
  Bytes* peak_ = nullptr;  // Of the pass under way.
};

}  // namespace dsplan
