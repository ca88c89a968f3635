// Pairs of allocate and release on the caching allocator.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "sim/allocator.h"

namespace dsplan {
namespace {

// `state.range(0)` live blocks, of which a random one is given back and another one taken. Which and how large is drawn
// beforehand, so that only the allocator is timed.
template <class Size>
void replace_at_random(benchmark::State& state, std::mt19937_64& random, Size&& size) {
  constexpr std::size_t kDrawn = 1 << 16;
  struct Draw {
    std::uint32_t slot;
    Bytes bytes;
  };
  CachingAllocator allocator;
  std::vector<BlockId> live;
  for (std::int64_t i = 0; i < state.range(0); ++i) live.push_back(*allocator.allocate(size(), 0));
  std::vector<Draw> drawn(kDrawn);
  for (Draw& draw : drawn) draw = {static_cast<std::uint32_t>(random() % live.size()), size()};
  std::size_t at = 0;
  for (auto _ : state) {
    const Draw& draw = drawn[at++ % kDrawn];
    BlockId& slot = live[draw.slot];
    allocator.release(slot);
    slot = *allocator.allocate(draw.bytes, 0);
  }
  state.SetItemsProcessed(state.iterations());
}

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

// A training step's small tensors: `range` live blocks of up to 64 KiB, of which a random one is replaced.
void allocator_small(benchmark::State& state) {
  std::mt19937_64 random(7);
  const auto size = [&] { return Bytes(static_cast<std::int64_t>(1 + random() % 65536)); };
  replace_at_random(state, random, size);
}
BENCHMARK(allocator_small)->Arg(64);

// Blocks of 1 to 256 MiB: the large pool, with splits and merges.
void allocator_large(benchmark::State& state) {
  std::mt19937_64 random(7);
  const auto size = [&] { return Bytes(static_cast<std::int64_t>((1 << 20) + 1 + random() % (255 << 20))); };
  replace_at_random(state, random, size);
}
BENCHMARK(allocator_large)->Arg(64);

// A working set of `range` live blocks of sizes from 512 bytes to 64 MiB, of which a random one is replaced.
void allocator_mixed_sizes(benchmark::State& state) {
  std::mt19937_64 random(7);
  std::uniform_int_distribution<int> exponent(9, 26);
  const auto size = [&] {
    const std::int64_t base = std::int64_t{1} << exponent(random);
    return Bytes(base + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(base)));
  };
  replace_at_random(state, random, size);
}
BENCHMARK(allocator_mixed_sizes)->Arg(100)->Arg(1000)->Arg(2000);

}  // namespace
}  // namespace dsplan
