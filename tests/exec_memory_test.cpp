// The executor's memory against the simulator's, on schedules made by hand: the same requests, one side with made-up
// segments, the other with real ones.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "exec/host/host_backend.h"
#include "exec/memory/memory.h"
#include "replayed.h"
#include "sim/arena.h"
#include "sim/host_memory.h"
#include "sim/placement.h"

using namespace dsplan;
using namespace dsplan::exec;
using replayed::replay_on_memory;
using replayed::Replayed;

namespace {

constexpr std::int64_t kMiB = 1 << 20;

// Buffers of all sizes on three streams, made, used and freed at random; a mark after every event.
Schedule random_schedule(unsigned seed, std::size_t steps, bool streams, std::int64_t largest) {
  std::mt19937 random(seed);
  Schedule schedule;
  std::vector<BufferId> live;
  std::uint32_t next = 1;
  Indexed<BufferId, ContentId> content;
  const auto size = [&]() -> std::int64_t {
    switch (random() % 4) {
      case 0: return 1 + static_cast<std::int64_t>(random() % 5000);
      case 1: return 1 + static_cast<std::int64_t>(random() % (2 * kMiB));
      case 2: return 1 + static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(largest));
      default: return 512 * (1 + static_cast<std::int64_t>(random() % 40));
    }
  };
  std::vector<Event> list;
  for (std::size_t step = 0; step < steps; ++step) {
    const auto stream = static_cast<StreamId>(streams ? random() % 3 : 0);
    const auto what = random() % 10;
    if (streams && random() % 8 == 0) {
      list.emplace_back(RecordEvent{static_cast<StreamId>(random() % 3), ContentId(next)});
      list.emplace_back(WaitEvent{ContentId(next), random() % 4 == 0 ? kHostSync : stream, ContentId(next + 1)});
      next += 2;
    }
    if (random() % 30 == 0) list.emplace_back(EmptyCache{ContentId(next++)});
    if (what < 4 || live.empty()) {
      const auto id = BufferId(schedule.buffers.size());
      Buffer buffer;
      buffer.size = Bytes(size());
      buffer.role = static_cast<Role>(random() % kRoles);
      schedule.buffers.push(buffer);
      content.push(kNone);
      live.push_back(id);
      list.emplace_back(Allocate{id, stream});
    } else if (what < 7) {
      const BufferId reads = live[random() % live.size()];
      const BufferId writes = live[random() % live.size()];
      Compute work;
      work.stream = stream;
      const auto begin = static_cast<std::uint32_t>(schedule.accesses.size());
      schedule.accesses.push_back({reads, content[reads], Bytes(0), schedule.buffers[reads].size});
      content[writes] = ContentId(next++);
      schedule.accesses.push_back({writes, content[writes], Bytes(0), schedule.buffers[writes].size});
      work.reads = {begin, begin + 1};
      work.writes = {begin + 1, begin + 2};
      list.emplace_back(work);
    } else {
      const std::size_t at = random() % live.size();
      list.emplace_back(Release{live[at], kNone, stream, Reason::LastUse});
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
    list.emplace_back(Mark{Moment::MicroBatchBegins, Stretch::FirstStep, 0, ContentId(next++)});
  }
  schedule.events = std::move(list);
  return schedule;
}

// Both sides, event by event: sums, retries, and where and why it ends.
void check_same(const Schedule& schedule, const PlacementOptions& options, const dsplan_backend& backend,
                bool patterns = false) {
  const Placement predicted = place(schedule, options);
  MemoryOptions memory;
  memory.config = options.config;
  memory.limit = options.limit;
  memory.device = options.device;
  memory.stream_frees = options.frees;
  memory.patterns = patterns;
  const Replayed measured = replay_on_memory(schedule, memory, backend);
  REQUIRE(measured.marks.size() == predicted.marks.size());
  for (std::size_t at = 0; at < predicted.marks.size(); ++at) {
    CAPTURE(at);
    REQUIRE(measured.marks[at].event == predicted.marks[at].event);
    REQUIRE(measured.marks[at].now.requested == predicted.marks[at].requested);
    REQUIRE(measured.marks[at].now.allocated == predicted.marks[at].allocated);
    REQUIRE(measured.marks[at].now.active == predicted.marks[at].active);
    REQUIRE(measured.marks[at].now.reserved == predicted.marks[at].reserved);
  }
  CHECK(measured.retries == predicted.retries);
  CHECK(measured.failed_event == predicted.failed_event);
  if (predicted.failed_event) {
    CHECK(measured.failure->status == DSPLAN_OUT_OF_MEMORY);
    CHECK(measured.failure->requested == predicted.failed_request);
    CHECK(measured.failure->missing == predicted.missing);
  }
  CHECK(measured.peaks.reserved == predicted.peak.reserved);
  CHECK(measured.peaks.allocated == predicted.peak.allocated);
  CHECK(measured.peaks.active == predicted.peak.active);
}

}  // namespace

TEST_CASE("the caching allocator over real segments: every sum, retry and failure is the simulator's") {
  HostBackend host;
  int failed = 0;
  int retried = 0;
  for (const char* conf : {"", "expandable_segments:True", "max_split_size_mb:40", "roundup_power2_divisions:4",
                           "garbage_collection_threshold:0.6,per_process_memory_fraction:0.8",
                           "expandable_segments:True,large_segment_size_mb:32"}) {
    CAPTURE(conf);
    for (unsigned seed = 0; seed < 6; ++seed) {
      CAPTURE(seed);
      const Schedule schedule = random_schedule(seed * 7 + 1, 300, seed % 2 == 1, 30 * kMiB);
      PlacementOptions options;
      options.config = parse_allocator_conf(conf, "conf");
      options.frees = seed % 3 == 2 ? StreamFrees::Immediate : StreamFrees::AtSync;
      options.limit = options.device = Bytes(2000 * kMiB);
      check_same(schedule, options, host.table());
      const Bytes peak = place(schedule, options).peak.reserved;
      for (const std::int64_t part : {100, 95, 80, 60, 40}) {
        options.limit = options.device = Bytes(peak.value() * part / 100);
        const Placement limited = place(schedule, options);
        failed += limited.failed_event ? 1 : 0;
        retried += limited.retries > 0 ? 1 : 0;
        check_same(schedule, options, host.table());
      }
    }
  }
  CHECK(failed > 30);
  CHECK(retried > 50);
  CHECK(host.left_behind() == 0);
}

TEST_CASE("memory that the backend refuses counts as a limit does") {
  const Schedule schedule = random_schedule(5, 300, false, 20 * kMiB);
  PlacementOptions options;
  const Bytes peak = place(schedule, options).peak.reserved;
  HostOptions small;
  small.device_memory = peak - Bytes(2 * kMiB);
  HostBackend host(small);
  MemoryOptions memory;  // Without a limit of its own.
  const Replayed measured = replay_on_memory(schedule, memory, host.table());
  options.limit = options.device = small.device_memory;
  const Placement predicted = place(schedule, options);
  CHECK(measured.failed_event == predicted.failed_event);
  CHECK(measured.retries == predicted.retries);
  CHECK(measured.retries > 0);
  CHECK(host.left_behind() == 0);
}

namespace {

MemoryOptions planned(const Schedule& schedule) {
  const Lives lives = lives_of(schedule);
  const dsplan::Layout layout = pack(lives.intervals);
  MemoryOptions memory;
  memory.kind = AllocatorKind::Planned;
  memory.height = layout.height;
  memory.offsets.assign(schedule.buffers.size(), -1);
  for (std::size_t at = 0; at < lives.buffers.size(); ++at) {
    memory.offsets[lives.buffers[at]] = layout.offsets[at].value();
  }
  return memory;
}

}  // namespace

TEST_CASE("the planned arena runs in exactly its height, and not in a granule less") {
  HostBackend host;
  for (unsigned seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    const Schedule schedule = random_schedule(seed + 40, 250, seed % 2 == 1, 40'000);
    MemoryOptions memory = planned(schedule);
    memory.patterns = true;
    Replayed measured = replay_on_memory(schedule, memory, host.table());
    REQUIRE_FALSE(measured.failed_event);
    CHECK(measured.peaks.reserved == memory.height);
    CHECK(measured.marks.back().now.segments == 1);
    memory.limit = memory.height - kArenaAlignment;
    measured = replay_on_memory(schedule, memory, host.table());
    REQUIRE(measured.failed_event);
    CHECK(measured.failure->missing == kArenaAlignment);
    CHECK(measured.failure->event == *measured.failed_event);
  }
  CHECK(host.left_behind() == 0);
}

TEST_CASE("plain buffers add up to what was asked for, and a limit holds") {
  HostOptions heap;
  heap.heap = true;
  HostBackend host(heap);
  const Schedule schedule = random_schedule(3, 200, false, 40'000);
  MemoryOptions memory;
  memory.kind = AllocatorKind::Plain;
  memory.patterns = true;
  Replayed measured = replay_on_memory(schedule, memory, host.table());
  REQUIRE_FALSE(measured.failed_event);
  CHECK(measured.peaks.reserved == measured.peaks.requested);
  CHECK(measured.peaks.requested == measured.peak_requested);
  memory.limit = measured.peak_requested - Bytes(1);
  measured = replay_on_memory(schedule, memory, host.table());
  REQUIRE(measured.failed_event);
  CHECK(measured.failure->missing == Bytes(1));
  CHECK(host.left_behind() == 0);
}

TEST_CASE("patterns: new memory reads as NaN, and whoever writes where nothing is held is found") {
  HostBackend host;
  for (const AllocatorKind kind : {AllocatorKind::Caching, AllocatorKind::Planned}) {
    CAPTURE(name(kind));
    MemoryOptions options;
    options.kind = kind;
    options.patterns = true;
    options.limit = Bytes(64 * kMiB);
    options.height = Bytes(1 * kMiB);
    options.offsets = {0, 1024, 0};
    const auto fresh = [&](auto&& body) {
      Device device(host.table(), {});
      RankMemory memory(device, options);
      memory.allocate(BufferId(0), Bytes(1000), Role::Activations, Space::Device);
      memory.allocate(BufferId(1), Bytes(700), Role::Activations, Space::Device);
      body(memory);
    };
    fresh([](RankMemory& memory) {
      float value = 0;
      std::memcpy(&value, memory.pointer(BufferId(0)), sizeof value);
      CHECK(value != value);
      memory.finish();
    });
    fresh([](RankMemory& memory) {  // Beyond its end.
      memory.pointer(BufferId(0))[1000] = std::byte{0};
      CHECK_THROWS_AS(memory.release(BufferId(0)), InternalError);
    });
    fresh([](RankMemory& memory) {  // After its end.
      std::byte* stale = memory.pointer(BufferId(0));
      memory.release(BufferId(0));
      stale[999] = std::byte{1};
      CHECK_THROWS_AS(memory.allocate(BufferId(2), Bytes(1000), Role::Activations, Space::Device), InternalError);
    });
  }
  Device device(host.table(), {});
  MemoryOptions overlapping;
  overlapping.kind = AllocatorKind::Planned;
  overlapping.height = Bytes(4096);
  overlapping.offsets = {0, 512, 1024, -1};
  RankMemory memory(device, overlapping);
  memory.allocate(BufferId(1), Bytes(513), Role::Activations, Space::Device);
  CHECK_THROWS_AS(memory.allocate(BufferId(0), Bytes(513), Role::Activations, Space::Device), InternalError);
  CHECK_THROWS_AS(memory.allocate(BufferId(2), Bytes(1), Role::Activations, Space::Device), InternalError);
  CHECK_THROWS_AS(memory.allocate(BufferId(3), Bytes(1), Role::Activations, Space::Device), InternalError);
  memory.allocate(BufferId(0), Bytes(512), Role::Activations, Space::Device);
  CHECK_THROWS_AS(memory.allocate(BufferId(0), Bytes(512), Role::Activations, Space::Device), InternalError);
}

TEST_CASE("the host's pools and files: the simulator's sums, and real files as large as asked for") {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("dsplan-exec-memory-" + std::to_string(std::random_device{}()));
  std::filesystem::create_directories(folder);
  HostBackend host;
  for (unsigned seed = 0; seed < 4; ++seed) {
    Schedule schedule = random_schedule(seed + 90, 300, false, 300'000);
    for (const BufferId id : schedule.buffers.ids()) {
      schedule.buffers[id].space = static_cast<Space>(id.number() % 5);
    }
    HostMeter meter(schedule);
    replay(schedule, meter);
    const Replayed measured = replay_on_memory(schedule, {}, host.table(), folder.string());
    REQUIRE_FALSE(measured.failed_event);
    CHECK(measured.host.most.pinned + measured.host.most.locked == meter.pinned());
    CHECK(measured.host.most.pinned_requested == meter.pinned_requested_peak());
    CHECK(measured.host.most.pageable == meter.pageable_peak());
    CHECK(measured.host.memory == meter.peak());
    CHECK(measured.host.most.nvme == meter.nvme_peak());
    CHECK(std::filesystem::is_empty(folder));
  }
  Device device(host.table(), {3, 0, folder.string()});
  RankMemory memory(device, {});
  memory.allocate(BufferId(8), Bytes(12345), Role::Optimizer, Space::Nvme);
  CHECK(std::filesystem::file_size(folder / "rank3-buffer8") == 12345);
  CHECK(memory.pointer(BufferId(8)) == nullptr);
  memory.allocate(BufferId(9), Bytes(5000), Role::Optimizer, Space::Locked);
  CHECK(memory.host().now.locked == Bytes(5000));
  CHECK(memory.host().now.pinned == Bytes(0));
  std::memset(memory.pointer(BufferId(9)), 7, 5000);
  device.files().write(memory.at(BufferId(8)).file, Bytes(100), memory.pointer(BufferId(9)), Bytes(5000));
  std::memset(memory.pointer(BufferId(9)), 0, 5000);
  device.files().read(memory.at(BufferId(8)).file, Bytes(99), memory.pointer(BufferId(9)), Bytes(5000));
  CHECK(memory.pointer(BufferId(9))[0] == std::byte{0});
  CHECK(memory.pointer(BufferId(9))[1] == std::byte{7});
  CHECK(memory.host().by_role[Role::Optimizer] == Bytes(17345));
  CHECK(device.files().bytes_written() == Bytes(5000));
  CHECK(device.files().bytes_read() == Bytes(5000));
  memory.release(BufferId(9));
  CHECK(memory.host().now.locked == Bytes(0));
  memory.finish();
  CHECK(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

TEST_CASE("counters by role, and peaks from a moment on") {
  HostBackend host;
  Device device(host.table(), {});
  RankMemory memory(device, {});
  memory.allocate(BufferId(0), Bytes(1000), Role::Parameters, Space::Device);
  memory.allocate(BufferId(1), Bytes(50), Role::Gradients, Space::Device);
  memory.release(BufferId(0));
  memory.allocate(BufferId(2), Bytes(30), Role::Inputs, Space::Pageable);
  CHECK(memory.demand().bytes == Bytes(50));
  CHECK(memory.demand().peak == Bytes(1050));
  CHECK(memory.demand().peak_by_role[Role::Parameters] == Bytes(1000));
  CHECK(memory.demand().by_role[Role::Gradients] == Bytes(50));
  CHECK(memory.demand().by_role.total() == Bytes(50));
  CHECK(memory.host().by_role[Role::Inputs] == Bytes(30));
  CHECK(memory.device().reserved == Bytes(2 * kMiB));
  memory.reset_peaks();
  CHECK(memory.demand().peak == Bytes(50));
  CHECK(memory.device_peaks().allocated == Bytes(512));
  CHECK(memory.demand().total == Bytes(1050));
  CHECK(memory.demand().allocations == 2);
  CHECK(memory.host().requested_total == Bytes(30));
  CHECK_THROWS_AS(memory.release(BufferId(0)), InternalError);
  memory.finish();
  CHECK(memory.device().reserved == Bytes(0));
  device.close();
  CHECK(host.left_behind() == 0);
}

TEST_CASE("the resident set follows what is touched and freed") {
  HostBackend host;
  for (const char* conf : {"", "expandable_segments:True"}) {
    CAPTURE(conf);
    Device device(host.table(), {});
    MemoryOptions options;
    options.config = parse_allocator_conf(conf, "conf");
    RankMemory memory(device, options);
    const std::int64_t before = device.usage().process_bytes;
    memory.allocate(BufferId(0), Bytes(64 * kMiB), Role::Activations, Space::Device);
    std::memset(memory.pointer(BufferId(0)), 1, 64 * kMiB);
    CHECK(device.usage().process_bytes - before > 48 * kMiB);
    CHECK(device.usage().device_free == device.usage().device_total - memory.device().reserved.value());
    memory.release(BufferId(0));
    memory.finish();
    CHECK(device.usage().process_bytes - before < 16 * kMiB);
  }
}
