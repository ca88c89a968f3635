#include "exec/runner/values.h"

#include <algorithm>

#include "core/error.h"
#include "core/format.h"

namespace dsplan::exec {
namespace {

Described placed(const Graph& graph, TensorId id) {
  const Tensor& tensor = graph.tensor(id);
  return {tensor.dtype, contiguous(tensor.shape)};
}

// The same operator call in several kernels is one call.
bool same_call(const Task& a, const Task& b) {
  return a.body == b.body && a.node == b.node && a.graph == b.graph && a.part + 1 == b.part;
}

void refuse_what_cannot_run(std::span<const Graph> graphs) {
  std::vector<std::string> reasons;
  for (const Graph& graph : graphs) {
    for (const Instruction& instruction : graph.program) {
      if (instruction.kind != Instruction::Kind::Run) continue;
      const std::optional<std::string> reason = cannot_run(graph, graph.node(instruction.node()));
      if (reason && std::find(reasons.begin(), reasons.end(), *reason) == reasons.end()) reasons.push_back(*reason);
    }
  }
  if (!reasons.empty()) throw Refusal("run", formatted("cannot be executed yet: {}", joined(reasons, "; ")));
}

}  // namespace

BufferMakers::BufferMakers(const Program& program) {
  for (const Task& task : program.tasks) {
    for (const MadeValue& made : program.made_by(task)) {
      const BufferId buffer = program.values[made.value].buffer;
      if (buffer == kNoBuffer) continue;
      makers_.reach(buffer);
      if (makers_[buffer] == nullptr) makers_[buffer] = &task;
    }
  }
}

Values::Values(std::span<const Graph> graphs, const Program& program)
    : graphs_(graphs), program_(program), tensors_(program.values.size()) {
  refuse_what_cannot_run(graphs);
  for (const Graph& graph : graphs) inputs_.emplace_back(graph.nodes.size());
  for (std::size_t at = 1; at < program.values.size(); ++at) {
    const TensorValue& value = program.values[at];
    if (value.tensor == kNone) continue;
    tensors_[at] = TensorAt{value.buffer, value.offset, placed(graphs[value.graph], value.tensor)};
  }
}

const TensorAt& Values::at(ValueId value) const {
  const std::optional<TensorAt>& tensor = tensors_[value];
  DSPLAN_CHECK(tensor.has_value(), formatted("value {} is used before it is made", value));
  return *tensor;
}

std::vector<Made> Values::forward(const Task& task) {
  Inputs& inputs = inputs_of(task);
  inputs.clear();
  for (ValueId value : program_.in(task)) inputs.push_back(at(value).what);
  return forward_makes({graph(task), node(task), inputs, {}, {}, program_.device});
}

std::vector<Made> Values::backward(const Task& task) {
  const std::span<const ValueId> in = program_.in(task);
  const std::size_t outputs = node(task).output_count;
  std::vector<std::optional<Described>> gradients;
  Inputs saved;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (i < outputs) {
      gradients.push_back(in[i] == kNoValue ? std::nullopt : std::optional(at(in[i]).what));
    } else {
      saved.push_back(in[i] == kNoValue ? Described{} : at(in[i]).what);
    }
  }
  return backward_makes({graph(task), node(task), inputs_of(task), gradients, saved, program_.device});
}

Made Values::gradient(const Task& task) const {
  const std::span<const ValueId> in = program_.in(task);
  Made made;
  made.kind = SlotKind::Gradient;
  made.what = at(in.front()).what;
  if (task.body == Body::AddGradients) made.what = sum_of_gradients(made.what, at(in[1]).what);
  if (task.body == Body::CloneGradient) made.what = clone_of_gradient(made.what);
  return made;
}

const std::vector<Made>& Values::made_by(const Task& task) {
  if (cached_ == &task) return makes_;
  const bool continues = cached_ != nullptr && same_call(*cached_, task);
  cached_ = &task;
  if (continues) return makes_;
  switch (task.body) {
    case Body::Forward: makes_ = forward(task); break;
    case Body::Backward: makes_ = backward(task); break;
    case Body::AddGradients:
    case Body::CloneGradient:
    case Body::LossSeed: makes_.assign(1, gradient(task)); break;
    default: makes_.clear(); break;
  }
  return makes_;
}

const Described* Values::wanted(const Task& task, const MadeValue& made) {
  for (const Made& one : made_by(task)) {
    if (one.kind == made.kind && one.index == made.index) return &one.what;
  }
  return nullptr;
}

std::optional<Bytes> Values::bytes_wanted(const Task& task, BufferId buffer) {
  for (const MadeValue& made : program_.made_by(task)) {
    if (program_.values[made.value].buffer != buffer) continue;
    if (task.body == Body::MakeBatch) return at(made.value).what.bytes();
    const Described* what = wanted(task, made);
    return what == nullptr ? std::nullopt : std::optional(what->bytes());
  }
  return std::nullopt;
}

// In place: what was there stays as it lies.
void Values::define(const Task& task) {
  const std::span<const MadeValue> made = program_.made_by(task);
  if (task.body == Body::Forward) (void)made_by(task);  // Backward asks what it was given, also where it makes nothing.
  const bool in_place = task.body == Body::Forward && node(task).in_place;
  for (std::size_t i = 0; i < made.size(); ++i) {
    std::optional<TensorAt>& tensor = tensors_[made[i].value];
    if (tensor.has_value()) continue;
    const BufferId buffer = program_.values[made[i].value].buffer;
    if (in_place && made[i].kind == SlotKind::Output && made[i].index == 0) {
      tensor = at(program_.in(task).front());
      continue;
    }
    if (task.body == Body::AddGradients && at(program_.in(task).front()).buffer == buffer) {
      tensor = at(program_.in(task).front());
      continue;
    }
    const Described* what = wanted(task, made[i]);
    DSPLAN_CHECK(what != nullptr, formatted("{} of {} makes no such thing", name(task.body),
                                            task.node == kNone ? "the runtime" : dsplan::name(node(task).op)));
    tensor = TensorAt{buffer, Bytes(0), *what};
  }
}

void Values::view_forward(const Task& task) {
  Inputs& inputs = inputs_of(task);
  inputs.clear();
  for (ValueId value : program_.in(task)) inputs.push_back(at(value).what);
  const std::vector<Viewed> views = forward_view({graph(task), node(task), inputs});
  const std::span<const MadeValue> made = program_.made_by(task);
  DSPLAN_CHECK(views.size() == made.size(), "a view of another number of outputs");
  const TensorAt& base = at(program_.in(task).front());
  for (std::size_t i = 0; i < made.size(); ++i) {
    const Bytes offset = base.offset + storage(Elements(views[i].offset), base.what.dtype);
    tensors_[made[i].value] = TensorAt{base.buffer, offset, views[i].what};
  }
}

void Values::view_backward(const Task& task) {
  const TensorAt& gradient = at(program_.in(task).front());
  const Viewed view = backward_view({graph(task), node(task), inputs_of(task)}, task.part, gradient.what);
  const Bytes offset = gradient.offset + storage(Elements(view.offset), gradient.what.dtype);
  tensors_[program_.made_by(task).front().value] = TensorAt{gradient.buffer, offset, view.what};
}

void Values::apply(const Task& task) {
  if (task.body == Body::ForwardView) return view_forward(task);
  if (task.body == Body::BackwardView) return view_backward(task);
  if (task.body != Body::GradientReady) return;
  const TensorAt& gradient = at(program_.in(task).front());
  DSPLAN_CHECK(gradient.offset == Bytes(0) && gradient.what.layout.contiguous(),
               formatted("the gradient of parameter {} does not fill a storage of its own", task.parameter));
}

Values::Operands Values::operands(const Task& task) {
  define(task);
  Operands result;
  for (ValueId value : program_.in(task)) {
    result.in.push_back(value == kNoValue ? std::nullopt : std::optional(at(value)));
  }
  for (const MadeValue& made : program_.made_by(task)) result.made.push_back(at(made.value));
  return result;
}

}  // namespace dsplan::exec
