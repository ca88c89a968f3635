#include "core/reduce_kernel.h"

#include <algorithm>
#include <bit>
#include <string_view>

namespace dsplan {
namespace {

constexpr std::int64_t kThreads = 512;  // Of one block, at most.
constexpr std::int64_t kWarp = 32;
constexpr std::int64_t kVector = 4;           // Elements of one load.
constexpr std::int64_t kVectorizedRow = 128;  // Shorter rows are loaded one by one.
constexpr std::int64_t kLeastPerThread = 16;
constexpr std::int64_t kMostPerThread = 256;

std::int64_t up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t power_below(std::int64_t value, std::int64_t most) {
  if (value >= most) return most;
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(1, value))));
}

// get_output_vec_size: neighbours that a thread takes at once. Tensors of the allocator are aligned for it.
std::int64_t outputs_at_once(std::int64_t neighbours) {
  std::int64_t vector = kVector;
  while (neighbours % vector != 0) vector /= 2;
  return vector;
}

struct Block {
  std::int64_t width = 1;
  std::int64_t height = 1;
};

Block block_of(std::int64_t across, std::int64_t along, std::int64_t threads) {
  const std::int64_t widest = power_below(across, threads);
  const std::int64_t tallest = power_below(along, threads);
  Block block;
  block.width = std::min(widest, kWarp);
  block.height = std::min(tallest, threads / block.width);
  block.width = std::min(widest, threads / block.height);
  return block;
}

}  // namespace

DeviceThreads device_threads(const Hardware& hardware) {
  const std::string_view architecture = hardware.architecture;
  if (!architecture.starts_with("sm_") || hardware.multiprocessors == 0) return {};
  if (architecture == "sm_75") return {hardware.multiprocessors, 1024};
  for (const std::string_view narrow : {"sm_86", "sm_87", "sm_89", "sm_120", "sm_121"}) {
    if (architecture == narrow) return {hardware.multiprocessors, 1536};
  }
  return {hardware.multiprocessors, 2048};
}

ReducedTensor summed_to(std::span<const std::int64_t> from, std::span<const std::int64_t> to) {
  const auto elements = [](std::span<const std::int64_t> dims) {
    std::int64_t product = 1;
    for (const std::int64_t dim : dims) product = checked_mul(product, dim);
    return product;
  };
  std::size_t kept = 0;  // Of the last dimensions.
  while (kept < to.size() && to[to.size() - 1 - kept] == from[from.size() - 1 - kept]) ++kept;
  const std::int64_t outputs = elements(to);
  const std::int64_t side_by_side = elements(to.last(kept));
  return {outputs, outputs == 0 ? 0 : elements(from) / outputs, side_by_side > 1 ? side_by_side : 0};
}

ReductionScratch reduction_scratch(const ReducedTensor& tensor, const DeviceThreads& device, Bytes accumulator) {
  if (device.multiprocessors == 0 || tensor.outputs <= 0 || tensor.inputs <= 0) return {};
  const bool in_rows = tensor.neighbours == 0;
  const std::int64_t vector = in_rows ? 1 : outputs_at_once(tensor.neighbours);
  const std::int64_t row = in_rows && tensor.inputs >= kVectorizedRow ? tensor.inputs / kVector : tensor.inputs;
  const Block block = in_rows ? block_of(row, tensor.outputs, kThreads)
                              : block_of(tensor.outputs / vector, tensor.inputs, kThreads / vector);
  // A block's width goes along the rows, or across the outputs.
  std::int64_t step = in_rows ? block.width : 1;
  std::int64_t outputs_of_block = in_rows ? 1 : block.width;
  const auto per_thread = [&] { return up(tensor.inputs, step); };
  const bool split = per_thread() >= std::min(block.height * kLeastPerThread, kMostPerThread);
  (split ? step : outputs_of_block) *= block.height;
  const std::int64_t resident = device.per_multiprocessor / (block.width * block.height);
  const std::int64_t wanted = device.multiprocessors * resident;
  const std::int64_t grid = up(tensor.outputs / vector, outputs_of_block);
  if (!split || per_thread() < kMostPerThread || grid > wanted) return {};
  const std::int64_t blocks =
      std::max(std::min(up(wanted, grid), up(per_thread(), kLeastPerThread)), up(per_thread(), kMostPerThread));
  if (blocks <= 1) return {};
  const std::int64_t lanes = in_rows ? 1 : block.width * vector;
  return {accumulator * checked_mul(tensor.outputs, checked_mul(blocks, lanes)), Bytes(4) * grid};
}

}  // namespace dsplan
