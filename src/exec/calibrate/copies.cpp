// Copies within the device, and both ways between it and the host. Every byte is counted once.
#include <vector>

#include "exec/calibrate/bench.h"

#include "core/format.h"

namespace dsplan::exec {
namespace {

using Unit = MeasuredRow::Unit;
constexpr std::int64_t kMebi = 1 << 20;

struct Place {
  void* memory;
  Space space;
};

void copy(Bench& bench, const char* kind, std::int64_t bytes, const Place& to, const Place& from,
          const std::string& how) {
  const std::string row = formatted("copy_{}:{}", kind, bytes);
  bench.row(row, [&] {
    bench.rate(row, Unit::BytesPerSecond, bytes, how,
               [&] { bench.device().copy(to.memory, to.space, from.memory, from.space, Bytes(bytes)); });
  });
}

}  // namespace

void measure_copies(Bench& bench) {
  std::vector<std::int64_t> sizes = {64 * kMebi, kMebi, 64 * 1024};
  if (!bench.host() && !bench.options().quick) sizes.insert(sizes.begin(), 512 * kMebi);
  if (bench.options().quick) sizes.erase(sizes.begin());
  Device& device = bench.device();
  for (const std::int64_t bytes : sizes) {
    bench.row(formatted("copies of {} bytes", bytes), [&] {
      const DeviceBlock first(device, Space::Device, Bytes(bytes));
      const DeviceBlock second(device, Space::Device, Bytes(bytes));
      const DeviceBlock pinned(device, Space::Pinned, Bytes(bytes));
      // As programs have it, not as the table gives it, which maps it for kernels.
      std::vector<unsigned char> pageable(static_cast<std::size_t>(bytes), 1);
      device.fill(first.data(), Space::Device, 1, Bytes(bytes));
      device.fill(second.data(), Space::Device, 2, Bytes(bytes));
      device.fill(pinned.data(), Space::Pinned, 3, Bytes(bytes));
      const Place here{first.data(), Space::Device};
      const Place locked{pinned.data(), Space::Pinned};
      const Place plain{pageable.data(), Space::Pageable};
      copy(bench, "d2d", bytes, {second.data(), Space::Device}, here, "each byte is read and written, counted once");
      copy(bench, "h2d_pinned", bytes, here, locked, "from pinned memory");
      copy(bench, "d2h_pinned", bytes, locked, here, "to pinned memory");
      copy(bench, "h2d_pageable", bytes, here, plain, "from ordinary memory");
      copy(bench, "d2h_pageable", bytes, plain, here, "to ordinary memory");
      device.synchronize();
    });
  }
}

}  // namespace dsplan::exec
