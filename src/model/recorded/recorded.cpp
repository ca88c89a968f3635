#include "model/recorded.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "core/format.h"
#include "model/op_graphs/op_graph_call.h"

namespace dsplan {
namespace {

std::string_view parent_path(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

// Names of operators outlive every schedule that speaks of them.
const char* kept_name(const std::string& name) {
  static std::set<std::string> names;
  return names.insert(name).first->c_str();
}

// A recording as a graph: each storage is a tensor without gradient, and each value a tensor that lies in one.
class RecordedGraph {
 public:
  RecordedGraph(const ModelSpec& model, const GraphOptions& options, const std::vector<RecordedOp>& ops)
      : recording_(*model.recording), options_(options), ops_(ops) {}

  Graph build(std::int32_t loss) {
    place();
    for (const RecordedOp& op : ops_) step(op);
    graph_.loss = values_[static_cast<std::size_t>(loss)];
    graph_.program.erase(std::remove_if(graph_.program.begin(), graph_.program.end(),
                                        [&](const Instruction& i) {
                                          return i.kind == Instruction::Kind::Drop && i.tensor() == graph_.loss;
                                        }),
                         graph_.program.end());
    // The loop holds the loss by its value alone.
    const StorageId lies = graph_.tensor(graph_.loss).storage;
    for (const TensorId made : storages_) {
      if (graph_.tensor(made).storage == lies) graph_.program.push_back({Instruction::Kind::Drop, made});
    }
    graph_.recorded = std::make_shared<const RecordedOperators>(std::move(operators_));
    return std::move(graph_);
  }

 private:
  TensorId tensor(const RecordedTensor& like, StorageId storage, bool requires_grad, NodeId producer) {
    return graph_.tensors.push({like.shape, like.dtype, storage, requires_grad, producer});
  }

  StorageId storage(Storage made) { return graph_.storages.push(made); }

  void place() {
    for (std::size_t at = 0; at < recording_.parameters.size(); ++at) {
      const RecordedParameter& p = recording_.parameters[at];
      if (p.tied_to != kNone) continue;
      const bool trained = options_.trainable.empty() ? p.trainable : options_.trainable[at];
      const StorageId lies =
          storage({dsplan::storage(p.shape.elements(), p.dtype), static_cast<ParameterId>(at), kNone});
      storages_.push_back(tensor(p, lies, trained, kNone));
    }
    for (std::size_t at = 0; at < recording_.buffers.size(); ++at) {
      const RecordedTensor& b = recording_.buffers[at];
      storages_.push_back(
          tensor(b, storage({dsplan::storage(b.shape.elements(), b.dtype), kNone, static_cast<std::int32_t>(at)}),
                 false, kNone));
    }
    for (const RecordedTensor& b : recording_.batch) {
      storages_.push_back(
          tensor(b, storage({dsplan::storage(b.shape.elements(), b.dtype), kNone, kNone}), false, kNone));
      graph_.batch.push_back(storages_.back());
    }
  }

  void step(const RecordedOp& op) {
    switch (op.kind) {
      case RecordedOp::Kind::Enter:
        stack_.push_back(op.number);
        graph_.program.push_back({Instruction::Kind::Enter, op.number});
        break;
      case RecordedOp::Kind::Exit:
        stack_.pop_back();
        graph_.program.push_back({Instruction::Kind::Exit, op.number});
        break;
      case RecordedOp::Kind::Drop:
        graph_.program.push_back({Instruction::Kind::Drop, storages_[static_cast<std::size_t>(op.number)]});
        break;
      case RecordedOp::Kind::Ask:
        graph_.program.push_back({Instruction::Kind::Read, storages_[static_cast<std::size_t>(op.number)]});
        break;
      case RecordedOp::Kind::Run: run(op); break;
    }
  }

  // Inputs: what gradients go to, then what is read and saved beside. Outputs: values, then what is made.
  void run(const RecordedOp& op) {
    const NodeId id = graph_.nodes.push({});
    std::vector<TensorId> inputs;
    for (const RecordedGradient& gradient : op.gradients) {
      inputs.push_back(gradient.to < 0 ? storages_[static_cast<std::size_t>(-1 - gradient.to)]
                                       : values_[static_cast<std::size_t>(gradient.to)]);
    }
    const std::size_t read_from = inputs.size();
    for (std::int32_t read : op.reads) inputs.push_back(storages_[static_cast<std::size_t>(read)]);
    Recipe recipe;
    std::vector<TensorId> outputs = make(op, id, recipe);
    save(op, inputs, recipe);
    backward(op, recipe);
    Node& node = graph_.nodes[id];
    node.op = Op::Custom;
    node.requires_grad = op.differentiable;
    node.module = stack_.empty() ? 0 : stack_.back();
    node.recorded = static_cast<std::int32_t>(operators_.operators.size());
    // The reads of a parameter that takes no gradient here are no uses of it.
    for (std::size_t i = read_from; i < inputs.size(); ++i) inputs[i] = plain(inputs[i]);
    node.first_operand = static_cast<std::uint32_t>(graph_.operands.size());
    node.input_count = static_cast<std::uint16_t>(inputs.size());
    node.output_count = static_cast<std::uint16_t>(outputs.size());
    graph_.operands.insert(graph_.operands.end(), inputs.begin(), inputs.end());
    graph_.operands.insert(graph_.operands.end(), outputs.begin(), outputs.end());
    operators_.operators.push_back({std::move(recipe)});
    graph_.program.push_back({Instruction::Kind::Run, id});
    for (std::size_t i = 0; i < op.outs.size(); ++i) {
      if (!lasts(outputs[i])) continue;
      graph_.program.push_back({Instruction::Kind::Drop, outputs[i]});
    }
  }

  // A value shares its storage, which the storage's own tensor holds; of the placed, nobody counts.
  [[nodiscard]] bool lasts(TensorId value) const { return graph_.storage_of(value).parameter == kNone; }

  // The same storage without a gradient.
  TensorId plain(TensorId id) {
    const Tensor& own = graph_.tensor(id);
    if (!own.requires_grad) return id;
    const auto found = plain_.find(own.storage.number());
    if (found != plain_.end()) return found->second;
    const Tensor copy = own;
    return plain_[copy.storage.number()] = graph_.tensors.push({copy.shape, copy.dtype, copy.storage, false, kNone});
  }

  std::vector<TensorId> make(const RecordedOp& op, NodeId id, Recipe& recipe) {
    std::vector<TensorId> made;
    for (const Bytes bytes : op.makes) {
      RecordedTensor flat;
      flat.dtype = DType::UInt8;
      flat.shape = Shape{bytes.value()};
      made.push_back(tensor(flat, storage({bytes, kNone, kNone}), false, id));
      storages_.push_back(made.back());
    }
    std::vector<TensorId> outputs;
    for (const RecordedOut& out : op.outs) {
      const StorageId lies = graph_.tensor(storages_[static_cast<std::size_t>(out.storage)]).storage;
      values_.push_back(tensor(out.tensor, lies, true, id));
      outputs.push_back(values_.back());
    }
    recipe.shared_outputs = (std::uint64_t{1} << outputs.size()) - 1;
    for (std::size_t i = 0; i < made.size(); ++i) {
      recipe.slots.push_back({SlotKind::Output, Visibility::Dispatch, DType::UInt8,
                              static_cast<std::uint8_t>(outputs.size() + i), op.makes[i]});
      recipe.forward.push_back({RecipeStep::Kind::Make, static_cast<std::uint8_t>(i)});
    }
    if (!made.empty()) recipe.forward.push_back({RecipeStep::Kind::Kernel, 0});
    recipe.alias = made.empty();
    recipe.unknown = "what kernels of recorded operators take for themselves";
    outputs.insert(outputs.end(), made.begin(), made.end());
    return outputs;
  }

  void save(const RecordedOp& op, std::vector<TensorId>& inputs, Recipe& recipe) {
    recipe.saves_after_kernel = op.saves_after_kernel;
    const auto first_made = static_cast<std::size_t>(storages_.size() - op.makes.size());
    for (std::int32_t saved : op.saves) {
      const auto number = static_cast<std::size_t>(saved);
      if (number >= first_made) {
        const auto index = static_cast<std::uint8_t>(op.outs.size() + number - first_made);
        recipe.saved.push_back({Saved::Kind::Output, index, kept_name(op.name)});
        continue;
      }
      recipe.saved.push_back({Saved::Kind::Input, static_cast<std::uint8_t>(inputs.size()), kept_name(op.name)});
      inputs.push_back(storages_[number]);
    }
  }

  void backward(const RecordedOp& op, Recipe& recipe) {
    if (!op.differentiable) return;
    const std::size_t first = recipe.slots.size();
    for (const RecordedStep& step : op.backward) {
      if (step.kind == RecordedStep::Kind::Drop) {
        const auto slot = static_cast<std::uint8_t>(first + static_cast<std::size_t>(step.slot));
        recipe.backward.push_back({RecipeStep::Kind::Drop, slot});
        continue;
      }
      recipe.backward.push_back({RecipeStep::Kind::Make, static_cast<std::uint8_t>(recipe.slots.size())});
      recipe.slots.push_back({SlotKind::Temporary, Visibility::Dispatch, DType::UInt8, 0, step.bytes});
      recipe.backward.push_back({RecipeStep::Kind::Kernel, 0});
    }
    for (std::size_t i = 0; i < op.gradients.size(); ++i) {
      const RecordedGradient& gradient = op.gradients[i];
      const std::uint64_t bit = std::uint64_t{1} << i;
      if (gradient.from == RecordedGradient::kIncoming) recipe.passes |= bit;
      if (gradient.from >= 0) {
        Slot& slot = recipe.slots[first + static_cast<std::size_t>(gradient.from)];
        slot.kind = SlotKind::Gradient;
        slot.index = static_cast<std::uint8_t>(i);
        slot.dtype = gradient_dtype(gradient);
      }
      if (!gradient.whole) recipe.not_whole |= bit;
      if (gradient.view) recipe.seen_through_view |= bit;
    }
  }

  [[nodiscard]] DType gradient_dtype(const RecordedGradient& gradient) const {
    return gradient.to < 0 ? recording_.parameters[static_cast<std::size_t>(-1 - gradient.to)].dtype
                           : graph_.tensor(values_[static_cast<std::size_t>(gradient.to)]).dtype;
  }

  const ModuleGraph& recording_;
  const GraphOptions& options_;
  const std::vector<RecordedOp>& ops_;
  Graph graph_;
  RecordedOperators operators_;
  std::vector<TensorId> storages_;  // By the recording's number, as are the next.
  std::vector<TensorId> values_;
  std::vector<ModuleId> stack_;
  std::map<std::int32_t, TensorId> plain_;
};

}  // namespace

ModelSpec build_recorded_model(ModuleGraph recording, std::string name) {
  ModelSpec model;
  model.name = std::move(name);
  model.family = "recorded";
  model.source = recording.source;
  model.graph_class = recording.modules.front().type;
  std::map<std::string_view, ModuleId> ids;
  for (const RecordedModule& module : recording.modules) {
    const ModuleId parent = model.modules.empty() ? kNone : ids.at(parent_path(module.path));
    ids[module.path] = static_cast<ModuleId>(model.modules.size());
    model.modules.push_back({module.path, module.type, parent, kNone});
  }
  for (const RecordedParameter& p : recording.parameters) {
    model.parameters.push_back({p.name, p.shape, ids.at(parent_path(p.name)), p.tied_to, p.trainable});
    if (p.dtype != recording.dtype) model.parameters.back().dtype = p.dtype;
    model.parameters.back().maker = p.maker;
    model.parameters.back().behind = p.behind;
  }
  for (const RecordedTensor& b : recording.buffers) {
    const bool follows = is_floating(b.dtype) && b.dtype == recording.dtype;
    model.buffers.push_back({b.name, b.shape, b.dtype, ids.at(parent_path(b.name)), follows});
  }
  for (const RecordedOp& op : recording.ops) {
    const bool enter = op.kind == RecordedOp::Kind::Enter;
    if (enter || op.kind == RecordedOp::Kind::Exit) model.calls.push_back({op.number, enter});
  }
  model.stored_dtype = recording.dtype;
  model.has_graph = true;
  model.recording = std::make_shared<const ModuleGraph>(std::move(recording));
  return model;
}

namespace {

// Which parameters are there under ZeRO-3: those of modules that are called, and what Python has asked for.
class GatheredParameters {
 public:
  explicit GatheredParameters(const ModuleGraph& recording) : recording_(recording) {}

  void pass(const RecordedOp& op) {
    const auto number = static_cast<std::size_t>(op.number);
    if (op.kind == RecordedOp::Kind::Ask) asked_.insert(op.number);
    if (op.kind == RecordedOp::Kind::Enter) open_.insert(recording_.modules[number].path);
    if (op.kind == RecordedOp::Kind::Exit) open_.erase(recording_.modules[number].path);
  }

  // Of a storage's number; others than parameters always are.
  [[nodiscard]] bool holds(std::int32_t storage) const {
    const auto number = static_cast<std::size_t>(storage);
    if (number >= recording_.parameters.size() || recording_.parameters[number].tied_to != kNone) return true;
    if (asked_.contains(storage) || open_.contains(parent_path(recording_.parameters[number].name))) return true;
    return std::any_of(recording_.parameters.begin(), recording_.parameters.end(), [&](const RecordedParameter& one) {
      return one.tied_to == storage && open_.contains(parent_path(one.name));
    });
  }

 private:
  const ModuleGraph& recording_;
  std::set<std::string_view> open_;
  std::set<std::int32_t> asked_;
};

// Recordings made before export_graph.py wrote it down do not say where Python asks for one.
std::optional<std::string> unasked_parameter(const ModuleGraph& recording) {
  GatheredParameters there(recording);
  for (const RecordedOp& op : recording.ops_stage3) {
    there.pass(op);
    for (const std::int32_t read : op.reads) {
      if (!there.holds(read)) return recording.parameters[static_cast<std::size_t>(read)].name;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> recorded_unsupported(const ModelSpec& model, const Training& training, std::int64_t tp) {
  const ModuleGraph& recording = *model.recording;
  const bool stage3 = training.runtime == Runtime::DeepSpeed && training.zero.stage == 3;
  if (stage3 && recording.ops_stage3.empty()) {
    return "a recorded module that keeps a view of a parameter for backward, under ZeRO-3";
  }
  if (const auto unasked = stage3 ? unasked_parameter(recording) : std::nullopt) {
    return formatted(
        "{}, which a recorded module reads while nobody calls the module that has it, under ZeRO-3: record "
        "it again",
        *unasked);
  }
  if (tp > 1) return "a recorded module under tensor parallelism";
  if (is_fsdp(training.runtime)) return "a recorded module under fully_shard";
  if (!training.checkpoint.groups.empty() || !training.checkpoint.modules.empty() ||
      training.checkpoint.text != "none") {
    return "checkpoints around a recorded module's parts: record it with its own checkpoints left out";
  }
  if (training.micro_batch != recording.micro_batch) {
    return formatted("micro-batch {} of a module that was recorded with {}: record it again", training.micro_batch,
                     recording.micro_batch);
  }
  if (training.seq != recording.seq || !training.seq_list.empty()) {
    return formatted("seq {} of a module that was recorded with {}: record it again", training.seq, recording.seq);
  }
  if (training.autocast) return "autocast around a recorded module: record it under autocast";
  if (training.dtype != recording.dtype) {
    return formatted("{} for a module that was recorded in {}: record it again with --dtype", name(training.dtype),
                     name(recording.dtype));
  }
  return std::nullopt;
}

Graph build_recorded_graph(const ModelSpec& model, const GraphOptions& options) {
  const ModuleGraph& recording = *model.recording;
  const bool stage3 = options.stage3_linear && !recording.ops_stage3.empty();
  return RecordedGraph(model, options, stage3 ? recording.ops_stage3 : recording.ops)
      .build(stage3 ? recording.loss_stage3 : recording.loss);
}

}  // namespace dsplan
