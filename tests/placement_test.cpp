// Schedules written by hand through the allocator: streams, limits, phases, and what fragments.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "both_ends.h"
#include "core/error.h"
#include "sim/fragmentation.h"
#include "sim/long_run.h"
#include "sim/memory.h"
#include "sim/placement.h"

using namespace dsplan;

namespace {

constexpr std::int64_t kMiB = 1 << 20;

// Every work writes whole buffers and reads what they hold.
class Hand {
 public:
  BufferId make(std::int64_t bytes, StreamId stream = 0) {
    const BufferId id = schedule.buffers.next();
    Buffer buffer;
    buffer.size = Bytes(bytes);
    buffer.label = "by hand";
    schedule.buffers.push(buffer);
    schedule.events.emplace_back(Allocate{id, stream});
    return id;
  }
  void work(StreamId stream, const std::vector<BufferId>& reads, const std::vector<BufferId>& writes) {
    Compute event;
    event.stream = stream;
    event.reads = access(reads, false);
    event.writes = access(writes, true);
    schedule.events.emplace_back(event);
  }
  void wait(StreamId waiter, StreamId on) {
    schedule.events.emplace_back(RecordEvent{on, ContentId(next_)});
    schedule.events.emplace_back(WaitEvent{ContentId(next_), waiter, ContentId(next_ + 1)});
    next_ += 2;
  }
  void empty_cache() { schedule.events.emplace_back(EmptyCache{ContentId(next_++)}); }
  void free(BufferId id) { schedule.events.emplace_back(Release{id, kNone, 0, Reason::LastUse}); }
  void mark(Moment moment, Stretch stretch) {
    schedule.events.emplace_back(Mark{moment, stretch, 0, ContentId(next_++)});
  }

  Schedule schedule;

 private:
  Span access(const std::vector<BufferId>& buffers, bool writes) {
    const auto begin = static_cast<std::uint32_t>(schedule.accesses.size());
    for (const BufferId id : buffers) {
      if (writes) held_[id] = ContentId(next_++);
      schedule.accesses.push_back({id, held_[id], Bytes(0), schedule.buffers[id].size});
    }
    return {begin, static_cast<std::uint32_t>(schedule.accesses.size())};
  }

  std::uint32_t next_ = 1;
  std::map<BufferId, ContentId> held_;
};

Bytes reserved(const Schedule& schedule, StreamFrees frees = StreamFrees::AtSync) {
  PlacementOptions options;
  options.frees = frees;
  return place(schedule, options).peak.reserved;
}

PlacementOptions limited(std::int64_t bytes, const std::string& conf = "") {
  PlacementOptions options;
  options.config = parse_allocator_conf(conf, "conf");
  options.limit = options.device = Bytes(bytes);
  return options;
}

}  // namespace

TEST_CASE("a buffer lives in the pool of its stream") {
  Hand hand;
  hand.free(hand.make(30 * kMiB, 0));
  hand.free(hand.make(30 * kMiB, 1));  // The block of stream 0 is free, but not for stream 1.
  hand.free(hand.make(30 * kMiB, 1));
  hand.free(hand.make(30 * kMiB, 0));
  CHECK(reserved(hand.schedule) == Bytes(60 * kMiB));
  CHECK_FALSE(place(hand.schedule, {}).waited);
}

TEST_CASE("a free waits for another stream until its own stream has waited for that use") {
  // A buffer of stream 0 that stream 1 reads, and who waits for stream 1 after that.
  const auto with = [](std::optional<StreamId> waiter) {
    Hand hand;
    const BufferId lent = hand.make(30 * kMiB);
    const BufferId made = hand.make(512, 1);
    hand.work(0, {}, {lent});
    hand.work(1, {lent}, {made});
    hand.free(lent);
    hand.make(512);
    if (waiter) hand.wait(*waiter, 1);
    hand.free(hand.make(30 * kMiB));
    return hand.schedule;
  };
  CHECK(reserved(with(std::nullopt)) == Bytes(64 * kMiB));  // Two of 30 MiB, and a small segment for each stream.
  CHECK(reserved(with(0)) == Bytes(34 * kMiB));
  CHECK(reserved(with(kHostSync)) == Bytes(34 * kMiB));
  CHECK(reserved(with(2)) == Bytes(64 * kMiB));  // Another stream's waiting says nothing.
  CHECK(reserved(with(std::nullopt), StreamFrees::Immediate) == Bytes(34 * kMiB));
  const Placement waited = place(with(std::nullopt), {});
  CHECK(waited.waited);
  CHECK(waited.peak.active == waited.peak.allocated + Bytes(30 * kMiB));
}

TEST_CASE("what was waited for before the free is seen to be over at the next allocation") {
  Hand hand;
  const BufferId lent = hand.make(30 * kMiB);
  const BufferId made = hand.make(512, 1);
  hand.work(0, {}, {lent});
  hand.work(1, {lent}, {made});
  hand.wait(0, 1);
  hand.free(lent);
  hand.free(hand.make(30 * kMiB));
  const Placement placement = place(hand.schedule, {});
  CHECK(placement
            .waited);  // PyTorch records an event on the other stream when the block is freed, whoever waited for it.
  CHECK(placement.peak.reserved == Bytes(32 * kMiB));
}

TEST_CASE("waiting is passed on, and the order of one stream's uses is kept") {
  SUBCASE("stream 0 waits for stream 2, which had waited for stream 1") {
    Hand hand;
    const BufferId lent = hand.make(30 * kMiB);
    const BufferId one = hand.make(512, 1);
    const BufferId two = hand.make(512, 2);
    const BufferId zero = hand.make(512);
    hand.work(0, {}, {lent});
    hand.work(1, {lent}, {one});
    hand.wait(2, 1);
    hand.work(2, {one}, {two});
    hand.free(lent);
    hand.wait(0, 2);
    hand.work(0, {two}, {zero});
    hand.free(hand.make(30 * kMiB));
    CHECK(reserved(hand.schedule) == Bytes((30 + 3 * 2) * kMiB));
  }
  SUBCASE("what was recorded before the use says nothing of it") {
    Hand hand;
    const BufferId lent = hand.make(30 * kMiB);
    const BufferId before = hand.make(512, 1);
    const BufferId after = hand.make(512, 1);
    const BufferId zero = hand.make(512);
    hand.work(0, {}, {lent});
    hand.work(1, {}, {before});
    hand.schedule.events.emplace_back(RecordEvent{1, ContentId(100)});
    hand.work(1, {lent}, {after});
    hand.free(lent);
    hand.schedule.events.emplace_back(WaitEvent{ContentId(100), 0, ContentId(101)});
    hand.work(0, {before}, {zero});
    hand.free(hand.make(30 * kMiB));
    CHECK(reserved(hand.schedule) == Bytes((60 + 2 * 2) * kMiB));
  }
  SUBCASE("a later free of the same stream does not overtake an earlier one") {
    Hand hand;
    const BufferId late = hand.make(30 * kMiB);
    const BufferId early = hand.make(40 * kMiB);
    const BufferId first = hand.make(512, 1);
    const BufferId second = hand.make(512, 1);
    const BufferId zero = hand.make(512);
    hand.work(0, {}, {late, early});
    hand.work(1, {early}, {first});
    hand.schedule.events.emplace_back(RecordEvent{1, ContentId(100)});
    hand.work(1, {late}, {second});
    hand.free(late);   // Waits for the second use,
    hand.free(early);  // and stands before this one, whose use is known to be over.
    hand.schedule.events.emplace_back(WaitEvent{ContentId(100), 0, ContentId(101)});
    hand.work(0, {first}, {zero});
    hand.free(hand.make(40 * kMiB));
    CHECK(reserved(hand.schedule) == Bytes((30 + 40 + 40 + 2 * 2) * kMiB));
  }
}

TEST_CASE("a retry waits for other streams, and what it waited for does not complete twice") {
  Hand hand;
  const BufferId lent = hand.make(60 * kMiB);
  const BufferId made = hand.make(512, 1);
  hand.work(0, {}, {lent});
  hand.work(1, {lent}, {made});
  hand.schedule.events.emplace_back(RecordEvent{1, ContentId(100)});
  hand.free(lent);
  const BufferId again = hand.make(70 * kMiB);  // Only fits once the first is given back.
  const BufferId other = hand.make(512, 1);
  hand.work(1, {again}, {other});
  hand.free(again);
  const BufferId zero = hand.make(512);
  hand.schedule.events.emplace_back(
      WaitEvent{ContentId(100), 0, ContentId(101)});  // Of the first use, which is over already; not the second.
  hand.work(0, {made}, {zero});
  hand.make(20 * kMiB);
  const Placement placement = place(hand.schedule, limited(100 * kMiB));
  CHECK_FALSE(placement.failed_event);
  CHECK(placement.retries == 1);
  CHECK(placement.first_retry == 6);
  CHECK(placement.peak.reserved == Bytes((70 + 20 + 2 * 2) * kMiB));
}

TEST_CASE("under a limit: the first failure, what it asked for, and what was missing") {
  Hand hand;
  hand.make(60 * kMiB);
  hand.make(30 * kMiB + 1);
  hand.make(5 * kMiB);  // Not reached.
  const Placement fails = place(hand.schedule, limited(80 * kMiB));
  CHECK(fails.failed_event == 1);
  CHECK(fails.failed_request == Bytes(30 * kMiB + 1));
  CHECK(fails.missing == Bytes(12 * kMiB));  // A segment of 32 MiB, and 20 MiB left.
  // The fraction is of the device, not of what is left of it.
  PlacementOptions options = limited(80 * kMiB, "per_process_memory_fraction:0.5");
  options.device = Bytes(200 * kMiB);
  CHECK(place(hand.schedule, options).failed_event == 1);
  options.limit = Bytes(200 * kMiB);
  CHECK(place(hand.schedule, options).missing == Bytes(12 * kMiB));  // 60 + 32 of 100, then 20 more.
}

TEST_CASE("peaks of each stretch start from what it found") {
  Hand hand;
  hand.mark(Moment::StretchBegins, Stretch::Init);
  const BufferId kept = hand.make(30 * kMiB);
  hand.free(hand.make(50 * kMiB));
  hand.mark(Moment::StretchEnds, Stretch::Init);
  hand.mark(Moment::StretchBegins, Stretch::FirstStep);
  hand.free(hand.make(20 * kMiB));
  hand.free(kept);
  hand.mark(Moment::StretchEnds, Stretch::FirstStep);
  hand.mark(Moment::StretchBegins, Stretch::SecondStep);
  hand.make(100 * kMiB);
  hand.mark(Moment::StretchEnds, Stretch::SecondStep);
  const Placement placement = place(hand.schedule, {});
  CHECK(placement.by_stretch[0].allocated == Bytes(80 * kMiB));
  CHECK(placement.by_stretch[1].allocated == Bytes(50 * kMiB));
  CHECK(placement.by_stretch[1].reserved == Bytes(80 * kMiB));
  CHECK(placement.by_stretch[1].reserved_at == 5);
  CHECK(placement.by_stretch[static_cast<std::size_t>(Stretch::SecondStep)].reserved == Bytes(180 * kMiB));
  CHECK(placement.peak.reserved == Bytes(180 * kMiB));
  CHECK(placement.peak.reserved_at == 11);
  MemoryMeter first(hand.schedule, Window{Stretch::FirstStep});
  replay(hand.schedule, first);
  CHECK(first.peak_requested() == Bytes(50 * kMiB));
  CHECK(first.peak_event() == 6);
  CHECK(first.peak_stretch() == Stretch::FirstStep);
  MemoryMeter whole(hand.schedule);
  replay(hand.schedule, whole);
  CHECK(whole.peak_requested() == Bytes(100 * kMiB));
}

TEST_CASE("what lies between requested and reserved has five names") {
  Hand hand;
  const BufferId pin = hand.make(3'000'000);  // In a segment of 20 MiB.
  const BufferId freed = hand.make(4'000'000);
  const BufferId other = hand.make(5 * kMiB);
  const BufferId lent = hand.make(30 * kMiB);
  hand.free(hand.make(40 * kMiB));  // Cached.
  const BufferId made = hand.make(100, 1);
  hand.work(1, {lent}, {made});
  hand.free(freed);
  hand.free(lent);
  hand.make(50 * kMiB + 7);
  const Placement placement = place(hand.schedule, {});
  const AllocatorState state = allocator_after(hand.schedule, {}, placement.peak.reserved_at);
  const FragmentationMap map = fragmentation_of(state, {});
  CHECK(map.reserved == Bytes((20 + 40 + 30 + 2 + 52) * kMiB));
  CHECK(map.requested == Bytes(3'000'000 + 5 * kMiB + 100 + 50 * kMiB + 7));
  CHECK(map.awaiting == Bytes(30 * kMiB));
  CHECK(map.slack == Bytes((3'000'320 - 3'000'000) + (512 - 100) + (50 * kMiB + 512 - 50 * kMiB - 7)));
  CHECK(map.cached == Bytes(40 * kMiB));
  REQUIRE(map.segments.size() == 3);
  CHECK(map.segments[0].free == Bytes(20 * kMiB - 3'000'320 - 5 * kMiB));
  REQUIRE(map.segments[0].blocks.size() == 2);
  CHECK(state.blocks[map.segments[0].blocks[0]].buffer == other);  // The larger one first.
  CHECK(state.blocks[map.segments[0].blocks[1]].buffer == pin);
  CHECK(map.segments[1].size + map.segments[2].size == Bytes(54 * kMiB));
}

TEST_CASE("of an expandable range whole pages count as cached") {
  Hand hand;
  const BufferId big = hand.make(50 * kMiB);
  hand.make(3 * kMiB);
  hand.free(big);
  PlacementOptions options = limited(1 << 30, "expandable_segments:True");
  const Placement placement = place(hand.schedule, options);
  CHECK(placement.peak.reserved == Bytes(60 * kMiB));
  const FragmentationMap map = fragmentation_of(allocator_after(hand.schedule, options, 2), options.config);
  CHECK(map.cached == Bytes(40 * kMiB));
  CHECK(map.inactive_split == Bytes(17 * kMiB));
  REQUIRE(map.segments.size() == 1);
  CHECK(map.segments[0].size == Bytes(60 * kMiB));
  CHECK(map.segments[0].free == Bytes(17 * kMiB));
}

TEST_CASE("an emptied cache gives wholly free segments back, and those whose frees wait for a stream") {
  for (const bool empties : {false, true}) {
    for (const StreamFrees frees : {StreamFrees::AtSync, StreamFrees::Immediate}) {
      CAPTURE(empties);
      Hand hand;
      const BufferId first = hand.make(30 * kMiB, 1);
      hand.work(1, {}, {first});
      hand.work(0, {first}, {});
      const BufferId kept = hand.make(12 * kMiB);
      hand.free(hand.make(14 * kMiB));
      hand.free(first);
      if (empties) hand.empty_cache();
      hand.free(hand.make(50 * kMiB));
      hand.free(kept);
      CHECK(reserved(hand.schedule, frees) == Bytes((empties ? 12 + 50 : 12 + 14 + 30 + 50) * kMiB));
    }
  }
}

namespace {

// Each step makes a new state beside the old one, before a buffer that is as large as what the last one left free.
Schedule stepping(bool grows = false) {
  Hand hand;
  BufferId state = kNoBuffer;
  hand.mark(Moment::StretchBegins, Stretch::Init);
  hand.mark(Moment::StretchEnds, Stretch::Init);
  for (const Stretch stretch : {Stretch::FirstStep, Stretch::SecondStep}) {
    hand.mark(Moment::StretchBegins, stretch);
    const BufferId next = hand.make(11 * kMiB);
    const BufferId passing = hand.make(20 * kMiB);
    if (state != kNoBuffer && !grows) hand.free(state);
    hand.free(passing);
    state = next;
    hand.mark(Moment::StretchEnds, stretch);
  }
  return hand.schedule;
}

}  // namespace

// The second step puts the small buffer into the only block that there is, all later ones into the better one. Its free
// waits, and is over before any step ends: what the steps leave is the same, wherever it lay.
TEST_CASE("what waits at the end of a pool's work does not make its steps differ") {
  Hand hand;
  hand.mark(Moment::StretchBegins, Stretch::FirstStep);
  hand.free(hand.make(40 * kMiB, 1));
  hand.mark(Moment::StretchEnds, Stretch::FirstStep);
  hand.mark(Moment::StretchBegins, Stretch::SecondStep);
  const BufferId small = hand.make(11 * kMiB, 1);
  hand.work(1, {}, {small});
  hand.work(0, {small}, {});
  hand.free(hand.make(30 * kMiB, 1));
  hand.free(small);
  hand.free(hand.make(15 * kMiB));
  hand.mark(Moment::StretchEnds, Stretch::SecondStep);
  PlacementOptions whole;  // Not pool by pool, though nothing is limited.
  whole.device = whole.limit = Bytes(std::int64_t{1} << 50);
  whole.config.memory_fraction = 1.0;
  for (const PlacementOptions& options : {PlacementOptions{}, whole}) {
    const std::optional<LongRun> run = long_run(hand.schedule, test::place_both(hand.schedule, {}), options);
    REQUIRE(run);
    CHECK(run->repeats);
    CHECK(run->steps == 3);
    CHECK(run->period == 1);
    CHECK(run->reserved == Bytes((40 + 30 + 16) * kMiB));
  }
}

TEST_CASE("steady steps go on until the allocator's state has been there before") {
  const auto long_run = [](const Schedule& schedule, const PlacementOptions& options, std::int64_t most = kLongestRun) {
    return dsplan::long_run(schedule, test::place_both(schedule, {}), options, most);
  };
  const std::optional<LongRun> run = long_run(stepping(), {});
  REQUIRE(run);
  CHECK(run->repeats);
  CHECK(run->period == 2);  // The state lies in the small segment and in a large one by turns.
  CHECK(run->steps == 4);
  CHECK(run->reserved == Bytes(52 * kMiB));
  CHECK(run->retries == 0);
  CHECK(run->verdict == Verdict::Fits);

  CHECK(long_run(stepping(), limited(52 * kMiB))->repeats);
  CHECK(!long_run(stepping(), limited(51 * kMiB)));  // Its own two steps do not fit.
  CHECK(!long_run(stepping(true), {}));              // What the second step leaves is not what it found.
  CHECK(long_run(stepping(), {}, 3)->repeats == false);
}

// Another stream works for a second at what each step frees first, and the host waits for it at the step's end.
TEST_CASE("steady steps by the clock retry where a free is still awaited, and those whose frees end at once do not") {
  Hand hand;
  for (const Stretch stretch : {Stretch::FirstStep, Stretch::SecondStep}) {
    hand.mark(Moment::StretchBegins, stretch);
    const BufferId used = hand.make(30 * kMiB);
    hand.work(1, {used}, {});
    hand.free(used);
    const BufferId second = hand.make(30 * kMiB);
    hand.free(hand.make(30 * kMiB));
    hand.free(second);
    hand.wait(kHostSync, 1);
    hand.mark(Moment::StretchEnds, stretch);
  }
  EventTimes times;
  for (const Event& event : hand.schedule.events) {
    times.work.push_back(std::holds_alternative<Compute>(event) ? 1.0F : 0.0F);
  }
  PlacementOptions options = limited(70 * kMiB);
  const BothPlacements both = test::place_both(hand.schedule, {});
  const std::optional<LongRun> at_once = long_run(hand.schedule, both, options);
  REQUIRE(at_once);
  CHECK(at_once->retries == 0);
  CHECK(at_once->reserved == Bytes(60 * kMiB));
  options.times = &times;
  const std::optional<LongRun> by_clock = long_run(hand.schedule, both, options);
  REQUIRE(by_clock);
  CHECK(by_clock->repeats);
  CHECK(by_clock->period == 1);
  CHECK(by_clock->retries_period == 1);
  CHECK(by_clock->verdict == Verdict::FitsWithRetries);
  times.work.assign(times.work.size(), 0.0F);  // Work that takes no time is over at once.
  CHECK(long_run(hand.schedule, both, options)->retries == 0);
}

TEST_CASE("an allocator that goes along while a schedule is written is asked the same") {
  int stopped_early = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    PlacementOptions options;
    options.until_retry = seed % 2 == 1;
    if (options.until_retry) options.limit = Bytes(160 * kMiB);
    Hand hand;
    PlacedAlong along(options);
    std::vector<BufferId> held;
    bool stopped = false;
    hand.mark(Moment::StretchBegins, Stretch::SecondStep);
    for (int step = 0; step < 400; ++step) {
      const std::uint64_t what = random() % 8;
      if (what < 3 || held.size() < 2) {
        held.push_back(hand.make(static_cast<std::int64_t>(512 + random() % (8 * kMiB)), random() % 2));
      } else if (what < 5) {
        hand.work(random() % 2, {held.front()}, {held.back()});
      } else if (what < 6) {
        hand.wait(random() % 2, random() % 2);
      } else {
        const auto at = held.begin() + static_cast<std::ptrdiff_t>(random() % held.size());
        hand.free(*at);
        held.erase(at);
      }
      if (random() % 40 == 0) hand.schedule.prints.push_back({hand.schedule.events.size(), "here"});
      if (random() % 5 > 0) continue;
      along.go_on(hand.schedule);
      stopped = stopped || along.stopped();
      CHECK(along.stopped() == stopped);  // For good.
    }
    hand.mark(Moment::StretchEnds, Stretch::SecondStep);
    along.go_on(hand.schedule);
    const BothPlacements seen = along.finish();
    const BothPlacements whole = place_asked(hand.schedule, options);
    CHECK(seen.asked.peak.reserved == whole.asked.peak.reserved);
    CHECK(seen.asked.peak.requested == whole.asked.peak.requested);
    CHECK(seen.asked.retries == whole.asked.retries);
    CHECK(seen.asked.first_retry == whole.asked.first_retry);
    CHECK(seen.asked.waited == whole.asked.waited);
    CHECK(seen.asked.marks.size() == whole.asked.marks.size());
    REQUIRE(seen.asked.prints.size() == whole.asked.prints.size());
    for (std::size_t at = 0; at < whole.asked.prints.size(); ++at) {
      CHECK(seen.asked.prints[at].peak_allocated == whole.asked.prints[at].peak_allocated);
    }
    REQUIRE(seen.requests.size() == whole.requests.size());
    for (std::size_t at = 0; at < whole.requests.size(); ++at) {
      CHECK(seen.requests[at].event == whole.requests[at].event);
      CHECK(seen.requests[at].waits_for == whole.requests[at].waits_for);
    }
    stopped_early += stopped ? 1 : 0;
  }
  CHECK(stopped_early > 0);
  CHECK(stopped_early < 60);
}

namespace {

// The same with a marker behind each event, which keeps buffers from following each other.
Schedule set_apart(const Schedule& schedule) {
  Schedule result = schedule;
  result.events.clear();
  for (const Event& event : schedule.events) {
    result.events.push_back(event);
    result.events.emplace_back(Enter{});
  }
  for (FrameworkPrint& print : result.prints) print.event *= 2;
  return result;
}

void check_same(const Placement& together, const Placement& alone) {
  CHECK(together.peak.requested == alone.peak.requested);
  CHECK(together.peak.allocated == alone.peak.allocated);
  CHECK(together.peak.active == alone.peak.active);
  CHECK(together.peak.reserved == alone.peak.reserved);
  CHECK(together.peak.reserved_at * 2 == alone.peak.reserved_at);
  CHECK(together.retries == alone.retries);
  CHECK(together.first_retry.value_or(0) * 2 == alone.first_retry.value_or(0));
  CHECK(together.failed_event.value_or(0) * 2 == alone.failed_event.value_or(0));
  CHECK(together.failed_request == alone.failed_request);
  CHECK(together.missing == alone.missing);
  CHECK(together.waited == alone.waited);
  REQUIRE(together.marks.size() == alone.marks.size());
  for (std::size_t at = 0; at < alone.marks.size(); ++at) {
    CHECK(together.marks[at].allocated == alone.marks[at].allocated);
    CHECK(together.marks[at].since.active == alone.marks[at].since.active);
    CHECK(together.marks[at].since.requested == alone.marks[at].since.requested);
  }
  REQUIRE(together.prints.size() == alone.prints.size());
  for (std::size_t at = 0; at < alone.prints.size(); ++at) {
    CHECK(together.prints[at].allocated == alone.prints[at].allocated);
    CHECK(together.prints[at].peak_allocated == alone.prints[at].peak_allocated);
    CHECK(together.prints[at].reserved == alone.prints[at].reserved);
  }
}

// Runs of buffers, which go in their order or one by one, used by several streams or not.
class Runs {
 public:
  explicit Runs(std::mt19937_64& random) : random_(random) {
    hand_.mark(Moment::StretchBegins, Stretch::FirstStep);
    for (int step = 0; step < 120; ++step) {
      const std::uint64_t what = below(10);
      if (what < 5 || held_.size() < 2) {
        make();
      } else if (what < 7) {
        hand_.work(stream(), {held_[below(held_.size())]}, {held_.back()});
        if (below(2) == 0) hand_.wait(stream(), stream());
      } else {
        free();
      }
      if (below(20) == 0) hand_.mark(Moment::StepBegins, Stretch::FirstStep);
    }
    hand_.mark(Moment::StretchEnds, Stretch::FirstStep);
  }
  [[nodiscard]] const Schedule& schedule() const { return hand_.schedule; }

 private:
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  StreamId stream() { return static_cast<StreamId>(below(2)); }
  void make() {
    const StreamId owner = stream();
    const std::int64_t size = 1 + static_cast<std::int64_t>(below(below(2) == 0 ? 512 : 4 * kMiB));
    for (std::uint64_t left = below(3) == 0 ? 1 : 1 + below(300); left > 0; --left) {
      held_.push_back(hand_.make(below(90) == 0 ? 700 : size, owner));
      if (below(200) == 0) hand_.schedule.prints.push_back({hand_.schedule.events.size(), "here"});
    }
    if (held_.size() > 900) held_.erase(held_.begin(), held_.begin() + 300);  // They stay for good.
  }
  void free() {
    const auto begin = held_.begin() + static_cast<std::ptrdiff_t>(below(held_.size()));
    const auto most = static_cast<std::uint64_t>(held_.end() - begin);
    const auto end = begin + static_cast<std::ptrdiff_t>(std::min(1 + below(300), most));
    std::for_each(begin, end, [&](BufferId id) { hand_.free(id); });
    held_.erase(begin, end);
  }

  std::mt19937_64& random_;
  Hand hand_;
  std::vector<BufferId> held_;
};

}  // namespace

TEST_CASE("buffers that follow each other are placed as one by one") {
  std::mt19937_64 random(11);
  int retried = 0;
  int failed = 0;
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    const Schedule together = Runs(random).schedule();
    const Schedule alone = set_apart(together);
    for (const StreamFrees frees : {StreamFrees::AtSync, StreamFrees::Immediate}) {
      for (const char* conf : {"", "expandable_segments:True"}) {
        PlacementOptions options;
        options.frees = frees;
        options.config = parse_allocator_conf(conf, "conf");
        const BothPlacements asked = place_asked(together, options);
        check_same(asked.asked, place(alone, options));
        options.limit = options.device = Bytes(asked.asked.peak.reserved.value() - (2 + 40 * (round % 3)) * kMiB);
        const Placement again = place_again(together, asked, options);
        const Placement apart = place(alone, options);
        check_same(again, apart);
        check_same(place_until(false, together, asked, options), apart);
        CHECK(place_until(true, together, asked, options).marks.empty());
        retried += again.retries > 0 ? 1 : 0;
        failed += again.failed_event ? 1 : 0;
      }
    }
  }
  CHECK(retried > 0);
  CHECK(failed > 0);
}
