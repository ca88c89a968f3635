// Where kernels are enqueued, and what they may use there. Nothing of CUDA is named here, so that what only says which
// kernels are wanted is plain C++.
#pragma once

#include <cstdint>

namespace dsplan::cuda {

class Products;  // cuda/products.h

inline constexpr std::int64_t kScratch = 1024;  // Numbers, for sums in two steps.

struct Queue {
  void* stream = nullptr;     // A cudaStream_t; nothing on a host.
  double* scratch = nullptr;  // kScratch numbers of device memory that only kernels of this stream touch.
  Products* products = nullptr;
  void* workspace = nullptr;  // Device memory of this launch, for libraries; may be none.
  std::int64_t workspace_bytes = 0;
};

}  // namespace dsplan::cuda
