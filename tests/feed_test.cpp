// A schedule that is read while it is written says what the whole one says, wherever its vectors move meanwhile.
#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>

#include "core/machine/in_parallel.h"
#include "io/text.h"
#include "model/families.h"
#include "planner/lower/emitter.h"
#include "planner/lower/feed.h"
#include "planner/lower/lower.h"
#include "planner/lower/unsupported.h"
#include "random_jobs.h"
#include "sim/placement.h"

using namespace dsplan;
using namespace dsplan::test;

namespace {

// Reads on a thread of its own until everything was read, or the writer has given up.
class Follower {
 public:
  Follower(Feed& feed, Feed::Read read)
      : thread_([this, &feed, read = std::move(read)] {
          try {
            feed.follow(read);
          } catch (const std::runtime_error&) {
            failed_ = true;
          }
        }) {}
  ~Follower() {
    if (thread_.joinable()) thread_.join();
  }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;
  [[nodiscard]] bool failed() {
    thread_.join();
    return failed_;
  }

 private:
  bool failed_ = false;
  std::thread thread_;
};

void check_same(const Placement& a, const Placement& b) {
  CHECK(a.peak.requested == b.peak.requested);
  CHECK(a.peak.allocated == b.peak.allocated);
  CHECK(a.peak.reserved == b.peak.reserved);
  CHECK(a.peak.reserved_at == b.peak.reserved_at);
  CHECK(a.waited == b.waited);
  REQUIRE(a.marks.size() == b.marks.size());
  for (std::size_t at = 0; at < a.marks.size(); ++at) CHECK(a.marks[at].reserved == b.marks[at].reserved);
  REQUIRE(a.prints.size() == b.prints.size());
  for (std::size_t at = 0; at < a.prints.size(); ++at) CHECK(a.prints[at].peak_reserved == b.prints[at].peak_reserved);
}

// Work that writes what `emitter` has just allocated, and lets go of it.
void emit_some(Emitter& emitter, std::int64_t count) {
  for (std::int64_t at = 1; at <= count; ++at) {
    const BufferId made = emitter.allocate(Bytes(at), DType::UInt8, {Role::Temporaries, "made"});
    emitter.begin();
    emitter.write(made);
    emitter.compute(Body::LoadParameter, "load");
    emitter.release(made, Reason::LastUse);
  }
}

}  // namespace

TEST_CASE("an allocator that goes along with a schedule says what it says of the whole one") {
  std::int64_t followed = 0;
  std::int64_t waited = 0;
  std::int64_t left = 0;
  for (std::uint32_t seed = 1; seed <= 150; ++seed) {
    Dice dice(seed);
    const ModelSpec model = build_model(parse_json("config.json", random_config(dice)), "random");
    const Job job = random_job(dice, model);
    if (unsupported(model, job)) continue;
    INFO("seed ", seed, ": ", tell(model, job));
    const Shapes shapes = build_shapes(model, job);
    const std::int64_t rank = dice.from(0, job.parallelism.dp - 1);
    std::optional<Placing> placing;
    std::optional<BothPlacements> along;
    Feed feed(static_cast<std::size_t>(dice.from(1, 300)));
    std::optional<Schedule> written;
    {
      const Follower follower(feed, [&](const Schedule& schedule, std::size_t begin, std::size_t end, bool last) {
        if (!placing) placing.emplace(schedule, PlacementOptions{});
        placing->read(begin, end);
        if (last) along = placing->finish();
      });
      written = lower_within(model, job, shapes, rank, {}, &feed);
      feed.abandon();
    }
    const Schedule alone = lower(model, job, shapes, rank);
    REQUIRE(written->events.size() == alone.events.size());
    if (!along) {
      const Training& training = job.training;  // Whose buckets are told of late: that alone ends it.
      const bool partitions = training.runtime == Runtime::DeepSpeed && training.zero.stage != 3;
      CHECK((partitions || training.runtime == Runtime::Fsdp1));
      ++left;
      continue;
    }
    const BothPlacements whole = place_asked(alone, {});
    check_same(along->asked, whole.asked);
    CHECK(along->requests.size() == whole.requests.size());
    CHECK(along->second_step.before == whole.second_step.before);
    CHECK(along->second_step.after == whole.second_step.after);
    ++followed;
    waited += whole.asked.waited ? 1 : 0;
  }
  CHECK(followed > 40);
  CHECK(waited > 5);
  CHECK(left > 0);
}

TEST_CASE("vectors move under a reader") {
  constexpr std::int64_t kCount = 20'000;
  Feed feed(7);
  std::size_t seen = 0;
  Bytes sum;
  bool ended = false;
  {
    const Follower follower(feed, [&](const Schedule& schedule, std::size_t begin, std::size_t end, bool last) {
      CHECK(begin == seen);
      seen = end;
      for (std::size_t at = begin; at < end; ++at) {
        if (const auto* work = std::get_if<Compute>(&schedule.events[at])) {
          for (const Access& access : ScheduleView(schedule).range(work->writes)) sum += access.bytes;
        }
      }
      ended = last;
    });
    Emitter emitter(3, {}, &feed);  // Room for three events.
    emit_some(emitter, kCount);
    const Schedule schedule = emitter.finish();
    CHECK(schedule.events.size() == 3 * kCount);
  }
  CHECK(ended);
  CHECK(seen == 3 * kCount);
  CHECK(sum == Bytes(kCount * (kCount + 1) / 2));
}

TEST_CASE("a writer that gives up lets the reader go, and the other way round") {
  SUBCASE("the writer is destroyed") {
    Feed feed(1);
    bool ended = false;
    Follower follower(feed, [&](const Schedule&, std::size_t, std::size_t, bool last) { ended = last; });
    {
      Emitter emitter(3, {}, &feed);
      emit_some(emitter, 100);
    }
    CHECK(!follower.failed());
    CHECK(!ended);
  }
  SUBCASE("the reader throws") {
    Feed feed(1);
    Follower follower(feed, [](const Schedule&, std::size_t, std::size_t, bool) { throw std::runtime_error("read"); });
    Emitter emitter(3, {}, &feed);
    emit_some(emitter, 100);
    CHECK(emitter.finish().events.size() == 300);
    CHECK(follower.failed());
  }
  SUBCASE("what the reader has not heard of") {
    Feed feed(1);
    bool ended = false;
    Follower follower(feed, [&](const Schedule&, std::size_t, std::size_t, bool last) { ended = last; });
    Emitter emitter(3, {}, &feed);
    const BufferId made = emitter.allocate(Bytes(8), DType::UInt8, {Role::Temporaries, "made"});
    tell_uses(emitter, made, false);
    emit_some(emitter, 100);
    CHECK(emitter.finish().events.size() == 301);
    CHECK(!follower.failed());
    CHECK(!ended);
  }
}

TEST_CASE("work on an idle processor, or none") {
  bool done = false;
  const std::unique_ptr<Beside> beside = Beside::if_idle([&done] { done = true; });
  if (beside != nullptr) beside->wait();
  CHECK(done == (beside != nullptr));
  CHECK((beside != nullptr || processors() == 1));
}
