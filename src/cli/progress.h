// What a long command says while it works, and how it is asked to end.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "planner/plan/search.h"

namespace dsplan {

// Ctrl-C, for commands that write what there is before they end.

// While it lives, the first SIGINT (and SIGTERM, by which launchers end the ranks that are left, where asked) is noted
// and not obeyed; a second one ends dsplan. Afterwards SIGINT does what it did before.
class Interrupt {
 public:
  enum class On { Interrupts, Terminations };
  explicit Interrupt(On on = On::Interrupts);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Whether one came since the program began.
  [[nodiscard]] static const std::atomic<bool>& asked();

 private:
  void (*before_)(int);
};

// The line on a terminal that says how far a search is, and the clock that ends it.

class PlanProgress {
 public:
  // `seconds`: after them `show` says no. Absent: never.
  explicit PlanProgress(std::optional<std::int64_t> seconds);

  // Writes a line to standard error, on a terminal and some times a second only. False: the time is over.
  [[nodiscard]] bool show(const SearchProgress& progress);
  // Since it began.
  [[nodiscard]] double seconds() const;
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

// The same for work that is counted, done by several threads.
class CountProgress {
 public:
  CountProgress(std::size_t all, const char* what);
  void done();
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  std::size_t all_;
  const char* what_;
  Clock::time_point begin_ = Clock::now();
  std::atomic<std::size_t> done_{0};
  std::atomic<std::int64_t> shown_{0};  // Milliseconds since it began.
  bool terminal_ = false;
};

}  // namespace dsplan
