#include "planner/lower/autograd/graph_facts.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "model/parts.h"

namespace dsplan {
namespace {

// The encoders right inside of a tower. It hands out the states that a hook took from their layers (transformers'
// capture_outputs); they hand out what the last of them made, for which there may be no gradient.
std::vector<ModuleId> encoders_of_tower(const ModelSpec& model) {
  std::vector<ModuleId> encoders;
  if (model.parts == nullptr || model.parts->tower == nullptr) return encoders;
  const std::string_view tower = model.parts->tower->module;
  for (std::size_t at = 1; at < model.modules.size(); ++at) {
    const std::string& around = model.module_at(model.modules[at].parent).path;
    if (model.modules[at].path.ends_with("encoder") && around.ends_with(tower)) {
      encoders.push_back(static_cast<ModuleId>(at));
    }
  }
  return encoders;
}

}  // namespace

// Against the program's order.
Indexed<NodeId, bool> wanted_nodes(const Graph& graph) {
  Indexed<NodeId, bool> nodes(graph.nodes.size(), false);
  Indexed<TensorId, bool> tensors(graph.tensors.size(), false);
  if (graph.loss != kNone) tensors[graph.loss] = true;
  for (TensorId output : graph.outputs) {
    if (graph.tensor(output).requires_grad) tensors[output] = true;
  }
  for (const NodeId at : graph.nodes.ids().reversed()) {
    const Node& node = graph.nodes[at];
    const std::span<const TensorId> out = graph.out(node);
    nodes[at] = node.requires_grad && std::any_of(out.begin(), out.end(), [&](TensorId id) { return tensors[id]; });
    if (!nodes[at]) continue;
    for (TensorId input : graph.in(node)) {
      if (graph.tensor(input).requires_grad) tensors[input] = true;
    }
  }
  return nodes;
}

GraphFacts::GraphFacts(const ModelSpec& model, const Graph& graph, const RecipeBook& recipes)
    : model_(model),
      graph_(graph),
      recipes_(recipes),
      wanted_(wanted_nodes(graph)),
      read_(graph.storages.size(), false),
      called_(model.modules.size(), false),
      has_gradient_(model.modules.size(), false),
      ends_(model.modules.size(), false) {
  for (const Instruction& instruction : graph.program) {
    if (instruction.kind == Instruction::Kind::Enter) called_[static_cast<std::size_t>(instruction.module())] = true;
  }
  find_head();
  find_read();
  find_beginnings();
  find_passing();
  find_ends();
}

ModuleId GraphFacts::called(ModuleId module) const {
  while (module != kNone && !called_[static_cast<std::size_t>(module)]) module = parent(module);
  return module;
}

void GraphFacts::find_head() {
  if (graph_.loss == kNone) return;
  const ModuleId outermost = graph_.node(graph_.tensor(graph_.loss).producer).module;  // Adapters wrap the model.
  for (const NodeId id : graph_.nodes.ids().reversed()) {
    if (graph_.node(id).module == outermost) continue;
    head_ = id;
    return;
  }
}

void GraphFacts::find_read() {
  const auto mark = [&](TensorId id) { read_[graph_.tensor(id).storage] = true; };
  if (graph_.loss != kNone) mark(graph_.loss);
  for (TensorId output : graph_.outputs) mark(output);
  for (const NodeId id : graph_.nodes.ids()) {
    const Node& node = graph_.node(id);
    if (!recipes_.entry(id).alias) {
      for (TensorId input : graph_.in(node)) mark(input);
    }
    if (!is_wanted(id)) continue;
    for (const Saved& saved : recipes_.saved(id)) {
      if (saved.kind == Saved::Kind::Input) mark(graph_.input(node, saved.index));
      if (saved.kind == Saved::Kind::Output) mark(graph_.output(node, saved.index));
    }
  }
}

void GraphFacts::find_beginnings() {
  for (const Instruction& instruction : graph_.program) {
    if (instruction.kind != Instruction::Kind::Run) continue;
    if (!is_wanted(instruction.node())) continue;
    const ModuleId runs_in = graph_.node(instruction.node()).module;
    for (ModuleId module = runs_in; module != kNone && !has_gradient(module); module = parent(module)) {
      has_gradient_[static_cast<std::size_t>(module)] = true;
    }
  }
  for (const ModuleId encoder : encoders_of_tower(model_)) {
    bool last = false;
    for (const NodeId id : graph_.nodes.ids()) {
      if (lies_in(graph_.node(id).module, encoder)) last = is_wanted(id);
    }
    has_gradient_[static_cast<std::size_t>(encoder)] = last;
  }
  // What a hook makes require a gradient (enable_input_require_grads) a module hands out with one, though none of its
  // operators has it: hooks of a framework see the output only.
  for (TensorId leaf : graph_.leaves) {
    if (graph_.tensor(leaf).producer == kNone) continue;
    const ModuleId made_in = graph_.node(graph_.tensor(leaf).producer).module;
    for (ModuleId module = made_in; module != kNone && !has_gradient(module); module = parent(module)) {
      has_gradient_[static_cast<std::size_t>(module)] = true;
    }
  }
}

// A module without operators, as a dropout of probability 0, hands on what the next one with a gradient reads: tables
// of angles may be made in between. A frozen model beside it hands on nothing that has one.
void GraphFacts::find_passing() {
  std::vector<ModuleId> passing;
  bool empty = false;
  for (const Instruction& instruction : graph_.program) {
    if (instruction.kind == Instruction::Kind::Enter) {
      empty = true;
    } else if (instruction.kind == Instruction::Kind::Exit && empty) {
      if (model_.reference == kNone || !lies_in(instruction.module(), model_.reference)) {
        passing.push_back(instruction.module());
      }
      empty = false;
    } else if (instruction.kind == Instruction::Kind::Run) {
      empty = false;
      if (!is_wanted(instruction.node())) continue;
      const Node& node = graph_.node(instruction.node());
      const std::span<const TensorId> in = graph_.in(node);
      // What works on parameters alone is given nothing that passed.
      if (std::all_of(in.begin(), in.end(), [&](TensorId id) { return is_parameter(id); })) continue;
      const bool wanted = std::any_of(in.begin(), in.end(), [&](TensorId id) {
        return graph_.tensor(id).requires_grad && graph_.tensor(id).producer != kNone;
      });
      for (ModuleId module : passing) {
        has_gradient_[static_cast<std::size_t>(module)] = wanted;
        ends_[static_cast<std::size_t>(module)] = wanted;
      }
      passing.clear();
    }
  }
}

void GraphFacts::find_ends() {
  for (const NodeId id : graph_.nodes.ids()) {
    if (!is_wanted(id)) continue;
    const Node& node = graph_.node(id);
    for (TensorId input : graph_.in(node)) {
      const Tensor& tensor = graph_.tensor(input);
      if (!tensor.requires_grad || tensor.producer == kNone) continue;
      const ModuleId made_in = graph_.node(tensor.producer).module;
      for (ModuleId module = node.module; module != kNone && !lies_in(made_in, module); module = parent(module)) {
        ends_[static_cast<std::size_t>(module)] = true;
      }
    }
  }
}

}  // namespace dsplan
