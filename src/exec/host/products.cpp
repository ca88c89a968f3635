// Linear layers and batched products.
#include <algorithm>

#include "exec/host/args.h"
#include "exec/host/gemm.h"

namespace dsplan::exec::host {
namespace {

// A tensor as matrices of its last dimension: `outer` of them, each with the rows of what lies in between.
struct Pieces {
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
  matrix.row = 0;
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

Pieces whole(const dsplan_tensor& tensor) {
  Pieces pieces;
  return merge_rows(tensor, 0, pieces.matrix) ? pieces : Pieces{{}, 0, 0};
}

Pieces by_row(const dsplan_tensor& tensor) {
  Pieces pieces;
  expect(tensor.rank >= 2 && merge_rows(tensor, 1, pieces.matrix), "rows do not lie as a matrix");
  pieces.outer = tensor.dims[0];
  pieces.step = tensor.strides[0];
  return pieces;
}

// Two tensors with the same leading dimensions, cut alike.
void cut_alike(const dsplan_tensor& a, const dsplan_tensor& b, Pieces& x, Pieces& y) {
  x = whole(a);
  y = whole(b);
  if (x.outer != 0 && y.outer != 0) return;
  x = by_row(a);
  y = by_row(b);
}

Matrix piece(const Pieces& pieces, std::int64_t at) {
  Matrix matrix = pieces.matrix;
  matrix.data += at * pieces.step * bytes_per_element(matrix.dtype);
  return matrix;
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

void expect_rows(const dsplan_tensor& tensor, const dsplan_tensor& like, const char* what) {
  expect(count_of(tensor) / last_of(tensor) == count_of(like) / last_of(like), what);
}

// The product, rounded once, then the bias, as an elementwise sum: for half precision that is one rounding more than
// a fused kernel has.
void linear(const Args& args) {
  const dsplan_tensor& out = args.output();
  const Matrix weight = weight_of(args, args.in(1));
  expect(last_of(out) == weight.columns, "the output has other features than the weight");
  expect_rows(out, args.in(0), "the output has other rows than the input");
  Pieces x;
  Pieces y;
  cut_alike(args.in(0), out, x, y);
  for (std::int64_t i = 0; i < x.outer; ++i) multiply(piece(x, i), weight, piece(y, i));
  if (!args.has_in(2)) return;
  with_arithmetic(dtype_of(out), [&]<class C>(C) {
    map<C, 2>(out, {&out, &args.in(2)}, [](C a, C b) { return a + b; });
  });
}

void linear_backward(const Args& args) {
  const dsplan_tensor& grad = args.gradient_of();
  const dsplan_tensor& to = args.latest();
  const std::int64_t slot = args.slot(args.made_count() - 1);
  if (slot == DSPLAN_SLOT(static_cast<std::int64_t>(SlotKind::Gradient), 0)) {
    expect_rows(to, grad, "the gradient has other rows than the input");
    Pieces g;
    Pieces x;
    cut_alike(grad, to, g, x);
    const Matrix weight = turned(weight_of(args, args.saved_in(1)));
    for (std::int64_t i = 0; i < g.outer; ++i) multiply(piece(g, i), weight, piece(x, i));
    return;
  }
  if (slot == DSPLAN_SLOT(static_cast<std::int64_t>(SlotKind::Gradient), 2)) {
    expect_count(to, last_of(grad), "the gradient of the bias");
    return sum_to(grad, to);
  }
  Pieces g;
  Pieces x;
  cut_alike(grad, args.saved_in(0), g, x);
  multiply(turned(x.matrix), g.matrix, weight_of(args, to), {g.outer, x.step, g.step});
}

// Batches of matrices, one by one: leading dimensions in their order, whatever the strides.
std::int64_t offset_of(const dsplan_tensor& tensor, std::int64_t batch) {
  std::int64_t offset = 0;
  for (std::int32_t d = tensor.rank - 3; d >= 0; --d) {
    offset += batch % tensor.dims[d] * tensor.strides[d];
    batch /= tensor.dims[d];
  }
  return offset;
}

Matrix of_batch(const dsplan_tensor& tensor, std::int64_t batch) {
  const std::int32_t rank = tensor.rank;
  expect(rank >= 2, "a product takes matrices");
  return {static_cast<unsigned char*>(tensor.data) + offset_of(tensor, batch) * bytes_per_element(dtype_of(tensor)),
          dtype_of(tensor),
          tensor.dims[rank - 2],
          tensor.dims[rank - 1],
          tensor.strides[rank - 2],
          tensor.strides[rank - 1]};
}

std::int64_t batches_of(const dsplan_tensor& tensor) {
  return count_of(tensor) / (tensor.dims[tensor.rank - 1] * tensor.dims[tensor.rank - 2]);
}

void expect_batches(const dsplan_tensor& a, const dsplan_tensor& b) {
  expect(a.rank >= 2 && b.rank >= 2 && batches_of(a) == batches_of(b), "factors have different batches");
}

// A vector times rows: [F] x [.., 1, S].
void outer_product(const Args& args) {
  const dsplan_tensor& out = args.output();
  dsplan_tensor column = args.in(0);
  column.rank = 2;
  column.dims[1] = 1;
  column.strides[1] = 0;
  with_arithmetic(dtype_of(out), [&]<class C>(C) {
    map<C, 2>(out, {&column, &args.in(1)}, [](C a, C b) { return a * b; });
  });
}

void matmul(const Args& args) {
  if (args.in(0).rank == 1) return outer_product(args);
  const dsplan_tensor& out = args.output();
  expect_batches(args.in(0), args.in(1));
  expect_batches(args.in(0), out);
  for (std::int64_t i = 0; i < batches_of(out); ++i) {
    multiply(of_batch(args.in(0), i), of_batch(args.in(1), i), of_batch(out, i));
  }
}

void matmul_backward(const Args& args) {
  const dsplan_tensor& grad = args.gradient_of();
  const dsplan_tensor& to = args.latest();
  expect_batches(grad, to);
  const bool second = args.slot(args.made_count() - 1) == DSPLAN_SLOT(static_cast<std::int64_t>(SlotKind::Gradient), 1);
  const dsplan_tensor& other = args.saved_in(second ? 0 : 1);
  expect_batches(grad, other);
  for (std::int64_t i = 0; i < batches_of(to); ++i) {
    if (second) {
      multiply(turned(of_batch(other, i)), of_batch(grad, i), of_batch(to, i));
    } else {
      multiply(of_batch(grad, i), turned(of_batch(other, i)), of_batch(to, i));
    }
  }
}

}  // namespace

bool run_products(const Args& args) {
  if (args.op() == Op::Linear) {
    args.backward() ? linear_backward(args) : linear(args);
    return true;
  }
  if (args.op() == Op::Matmul) {
    args.backward() ? matmul_backward(args) : matmul(args);
    return true;
  }
  return false;
}

}  // namespace dsplan::exec::host
