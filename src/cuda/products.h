// Products of matrices on the device: through cuBLASLt (cuda/cublas.cpp) where matrices lie as it takes them, else by a
// plain kernel, which is also what tests run on a host.
#pragma once

#include <cstdint>

#include "cuda/queue.h"
#include "exec/host/gemm.h"

namespace dsplan::cuda {

using exec::host::Matrix;
using exec::host::MatrixProduct;

// A library of products, one for each device.
class Products {
 public:
  virtual ~Products() = default;
  // False: not of such matrices; nothing was enqueued.
  [[nodiscard]] virtual bool multiply(const MatrixProduct& product, const Queue& queue) = 0;
};

// kernels/products.cpp: whatever lies however.
void multiply_slowly(const MatrixProduct& product, const Queue& queue);

inline void multiply(const MatrixProduct& product, const Queue& queue) {
  if (queue.products != nullptr && queue.products->multiply(product, queue)) return;
  multiply_slowly(product, queue);
}

}  // namespace dsplan::cuda
