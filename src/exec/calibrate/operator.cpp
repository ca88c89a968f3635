#include "exec/calibrate/operator.h"

#include "core/error.h"
#include "exec/runner/launcher.h"

namespace dsplan::exec {

Operator::Operator(Device& device, Op op, DType dtype, const std::vector<Shape>& inputs, const Shape& output,
                   const std::function<void(Node&)>& tweak)
    : device_(device) {
  Node node;
  node.op = op;
  node.requires_grad = true;
  node.input_count = static_cast<std::uint16_t>(inputs.size());
  node.output_count = 1;
  if (tweak) tweak(node);
  for (const Shape& shape : inputs) graph_.operands.push_back(add_tensor(shape, dtype, kNone));
  graph_.operands.push_back(add_tensor(output, dtype, NodeId(0)));
  graph_.nodes.push(node);
  attributes_ = attributes_of(graph_, node);
  std::vector<Described> described;
  for (const Shape& shape : inputs) {
    described.push_back({dtype, contiguous(shape)});
    inputs_.push_back(drawn(described.back()));
  }
  made_ = make_all(forward_makes(Call{graph_, graph_.nodes.front(), described}));
}

TensorId Operator::add_tensor(const Shape& shape, DType dtype, NodeId producer) {
  const StorageId id = graph_.storages.push({storage(shape.elements(), dtype), kNone, kNone});
  return graph_.tensors.push({shape, dtype, id, true, producer});
}

Operator::Tensor Operator::make(const Described& what) {
  return {what, std::make_shared<DeviceBlock>(device_, Space::Device, what.bytes())};
}

// Rates on zeros would be too good: a device that has less to switch takes less power.
Operator::Tensor Operator::drawn(const Described& what) {
  Tensor tensor = make(what);
  const dsplan_tensor target = raw(tensor);
  const std::int64_t normal = 2;
  const double deviation = 1;
  Parameters parameters{{&normal, 1}, {&deviation, 1}};
  parameters.random.key = 0x5eed;
  parameters.random.samples = 1;
  device_.launch(launch_of(Body::LoadParameter, {}, {&target, 1}, parameters));
  return tensor;
}

std::vector<Operator::Named> Operator::make_all(const std::vector<Made>& made) {
  std::vector<Named> all;
  for (const Made& each : made) all.push_back({each, make(each.what)});
  return all;
}

dsplan_tensor Operator::raw(const Tensor& tensor) { return tensor_at(tensor.memory->data(), tensor.what); }

// Every kernel of the operator, in order, as the runner launches them.
void Operator::launch(Body body, const std::vector<dsplan_tensor>& in, const std::vector<Named>& made) {
  Parameters parameters{attributes_.integers, attributes_.numbers};
  parameters.random.samples = 1;
  dsplan_launch what = launch_of(body, in, {}, parameters);
  what.op = static_cast<std::uint32_t>(graph_.nodes.front().op);
  std::int64_t wanted = 0;
  device_.calls().run(&dsplan_backend::workspace, "workspace", &what, &wanted);
  if (wanted > 0 && workspace_.memory == nullptr) {
    const std::array<std::int64_t, 1> dims = {wanted};
    workspace_ = make({DType::UInt8, contiguous(dims)});
  }
  if (wanted > 0) {
    what.workspace = workspace_.memory->data();
    what.workspace_bytes = workspace_.memory->bytes().value();
  }
  std::vector<dsplan_tensor> out;
  const std::uint8_t parts = made.empty() ? 1 : static_cast<std::uint8_t>(made.back().what.part + 1);
  for (std::uint8_t part = 0; part < parts; ++part) {
    while (out.size() < made.size() && made[out.size()].what.part <= part) out.push_back(raw(made[out.size()].tensor));
    what.part = part;
    what.made = out.data();
    what.made_count = static_cast<std::uint32_t>(out.size());
    device_.launch(what);
  }
}

void Operator::forward() {
  std::vector<dsplan_tensor> in;
  for (const Tensor& each : inputs_) in.push_back(raw(each));
  launch(Body::Forward, in, made_);
}

const Operator::Tensor& Operator::kept(const Kept& what) const {
  if (what.kind == Kept::Kind::Input) return inputs_[what.index];
  const SlotKind slot = what.kind == Kept::Kind::Output ? SlotKind::Output : SlotKind::Extra;
  const auto found = std::find_if(made_.begin(), made_.end(), [&](const Named& each) {
    return each.what.kind == slot && each.what.index == what.index;
  });
  DSPLAN_CHECK(found != made_.end(), "what backward needs was not made");
  return found->tensor;
}

void Operator::backward() {
  const Node& node = graph_.nodes.front();
  if (gradients_.empty()) {
    std::vector<Described> inputs;
    for (const Tensor& each : inputs_) inputs.push_back(each.what);
    const Described output = kept({Kept::Kind::Output, 0}).what;
    const std::vector<std::optional<Described>> incoming = {output};
    gradients_.push_back(drawn(output));
    std::vector<Described> saved;
    for (const Kept& each : keeps(graph_, node)) {
      gradients_.push_back(kept(each));
      saved.push_back(gradients_.back().what);
    }
    made_backward_ = make_all(backward_makes(Call{graph_, node, inputs, incoming, saved}));
  }
  std::vector<dsplan_tensor> in;
  for (const Tensor& each : gradients_) in.push_back(raw(each));
  launch(Body::Backward, in, made_backward_);
}

Bytes Operator::moved() const {
  Bytes bytes = graph_.bytes(graph_.output(graph_.nodes.front()));
  for (const Tensor& each : inputs_) bytes += each.what.bytes();
  return bytes;
}

}  // namespace dsplan::exec
