#include "model/op_graphs/op_graph.h"

#include <algorithm>
#include <unordered_map>

#include "core/format.h"
#include "model/catalogue/catalogue.h"
#include "model/op_graphs/op_graph_builder.h"

namespace dsplan {
OpGraphBuilder::OpGraphBuilder(const OpGraph& file) : file_(file), names_(file, diagnostics_), w_(built_.model) {
  built_.model.name = file.name;
  built_.model.family = "op-graph";
  built_.model.source = file.source;
  built_.model.graph_class = "op-graph";
  add_module("the graph", "op-graph");
}

BuiltOpGraph OpGraphBuilder::build() {
  read_leaves();
  check_hold();
  w_.enter(0);
  Returned returned;
  for (const OpGraphName& name : file_.outputs) returned.insert(name.text);
  run_ops(file_.ops, returned);
  w_.exit();
  finish();
  diagnostics_.throw_if_any();
  built_.graph = std::move(w_.graph());
  return std::move(built_);
}

void OpGraphBuilder::fault(std::size_t offset, std::string message, std::string hint) {
  diagnostics_.add(file_.document.at(offset, std::move(message), std::move(hint)));
}

void OpGraphBuilder::read_leaves() {
  for (const OpGraphTensor& tensor : file_.tensors) {
    if (tensor.requires_grad && !is_floating(tensor.dtype)) {
      fault(tensor.name, "only Tensors of floating point and complex dtype can require gradients");
    }
    if (names_.visible(tensor.name.text)) continue;  // Defined twice: said before.
    const TensorId id = w_.leaf(tensor.name.text, tensor.shape, tensor.dtype, tensor.requires_grad);
    names_.define(tensor.name.text, id, w_.tensor(id).storage);
    built_.names.push(tensor.name.text);
  }
}

void OpGraphBuilder::check_hold() {
  for (const OpGraphHold& hold : file_.hold) {
    std::size_t made = file_.ops.size();
    for (std::size_t i = 0; i < file_.ops.size(); ++i) {
      const std::vector<OpGraphName>& outputs = file_.ops[i].outputs;
      if (std::any_of(outputs.begin(), outputs.end(), [&](const OpGraphName& n) { return n.text == hold.tensor.text; }))
        made = i;
    }
    if (made == file_.ops.size()) {
      fault(hold.tensor, formatted("no operator of the top level makes \"{}\"", hold.tensor.text),
            names_.nearest_to(hold.tensor.text));
    } else if (hold.until >= static_cast<std::int64_t>(file_.ops.size())) {
      fault(hold.tensor,
            formatted("there is no operator {}: they are numbered from 0 to {}", hold.until, file_.ops.size() - 1));
    } else if (hold.until < static_cast<std::int64_t>(made)) {
      fault(hold.tensor,
            formatted("\"{}\" is made by operator {}, after operator {}", hold.tensor.text, made, hold.until));
    }
  }
}

ModuleId OpGraphBuilder::add_module(const std::string& path, const std::string& type) {
  Module module;
  module.path = path;
  module.type = type;
  module.parent = built_.model.modules.empty() ? kNone : 0;
  built_.model.modules.push_back(std::move(module));
  return static_cast<ModuleId>(built_.model.modules.size() - 1);
}

// For each operator of the level, the names that die after it.
std::vector<std::vector<std::string>> OpGraphBuilder::deaths_of(const std::vector<OpGraphOp>& ops,
                                                                const Returned& returned) const {
  std::unordered_map<std::string_view, std::size_t> last;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    for (const OpGraphName& name : ops[i].outputs) last[name.text] = i;
  }
  std::vector<const OpGraphName*> reads;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    reads.clear();
    collect_reads(ops[i], reads);
    for (const OpGraphName* name : reads) {
      const auto found = last.find(name->text);
      if (found != last.end()) found->second = std::max(found->second, i);
    }
  }
  if (inside_ == Inside::Nothing) {
    for (const OpGraphHold& hold : file_.hold) {
      const auto found = last.find(hold.tensor.text);
      if (found != last.end()) found->second = std::max(found->second, static_cast<std::size_t>(hold.until));
    }
  }
  std::vector<std::vector<std::string>> deaths(ops.size());
  for (const OpGraphOp& op : ops) {
    for (const OpGraphName& name : op.outputs) {
      const auto found = last.find(name.text);
      if (found == last.end() || returned.contains(name.text) || found->second >= ops.size()) continue;
      deaths[found->second].push_back(name.text);
      last.erase(found);
    }
  }
  return deaths;
}

void OpGraphBuilder::run_ops(const std::vector<OpGraphOp>& ops, const Returned& returned) {
  const std::vector<std::vector<std::string>> deaths = deaths_of(ops, returned);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (inside_ == Inside::Nothing) top_ = i;
    run_op(ops[i]);
    for (const std::string& name : deaths[i]) forget(name);
  }
}

void OpGraphBuilder::forget(const std::string& name) {
  const TensorId tensor = names_.forget(name);
  if (tensor != kNone) w_.drop(tensor);
}

void OpGraphBuilder::run_op(const OpGraphOp& op) {
  const bool enabled = w_.grad_enabled();
  if (op.no_grad) w_.set_grad_enabled(false);
  const bool enters =
      inside_ == Inside::Nothing && (op.kind == OpGraphOp::Kind::Operator || op.kind == OpGraphOp::Kind::Custom);
  if (enters) w_.enter(add_module(formatted("operator {} ({})", top_, op.op.text), op.op.text));
  try {
    if (op.kind == OpGraphOp::Kind::Checkpoint) {
      run_checkpoint(op);
    } else if (op.kind == OpGraphOp::Kind::CheckpointSequential) {
      run_sequential(op);
    } else if (op.kind == OpGraphOp::Kind::Custom) {
      run_custom(op);
    } else {
      run_operator(op);
    }
  } catch (const Refusal& refusal) {
    // Arithmetic without a place: the only thing that a rule leaves to the units.
    for (const Diagnostic& diagnostic : refusal.diagnostics()) fault(op.op, diagnostic.message);
    define_unknown(op);
  }
  if (enters) w_.exit();
  place_nodes(op.op.offset);
  w_.set_grad_enabled(enabled);
}

void OpGraphBuilder::place_nodes(std::size_t offset) { places_.resize(w_.graph().nodes.size(), offset); }

void OpGraphBuilder::define_unknown(const OpGraphOp& op) {
  for (const OpGraphName& name : op.outputs) {
    if (!names_.visible(name.text)) names_.define_unknown(name.text);
  }
}

bool OpGraphBuilder::look_up(const std::vector<OpGraphName>& names, Tensors& tensors) {
  bool known = true;
  for (const OpGraphName& name : names) {
    const OpGraphNames::Found found = names_.look_up(name, top_);
    known = known && !found.unknown;
    tensors.push_back(found.tensor);
  }
  return known;
}

bool OpGraphBuilder::may_run(const OpGraphOp& op, const OpGraphRow& row) {
  if (op.inputs.size() < row.least || op.inputs.size() > row.most) {
    const std::string wanted =
        row.least == row.most ? std::to_string(row.least) : formatted("{} to {}", row.least, row.most);
    fault(op.op,
          formatted("{} takes {} tensor{}, not {}", op.op.text, wanted, wanted == "1" ? "" : "s", op.inputs.size()));
    return false;
  }
  if (op.in_place && !row.in_place) {
    fault(op.op, formatted("{} has no in-place form", op.op.text));
    return false;
  }
  return true;
}

void OpGraphBuilder::run_operator(const OpGraphOp& op) {
  const OpGraphRow* row = find_op_graph_row(op.op.text);
  if (row == nullptr) {
    std::string hint = did_you_mean(nearest(op.op.text, op_graph_operators()));
    if (hint.empty()) hint = "`dsplan show operators` lists them";
    fault(op.op, formatted("no operator \"{}\"", op.op.text), std::move(hint));
  }
  Tensors inputs;
  const bool known = look_up(op.inputs, inputs);
  if (row == nullptr || !may_run(op, *row) || !known) {
    define_unknown(op);
    return;
  }
  Value attributes;
  attributes.kind = Value::Kind::Object;
  attributes.offset = op.op.offset;
  attributes.members = op.attributes;
  OpCall call(w_, op, std::move(inputs), attributes, file_.document, diagnostics_);
  try {
    if (op.in_place) check_in_place(call);
    const Tensors made = row->rule(call, row->op);
    call.attributes.refuse_unread(op.op.text);
    bind(call, made);
  } catch (const OpFault&) {
    define_unknown(op);
  }
}

// What PyTorch refuses of a tensor that is to be written in place, and what is not modelled.
void OpGraphBuilder::check_in_place(OpCall& call) {
  const TensorId x = call.in[0];
  const Tensor& tensor = w_.tensor(x);
  if (tensor.requires_grad && !w_.grad_enabled()) {
    call.not_modelled("changing a tensor that requires a gradient under no_grad");
  }
  if (tensor.requires_grad && w_.is_leaf(x)) {
    call.refuse_input(0, "a leaf Variable that requires grad is being used in an in-place operation.");
  }
  const Strides& strides = w_.strides(x);
  for (std::size_t i = 0; i < tensor.shape.rank; ++i) {
    if (strides[i] != 0 || tensor.shape.dims[i] == 1) continue;
    call.refuse_input(0,
                      "unsupported operation: more than one element of the written-to tensor refers to a single "
                      "memory location");
  }
  bool gradients = false;
  for (TensorId input : call.in) gradients = gradients || (w_.grad_enabled() && w_.tensor(input).requires_grad);
  if (!gradients) return;
  if (w_.is_view(x)) call.not_modelled("changing a view in place where gradients are needed");
  if (names_.shared(call.op.inputs[0].text)) {
    call.not_modelled("changing a tensor in place that has live views, where gradients are needed");
  }
}

void OpGraphBuilder::check_in_place_result(OpCall& call, TensorId made) {
  const Node& node = w_.graph().node(w_.tensor(made).producer);
  if (!node.requires_grad) return;
  Recipe recipe;
  recipe_of(w_.graph(), node, recipe);
  for (const Saved& saved : recipe.saved) {
    if (saved.kind == Saved::Kind::Input && saved.index == 0) {
      call.not_modelled(formatted("{} in place, for which PyTorch keeps a copy of its input,", call.op.op.text));
    }
  }
}

void OpGraphBuilder::bind(OpCall& call, const Tensors& made) {
  const OpGraphOp& op = call.op;
  if (made.size() != op.outputs.size()) {
    call.refuse(formatted("{} gives {} tensor{}, and {} are named", op.op.text, made.size(),
                          made.size() == 1 ? "" : "s", op.outputs.size()));
  }
  if (op.in_place && made[0] != call.in[0]) check_in_place_result(call, made[0]);
  for (std::size_t i = 0; i < made.size(); ++i) {
    const std::string& name = op.outputs[i].text;
    if (names_.visible(name)) continue;  // Defined twice: said before.
    const StorageId storage = w_.tensor(made[i]).storage;
    if (op.in_place || made[i] == call.in[0]) {
      names_.define(name, made[i], storage, &op.inputs[0].text);
      if (made[i] == call.in[0]) continue;
      w_.drop(names_.rewrite(name, made[i]));
    } else {
      names_.define(name, made[i], storage);
    }
    built_.names.resize(w_.graph().tensors.size());
    built_.names[made[i]] = name;
  }
}

BuiltOpGraph build_op_graph(const OpGraph& file) { return OpGraphBuilder(file).build(); }

}  // namespace dsplan
