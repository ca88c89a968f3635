// The catalogue: scaled_dot_product_attention, by kernel. q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv], then
// perhaps an additive mask. Only the memory-efficient kernel takes another Dv than D. Attention written as operators of
// its own (eager, math) is no row.
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "model/catalogue/rules.h"

namespace dsplan::rules {
namespace {

constexpr Version kRandomStateOnGpu{2, 7, 0};
constexpr Version kDividesKeys{2, 6, 0};  // Before nobody has looked.

constexpr std::int64_t round_to(std::int64_t value, std::int64_t multiple) {
  return round_up(Elements(value), multiple).value();
}

AttentionSizes sizes_of(const Writer& w) {
  const Shape& q = w.in(0).shape;
  const Shape& k = w.in(1).shape;
  return {q.dims[0], q.dims[1], k.dims[1], q.dims[2], k.dims[2], q.dims[3], w.in(2).shape.dims[3]};
}

struct ByProducts {
  Bytes log_sum_exp;
  Bytes seed;
  Bytes offset;
  std::array<const char*, 3> names;  // In PyTorch.
  bool random_first = false;         // Made before the output.
  bool sums_for_backward = true;     // The log-sum-exp is made where autograd will ask for it alone.
};

// In the order of their names, as the node lets go of them.
void save_operands(Writer& w) {
  if (w.has_in(3)) w.save_input(3, "_saved_attn_bias");
  w.save_input(1, "_saved_key");
  w.save_input(0, "_saved_query");
  w.save_input(2, "_saved_value");
}

// What the kernels save: q, k, v, mask, then the output, log-sum-exp and two tensors of random state. The kernel itself
// is the caller's to write.
void forward(Writer& w, const ByProducts& made) {
  save_operands(w);
  const bool random = made.seed > Bytes(0);
  const auto make_random = [&] {
    if (!random) return;
    w.extra(1, made.seed, DType::Int64, Visibility::Dispatch);
    w.extra(2, made.offset, DType::Int64, Visibility::Dispatch);
  };
  if (made.random_first) make_random();
  w.output();
  if (made.log_sum_exp > Bytes(0)) {
    w.extra(0, made.log_sum_exp, DType::Float32, Visibility::Dispatch, made.sums_for_backward);
  }
  if (!made.random_first) make_random();
  w.save_extra(0, made.names[0]);
  w.save_output(0, "_saved_output");
  if (!random) return;
  w.save_extra(2, made.names[2]);
  w.save_extra(1, made.names[1]);
}

// Its rows are aligned to 16 elements, of which the gradient is a part (_efficient_attention_backward).
void bias_gradient(Writer& w) {
  constexpr std::int64_t kRow = 16;
  if (!w.has_in(3) || !w.needs(3)) return;
  Shape shape = w.in(3).shape;
  if (shape.dims[3] % kRow == 0) return w.allocate_gradient(3);
  shape.dims[3] = round_to(shape.dims[3], kRow);
  w.allocate_gradient(3, storage(shape.elements(), w.in(3).dtype));
}

// Those of queries, keys and values are made, needed or not.
void gradients(Writer& w) {
  for (std::size_t i : {0U, 1U, 2U}) {
    if (w.needs(i)) {
      w.allocate_gradient(i);
    } else {
      w.allocate_temporary(w.bytes_in(i), w.in(i).dtype, Visibility::Dispatch);
    }
  }
}

Bytes per_row(const Writer& w, std::int64_t multiple) {
  const Shape& q = w.in(0).shape;
  return storage(Shape{q.dims[0], q.dims[1], round_to(q.dims[2], multiple)}.elements(), DType::Float32);
}

// Sums and outputs of the parts of keys come before the random state; with dropout there are none, and the random state
// is made twice, the second one kept (mha_fwd).
void flash_forward(Writer& w) {
  const bool newer = w.options().torch >= kRandomStateOnGpu;
  const bool dropout = w.node().number > 0;
  const FlashParts parts =
      !dropout && w.options().torch >= kDividesKeys ? flash_parts(sizes_of(w), w.options().device) : FlashParts{};
  save_operands(w);
  w.output();
  w.extra(0, per_row(w, 1), DType::Float32, Visibility::Dispatch);
  std::vector<std::uint8_t> dropped;
  if (parts.output > Bytes(0)) {
    dropped.push_back(w.forward_temporary(parts.log_sum_exp, DType::Float32, Visibility::Kernel));
    dropped.push_back(w.forward_temporary(parts.output, DType::Float32, Visibility::Kernel));
  }
  if (newer) {
    if (dropout) dropped.push_back(w.forward_temporary(Bytes(16), DType::Int64, Visibility::Kernel));
    if (!dropout) w.extra(1, Bytes(16), DType::Int64, Visibility::Dispatch);
    w.extra(2, Bytes(8), DType::Int64, Visibility::Dispatch);
    if (dropout) w.extra(1, Bytes(16), DType::Int64, Visibility::Dispatch);
  }
  w.kernel();
  for (const std::uint8_t one : dropped) w.forward_drop(one);
  w.save_extra(0, "_saved_logsumexp");
  w.save_output(0, "_saved_output");
  if (!newer) return;
  w.save_extra(1, "_saved_rng_state");
  w.save_extra(2, "_saved_unused");
}

// Saved besides q, k, v and out: log-sum-exp and the random state, which since torch 2.7 is two tensors of 16 and 8
// bytes on the GPU and before lay on the host. Backward, in this order: copies of gradient and output where they do not
// lie token by token; dq, dk, dv, softmax_d, dq_accum, and with grouped heads dk and dv at all heads before they are
// summed (flash_api.cpp, mha_bwd). The head dimension of dq_accum was always rounded to 32 before that version, since
// then to 64 above 128.
void flash_attention(Writer& w) {
  flash_forward(w);
  if (!w.node().requires_grad) return;
  const AttentionSizes sizes = sizes_of(w);
  const DType dtype = w.in(0).dtype;
  std::vector<std::uint8_t> made;
  const auto make = [&](Bytes bytes, DType of) { made.push_back(w.allocate_temporary(bytes, of, Visibility::Kernel)); };
  // The gradient of a part of the output is a whole output, which lies head by head as well.
  if (w.node().by_head && w.node().padding > 0) make(w.bytes_out(), dtype);
  if (w.node().by_head) make(w.bytes_out(), dtype);
  gradients(w);
  const bool newer = w.options().torch >= kRandomStateOnGpu;
  const std::int64_t rows = round_to(sizes.queries, 128);
  const std::int64_t width = round_to(sizes.width, newer && sizes.width > 128 ? 64 : 32);
  make(storage(Shape{sizes.batch, sizes.heads, rows}.elements(), DType::Float32), DType::Float32);
  make(storage(Shape{sizes.batch, rows, sizes.heads, width}.elements(), DType::Float32), DType::Float32);
  if (sizes.kv_heads != sizes.heads) {
    const Bytes expanded = storage(Shape{sizes.batch, sizes.heads, sizes.keys, sizes.width}.elements(), dtype);
    make(expanded, dtype);
    make(expanded, dtype);
  }
  w.backward_kernel();
  std::for_each(made.rbegin(), made.rend(), [&](std::uint8_t one) { w.drop(one); });
}

// The kernel of the forward, with what it takes while it runs, if anything.
void forward_kernel(Writer& w, Bytes taken, DType dtype) {
  std::optional<std::uint8_t> made;
  if (taken > Bytes(0)) made = w.forward_temporary(taken, dtype, Visibility::Kernel);
  w.kernel();
  if (made) w.forward_drop(*made);
}

// Log-sum-exp padded to 32 rows; seed and offset lie on the host unless a CUDA graph is captured. Backward's delta,
// the sum of gradient times output by row, is the kernel's work in half precision, else composed of a product, a sum
// and its copy head by head (aten/src/ATen/native/transformers/cuda/attention.cu, attention_backward.cu).
void memory_efficient_attention(Writer& w) {
  // Without a gradient the kernel is not asked for it.
  const Bytes kept = w.node().requires_grad ? per_row(w, 32) : Bytes(0);
  const Bytes random(w.options().fake ? 8 : 0);
  forward(w, {kept, random, random, {"_saved_log_sumexp", "_saved_philox_seed", "_saved_philox_offset"}});
  const AttentionSizes sizes = sizes_of(w);
  const bool half = w.in(0).dtype == DType::Float16 || w.in(0).dtype == DType::BFloat16;
  const Bytes sums = efficient_forward_workspace(sizes, half, w.options().device);
  forward_kernel(w, sums, DType::Float32);
  if (!w.node().requires_grad) return;
  gradients(w);
  bias_gradient(w);
  if (half) {
    w.allocate_temporary(per_row(w, 1), DType::Float32, Visibility::Kernel);
  } else {
    const std::uint8_t product = w.temporary(w.bytes_out(), DType::Float32, Visibility::Kernel);
    const std::uint8_t sum = w.temporary(per_row(w, 1), DType::Float32, Visibility::Kernel);
    const bool copied = sizes.heads > 1 && sizes.queries > 1;
    if (copied) {
      w.temporary(per_row(w, 1), DType::Float32, Visibility::Kernel);
      w.drop(sum);
    }
    w.drop(product);
  }
  const Bytes workspace = efficient_backward_workspace(sizes, half, w.options().device);
  if (workspace > Bytes(0)) w.allocate_temporary(workspace, DType::UInt8, Visibility::Kernel);
  w.backward_kernel();
}

// Seed and offset come first, log-sum-exp has a number for each row (aten/src/ATen/native/cudnn/MHA.cpp).
void cudnn_attention(Writer& w) {
  const Bytes kept = w.node().requires_grad || w.options().fake ? per_row(w, 1) : Bytes(0);
  forward(w, {kept,
              Bytes(8),
              Bytes(8),
              {"_saved_logsumexp", "_saved_philox_seed", "_saved_philox_offset"},
              true,
              !w.options().fake});
  const AttentionSizes sizes = sizes_of(w);
  const bool dropout = w.node().number > 0;
  const Bytes workspace = cudnn_forward_workspace(sizes, dropout, w.options().device);
  forward_kernel(w, workspace, DType::UInt8);
  if (!w.node().requires_grad) return;
  gradients(w);
  w.allocate_temporary(cudnn_backward_workspace(sizes, dropout, w.options().device), DType::UInt8, Visibility::Kernel);
  w.backward_kernel();
}

}  // namespace

void attention(Writer& w) {
  switch (w.node().attention) {
    case AttentionKernel::Flash: return flash_attention(w);
    case AttentionKernel::CuDnn: return cudnn_attention(w);
    case AttentionKernel::MemoryEfficient:
    case AttentionKernel::None: return memory_efficient_attention(w);
  }
}

}  // namespace dsplan::rules
