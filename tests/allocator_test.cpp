#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "io/allocator_trace.h"
#include "paths.h"
#include "sim/allocator.h"
#include "sim/allocator_replay.h"

using namespace dsplan;

namespace {

std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The first line in which two texts differ, with its number.
std::string first_difference(const std::string& ours, const std::string& theirs) {
  std::istringstream a(ours);
  std::istringstream b(theirs);
  std::string left;
  std::string right;
  for (int line = 1;; ++line) {
    const bool more_left = static_cast<bool>(std::getline(a, left));
    const bool more_right = static_cast<bool>(std::getline(b, right));
    if (!more_left && !more_right) return "";
    if (more_left != more_right || left != right) return std::to_string(line) + ": " + left + " | " + right;
  }
}

}  // namespace

TEST_CASE("the recorded traces give PyTorch's own statistics, byte for byte") {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test_paths::source_dir() + "/tests/data/allocator")) {
    if (entry.path().extension() != ".trace") continue;
    CAPTURE(entry.path().filename().string());
    const std::string ours = replay_csv(read_allocator_trace(entry.path().string(), slurp(entry.path())));
    std::filesystem::path expected = entry.path();
    expected.replace_extension(".expected.csv");
    const std::string theirs = slurp(expected);
    CHECK(first_difference(ours, theirs) == "");
    CHECK(ours == theirs);
    ++count;
  }
  CHECK(count == 36);
}

namespace {

AllocatorConfig conf(const std::string& text) { return parse_allocator_conf(text, "--alloc-conf"); }

using State = CachingAllocator::BlockState;

// Recomputes every statistic from the blocks themselves.
void check_books(const CachingAllocator& allocator) {
  AllocatorStatistics sums;
  const std::vector<CachingAllocator::BlockView> blocks = allocator.blocks();
  std::map<std::uint32_t, int> parts;
  for (const auto& block : blocks) ++parts[block.segment];
  for (std::size_t at = 0; at < blocks.size(); ++at) {
    const auto& block = blocks[at];
    REQUIRE(block.size > Bytes(0));
    REQUIRE(block.size.value() % 512 == 0);
    if (at > 0) {
      const auto& before = blocks[at - 1];
      REQUIRE(before.address + before.size <= block.address);
      const bool together = before.segment == block.segment;
      // No two neighbours are free, or unmapped: they would have been united.
      const bool idle = block.state == State::Free || block.state == State::Unmapped;
      REQUIRE_FALSE((together && before.state == block.state && idle));
      if (together) REQUIRE(before.address + before.size == block.address);
    }
    if (block.state == State::Unmapped) continue;
    sums.reserved += block.size;
    if (block.state == State::Allocated) sums.allocated += block.size;
    if (block.state != State::Free) sums.active += block.size;
    sums.requested += block.requested;
    REQUIRE(block.requested <= block.size);
    if (block.state == State::Free && !block.expandable && parts[block.segment] > 1) sums.inactive_split += block.size;
  }
  const AllocatorStatistics now = allocator.statistics();
  REQUIRE(now.allocated == sums.allocated);
  REQUIRE(now.active == sums.active);
  REQUIRE(now.requested == sums.requested);
  REQUIRE(now.reserved == sums.reserved);
  REQUIRE(now.inactive_split == sums.inactive_split);
  REQUIRE(now.reserved >= now.active);
  REQUIRE(now.active >= now.allocated);
}

// Keeps the same books as a device would, and fails where it is full.
class CountingSource : public SegmentSource {
 public:
  explicit CountingSource(Bytes capacity) : left_(capacity) {}
  void* allocate(Bytes size) override {
    if (size > left_) return nullptr;
    left_ -= size;
    used_ += size;
    ++live_;
    return next(size);
  }
  void free(void*, Bytes size) override {
    left_ += size;
    used_ -= size;
    --live_;
  }
  void* reserve(Bytes size) override {
    ++live_;
    return next(size);
  }
  void unreserve(void*, Bytes) override { --live_; }
  bool map(void*, Bytes, Bytes size) override {
    if (size > left_) return false;
    left_ -= size;
    used_ += size;
    return true;
  }
  void unmap(void*, Bytes, Bytes size) override {
    left_ += size;
    used_ -= size;
  }
  [[nodiscard]] Bytes used() const { return used_; }
  [[nodiscard]] int live() const { return live_; }

 private:
  // Descending addresses: the allocator's decisions must not follow them.
  void* next(Bytes size) {
    address_ -= size.value();
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address_));
  }
  Bytes left_;
  Bytes used_;
  std::int64_t address_ = std::int64_t{1} << 60;
  int live_ = 0;
};

struct Held {
  BlockId block;
  StreamIndex stream;
};

Bytes random_size(std::mt19937_64& random) {
  const std::int64_t top[] = {600, 5'000, 1 << 20, 3 << 20, 12 << 20, 90 << 20};
  return Bytes(1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(top[random() % 6])));
}

void random_walk(std::uint64_t seed, const AllocatorConfig& config, bool fraction) {
  std::mt19937_64 random(seed);
  const Bytes capacity(500LL << 20);
  CountingSource source(capacity);
  CachingAllocator made_up(config, capacity);
  AllocatorStatistics highest;
  {
    CachingAllocator allocator(config, CachingAllocator::kUnlimited, &source);
    CachingAllocator* const both[] = {&allocator, &made_up};
    allocator.set_capacity(capacity);
    if (fraction) {
      for (CachingAllocator* each : both) each->set_memory_fraction(0.8);
    }
    std::vector<Held> held;
    for (int step = 0; step < 1500; ++step) {
      const std::uint64_t dice = random() % 100;
      const auto stream = static_cast<StreamIndex>(random() % 3);
      if (dice < 50) {
        const Bytes size = random_size(random);
        const auto block = allocator.allocate(size, stream);
        REQUIRE(made_up.allocate(size, stream) == block);
        if (block) held.push_back({*block, stream});
      } else if (dice < 90 && !held.empty()) {
        const std::size_t pick = random() % held.size();
        for (CachingAllocator* each : both) each->release(held[pick].block);
        held[pick] = held.back();
        held.pop_back();
      } else if (dice < 96 && !held.empty()) {
        const BlockId block = held[random() % held.size()].block;
        for (CachingAllocator* each : both) each->record_stream(block, stream);
      } else if (dice < 98) {
        for (CachingAllocator* each : both) each->complete_uses(stream);
      } else if (dice < 99) {
        for (CachingAllocator* each : both) each->set_events_ready(step % 2 == 0);
      } else {
        for (CachingAllocator* each : both) each->empty_cache();
      }
      check_books(allocator);
      const AllocatorStatistics now = allocator.statistics();
      REQUIRE(now == made_up.statistics());
      REQUIRE(now.reserved == source.used());
      highest.allocated = std::max(highest.allocated, now.allocated);
      highest.requested = std::max(highest.requested, now.requested);
      highest.active = std::max(highest.active, now.active);
      highest.inactive_split = std::max(highest.inactive_split, now.inactive_split);
      highest.reserved = std::max(highest.reserved, now.reserved);
    }
    const AllocatorStatistics peaks = allocator.peaks();
    CHECK(peaks.allocated == highest.allocated);
    CHECK(peaks.requested == highest.requested);
    // Inside one call these rise and fall again (events, retries), so the peak is at least what was seen between calls.
    CHECK(peaks.active >= highest.active);
    CHECK(peaks.reserved >= highest.reserved);
    CHECK(peaks.inactive_split >= highest.inactive_split);
    CHECK(peaks.reserved <= capacity);
    for (const Held& each : held) allocator.release(each.block);
    allocator.empty_cache();
    AllocatorStatistics empty = allocator.statistics();
    empty.retries = empty.ooms = 0;
    CHECK(empty == AllocatorStatistics{});
    CHECK(source.live() == 0);
    CHECK(allocator.blocks().empty());
    allocator.reset_peaks();
    CHECK(allocator.peaks().reserved == Bytes(0));
    (void)allocator.allocate(Bytes(100), 0);
  }
  CHECK(source.used() == Bytes(0));  // The destructor gives back what is cached or held.
  CHECK(source.live() == 0);
}

}  // namespace

TEST_CASE("over random programs the books balance, whatever the options, and real pointers decide nothing") {
  const char* const confs[] = {
      "",
      "expandable_segments:True",
      "max_split_size_mb:32",
      "max_split_size_mb:32,expandable_segments:True",
      "roundup_power2_divisions:[1:8,64:4,>:2],garbage_collection_threshold:0.6",
      "large_segment_size_mb:12,expandable_segments:True",
  };
  std::uint64_t seed = 1;
  for (const char* text : confs) {
    for (bool fraction : {false, true}) {
      CAPTURE(text);
      CAPTURE(fraction);
      random_walk(seed++, conf(text), fraction);
    }
  }
}

namespace {

bool same_blocks(const CachingAllocator& a, const CachingAllocator& b) {
  const auto ours = a.blocks();
  const auto theirs = b.blocks();
  return std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(), [](const auto& one, const auto& other) {
    return one.address == other.address && one.size == other.size && one.requested == other.requested &&
           one.stream == other.stream && one.state == other.state && one.large == other.large;
  });
}

// What is asked for and let go of in runs against the same one by one.
class RunsAndSingles {
 public:
  RunsAndSingles(std::uint64_t seed, const AllocatorConfig& config, bool fraction)
      : random_(seed), runs_(config, Bytes(96LL << 20)), singles_(config, Bytes(96LL << 20)) {
    if (!fraction) return;
    both([](CachingAllocator& each) { each.set_memory_fraction(0.8); });
  }
  // How many were cut in one go.
  std::size_t walk() {
    for (int step = 0; step < 600; ++step) {
      do_something(below(100), static_cast<StreamIndex>(below(2)));
      REQUIRE(runs_.statistics() == singles_.statistics());
      REQUIRE(runs_.peaks() == singles_.peaks());
      if (step % 10 == 9 && pieces_.empty()) REQUIRE(same_blocks(runs_, singles_));
    }
    check_books(runs_);
    return together_;
  }

 private:
  std::size_t below(std::size_t end) { return random_() % end; }
  template <class Do>
  void both(Do&& what) {
    what(runs_);
    what(singles_);
  }
  void do_something(std::size_t dice, StreamIndex stream) {
    if (dice < 35) return allocate(sizes(), stream);
    if (dice < 45) return allocate_pieces(1 + below(5000), stream);
    if (dice < 56) return release_pieces();
    if (dice < 85) return release();
    if (dice < 92) return use(stream);
    if (dice < 97) return both([&](CachingAllocator& each) { each.complete_uses(stream); });
    if (dice < 98) return both([](CachingAllocator& each) { each.empty_cache(); });
    both([](CachingAllocator& each) { each.reset_peaks(); });
  }
  std::vector<Bytes> sizes() {
    std::vector<Bytes> sizes(1 + below(40), random_size(random_));
    const bool tiny = below(2) == 0;
    for (Bytes& size : sizes) {
      if (tiny) size = Bytes(1 + static_cast<std::int64_t>(below(512)));
      if (below(50) == 0) size = random_size(random_);
    }
    return sizes;
  }
  void allocate(const std::vector<Bytes>& sizes, StreamIndex stream) {
    std::vector<BlockId> made(sizes.size());
    for (std::size_t at = 0; at < sizes.size();) {
      const std::size_t count =
          AllocatorRuns(runs_).allocate(std::span(sizes).subspan(at), stream, std::span(made).subspan(at));
      together_ += count > 1 ? count : 0;
      const std::optional<BlockId> alone = count > 0 ? made[at] : runs_.allocate(sizes[at], stream);
      if (alone) made[at] = *alone;
      for (const std::size_t end = at + std::max<std::size_t>(count, 1); at < end; ++at) {
        const std::optional<BlockId> single = singles_.allocate(sizes[at], stream);
        REQUIRE(single.has_value() == alone.has_value());
        if (single) held_.emplace_back(made[at], *single);
      }
    }
  }
  void release() {
    if (held_.empty()) return;
    const auto begin = held_.begin() + static_cast<std::ptrdiff_t>(below(held_.size()));
    const auto most = static_cast<std::size_t>(held_.end() - begin);
    const auto end = begin + static_cast<std::ptrdiff_t>(std::min(1 + below(60), most));
    std::vector<BlockId> gone;
    for (auto at = begin; at != end; ++at) {
      gone.push_back(at->first);
      singles_.release(at->second);
    }
    AllocatorRuns(runs_).release(gone);
    held_.erase(begin, end);
  }
  // Of the smallest size, as many as there is room for.
  void allocate_pieces(std::size_t count, StreamIndex stream) {
    Pieces& made = pieces_.emplace_back();
    while (made.singles.size() < count) {
      const std::size_t left = count - made.singles.size();
      AllocatorRuns::Together some = AllocatorRuns(runs_).allocate_together(left, stream);
      together_ += some.count > 1 ? some.count : 0;
      if (some.count > 0) {
        AllocatorRuns(runs_).ask(some.block, Bytes(7) * static_cast<std::int64_t>(some.count));
      } else if (const std::optional<BlockId> alone = runs_.allocate(Bytes(7), stream)) {
        some = {*alone, 1};
      }
      for (std::size_t k = 0; k < std::max<std::size_t>(some.count, 1); ++k) {
        const std::optional<BlockId> single = singles_.allocate(Bytes(7), stream);
        REQUIRE(single.has_value() == (some.count > 0));
        if (!single) return;
        made.singles.push_back(*single);
      }
      made.blocks.push_back(some);
    }
  }
  void release_pieces() {
    if (pieces_.empty()) return;
    const auto gone = pieces_.begin() + static_cast<std::ptrdiff_t>(below(pieces_.size()));
    for (const AllocatorRuns::Together& some : gone->blocks) AllocatorRuns(runs_).release_together(some);
    for (const BlockId single : gone->singles) singles_.release(single);
    pieces_.erase(gone);
  }
  void use(StreamIndex stream) {
    if (held_.empty()) return;
    const auto& [ours, theirs] = held_[below(held_.size())];
    runs_.record_stream(ours, stream);
    singles_.record_stream(theirs, stream);
  }

  std::mt19937_64 random_;
  CachingAllocator runs_;
  CachingAllocator singles_;
  std::vector<std::pair<BlockId, BlockId>> held_;  // Of each.
  struct Pieces {
    std::vector<AllocatorRuns::Together> blocks;
    std::vector<BlockId> singles;
  };
  std::vector<Pieces> pieces_;
  std::size_t together_ = 0;
};

}  // namespace

TEST_CASE("a run of small blocks, asked for or let go of together, is what it is one by one") {
  const char* const confs[] = {
      "",
      "expandable_segments:True",
      "max_split_size_mb:32",
      "roundup_power2_divisions:[1:8,64:4,>:2],garbage_collection_threshold:0.6",
  };
  std::uint64_t seed = 100;
  for (const char* text : confs) {
    for (bool fraction : {false, true}) {
      std::size_t together = 0;
      CAPTURE(text);
      CAPTURE(fraction);
      for (int again = 0; again < 8; ++again) together += RunsAndSingles(++seed, conf(text), fraction).walk();
      const bool ages = fraction && std::string(text).find("garbage") != std::string::npos;  // Each search counts.
      CHECK((together == 0) == ages);
    }
  }
}

TEST_CASE("a use completes at once, per stream, or at the next wait") {
  CachingAllocator allocator;
  const auto first = allocator.allocate(Bytes(4'000'000), 0);
  allocator.record_stream(*first, 1);
  allocator.record_stream(*first, 2);
  allocator.record_stream(*first, 2);
  allocator.release(*first);
  CHECK(allocator.statistics().allocated == Bytes(0));
  CHECK(allocator.statistics().active == Bytes(4'000'256));
  allocator.complete_uses(1);
  (void)allocator.allocate(Bytes(1), 0);
  CHECK(allocator.statistics().active == Bytes(4'000'256 + 512));  // Stream 2 has not finished.
  allocator.complete_uses(2);
  CHECK(allocator.statistics().active == Bytes(4'000'256 + 512));  // Nobody has asked yet.
  (void)allocator.allocate(Bytes(1), 0);
  CHECK(allocator.statistics().active == Bytes(1024));
}

TEST_CASE("without a limit expandable ranges stay finite, and a request beyond a range is out of memory") {
  CachingAllocator allocator(conf("expandable_segments:True"));
  const auto block = allocator.allocate(Bytes(100'000'000'000), 0);
  REQUIRE(block.has_value());
  CHECK(allocator.statistics().reserved == Bytes(100'013'178'880));
  CHECK_FALSE(allocator.allocate(Bytes(std::int64_t{1} << 59), 0).has_value());
  CHECK(allocator.statistics().ooms == 1);
}

TEST_CASE("a release that the program cannot mean is a bug, not a number") {
  CachingAllocator allocator;
  const auto block = allocator.allocate(Bytes(512), 0);
  allocator.release(*block);
  CHECK_THROWS_AS(allocator.release(*block), InternalError);
  CHECK_THROWS_AS(allocator.record_stream(*block, 1), InternalError);
  CHECK_THROWS_AS((void)allocator.allocate(Bytes(-1), 0), InternalError);
  CHECK_THROWS_AS((void)allocator.allocate(Bytes(1), 2000), InternalError);
  CHECK(allocator.allocate(Bytes(0), 0) == kNullBlock);
  allocator.release(kNullBlock);
}

namespace {

constexpr Bytes mib(std::int64_t count) { return Bytes(count << 20); }

// Allocates each size on stream 0, then releases all of them: cached segments, in this order.
void cache_segments(CachingAllocator& allocator, std::initializer_list<std::int64_t> sizes) {
  std::vector<BlockId> held;
  for (std::int64_t size : sizes) held.push_back(allocator.allocate(mib(size), 0).value());
  for (BlockId block : held) allocator.release(block);
}

}  // namespace

TEST_CASE("a block of exactly max_split_size is not broken for a smaller request") {
  CachingAllocator allocator(conf("max_split_size_mb:32"));
  cache_segments(allocator, {32});
  (void)allocator.allocate(mib(20), 0);
  CHECK(allocator.statistics().reserved == mib(52));
  CHECK(allocator.allocate(mib(32), 0).has_value());
  CHECK(allocator.statistics().reserved == mib(52));
}

TEST_CASE("without one large enough segment the largest go first, and no more than needed") {
  CachingAllocator allocator(conf("max_split_size_mb:21"), mib(150));
  cache_segments(allocator, {30, 40, 50});
  (void)allocator.allocate(mib(60), 0).value();  // 50 is not enough, 50 + 40 is.
  CHECK(allocator.statistics().reserved == mib(30 + 60));
  CHECK(allocator.statistics().retries == 0);
}

TEST_CASE("garbage collection takes the old blocks first and stops at its target") {
  CachingAllocator allocator(conf("max_split_size_mb:21,garbage_collection_threshold:0.55"), mib(1024));
  allocator.set_memory_fraction(0.5);
  const BlockId old = allocator.allocate(mib(50), 0).value();
  const BlockId young = allocator.allocate(mib(50), 0).value();
  allocator.release(old);
  for (int round = 0; round < 5; ++round) cache_segments(allocator, {5});  // Searches that age it.
  allocator.release(young);
  (void)allocator.allocate(mib(200), 0).value();
  CHECK(allocator.statistics().reserved == mib(50 + 50 + 20 + 200));
  // Over 0.55 of 512 MiB by 38.4 MiB: the old 50 suffice. (30 in 50 would waste 20, so neither is used for it.)
  (void)allocator.allocate(mib(30), 0).value();
  CHECK(allocator.statistics().reserved == mib(50 + 20 + 200 + 30));
  CHECK(allocator.statistics().retries == 0);
}

TEST_CASE("the last page of the device can be mapped, and one more cannot") {
  CachingAllocator allocator(conf("expandable_segments:True"), mib(40));
  CHECK(allocator.allocate(mib(40), 0).has_value());
  CHECK_FALSE(allocator.allocate(Bytes(1), 0).has_value());
  CHECK(allocator.statistics().retries == 1);
  CHECK(allocator.statistics().reserved == mib(40));
}
