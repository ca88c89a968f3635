#include "core/machine/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace dsplan {

std::size_t processors() {
  static const std::size_t count = std::max<std::size_t>(1, std::thread::hardware_concurrency());
  return count;
}

void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr failed;
  std::mutex guard;
  const auto run = [&] {
    for (std::size_t at = next++; at < count; at = next++) {
      try {
        work(at);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(guard);
        if (!failed) failed = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::thread> others;
  try {
    for (std::size_t i = 1; i < std::min(count, processors()); ++i) others.emplace_back(run);
  } catch (const std::system_error&) {
    // A system may give no more threads, and a browser gives none: those that there are do it all.
  }
  run();
  for (std::thread& other : others) other.join();
  if (failed) std::rethrow_exception(failed);
}

void in_parallel(const std::vector<std::function<void()>>& pieces, bool worth) {
  if (worth) return in_parallel(pieces.size(), [&](std::size_t at) { pieces[at](); });
  for (const std::function<void()>& piece : pieces) piece();
}

}  // namespace dsplan
