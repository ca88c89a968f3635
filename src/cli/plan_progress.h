// The line on a terminal that says how far a search is, and the clock that ends it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "planner/plan/search.h"

namespace dsplan {

class PlanProgress {
 public:
  // `seconds`: after them `show` says no. Absent: never.
  explicit PlanProgress(std::optional<std::int64_t> seconds);

  // Writes a line to standard error, on a terminal and some times a second only. False: the time is over.
  [[nodiscard]] bool show(const SearchProgress& progress);
  // Takes the line away.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point shown_ = begin_;
  std::optional<std::chrono::seconds> limit_;
  bool terminal_ = false;
  bool visible_ = false;
};

}  // namespace dsplan
