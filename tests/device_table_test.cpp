// What exec/backend.h promises of a device that only enqueues, call by call: of the library that DSPLAN_TEST_BACKEND
// names (on a machine with a GPU: build/release/libdsplan_cuda.so), else of the one that tests make on the host. Over
// the dry device, which computes nothing, numbers are left out and all else holds (ctest's device_calls_dry).
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <vector>

#include "core/schedule.h"
#include "core/units.h"
#include "exec/backend.h"
#include "exec/plugin.h"

using namespace dsplan;

namespace {

struct Opened {
  const dsplan_backend* table = nullptr;
  dsplan_device* device = nullptr;
  dsplan_device_info info{};

  Opened() {
    const char* path = std::getenv("DSPLAN_TEST_BACKEND");
    const exec::Plugin plugin =
        exec::load_plugin_from(path != nullptr ? path : DSPLAN_TEST_BACKENDS "/libdsplan_backend_on_host.so");
    REQUIRE_MESSAGE(plugin.table != nullptr, plugin.why);
    table = plugin.table;
    static const std::string files = std::filesystem::temp_directory_path().string();
    const dsplan_open how{sizeof(dsplan_open), 0, 0, files.c_str()};
    const dsplan_status status = table->open(table, &how, &device);
    REQUIRE_MESSAGE(status == DSPLAN_OK, table->last_error(table, nullptr));
    info.size = sizeof info;
    REQUIRE(table->info(device, &info) == DSPLAN_OK);
  }
  ~Opened() { table->close(device); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  [[nodiscard]] bool computes() const { return (info.flags & DSPLAN_NO_NUMBERS) == 0; }
  void expect(dsplan_status status) const { CHECK_MESSAGE(status == DSPLAN_OK, table->last_error(table, device)); }
  [[nodiscard]] void* take(dsplan_space space, std::int64_t bytes) const {
    void* memory = nullptr;
    expect(table->allocate(device, space, bytes, &memory));
    return memory;
  }
  void put(void* to, dsplan_space space, const void* from, std::int64_t bytes) const {
    expect(table->copy(device, to, space, from, DSPLAN_SPACE_PAGEABLE, bytes, nullptr));
    expect(table->stream_synchronize(device, nullptr));
  }
  template <class T>
  [[nodiscard]] std::vector<T> get(const void* from, dsplan_space space, std::size_t count) const {
    std::vector<T> values(count);
    expect(table->copy(device, values.data(), DSPLAN_SPACE_PAGEABLE, from, space,
                       static_cast<std::int64_t>(count * sizeof(T)), nullptr));
    expect(table->stream_synchronize(device, nullptr));
    return values;
  }
};

constexpr std::int64_t kMiB = 1 << 20;

}  // namespace

TEST_CASE("memory of every space is aligned, filled, copied and given back") {
  const Opened o;
  CHECK(o.info.memory_bytes > 0);
  CHECK(o.info.alignment >= 512);
  for (const dsplan_space space : {DSPLAN_SPACE_DEVICE, DSPLAN_SPACE_PINNED, DSPLAN_SPACE_PAGEABLE}) {
    for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{512}, 3 * kMiB + 17}) {
      void* memory = o.take(space, bytes);
      CHECK(reinterpret_cast<std::uintptr_t>(memory) % 512 == 0);
      o.expect(o.table->fill(o.device, memory, space, 0x5a, bytes, nullptr));
      const auto values = o.get<std::uint8_t>(memory, space, static_cast<std::size_t>(bytes));
      if (o.computes()) CHECK(values == std::vector<std::uint8_t>(static_cast<std::size_t>(bytes), 0x5a));
      CHECK(o.table->release(o.device, space, memory, bytes + 1) == DSPLAN_INVALID);
      o.expect(o.table->release(o.device, space, memory, bytes));
    }
  }
  void* memory = nullptr;
  CHECK(o.table->allocate(o.device, DSPLAN_SPACE_DEVICE, std::int64_t{1} << 50, &memory) == DSPLAN_OUT_OF_MEMORY);
  CHECK(o.table->allocate(o.device, DSPLAN_SPACE_DEVICE, 0, &memory) == DSPLAN_INVALID);
  // A refusal leaves the device as it was.
  o.expect(o.table->release(o.device, DSPLAN_SPACE_DEVICE, o.take(DSPLAN_SPACE_DEVICE, kMiB), kMiB));
}

TEST_CASE("pages are mapped into a range, and unmapped in other pieces") {
  const Opened o;
  const std::int64_t page = 2 * kMiB;
  REQUIRE(page % o.info.granularity == 0);
  void* range = nullptr;
  o.expect(o.table->reserve(o.device, 16 * page, &range));
  o.expect(o.table->map(o.device, range, 2 * page, 4 * page));
  CHECK(o.table->map(o.device, range, 5 * page, 2 * page) == DSPLAN_INVALID);  // The first of them is mapped.
  CHECK(o.table->map(o.device, range, 15 * page, 2 * page) == DSPLAN_INVALID);
  auto* at = static_cast<char*>(range) + 2 * page;
  o.expect(o.table->fill(o.device, at, DSPLAN_SPACE_DEVICE, 7, 4 * page, nullptr));
  o.expect(o.table->unmap(o.device, range, 3 * page, page));
  CHECK(o.table->unmap(o.device, range, 3 * page, page) == DSPLAN_INVALID);
  o.expect(o.table->map(o.device, range, 3 * page, page));
  o.expect(o.table->fill(o.device, at + page, DSPLAN_SPACE_DEVICE, 9, page, nullptr));
  const auto seam = o.get<std::uint8_t>(at + page - 1, DSPLAN_SPACE_DEVICE, 2);
  if (o.computes()) CHECK(seam == std::vector<std::uint8_t>{7, 9});
  CHECK(o.table->unreserve(o.device, range, 16 * page) == DSPLAN_INVALID);
  o.expect(o.table->unmap(o.device, range, 2 * page, 4 * page));
  o.expect(o.table->unreserve(o.device, range, 16 * page));
}

TEST_CASE("streams wait for events, and events tell time") {
  const Opened o;
  dsplan_stream* first = nullptr;
  dsplan_stream* second = nullptr;
  dsplan_event* begin = nullptr;
  dsplan_event* end = nullptr;
  o.expect(o.table->stream_create(o.device, &first));
  o.expect(o.table->stream_create(o.device, &second));
  o.expect(o.table->event_create(o.device, &begin));
  o.expect(o.table->event_create(o.device, &end));
  o.expect(o.table->event_wait(o.device, second, begin));  // Never recorded: nobody is held up.
  std::int64_t nanoseconds = -1;
  CHECK(o.table->event_elapsed(o.device, begin, end, &nanoseconds) == DSPLAN_INVALID);
  constexpr std::int64_t kBytes = 64 * kMiB;
  void* a = o.take(DSPLAN_SPACE_DEVICE, kBytes);
  void* b = o.take(DSPLAN_SPACE_DEVICE, kBytes);
  o.expect(o.table->event_record(o.device, begin, first));
  o.expect(o.table->fill(o.device, a, DSPLAN_SPACE_DEVICE, 3, kBytes, first));
  o.expect(o.table->event_record(o.device, end, first));
  o.expect(o.table->event_wait(o.device, second, end));
  o.expect(o.table->copy(o.device, b, DSPLAN_SPACE_DEVICE, a, DSPLAN_SPACE_DEVICE, kBytes, second));
  o.expect(o.table->stream_synchronize(o.device, second));
  const auto last = o.get<std::uint8_t>(static_cast<char*>(b) + kBytes - 1, DSPLAN_SPACE_DEVICE, 1);
  if (o.computes()) CHECK(last.front() == 3);
  o.expect(o.table->event_synchronize(o.device, end));
  std::int32_t done = 0;
  o.expect(o.table->event_query(o.device, end, &done));
  CHECK(done == 1);
  o.expect(o.table->event_elapsed(o.device, begin, end, &nanoseconds));
  CHECK(nanoseconds >= 0);
  o.expect(o.table->release(o.device, DSPLAN_SPACE_DEVICE, a, kBytes));
  o.expect(o.table->release(o.device, DSPLAN_SPACE_DEVICE, b, kBytes));
  o.expect(o.table->event_destroy(o.device, begin));
  o.expect(o.table->event_destroy(o.device, end));
  o.expect(o.table->stream_destroy(o.device, first));
  o.expect(o.table->stream_destroy(o.device, second));
}

TEST_CASE("pieces of other ranks' memory become one") {
  const Opened mine;
  const Opened theirs;  // Another rank of the same device.
  constexpr std::size_t kCount = 1000;
  std::vector<float> values(kCount);
  std::iota(values.begin(), values.end(), 0.5F);
  void* a = mine.take(DSPLAN_SPACE_DEVICE, 4 * kCount);
  void* b = theirs.take(DSPLAN_SPACE_DEVICE, 4 * kCount);
  mine.put(a, DSPLAN_SPACE_DEVICE, values.data(), 4 * kCount);
  theirs.put(b, DSPLAN_SPACE_DEVICE, values.data(), 4 * kCount);
  const void* pieces[] = {a, b};
  mine.expect(mine.table->combine(mine.device, DSPLAN_SUM, static_cast<std::int32_t>(DType::Float32), a, pieces, 2,
                                  kCount, nullptr));
  const auto sums = mine.get<float>(a, DSPLAN_SPACE_DEVICE, kCount);
  for (std::size_t i = 0; i < kCount && mine.computes(); ++i) REQUIRE(sums[i] == 2 * values[i]);
  mine.expect(mine.table->release(mine.device, DSPLAN_SPACE_DEVICE, a, 4 * kCount));
  theirs.expect(theirs.table->release(theirs.device, DSPLAN_SPACE_DEVICE, b, 4 * kCount));
}

TEST_CASE("files take what the device has put into host memory, and the machine's own counters are there") {
  const Opened o;
  void* memory = o.take(DSPLAN_SPACE_PINNED, kMiB);
  o.expect(o.table->fill(o.device, memory, DSPLAN_SPACE_PINNED, 0x21, kMiB, nullptr));
  dsplan_file* file = nullptr;
  o.expect(o.table->file_create(o.device, "dsplan-device-table-test", kMiB, &file));
  o.expect(o.table->file_write(o.device, file, 0, memory, kMiB));
  o.expect(o.table->fill(o.device, memory, DSPLAN_SPACE_PINNED, 0, kMiB, nullptr));
  o.expect(o.table->file_read(o.device, file, 0, memory, kMiB));
  if (o.computes()) CHECK(o.get<std::uint8_t>(memory, DSPLAN_SPACE_PINNED, 1).front() == 0x21);
  o.expect(o.table->file_remove(o.device, file));
  o.expect(o.table->release(o.device, DSPLAN_SPACE_PINNED, memory, kMiB));
  dsplan_usage usage{sizeof(dsplan_usage), 0, 0, 0};
  o.expect(o.table->usage(o.device, &usage));
  CHECK(usage.device_total > 0);
  CHECK(usage.device_free <= usage.device_total);
}

// With one rank nothing is sent, but everything of the library is there. What it takes of the device is said, not held
// against anything: a figure of the first run on a GPU.
TEST_CASE("a communicator of one rank carries out every call") {
  if (std::getenv("DSPLAN_TEST_BACKEND") == nullptr) {
    ::setenv("DSPLAN_NCCL_LIBRARY", DSPLAN_TEST_BACKENDS "/libdsplan_fake_nccl.so", 1);
  }
  const Opened opened;
  const dsplan_backend& table = *opened.table;
  REQUIRE((table.comm_create != nullptr));
  char library[256] = "";
  REQUIRE_MESSAGE(table.comm_library(&table, library, sizeof library) == DSPLAN_OK, table.last_error(&table, nullptr));
  for (const std::int32_t blocks : {1, 0}) {
    char id[DSPLAN_COMMUNICATOR_ID_BYTES] = {};
    REQUIRE(table.comm_id(&table, id) == DSPLAN_OK);
    dsplan_usage before{sizeof(dsplan_usage), -1, -1, -1};
    dsplan_usage after = before;
    opened.expect(table.usage(opened.device, &before));
    const dsplan_group group{sizeof(dsplan_group), 0, 1, blocks, 60'000'000'000, nullptr};
    dsplan_communicator* communicator = nullptr;
    REQUIRE_MESSAGE(table.comm_create(opened.device, id, &group, &communicator) == DSPLAN_OK,
                    table.last_error(&table, opened.device));
    opened.expect(table.usage(opened.device, &after));
    MESSAGE(std::string(library) << ", " << std::string(blocks == 0 ? "as it likes" : "one block") << ": "
                                 << before.device_free - after.device_free << " B of the device");
    std::vector<float> values(1000);
    std::iota(values.begin(), values.end(), 1.0F);
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(float));
    void* input = opened.take(DSPLAN_SPACE_DEVICE, bytes);
    void* output = opened.take(DSPLAN_SPACE_DEVICE, bytes);
    opened.put(input, DSPLAN_SPACE_DEVICE, values.data(), bytes);
    for (const Collective kind : {Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather,
                                  Collective::Broadcast, Collective::Reduce, Collective::AllToAll}) {
      CAPTURE(name(kind));
      opened.expect(table.fill(opened.device, output, DSPLAN_SPACE_DEVICE, 0xff, bytes, nullptr));
      const dsplan_collective call{sizeof(dsplan_collective),
                                   static_cast<std::int32_t>(kind),
                                   static_cast<std::int32_t>(DType::Float32),
                                   DSPLAN_SUM,
                                   1000,
                                   input,
                                   output,
                                   0,
                                   -1,
                                   -1};
      opened.expect(table.comm_run(opened.device, communicator, &call, nullptr));
      CHECK((opened.get<float>(output, DSPLAN_SPACE_DEVICE, values.size()) == values));
    }
    opened.expect(table.release(opened.device, DSPLAN_SPACE_DEVICE, input, bytes));
    opened.expect(table.release(opened.device, DSPLAN_SPACE_DEVICE, output, bytes));
    opened.expect(table.comm_destroy(opened.device, communicator));
  }
}
