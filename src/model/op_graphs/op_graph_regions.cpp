// Op-graphs: checkpoints and custom functions (torch/utils/checkpoint.py, torch/autograd/function.py).
#include <algorithm>
#include <unordered_set>

#include "core/format.h"
#include "model/catalogue/catalogue.h"
#include "model/op_graphs/op_graph_builder.h"

namespace dsplan {
namespace {

bool requires_grad(const OpGraphWriter& w, const Tensors& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [&](TensorId id) { return w.tensor(id).requires_grad; });
}

// What is made at this level and below.
void collect_made(const std::vector<OpGraphOp>& ops, std::unordered_set<std::string_view>& into) {
  for (const OpGraphOp& op : ops) {
    for (const OpGraphName& name : op.outputs) into.insert(name.text);
    collect_made(op.ops, into);
    for (const std::vector<OpGraphOp>& function : op.functions) collect_made(function, into);
  }
}

std::unordered_set<std::string_view> texts_of(const std::vector<OpGraphName>& names) {
  std::unordered_set<std::string_view> texts;
  for (const OpGraphName& name : names) texts.insert(name.text);
  return texts;
}

}  // namespace

// Under no_grad a checkpoint only runs what is inside. A custom function's forward always does.
void OpGraphBuilder::run_plain(const OpGraphOp& op, bool with_gradients) {
  const bool enabled = w_.grad_enabled();
  const Inside outside = inside_;
  w_.set_grad_enabled(enabled && with_gradients);
  inside_ = Inside::Checkpoint;
  w_.enter(add_module(formatted("operator {} ({})", top_, op.op.text), op.op.text));
  run_ops(op.ops, texts_of(op.outputs));
  w_.exit();
  inside_ = outside;
  w_.set_grad_enabled(enabled);
}

// What the function inside reads from around it. The closure of a non-reentrant checkpoint holds it; the backward of a
// reentrant one runs on into it.
bool OpGraphBuilder::captures(const OpGraphOp& op, std::vector<TensorId>& keywords) {
  std::unordered_set<std::string_view> own = texts_of(op.inputs);
  collect_made(op.ops, own);
  std::vector<const OpGraphName*> reads;
  for (const OpGraphOp& inner : op.ops) collect_reads(inner, reads);
  bool legal = true;
  for (const OpGraphName* name : reads) {
    if (own.contains(name->text) || !names_.visible(name->text)) continue;
    const OpGraphNames::Found found = names_.look_up(*name, top_);
    if (found.unknown || w_.lies_in_leaf(found.tensor)) continue;
    if (op.reentrant && w_.tensor(found.tensor).requires_grad) {
      fault(*name,
            formatted("a reentrant checkpoint reads \"{}\", which is not among its inputs: its backward would run on "
                      "into the graph outside and free it",
                      name->text),
            "add it to \"inputs\"");
      legal = false;
    }
    own.insert(name->text);
    keywords.push_back(found.tensor);
  }
  return legal;
}

void OpGraphBuilder::begin_region(Tensors arguments, Tensors keywords) {
  Graph& graph = w_.graph();
  graph.program.push_back({Instruction::Kind::RegionBegins, static_cast<std::int32_t>(graph.regions.size())});
  graph.regions.push_back({std::move(arguments), std::move(keywords), {}, {}});
}

// Without anything that is saved, a non-reentrant checkpoint leaves nothing behind.
void OpGraphBuilder::end_region(const OpGraphOp& op, std::size_t offset, NodeId first) {
  Graph& graph = w_.graph();
  const auto region = static_cast<std::int32_t>(graph.regions.size() - 1);
  graph.program.push_back({Instruction::Kind::RegionEnds, region});
  bool saves = op.reentrant;
  Recipe recipe;
  const NodeId end = graph.nodes.next();
  for (const NodeId id : graph.nodes.ids_from(first)) {
    if (saves) break;
    if (!graph.node(id).requires_grad) continue;
    recipe_of(graph, graph.node(id), recipe);
    saves = !recipe.saved.empty();
  }
  if (!saves) return;
  if (built_.checkpoint.groups.size() == INT16_MAX) {
    if (region == INT16_MAX) fault(offset, "more than 32767 checkpoints are not modelled");
    return;
  }
  CheckpointGroup group{region, region, op.reentrant ? CheckpointKind::Reentrant : CheckpointKind::NonReentrant,
                        op.preserve_rng_state, kept_operators(op)};
  check_kept(op, first, group.kept);
  built_.checkpoint.text = "graph";
  built_.checkpoint.groups.push_back(std::move(group));
  checkpoints_.push_back({offset, first, end});
  if (op.reentrant && first_reentrant_ == std::string::npos) first_reentrant_ = offset;
}

void OpGraphBuilder::check_reentrant_outputs(const OpGraphOp& op, const Tensors& arguments,
                                             const std::vector<OpGraphName>& outputs) {
  for (const OpGraphName& name : outputs) {
    const OpGraphNames::Found found = names_.look_up(name, top_);
    if (found.unknown) return;
    const Tensor& tensor = w_.tensor(found.tensor);
    const bool view = std::any_of(arguments.begin(), arguments.end(),
                                  [&](TensorId id) { return w_.tensor(id).storage == tensor.storage; });
    if (view) fault(name, formatted("{} returning a view of its input is not modelled yet", op.op.text));
    if (tensor.requires_grad) continue;
    fault(name, outputs.size() == 1
                    ? std::string("none of output has requires_grad=True, this checkpoint() is not necessary")
                    : formatted("a reentrant checkpoint whose output \"{}\" does not depend on what requires a "
                                "gradient is not modelled yet",
                                name.text));
  }
}

void OpGraphBuilder::run_checkpoint(const OpGraphOp& op) {
  if (inside_ != Inside::Nothing) {
    fault(op.op, "a checkpoint inside a checkpoint or a custom function is not modelled yet");
    define_unknown(op);
    return;
  }
  Tensors arguments;
  Tensors keywords;
  const bool known = look_up(op.inputs, arguments);
  if (!captures(op, keywords) || !known) {
    define_unknown(op);
    return;
  }
  const bool asked = requires_grad(w_, arguments);
  if (op.reentrant && w_.grad_enabled() && !asked) {
    built_.warnings.push_back(
        file_.document.at(op.op.offset, "None of the inputs have requires_grad=True. Gradients will be None"));
  }
  if (!w_.grad_enabled() || (op.reentrant && !asked)) {
    run_plain(op, false);
    return;
  }
  const NodeId first = w_.graph().nodes.next();
  begin_region(arguments, std::move(keywords));
  run_plain(op, true);
  end_region(op, op.op.offset, first);
  if (op.reentrant) check_reentrant_outputs(op, arguments, op.outputs);
  for (const NodeId id : w_.graph().nodes.ids_from(first)) {
    const Node& node = w_.graph().node(id);
    if (!node.in_place) continue;
    const StorageId storage = w_.tensor(w_.graph().output(node)).storage;
    const bool given = std::any_of(arguments.begin(), arguments.end(),
                                   [&](TensorId argument) { return w_.tensor(argument).storage == storage; });
    if (given) fault(op.op, "a checkpoint that changes its input in place would change it again when recomputed");
  }
}

// size = n // segments; the last chunk takes the remainder and is not checkpointed.
void OpGraphBuilder::run_sequential(const OpGraphOp& op) {
  if (!check_sequential(op)) {
    define_unknown(op);
    return;
  }
  const std::size_t functions = op.functions.size();
  const std::size_t size = functions / static_cast<std::size_t>(op.segments);
  std::size_t at = 0;
  for (std::int64_t segment = 0; segment + 1 < op.segments; ++segment, at += size) {
    run_segment(op, at, at + size, true);
  }
  run_segment(op, at, functions, false);
}

bool OpGraphBuilder::check_sequential(const OpGraphOp& op) {
  const std::size_t before = diagnostics_.count();
  const std::size_t functions = op.functions.size();
  if (inside_ != Inside::Nothing) {
    fault(op.op, "a checkpoint inside a checkpoint or a custom function is not modelled yet");
  }
  if (op.inputs.size() != 1) fault(op.op, "checkpoint_sequential passes one tensor from function to function");
  if (functions == 0) fault(op.op, "\"functions\" is empty");
  if (op.segments > static_cast<std::int64_t>(functions)) {
    fault(op.op, formatted("{} segments of {} functions: range() arg 3 must not be zero", op.segments, functions));
  }
  if (diagnostics_.count() != before) return false;
  // Each function reads what the one before returned, leaves, and what it makes itself.
  std::string_view passed = op.inputs[0].text;
  for (const std::vector<OpGraphOp>& function : op.functions) {
    std::unordered_set<std::string_view> own;
    collect_made(function, own);
    std::vector<const OpGraphName*> reads;
    for (const OpGraphOp& inner : function) collect_reads(inner, reads);
    for (const OpGraphName* name : reads) {
      if (name->text == passed || own.contains(name->text)) continue;
      const bool is_leaf = names_.visible(name->text) && [&] {
        const OpGraphNames::Found found = names_.look_up(*name, top_);
        return found.unknown || w_.is_leaf(found.tensor);
      }();
      if (is_leaf) continue;
      fault(*name, formatted("a function reads its argument \"{}\" and leaves, not \"{}\"", passed, name->text));
    }
    if (function.back().outputs.size() != 1) {
      fault(function.back().op, "the last operator of a function makes what it returns: one tensor");
      return false;
    }
    passed = function.back().outputs[0].text;
  }
  if (op.outputs.size() != 1 || op.outputs[0].text != passed) {
    fault(op.op, formatted("the output is what the last function returns: \"{}\"", passed));
  }
  return diagnostics_.count() == before;
}

// Functions [first, end) as one: the frame of run_function holds each function's argument until it has returned, and
// checkpoint_sequential's own frame the segment's.
void OpGraphBuilder::run_segment(const OpGraphOp& op, std::size_t first, std::size_t end, bool checkpointed) {
  const OpGraphName& given = first == 0 ? op.inputs[0] : op.functions[first - 1].back().outputs[0];
  Tensors arguments;
  if (!look_up({given}, arguments)) {
    define_unknown(op);
    return;
  }
  const bool asked = requires_grad(w_, arguments);
  const bool reentrant_in_vain = op.reentrant && checkpointed && w_.grad_enabled() && !asked;
  if (reentrant_in_vain) {
    built_.warnings.push_back(
        file_.document.at(op.op.offset, "None of the inputs have requires_grad=True. Gradients will be None"));
  }
  const bool region = checkpointed && w_.grad_enabled() && !reentrant_in_vain;
  const bool enabled = w_.grad_enabled();
  if (reentrant_in_vain) w_.set_grad_enabled(false);
  const NodeId first_node = w_.graph().nodes.next();
  if (region) begin_region(arguments, {});
  inside_ = Inside::Checkpoint;
  w_.enter(add_module(formatted("operator {} ({}, functions {} to {})", top_, op.op.text, first, end - 1), op.op.text));
  for (std::size_t i = first; i < end; ++i) {
    const OpGraphName& result = op.functions[i].back().outputs[0];
    run_ops(op.functions[i], {result.text});
    if (i > first) forget(op.functions[i - 1].back().outputs[0].text);
  }
  w_.exit();
  inside_ = Inside::Nothing;
  const OpGraphName& returned = op.functions[end - 1].back().outputs[0];
  if (region) {
    end_region(op, op.op.offset, first_node);
    if (op.reentrant) check_reentrant_outputs(op, arguments, {returned});
  }
  w_.set_grad_enabled(enabled);
  if (first > 0) forget(given.text);
}

// The forward runs without gradients; then the function's own node takes what it saves, and its outputs are its.
void OpGraphBuilder::run_custom(const OpGraphOp& op) {
  Tensors inputs;
  bool known = look_up(op.inputs, inputs);
  std::unordered_set<std::string_view> own = texts_of(op.inputs);
  std::unordered_set<std::string_view> inner;
  collect_made(op.ops, inner);
  std::vector<const OpGraphName*> reads;
  collect_reads(op, reads);
  for (const OpGraphName* name : reads) {
    if (own.contains(name->text) || inner.contains(name->text)) continue;
    if (names_.exists(name->text)) {
      fault(*name, formatted("a custom function sees only its inputs, and \"{}\" is none", name->text));
    } else {
      (void)names_.look_up(*name, top_);
    }
    known = false;
  }
  if (!known) {
    define_unknown(op);
    return;
  }
  const bool enabled = w_.grad_enabled();
  const Inside outside = inside_;
  const NodeId first = w_.graph().nodes.next();
  Returned returned = texts_of(op.outputs);
  for (const OpGraphName& name : op.saves) returned.insert(name.text);
  w_.set_grad_enabled(false);
  inside_ = Inside::Custom;
  run_ops(op.ops, returned);
  inside_ = outside;
  w_.set_grad_enabled(enabled);
  return_from_custom(op, std::move(inputs), first);
}

void OpGraphBuilder::return_from_custom(const OpGraphOp& op, Tensors inputs, NodeId first) {
  Tensors results;
  Tensors saved;
  if (!look_up(op.outputs, results) || !look_up(op.saves, saved)) {
    define_unknown(op);
    return;
  }
  const auto given = [&](TensorId id) {
    return std::any_of(inputs.begin(), inputs.end(),
                       [&](TensorId input) { return w_.tensor(input).storage == w_.tensor(id).storage; });
  };
  for (const NodeId id : w_.graph().nodes.ids_from(first)) {
    const Node& node = w_.graph().node(id);
    if (node.in_place && given(w_.graph().output(node))) {
      fault(id < places_.next() ? places_[id] : op.op.offset,
            "a custom function that changes its input in place (mark_dirty) is not modelled yet");
    }
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!given(results[i])) continue;
    fault(op.outputs[i], "a custom function that returns its input or a view of it is not modelled yet");
    return;
  }
  const auto forget_inner = [&] {
    const std::unordered_set<std::string_view> outputs = texts_of(op.outputs);
    const std::unordered_set<std::string_view> arguments = texts_of(op.inputs);
    for (const OpGraphName& name : op.saves) {
      if (!outputs.contains(name.text) && !arguments.contains(name.text)) forget(name.text);
    }
  };
  if (!w_.grad_enabled() || !requires_grad(w_, inputs)) {
    forget_inner();
    return;
  }
  std::uint64_t saved_inputs = 0;
  std::uint64_t saved_outputs = 0;
  for (TensorId id : saved) {
    const auto result = std::find(results.begin(), results.end(), id);
    if (result != results.end()) {
      saved_outputs |= std::uint64_t{1} << (result - results.begin());
      continue;
    }
    auto input = std::find(inputs.begin(), inputs.end(), id);
    if (input == inputs.end()) input = inputs.insert(inputs.end(), id);
    if (inputs.size() <= Node::kMostInputs) saved_inputs |= std::uint64_t{1} << (input - inputs.begin());
  }
  if (inputs.size() > Node::kMostInputs || results.size() > Node::kMostInputs) {
    fault(op.op, formatted("more than {} tensors in a custom function are not modelled", Node::kMostInputs));
    return;
  }
  const NodeId node = w_.begin(Op::Custom, inputs);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const TensorId inner = results[i];
    const TensorId out = w_.add_alias(node, inner, is_floating(w_.dtype(inner)), false);
    built_.names.resize(w_.graph().tensors.size());
    built_.names[out] = op.outputs[i].text;
  }
  w_.latest().saved_inputs = saved_inputs;
  w_.latest().saved_outputs = saved_outputs;
  w_.run(node);
  for (std::size_t i = 0; i < results.size(); ++i) {
    w_.drop(names_.rewrite(op.outputs[i].text, w_.graph().output(w_.graph().node(node), i)));
  }
  forget_inner();
}

}  // namespace dsplan
