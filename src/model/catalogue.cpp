#include "model/catalogue.h"

#include <algorithm>

#include "core/error.h"

namespace dsplan {
namespace {

constexpr std::int64_t round_to(std::int64_t value, std::int64_t multiple) {
  return round_up(Elements(value), multiple).value();
}

// Writes a recipe. `in(i)` and `out(i)` are the node's tensors; `needs(i)` says whether backward must produce the
// gradient of input i (a frozen weight, an index or anything under no_grad does not).
class Writer {
 public:
  Writer(const Graph& graph, const Node& node, Recipe& recipe) : graph_(graph), node_(node), recipe_(recipe) {}

  [[nodiscard]] const Tensor& in(std::size_t i) const { return graph_.tensor(node_.inputs[i]); }
  [[nodiscard]] const Tensor& out(std::size_t i = 0) const { return graph_.tensor(node_.outputs[i]); }
  [[nodiscard]] bool needs(std::size_t i) const { return node_.requires_grad && in(i).requires_grad; }
  [[nodiscard]] const Node& node() const { return node_; }

  std::uint8_t slot(SlotKind kind, std::size_t index, Bytes bytes, DType dtype, Visibility visibility) {
    recipe_.slots.push_back({kind, visibility, dtype, static_cast<std::uint8_t>(index), bytes});
    return static_cast<std::uint8_t>(recipe_.slots.size() - 1);
  }

  // Forward.
  void output(std::size_t i = 0) {
    forward(slot(SlotKind::Output, i, graph_.bytes(node_.outputs[i]), out(i).dtype, Visibility::Dispatch));
  }
  void extra(std::size_t i, Bytes bytes, DType dtype, Visibility visibility) {
    forward(slot(SlotKind::Extra, i, bytes, dtype, visibility));
  }
  void kernel() { recipe_.forward.push_back({RecipeStep::Kind::Kernel, 0}); }

  // Saving; `condition` is the needs-grad rule.
  void save_input(std::size_t i, const char* name, bool condition = true) {
    if (condition) recipe_.saved.push_back({Saved::Kind::Input, static_cast<std::uint8_t>(i), name});
  }
  void save_output(std::size_t i, const char* name) {
    recipe_.saved.push_back({Saved::Kind::Output, static_cast<std::uint8_t>(i), name});
    recipe_.saves_after_kernel = true;
  }
  void save_extra(std::size_t i, const char* name) {
    recipe_.saved.push_back({Saved::Kind::Extra, static_cast<std::uint8_t>(i), name});
    recipe_.saves_after_kernel = true;
  }

  // Backward.
  void pass(std::size_t i) {
    if (needs(i)) recipe_.passes = static_cast<std::uint8_t>(recipe_.passes | (1U << i));
  }
  // A temporary and the kernel that fills it; returns its slot.
  std::uint8_t temporary(Bytes bytes, DType dtype, Visibility visibility = Visibility::Dispatch) {
    const std::uint8_t made = allocate_temporary(bytes, dtype, visibility);
    backward_kernel();
    return made;
  }
  std::uint8_t allocate_temporary(Bytes bytes, DType dtype, Visibility visibility) {
    const std::uint8_t made = slot(SlotKind::Temporary, 0, bytes, dtype, visibility);
    recipe_.backward.push_back({RecipeStep::Kind::Make, made});
    return made;
  }
  void drop(std::uint8_t made) { recipe_.backward.push_back({RecipeStep::Kind::Drop, made}); }
  void allocate_gradient(std::size_t i) {
    recipe_.backward.push_back({RecipeStep::Kind::Make, slot(SlotKind::Gradient, i, graph_.bytes(node_.inputs[i]),
                                                             in(i).dtype, Visibility::Dispatch)});
  }
  void backward_kernel() { recipe_.backward.push_back({RecipeStep::Kind::Kernel, 0}); }
  void function_returns() { recipe_.backward.push_back({RecipeStep::Kind::Return, 0}); }
  void saves_after_kernel() { recipe_.saves_after_kernel = true; }
  void gradient(std::size_t i) {
    if (!needs(i)) return;
    allocate_gradient(i);
    backward_kernel();
  }

  // The gradients of broadcasting operators: each is computed at the output's shape; the engine's validation sums
  // those that were broadcast afterwards (torch/csrc/autograd/engine.cpp, validate_outputs), when all exist.
  void broadcast_gradients(std::initializer_list<std::size_t> inputs) {
    std::array<std::uint8_t, Node::kMostInputs> full{};
    for (std::size_t i : inputs) {
      if (!needs(i)) continue;
      if (is_broadcast(i)) {
        full[i] = temporary(storage(out().shape.elements(), out().dtype), out().dtype);
      } else {
        gradient(i);
      }
    }
    function_returns();
    for (std::size_t i : inputs) {
      if (!needs(i) || !is_broadcast(i)) continue;
      gradient(i);
      drop(full[i]);
    }
  }
  // The gradient arrives at the output's shape and dtype and has to be brought to the input's.
  [[nodiscard]] bool is_broadcast(std::size_t i) const {
    return in(i).shape.elements() != out().shape.elements() || in(i).dtype != out().dtype;
  }

 private:
  void forward(std::uint8_t made) { recipe_.forward.push_back({RecipeStep::Kind::Make, made}); }

  const Graph& graph_;
  const Node& node_;
  Recipe& recipe_;
};

// One output, one kernel, gradient of the same size: the shape of most elementwise operators.
void unary(Writer& w) {
  w.output();
  w.kernel();
  w.gradient(0);
}

// x W^T (+ b). Saved: mat1 iff the weight needs a gradient, mat2 iff the input does (derivatives.yaml: mm, addmm).
// Backward order: with bias x, W, then, by the engine, the bias sum; without bias W first. DeepSpeed's Python function
// (runtime/zero/linear.py) packs what it saves after its forward and always makes x first.
void linear(Writer& w) {
  const bool has_bias = w.node().input_count == 3;
  w.output();
  w.kernel();
  w.save_input(0, has_bias ? "_saved_mat1" : "_saved_self", w.needs(1));
  w.save_input(1, "_saved_mat2", w.needs(0));
  const bool function = w.node().product == Product::Function;
  if (function) w.saves_after_kernel();
  if (has_bias || function) {
    w.gradient(0);
    w.gradient(1);
    if (!function) w.function_returns();
    if (has_bias) w.gradient(2);
  } else {
    w.gradient(1);
    w.gradient(0);
  }
}

// Dense gradient of the table; beyond 3,072 indices CUDA sorts them first (Embedding.cu, embedding_dense_backward).
void embedding(Writer& w) {
  w.output();
  w.kernel();
  w.save_input(1, "_saved_indices");
  if (!w.needs(0)) return;
  const Elements indices = w.in(1).shape.elements();
  if (indices > Elements(3072)) {
    w.allocate_temporary(storage(indices, DType::Int64), DType::Int64, Visibility::Kernel);
    w.temporary(storage(indices, DType::Int64), DType::Int64, Visibility::Kernel);
  }
  w.gradient(0);
}

void multiply(Writer& w) {
  w.output();
  w.kernel();
  w.save_input(1, "_saved_other", w.needs(0));
  w.save_input(0, "_saved_self", w.needs(1));
  w.broadcast_gradients({0, 1});
}

// Both operands receive the incoming gradient itself; one that was broadcast receives its sum.
void add(Writer& w) {
  w.output();
  w.kernel();
  for (std::size_t i : {0U, 1U}) {
    if (w.is_broadcast(i)) {
      w.gradient(i);
    } else {
      w.pass(i);
    }
  }
}

// grad / other; -grad * ((self / other) / other) (FunctionsManual.cpp, div_tensor_{self,other}_grad).
void divide(Writer& w) {
  w.output();
  w.kernel();
  w.save_input(1, "_saved_other");
  w.save_input(0, "_saved_self", w.needs(1));
  if (w.needs(0)) w.broadcast_gradients({0});
  if (!w.needs(1)) return;
  const Bytes full = storage(w.out().shape.elements(), w.out().dtype);
  for (int i = 0; i < (w.is_broadcast(1) ? 4 : 3); ++i) w.temporary(full, w.out().dtype);
  w.gradient(1);
}

// exponent * self.pow(exponent - 1), then the product: three tensors at once (FunctionsManual.cpp, pow_backward).
void power(Writer& w) {
  w.output();
  w.kernel();
  w.save_input(0, "_saved_self");
  if (!w.needs(0)) return;
  const Bytes full = storage(w.in(0).shape.elements(), w.in(0).dtype);
  w.temporary(full, w.in(0).dtype);
  w.temporary(full, w.in(0).dtype);
  w.gradient(0);
}

// -0.5 * grad * result.pow(3) (derivatives.yaml: rsqrt).
void reciprocal_root(Writer& w) {
  w.output();
  w.kernel();
  w.save_output(0, "_saved_result");
  if (!w.needs(0)) return;
  const Bytes full = storage(w.out().shape.elements(), w.out().dtype);
  w.temporary(full, w.out().dtype);
  w.temporary(full, w.out().dtype);
  w.gradient(0);
}

// Input, weight, and per row mean and rstd in the accumulate type (layer_norm_kernel.cu).
void layer_norm(Writer& w) {
  const Shape& shape = w.in(0).shape;
  const Elements rows(shape.elements().value() / std::max<std::int64_t>(1, shape.dims[shape.rank - 1U]));
  const DType accumulate = w.in(0).dtype == DType::Float64 ? DType::Float64 : DType::Float32;
  w.output();
  w.extra(0, storage(rows, accumulate), accumulate, Visibility::Dispatch);
  w.extra(1, storage(rows, accumulate), accumulate, Visibility::Dispatch);
  w.kernel();
  w.save_input(0, "_saved_input");
  w.save_input(1, "_saved_weight");
  w.save_extra(0, "_saved_result1");
  w.save_extra(1, "_saved_result2");
  for (std::size_t i : {0U, 1U, 2U}) {
    if (w.needs(i)) w.allocate_gradient(i);
  }
  w.backward_kernel();
}

// A bool mask, one byte per element, made before the output (Dropout.cu, dropout_cuda).
void dropout(Writer& w) {
  w.extra(0, storage(w.out().shape.elements(), DType::Bool), DType::Bool, Visibility::Dispatch);
  w.output();
  w.kernel();
  w.save_extra(0, "_saved_result1");
  w.gradient(0);
}

// q [B, Hq, S, D], k and v [B, Hkv, S, D]. Saved besides q, k, v and out: log-sum-exp and the random state, which
// since torch 2.7 is two tensors of 16 and 8 bytes on the GPU. Backward, in this order: dq, dk, dv, softmax_d,
// dq_accum, and with grouped heads dk and dv at all heads before they are summed (flash_api.cpp, mha_bwd).
void flash_attention(Writer& w) {
  const Shape& q = w.in(0).shape;
  const std::int64_t batch = q.dims[0];
  const std::int64_t heads = q.dims[1];
  const std::int64_t seq = q.dims[2];
  const std::int64_t head_dim = q.dims[3];
  w.output();
  w.extra(0, storage(Shape{batch, heads, seq}.elements(), DType::Float32), DType::Float32, Visibility::Dispatch);
  w.extra(1, Bytes(16), DType::Int64, Visibility::Dispatch);
  w.extra(2, Bytes(8), DType::Int64, Visibility::Dispatch);
  w.kernel();
  w.save_input(0, "_saved_query");
  w.save_input(1, "_saved_key");
  w.save_input(2, "_saved_value");
  w.save_output(0, "_saved_output");
  w.save_extra(0, "_saved_logsumexp");
  w.save_extra(1, "_saved_rng_state");
  w.save_extra(2, "_saved_unused");
  if (!w.node().requires_grad) return;
  for (std::size_t i : {0U, 1U, 2U}) w.allocate_gradient(i);
  const std::int64_t padded_seq = round_to(seq, 128);
  const std::int64_t padded_dim = round_to(head_dim, head_dim <= 128 ? 32 : 64);
  w.allocate_temporary(storage(Shape{batch, heads, padded_seq}.elements(), DType::Float32), DType::Float32,
                       Visibility::Kernel);
  w.allocate_temporary(storage(Shape{batch, padded_seq, heads, padded_dim}.elements(), DType::Float32), DType::Float32,
                       Visibility::Kernel);
  if (w.in(1).shape.dims[1] != heads) {
    const Bytes expanded = storage(q.elements(), w.in(0).dtype);
    w.allocate_temporary(expanded, w.in(0).dtype, Visibility::Kernel);
    w.allocate_temporary(expanded, w.in(0).dtype, Visibility::Kernel);
  }
  w.backward_kernel();
}

// Log-sum-exp padded to 32 rows, seed and offset on the GPU; backward's delta is like it
// (aten/src/ATen/native/transformers/cuda/attention.cu, attention_backward.cu).
void memory_efficient_attention(Writer& w) {
  const Shape& q = w.in(0).shape;
  const Bytes rows = storage(Shape{q.dims[0], q.dims[1], round_to(q.dims[2], 32)}.elements(), DType::Float32);
  w.output();
  w.extra(0, rows, DType::Float32, Visibility::Dispatch);
  w.extra(1, Bytes(8), DType::Int64, Visibility::Dispatch);
  w.extra(2, Bytes(8), DType::Int64, Visibility::Dispatch);
  w.kernel();
  w.save_input(0, "_saved_query");
  w.save_input(1, "_saved_key");
  w.save_input(2, "_saved_value");
  w.save_output(0, "_saved_output");
  w.save_extra(0, "_saved_log_sumexp");
  w.save_extra(1, "_saved_philox_seed");
  w.save_extra(2, "_saved_philox_offset");
  if (!w.node().requires_grad) return;
  for (std::size_t i : {0U, 1U, 2U}) w.allocate_gradient(i);
  w.allocate_temporary(rows, DType::Float32, Visibility::Kernel);
  w.backward_kernel();
}

// The scalar result and total_weight; backward fills a dense N x V gradient (NLLLoss.cu).
void nll_loss(Writer& w) {
  w.output();
  w.extra(0, storage(Elements(1), w.out().dtype), w.out().dtype, Visibility::Dispatch);
  w.kernel();
  w.save_input(0, "_saved_self");
  w.save_input(1, "_saved_target");
  w.save_extra(0, "_saved_total_weight");
  w.gradient(0);
}

// values and indices; backward scatters into zeros.
void selection(Writer& w, const char* saved) {
  w.output(0);
  w.output(1);
  w.kernel();
  w.save_output(1, saved);
  w.gradient(0);
}

// zeros of the input's size, then the accumulated copy (derivatives.yaml: index).
void index(Writer& w) {
  w.output();
  w.kernel();
  w.save_input(1, "_saved_indices");
  if (!w.needs(0)) return;
  w.temporary(storage(w.in(0).shape.elements(), w.in(0).dtype), w.in(0).dtype);
  w.gradient(0);
}

// The input is cast to the result's dtype first (ReduceOps.cpp, impl_func_cum_ops).
void cumulative_sum(Writer& w) {
  w.output();
  if (w.in(0).dtype != w.out().dtype) {
    w.extra(0, storage(w.out().shape.elements(), w.out().dtype), w.out().dtype, Visibility::Kernel);
  }
  w.kernel();
}

void grouped_matmul(Writer& w) {
  w.output();
  w.kernel();
  w.save_input(0, "_saved_self", w.needs(1));
  w.save_input(1, "_saved_mat2", w.needs(0));
  w.save_input(2, "_saved_offs");
  w.gradient(0);
  w.gradient(1);
}

}  // namespace

void Recipe::clear() {
  slots.clear();
  forward.clear();
  backward.clear();
  saved.clear();
  saves_after_kernel = false;
  passes = 0;
  in_place = false;
}

void recipe_of(const Graph& graph, const Node& node, Recipe& recipe) {
  recipe.clear();
  Writer w(graph, node, recipe);
  switch (node.op) {
    case Op::Input:
      w.output();
      w.kernel();
      break;
    case Op::Embedding: embedding(w); break;
    case Op::Linear: linear(w); break;
    case Op::View:
    case Op::Cat:
      if (node.op == Op::Cat) {
        w.output();
        w.kernel();
      }
      if (node.gradient_copied) {
        w.gradient(0);
        break;
      }
      for (std::size_t i = 0; i < node.input_count; ++i) w.pass(i);  // Views of the incoming gradient.
      break;
    case Op::Slice:
    case Op::Split: w.gradient(0); break;  // Zero-filled full tensor; one cat.
    case Op::Contiguous:
      w.output();
      w.kernel();
      w.pass(0);
      break;
    case Op::Matmul:
      w.output();
      w.kernel();
      w.save_input(0, "_saved_self", w.needs(1));
      w.save_input(1, "_saved_mat2", w.needs(0));
      w.gradient(0);
      w.gradient(1);
      break;
    case Op::Add: add(w); break;
    case Op::Mul: multiply(w); break;
    case Op::Div: divide(w); break;
    case Op::AddScalar:
      w.output();
      w.kernel();
      w.pass(0);
      break;
    case Op::Cast:
    case Op::Neg:
    case Op::MulScalar:
    case Op::DivScalar:
    case Op::MeanLast: unary(w); break;
    case Op::SumDim:
      w.output();
      w.kernel();
      w.pass(0);  // An expanded view.
      break;
    case Op::PowScalar: power(w); break;
    case Op::Rsqrt: reciprocal_root(w); break;
    case Op::Tanh:
      unary(w);
      w.save_output(0, "_saved_result");
      break;
    case Op::Cos:
    case Op::Sin:
    case Op::Silu:
    case Op::Gelu:
      unary(w);
      w.save_input(0, "_saved_self");
      break;
    case Op::Softmax:
    case Op::LogSoftmax:
      unary(w);
      w.save_output(0, "_saved_result");
      break;
    case Op::LayerNorm: layer_norm(w); break;
    case Op::Dropout: dropout(w); break;
    case Op::Attention:
      if (node.attention == AttentionKernel::Flash) {
        flash_attention(w);
      } else {
        memory_efficient_attention(w);
      }
      break;
    case Op::NllLoss: nll_loss(w); break;
    case Op::TopK:
    case Op::Sort: selection(w, "_saved_indices"); break;
    case Op::Index: index(w); break;
    case Op::MaskedFill:
      unary(w);
      w.save_input(1, "_saved_mask");
      break;
    case Op::MaskedFillInPlace:
      recipe.in_place = true;
      w.kernel();
      w.save_input(1, "_saved_mask");
      w.gradient(0);
      break;
    case Op::GroupedMatmul: grouped_matmul(w); break;
    case Op::CumSum: cumulative_sum(w); break;
    case Op::Pad:
    case Op::Arange:
    case Op::FloorDivScalar:
    case Op::IndexPut:
    case Op::Sub:
    case Op::NotEqual:
    case Op::Equal:
    case Op::All:
    case Op::GreaterEqual:
    case Op::Histogram:
      w.output();
      w.kernel();
      break;  // Integers: no gradient.
  }
  if (!node.requires_grad) {
    recipe.saved.clear();
    recipe.backward.clear();
    recipe.passes = 0;
  }
}

std::int64_t forward_flops(const Graph& graph, const Node& node) {
  const auto elements = [&](TensorId id) { return graph.tensor(id).shape.elements().value(); };
  switch (node.op) {
    case Op::Linear:
    case Op::GroupedMatmul: {
      const Shape& x = graph.tensor(node.inputs[0]).shape;
      return checked_mul(2 * x.dims[x.rank - 1U], elements(node.outputs[0]));
    }
    case Op::Matmul: {
      const Shape& a = graph.tensor(node.inputs[0]).shape;
      return checked_mul(2 * a.dims[a.rank - 1U], elements(node.outputs[0]));
    }
    case Op::Attention: {
      // Two products; causal attention needs half of them, which is what the flash kernel does.
      const Shape& q = graph.tensor(node.inputs[0]).shape;
      return checked_mul(2 * q.dims[2], elements(node.inputs[0]));
    }
    case Op::View:
    case Op::Slice:
    case Op::Split:
    case Op::Input: return 0;
    default: return node.output_count == 0 ? 0 : elements(node.outputs[0]);
  }
}

Witness witness_of(Op) { return Witness::Read; }

std::string_view name(Witness witness) {
  switch (witness) {
    case Witness::Read: return "read";
    case Witness::Fake: return "fake";
    case Witness::Cuda: return "cuda";
  }
  return "?";
}

}  // namespace dsplan
