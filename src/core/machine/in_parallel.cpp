#include "core/machine/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <iterator>
#include <mutex>
#include <span>
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

// Processors on which no thread of ours is at work, this one's left out: a piece of work inside another one takes what
// the others leave.
std::atomic<std::int64_t>& idle() {
  static std::atomic<std::int64_t> count{static_cast<std::int64_t>(processors()) - 1};
  return count;
}

// One of them, until it is given back.
class Processor {
 public:
  Processor() : mine_(idle()-- > 0) {
    if (!mine_) ++idle();
  }
  ~Processor() {
    if (mine_) ++idle();
  }
  Processor(Processor&& other) noexcept : mine_(std::exchange(other.mine_, false)) {}
  Processor& operator=(Processor&&) = delete;
  [[nodiscard]] bool mine() const { return mine_; }

 private:
  bool mine_;
};

// Until those have ended somebody else may use this thread's processor.
void join(std::span<std::thread> threads) {
  ++idle();
  for (std::thread& thread : threads) thread.join();
  --idle();
}

// A thread begins behind its maker, on the same processor, and some schedulers leave it there for milliseconds: for
// longer than a piece of work takes.
void send_away([[maybe_unused]] std::thread& thread) {
#if defined(__linux__)
  // Of the first thread: those that were sent away have fewer.
  static const cpu_set_t all = [] {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
    return set;
  }();
  cpu_set_t others = all;
  if (const int here = sched_getcpu(); here >= 0) CPU_CLR(static_cast<std::size_t>(here), &others);
  if (CPU_COUNT(&others) > 0) (void)pthread_setaffinity_np(thread.native_handle(), sizeof others, &others);
#endif
}

}  // namespace

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
    while (others.size() + 1 < count) {
      Processor processor;
      if (!processor.mine()) break;
      send_away(others.emplace_back([&run, held = std::move(processor)] { run(); }));
    }
  } catch (const std::system_error&) {
    // A system may give no more threads, and a browser gives none: those that there are do it all.
  }
  run();
  join(others);
  if (failed) std::rethrow_exception(failed);
}

void in_parallel(const std::vector<std::function<void()>>& pieces, bool worth) {
  if (worth) return in_parallel(pieces.size(), [&](std::size_t at) { pieces[at](); });
  for (const std::function<void()>& piece : pieces) piece();
}

Beside::Beside(std::function<void()> work, bool worth) : work_(std::move(work)) {
  if (worth) begin();
  if (!thread_.joinable()) run();
}

Beside::~Beside() {
  if (thread_.joinable()) join({&thread_, 1});
}

void Beside::wait() {
  if (thread_.joinable()) join({&thread_, 1});
  if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
}

void Beside::begin() {
  Processor processor;
  if (!processor.mine()) return;
  try {
    thread_ = std::thread([this, held = std::move(processor)] { run(); });
    send_away(thread_);
  } catch (const std::system_error&) {
    // As above.
  }
}

void Beside::run() {
  try {
    work_();
  } catch (...) {
    failed_ = std::current_exception();
  }
}

Crew::~Crew() {
  {
    const std::lock_guard<std::mutex> lock(guard_);
    offered_.clear();
  }
  let_go(true);
}

void Crew::offer(std::deque<Work> work) {
  let_go(false);
  const std::size_t pieces = work.size();
  {
    const std::lock_guard<std::mutex> lock(guard_);
    offered_ = std::move(work);
  }
  try {
    for (std::size_t more = 0; more < pieces; ++more) {
      Processor processor;
      if (!processor.mine()) return;
      Hand& hand = hands_.emplace_back();
      hand.thread = std::thread([this, &hand, held = std::move(processor)] { work_off(hand); });
      send_away(hand.thread);
    }
  } catch (const std::system_error&) {
    hands_.pop_back();  // As above.
  }
}

void Crew::work_until(const std::function<bool()>& done) {
  std::unique_lock<std::mutex> lock(guard_);
  while (!done()) {
    if (do_next(lock)) continue;
    ++idle();
    ended_.wait(lock);
    --idle();
  }
}

bool Crew::do_next(std::unique_lock<std::mutex>& lock) {
  if (offered_.empty()) return false;
  const Work piece = std::move(offered_.front());
  offered_.pop_front();
  lock.unlock();
  piece();
  lock.lock();
  ended_.notify_all();
  return true;
}

void Crew::work_off(Hand& hand) {
  std::unique_lock<std::mutex> lock(guard_);
  while (do_next(lock)) {
  }
  hand.ended = true;
}

void Crew::let_go(bool all) {
  std::list<Hand> gone;
  {
    const std::lock_guard<std::mutex> lock(guard_);
    for (auto at = hands_.begin(); at != hands_.end();) {
      const auto next = std::next(at);
      if (all || at->ended) gone.splice(gone.end(), hands_, at);
      at = next;
    }
  }
  if (all) ++idle();
  for (Hand& hand : gone) hand.thread.join();
  if (all) --idle();
}

}  // namespace dsplan
