// Independent pieces of work on all processors.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
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

}  // namespace dsplan
