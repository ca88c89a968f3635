#include "core/kernel_scratch.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <string_view>

namespace dsplan {
namespace {

constexpr std::int64_t kThreads = 512;  // Of one block, at most.
constexpr std::int64_t kWarp = 32;
constexpr std::int64_t kVector = 4;           // Elements of one load.
constexpr std::int64_t kVectorizedRow = 128;  // Shorter rows are loaded one by one.
constexpr std::int64_t kLeastPerThread = 16;
constexpr std::int64_t kMostPerThread = 256;

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
  if (!architecture.starts_with("sm_")) return {0, 0, 0};
  std::int64_t capability = 0;
  const std::string_view digits = architecture.substr(3);
  std::from_chars(digits.data(), digits.data() + digits.size(), capability);
  if (hardware.multiprocessors == 0) return {0, 2048, capability};
  const bool narrow = capability == 86 || capability == 87 || capability == 89 || capability >= 120;
  return {hardware.multiprocessors, capability == 75 ? 1024 : narrow ? 1536 : 2048, capability};
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
  const auto per_thread = [&] { return div_ceil(tensor.inputs, step); };
  const bool split = per_thread() >= std::min(block.height * kLeastPerThread, kMostPerThread);
  (split ? step : outputs_of_block) *= block.height;
  const std::int64_t resident = device.per_multiprocessor / (block.width * block.height);
  const std::int64_t wanted = device.multiprocessors * resident;
  const std::int64_t grid = div_ceil(tensor.outputs / vector, outputs_of_block);
  if (!split || per_thread() < kMostPerThread || grid > wanted) return {};
  const std::int64_t blocks = std::max(std::min(div_ceil(wanted, grid), div_ceil(per_thread(), kLeastPerThread)),
                                       div_ceil(per_thread(), kMostPerThread));
  if (blocks <= 1) return {};
  const std::int64_t lanes = in_rows ? 1 : block.width * vector;
  return {accumulator * checked_mul(tensor.outputs, checked_mul(blocks, lanes)), Bytes(4) * grid};
}

namespace {

// Several allocations in one, each on a boundary of its own.
Bytes in_one(std::initializer_list<std::int64_t> parts) {
  constexpr std::int64_t kBoundary = 256;
  Bytes all(kBoundary - 1);
  for (const std::int64_t part : parts) all += Bytes(div_ceil(part, kBoundary) * kBoundary);
  return all;
}

// A word of 16 bytes for each tile and each thread of a warp, and something small beside them.
Bytes tiles_scratch(std::int64_t count, std::int64_t tile) { return in_one({1, (div_ceil(count, tile) + kWarp) * 16}); }

}  // namespace

Bytes sort_pairs_scratch(std::int64_t count, const DeviceThreads& device) {
  if (device.capability <= 0) return Bytes(0);
  constexpr std::int64_t kPasses = 8;  // Of 8 bits each.
  constexpr std::int64_t kBins = 256;
  const std::int64_t tile = device.capability >= 90 ? 4608 : 3840;
  return in_one({kPasses * kBins * 8, div_ceil(count, tile) * kBins * 4, count * 8, count * 8, kPasses * 4});
}

Bytes unique_scratch(std::int64_t count, const DeviceThreads& device) {
  if (device.capability <= 0) return Bytes(0);
  const std::int64_t newer = device.capability >= 100 ? 3840 : 4480;
  return tiles_scratch(count, device.capability >= 90 ? newer : device.capability == 80 ? 1792 : 320);
}

Bytes scan_scratch(std::int64_t count, const DeviceThreads& device) {
  return device.capability <= 0 ? Bytes(0) : tiles_scratch(count, 896);
}

Bytes row_sort_scratch(std::int64_t count, const DeviceThreads& device) {
  constexpr std::int64_t kSortedInBlock = 4096;
  return count > kSortedInBlock ? sort_pairs_scratch(count, device) : Bytes(0);
}

Bytes rows_in_order_scratch(std::int64_t count, std::int64_t rows, const DeviceThreads& device) {
  constexpr std::int64_t kOneBlock = 2304;
  constexpr std::int64_t kPassBytes = 2048;
  const Bytes whole = sort_pairs_scratch(count, device);
  if (count <= kOneBlock || whole == Bytes(0)) return Bytes(1);
  std::int64_t passes = 1;
  for (std::int64_t places_left = rows - 1; places_left >= 256; places_left >>= 8) ++passes;
  return whole - Bytes(kPassBytes * (8 - passes));
}

Bytes row_scan_scratch(std::int64_t count, Bytes each) {
  const std::int64_t word = 2 * each.value();
  return in_one({1, (div_ceil(count, 7680 / each.value()) + kWarp) * word});
}

EmbeddingBackward embedding_backward(std::int64_t indices, std::int64_t rows, std::int64_t width,
                                     const DeviceThreads& device) {
  constexpr std::int64_t kMostUnsorted = 3072;
  constexpr std::int64_t kRowsOfPart = 10;
  if (indices <= kMostUnsorted) return {};
  const std::int64_t segments = std::min(indices, rows);
  const std::int64_t parts = indices / kRowsOfPart + segments;
  return {.sorted = Bytes(8) * indices,
          .sort = sort_pairs_scratch(indices, device),
          .unique = unique_scratch(indices, device),
          .segments = Bytes(8) * segments,
          .scan = scan_scratch(segments, device),
          .parts = Bytes(8) * parts,
          .sums = Bytes(4) * checked_mul(parts, width)};
}

namespace {

Bytes floats(std::initializer_list<std::int64_t> dims) {
  std::int64_t product = 4;
  for (const std::int64_t dim : dims) product = checked_mul(product, dim);
  return Bytes(product);
}

// The fewest parts by which the last wave of blocks is filled to 85 % of the best.
std::int64_t flash_split_count(std::int64_t blocks, std::int64_t key_blocks, std::int64_t at_once) {
  constexpr std::int64_t kMost = 128;
  const auto fills = [&](std::int64_t parts) {
    const float waves = static_cast<float>(blocks * parts) / static_cast<float>(at_once);
    return waves / std::ceil(waves);
  };
  if (static_cast<float>(blocks) >= 0.8F * static_cast<float>(at_once)) return 1;
  const std::int64_t most = std::min({kMost, at_once, key_blocks});
  // Where one part more makes none of them shorter, it is not tried.
  const auto differs = [&](std::int64_t parts) {
    return parts == 1 || div_ceil(key_blocks, parts) != div_ceil(key_blocks, parts - 1);
  };
  float best = 0;
  for (std::int64_t parts = 1; parts <= most; ++parts) {
    if (differs(parts)) best = std::max(best, fills(parts));
  }
  for (std::int64_t parts = 1; parts <= most; ++parts) {
    if (differs(parts) && fills(parts) >= 0.85F * best) return parts;
  }
  return 1;
}

// What a block of the memory-efficient backward kernel works on: so many queries, so many columns of their gradient.
struct EfficientBlock {
  std::int64_t queries = 64;
  std::int64_t columns = 64;
  bool accumulates_keys = false;  // Gradients of keys and values do not stay in registers.
};

EfficientBlock efficient_block(std::int64_t width, bool half, std::int64_t capability) {
  // A block may have 164 KiB of shared memory and more; others have 99 and less.
  const bool large = capability < 0 || capability == 80 || capability == 87 || (capability >= 90 && capability < 120);
  if (width <= 64) return {};
  if (!half) return large ? EfficientBlock{128, 64} : EfficientBlock{};
  if (width > 128) return {128, 64, true};
  if (large) return {128, 128};
  return width <= 96 ? EfficientBlock{128, 64} : EfficientBlock{64, 64, true};
}

bool is_hopper(const DeviceThreads& device) { return device.capability == 90 || device.capability < 0; }
bool is_blackwell(const DeviceThreads& device) { return device.capability >= 100 && device.capability < 110; }

// A bit for each weight, in squares of 128.
Bytes drawn_beforehand(const AttentionSizes& sizes) {
  const std::int64_t weights = checked_mul(round_up(sizes.queries, 128), round_up(sizes.keys, 128));
  return Bytes(checked_mul(checked_mul(sizes.batch, sizes.heads), weights / 8));
}

constexpr std::int64_t kCopyThreads = 128;             // Of one block.
constexpr std::int64_t kCopyTile = kCopyThreads * 16;  // Bytes that it copies at a time.

std::int64_t blocks_of(std::span<const Bytes> pieces, std::int64_t bytes) {
  std::int64_t blocks = 0;
  for (const Bytes piece : pieces) blocks += div_ceil(piece.value(), bytes);
  return blocks;
}

}  // namespace

Bytes split_copy_scratch(std::span<const Bytes> pieces, std::int64_t rows, const DeviceThreads& device) {
  if (device.multiprocessors == 0) return Bytes(0);
  const std::int64_t most = device.multiprocessors * device.per_multiprocessor / kCopyThreads * 2;
  const std::int64_t factor = div_ceil(checked_mul(blocks_of(pieces, kCopyTile), rows), most);
  std::int64_t rows_of_block = 1;  // The root of the factor, rounded up.
  while (rows_of_block * rows_of_block < factor) ++rows_of_block;
  rows_of_block = std::min(rows_of_block, rows);
  const std::int64_t blocks = blocks_of(pieces, kCopyTile * div_ceil(factor, rows_of_block));
  return Bytes(8) * (4 * static_cast<std::int64_t>(pieces.size()) + 1 + blocks);
}

Bytes chunk_cat_scratch(std::span<const Bytes> pieces) {
  return Bytes(8) * (6 * static_cast<std::int64_t>(pieces.size()) + 2 + blocks_of(pieces, kCopyTile));
}

FlashParts flash_parts(const AttentionSizes& sizes, const DeviceThreads& device) {
  if (device.multiprocessors == 0) return {};
  const std::int64_t columns = sizes.width <= 64 ? 256 : sizes.width <= 128 ? 128 : 64;
  const std::int64_t blocks = sizes.batch * sizes.heads * div_ceil(sizes.queries, 64);
  const std::int64_t parts = flash_split_count(blocks, div_ceil(sizes.keys, columns), 2 * device.multiprocessors);
  if (parts == 1) return {};
  const std::int64_t width = round_up(sizes.width, sizes.width <= 128 ? 32 : 64);
  return {floats({parts, sizes.batch, sizes.heads, sizes.queries}),
          floats({parts, sizes.batch, sizes.heads, sizes.queries, width})};
}

Bytes efficient_forward_workspace(const AttentionSizes& sizes, bool half, const DeviceThreads& device) {
  constexpr std::int64_t kInRegisters = 128;
  if (device.capability == 0 || !half || sizes.value_width() <= kInRegisters) return Bytes(0);  // Queries may be wider.
  return floats({sizes.batch, sizes.queries, sizes.heads, sizes.value_width()});
}

Bytes efficient_backward_workspace(const AttentionSizes& sizes, bool half, const DeviceThreads& device) {
  constexpr std::int64_t kKeys = 64;    // Of one block.
  constexpr std::int64_t kLock = 16;    // Bytes before each piece of the queries' gradient.
  constexpr std::int64_t kParts = 200;  // Of all heads together, where each has gradients of its own.
  if (device.capability == 0) return Bytes(0);
  const EfficientBlock block = efficient_block(std::max(sizes.width, sizes.value_width()), half, device.capability);
  const std::int64_t all_heads = checked_mul(sizes.batch, sizes.heads);
  Bytes of_head = (floats({block.queries, block.columns}) + Bytes(kLock)) *
                  (div_ceil(sizes.queries, block.queries) * div_ceil(sizes.width, block.columns));
  if (block.accumulates_keys) {
    const std::int64_t parts = std::max<std::int64_t>(1, std::min(div_ceil(sizes.keys, kKeys), kParts / all_heads));
    const std::int64_t columns = round_up(sizes.width, block.queries) + round_up(sizes.value_width(), block.queries);
    of_head += floats({parts, kKeys, columns});
  }
  return of_head * all_heads;
}

std::optional<GroupedScratch> grouped_scratch(DType dtype, std::int64_t groups, const DeviceThreads& device) {
  if (device.multiprocessors == 0 || device.capability < 90 || device.capability >= 110) return std::nullopt;
  if (dtype != DType::BFloat16) return std::nullopt;
  const std::int64_t pointers = round_up(groups, 2) * 3 * 8;
  const std::int64_t problems = groups * 3 * 4;
  const std::int64_t strides = groups * 3 * 8;
  return GroupedScratch{Bytes(pointers + problems + strides), Bytes(device.multiprocessors * 4 * 128)};
}

Bytes cudnn_forward_workspace(const AttentionSizes& sizes, bool dropout, const DeviceThreads& device) {
  constexpr Bytes kBeside{128};
  if (is_blackwell(device)) return dropout ? drawn_beforehand(sizes) + kBeside : Bytes(0);
  return is_hopper(device) ? kBeside * 2 : Bytes(0);
}

Bytes cudnn_backward_workspace(const AttentionSizes& sizes, bool dropout, const DeviceThreads& device) {
  constexpr Bytes kBeside{128};
  const bool grouped = sizes.heads != sizes.kv_heads;
  const Bytes rows = floats({sizes.batch, sizes.heads, sizes.queries});
  const Bytes result = rows + rows * checked_mul(grouped ? 2 : 1, sizes.width);
  if (is_blackwell(device)) {
    return result + (dropout ? drawn_beforehand(sizes) : Bytes(0)) + (dropout || grouped ? kBeside : Bytes(0));
  }
  if (is_hopper(device)) return result + kBeside * 2;
  return result + floats({sizes.batch, sizes.heads, round_up(sizes.queries, 8), sizes.width}) + kBeside;
}

}  // namespace dsplan
