#include "planner/predict/predict_graph.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "core/cluster.h"
#include "core/format.h"
#include "core/sha256.h"
#include "planner/lower/lower_graph.h"
#include "planner/predict/doubts.h"
#include "planner/predict/live_buffers.h"
#include "planner/predict/saved_tensors.h"
#include "planner/predict/sections.h"
#include "planner/predict/verdict.h"
#include "sim/memory.h"

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

// What the prediction of an op-graph is drawn from, const once it is gathered.
struct GraphEvidence {
  const OpGraph& file;
  const BuiltOpGraph& built;
  const GraphMachine& machine;
  DeviceRoom room;
  Job plain;  // PyTorch's own allocator with its defaults.
  RecipeBook recipes;
  std::unique_ptr<const Readings> readings;
  AboveInputs above;
};

GraphEvidence gather_graph(const OpGraph& file, const BuiltOpGraph& built, const GraphMachine& machine) {
  const DeviceRoom room{machine.capacity, machine.context.value_or(kUncalibratedContext), Bytes(0), machine.reserve};
  RecipeBook recipes(built.graph);
  auto readings =
      std::make_unique<const Readings>(lower_graph(built, recipes, file.keep_outputs), Job{}, room, Detail::Verdict);
  AboveInputsMeter above(readings->schedule);
  replay(readings->schedule, above);
  return {file, built, machine, room, {}, std::move(recipes), std::move(readings), above.figures()};
}

std::string fingerprint_of(const OpGraph& file) {
  std::string text = "dsplan op-graph 1\n";
  add_canonical(file.document.root, true, text);
  return "sha256:" + sha256(text);
}

// The tensors of the file that nothing computes.
Elements count_leaves(const BuiltOpGraph& built, bool trainable_only) {
  Elements sum;
  for (const Tensor& tensor : built.graph.tensors) {
    if (tensor.producer == kNone && (tensor.requires_grad || !trainable_only)) sum += tensor.shape.elements();
  }
  return sum;
}

States graph_states_of(const GraphEvidence& evidence) {
  States states;
  for (const Tensor& tensor : evidence.built.graph.tensors) {
    if (tensor.producer == kNone && tensor.requires_grad) {
      states.parameters += storage(tensor.shape.elements(), tensor.dtype);
    }
  }
  states.gradients = evidence.readings->memory.by_role()[Role::Gradients];
  return states;
}

AboveInputs above_inputs_of(const GraphEvidence& evidence) {
  AboveInputs above = evidence.above;
  if (evidence.built.has_gradient) return above;
  above.backward_peak.reset();
  above.after_backward.reset();
  return above;
}

HostMemory no_host() {
  HostMemory host;
  host.verdict_reason = "not modelled of a graph alone";
  host.nvme_verdict_reason = host.verdict_reason;
  return host;
}

std::vector<Absence> absences_of(const GraphEvidence& evidence) {
  std::vector<Absence> not_modelled;
  if (!evidence.built.has_gradient) {
    for (const char* what : {"above_inputs.backward_peak", "above_inputs.after_backward"}) {
      not_modelled.push_back({what, "no output requires a gradient: there is no backward"});
    }
  }
  not_modelled.push_back({"time", "of a graph alone: a step also has an optimizer, ranks and micro-batches"});
  for (const char* what : evidence.recipes.unknown()) {
    not_modelled.push_back({"memory.peak.temporaries", formatted("{}: the GPU alone knows its size", what)});
  }
  not_modelled.push_back({"memory.host", "of a graph alone"});
  not_modelled.push_back({"workspace", "the libraries' workspaces are left out of a graph's figures"});
  if (!evidence.machine.context) {
    not_modelled.push_back({"context", "no device is named: an uncalibrated 600 MiB stand for its CUDA context"});
  }
  return not_modelled;
}

}  // namespace

Prediction predict_graph(const OpGraph& file, const BuiltOpGraph& built, const GraphMachine& machine) {
  const GraphEvidence evidence = gather_graph(file, built, machine);
  const Readings& readings = *evidence.readings;
  Judgement judged = judge(readings, built.model, evidence.plain, evidence.room,
                           doubts_of_graph(most_reserved(readings), machine.context.has_value()));
  return {
      .fingerprint = fingerprint_of(file),
      .model = file.name,
      .rank = 0,
      .world = 1,
      .parameters_total = count_leaves(built, false),
      .parameters_trainable = count_leaves(built, true),
      .states = graph_states_of(evidence),
      .persistent = {readings.memory.by_role(), readings.memory.allocated()},
      .held_for_backward = held(readings.schedule, built.model),
      .saved = saved_tensors(built.model, built.graph, evidence.recipes, built.checkpoint, built.names),
      .above_inputs = above_inputs_of(evidence),
      .peak = peak_in(readings, built.model, evidence.room, std::nullopt),
      .loss_spike = std::nullopt,
      .fragmentation = std::nullopt,
      .arena = std::nullopt,
      .advice = {},
      .phases = with_allocator(readings.memory.phases(), readings.schedule, readings.placements.asked,
                               PlacementKind::Caching),
      .host = no_host(),
      .communication = std::vector<TrafficRow>(),
      .traffic_terms = {},
      .time = std::nullopt,
      .fetches = {},
      .capacity = evidence.room.capacity,
      .context = evidence.room.context,
      .communicators = evidence.room.communicators,
      .reserve = evidence.room.reserve,
      .verdict = judged.verdict,
      .verdict_reason = std::move(judged.reason),
      .retries = judged.retries,
      .retries_low = judged.retries_low,
      .retries_expected = judged.retries_expected,
      .needed = judged.needed,
      .shortfall = judged.shortfall,
      .failure = std::move(judged.failure),
      .doubts = std::move(judged.doubts),
      .changes = {},
      .events = readings.schedule.events.size(),
      .buffers = readings.schedule.buffers.size(),
      .not_modelled = absences_of(evidence),
  };
}

}  // namespace dsplan
