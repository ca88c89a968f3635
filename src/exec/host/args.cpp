#include "exec/host/args.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/format.h"
#include "core/program.h"

namespace dsplan::exec::host {

Args::Args(const dsplan_launch& call) : call_(call) {
  expect(call.integer_count >= DSPLAN_CODES && call.number_count >= 1, "a node's attributes are missing");
  const auto saved = static_cast<std::size_t>(integer(DSPLAN_SAVED));
  const auto forward = static_cast<std::size_t>(integer(DSPLAN_FORWARD_MADE));
  const auto backward_made = static_cast<std::size_t>(integer(DSPLAN_BACKWARD_MADE));
  slots_ = DSPLAN_CODES + saved + (backward() ? forward : 0);
  steps_ = DSPLAN_CODES + saved + forward + backward_made;
  expect(call.made_count <= (backward() ? backward_made : forward), "more is made than the operator makes");
}

const dsplan_tensor& Args::in(std::size_t i) const {
  if (!has_in(i)) throw Fault{"input " + std::to_string(i) + " is missing"};
  return call_.inputs[i];
}

std::optional<std::size_t> Args::saved_at(std::int64_t kind, std::size_t index) const {
  const auto count = static_cast<std::size_t>(integer(DSPLAN_SAVED));
  for (std::size_t k = 0; k < count; ++k) {
    if (integer(DSPLAN_CODES + k) != DSPLAN_KEPT(kind, static_cast<std::int64_t>(index))) continue;
    return static_cast<std::size_t>(integer(DSPLAN_OUTPUTS)) + k;
  }
  return std::nullopt;
}

const dsplan_tensor& Args::saved(std::int64_t kind, std::size_t index) const {
  const std::optional<std::size_t> at = saved_at(kind, index);
  expect(at.has_value(), "the forward keeps no such tensor");
  return in(*at);
}

const dsplan_tensor* Args::find(SlotKind kind, std::size_t index) const {
  const std::int64_t code = DSPLAN_SLOT(static_cast<std::int64_t>(kind), static_cast<std::int64_t>(index));
  for (std::size_t j = 0; j < call_.made_count; ++j) {
    if (slot(j) == code) return call_.made[j].data == nullptr ? nullptr : &call_.made[j];
  }
  return nullptr;
}

const dsplan_tensor& Args::made(SlotKind kind, std::size_t index) const {
  const dsplan_tensor* found = find(kind, index);
  expect(found != nullptr, "a tensor that the kernel writes is missing");
  return *found;
}

const dsplan_tensor& Args::latest() const {
  expect(call_.made_count > 0 && call_.made[call_.made_count - 1].data != nullptr, "the kernel has nothing to write");
  return call_.made[call_.made_count - 1];
}

std::string called(const dsplan_launch& call) {
  const auto body = static_cast<Body>(call.body);
  if (call.body >= kBodies || call.op >= kOps) return "an unknown kernel";
  if (body != Body::Forward && body != Body::Backward) return name(body);
  return formatted("{} {}, kernel {}", name(static_cast<Op>(call.op)), name(body), call.part);
}

Layout layout_of(const dsplan_tensor& tensor) {
  Layout layout;
  layout.rank = static_cast<std::uint8_t>(tensor.rank);
  std::copy(tensor.dims, tensor.dims + tensor.rank, layout.dims.begin());
  std::copy(tensor.strides, tensor.strides + tensor.rank, layout.strides.begin());
  return layout;
}

dsplan_tensor with_layout(const dsplan_tensor& tensor, const Layout& layout, std::int64_t offset) {
  dsplan_tensor seen = tensor;
  seen.data = static_cast<unsigned char*>(tensor.data) + offset * bytes_per_element(dtype_of(tensor));
  seen.rank = layout.rank;
  std::copy(layout.dims.begin(), layout.dims.end(), seen.dims);
  std::copy(layout.strides.begin(), layout.strides.end(), seen.strides);
  return seen;
}

std::vector<ViewStep> steps_of(const Args& args) {
  std::vector<ViewStep> steps;
  const std::int64_t* code = args.steps();
  for (std::int64_t i = 0; i < args.integer(DSPLAN_STEPS); ++i, code += DSPLAN_STEP_LENGTH) {
    ViewStep step;
    step.kind = static_cast<ViewStep::Kind>(code[0]);
    step.a = static_cast<std::int8_t>(code[1]);
    step.b = static_cast<std::int8_t>(code[2]);
    step.start = code[3];
    step.length = code[4];
    step.shape.rank = static_cast<std::uint8_t>(code[5]);
    std::copy(code + 6, code + 6 + Shape::kMostDims, step.shape.dims.begin());
    steps.push_back(step);
  }
  return steps;
}

dsplan_tensor corner(dsplan_tensor whole, const dsplan_tensor& of) {
  expect(whole.rank == of.rank, "padding keeps the number of dimensions");
  for (std::int32_t d = 0; d < whole.rank; ++d) {
    expect(of.dims[d] <= whole.dims[d], "padding makes nothing smaller");
    whole.dims[d] = of.dims[d];
  }
  return whole;
}

dsplan_tensor summed_beside(const Args& args) {
  const dsplan_tensor& to = args.output();
  const auto rank = static_cast<std::size_t>(args.in(0).rank);
  return with_layout(to, beside_summed(layout_of(to), rank, static_cast<std::size_t>(args.number())), 0);
}

double attention_scale(const Args& args, std::int64_t width) {
  const dsplan_launch& call = args.call();
  const double own = call.number_count > DSPLAN_SCALE ? call.numbers[DSPLAN_SCALE] : 0;
  return own > 0 ? own : 1 / std::sqrt(static_cast<double>(width));
}

Bounds bounds_of(const Args& args) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const std::int64_t which = args.integer(DSPLAN_BOUNDS);
  if (which == Node::kLowerBound) return {args.number(), kNone, true, false};
  if (which == Node::kUpperBound) return {-kNone, args.number(), false, false};
  return {-args.number(), args.number(), false, true};
}

bool fills_masked(const Args& args) {
  if (args.op() != Op::MaskedFill) return false;
  return args.backward() || (args.call().input_count == 2 && is_floating(dtype_of(args.output())));
}

}  // namespace dsplan::exec::host
