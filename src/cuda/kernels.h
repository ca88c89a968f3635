// The kernels of the device by what they compute, and the families that say which of them an operator takes. Tensors
// are what the launch gave; the functions check shapes on the host and enqueue. They refuse with exec::host::Fault.
#pragma once

#include <array>
#include <cstdint>

#include "cuda/functions.h"
#include "cuda/queue.h"
#include "exec/backend.h"
#include "exec/host/args.h"
#include "exec/host/picked_rows.h"

namespace dsplan::cuda {

using exec::host::Args;
using exec::host::count_of;
using exec::host::dims_of;
using exec::host::dtype_of;
using exec::host::expect;
using exec::host::expect_count;
using exec::host::expect_dims;
using exec::host::last_of;
using exec::host::Strided;
using exec::host::strided;

// In what a kernel computes. Of a tensor: fp64 in fp64, every other float in fp32, integers as such.
enum class Arithmetic : std::uint8_t { Single, Double, Integer };
[[nodiscard]] inline Arithmetic arithmetic_of(DType dtype) {
  return dtype == DType::Float64 ? Arithmetic::Double : Arithmetic::Single;
}
[[nodiscard]] inline Arithmetic any_arithmetic_of(DType dtype) {
  return is_floating(dtype) ? arithmetic_of(dtype) : Arithmetic::Integer;
}

// kernels/map.cpp. Operands broadcast to `out`, which may be one of them; or, in order, have as many elements in other
// dimensions.
struct Elementwise {
  Function function = Function::Copy;
  std::array<const dsplan_tensor*, 3> in{};
  double n = 0;
  double m = 0;
  bool in_order = false;
};
void map(const Queue& queue, Arithmetic in, const dsplan_tensor& out, const Elementwise& what);
// Element by element in logical order, whatever the dimensions of both: as many elements.
void copy_in_order(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& to);
void fill(const Queue& queue, const dsplan_tensor& to, double number);
// What dropout keeps, as flags.
void dropout_mask(const Queue& queue, const dsplan_tensor& mask, const dsplan_random& random, double p);
// `to` has the dimensions of the input that was broadcast: what it stands for is summed, in a fixed order, in fp64.
void sum_to(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& to, double scale = 1);
// Each row of `from` (of count(from) / count(to) elements): 1 where all of it is set.
void all_of_rows(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& to);
void cumulative(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& to);

// kernels/rows.cpp.
void softmax(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& to, bool log);
void softmax_backward(const Queue& queue, const dsplan_tensor& gradient, const dsplan_tensor& result,
                      const dsplan_tensor& to, bool log);
struct Norm {
  dsplan_tensor x{};
  dsplan_tensor weight{};  // data == nullptr: there is none; likewise bias.
  dsplan_tensor bias{};
  dsplan_tensor mean{};
  dsplan_tensor scale{};
  double epsilon = 0;
};
void layer_norm(const Queue& queue, const Norm& norm, const dsplan_tensor& out);
void layer_norm_input(const Queue& queue, const Norm& norm, const dsplan_tensor& gradient, const dsplan_tensor& to);
// The gradient of the weight, or of the bias.
void layer_norm_columns(const Queue& queue, const Norm& norm, const dsplan_tensor& gradient, const dsplan_tensor& to,
                        bool weighted);
// A label that is neither -100 nor a class makes the loss no number.
void nll_loss(const Queue& queue, const dsplan_tensor& rows, const dsplan_tensor& labels, bool mean,
              const dsplan_tensor& loss, const dsplan_tensor& counted);
void nll_loss_backward(const Queue& queue, const dsplan_tensor& gradient, const dsplan_tensor& labels,
                       const dsplan_tensor& counted, bool mean, const dsplan_tensor& to);

// kernels/lookups.cpp. What an index outside the table reads is no number; its gradient goes nowhere.
void embedding(const Queue& queue, const dsplan_tensor& table, const dsplan_tensor& ids, const dsplan_tensor& out);
void sort_indices(const Queue& queue, const dsplan_tensor& ids, const dsplan_tensor& sorted,
                  const dsplan_tensor& origins);
// Sums in the order of the places; `sorted` and `origins` where the indices were sorted, else nullptr.
void embedding_backward(const Queue& queue, const dsplan_tensor& gradient, const dsplan_tensor& ids,
                        const dsplan_tensor* sorted, const dsplan_tensor* origins, const dsplan_tensor& to);

// kernels/picks.cpp: as the host's (exec/host/picks.cpp), but that indices outside their dimension pick nothing.
void index_rows(const Queue& queue, const dsplan_tensor& from, const exec::host::PickedRows& rows,
                const dsplan_tensor& out);
void index_backward(const Queue& queue, const dsplan_tensor& gradient, const exec::host::PickedRows& rows,
                    const dsplan_tensor& to);
void index_along(const Queue& queue,
                 const Args& args);  // Forward and backward of a line of indices along one dimension.
// Along the last dimension of `whole`: what stands at the places, put into `to` in their order; or `from` at the
// places.
void gather(const Queue& queue, const dsplan_tensor& whole, const dsplan_tensor& places, const dsplan_tensor& to);
void put(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& places, const dsplan_tensor& whole,
         bool add);
void put_number(const Queue& queue, double number, const dsplan_tensor& places, const dsplan_tensor& whole);
void largest(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& values, const dsplan_tensor& places);
void histogram(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& counts);
void repeat_interleave(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& to);

// kernels/convolution.cpp: of patches that lie beside each other. `bias`, `to` and `to_bias` may be nullptr.
void convolution(const Queue& queue, const dsplan_tensor& picture, const dsplan_tensor& weight,
                 const dsplan_tensor* bias, const dsplan_tensor& out);
void convolution_backward(const Queue& queue, const dsplan_tensor& picture, const dsplan_tensor& weight,
                          const dsplan_tensor& gradient, const dsplan_tensor* to, const dsplan_tensor* to_bias);

// kernels/groups.cpp: rows of `x` times the weight of their group, which ends where its offset says.
struct Groups {
  dsplan_tensor x{};
  dsplan_tensor weights{};
  dsplan_tensor offsets{};
  dsplan_tensor out{};
  bool direct = false;  // Weights lie as [in, out].
};
void multiply_groups(const Queue& queue, const Groups& groups);
void group_weights_gradient(const Queue& queue, const Groups& groups);  // Of `out`'s gradient, into `weights`.
void group_rows_gradient(const Queue& queue, const Groups& groups);     // Likewise, into `x`.
// Pairs of the last dimension are complex numbers.
void multiply_pairs(const Queue& queue, const dsplan_tensor& a, const dsplan_tensor& b, const dsplan_tensor& out);
void conjugate_pairs(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& to);
void polar_pairs(const Queue& queue, const dsplan_tensor& angles, const dsplan_tensor& to);

// kernels/parallel.cpp: what tensor parallelism adds. `rows` are contiguous fp32, a row of `words` for each of
// `tokens`.
struct WordRows {
  float* rows = nullptr;
  std::int64_t tokens = 0;
  std::int64_t words = 0;
};
// Each flag of `mask` stands for as many elements of `from` and `to`, which may be one: 0 where it is set.
void zero_rows(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& mask, const dsplan_tensor& to);
// The largest of each row, the first of those that are equal, and where it stands.
void largest_of_rows(const Queue& queue, const WordRows& rows, float* values, std::int64_t* places);
// Each row and the number that `by` has for it: `rows = function(rows, by)`.
void with_rows(const Queue& queue, Function function, const WordRows& rows, const dsplan_tensor& by);
// rows = exp(rows), and their sums.
void exponentials(const Queue& queue, const WordRows& rows, float* sums);
// One element of each row, at `places`: into `picked`, less `update` first where there is one.
void pick(const Queue& queue, const WordRows& rows, const std::int64_t* places, const float* update, float* picked);

// kernels/flat.cpp.
void square_sum(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& to);
void overflow_scan(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& verdict);
void normal_values(const Queue& queue, const dsplan_tensor& to, double deviation, const dsplan_random& random);
void update(const Queue& queue, const dsplan_launch& call);
// `combine` of the table: pieces of several ranks become one, in their order. At most kMostPieces.
inline constexpr std::uint32_t kMostPieces = 64;
[[nodiscard]] bool combine(const Queue& queue, dsplan_reduction how, DType dtype, void* target,
                           const void* const* pieces, std::uint32_t piece_count, std::int64_t elements);

// Each enqueues the operator's kernel, or says false: not of that family.
bool run_elementwise(const Args& args, const Queue& queue);           // elementwise.cpp
bool run_elementwise_backward(const Args& args, const Queue& queue);  // elementwise_backward.cpp
bool run_moves(const Args& args, const Queue& queue);                 // moves.cpp: copies, joins, reductions
bool run_flags(const Args& args, const Queue& queue);                 // flags.cpp
bool run_choices(const Args& args, const Queue& queue);               // choices.cpp: conditions, masks, bounds
bool run_picks(const Args& args, const Queue& queue);                 // picks.cpp: what picks, orders and counts
bool run_rows(const Args& args, const Queue& queue);                  // rows.cpp: softmax, norms, losses, lookups
bool run_products(const Args& args, const Queue& queue);              // products.cpp
bool run_attention(const Args& args, const Queue& queue);             // attention.cpp
bool run_parallel(const Args& args, const Queue& queue);              // parallel.cpp: what tensor parallelism adds
bool run_flat(const dsplan_launch& call, const Queue& queue);         // flat.cpp: bodies that work on ranges

}  // namespace dsplan::cuda
