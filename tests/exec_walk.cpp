#include "exec_walk.h"

#include <algorithm>
#include <cstring>

#include "exec/host/kernels.h"
#include "exec/host/strided.h"

namespace walking {
namespace {

using dsplan::Body;
using dsplan::Op;
using dsplan::Recipe;
using dsplan::RecipeStep;
using dsplan::exec::Call;
using dsplan::exec::Viewed;

dsplan_tensor raw(const Held& held) {
  dsplan_tensor tensor{};
  if (held.storage == nullptr) return tensor;
  const dsplan::exec::Layout& layout = held.what.layout;
  tensor.data = held.storage->data() + held.offset * dsplan::bytes_per_element(held.what.dtype);
  tensor.dtype = static_cast<std::int32_t>(held.what.dtype);
  tensor.rank = layout.rank;
  std::copy(layout.dims.begin(), layout.dims.end(), tensor.dims);
  std::copy(layout.strides.begin(), layout.strides.end(), tensor.strides);
  return tensor;
}

Held seen(const Held& base, const Viewed& view) { return {view.what, base.storage, base.offset + view.offset}; }

}  // namespace

// Filled with a pattern, so that a kernel that leaves something unwritten is seen.
Held Walk::fresh(const Described& what) const {
  if (!computes_) return {what, nullptr, 0};
  const auto bytes = static_cast<std::size_t>(what.bytes().value());
  return {what, std::make_shared<std::vector<unsigned char>>(bytes, static_cast<unsigned char>(0xee)), 0};
}

void Walk::write(const Held& held, const std::vector<double>& values) {
  dsplan::exec::host::store(dsplan::exec::host::strided(raw(held)), 0, static_cast<std::int64_t>(values.size()),
                            values.data());
}

std::vector<double> Walk::read(const Held& held) {
  std::vector<double> values(static_cast<std::size_t>(held.what.layout.elements()));
  dsplan::exec::host::load(dsplan::exec::host::strided(raw(held)), 0, static_cast<std::int64_t>(values.size()),
                           values.data());
  return values;
}

void Walk::set_gradient(TensorId id, const std::vector<double>& values) {
  const dsplan::Tensor& tensor = graph_.tensor(id);
  const Held held = fresh({tensor.dtype, dsplan::exec::contiguous(tensor.shape)});
  write(held, values);
  gradients_[id] = held;
}

std::vector<Described> Walk::inputs_of(const Node& node) {
  std::vector<Described> inputs;
  for (TensorId id : graph_.in(node)) inputs.push_back(value(id).what);
  return inputs;
}

void Walk::compare(const Node& node, const char* pass, const std::vector<Made>& makes, const Recipe& recipe,
                   const std::vector<RecipeStep>& steps) {
  std::size_t at = 0;
  std::uint8_t part = 0;
  for (const RecipeStep& step : steps) {
    if (step.kind == RecipeStep::Kind::Kernel) ++part;
    if (step.kind != RecipeStep::Kind::Make) continue;
    const dsplan::Slot& slot = recipe.slots[step.slot];
    const std::string told = dsplan::formatted("{} {} {} bytes, {}, kernel {}", static_cast<int>(slot.kind),
                                               slot.kind == SlotKind::Temporary ? 0 : slot.index, slot.bytes.value(),
                                               dsplan::name(slot.dtype), part);
    std::string made = "nothing";
    if (at < makes.size()) {
      const Made& one = makes[at];
      made = dsplan::formatted("{} {} {} bytes, {}, kernel {}", static_cast<int>(one.kind),
                               one.kind == SlotKind::Temporary ? 0 : one.index, one.what.bytes().value(),
                               dsplan::name(one.what.dtype), one.part);
    }
    ++at;
    ++compared_;
    if (told != made)
      faults_.push_back(dsplan::formatted("{}, {}: catalogue {}, exec {}", place(node), pass, told, made));
  }
  if (at < makes.size()) faults_.push_back(dsplan::formatted("{}, {}: exec makes more", place(node), pass));
}

void Walk::launch_parts(const Node& node, Body body, const std::vector<Held>& inputs, std::vector<Made1>& made,
                        const std::vector<Made>& makes, const std::vector<RecipeStep>& steps) {
  if (!computes_) return;
  // What works in place runs behind all that is made.
  const auto parts = static_cast<std::uint8_t>(std::count_if(
      steps.begin(), steps.end(), [](const RecipeStep& step) { return step.kind == RecipeStep::Kind::Kernel; }));
  const dsplan::exec::Attributes attributes = dsplan::exec::attributes_of(graph_, node);
  std::vector<dsplan_tensor> in;
  for (const Held& held : inputs) in.push_back(raw(held));
  for (std::uint8_t part = 0; part < parts; ++part) {
    std::vector<dsplan_tensor> out;
    for (std::size_t i = 0; i < made.size() && makes[i].part <= part; ++i) {
      out.push_back(raw(made[i].held));
    }
    dsplan_launch call{};
    call.size = sizeof(call);
    call.body = static_cast<std::uint32_t>(body);
    call.op = static_cast<std::uint32_t>(node.op);
    call.part = part;
    call.inputs = in.data();
    call.input_count = static_cast<std::uint32_t>(in.size());
    call.made = out.data();
    call.made_count = static_cast<std::uint32_t>(out.size());
    call.integers = attributes.integers.data();
    call.integer_count = static_cast<std::uint32_t>(attributes.integers.size());
    call.numbers = attributes.numbers.data();
    call.number_count = static_cast<std::uint32_t>(attributes.numbers.size());
    call.random = {seed * 1000 + static_cast<std::uint64_t>(&node - graph_.nodes.data()), 0,
                   graph_.batch.empty() ? 1 : graph_.tensor(graph_.batch[0]).shape.dims[0]};
    if (launcher(call) != 0) {
      faults_.push_back(dsplan::formatted("{}: {}", place(node), dsplan::exec::host::launch_error()));
    }
  }
}

void Walk::run_forward(NodeId id) {
  const Node& node = graph_.node(id);
  REQUIRE_MESSAGE(!dsplan::exec::cannot_run(graph_, node), dsplan::exec::cannot_run(graph_, node).value_or(""));
  const std::vector<Described> inputs = inputs_of(node);
  const Call call{graph_, node, inputs};
  const Recipe recipe = recipe_for(node);
  if (recipe.alias || recipe.in_place) {
    const std::vector<Viewed> views = dsplan::exec::forward_view(call);
    for (std::size_t i = 0; i < views.size(); ++i) {
      values_[graph_.output(node, i)] = seen(value(graph_.input(node, 0)), views[i]);
    }
    if (recipe.alias) return;
  }
  const std::vector<Made> makes = dsplan::exec::forward_makes(call);
  compare(node, "forward", makes, recipe, recipe.forward);
  std::vector<Made1> made;
  for (const Made& one : makes) made.push_back({one.kind, one.index, fresh(one.what)});
  std::vector<Held> in;
  for (TensorId input : graph_.in(node)) in.push_back(value(input));
  launch_parts(node, Body::Forward, in, made, makes, recipe.forward);
  for (const Made1& one : made) {
    if (one.kind == SlotKind::Output) {
      values_[graph_.output(node, one.index)] = one.held;
    } else if (one.kind == SlotKind::Extra) {
      extras_[id][one.index] = one.held;
    }
  }
}

void Walk::backward_from(TensorId output) {
  if (!gradient(output)) {
    Held seed_held = fresh(value(output).what);
    if (computes_) {
      dsplan_tensor made = raw(seed_held);
      dsplan_launch call{};
      call.size = sizeof(call);
      call.body = static_cast<std::uint32_t>(Body::LossSeed);
      call.made = &made;
      call.made_count = 1;
      const double one = 1;
      call.numbers = &one;
      call.number_count = 1;
      if (launcher(call) != 0) faults_.push_back(dsplan::exec::host::launch_error());
    }
    gradients_[output] = seed_held;
  }
  for (auto at = graph_.program.rbegin(); at != graph_.program.rend(); ++at) {
    if (at->kind == dsplan::Instruction::Kind::Run) run_backward(at->node());
  }
}

void Walk::run_backward(NodeId id) {
  const Node& node = graph_.node(id);
  if (!node.requires_grad) return;
  std::vector<std::optional<Described>> incoming;
  std::vector<Held> in;
  bool any = false;
  for (TensorId out : graph_.out(node)) {
    const std::optional<Held>& held = gradient(out);
    incoming.push_back(held ? std::optional(held->what) : std::nullopt);
    in.push_back(held.value_or(Held{}));
    any = any || held.has_value();
  }
  if (!any) return;
  const std::vector<Described> inputs = inputs_of(node);
  std::vector<Described> saved;
  const std::vector<dsplan::exec::Kept> kept = dsplan::exec::keeps(graph_, node);
  const Recipe recipe = recipe_for(node);
  REQUIRE(kept.size() == recipe.saved.size());
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const bool same = static_cast<int>(kept[i].kind) == static_cast<int>(recipe.saved[i].kind) &&
                      kept[i].index == recipe.saved[i].index;
    if (!same) faults_.push_back(dsplan::formatted("{} saves something else in place {}", place(node), i));
    Held held;
    if (kept[i].kind == dsplan::exec::Kept::Kind::Input) held = value(graph_.input(node, kept[i].index));
    if (kept[i].kind == dsplan::exec::Kept::Kind::Output) held = value(graph_.output(node, kept[i].index));
    if (kept[i].kind == dsplan::exec::Kept::Kind::Extra) held = extras_[id][kept[i].index];
    saved.push_back(held.what);
    in.push_back(held);
  }
  const Call call{graph_, node, inputs, incoming, saved};
  const std::vector<Made> makes = dsplan::exec::backward_makes(call);
  compare(node, "backward", makes, recipe, recipe.backward);
  std::vector<Made1> made;
  for (const Made& one : makes) made.push_back({one.kind, one.index, fresh(one.what)});
  if (!makes.empty()) launch_parts(node, Body::Backward, in, made, makes, recipe.backward);
  for (std::size_t i = 0; i < node.input_count; ++i) {
    if ((recipe.passes >> i & 1U) != 0) {
      accumulate(graph_.input(node, i), seen(in[0], dsplan::exec::backward_view(call, i, *incoming[0])));
    }
    if ((recipe.hands_out >> i & 1U) != 0) accumulate(graph_.input(node, i), value(graph_.output(node, i)));
    for (const Made1& one : made) {
      if (one.kind == SlotKind::Gradient && one.index == i) accumulate(graph_.input(node, i), one.held);
    }
  }
}

void Walk::accumulate(TensorId tensor, Held gradient) {
  // Other dimensions are those of a view that has to be copied next.
  if (gradient.what.layout.elements() != graph_.tensor(tensor).shape.elements().value()) {
    faults_.push_back("a gradient of another shape");
  }
  std::optional<Held>& held = gradients_[tensor];
  if (!held) {
    held = std::move(gradient);
    return;
  }
  Held sum = fresh(dsplan::exec::sum_of_gradients(held->what, gradient.what));
  if (computes_) {
    const dsplan_tensor in[] = {raw(*held), raw(gradient)};
    dsplan_tensor made = raw(sum);
    dsplan_launch call{};
    call.size = sizeof(call);
    call.body = static_cast<std::uint32_t>(Body::AddGradients);
    call.inputs = in;
    call.input_count = 2;
    call.made = &made;
    call.made_count = 1;
    if (launcher(call) != 0) faults_.push_back(dsplan::exec::host::launch_error());
  }
  held = std::move(sum);
}

}  // namespace walking
