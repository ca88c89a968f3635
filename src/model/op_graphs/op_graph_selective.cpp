// Op-graphs: which results a selective checkpoint keeps.
#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "model/op_graphs/op_graph_builder.h"

#include "core/format.h"

namespace dsplan {

// create_selective_checkpoint_contexts takes operators of the dispatcher.
std::vector<Op> OpGraphBuilder::kept_operators(const OpGraphOp& op) {
  std::vector<Op> kept;
  if (op.reentrant && !op.kept.empty()) {
    fault(op.kept[0], "Passing `context_fn` or `debug` is only supported when use_reentrant=False.");
    return kept;
  }
  for (const OpGraphName& name : op.kept) {
    const OpGraphRow* row = find_op_graph_row(name.text);
    if (row == nullptr) {
      const std::string_view meant = nearest(name.text, op_graph_operators());
      fault(name, formatted("no operator \"{}\"", name.text), did_you_mean(meant));
    } else if (name.text == "linear" || name.text == "matmul") {
      fault(name, formatted("{} is no operator of the dispatcher: its results cannot be kept", name.text),
            name.text == "linear" ? "what it calls is \"mm\", with a bias \"addmm\""
                                  : "what it calls is \"bmm\" or \"mm\"");
    } else if (name.text == "addmm") {
      kept.push_back(Op::Linear);
    } else if (dsplan::name(row->op) != name.text) {
      fault(name, formatted("{} is no operator of the dispatcher: its results cannot be kept", name.text),
            formatted("what it calls is \"{}\"", dsplan::name(row->op)));
    } else {
      kept.push_back(row->op);
      if (row->op == Op::Bmm) kept.push_back(Op::Matmul);
      if (row->op == Op::Mm) kept.push_back(Op::Linear);
    }
  }
  return kept;
}

void OpGraphBuilder::check_kept(const OpGraphOp& op, NodeId first, const std::vector<Op>& kept) {
  const Graph& graph = w_.graph();
  std::unordered_set<StorageId> held;
  for (const NodeId id : graph.nodes.ids_from(first)) {
    const Node& node = graph.node(id);
    const StorageId storage = graph.tensor(graph.output(node)).storage;
    if (node.in_place && held.contains(storage)) {
      fault(op.kept[0], "Tensor cached during selective activation checkpoint has been mutated");
    }
    if (std::find(kept.begin(), kept.end(), node.op) == kept.end()) continue;
    held.insert(storage);
    if (node.op != Op::Linear) continue;
    const std::string_view called = node.input_count == 3 ? "addmm" : "mm";
    if (std::none_of(op.kept.begin(), op.kept.end(), [&](const OpGraphName& name) { return name.text == called; })) {
      fault(op.kept[0], "keeping one of mm and addmm, where a checkpoint calls both, is not modelled yet");
      return;
    }
  }
}

}  // namespace dsplan
