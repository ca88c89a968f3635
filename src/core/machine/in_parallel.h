// Independent pieces of work on all processors.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

namespace dsplan {

// How many pieces of work can go on at once.
[[nodiscard]] std::size_t processors();

// Calls `work` with 0 to count - 1, each once, in any order and from several threads. Returns when all have ended; the
// first exception is thrown again then, and what had not begun is left out. A piece may do the same: it gets the
// processors that are idle.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work);

// Each of `pieces` once, likewise. One after the other where `worth` is false.
void in_parallel(const std::vector<std::function<void()>>& pieces, bool worth);

// One piece of work on another processor, while whoever asked for it goes on. Where `worth` is false, or there is no
// idle processor, it is done before the constructor returns.
class Beside {
 public:
  Beside(std::function<void()> work, bool worth);
  ~Beside();
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

  // Until it is done. Throws what it has thrown.
  void wait();

 private:
  void begin();
  void run();

  std::function<void()> work_;
  std::exception_ptr failed_;
  std::thread thread_;
};

// Pieces of work that idle processors take in order, while whoever offers them goes on. A piece throws nothing.
class Crew {
 public:
  using Work = std::function<void()>;

  Crew() = default;
  // What has begun is waited for, the rest is left out.
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // This, in place of all that was offered and has not begun. It stays undone where no processor is idle.
  void offer(std::deque<Work> work);
  // Takes part until `done`, which is asked whenever a piece has ended.
  void work_until(const std::function<bool()>& done);

 private:
  struct Hand {
    std::thread thread;
    bool ended = false;
  };
  // The next piece; false: none is left. `lock` is open while it is done.
  bool do_next(std::unique_lock<std::mutex>& lock);
  void work_off(Hand& hand);
  void let_go(bool all);

  std::mutex guard_;
  std::condition_variable ended_;
  std::deque<Work> offered_;
  std::list<Hand> hands_;
};

}  // namespace dsplan
