// Linear layers and batched products: which matrices their tensors are, and in which order they are multiplied. For the
// host's kernels and the device's.
#pragma once

#include "exec/host/args.h"
#include "exec/host/gemm.h"

namespace dsplan::exec::host {

// What carries products out.
class ProductKernels {
 public:
  virtual ~ProductKernels() = default;
  virtual void multiply(const MatrixProduct& product) = 0;
  // Element by element, with what is broadcast.
  virtual void add(const dsplan_tensor& a, const dsplan_tensor& b, const dsplan_tensor& out) = 0;
  virtual void scale(const dsplan_tensor& a, const dsplan_tensor& b, const dsplan_tensor& out) = 0;
  virtual void times(const dsplan_tensor& from, double number, const dsplan_tensor& out) = 0;
  virtual void sum(const dsplan_tensor& from, const dsplan_tensor& to) = 0;
};

// False: no product.
[[nodiscard]] bool call_products(const Args& args, ProductKernels& kernels);

}  // namespace dsplan::exec::host
