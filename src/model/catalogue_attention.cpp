// The catalogue: scaled_dot_product_attention, by kernel.
#include <array>

#include "model/catalogue_rules.h"

namespace dsplan::rules {
namespace {

constexpr std::int64_t round_to(std::int64_t value, std::int64_t multiple) {
  return round_up(Elements(value), multiple).value();
}

// What the kernels have in common: one output; log-sum-exp and two tensors of random state as by-products, saved with
// q, k, v and the output. `names` are the by-products' in PyTorch.
// `random_state` of 0 bytes: it is kept on the host.
void forward(Writer& w, Bytes log_sum_exp, Bytes random_state, const std::array<const char*, 3>& names) {
  const bool on_host = random_state == Bytes(0);
  w.output();
  w.extra(0, log_sum_exp, DType::Float32, Visibility::Dispatch);
  if (!on_host) w.extra(1, random_state, DType::Int64, Visibility::Dispatch);
  if (!on_host) w.extra(2, Bytes(8), DType::Int64, Visibility::Dispatch);
  w.kernel();
  w.save_input(0, "_saved_query");
  w.save_input(1, "_saved_key");
  w.save_input(2, "_saved_value");
  w.save_output(0, "_saved_output");
  for (std::size_t i = 0; i < (on_host ? 1 : names.size()); ++i) w.save_extra(i, names[i]);
}

// The kernel makes all three, asked for or not; nobody takes the gradient of what needs none.
void allocate_gradients(Writer& w) {
  for (std::size_t i : {0U, 1U, 2U}) {
    if (w.needs(i)) {
      w.allocate_gradient(i);
    } else {
      w.allocate_temporary(storage(w.in(i).shape.elements(), w.in(i).dtype), w.in(i).dtype, Visibility::Dispatch);
    }
  }
}

// q [B, Hq, S, D], k and v [B, Hkv, S, D]. Saved besides q, k, v and out: log-sum-exp and the random state, which
// since torch 2.7 is two tensors of 16 and 8 bytes on the GPU, before that two numbers on the host. Backward, in this order: dq, dk, dv, softmax_d,
// dq_accum, and with grouped heads dk and dv at all heads before they are summed (flash_api.cpp, mha_bwd).
void flash_attention(Writer& w) {
  const Shape& q = w.in(0).shape;
  const std::int64_t batch = q.dims[0];
  const std::int64_t heads = q.dims[1];
  const std::int64_t seq = q.dims[2];
  const std::int64_t head_dim = q.dims[3];
  const bool old = w.node().before_torch_2_7;
  forward(w, storage(Shape{batch, heads, seq}.elements(), DType::Float32), Bytes(old ? 0 : 16),
          {"_saved_logsumexp", "_saved_rng_state", "_saved_unused"});
  if (!w.node().requires_grad) return;
  allocate_gradients(w);
  const std::int64_t padded_seq = round_to(seq, 128);
  const std::int64_t padded_dim = round_to(head_dim, old || head_dim <= 128 ? 32 : 64);
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
  forward(w, rows, Bytes(8), {"_saved_log_sumexp", "_saved_philox_seed", "_saved_philox_offset"});
  if (!w.node().requires_grad) return;
  allocate_gradients(w);
  w.allocate_temporary(rows, DType::Float32, Visibility::Kernel);
  w.backward_kernel();
}

}  // namespace

void attention(Writer& w) {
  if (w.node().attention == AttentionKernel::Flash) {
    flash_attention(w);
  } else {
    memory_efficient_attention(w);
  }
}

}  // namespace dsplan::rules
