// How long each piece of work of a schedule takes on its stream, for a clock beside the allocator (sim/stream_clock.h):
// which frees are over when. Estimated from what the work reads and writes; step times are another matter (estimate.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/job.h"
#include "core/schedule.h"
#include "planner/time/rates.h"
#include "sim/stream_clock.h"

namespace dsplan {

// Goes along with a schedule, which may still be written, a part at a time and in order.
class EventTimer {
 public:
  // All three must outlive this.
  EventTimer(const Schedule& schedule, const Job& job, const Rates& rates);

  // Events `begin` to the one before `end`.
  void read(std::size_t begin, std::size_t end);
  [[nodiscard]] EventTimes& times() { return times_; }

 private:
  [[nodiscard]] double seconds(const ScheduleView& view, const Compute& event);
  [[nodiscard]] double product(const std::array<double, 3>& elements, DType dtype);

  // A model has a few products, again and again.
  struct Product {
    std::array<double, 3> elements{};
    DType dtype = DType::Float32;
    double seconds = 0;
  };
  static constexpr std::size_t kProducts = 64;

  const Schedule& schedule_;
  std::int64_t seq_;
  const Rates& rates_;
  std::array<Product, kProducts> known_{};
  EventTimes times_;
};

[[nodiscard]] EventTimes event_times(const Schedule& schedule, const Job& job, const Rates& rates);

}  // namespace dsplan
