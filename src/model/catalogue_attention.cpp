// The catalogue: scaled_dot_product_attention, by kernel. q [B, Hq, Sq, D], k and v [B, Hkv, Sk, D], then perhaps an
// additive mask. Attention written as operators of its own (eager, math) is no row.
#include <array>
#include <optional>

#include "model/catalogue_rules.h"

namespace dsplan::rules {
namespace {

constexpr Version kRandomStateOnGpu{2, 7, 0};

constexpr std::int64_t round_to(std::int64_t value, std::int64_t multiple) {
  return round_up(Elements(value), multiple).value();
}

struct ByProducts {
  Bytes log_sum_exp;
  Bytes seed;
  Bytes offset;
  std::array<const char*, 3> names;  // In PyTorch.
  bool seed_twice = false;           // The first is dropped for another.
};

// What the kernels have in common: one output; log-sum-exp and two tensors of random state as by-products, saved with
// q, k, v, mask and output.
void forward(Writer& w, const ByProducts& made) {
  w.save_input(0, "_saved_query");
  w.save_input(1, "_saved_key");
  w.save_input(2, "_saved_value");
  if (w.has_in(3)) w.save_input(3, "_saved_attn_bias");
  w.output();
  if (made.log_sum_exp > Bytes(0)) w.extra(0, made.log_sum_exp, DType::Float32, Visibility::Dispatch);
  const bool on_gpu = made.seed > Bytes(0);
  if (on_gpu) {
    w.extra(1, made.seed, DType::Int64, Visibility::Dispatch);
    w.extra(2, made.offset, DType::Int64, Visibility::Dispatch);
  }
  std::optional<std::uint8_t> dropped;
  if (made.seed_twice) dropped = w.forward_temporary(made.seed, DType::Int64, Visibility::Kernel);
  w.kernel();
  if (dropped) w.forward_drop(*dropped);
  w.save_output(0, "_saved_output");
  for (std::size_t i = 0; i < (on_gpu ? 3U : 1U); ++i) w.save_extra(i, made.names[i]);
}

// All three are made, needed or not.
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

// Saved besides q, k, v and out: log-sum-exp and the random state, which since torch 2.7 is two tensors of 16 and 8
// bytes on the GPU and before lay on the host; with dropout the first is made twice (mha_fwd). Backward, in this order:
// dq, dk, dv, softmax_d, dq_accum, and with grouped heads dk and dv at all heads before they are summed (flash_api.cpp,
// mha_bwd). The head dimension of dq_accum was always rounded to 32 before that version, since then to 64 above 128.
void flash_attention(Writer& w) {
  const Shape& q = w.in(0).shape;
  const std::int64_t heads = q.dims[1];
  const bool newer = w.torch() >= kRandomStateOnGpu;
  forward(w, {per_row(w, 1),
              Bytes(newer ? 16 : 0),
              Bytes(newer ? 8 : 0),
              {"_saved_logsumexp", "_saved_rng_state", "_saved_unused"},
              newer && w.node().number > 0});
  if (!w.node().requires_grad) return;
  gradients(w);
  const std::int64_t padded_seq = round_to(q.dims[2], 128);
  const std::int64_t padded_dim = round_to(q.dims[3], newer && q.dims[3] > 128 ? 64 : 32);
  w.allocate_temporary(storage(Shape{q.dims[0], heads, padded_seq}.elements(), DType::Float32), DType::Float32,
                       Visibility::Kernel);
  w.allocate_temporary(storage(Shape{q.dims[0], padded_seq, heads, padded_dim}.elements(), DType::Float32),
                       DType::Float32, Visibility::Kernel);
  const Shape& k = w.in(1).shape;
  if (k.dims[1] != heads) {
    const Bytes expanded = storage(Shape{k.dims[0], heads, k.dims[2], k.dims[3]}.elements(), w.in(1).dtype);
    w.allocate_temporary(expanded, w.in(1).dtype, Visibility::Kernel);
    w.allocate_temporary(expanded, w.in(1).dtype, Visibility::Kernel);
  }
  w.backward_kernel();
}

// Log-sum-exp padded to 32 rows, seed and offset on the GPU; backward's delta is like it
// (aten/src/ATen/native/transformers/cuda/attention.cu, attention_backward.cu).
void memory_efficient_attention(Writer& w) {
  const Bytes rows = per_row(w, 32);
  // Without a gradient the kernel is not asked for it.
  const Bytes kept = w.node().requires_grad ? rows : Bytes(0);
  forward(w, {kept, Bytes(8), Bytes(8), {"_saved_log_sumexp", "_saved_philox_seed", "_saved_philox_offset"}});
  if (!w.node().requires_grad) return;
  gradients(w);
  w.allocate_temporary(rows, DType::Float32, Visibility::Kernel);
  w.backward_kernel();
}

// Log-sum-exp per row, seed and offset on the GPU (aten/src/ATen/native/cudnn/MHA.cpp). cuDNN's own workspace is known
// to the GPU alone.
void cudnn_attention(Writer& w) {
  forward(w, {per_row(w, 1), Bytes(8), Bytes(8), {"_saved_logsumexp", "_saved_philox_seed", "_saved_philox_offset"}});
  w.unknown("cuDNN's workspace of attention");
  if (!w.node().requires_grad) return;
  gradients(w);
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
