// How a kernel is written here, so that the same source is compiled twice: by nvcc for a device, and by the host's
// compiler for tests on machines without one. A kernel is a function object of an item's number.
//
//   each(queue, n, f)    f(i) for every i, in any order, none knowing of another
//   teams(queue, n, f)   f(team, i): the lanes of a team work on item i together; on a device a warp, on a host one
//   lane
//
// No kernel uses shared memory, atomics or anything else whose result could depend on who comes first.
#pragma once

#include <cstdint>

#include "cuda/queue.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>

#include "cuda/plugin/status.h"
#define DSPLAN_KERNEL __device__
#else
#define DSPLAN_KERNEL
#endif

namespace dsplan::cuda {

// One lane: sums are what it has itself.
struct Alone {
  static constexpr int kLanes = 1;
  [[nodiscard]] DSPLAN_KERNEL int lane() const { return 0; }
  template <class T>
  [[nodiscard]] DSPLAN_KERNEL T sum(T x) const {
    return x;
  }
  template <class T>
  [[nodiscard]] DSPLAN_KERNEL T largest(T x) const {
    return x;
  }
  [[nodiscard]] DSPLAN_KERNEL bool all(bool x) const { return x; }
};

#ifdef __CUDACC__

// The lanes of a warp. Sums are made in the form of a butterfly: the same bits in every lane, whatever the device.
struct Warp {
  static constexpr int kLanes = 32;
  [[nodiscard]] __device__ int lane() const { return static_cast<int>(threadIdx.x % 32); }
  template <class T>
  [[nodiscard]] __device__ T sum(T x) const {
    for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(0xffffffffU, x, apart);
    return x;
  }
  template <class T>
  [[nodiscard]] __device__ T largest(T x) const {
    for (int apart = 16; apart > 0; apart /= 2) {
      const T other = __shfl_xor_sync(0xffffffffU, x, apart);
      x = other > x ? other : x;
    }
    return x;
  }
  [[nodiscard]] __device__ bool all(bool x) const { return __all_sync(0xffffffffU, x) != 0; }
};

inline constexpr unsigned kThreads = 256;
inline constexpr std::int64_t kMostBlocks = 1 << 20;  // What is more is done by the same threads, one after another.

template <class F>
__global__ void __launch_bounds__(kThreads) each_kernel(const __grid_constant__ F f, std::int64_t count) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) f(i);
}

template <class F>
__global__ void __launch_bounds__(kThreads) teams_kernel(const __grid_constant__ F f, std::int64_t count) {
  constexpr unsigned kTeams = kThreads / 32;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kTeams;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kTeams + threadIdx.x / 32; i < count; i += stride) {
    f(Warp(), i);
  }
}

inline unsigned blocks_for(std::int64_t items, std::int64_t in_block) {
  const std::int64_t blocks = (items + in_block - 1) / in_block;
  return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

template <class F>
void each(const Queue& queue, std::int64_t count, const F& f) {
  if (count <= 0) return;
  each_kernel<<<blocks_for(count, kThreads), kThreads, 0, static_cast<cudaStream_t>(queue.stream)>>>(f, count);
  check(cudaGetLastError(), "launch");
}

template <class F>
void teams(const Queue& queue, std::int64_t count, const F& f) {
  if (count <= 0) return;
  teams_kernel<<<blocks_for(count, kThreads / 32), kThreads, 0, static_cast<cudaStream_t>(queue.stream)>>>(f, count);
  check(cudaGetLastError(), "launch");
}

#else

template <class F>
void each(const Queue&, std::int64_t count, const F& f) {
  for (std::int64_t i = 0; i < count; ++i) f(i);
}

template <class F>
void teams(const Queue&, std::int64_t count, const F& f) {
  for (std::int64_t i = 0; i < count; ++i) f(Alone(), i);
}

#endif

}  // namespace dsplan::cuda
