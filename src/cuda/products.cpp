// Linear layers and batched products, enqueued.
#include "cuda/products.h"

#include "cuda/kernels.h"
#include "exec/host/product_calls.h"

namespace dsplan::cuda {
namespace {

class QueuedProducts : public exec::host::ProductKernels {
 public:
  explicit QueuedProducts(const Queue& queue) : queue_(queue) {}

  void multiply(const MatrixProduct& product) override { cuda::multiply(product, queue_); }
  void add(const dsplan_tensor& a, const dsplan_tensor& b, const dsplan_tensor& out) override {
    map(queue_, arithmetic_of(dtype_of(out)), out, {Function::Add, {&a, &b}});
  }
  void scale(const dsplan_tensor& a, const dsplan_tensor& b, const dsplan_tensor& out) override {
    map(queue_, arithmetic_of(dtype_of(out)), out, {Function::Mul, {&a, &b}});
  }
  void times(const dsplan_tensor& from, double number, const dsplan_tensor& out) override {
    map(queue_, arithmetic_of(dtype_of(out)), out, {Function::MulNumber, {&from}, number});
  }
  void sum(const dsplan_tensor& from, const dsplan_tensor& to) override { sum_to(queue_, from, to); }

 private:
  const Queue& queue_;
};

}  // namespace

bool run_products(const Args& args, const Queue& queue) {
  QueuedProducts kernels(queue);
  return call_products(args, kernels);
}

}  // namespace dsplan::cuda
