// Linear layers and batched products, by the host's products of matrices.
#include "exec/host/product_calls.h"

namespace dsplan::exec::host {
namespace {

class HostProducts : public ProductKernels {
 public:
  void multiply(const MatrixProduct& product) override {
    const auto moved = [](Matrix matrix, std::int64_t elements) {
      matrix.data += elements * bytes_per_element(matrix.dtype);
      return matrix;
    };
    for (std::int64_t i = 0; i < product.count; ++i) {
      host::multiply(moved(product.a, i * product.a_step), moved(product.b, i * product.b_step),
                     moved(product.c, i * product.c_step), product.pairs);
    }
  }
  void add(const dsplan_tensor& a, const dsplan_tensor& b, const dsplan_tensor& out) override {
    with_arithmetic(dtype_of(out), [&]<class C>(C) { map<C, 2>(out, {&a, &b}, [](C x, C y) { return x + y; }); });
  }
  void scale(const dsplan_tensor& a, const dsplan_tensor& b, const dsplan_tensor& out) override {
    with_arithmetic(dtype_of(out), [&]<class C>(C) { map<C, 2>(out, {&a, &b}, [](C x, C y) { return x * y; }); });
  }
  void times(const dsplan_tensor& from, double number, const dsplan_tensor& out) override {
    with_arithmetic(dtype_of(out), [&]<class C>(C) {
      const C factor = static_cast<C>(number);
      map<C, 1>(out, {&from}, [=](C x) { return x * factor; });
    });
  }
  void sum(const dsplan_tensor& from, const dsplan_tensor& to) override { sum_to(from, to); }
};

}  // namespace

bool run_products(const Args& args) {
  HostProducts kernels;
  return call_products(args, kernels);
}

}  // namespace dsplan::exec::host
