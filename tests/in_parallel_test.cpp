// Independent work on all processors, and on one where there is no other.
#include "core/machine/in_parallel.h"

#include <doctest/doctest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
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

TEST_CASE("pieces of pieces are done once, by whoever is idle") {
  std::vector<std::atomic<int>> times(40 * 25);
  std::atomic<std::size_t> at_work{0};
  std::atomic<std::size_t> most{0};
  in_parallel(40, [&](std::size_t outer) {
    in_parallel(25, [&](std::size_t inner) {
      const std::size_t now = ++at_work;
      std::size_t seen = most;
      while (now > seen && !most.compare_exchange_weak(seen, now)) {
      }
      ++times[outer * 25 + inner];
      --at_work;
    });
  });
  CHECK(std::all_of(times.begin(), times.end(), [](const auto& one) { return one == 1; }));
  CHECK(most <= processors());
}

TEST_CASE("whoever ends gives its processor back") {
  const auto threads = [] {
    std::atomic<int> made{0};
    const auto me = std::this_thread::get_id();
    std::mutex guard;
    std::set<std::thread::id> others;
    in_parallel(64, [&](std::size_t) {
      ++made;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const std::lock_guard<std::mutex> lock(guard);
      if (std::this_thread::get_id() != me) others.insert(std::this_thread::get_id());
    });
    CHECK(made == 64);
    return others.size();
  };
  CHECK(threads() <= processors() - 1);
  for (std::size_t again = 0; again < 2 * processors(); ++again) {
    CHECK_THROWS(in_parallel(8, [](std::size_t) { throw std::runtime_error("it fails"); }));
  }
  if (processors() > 1) CHECK(threads() > 0);
}

TEST_CASE("a piece goes on beside its maker") {
  for (const bool worth : {false, true}) {
    int done = 0;
    Beside piece([&] { ++done; }, worth);
    if (!worth) CHECK(done == 1);
    piece.wait();
    CHECK(done == 1);
    piece.wait();
    CHECK(done == 1);
  }
}

TEST_CASE("what a piece beside its maker throws, waiting throws") {
  for (const bool worth : {false, true}) {
    Beside piece([] { throw std::runtime_error("it fails"); }, worth);
    CHECK_THROWS_WITH(piece.wait(), "it fails");
    CHECK_NOTHROW(piece.wait());
  }
  const NoThreads none;
  int done = 0;
  Beside alone([&] { ++done; }, true);
  CHECK(done == 1);
}

TEST_CASE("a crew does each piece once, and whoever waits takes part") {
  std::atomic<int> done{0};
  std::vector<std::atomic<int>> times(200);
  Crew crew;
  std::deque<Crew::Work> work;
  for (std::atomic<int>& one : times) {
    work.emplace_back([&] {
      ++one;
      ++done;
    });
  }
  crew.offer(std::move(work));
  crew.work_until([&] { return done == 200; });
  CHECK(std::all_of(times.begin(), times.end(), [](const auto& one) { return one == 1; }));
}

TEST_CASE("what a crew has not begun gives way to what is offered next, and is left out at the end") {
  std::atomic<int> first{0};
  std::atomic<int> second{0};
  std::atomic<bool> open{false};
  {
    Crew crew;
    std::deque<Crew::Work> work;
    for (int at = 0; at < 100; ++at) {
      work.emplace_back([&] {
        ++first;
        while (!open) std::this_thread::yield();
      });
    }
    crew.offer(std::move(work));
    crew.offer({[&] { ++second; }, [&] { ++second; }});
    open = true;
    crew.work_until([&] { return second == 2; });
    crew.offer({});
    crew.work_until([] { return true; });
  }
  CHECK(first < static_cast<int>(processors()));
  CHECK(second == 2);
}

TEST_CASE("without threads a crew does nothing until somebody waits, then what was offered in order") {
  const NoThreads none;
  std::vector<int> done;
  Crew crew;
  crew.offer({[&] { done.push_back(0); }, [&] { done.push_back(1); }, [&] { done.push_back(2); }});
  CHECK(done.empty());
  crew.work_until([&] { return done.size() == 2; });
  CHECK(done == std::vector<int>{0, 1});
}

TEST_CASE("a crew gives its processors back") {
  for (std::size_t again = 0; again < 4 * processors(); ++again) {
    std::atomic<int> done{0};
    Crew crew;
    crew.offer({[&] { ++done; }, [&] { ++done; }, [&] { ++done; }});
    crew.work_until([&] { return done == 3; });
  }
  std::atomic<bool> other{false};
  const auto me = std::this_thread::get_id();
  in_parallel(64, [&](std::size_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (std::this_thread::get_id() != me) other = true;
  });
  CHECK(other == (processors() > 1));
}

TEST_CASE("nobody need wait for a piece beside its maker") {
  std::atomic<bool> done{false};
  {
    Beside piece([&] { done = true; }, true);
  }
  CHECK(done);
}
