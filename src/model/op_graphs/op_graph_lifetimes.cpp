// Op-graphs: what is left to say when the whole program stands: which nodes a backward pass will run, when the others
// die, and whether an in-place operator has overwritten what one of them saved.
#include <algorithm>
#include <unordered_map>

#include "core/format.h"
#include "model/catalogue/catalogue.h"
#include "model/op_graphs/op_graph_builder.h"

namespace dsplan {

void OpGraphBuilder::finish() {
  Graph& graph = w_.graph();
  for (const OpGraphName& name : file_.outputs) {
    const OpGraphNames::Found found = names_.look_up(name, file_.ops.size());
    if (found.unknown) continue;
    if (std::find(graph.outputs.begin(), graph.outputs.end(), found.tensor) != graph.outputs.end()) {
      fault(name, formatted("\"{}\" is an output twice", name.text));
      continue;
    }
    graph.outputs.push_back(found.tensor);
    built_.has_gradient = built_.has_gradient || w_.tensor(found.tensor).requires_grad;
  }
  built_.names.resize(graph.tensors.size());
  check_gradients();
  if (diagnostics_.any()) return;
  const Indexed<NodeId, bool> wanted = wanted_nodes();
  check_saved(wanted);
  check_checkpoints(wanted);
  forget_nodes(wanted);
}

// torch.autograd.grad.
void OpGraphBuilder::check_gradients() {
  if (file_.autograd_grad.empty()) return;
  if (first_reentrant_ != std::string::npos) {
    fault(
        first_reentrant_,
        "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or passing an `inputs` parameter "
        "to .backward().",
        "set \"reentrant\": false, or leave \"autograd_grad\" out");
    return;
  }
  Tensors tensors;
  if (!look_up(file_.autograd_grad, tensors)) return;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (w_.tensor(tensors[i]).requires_grad) continue;
    fault(file_.autograd_grad[i], "One of the differentiated Tensors does not require grad");
  }
  fault(file_.autograd_grad[0], "torch.autograd.grad is not modelled yet", "backward() is: leave the key out");
}

// From the outputs against the program's order, as the tape goes.
Indexed<NodeId, bool> OpGraphBuilder::wanted_nodes() {
  Graph& graph = w_.graph();
  Indexed<TensorId, bool> tensors(graph.tensors.size(), false);
  for (TensorId output : graph.outputs) tensors[output] = graph.tensor(output).requires_grad;
  Indexed<NodeId, bool> wanted(graph.nodes.size(), false);
  for (const NodeId id : graph.nodes.ids().reversed()) {
    Node& node = graph.nodes[id];
    if (!node.requires_grad) continue;
    std::uint64_t undefined = 0;
    for (std::size_t i = 0; i < node.output_count; ++i) {
      const bool comes = tensors[graph.output(node, i)];
      wanted[id] = wanted[id] || comes;
      if (!comes) undefined |= std::uint64_t{1} << i;
    }
    if (!wanted[id]) continue;
    if (node.op == Op::Split || node.op == Op::Unbind) node.undefined_outputs = undefined;
    for (TensorId input : graph.in(node)) {
      if (graph.tensor(input).requires_grad) tensors[input] = true;
    }
  }
  return wanted;
}

// A node that no output leads to lives as long as one of its outputs or of the nodes behind it does.
void OpGraphBuilder::forget_nodes(const Indexed<NodeId, bool>& wanted) {
  Graph& graph = w_.graph();
  Indexed<NodeId, std::size_t> until(graph.nodes.size(), 0);  // Index of the instruction.
  for (std::size_t at = 0; at < graph.program.size(); ++at) {
    const Instruction& instruction = graph.program[at];
    if (instruction.kind != Instruction::Kind::Drop) continue;
    const NodeId producer = graph.tensor(instruction.tensor()).producer;
    if (producer != kNone) until[producer] = at;
  }
  std::vector<std::vector<NodeId>> dying(graph.program.size());
  bool any = false;
  for (const NodeId id : graph.nodes.ids().reversed()) {
    const Node& node = graph.nodes[id];
    if (!node.requires_grad || wanted[id]) continue;
    dying[until[id]].push_back(id);
    any = true;
    for (TensorId input : graph.in(node)) {
      const NodeId producer = graph.tensor(input).producer;
      if (producer == kNone) continue;
      std::size_t& other = until[producer];
      other = std::max(other, until[id]);
    }
  }
  if (!any) return;
  std::vector<Instruction> program;
  program.reserve(graph.program.size() + graph.nodes.size());
  for (std::size_t at = 0; at < graph.program.size(); ++at) {
    program.push_back(graph.program[at]);
    for (NodeId node : dying[at]) program.push_back({Instruction::Kind::Forget, node});
  }
  graph.program = std::move(program);
}

// Backward would find another version of what a node saved (torch/csrc/autograd/saved_variable.cpp).
void OpGraphBuilder::check_saved(const Indexed<NodeId, bool>& wanted) {
  const Graph& graph = w_.graph();
  std::unordered_map<StorageId, NodeId> saver;  // The first node that saved what lies there.
  Recipe recipe;
  for (const NodeId id : graph.nodes.ids()) {
    const Node& node = graph.node(id);
    if (node.in_place) {
      const StorageId storage = graph.tensor(graph.output(node)).storage;
      const auto found = saver.find(storage);
      if (found != saver.end()) {
        const Diagnostic saved = file_.document.at(places_[found->second], {});
        fault(places_[id],
              "one of the variables needed for gradient computation has been modified by an inplace operation",
              formatted("the {} of line {} saved it", dsplan::name(graph.node(found->second).op), saved.line));
      }
    }
    if (!wanted[id]) continue;
    recipe_of(graph, node, recipe);
    for (const Saved& saved : recipe.saved) {
      if (saved.kind == Saved::Kind::Extra) continue;
      const TensorId tensor =
          saved.kind == Saved::Kind::Input ? graph.input(node, saved.index) : graph.output(node, saved.index);
      saver.try_emplace(graph.tensor(tensor).storage, id);
    }
  }
}

void OpGraphBuilder::check_checkpoints(const Indexed<NodeId, bool>& wanted) {
  for (const Checkpoint& checkpoint : checkpoints_) {
    bool leads_out = false;
    for (const NodeId id : IdRange(checkpoint.first, checkpoint.end)) leads_out = leads_out || wanted[id];
    if (leads_out) continue;
    fault(checkpoint.offset, "a checkpoint that no output of the graph depends on is not modelled yet");
  }
}

}  // namespace dsplan
