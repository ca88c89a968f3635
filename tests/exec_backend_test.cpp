// The boundary to backends: as C sees it, the host's side of every rule, 16-bit floats, and the backend that fails on
// purpose.
#include <doctest/doctest.h>

#include <signal.h>
#include <sys/resource.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "core/schedule.h"
#include "exec/device.h"
#include "exec/host/host_backend.h"
#include "exec/host/narrow_floats.h"
#include "exec/memory/memory.h"
#include "watched_backend.h"

extern "C" std::size_t dsplan_c_sizes(int which);

using namespace dsplan;
using namespace dsplan::exec;

namespace {

constexpr std::int64_t kMiB = 1 << 20;

// A folder of its own, gone at the end.
struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("dsplan-exec-backend-" + std::to_string(std::random_device{}()));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
};

dsplan_status status_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const RunFailure& failure) {
    CHECK_FALSE(failure.failure().text.empty());
    return failure.failure().status;
  }
  return DSPLAN_OK;
}

}  // namespace

TEST_CASE("C and C++ read the same table") {
  CHECK(dsplan_c_sizes(0) == sizeof(dsplan_backend));
  CHECK(dsplan_c_sizes(1) == sizeof(dsplan_launch));
  CHECK(dsplan_c_sizes(2) == sizeof(dsplan_tensor));
  CHECK(dsplan_c_sizes(3) == sizeof(dsplan_device_info));
  CHECK(dsplan_c_sizes(4) == sizeof(dsplan_collective));
  CHECK(dsplan_c_sizes(5) == sizeof(dsplan_open));
  CHECK(dsplan_c_sizes(6) == sizeof(dsplan_usage));
  CHECK(dsplan_c_sizes(7) == offsetof(dsplan_backend, comm_memory));
  CHECK(dsplan_c_sizes(8) == offsetof(dsplan_launch, random));
}

TEST_CASE("a table of another version or size, and a device that is not there, are refused with a reason") {
  HostBackend host;
  dsplan_backend other = host.table();
  other.version += 1;
  CHECK_THROWS_WITH(Device(other, {}), doctest::Contains(formatted("speaks version {}", other.version).c_str()));
  other = host.table();
  other.size -= 8;
  CHECK_THROWS_AS(Device(other, {}), RunFailure);
  CHECK(status_of([&] { Device(host.table(), {0, 1, ""}); }) == DSPLAN_UNAVAILABLE);
  Device device(host.table(), {5, 0, ""});
  CHECK(std::string(device.info().name) == "host");
  CHECK((device.info().flags & DSPLAN_HOST_READABLE) != 0);
  CHECK(2 * kMiB % device.info().granularity == 0);
  CHECK(device.info().memory_bytes > 64 * kMiB);
  CHECK(device.usage().process_bytes > 0);
  CHECK((host.table().comm_create == nullptr));
}

TEST_CASE("the host's memory: what is given is there and goes; every other call is refused") {
  HostOptions options;
  options.device_memory = Bytes(8 * kMiB);
  HostBackend host(options);
  Device device(host.table(), {});
  void* segment = device.memory().allocate(Space::Device, Bytes(5 * kMiB));
  std::memset(segment, 1, 5 * kMiB);
  CHECK(device.memory().try_allocate(Space::Device, Bytes(4 * kMiB)) == nullptr);
  CHECK(status_of([&] { (void)device.memory().allocate(Space::Device, Bytes(4 * kMiB)); }) == DSPLAN_OUT_OF_MEMORY);
  void* pinned = device.memory().allocate(Space::Pinned, Bytes(16 * kMiB));  // Not the device's.
  CHECK(device.usage().device_free == 3 * kMiB);
  CHECK(status_of([&] { (void)device.memory().allocate(Space::Device, Bytes(0)); }) == DSPLAN_INVALID);

  const auto released = [&](Space space, void* memory, std::int64_t bytes) {
    return host.table().release(device.calls().handle(), space_of(space), memory, bytes);
  };
  CHECK(released(Space::Device, segment, 4 * kMiB) == DSPLAN_INVALID);
  CHECK(released(Space::Pinned, segment, 5 * kMiB) == DSPLAN_INVALID);
  CHECK(released(Space::Device, segment, 5 * kMiB) == DSPLAN_OK);
  CHECK(released(Space::Device, segment, 5 * kMiB) == DSPLAN_INVALID);
  CHECK(released(Space::Pinned, pinned, 16 * kMiB) == DSPLAN_OK);
  CHECK(device.usage().device_free == 8 * kMiB);

  // What a wrapper notes is told later, the first of it.
  int nothing = 0;
  device.memory().release(Space::Device, &nothing, Bytes(4));
  CHECK_THROWS_AS(device.throw_if_noted(), RunFailure);
  CHECK_THROWS_AS(device.close(), RunFailure);
  CHECK(host.left_behind() == 0);
}

TEST_CASE("expandable ranges: pages come and go, all or nothing, and hold what was written") {
  HostOptions options;
  options.device_memory = Bytes(8 * kMiB);
  HostBackend host(options);
  Device device(host.table(), {});
  void* range = device.memory().reserve(Bytes(1024 * kMiB));
  auto* bytes = static_cast<unsigned char*>(range);
  const auto map = [&](std::int64_t at, std::int64_t size) {
    return host.table().map(device.calls().handle(), range, at * kMiB, size * kMiB);
  };
  const auto unmap = [&](std::int64_t at, std::int64_t size) {
    return host.table().unmap(device.calls().handle(), range, at * kMiB, size * kMiB);
  };
  CHECK(map(0, 4) == DSPLAN_OK);
  CHECK(map(2, 4) == DSPLAN_INVALID);  // Partly there.
  CHECK(map(4, 6) == DSPLAN_OUT_OF_MEMORY);
  CHECK(map(4, 4) == DSPLAN_OK);
  bytes[5 * kMiB] = 9;
  CHECK(unmap(2, 2) == DSPLAN_OK);  // Across what was mapped in two calls, from the middle.
  CHECK(unmap(1, 2) == DSPLAN_INVALID);
  CHECK(bytes[5 * kMiB] == 9);
  CHECK(map(600, 2) == DSPLAN_OK);
  CHECK(map(601, 1) == DSPLAN_INVALID);
  CHECK(host.table().unreserve(device.calls().handle(), range, 1024 * kMiB) == DSPLAN_INVALID);
  CHECK(unmap(600, 2) == DSPLAN_OK);
  CHECK(unmap(4, 4) == DSPLAN_OK);
  CHECK(map(4, 2) == DSPLAN_OK);
  CHECK(bytes[5 * kMiB] == 0);  // Other memory than before.
  CHECK(unmap(4, 2) == DSPLAN_OK);
  CHECK(unmap(0, 2) == DSPLAN_OK);
  CHECK(map(1024, 2) == DSPLAN_INVALID);
  CHECK(host.table().map(device.calls().handle(), range, 100, 4096) == DSPLAN_INVALID);
  device.memory().unreserve(range, Bytes(1024 * kMiB));
  device.close();
  CHECK(host.left_behind() == 0);
}

TEST_CASE("files: taken whole, read back, gone; a bad place or a full disk is told") {
  const Folder folder;
  HostBackend host;
  Device device(host.table(), {0, 0, folder.path.string()});
  dsplan_file* file = device.files().create("states", Bytes(10'000));
  CHECK(std::filesystem::file_size(folder.path / "states") == 10'000);
  CHECK(status_of([&] { (void)device.files().create("states", Bytes(1)); }) == DSPLAN_IO);
  CHECK(status_of([&] { (void)device.files().create("../states", Bytes(1)); }) == DSPLAN_INVALID);
  CHECK(status_of([&] { (void)device.files().create("empty", Bytes(0)); }) == DSPLAN_INVALID);
  std::vector<char> text(9000, 'x');
  device.files().write(file, Bytes(1000), text.data(), Bytes(9000));
  CHECK(status_of([&] { device.files().write(file, Bytes(1001), text.data(), Bytes(9000)); }) == DSPLAN_INVALID);
  CHECK(status_of([&] { device.files().read(file, Bytes(-1), text.data(), Bytes(9)); }) == DSPLAN_INVALID);
  device.files().read(file, Bytes(999), text.data(), Bytes(2));
  CHECK(text[0] == '\0');
  CHECK(text[1] == 'x');
  device.files().remove(file);
  CHECK(std::filesystem::is_empty(folder.path));

  // As a full disk: the system lets no file of this process grow beyond a limit.
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  struct sigaction ignore {};
  struct sigaction old {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &ignore, &old);
  const rlimit small{4096, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const dsplan_status full = status_of([&] { (void)device.files().create("large", Bytes(10'000)); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::sigaction(SIGXFSZ, &old, nullptr);
  CHECK(full == DSPLAN_IO);
  CHECK(std::filesystem::is_empty(folder.path));

  Device nowhere(host.table(), {0, 0, (folder.path / "missing").string()});
  CHECK(status_of([&] { (void)nowhere.files().create("states", Bytes(1)); }) == DSPLAN_IO);
  Device without(host.table(), {});
  CHECK(status_of([&] { (void)without.files().create("states", Bytes(1)); }) == DSPLAN_INVALID);
  // What is left is removed with the device, and counted.
  {
    Device forgetful(host.table(), {0, 0, folder.path.string()});
    (void)forgetful.files().create("forgotten", Bytes(10));
    (void)forgetful.memory().allocate(Space::Pinned, Bytes(10));
  }
  CHECK(std::filesystem::is_empty(folder.path));
  CHECK(host.left_behind() == 2);
}

namespace {

void refuse_this(const dsplan_launch& what) {
  if (what.part == 1) throw Refusal("linear", "cannot be run");
  static_cast<float*>(what.made[0].data)[0] = 42;
}

}  // namespace

TEST_CASE("copies, fills, events and launches") {
  HostOptions options;
  options.kernels = refuse_this;
  HostBackend host(options);
  Device device(host.table(), {});
  float values[4] = {1, 2, 3, 4};
  float copies[4] = {};
  device.copy(copies, Space::Device, values, Space::Pinned, Bytes(12));
  CHECK(copies[2] == 3);
  CHECK(copies[3] == 0);
  device.copy(copies, Space::Device, copies, Space::Device, Bytes(16));
  device.fill(copies, Space::Device, 0xff, Bytes(4));
  CHECK(copies[0] != copies[0]);
  CHECK(status_of([&] { device.copy(nullptr, Space::Device, values, Space::Device, Bytes(4)); }) == DSPLAN_INVALID);
  CHECK(status_of([&] { device.combine(7, DType::Float32, copies, {values}, 4); }) == DSPLAN_UNSUPPORTED);
  CHECK(status_of([&] { device.combine(DSPLAN_SUM, DType::Float32, copies, {}, 4); }) == DSPLAN_INVALID);

  DeviceEvent start(device);
  DeviceEvent end(device);
  CHECK(status_of([&] { (void)end.since(start); }) == DSPLAN_INVALID);
  start.record(0);
  end.record(3);
  device.wait(3, start);
  device.synchronize();
  CHECK(end.since(start) >= 0);
  CHECK(start.since(end) <= 0);

  dsplan_tensor made{};
  made.data = values;
  dsplan_launch launch{};
  launch.size = sizeof launch;
  launch.made = &made;
  launch.made_count = 1;
  device.launch(launch);
  CHECK(values[0] == 42);
  launch.part = 1;
  try {
    device.launch(launch);
    FAIL("nothing was refused");
  } catch (const RunFailure& failure) {
    CHECK(failure.failure().text.find("cannot be run") != std::string::npos);
  }
  launch.size -= 1;
  CHECK(status_of([&] { device.launch(launch); }) == DSPLAN_INVALID);
  HostBackend bare;
  Device deaf(bare.table(), {});
  CHECK(status_of([&] { deaf.launch(launch); }) == DSPLAN_UNSUPPORTED);
}

TEST_CASE("16-bit floats: every value there and back, and every rounding to the nearest, ties to even") {
  const auto is_nan16 = [](std::uint16_t bits, unsigned mantissa) {
    const unsigned exponent = 0x7fffU & ~((1U << mantissa) - 1U);
    return (bits & 0x7fffU) > exponent;
  };
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if (is_nan16(half, 10)) {
      REQUIRE(std::isnan(from_fp16(half)));
      REQUIRE(is_nan16(to_fp16(from_fp16(half)), 10));
    } else {
      REQUIRE(to_fp16(from_fp16(half)) == half);
      const int exponent = static_cast<int>((bits >> 10) & 31U);
      const double fraction = static_cast<double>(bits & 0x3ffU) / 1024;
      const double size = exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
      if (exponent != 31) REQUIRE(std::abs(static_cast<double>(from_fp16(half))) == size);
    }
    if (is_nan16(half, 7)) {
      REQUIRE(is_nan16(to_bf16(from_bf16(half)), 7));
    } else {
      REQUIRE(to_bf16(from_bf16(half)) == half);
    }
    // Between this value and the next: just below, at and just above the middle.
    const auto middle = [&](auto from, auto to, std::uint16_t first, std::uint16_t largest) {
      if (first >= largest) return;
      const float low = from(first);
      const float high = from(static_cast<std::uint16_t>(first + 1));
      const float half_way = low + (high - low) / 2;
      const std::uint16_t even = (first & 1U) == 0 ? first : static_cast<std::uint16_t>(first + 1);
      REQUIRE(to(half_way) == even);
      REQUIRE(to(std::nextafter(half_way, 0.0F)) == first);
      REQUIRE(to(std::nextafter(half_way, std::numeric_limits<float>::infinity())) == first + 1);
    };
    middle(from_fp16, to_fp16, half, 0x7bff);
    middle(from_bf16, to_bf16, half, 0x7f7e);
  }
  CHECK(to_fp16(65519.0F) == 0x7bff);
  CHECK(to_fp16(65520.0F) == 0x7c00);
  CHECK(to_fp16(-std::numeric_limits<float>::infinity()) == 0xfc00);
  CHECK(to_fp16(std::ldexp(1.0F, -26)) == 0);
  CHECK(to_bf16(std::numeric_limits<float>::max()) == 0x7f80);
}

TEST_CASE("combining: one rounding at the end, integers wrap around, a maximum passes NaN on") {
  const auto combined = [](dsplan_reduction how, DType dtype, auto first, auto second, auto third) {
    decltype(first) target{};
    const void* pieces[] = {&first, &second, &third};
    REQUIRE(combine_pieces(how, dtype, &target, pieces, 3, 1));
    return target;
  };
  // 256 + 1 + 1 in bf16: rounded after each addition it would stay at 256.
  CHECK(combined(DSPLAN_SUM, DType::BFloat16, to_bf16(256), to_bf16(1), to_bf16(1)) == to_bf16(258));
  CHECK(combined(DSPLAN_SUM, DType::Float16, to_fp16(2048), to_fp16(1), to_fp16(1)) == to_fp16(2050));
  CHECK(combined(DSPLAN_SUM, DType::Float32, 16777216.0F, 1.0F, 1.0F) == 16777218.0F);
  CHECK(combined(DSPLAN_SUM, DType::Int8, std::int8_t{100}, std::int8_t{100}, std::int8_t{0}) == std::int8_t{-56});
  CHECK(combined(DSPLAN_SUM, DType::Int64, std::numeric_limits<std::int64_t>::max(), std::int64_t{1},
                 std::int64_t{0}) == std::numeric_limits<std::int64_t>::min());
  CHECK(combined(DSPLAN_MAX, DType::Int32, std::int32_t{-5}, std::int32_t{-3}, std::int32_t{-9}) == -3);
  CHECK(combined(DSPLAN_MAX, DType::Float64, -1.0, 7.0, 2.0) == 7.0);
  CHECK(std::isnan(combined(DSPLAN_MAX, DType::Float32, 1.0F, std::nanf(""), 2.0F)));
  CHECK(combined(DSPLAN_SUM, DType::Bool, std::uint8_t{0}, std::uint8_t{1}, std::uint8_t{1}) == 1);
}

namespace {

// All that a rank does to its memory: three spaces, files, an allocator that retries.
void use_memory(const dsplan_backend& backend, const std::string& folder, const char* conf) {
  Device device(backend, {0, 0, folder});
  MemoryOptions options;
  options.config = parse_allocator_conf(conf, "conf");
  options.limit = Bytes((options.config.expandable_segments ? 128 : 72) * kMiB);
  RankMemory memory(device, options);
  for (std::uint32_t at = 0; at < 12; ++at) {
    memory.allocate(BufferId(at), Bytes((1 + at) * 2 * kMiB), Role::Activations, Space::Device);
    if (at >= 2) memory.release(BufferId(at - 2));
  }
  CHECK((options.config.expandable_segments || memory.device().retries > 0));
  memory.allocate(BufferId(20), Bytes(3000), Role::Optimizer, Space::Pinned);
  memory.allocate(BufferId(21), Bytes(3000), Role::Optimizer, Space::Locked);
  memory.allocate(BufferId(22), Bytes(3000), Role::Optimizer, Space::Pageable);
  memory.allocate(BufferId(23), Bytes(3000), Role::Optimizer, Space::Nvme);
  device.files().write(memory.at(BufferId(23)).file, Bytes(0), memory.pointer(BufferId(22)), Bytes(3000));
  device.files().read(memory.at(BufferId(23)).file, Bytes(0), memory.pointer(BufferId(20)), Bytes(3000));
  for (const BufferId id : IdRange(BufferId(20), BufferId(24))) memory.release(id);
  memory.finish();
  device.close();
}

}  // namespace

TEST_CASE("whichever call of its memory fails: the rank is told which, and nothing stays open") {
  const Folder folder;
  for (const char* conf : {"", "expandable_segments:True"}) {
    HostBackend host;
    WatchedBackend counting(host.table());
    use_memory(counting.table(), folder.path.string(), conf);
    CHECK(host.left_behind() == 0);
    CHECK(counting.calls(0) >= 20);
    for (const dsplan_status status : {DSPLAN_DEVICE, DSPLAN_OUT_OF_MEMORY}) {
      for (std::int64_t call = 0; call < counting.calls(0); ++call) {
        CAPTURE(conf);
        CAPTURE(status);
        CAPTURE(call);
        WatchedBackend faulty(host.table(), WatchedBackend::Fault{0, call, status});
        std::string told;
        try {
          use_memory(faulty.table(), folder.path.string(), conf);
        } catch (const RunFailure& failure) {
          told = failure.failure().call;
          CHECK(failure.failure().rank == 0);
        }
        // Memory that was not there may be had after giving back what was cached.
        const bool again =
            status == DSPLAN_OUT_OF_MEMORY && (faulty.failed() == "allocate" || faulty.failed() == "map");
        if (!again || !told.empty()) {
          CHECK((told == faulty.failed() || (again && told == "allocate")));
        }
        CHECK(faulty.open_devices() == 0);
        CHECK(std::filesystem::is_empty(folder.path));
      }
    }
  }
}

TEST_CASE("calls are held up as asked") {
  HostBackend host;
  int held = 0;
  WatchedBackend slow(host.table(), std::nullopt, [&](int rank, std::int64_t call) {
    held += rank == 4 && call >= 0 ? 1 : 0;
    return std::chrono::nanoseconds(1);
  });
  Device device(slow.table(), {4, 0, ""});
  device.synchronize(0);
  CHECK((held == slow.calls(4) && held >= 3));
  CHECK(slow.calls(0) == 0);
  CHECK(slow.open_devices() == 1);
}
