// Attention without a whole matrix of scores, as the flash and memory-efficient kernels do it; simple first: a team for
// each query, or for each key, that goes along the other side. Deterministic: every sum has one owner.
#pragma once

#include <cstdint>

#include "cuda/kernels.h"

namespace dsplan::cuda {

inline constexpr std::int64_t kMostWidth = 256;

// A tensor seen as [B, H, S, D], each dimension with its stride in elements.
struct Heads {
  unsigned char* data = nullptr;
  DType dtype = DType::Float32;
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t token = 0;
  std::int64_t column = 0;
};

struct Attention {
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t width = 0;
  std::int64_t values = 0;  // The width of values.
  double scale = 1;
  bool causal = true;
  Heads q, k, v, out;
  // Logarithms of the rows' sums, [B, H, lse_rows]; lse.data == nullptr: not kept.
  Strided lse;
  std::int64_t lse_rows = 0;
  // Added to the scores, seen at [B, H, S, bias_columns]; data == nullptr: there is none.
  Strided bias;
  std::int64_t bias_columns = 0;
  // Dropout. What decides it, and where flash keeps that in device memory; nullptr: nowhere.
  double p = 0;
  struct Random {
    std::uint64_t key = 0;
    std::int64_t first_sample = 0;
  };
  Random random;
  const std::int64_t* kept_random = nullptr;
  std::int64_t of_sample = 1;  // Elements of the weights that belong to one sample.
};

struct AttentionGradients {
  Heads incoming;
  Heads q, k, v;
  Heads accumulated;      // Flash: the queries' gradient once more, in the accumulating type; data == nullptr: none.
  bool expanded = false;  // k and v have the query's heads.
  Strided delta;          // [B, H, delta_rows]: sums of gradient times output.
  std::int64_t delta_rows = 0;
};

// kernels/attention_forward.cpp and attention_backward.cpp. In fp32, or fp64 for fp64.
void attention_forward(const Queue& queue, const Attention& attention);
void attention_backward(const Queue& queue, const Attention& attention, const AttentionGradients& gradients);
// Writes one integer into a tensor of them.
void put_integer(const Queue& queue, const dsplan_tensor& to, std::int64_t at, std::int64_t value);

}  // namespace dsplan::cuda
