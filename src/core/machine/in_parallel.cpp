#include "core/machine/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace dsplan {
namespace {

// Of this thread, whose siblings have the others. 0: it has no siblings.
thread_local std::size_t share = 0;

// A thread begins behind its maker, on the same processor, and some schedulers leave it there for milliseconds: for
// longer than a piece of work takes.
void send_away([[maybe_unused]] std::thread& thread) {
#if defined(__linux__)
  cpu_set_t others;
  if (sched_getaffinity(0, sizeof others, &others) != 0) return;
  if (const int here = sched_getcpu(); here >= 0) CPU_CLR(static_cast<std::size_t>(here), &others);
  if (CPU_COUNT(&others) > 0) (void)pthread_setaffinity_np(thread.native_handle(), sizeof others, &others);
#endif
}

}  // namespace

std::size_t processors() {
  static const std::size_t count = std::max<std::size_t>(1, std::thread::hardware_concurrency());
  return share == 0 ? count : share;
}

void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr failed;
  std::mutex guard;
  const std::size_t threads = std::min(count, processors());
  const std::size_t own = threads < 2 ? share : processors() / threads;
  const auto run = [&] {
    const std::size_t before = std::exchange(share, own);
    for (std::size_t at = next++; at < count; at = next++) {
      try {
        work(at);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(guard);
        if (!failed) failed = std::current_exception();
        next = count;
      }
    }
    share = before;
  };
  std::vector<std::thread> others;
  try {
    for (std::size_t i = 1; i < threads; ++i) send_away(others.emplace_back(run));
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

Beside::Beside(std::function<void()> work, bool worth) : work_(std::move(work)) {
  if (!worth || processors() < 2) {
    run();
    return;
  }
  try {
    thread_ = std::thread([this, half = processors() / 2] {
      share = half;
      run();
    });
    send_away(thread_);
  } catch (const std::system_error&) {
    run();
  }
}

Beside::~Beside() {
  if (thread_.joinable()) thread_.join();
}

void Beside::wait() {
  if (thread_.joinable()) thread_.join();
  if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
}

void Beside::run() {
  try {
    work_();
  } catch (...) {
    failed_ = std::current_exception();
  }
}

}  // namespace dsplan
