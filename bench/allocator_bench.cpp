// Pairs of allocate and release on the caching allocator.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "sim/allocator.h"

namespace dsplan {
namespace {

// The best case: the block that was just given back is taken again.
void allocator_same_size(benchmark::State& state) {
  CachingAllocator allocator;
  for (auto _ : state) {
    const auto block = allocator.allocate(Bytes(4096), 0);
    allocator.release(*block);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(allocator_same_size);

// A working set of `range` live blocks of sizes from 512 bytes to 64 MiB, of which a random one is replaced.
void allocator_mixed_sizes(benchmark::State& state) {
  std::mt19937_64 random(7);
  std::uniform_int_distribution<int> exponent(9, 26);
  const auto size = [&] {
    const std::int64_t base = std::int64_t{1} << exponent(random);
    return Bytes(base + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(base)));
  };
  CachingAllocator allocator;
  std::vector<BlockId> live;
  for (std::int64_t i = 0; i < state.range(0); ++i) live.push_back(*allocator.allocate(size(), 0));
  for (auto _ : state) {
    BlockId& slot = live[random() % live.size()];
    allocator.release(slot);
    slot = *allocator.allocate(size(), 0);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(allocator_mixed_sizes)->Arg(100)->Arg(1000);

}  // namespace
}  // namespace dsplan
