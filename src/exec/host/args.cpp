#include "exec/host/args.h"

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

}  // namespace dsplan::exec::host
