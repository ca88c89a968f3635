#include "planner/lower/feed.h"

namespace dsplan {

void Feed::publish(std::size_t events) {
  next_ = events + at_once_;
  if (published_.load(std::memory_order_relaxed) == kAbandoned) return;
  published_.store(2 * events, std::memory_order_release);
  published_.notify_one();
}

void Feed::end(std::size_t events) {
  if (published_.load(std::memory_order_relaxed) == kAbandoned) return;
  published_.store(2 * events + 1, std::memory_order_release);
  published_.notify_one();
  followed_.wait(false, std::memory_order_acquire);
}

void Feed::abandon() {
  if (followed_.load(std::memory_order_acquire)) return;
  published_.store(kAbandoned, std::memory_order_release);
  published_.notify_one();
  const std::lock_guard<std::mutex> lock(reading_);  // Whoever reads looks again once he has it.
}

bool Feed::read_some(const Read& read, std::size_t begin, std::size_t events, bool last) {
  const std::lock_guard<std::mutex> lock(reading_);
  if (published_.load(std::memory_order_acquire) == kAbandoned) return false;
  read(*schedule_, begin, events, last);
  return !last;
}

void Feed::follow(const Read& read) {
  const auto leave = [this] {
    followed_.store(true, std::memory_order_release);
    followed_.notify_one();
  };
  std::size_t done = 0;
  try {
    for (bool more = true; more;) {
      published_.wait(2 * done, std::memory_order_acquire);
      const std::size_t published = published_.load(std::memory_order_acquire);
      if (published == kAbandoned) break;
      more = read_some(read, done, published / 2, published % 2 == 1);
      done = published / 2;
    }
  } catch (...) {
    leave();
    throw;
  }
  leave();
}

}  // namespace dsplan
