// Independent work on all processors, and on one where there is no other.
#include "core/machine/in_parallel.h"

#include <doctest/doctest.h>
#include <pthread.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

using namespace dsplan;

namespace {

// While this lives no thread can begin: each would get a stack that no address space holds.
class NoThreads {
 public:
  NoThreads() {
    ::pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    ::pthread_getattr_default_np(&huge);
    ::pthread_attr_setstacksize(&huge, std::size_t{1} << 60);
    ::pthread_setattr_default_np(&huge);
    ::pthread_attr_destroy(&huge);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;
  ~NoThreads() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_{};
};

std::vector<int> counted(std::size_t count) {
  std::vector<std::atomic<int>> times(count);
  in_parallel(count, [&](std::size_t at) { ++times[at]; });
  return {times.begin(), times.end()};
}

}  // namespace

TEST_CASE("each piece of work is done once") {
  CHECK(counted(0).empty());
  CHECK(counted(1000) == std::vector<int>(1000, 1));
}

TEST_CASE("without other threads the caller does all of it") {
  const NoThreads none;
  REQUIRE_THROWS_AS(std::thread([] {}).join(), std::system_error);
  CHECK(counted(1000) == std::vector<int>(1000, 1));
  std::set<std::thread::id> threads;
  in_parallel(10, [&](std::size_t) { threads.insert(std::this_thread::get_id()); });
  CHECK(threads == std::set<std::thread::id>{std::this_thread::get_id()});
}

TEST_CASE("what fails is thrown when all have ended, and the rest is left out") {
  std::atomic<int> begun{0};
  CHECK_THROWS_AS(in_parallel(100'000,
                              [&](std::size_t at) {
                                ++begun;
                                if (at == 3) throw std::runtime_error("the third");
                              }),
                  std::runtime_error);
  CHECK(begun < 100'000);
}
