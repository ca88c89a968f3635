// The rules of the catalogue: what each kind of operator makes, saves and drops. catalogue.cpp says which operator
// follows which; the source of each rule is stated where it is defined. For src/model/catalogue*.cpp only.
#pragma once

#include "model/catalogue/writer.h"

namespace dsplan::rules {

// elementwise.cpp
void without_gradient(Writer& w);
void unary(Writer& w);
void mean(Writer& w);
// Node::number of Op::Gelu where it is a torch.autograd.Function of Python's own (transformers: bloom, GeLUFunction).
inline constexpr double kGeluFunction = 2;
void gelu(Writer& w);
void activation_in_place(Writer& w);
void passing(Writer& w);
void add(Writer& w);
void subtract(Writer& w);
void multiply(Writer& w);
void divide(Writer& w);
void extremum(Writer& w);
void choose(Writer& w);
void masked_fill(Writer& w);
void masked_fill_in_place(Writer& w);
void prelu(Writer& w);
void multiply_and_add(Writer& w);
void power(Writer& w);
void clamp(Writer& w);
void dropout(Writer& w);

// reductions.cpp
void sum_dim(Writer& w);
void extreme_value(Writer& w);
void largest(Writer& w);
void norm(Writer& w);
void deviation(Writer& w);
void variance(Writer& w);
void product(Writer& w);
void log_sum_exp(Writer& w);
void cumulative_sum(Writer& w);
void cumulative_product(Writer& w);
void softmax(Writer& w);

// indexing.cpp
void view(Writer& w);
void cat(Writer& w);
void part(Writer& w);
void copy_into(Writer& w);
void add_into(Writer& w);
void polar(Writer& w);
void complex_multiply(Writer& w);
void custom(Writer& w);
void sparse_mixer(Writer& w);
void sort(Writer& w);
void selection(Writer& w);
void index(Writer& w);
void index_select(Writer& w);
void index_add(Writer& w);
void nonzero(Writer& w);
void gather(Writer& w);
void scatter(Writer& w);
void scatter_add(Writer& w);
void masked_rows(Writer& w);
void masked_put(Writer& w);
void masked_scatter(Writer& w);
void stack(Writer& w);
void detach(Writer& w);
void repeat_interleave(Writer& w);
void max_pool(Writer& w);
void grid_sample(Writer& w);
void average_pool(Writer& w);

// products.cpp
// Node::number of a Linear over a packed weight: the dtype that backward unpacks it to, and this where its scales are
// quantized as well. Every other Linear but those below has 0 there.
inline constexpr double kNestedScales = 100;
inline constexpr double kEightBits = 200;  // Of a Linear over an int8 weight.
inline constexpr double kGaps = -1;        // Of DeepSpeed's linear over rows that lie with gaps between them.
inline constexpr double kGapsBack = -2;    // And whose gradient comes by column.
void linear(Writer& w);
void matmul(Writer& w);
void stacked_product(Writer& w);
void grouped_matmul(Writer& w);
void embedding(Writer& w);
void convolution(Writer& w);
void unfold(Writer& w);
void solve_triangular(Writer& w);

// norms.cpp
void layer_norm(Writer& w);
void group_norm(Writer& w);
void batch_norm(Writer& w);
void rms_norm(Writer& w);
void liger_rms_norm(Writer& w);
void liger_rotary(Writer& w);
void liger_silu_mul(Writer& w);

// adapters.cpp
void adapted_linear(Writer& w);
void adapted_gated(Writer& w);

// losses.cpp
void nll_loss(Writer& w);
void l1_loss(Writer& w);
void pair_loss(Writer& w);
void binary_cross_entropy(Writer& w);
void binary_cross_entropy_with_logits(Writer& w);
void kl_div(Writer& w);
void fused_linear_cross_entropy(Writer& w);
void chunked_log_prob(Writer& w);
void cut_cross_entropy(Writer& w);

// parallel.cpp
void all_reduce(Writer& w);
void copy_to_parallel(Writer& w);
void parallel_cross_entropy(Writer& w);

// attention.cpp
void attention(Writer& w);

}  // namespace dsplan::rules
