#include "exec/host/product_calls.h"

#include <utility>

#include "core/graph.h"

namespace dsplan::exec::host {
namespace {

// A tensor as matrices of its last dimension: `outer` of them, each with the rows of what lies in between.
struct Rows {
  Matrix matrix;
  std::int64_t outer = 1;
  std::int64_t step = 0;
};

// Its dimensions from `first` up to the last one, as one; false where they do not lie as one.
bool merge_rows(const dsplan_tensor& tensor, std::int32_t first, Matrix& matrix) {
  matrix.data = static_cast<unsigned char*>(tensor.data);
  matrix.dtype = dtype_of(tensor);
  matrix.columns = last_of(tensor);
  matrix.column = tensor.rank == 0 ? 1 : tensor.strides[tensor.rank - 1];
  matrix.rows = 1;
  matrix.row = matrix.columns * matrix.column;
  for (std::int32_t d = tensor.rank - 2; d >= first; --d) {
    if (tensor.dims[d] == 1) continue;
    if (matrix.rows == 1) {
      matrix.row = tensor.strides[d];
    } else if (tensor.strides[d] != matrix.rows * matrix.row) {
      return false;
    }
    matrix.rows *= tensor.dims[d];
  }
  return true;
}

Rows by_row(const dsplan_tensor& tensor) {
  Rows rows;
  expect(tensor.rank >= 2 && merge_rows(tensor, 1, rows.matrix), "rows do not lie as a matrix");
  rows.outer = tensor.dims[0];
  rows.step = tensor.strides[0];
  return rows;
}

// Two tensors with the same leading dimensions, cut alike.
std::pair<Rows, Rows> cut_alike(const dsplan_tensor& a, const dsplan_tensor& b) {
  expect(count_of(a) / last_of(a) == count_of(b) / last_of(b), "two tensors of a product have different rows");
  Rows x;
  Rows y;
  if (merge_rows(a, 0, x.matrix) && merge_rows(b, 0, y.matrix)) return {x, y};
  return {by_row(a), by_row(b)};
}

Matrix turned(Matrix matrix) {
  std::swap(matrix.rows, matrix.columns);
  std::swap(matrix.row, matrix.column);
  return matrix;
}

// A weight as it multiplies from the right: [in, out].
Matrix weight_of(const Args& args, const dsplan_tensor& weight) {
  expect(weight.rank == 2, "a weight has two dimensions");
  const Matrix matrix{static_cast<unsigned char*>(weight.data),
                      dtype_of(weight),
                      weight.dims[0],
                      weight.dims[1],
                      weight.strides[0],
                      weight.strides[1]};
  const bool direct = static_cast<Product>(args.integer(DSPLAN_PRODUCT)) == Product::Direct;
  return direct ? matrix : turned(matrix);
}

// One matrix of a batch: leading dimensions in their order, whatever the strides.
Matrix of_batch(const dsplan_tensor& tensor, std::int64_t batch) {
  const std::int32_t rank = tensor.rank;
  std::int64_t offset = 0;
  for (std::int32_t d = rank - 3; d >= 0; --d) {
    offset += batch % tensor.dims[d] * tensor.strides[d];
    batch /= tensor.dims[d];
  }
  return {static_cast<unsigned char*>(tensor.data) + offset * bytes_per_element(dtype_of(tensor)),
          dtype_of(tensor),
          tensor.dims[rank - 2],
          tensor.dims[rank - 1],
          tensor.strides[rank - 2],
          tensor.strides[rank - 1]};
}

std::int64_t batches_of(const dsplan_tensor& tensor) {
  expect(tensor.rank >= 2, "a product takes matrices");
  return count_of(tensor) / (tensor.dims[tensor.rank - 1] * tensor.dims[tensor.rank - 2]);
}

std::int64_t inner_batches(const dsplan_tensor& tensor) { return tensor.rank > 2 ? tensor.dims[tensor.rank - 3] : 1; }
std::int64_t inner_step(const dsplan_tensor& tensor) { return tensor.rank > 2 ? tensor.strides[tensor.rank - 3] : 0; }

// Which gradient the kernel makes.
std::size_t gradient_made(const Args& args) {
  const std::int64_t slot = args.slot(args.made_count() - 1);
  std::size_t input = 0;
  while (slot != DSPLAN_SLOT(static_cast<std::int64_t>(SlotKind::Gradient), static_cast<std::int64_t>(input))) {
    expect(++input < 3, "a product makes something else");
  }
  return input;
}

class ProductCalls {
 public:
  ProductCalls(const Args& args, ProductKernels& kernels) : args_(args), kernels_(kernels) {}

  // The product, rounded once, then the bias, as an elementwise sum: for half precision that is one rounding more than
  // a fused kernel has.
  void linear() {
    const dsplan_tensor& out = args_.output();
    multiply_rows(args_.in(0), weight_of(args_, args_.in(1)), out);
    if (args_.has_in(2)) kernels_.add(out, args_.in(2), out);
  }

  void linear_backward() {
    const dsplan_tensor& grad = args_.gradient_of();
    const dsplan_tensor& to = args_.latest();
    switch (gradient_made(args_)) {
      case 0: return multiply_rows(grad, turned(weight_of(args_, args_.saved_in(1))), to);
      case 1: {
        const auto [g, x] = cut_alike(grad, args_.saved_in(0));
        MatrixProduct product{turned(x.matrix), g.matrix, weight_of(args_, to)};
        product.pairs = {g.outer, x.step, g.step};
        return multiply(product);
      }
      default: expect_count(to, last_of(grad), "the gradient of the bias"); return kernels_.sum(grad, to);
    }
  }

  void matmul() {
    if (args_.in(0).rank != 1) return multiply_batches({args_.in(0)}, {args_.in(1)}, args_.output());
    // A vector times rows: [F] x [.., 1, S].
    dsplan_tensor column = args_.in(0);
    column.rank = 2;
    column.dims[1] = 1;
    column.strides[1] = 0;
    kernels_.scale(column, args_.in(1), args_.output());
  }

  // `number` times the product, and what is added to it.
  void stacked() {
    const dsplan_tensor& out = args_.output();
    multiply_batches({args_.in(0)}, {args_.in(1)}, out);
    if (!args_.has_in(2)) return;
    if (args_.number() != 1) kernels_.times(out, args_.number(), out);
    kernels_.add(out, args_.in(2), out);
  }

  // By turns the product of gradient and number, and the gradient of a factor.
  void stacked_backward() {
    if (args_.integer(DSPLAN_INPUTS) < 3) return matmul_backward();
    const dsplan_tensor& to = args_.latest();
    const bool made_gradient =
        args_.slot(args_.made_count() - 1) / 256 == static_cast<std::int64_t>(SlotKind::Gradient);
    const bool scales = args_.number() != 1;
    const std::size_t at = args_.made_count() - 1;
    const std::size_t input = made_gradient ? gradient_made(args_) : (at == 0 && args_.needs(0) ? 0 : 1);
    if (made_gradient && scales) return kernels_.times(args_.temporary(at / 2), args_.number(), to);
    const dsplan_tensor& grad = args_.gradient_of();
    const Factor other{args_.saved_in(1 - input), true};
    if (input == 1) return multiply_batches(other, {grad}, to);
    multiply_batches({grad}, other, to);
  }

  void matmul_backward() {
    const dsplan_tensor& grad = args_.gradient_of();
    const bool second = gradient_made(args_) == 1;
    const Factor other{args_.saved_in(second ? 0 : 1), true};
    if (second) return multiply_batches(other, {grad}, args_.latest());
    multiply_batches({grad}, other, args_.latest());
  }

 private:
  struct Factor {
    const dsplan_tensor& tensor;
    bool is_turned = false;
    [[nodiscard]] Matrix at(std::int64_t batch) const {
      const Matrix matrix = of_batch(tensor, batch);
      return is_turned ? turned(matrix) : matrix;
    }
  };

  void multiply(const MatrixProduct& p) {
    expect(p.a.columns == p.b.rows && p.c.rows == p.a.rows && p.c.columns == p.b.columns,
           "the factors of a product do not fit");
    expect(p.a.dtype == p.b.dtype && p.a.dtype == p.c.dtype, "the factors of a product have other dtypes");
    kernels_.multiply(p);
  }

  // Rows times a weight.
  void multiply_rows(const dsplan_tensor& from, const Matrix& weight, const dsplan_tensor& to) {
    const auto [x, y] = cut_alike(from, to);
    multiply({x.matrix, weight, y.matrix, x.outer, x.step, 0, y.step});
  }

  // The innermost leading dimension is one call; those before it are calls of their own.
  void multiply_batches(const Factor& a, const Factor& b, const dsplan_tensor& out) {
    const std::int64_t batches = batches_of(out);
    expect(batches_of(a.tensor) == batches && batches_of(b.tensor) == batches, "factors have different batches");
    const std::int64_t inner = inner_batches(out);
    const bool alike = inner > 0 && inner_batches(a.tensor) == inner && inner_batches(b.tensor) == inner;
    const std::int64_t at_once = alike ? inner : 1;
    for (std::int64_t batch = 0; batch < batches; batch += at_once) {
      multiply({a.at(batch), b.at(batch), of_batch(out, batch), at_once, inner_step(a.tensor), inner_step(b.tensor),
                inner_step(out)});
    }
  }

  const Args& args_;
  ProductKernels& kernels_;
};

}  // namespace

bool call_products(const Args& args, ProductKernels& kernels) {
  ProductCalls calls(args, kernels);
  if (args.op() == Op::Linear) {
    args.backward() ? calls.linear_backward() : calls.linear();
    return true;
  }
  if (args.op() == Op::Bmm) {
    args.backward() ? calls.stacked_backward() : calls.stacked();
    return true;
  }
  if (args.op() != Op::Matmul) return false;
  args.backward() ? calls.matmul_backward() : calls.matmul();
  return true;
}

}  // namespace dsplan::exec::host
