#include "planner/predict/predict_graph.h"

#include <algorithm>
#include <iterator>

#include "core/cluster.h"
#include "core/format.h"
#include "core/sha256.h"
#include "planner/lower/lower_graph.h"
#include "planner/predict/judge.h"
#include "planner/predict/report_details.h"
#include "planner/predict/saved_tensors.h"
#include "sim/above_inputs.h"

namespace dsplan {
namespace {

// Keys in order, without those that move no byte.
void add_canonical(const Value& value, bool root, std::string& text) {
  switch (value.kind) {
    case Value::Kind::Null: text += "null"; return;
    case Value::Kind::Bool: text += value.boolean ? "true" : "false"; return;
    case Value::Kind::Integer: append_formatted(text, "{}", value.integer); return;
    case Value::Kind::Real: append_formatted(text, "{}", value.real); return;
    case Value::Kind::String: append_formatted(text, "{}:{}", value.string.size(), value.string); return;
    case Value::Kind::Array:
      text += '[';
      for (const Value& item : value.items) {
        add_canonical(item, false, text);
        text += ',';
      }
      text += ']';
      return;
    case Value::Kind::Object: break;
  }
  std::vector<const Member*> members;
  for (const Member& member : value.members) {
    if (!root || (member.key != "source" && member.key != "seed_base")) members.push_back(&member);
  }
  std::sort(members.begin(), members.end(), [](const Member* a, const Member* b) { return a->key < b->key; });
  text += '{';
  for (const Member* member : members) {
    append_formatted(text, "{}:{}=", member->key.size(), member->key);
    add_canonical(member->value, false, text);
    text += ',';
  }
  text += '}';
}

// Live before backward and not part of what is there in the end.
HeldForBackward held(const Schedule& schedule, const ModelSpec& model) {
  std::size_t begins = 0;
  for (std::size_t at = 0; at < schedule.events.size(); ++at) {
    const auto* mark = std::get_if<Mark>(&schedule.events[at]);
    if (mark != nullptr && mark->moment == Moment::BackwardBegins) begins = at;
  }
  std::vector<BufferId> list = live_after(schedule, begins);
  std::erase_if(
      list, [&](BufferId id) { return std::binary_search(schedule.survivors.begin(), schedule.survivors.end(), id); });
  return held_in(schedule, model, list);
}

void count_leaves(const BuiltOpGraph& built, Prediction& p) {
  for (const Tensor& tensor : built.graph.tensors) {
    if (tensor.producer != kNone) continue;
    const Bytes bytes = storage(tensor.shape.elements(), tensor.dtype);
    p.parameters_total += tensor.shape.elements();
    if (!tensor.requires_grad) continue;
    p.parameters_trainable += tensor.shape.elements();
    p.states.parameters += bytes;
  }
}

}  // namespace

Prediction predict_graph(const OpGraph& file, const BuiltOpGraph& built, const GraphMachine& machine) {
  Prediction p;
  std::string text = "dsplan op-graph 1\n";
  add_canonical(file.document.root, true, text);
  p.fingerprint = "sha256:" + sha256(text);
  p.model = file.name;
  count_leaves(built, p);
  p.capacity = machine.capacity;
  p.context = machine.context.value_or(kUncalibratedContext);
  p.communicators = Bytes(0);
  p.reserve = machine.reserve;

  const RecipeBook recipes(built.graph);
  const Schedule schedule = lower_graph(built, recipes, file.keep_outputs);
  MemoryMeter meter(schedule);
  AboveInputsMeter above(schedule);
  replay(schedule, meter, above);
  const Job plain;  // PyTorch's own allocator with its defaults.
  const PlacementOptions options = without_limit(plain);
  const BothPlacements both = place_both(schedule, options);
  p.events = schedule.events.size();
  p.buffers = schedule.buffers.size();
  p.persistent.by_role = meter.by_role();
  p.persistent.allocated = meter.allocated();
  p.states.gradients = meter.by_role()[Role::Gradients];
  p.phases = with_allocator(meter.phases(), schedule, both.asked);
  p.communication.emplace();
  p.held_for_backward = held(schedule, built.model);
  p.saved = saved_tensors(built.model, built.graph, recipes, built.checkpoint, built.names);
  p.above_inputs = above.figures();
  if (!built.has_gradient) {
    p.above_inputs->backward_peak.reset();
    p.above_inputs->after_backward.reset();
    for (const char* what : {"above_inputs.backward_peak", "above_inputs.after_backward"}) {
      p.not_modelled.push_back({what, "no output requires a gradient: there is no backward"});
    }
  }
  add_peak(schedule, built.model, plain, meter, ends_of(schedule, both, options, std::nullopt), p);
  judge(schedule, built.model, plain, both, p);
  p.not_modelled.push_back({"time", "of a graph alone: a step also has an optimizer, ranks and micro-batches"});
  for (const char* what : recipes.unknown()) {
    p.not_modelled.push_back({"memory.peak.temporaries", formatted("{}: the GPU alone knows its size", what)});
  }
  p.not_modelled.push_back({"memory.host", "of a graph alone"});
  p.host.verdict_reason = "not modelled of a graph alone";
  p.host.nvme_verdict_reason = p.host.verdict_reason;
  p.not_modelled.push_back({"workspace", "the libraries' workspaces are left out of a graph's figures"});
  if (!machine.context) {
    p.not_modelled.push_back({"context", "no device is named: an uncalibrated 600 MiB stand for its CUDA context"});
  }
  return p;
}

}  // namespace dsplan
