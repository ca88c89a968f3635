// What PyTorch's reduction kernel takes beside its output, on a GPU: where few outputs are made of many elements, the
// input is divided over several blocks, which meet in a staging buffer under semaphores. How it is divided depends on
// the device. Source: aten/src/ATen/native/cuda/Reduce.cuh of torch 2.11 (setReduceConfig, gpu_reduce_kernel).
#pragma once

#include <cstdint>
#include <span>

#include "core/cluster.h"
#include "core/units.h"

namespace dsplan {

// Of a GPU, as far as kernels are launched by it. No multiprocessors: no device is named, and what depends on them is
// left out.
struct DeviceThreads {
  std::int64_t multiprocessors = 0;
  std::int64_t per_multiprocessor = 2048;  // The most threads that one holds.
};
// By compute capability (CUDA C++ Programming Guide, technical specifications). None for devices without CUDA.
[[nodiscard]] DeviceThreads device_threads(const Hardware& hardware);

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

}  // namespace dsplan
