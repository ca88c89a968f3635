// The catalogue: matrix products, convolution and embedding.
#include <cstdint>
#include <optional>
#include <vector>

#include "core/cudnn/convolution_scratch.h"
#include "model/catalogue/rules.h"

namespace dsplan {

bool is_int8_product(const Node& node) { return node.op == Op::Linear && node.number >= rules::kEightBits; }

}  // namespace dsplan

namespace dsplan::rules {
namespace {

// bitsandbytes' MatMul4Bit (0.50: autograd/_functions.py, backends/cuda/ops.py): W is packed, 64 values to a scale.
// Forward unpacks the scales, if they are quantized themselves, and the weight in x's dtype, and is one call; backward
// unpacks both again, the weight in the dtype that it once had. Under autocast in a narrower dtype the call has copies
// of x, weight and bias made for it, and backward's product is in the gradient's dtype, from which the engine makes
// x's.
class PackedLinear {
 public:
  explicit PackedLinear(Writer& w) : w_(w), compute_(w.in(0).dtype), product_(w.out().dtype) {
    nested_ = w.node().number >= kNestedScales;
    loaded_ = static_cast<DType>(static_cast<int>(w.node().number) % static_cast<int>(kNestedScales));
    const std::int64_t in = w.in(0).shape.dims[w.in(0).shape.rank - 1U];
    weight_ = Elements(checked_mul(in, w.out().shape.dims[w.out().shape.rank - 1U]));
    scales_ = storage(div_ceil(weight_, 64), DType::Float32);
  }

  void forward() {
    std::vector<std::uint8_t> made;
    if (nested_) {
      made.push_back(passing(scales_, DType::Float32));
      made.insert(made.begin(), passing(scales_, DType::Float32));
    }
    made.push_back(passing(storage(weight_, compute_), compute_));
    std::vector<std::uint8_t> narrow;
    if (narrows()) {
      // The compiler evaluates the wrapper's arguments from the last to the first.
      if (w_.has_in(2)) narrow.insert(narrow.begin(), passing(storage(w_.in(2).shape.elements(), product_), product_));
      narrow.insert(narrow.begin(), passing(storage(weight_, product_), product_));
      narrow.insert(narrow.begin(), passing(storage(w_.in(0).shape.elements(), product_), product_));
    }
    w_.output();
    w_.kernel();
    for (const std::uint8_t one : narrow) w_.forward_drop(one);
    if (nested_) {
      for (const std::uint8_t one : made) w_.forward_drop(one);
    }
    w_.save_input(1, "B", w_.needs(0));
    if (w_.needs(0)) w_.hold(1, true);  // A view of it, in an attribute.
  }

  void backward() {
    if (w_.has_in(2)) w_.summed_gradient(2);
    if (!w_.needs(0)) return;
    std::uint8_t shifted = 0;
    if (nested_) shifted = w_.temporary(scales_, DType::Float32);
    std::uint8_t dense = w_.temporary(storage(weight_, loaded_), loaded_);
    if (nested_) w_.drop(shifted);
    if (loaded_ != product_) {
      const std::uint8_t cast = w_.temporary(storage(weight_, product_), product_);
      w_.drop(dense);
      dense = cast;
    }
    if (!narrows()) {
      w_.gradient(0);
      return w_.drop(dense);
    }
    const std::uint8_t narrow = w_.temporary(storage(w_.in(0).shape.elements(), product_), product_);
    w_.drop(dense);
    w_.gradient(0);
    w_.drop(narrow);
  }

 private:
  [[nodiscard]] bool narrows() const { return product_ != compute_; }
  std::uint8_t passing(Bytes bytes, DType dtype) {
    const std::uint8_t made = w_.forward_temporary(bytes, dtype);
    w_.kernel();
    return made;
  }

  Writer& w_;
  DType compute_;
  DType product_;
  DType loaded_ = DType::BFloat16;
  bool nested_ = false;
  Elements weight_;
  Bytes scales_;
};

void packed_linear(Writer& w) {
  PackedLinear rule(w);
  rule.forward();
  rule.backward();
}

// bitsandbytes' MatMul8bitLt (0.50: autograd/_functions.py, backends/cuda/ops.py, backends/default/ops.py) over an int8
// weight with a scale for each row. x is quantized by rows, and looked through for columns that reach the threshold:
// none is assumed to. The sums are in int32, what becomes of them in fp16, and that is cast to x's dtype. Its node
// holds x as an attribute, and backward unpacks the weight in x's dtype.
class Int8Linear {
 public:
  explicit Int8Linear(Writer& w) : w_(w), compute_(w.in(0).dtype), half_(compute_ == DType::Float16) {
    values_ = w.in(0).shape.elements();
    const std::int64_t in = w.in(0).shape.dims[w.in(0).shape.rank - 1U];
    features_ = w.out().shape.dims[w.out().shape.rank - 1U];
    rows_ = values_.value() / in;
    weight_ = Elements(checked_mul(in, features_));
  }

  void forward() {
    const std::uint8_t narrow = half_ ? std::uint8_t{0} : passing(values_, DType::Float16);
    const std::uint8_t scales =
        w_.forward_temporary(storage(Elements(rows_), DType::Float32), DType::Float32);  // The absmax of each row.
    const std::uint8_t quantized = w_.forward_temporary(storage(values_, DType::Int8), DType::Int8);
    const std::uint8_t outliers = search();
    if (rows_ > 1) w_.forward_drop(passing(Elements(1), DType::Int8));  // The zero that goes to those columns.
    w_.forward_drop(outliers);
    if (!half_) w_.forward_drop(narrow);
    multiply();
    w_.forward_drop(quantized);
    w_.forward_drop(scales);
    w_.hold(0);
  }

  void backward() {
    if (!w_.needs(0)) return;
    const std::uint8_t dense = w_.temporary(storage(weight_, compute_), compute_);
    w_.drop(w_.temporary(storage(Elements(features_), DType::Float32), DType::Float32));
    w_.gradient(0);
    w_.seen_through_view(0);
    w_.drop(dense);
  }

 private:
  std::uint8_t passing(Elements elements, DType dtype) {
    const std::uint8_t made = w_.forward_temporary(storage(elements, dtype), dtype);
    w_.kernel();
    return made;
  }

  // Which values reach the threshold, and whether any does.
  std::uint8_t search() {
    const std::uint8_t sizes = passing(values_, DType::Float16);
    const std::uint8_t outliers = passing(values_, DType::Bool);
    w_.forward_drop(sizes);
    const std::uint8_t any = w_.forward_temporary(Bytes(1), DType::Bool);
    forward_reduced_kernel(w_, {1, values_.value(), 0}, Bytes(1));
    w_.forward_drop(any);
    return outliers;
  }

  void multiply() {
    const Elements made = w_.out().shape.elements();
    const std::uint8_t sums = passing(made, DType::Int32);
    if (half_) {
      w_.output();
      w_.kernel();
    } else {
      const std::uint8_t half = passing(made, DType::Float16);
      w_.output();
      w_.kernel();
      w_.forward_drop(half);
    }
    w_.forward_drop(sums);
  }

  Writer& w_;
  DType compute_;
  bool half_;
  Elements values_;
  std::int64_t features_ = 0;
  std::int64_t rows_ = 0;
  Elements weight_;
};

void int8_linear(Writer& w) {
  Int8Linear rule(w);
  rule.forward();
  rule.backward();
}

// DeepSpeed's function over rows of x that lie with gaps between them: it keeps them as they lie. A trained weight's
// products copy them; a gradient that comes by column is copied for each of its own.
void linear_with_gaps(Writer& w) {
  const bool by_column = w.node().number == rules::kGapsBack;
  const DType dtype = w.in(0).dtype;
  const Bytes out = storage(w.out().shape.elements(), dtype);
  const bool trained = w.needs(1);
  const std::uint8_t rows = trained ? w.forward_temporary(w.bytes_in(0), dtype) : std::uint8_t{0};
  if (trained) w.kernel();
  w.output();
  w.kernel();
  if (trained) w.forward_drop(rows);
  for (std::size_t i = 0; i < w.node().input_count; ++i) w.save_input(i, i == 0 ? "_saved_mat1" : "_saved_mat2");
  w.saves_after_kernel();
  w.gradient(0);
  if (by_column && w.needs(0)) w.drop(w.temporary(out, dtype));
  if (trained) {
    const std::uint8_t gradient = by_column ? w.temporary(out, dtype) : std::uint8_t{0};
    const std::uint8_t copied = w.temporary(w.bytes_in(0), dtype);
    w.gradient(1);
    if (by_column) w.drop(gradient);
    w.drop(copied);
  }
  if (!w.has_in(2)) return;
  if (by_column) return w.gradient(2);
  w.summed_gradient(2);
}

}  // namespace

// x W^T (+ b). Saved: mat1 iff the weight needs a gradient, mat2 iff the input does (derivatives.yaml: mm, addmm).
// Backward order: with bias x, W, then, by the engine, the bias sum; without bias W first. DeepSpeed's Python function
// (runtime/zero/linear.py) packs what it saves after its forward, x beside a frozen weight and the bias too, and always
// makes x first.
void linear(Writer& w) {
  if (is_int8_product(w.node())) return int8_linear(w);
  if (w.node().number > 0) return packed_linear(w);
  if (w.node().number < 0) return linear_with_gaps(w);
  const bool has_bias = w.node().input_count == 3;
  w.output();
  w.kernel();
  const bool function = w.node().product == Product::Function;
  w.save_input(0, has_bias ? "_saved_mat1" : "_saved_self", function || w.needs(1));
  w.save_input(1, "_saved_mat2", w.needs(0));
  if (function && has_bias) w.save_input(2, "_saved_bias");
  if (function) w.saves_after_kernel();
  // It works on views with two dimensions, and nn.functional.linear on weight.t(), so that gradients come back through
  // them. The bias is ready before the weight, whose transposition is a node of its own.
  if (!function) {
    if (w.in(0).shape.rank != 2) w.seen_through_view(0);
    if (w.node().product == Product::Transposed) w.seen_through_view(1);
    w.leaves_reversed();
    if (has_bias) w.leaves_first();
    if (has_bias) w.seen_through_view(2);  // sum_to (ExpandUtils.h) takes the rows away by a view.
  }
  if (has_bias || function) {
    w.gradient(0);
    w.gradient(1);
    if (!function) w.function_returns();
    if (has_bias) w.summed_gradient(2);
  } else {
    w.gradient(1);
    w.gradient(0);
  }
}

// mm, bmm and matmul: the second factor's gradient comes first.
void matmul(Writer& w) {
  w.output();
  w.kernel();
  w.save_input(0, "_saved_self", w.needs(1));
  w.save_input(1, "_saved_mat2", w.needs(0));
  // matmul of batches is expand, reshape, bmm and a view.
  if (w.node().op == Op::Matmul) {
    w.seen_through_view(0);
    w.seen_through_view(1);
  }
  w.gradient(1);
  w.gradient(0);
}

// bmm, or with a third operand baddbmm: that and `number` times the product. A factor of one is not multiplied
// (FunctionsManual.cpp, maybe_multiply); the first factor's gradient comes first, as names are sorted.
void stacked_product(Writer& w) {
  if (!w.has_in(2)) return matmul(w);
  w.output();
  w.kernel();
  w.save_input(0, "_saved_batch1", w.needs(1));
  w.save_input(1, "_saved_batch2", w.needs(0));
  for (const std::size_t i : {0U, 1U}) {
    if (!w.needs(i)) continue;
    const bool scales = w.node().number != 1;
    const std::uint8_t product = scales ? w.temporary(w.bytes_in(i), w.in(i).dtype) : std::uint8_t{0};
    w.gradient(i);
    if (scales) w.drop(product);
  }
  w.function_returns();
  if (w.is_broadcast(2)) {
    w.summed_gradient(2);
  } else {
    w.pass(2);
  }
}

// The weight's gradient comes first, as in mm (VariableType, GroupedMmBackward0).
void grouped_matmul(Writer& w) {
  const std::optional<GroupedScratch> scratch =
      grouped_scratch(w.in(0).dtype, w.in(2).shape.elements().value(), w.options().device);
  w.output();
  if (scratch) {
    const std::uint8_t arguments = w.forward_temporary(scratch->arguments, DType::UInt8, Visibility::Kernel);
    const std::uint8_t maps = w.forward_temporary(scratch->maps, DType::UInt8, Visibility::Kernel);
    w.kernel();
    w.forward_drop(maps);
    w.forward_drop(arguments);
  } else {
    w.kernel();
  }
  w.save_input(0, "_saved_self", w.needs(1));
  w.save_input(1, "_saved_mat2", w.needs(0));
  w.save_input(2, "_saved_offs");
  for (const std::size_t input : {1U, 0U}) {
    if (!scratch || !w.needs(input)) {
      w.gradient(input);
      continue;
    }
    w.allocate_gradient(input);
    const std::uint8_t arguments = w.allocate_temporary(scratch->arguments, DType::UInt8, Visibility::Kernel);
    const std::uint8_t maps = w.allocate_temporary(scratch->maps, DType::UInt8, Visibility::Kernel);
    w.backward_kernel();
    w.drop(maps);
    w.drop(arguments);
  }
}

// Sorted first, then summed part by part; what is freed goes in reverse.
void sorted_embedding_gradient(Writer& w, const EmbeddingBackward& made) {
  std::vector<std::uint8_t> held;
  const auto hold = [&](Bytes bytes, DType dtype = DType::Int64) {
    if (bytes > Bytes(0)) held.push_back(w.allocate_temporary(bytes, dtype, Visibility::Kernel));
  };
  const auto drop_to = [&](std::size_t count) {
    for (; held.size() > count; held.pop_back()) w.drop(held.back());
  };
  for (int i = 0; i < 3; ++i) hold(made.sorted);
  hold(made.sort, DType::UInt8);
  w.backward_kernel();
  drop_to(2);
  w.allocate_gradient(0);
  hold(made.sorted);
  hold(Bytes(8));
  const std::size_t kept = held.size();
  hold(made.sorted);
  hold(made.unique, DType::UInt8);
  drop_to(kept);
  hold(made.segments);
  hold(made.segments);
  const std::size_t segments = held.size();
  hold(made.scan, DType::UInt8);
  drop_to(segments);
  hold(Bytes(8));
  hold(made.parts);
  hold(made.sums, DType::Float32);
  w.backward_kernel();
  drop_to(0);
}

// Dense gradient of the table, for which the incoming one is brought to the rows of the output; beyond 3,072 indices
// CUDA sorts them first (Embedding.cu, embedding_dense_backward).
void embedding(Writer& w) {
  w.output();
  w.kernel();
  w.save_input(1, "_saved_indices");
  if (!w.needs(0)) return;
  if (w.node().by_head) w.temporary(w.bytes_out(), w.out().dtype, Visibility::Kernel);
  const Shape& table = w.in(0).shape;
  const EmbeddingBackward made =
      embedding_backward(w.in(1).shape.elements().value(), table.dims[0], table.dims[1], w.options().device);
  if (made.sorted == Bytes(0)) return w.gradient(0);
  sorted_embedding_gradient(w, made);
}

namespace {

class Convolution {
 public:
  explicit Convolution(Writer& w) : w_(w), apart_(convolves_channels_apart(w.in(0).shape, w.in(1).shape)) {}

  // A workspace that goes with its kernel; 0: none, or nobody knows.
  Bytes workspace(ConvolutionKernel kernel) {
    if (apart_) return Bytes(0);
    const std::optional<Bytes> known =
        convolution_workspace(kernel, w_.in(1).dtype, w_.in(0).shape, w_.in(1).shape, w_.out().shape,
                              w_.options().device, static_cast<std::int64_t>(w_.node().number));
    if (!known) w_.unknown("cuDNN's workspace of conv2d");
    return known.value_or(Bytes(0));
  }

  void gradients() {
    // What arrives in another order is copied, for both kernels; the sum over places reads it as it came.
    std::optional<std::uint8_t> copy;
    if (w_.node().by_head && (w_.needs(0) || w_.needs(1))) {
      copy = w_.allocate_temporary(w_.bytes_out(), w_.out().dtype, Visibility::Kernel);
    }
    const auto image = [&] { gradient(0, ConvolutionKernel::InputGradient); };
    if (!apart_) image();
    gradient(1, ConvolutionKernel::WeightGradient);
    if (apart_) image();
    if (copy) w_.drop(*copy);
    sum();
  }

 private:
  void gradient(std::size_t i, ConvolutionKernel kernel) {
    if (!w_.needs(i)) return;
    const bool turned = i == 1 && w_.node().gradient_copied;
    std::uint8_t by_place = 0;
    if (turned) {
      by_place = w_.allocate_temporary(w_.bytes_in(i), w_.in(i).dtype, Visibility::Kernel);
    } else {
      w_.allocate_gradient(i);
    }
    const Bytes bytes = workspace(kernel);
    if (bytes > Bytes(0)) w_.drop(w_.allocate_temporary(bytes, DType::UInt8, Visibility::Kernel));
    if (!turned) return;
    w_.allocate_gradient(i);
    w_.drop(by_place);
  }

  void sum() {
    if (!w_.has_in(2) || !w_.needs(2)) return w_.backward_kernel();
    w_.allocate_gradient(2);
    const std::int64_t channels = w_.out().shape.dims[1];
    const std::int64_t summed = w_.out().shape.elements().value() / channels;
    const bool beside = w_.node().by_head || summed == w_.out().shape.dims[0];
    reduced_kernel(w_, {channels, summed, beside ? channels : 0});
  }

  Writer& w_;
  bool apart_;
};

}  // namespace

// cuDNN makes one gradient after the other; PyTorch's own kernels, of channels apart, the weight's first
// (Convolution.cpp, convolution_backward; Conv_v8.cpp; DepthwiseConv2d.cu).
void convolution(Writer& w) {
  Convolution made(w);
  w.save_input(0, "_saved_input");
  w.save_input(1, "_saved_weight");
  w.output();
  const Bytes workspace = made.workspace(ConvolutionKernel::Forward);
  if (workspace > Bytes(0)) w.forward_temporary(workspace, DType::UInt8, Visibility::Kernel);
  w.kernel();
  made.gradients();
}

// Node::number 1: pictures lie place by place and patches are read as rows, which the kernels of both directions copy
// first (Im2Col.cu).
void unfold(Writer& w) {
  const bool copied = w.node().number != 0;
  const std::uint8_t copy =
      copied ? w.forward_temporary(w.bytes_in(0), w.in(0).dtype, Visibility::Kernel) : std::uint8_t{0};
  w.output();
  w.kernel();
  if (copied) w.forward_drop(copy);
  if (!w.needs(0)) return;
  const std::uint8_t columns =
      copied ? w.allocate_temporary(w.bytes_out(), w.out().dtype, Visibility::Kernel) : std::uint8_t{0};
  w.gradient(0);
  if (copied) w.drop(columns);
}

// The right side's gradient is solved for, with the triangle turned; the triangle's is minus its product with the
// result, below the diagonal. The library takes arrays of pointers besides.
void solve_triangular(Writer& w) {
  w.save_input(0, "_saved_self");
  w.output();
  w.kernel();
  w.save_output(0, "_saved_result");
  w.unknown("cuBLAS's workspace of solve_triangular");
  if (!w.needs(0) && !w.needs(1)) return;
  std::uint8_t solved = 0;
  if (w.needs(1)) {
    w.gradient(1);
  } else {
    solved = w.temporary(w.bytes_in(1), w.in(1).dtype);
  }
  if (!w.needs(0)) return;
  const std::uint8_t product = w.temporary(w.bytes_in(0), w.in(0).dtype);
  const std::uint8_t negative = w.temporary(w.bytes_in(0), w.in(0).dtype);
  w.drop(product);
  w.gradient(0);
  w.drop(negative);
  if (!w.needs(1)) w.drop(solved);
}

}  // namespace dsplan::rules
