// Linear layers and batched products: which matrices their tensors are.
#include <algorithm>

#include "core/graph.h"
#include "cuda/kernels.h"
#include "cuda/products.h"

namespace dsplan::cuda {
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
void cut_alike(const dsplan_tensor& a, const dsplan_tensor& b, Rows& x, Rows& y) {
  if (merge_rows(a, 0, x.matrix) && merge_rows(b, 0, y.matrix)) return;
  x = by_row(a);
  y = by_row(b);
}

Matrix turned(Matrix matrix) {
  std::swap(matrix.rows, matrix.columns);
  std::swap(matrix.row, matrix.column);
  return matrix;
}

Matrix matrix_of(const dsplan_tensor& tensor) {
  expect(tensor.rank == 2, "a weight has two dimensions");
  return {static_cast<unsigned char*>(tensor.data),
          dtype_of(tensor),
          tensor.dims[0],
          tensor.dims[1],
          tensor.strides[0],
          tensor.strides[1]};
}

// As it multiplies from the right: [in, out].
Matrix weight_of(const Args& args, const dsplan_tensor& weight) {
  const bool direct = static_cast<Product>(args.integer(DSPLAN_PRODUCT)) == Product::Direct;
  return direct ? matrix_of(weight) : turned(matrix_of(weight));
}

void expect_fits(const MatrixProduct& p) {
  expect(p.a.columns == p.b.rows && p.c.rows == p.a.rows && p.c.columns == p.b.columns,
         "the factors of a product do not fit");
  expect(p.a.dtype == p.b.dtype && p.a.dtype == p.c.dtype, "the factors of a product have other dtypes");
}

// Rows times a weight.
void multiply_rows(const dsplan_tensor& from, const Matrix& weight, const dsplan_tensor& to, const Queue& queue) {
  Rows x;
  Rows y;
  cut_alike(from, to, x, y);
  const MatrixProduct product{x.matrix, weight, y.matrix, x.outer, x.step, 0, y.step};
  expect_fits(product);
  multiply(product, queue);
}

// The product, rounded once, then the bias, as an elementwise sum, as on the host.
void linear(const Args& args, const Queue& queue) {
  const dsplan_tensor& out = args.output();
  multiply_rows(args.in(0), weight_of(args, args.in(1)), out, queue);
  if (!args.has_in(2)) return;
  map(queue, arithmetic_of(dtype_of(out)), out, {Function::Add, {&out, &args.in(2)}});
}

void linear_backward(const Args& args, const Queue& queue) {
  const dsplan_tensor& grad = args.gradient_of();
  const dsplan_tensor& to = args.latest();
  const std::int64_t slot = args.slot(args.made_count() - 1);
  if (slot == DSPLAN_SLOT(static_cast<std::int64_t>(SlotKind::Gradient), 0)) {
    return multiply_rows(grad, turned(weight_of(args, args.saved_in(1))), to, queue);
  }
  if (slot == DSPLAN_SLOT(static_cast<std::int64_t>(SlotKind::Gradient), 2)) {
    expect_count(to, last_of(grad), "the gradient of the bias");
    return sum_to(queue, grad, to);
  }
  Rows g;
  Rows x;
  cut_alike(grad, args.saved_in(0), g, x);
  MatrixProduct product{turned(x.matrix), g.matrix, weight_of(args, to)};
  product.pairs = g.outer;
  product.a_pair = x.step;
  product.b_pair = g.step;
  expect_fits(product);
  multiply(product, queue);
}

// The matrices of a batch.
Matrix of_batch(const dsplan_tensor& tensor) {
  const std::int32_t rank = tensor.rank;
  expect(rank >= 2, "a product takes matrices");
  return {static_cast<unsigned char*>(tensor.data),
          dtype_of(tensor),
          tensor.dims[rank - 2],
          tensor.dims[rank - 1],
          tensor.strides[rank - 2],
          tensor.strides[rank - 1]};
}

std::int64_t batches_of(const dsplan_tensor& tensor) {
  return count_of(tensor) / (tensor.dims[tensor.rank - 1] * tensor.dims[tensor.rank - 2]);
}

// Leading dimensions in their order, whatever the strides.
std::int64_t offset_of(const dsplan_tensor& tensor, std::int64_t batch) {
  std::int64_t offset = 0;
  for (std::int32_t d = tensor.rank - 3; d >= 0; --d) {
    offset += batch % tensor.dims[d] * tensor.strides[d];
    batch /= tensor.dims[d];
  }
  return offset;
}

std::int64_t inner_batches(const dsplan_tensor& tensor) { return tensor.rank > 2 ? tensor.dims[tensor.rank - 3] : 1; }
std::int64_t inner_step(const dsplan_tensor& tensor) { return tensor.rank > 2 ? tensor.strides[tensor.rank - 3] : 0; }

struct Factor {
  const dsplan_tensor& tensor;
  bool is_turned = false;
  [[nodiscard]] Matrix at(std::int64_t batch) const {
    Matrix matrix = of_batch(tensor);
    matrix.data += offset_of(tensor, batch) * bytes_per_element(matrix.dtype);
    return is_turned ? turned(matrix) : matrix;
  }
};

// The innermost leading dimension is one call; those before it are calls of their own.
void multiply_batches(const Factor& a, const Factor& b, const dsplan_tensor& out, const Queue& queue) {
  const std::int64_t batches = batches_of(out);
  expect(batches_of(a.tensor) == batches && batches_of(b.tensor) == batches, "factors have different batches");
  const std::int64_t inner = inner_batches(out);
  const bool alike = inner > 0 && inner_batches(a.tensor) == inner && inner_batches(b.tensor) == inner;
  const std::int64_t at_once = alike ? inner : 1;
  const Factor c{out};
  for (std::int64_t batch = 0; batch < batches; batch += at_once) {
    const MatrixProduct product{a.at(batch),          b.at(batch),          c.at(batch),    at_once,
                                inner_step(a.tensor), inner_step(b.tensor), inner_step(out)};
    expect_fits(product);
    multiply(product, queue);
  }
}

// A vector times rows: [F] x [.., 1, S].
void outer_product(const Args& args, const Queue& queue) {
  const dsplan_tensor& out = args.output();
  dsplan_tensor column = args.in(0);
  column.rank = 2;
  column.dims[1] = 1;
  column.strides[1] = 0;
  map(queue, arithmetic_of(dtype_of(out)), out, {Function::Mul, {&column, &args.in(1)}});
}

void matmul_backward(const Args& args, const Queue& queue) {
  const dsplan_tensor& grad = args.gradient_of();
  const dsplan_tensor& to = args.latest();
  const bool second = args.slot(args.made_count() - 1) == DSPLAN_SLOT(static_cast<std::int64_t>(SlotKind::Gradient), 1);
  const dsplan_tensor& other = args.saved_in(second ? 0 : 1);
  if (second) return multiply_batches({other, true}, {grad}, to, queue);
  multiply_batches({grad}, {other, true}, to, queue);
}

}  // namespace

bool run_products(const Args& args, const Queue& queue) {
  if (args.op() == Op::Linear) {
    args.backward() ? linear_backward(args, queue) : linear(args, queue);
    return true;
  }
  if (args.op() != Op::Matmul) return false;
  if (args.backward()) {
    matmul_backward(args, queue);
  } else if (args.in(0).rank == 1) {
    outer_product(args, queue);
  } else {
    multiply_batches({args.in(0)}, {args.in(1)}, args.output(), queue);
  }
  return true;
}

}  // namespace dsplan::cuda
