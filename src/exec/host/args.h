// What a kernel of a graph node is called with, by name; and the kernels, by family. For src/exec/host/*.cpp only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/program.h"
#include "exec/attributes.h"
#include "exec/backend.h"
#include "exec/host/strided.h"
#include "exec/operators/views.h"

namespace dsplan::exec::host {

// The by-product that is a clone of input 0 (exec/operators/maker.h).
inline constexpr std::size_t kClone = 15;

class Args {
 public:
  explicit Args(const dsplan_launch& call);

  [[nodiscard]] Op op() const { return static_cast<Op>(call_.op); }
  [[nodiscard]] std::uint32_t part() const { return call_.part; }
  [[nodiscard]] bool backward() const { return static_cast<Body>(call_.body) == Body::Backward; }
  [[nodiscard]] std::int64_t integer(std::size_t at) const { return call_.integers[at]; }
  [[nodiscard]] bool needs(std::size_t input) const { return (integer(DSPLAN_NEEDS) >> input & 1) != 0; }
  [[nodiscard]] bool flag(std::int64_t bit) const { return (integer(DSPLAN_FLAGS) & bit) != 0; }
  [[nodiscard]] double number() const { return call_.numbers[DSPLAN_NUMBER]; }
  [[nodiscard]] const dsplan_random& random() const { return call_.random; }
  [[nodiscard]] const dsplan_launch& call() const { return call_; }

  // Forward.
  [[nodiscard]] bool has_in(std::size_t i) const { return i < call_.input_count && call_.inputs[i].data != nullptr; }
  [[nodiscard]] const dsplan_tensor& in(std::size_t i) const;
  // Backward.
  [[nodiscard]] bool has_gradient(std::size_t i) const { return has_in(i); }
  [[nodiscard]] const dsplan_tensor& gradient_of(std::size_t i = 0) const { return in(i); }
  [[nodiscard]] const dsplan_tensor& saved_in(std::size_t i) const { return saved(0, i); }
  [[nodiscard]] const dsplan_tensor& saved_out(std::size_t i) const { return saved(1, i); }
  [[nodiscard]] const dsplan_tensor& saved_extra(std::size_t i) const { return saved(2, i); }
  [[nodiscard]] bool keeps_in(std::size_t i) const { return saved_at(0, i).has_value(); }

  // Made so far, and not dropped.
  [[nodiscard]] const dsplan_tensor* find(SlotKind kind, std::size_t index) const;
  [[nodiscard]] const dsplan_tensor& made(SlotKind kind, std::size_t index) const;
  [[nodiscard]] const dsplan_tensor& output(std::size_t i = 0) const { return made(SlotKind::Output, i); }
  [[nodiscard]] const dsplan_tensor& extra(std::size_t i) const { return made(SlotKind::Extra, i); }
  [[nodiscard]] const dsplan_tensor& gradient(std::size_t i) const { return made(SlotKind::Gradient, i); }
  [[nodiscard]] const dsplan_tensor& temporary(std::size_t i) const { return made(SlotKind::Temporary, i); }
  // What was made last: operators of one tensor for each kernel write that.
  [[nodiscard]] const dsplan_tensor& latest() const;
  // The slot of the j-th, as DSPLAN_SLOT.
  [[nodiscard]] std::int64_t slot(std::size_t j) const { return integer(slots_ + j); }
  [[nodiscard]] std::size_t made_count() const { return call_.made_count; }

  // The encoded steps of a view; nullptr where there are none.
  [[nodiscard]] const std::int64_t* steps() const { return call_.integers + steps_; }

 private:
  [[nodiscard]] std::optional<std::size_t> saved_at(std::int64_t kind, std::size_t index) const;
  [[nodiscard]] const dsplan_tensor& saved(std::int64_t kind, std::size_t index) const;

  const dsplan_launch& call_;
  std::size_t slots_ = 0;  // Places among the integers.
  std::size_t steps_ = 0;
};

// Each runs the kernel, or says false: not of that family.
bool run_elementwise(const Args& args);           // elementwise.cpp
bool run_elementwise_backward(const Args& args);  // elementwise_backward.cpp
bool run_moves(const Args& args);                 // moves.cpp: copies, joins, reductions, integers
bool run_flags(const Args& args);                 // flags.cpp
bool run_choices(const Args& args);               // choices.cpp: bounds, conditions, masks
bool run_picks(const Args& args);                 // picks.cpp: what picks, places, orders and counts elements
bool run_groups(const Args& args);                // groups.cpp: products of groups of rows
bool run_products(const Args& args);              // products.cpp
bool run_attention(const Args& args);             // attention.cpp
bool run_rows(const Args& args);                  // rows.cpp: softmax, norms, losses
bool run_lookups(const Args& args);               // lookups.cpp
bool run_convolution(const Args& args);           // convolution.cpp
bool run_parallel(const Args& args);              // parallel.cpp: what tensor parallelism adds
bool run_flat(const dsplan_launch& call);         // flat.cpp: bodies that work on ranges

// What a sum over one dimension is written into, with that dimension beside the others.
[[nodiscard]] dsplan_tensor summed_beside(const Args& args);
// An index along one dimension, not the first ones.
[[nodiscard]] inline bool picks_along(const Args& args) { return args.integer(DSPLAN_AXIS) > 0; }
// Of an arange.
[[nodiscard]] inline double step_of_range(const Args& args) {
  const double own = args.call().numbers[DSPLAN_SCALE];
  return own == 0 ? 1 : own;
}
// Of attention's scores over heads of so many columns.
[[nodiscard]] double attention_scale(const Args& args, std::int64_t width);
// Input 0 as it was, or the clone of what was written over.
[[nodiscard]] inline const dsplan_tensor& saved_first(const Args& args) {
  return args.keeps_in(0) ? args.saved_in(0) : args.saved_extra(kClone);
}
// What the bounds of a clamp are: the lower one of both is the upper one's negative.
struct Bounds {
  double low = 0;
  double high = 0;
  bool lower_alone = false;
  bool both = false;
};
[[nodiscard]] Bounds bounds_of(const Args& args);
// A masked_fill that fills with a number, and joins no flags.
[[nodiscard]] bool fills_masked(const Args& args);
// gradient[i] += or = what was broadcast, summed: `to` has the dimensions of the input.
void sum_to(const dsplan_tensor& from, const dsplan_tensor& to, double scale = 1);
// Element by element in logical order, whatever the dimensions of both: as many elements.
void copy_in_order(const dsplan_tensor& from, const dsplan_tensor& to);

// "gelu backward, kernel 1": for messages.
[[nodiscard]] std::string called(const dsplan_launch& call);

// Tensors of a launch through views.
[[nodiscard]] Layout layout_of(const dsplan_tensor& tensor);
// The same memory in another layout, `offset` elements further on.
[[nodiscard]] dsplan_tensor with_layout(const dsplan_tensor& tensor, const Layout& layout, std::int64_t offset);
// The steps of a view, as the launch encodes them.
[[nodiscard]] std::vector<ViewStep> steps_of(const Args& args);
// The part of `whole` that has the dimensions of `of`: what stands first in each dimension.
[[nodiscard]] dsplan_tensor corner(dsplan_tensor whole, const dsplan_tensor& of);

// Backward of flash attention: so many copies, of gradient and output, stand before its other temporaries.
[[nodiscard]] inline std::size_t copies_by_token(const Args& args) {
  if (!args.flag(DSPLAN_FLAG_BY_HEAD)) return 0;
  return args.integer(DSPLAN_PADDING) > 0 ? 2 : 1;
}

// Backward of a softmax: the gradient in the result's dtype, where it is cast; nullptr where it is not. Beside it lies
// the product that a GPU's kernel reads, except for the logarithm.
[[nodiscard]] inline const dsplan_tensor* widened(const Args& args) {
  if (args.op() == Op::Softmax && args.find(SlotKind::Temporary, 1) == nullptr) return nullptr;
  return args.find(SlotKind::Temporary, 0);
}

}  // namespace dsplan::exec::host
