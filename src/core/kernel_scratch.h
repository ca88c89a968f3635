// What PyTorch's kernels take on a GPU beside inputs and outputs, where it depends on how they divide their work, and
// that on the device. All of it is freed when the kernel has been launched. Of torch 2.11.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/cluster.h"
#include "core/units.h"

namespace dsplan {

// Of a GPU, as far as kernels are launched by it. No multiprocessors: no device is named, and what depends on them is
// left out.
struct DeviceThreads {
  std::int64_t multiprocessors = 0;
  std::int64_t per_multiprocessor = 2048;  // The most threads that one holds.
  std::int64_t capability = -1;            // 90 is 9.0; 0: a device without CUDA, below it: none is named.
  friend bool operator==(const DeviceThreads&, const DeviceThreads&) = default;
};
// By compute capability (CUDA C++ Programming Guide, technical specifications). None for devices without CUDA.
[[nodiscard]] DeviceThreads device_threads(const Hardware& hardware);

// Where few outputs are made of many elements, the input is divided over several blocks, which meet in a staging buffer
// under semaphores (aten/src/ATen/native/cuda/Reduce.cuh: setReduceConfig, gpu_reduce_kernel).
//
// A dense tensor that is summed, or reduced otherwise, over one run of dimensions.
struct ReducedTensor {
  std::int64_t outputs = 1;
  std::int64_t inputs = 1;      // For each output.
  std::int64_t neighbours = 0;  // Elements that lie side by side and are not reduced; 0: the reduced ones do.
};

// A tensor of dimensions `from` as the sum to `to` sees it, whose dimensions are the last ones or 1.
[[nodiscard]] ReducedTensor summed_to(std::span<const std::int64_t> from, std::span<const std::int64_t> to);

// Both 0: one block makes each output. Freed with the kernel's launch, the semaphores first.
struct ReductionScratch {
  Bytes staging;
  Bytes semaphores;
};
// `accumulator`: bytes of what a thread sums in, 4 for all floating types up to 32 bits.
[[nodiscard]] ReductionScratch reduction_scratch(const ReducedTensor& tensor, const DeviceThreads& device,
                                                 Bytes accumulator = Bytes(4));

// Tables of addresses and blocks that a kernel over many tensors reads, of 64-bit numbers
// (aten/src/ATen/native/cuda/TensorShape.cu).
//
// torch.split_with_sizes_copy, a matrix of `rows` rows into pieces of so many bytes of each row.
[[nodiscard]] Bytes split_copy_scratch(std::span<const Bytes> pieces, std::int64_t rows, const DeviceThreads& device);
// torch._chunk_cat, tensors in so many bytes of each chunk.
[[nodiscard]] Bytes chunk_cat_scratch(std::span<const Bytes> pieces);

// What cub takes for one pass over so many 64-bit numbers, or pairs of them, PyTorch 2.11 (measured on its CUDA 13.0
// build: tools/oracles/embedding_backward.py): DeviceRadixSort's other buffers, bins and blocks; DeviceScan's state of
// each tile, of a unique_by_key and of an exclusive scan. 0 where no CUDA device is named.
[[nodiscard]] Bytes sort_pairs_scratch(std::int64_t count, const DeviceThreads& device);
[[nodiscard]] Bytes unique_scratch(std::int64_t count, const DeviceThreads& device);
[[nodiscard]] Bytes scan_scratch(std::int64_t count, const DeviceThreads& device);
// Of one row that is sorted: up to 4,096 a block sorts without (aten/src/ATen/native/cuda/Sort.cpp, Sort.cu, MAX_DIMS).
[[nodiscard]] Bytes row_sort_scratch(std::int64_t count, const DeviceThreads& device);
// Of so many rows that are added into `rows` others in the order of their places: for as many passes of 8 bits as a
// place has; up to 2,304 fit one block (Indexing.cu, index_put_with_sort_kernel; measured on PyTorch 2.11).
[[nodiscard]] Bytes rows_in_order_scratch(std::int64_t count, std::int64_t rows, const DeviceThreads& device);
// The same for a cumulative sum of one row, of 4 or 8 bytes each (ScanUtils.cuh, scan_dim).
[[nodiscard]] Bytes row_scan_scratch(std::int64_t count, Bytes each);

// What an embedding's backward over so many indices makes besides its gradient, in bytes; all 0 up to 3,072 indices
// (aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu).
struct EmbeddingBackward {
  Bytes sorted;    // Indices, and as large again: where each came from, what those were counted by, and segments.
  Bytes sort;      // cub's; it goes, with the count, before the gradient is made.
  Bytes unique;    // cub's, for the segments.
  Bytes segments;  // Of each distinct index: its parts, and where they begin.
  Bytes scan;      // cub's, over those.
  Bytes parts;     // Where each part of a segment begins.
  Bytes sums;      // Of each part, in fp32.
};
[[nodiscard]] EmbeddingBackward embedding_backward(std::int64_t indices, std::int64_t rows, std::int64_t width,
                                                   const DeviceThreads& device);

// From Hopper on one kernel of CUTLASS multiplies all groups of bf16 (aten/src/ATen/native/cuda/GroupMM.cu): its
// arguments by group (three pointers, a problem, three strides), and four tensor maps for each multiprocessor. nullopt:
// groups are multiplied one by one.
struct GroupedScratch {
  Bytes arguments;
  Bytes maps;
};
[[nodiscard]] std::optional<GroupedScratch> grouped_scratch(DType dtype, std::int64_t groups,
                                                            const DeviceThreads& device);

struct AttentionSizes {
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t queries = 1;
  std::int64_t keys = 1;
  std::int64_t width = 1;   // Of one head.
  std::int64_t values = 0;  // Of its values, where they have a width of their own.

  [[nodiscard]] std::int64_t value_width() const { return values > 0 ? values : width; }
};

// Flash attention without dropout, forward: where blocks of queries are too few for the device, keys are divided as
// well, and each part makes sums and an output of its own, in fp32 (flash_api.cpp: num_splits_heuristic,
// set_params_splitkv). Both 0: they are not divided.
struct FlashParts {
  Bytes log_sum_exp;
  Bytes output;
};
[[nodiscard]] FlashParts flash_parts(const AttentionSizes& sizes, const DeviceThreads& device);

// The memory-efficient kernel, forward: in half precision an output of more columns than stay in registers is summed in
// fp32 (mem_eff_attention/kernel_forward.h, kNeedsOutputAccumulatorBuffer).
[[nodiscard]] Bytes efficient_forward_workspace(const AttentionSizes& sizes, bool half, const DeviceThreads& device);

// The memory-efficient kernel, backward: the queries' gradient by blocks, and in half precision with wide heads those
// of keys and values, in fp32. Which kernel it is, and so the blocks, depends on how much shared memory a block may
// have (mem_eff_attention/kernel_backward.h, kernels/cutlassB.h; attention_backward.cu).
[[nodiscard]] Bytes efficient_backward_workspace(const AttentionSizes& sizes, bool half, const DeviceThreads& device);

// What cuDNN 9.19 answers, which does not say how it comes about; asked for heads of 64 to 256, 1 to 32 of them, 2 to
// 8,192 tokens, on devices of capability 8.0, 8.9, 9.0, 10.0, 10.3 and 12.0. Backward: a number for each row, and the
// queries' gradient in fp32, with grouped heads those of keys and values at all heads. Capability 10 draws dropout
// beforehand.
[[nodiscard]] Bytes cudnn_forward_workspace(const AttentionSizes& sizes, bool dropout, const DeviceThreads& device);
[[nodiscard]] Bytes cudnn_backward_workspace(const AttentionSizes& sizes, bool dropout, const DeviceThreads& device);

}  // namespace dsplan
