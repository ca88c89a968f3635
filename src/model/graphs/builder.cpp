#include "model/graphs/builder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/cudnn/convolution_scratch.h"
#include "core/error.h"
#include "core/format.h"
#include "model/lora.h"

namespace dsplan {

GraphBuilder::GraphBuilder(const ModelSpec& model, const GraphOptions& options)
    : model_(model),
      options_(&options),
      dims_(&model.dims),
      parameter_tensors_(model.parameters.size(), kNone),
      buffer_tensors_(model.buffers.size(), kNone),
      stack_{0},
      autocast_cache_(model.parameters.size(), kNone) {
  const auto layers = static_cast<std::size_t>(model.dims.layers);
  graph_.nodes.reserve(layers * 80 + 40);
  graph_.operands.reserve(layers * 230 + 120);
  graph_.tensors.reserve(layers * 110 + 60);
  graph_.storages.reserve(layers * 70 + 60);
  graph_.program.reserve(layers * 220 + 120);
  references_.reserve(layers * 110 + 60);
}

ModuleId GraphBuilder::child(ModuleId parent, std::string_view name) const {
  ModuleId id = model_.child(parent, name);
  if (id == kNone) id = model_.child(inside_wrappers(model_, parent), name);
  DSPLAN_CHECK(id != kNone, formatted("{} has no child {}", model_.module_at(parent).path, name));
  return id;
}

void GraphBuilder::enter(ModuleId module) {
  stack_.push_back(module);
  graph_.program.push_back({Instruction::Kind::Enter, module});
  if (const ModuleId copy = trained_copy(model_, module); copy != kNone) enter(copy);
  const auto leaf = wrapped_parameter(model_.module_at(module));
  if (!leaf) return;
  if (!options_->reference) adapted_parameters_.enter(*this, module, *leaf);  // Else peft's disable_adapter.
  enter(child(module, "base_layer"));
}

void GraphBuilder::exit(ModuleId module) {
  if (const ModuleId copy = trained_copy(model_, module); copy != kNone) GraphBuilder::exit(copy);
  if (wrapped_parameter(model_.module_at(module))) {
    GraphBuilder::exit(child(module, "base_layer"));
    if (!options_->reference) adapted_parameters_.exit(*this);
  }
  DSPLAN_CHECK(stack_.back() == module, "modules must be left in the order in which they were entered");
  stack_.pop_back();
  graph_.program.push_back({Instruction::Kind::Exit, module});
}

// peft's LoraModel calls the module that it wraps (0.21.2, tuners_utils.py, BaseTuner.forward).
void GraphBuilder::enter_model(std::initializer_list<TensorId*> given) {
  if (causal() == model_.reference) return enter(causal());
  // The hook before the forward (torch/distributed/fsdp/_fully_shard/_fsdp_state.py, _pre_forward): the call holds what
  // has been cast until the hooks behind the forward have run.
  for (TensorId* const input : given) {
    const bool cast_it = options_->casts_inputs && *input != kNone && is_floating(dtype(*input));
    if (!cast_it || dtype(*input) == options_->dtype) continue;
    *input = cast(*input, options_->dtype);
    received_.push_back(*input);
  }
  enter(0);
  if (causal() == 0) return;
  enter(child(0, "base_model"));
  enter(causal());
}

void GraphBuilder::exit_model() {
  if (causal() == model_.reference) return exit(causal());
  if (causal() != 0) {
    GraphBuilder::exit(causal());
    GraphBuilder::exit(child(0, "base_model"));
  }
  GraphBuilder::exit(0);
  for (const TensorId own : std::exchange(received_, {})) drop({own});
}

DType GraphBuilder::dtype_of(const Parameter& parameter) const {
  const DType own = parameter.dtype.value_or(options_->dtype);
  const bool cast = options_->one_dtype || (parameter.made_by_class && options_->narrow_tables);
  return cast && is_floating(own) ? options_->dtype : own;
}

std::int32_t GraphBuilder::begin_region(Region region) {
  if (options_->unrecorded) return kNone;
  const auto layer = static_cast<std::int32_t>(graph_.regions.size());
  graph_.regions.push_back(std::move(region));
  graph_.program.push_back({Instruction::Kind::RegionBegins, layer});
  return layer;
}

void GraphBuilder::end_region(std::int32_t layer) {
  if (layer != kNone) graph_.program.push_back({Instruction::Kind::RegionEnds, layer});
}

TensorId GraphBuilder::add_tensor(Shape shape, DType dtype, StorageId storage, bool requires_grad, NodeId producer) {
  references_.push(1);
  return graph_.tensors.push({shape, dtype, storage, requires_grad, producer});
}

TensorId GraphBuilder::parameter_of(ModuleId module, std::string_view leaf) {
  const ModuleId copy = trained_copy(model_, module);
  ParameterId id = model_.parameter(copy == kNone ? module : copy, leaf);
  if (id == kNone) return kNone;
  if (const TensorId shown = adapted_parameters_.shown(*this, module, leaf); shown != kNone) return shown;
  const Parameter& named = model_.parameter_at(id);
  if (named.tied_to != kNone) id = named.tied_to;
  TensorId& tensor = parameter_tensors_[static_cast<std::size_t>(id)];
  if (tensor == kNone) {
    const Parameter& parameter = model_.parameter_at(id);
    const bool trained =
        options_->trainable.empty() ? parameter.trainable : options_->trainable[static_cast<std::size_t>(id)];
    const DType type = dtype_of(parameter);
    const StorageId own = graph_.storages.push({storage(parameter.shape.elements(), type), id, kNone});
    tensor = add_tensor(parameter.shape, type, own, trained, kNone);
    references_.back() = 0;
  }
  return tensor;
}

TensorId GraphBuilder::buffer(std::string_view leaf, ModuleId module) {
  const ModuleId of = module == kNone ? stack_.back() : module;
  const std::string& path = model_.module_at(of).path;
  const std::string name = path.empty() ? std::string(leaf) : path + "." + std::string(leaf);
  for (std::size_t at = 0; at < model_.buffers.size(); ++at) {
    const ModelBuffer& named = model_.buffers[at];
    if (named.name != name) continue;
    if (buffer_tensors_[at] == kNone) {
      const bool made_narrow = options_->narrow_tables && named.dtype == DType::Float32 && !named.converted;
      const bool narrow = made_narrow || (options_->casts_buffers && is_floating(named.dtype));
      const DType follows = narrow ? options_->dtype : options_->kept_dtype.value_or(options_->dtype);
      const DType dtype = named.follows_model_dtype || narrow ? follows : named.dtype;
      Shape shape = named.shape;
      if (named.by_length) shape.dims[0] = options_->seq;
      graph_.storages.push({storage(shape.elements(), dtype), kNone, static_cast<std::int32_t>(at)});
      buffer_tensors_[at] = add_tensor(shape, dtype, graph_.storages.last(), false, kNone);
      references_.back() = 0;
    }
    return buffer_tensors_[at];
  }
  DSPLAN_CHECK(false, formatted("no buffer {}", leaf));
}

TensorId GraphBuilder::batch_input(Shape shape, DType dtype) {
  const NodeId node = add_node(Op::Input, {}, false);
  const TensorId out = add_output(shape, dtype, node);
  return out;  // Not run: the training loop makes the batch before it calls the model.
}

NodeId GraphBuilder::add_node(Op op, std::span<const TensorId> inputs, bool differentiable) {
  Node node;
  node.op = op;
  node.module = stack_.back();
  node.first_operand = static_cast<std::uint32_t>(graph_.operands.size());
  node.grad_enabled = grad_enabled_;
  for (TensorId input : inputs) {
    if (input == kNone) continue;
    DSPLAN_CHECK(node.input_count < Node::kMostInputs, "too many inputs");
    const Tensor& tensor = graph_.tensor(input);
    DSPLAN_CHECK(references_[input] > 0 || tensor.producer == kNone,
                 formatted("{} reads a tensor that Python no longer holds", dsplan::name(op)));
    graph_.operands.push_back(input);
    ++node.input_count;
    node.requires_grad = node.requires_grad || (differentiable && grad_enabled_ && tensor.requires_grad);
  }
  return graph_.nodes.push(node);
}

TensorId GraphBuilder::add_output(Shape shape, DType dtype, NodeId id) {
  graph_.storages.push({storage(shape.elements(), dtype), kNone, kNone});
  const bool requires_grad = graph_.node(id).requires_grad;
  return output_of(id, add_tensor(shape, dtype, graph_.storages.last(), requires_grad, id));
}

// The latest node's operands are the last of the pool: its outputs join them there.
TensorId GraphBuilder::output_of(NodeId id, TensorId out) {
  DSPLAN_CHECK(id == graph_.nodes.last(), "only the latest node takes outputs");
  graph_.operands.push_back(out);
  ++graph_.nodes.back().output_count;
  return out;
}

void GraphBuilder::run(NodeId node) { graph_.program.push_back({Instruction::Kind::Run, node}); }

TensorId GraphBuilder::make(Op op, Shape shape, DType dtype, std::initializer_list<TensorId> inputs,
                            bool differentiable, double number) {
  const NodeId node = add_node(op, {inputs.begin(), inputs.size()}, differentiable);
  graph_.nodes.back().number = number;
  const TensorId out = add_output(shape, dtype, node);
  run(node);
  return out;
}

TensorId GraphBuilder::filled(Shape shape, DType dtype, double number) {
  const TensorId out = make(Op::Arange, shape, dtype, {}, false, number);
  graph_.nodes.back().filled = true;
  return out;
}

namespace {

// Under autocast in fp32 (AT_FORALL_FP32, AT_FORALL_FP32_SET_OPT_DTYPE), among the operators with one input. Not
// log_softmax: cross_entropy names its dtype.
bool autocast_to_fp32(Op op) {
  return op == Op::PowScalar || op == Op::Rsqrt || op == Op::Softmax || op == Op::Softplus || op == Op::Exp ||
         op == Op::Expm1;
}

}  // namespace

void GraphBuilder::require_grad(TensorId x) {
  if (options_->unrecorded) return;  // What it would make a leaf has no graph.
  Tensor& tensor = graph_.tensors[x];
  if (tensor.requires_grad) return;
  tensor.requires_grad = true;
  graph_.leaves.push_back(x);
}

TensorId GraphBuilder::unary(Op op, TensorId x, double number, std::uint8_t bounds) {
  const TensorId operand = autocast_to_fp32(op) ? widened(x) : keep(x);
  const TensorId out = make(op, shape(operand), dtype(operand), {operand}, true);
  graph_.nodes.back().number = number;
  graph_.nodes.back().bounds = bounds;
  drop({operand});
  return out;
}

TensorId GraphBuilder::safe_softmax(TensorId x) {
  const TensorId out = unary(Op::Softmax, x);
  graph_.nodes.back().safe = true;
  return out;
}

TensorId GraphBuilder::keep(TensorId x) {
  ++references_[x];
  return x;
}

TensorId GraphBuilder::cast(TensorId x, DType to) {
  return dtype(x) == to ? keep(x) : make(Op::Cast, shape(x), to, {x}, true);
}

namespace {

// A number among tensors, which has no dimensions, widens nothing that floats as well.
DType promoted(const Tensor& a, const Tensor& b) {
  const bool floats = is_floating(a.dtype) && is_floating(b.dtype);
  if (floats && (a.shape.rank == 0) != (b.shape.rank == 0)) return a.shape.rank == 0 ? b.dtype : a.dtype;
  return bytes_per_element(a.dtype) >= bytes_per_element(b.dtype) ? a.dtype : b.dtype;
}

}  // namespace

TensorId GraphBuilder::binary(Op op, TensorId a, TensorId b) {
  // Broadcasting as PyTorch does it, for equal ranks or a lower-rank operand aligned to the right.
  const Shape& left = shape(a);
  const Shape& right = shape(b);
  Shape result = left.rank >= right.rank ? left : right;
  const Shape& other = left.rank >= right.rank ? right : left;
  for (std::uint8_t i = 0; i < other.rank; ++i) {
    std::int64_t& dim = result.dims[result.rank - 1U - i];
    const std::int64_t with = other.dims[other.rank - 1U - i];
    DSPLAN_CHECK(dim == with || dim == 1 || with == 1,
                 formatted("shapes {} and {} do not broadcast", left.text(), right.text()));
    dim = std::max(dim, with);
  }
  return make(op, result, promoted(graph_.tensor(a), graph_.tensor(b)), {a, b}, true);
}

namespace {

// Of operands that autocast has seen; their references are used up.
TensorId product_of(GraphBuilder& g, Product kind, TensorId x, TensorId weight, TensorId bias, std::int64_t features) {
  Shape made = g.shape(x);
  made.dims[made.rank - 1U] = features;
  const TensorId out = g.product(kind, {x, weight, bias}, made, g.dtype(x));
  g.drop({x, weight});
  if (bias != kNone) g.drop({bias});
  return out;
}

}  // namespace

TensorId GraphBuilder::linear(TensorId x, TensorId weight, TensorId bias, std::int64_t features) {
  const Product kind = options_->stage3_linear ? Product::Function : Product::Transposed;
  // C++ evaluates the casts of linear(x, weight, bias) from the last argument to the first.
  const TensorId low_bias = lowered(bias);
  const TensorId low_weight = lowered(weight);
  const TensorId low_x = lowered(x);
  return product_of(*this, kind, low_x, low_weight, low_bias, features);
}

// addmm(bias, x, weight).
TensorId GraphBuilder::conv1d(TensorId x, TensorId weight, TensorId bias, std::int64_t features) {
  const TensorId low_weight = lowered(weight);
  const TensorId low_x = lowered(x);
  const TensorId low_bias = lowered(bias);
  return product_of(*this, Product::Direct, low_x, low_weight, low_bias, features);
}

TensorId GraphBuilder::product(Product kind, std::initializer_list<TensorId> operands, const Shape& made, DType dtype,
                               double number) {
  const TensorId out = make(Op::Linear, made, dtype, operands, true, number);
  graph_.nodes.back().product = kind;
  return out;
}

TensorId GraphBuilder::dropout(TensorId x, double p) {
  if (p == 0) return keep(x);
  return unary(Op::Dropout, x, p);
}

TensorId GraphBuilder::view(TensorId x, Shape to, Op op) {
  const NodeId node = add_node(op == Op::Expand && shape(x) == to ? Op::View : op, {&x, 1}, op != Op::Detach);
  const bool requires_grad = graph_.nodes.back().requires_grad;
  const TensorId out = output_of(node, add_tensor(to, dtype(x), graph_.tensor(x).storage, requires_grad, node));
  run(node);
  return out;
}

TensorId GraphBuilder::view(TensorId x, Shape to, std::initializer_list<ViewStep> steps) {
  const TensorId out = view(x, to);
  graph_.nodes.back().first_step = static_cast<std::uint32_t>(graph_.view_steps.size());
  graph_.nodes.back().step_count = static_cast<std::uint32_t>(steps.size());
  graph_.view_steps.insert(graph_.view_steps.end(), steps);
  return out;
}

TensorId GraphBuilder::view_copied_back(TensorId x, Shape to, std::initializer_list<ViewStep> steps) {
  const TensorId out = view(x, to, steps);
  graph_.nodes.back().gradient_copied = true;
  return out;
}

TensorId GraphBuilder::copy(TensorId x) { return make(Op::Contiguous, shape(x), dtype(x), {x}, true); }

TensorId GraphBuilder::slice(TensorId x, std::int8_t dim, std::int64_t start, std::int64_t length, bool of_pairs) {
  Shape part = shape(x);
  part.dims[static_cast<std::size_t>(dim)] = length;
  TensorId out = kNone;
  if (of_pairs) {
    DSPLAN_CHECK(dim + 1 == part.rank, "pairs are of the last dimension");
    Shape pairs = part;
    pairs.dims[pairs.rank++] = 2;
    const auto last = static_cast<std::int8_t>(dim + 1);
    out = view(x, part, {step_reshape(pairs), step_narrow(last, start, 1), step_reshape(part)});
  } else {
    out = view(x, part, {step_narrow(dim, start, length)});
  }
  graph_.nodes.back().op = Op::Slice;
  return out;
}

std::vector<TensorId> GraphBuilder::split(Op op, TensorId x, const std::vector<Shape>& parts, std::int8_t axis) {
  const NodeId node = add_node(op, {&x, 1}, true);
  graph_.nodes.back().axis = axis;
  const bool requires_grad = graph_.nodes.back().requires_grad;
  std::vector<TensorId> outputs;
  for (const Shape& part : parts) {
    outputs.push_back(output_of(node, add_tensor(part, dtype(x), graph_.tensor(x).storage, requires_grad, node)));
  }
  run(node);
  return outputs;
}

TensorId GraphBuilder::cat(TensorId a, TensorId b, Op op, std::int8_t axis) {
  const std::size_t along = axis < 0 ? shape(a).rank - 1U : static_cast<std::size_t>(axis);
  Shape whole = shape(a);
  whole.dims[along] += shape(b).dims[along];
  Shape made = op == Op::Stack ? shape(a) : whole;
  if (op == Op::Stack) made.dims[made.rank++] = 2;
  const DType wide = bytes_per_element(dtype(a)) >= bytes_per_element(dtype(b)) ? dtype(a) : dtype(b);
  const TensorId joint = make(op, made, wide, {a, b}, true);
  graph_.nodes.back().axis = static_cast<std::int8_t>(op == Op::Stack ? made.rank - 1U : along);
  if (op == Op::Cat) return joint;
  const TensorId flat = view(joint, whole);
  drop({joint});
  return flat;
}

TensorId GraphBuilder::cat(const std::vector<TensorId>& parts, std::int8_t axis) {
  const auto along = static_cast<std::size_t>(axis);
  const NodeId node = add_node(Op::Cat, parts, true);
  Shape whole = shape(parts.front());
  whole.dims[along] = 0;
  for (const TensorId part : parts) whole.dims[along] += shape(part).dims[along];
  const TensorId out = add_output(whole, dtype(parts.front()), node);
  graph_.nodes.back().axis = axis;
  run(node);
  return out;
}

TensorId GraphBuilder::matmul(TensorId a, TensorId b) {
  Shape result = shape(a);
  result.dims[result.rank - 1U] = shape(b).dims[shape(b).rank - 1U];
  const TensorId low_b = lowered(b);
  const TensorId low_a = lowered(a);
  const TensorId out = make(Op::Matmul, result, dtype(low_a), {low_a, low_b}, true);
  drop({low_a, low_b});
  return out;
}

TensorId GraphBuilder::attention(TensorId q, TensorId k, TensorId v, TensorId bias, double dropout, HeadsLie heads) {
  const TensorId low_v = lowered(v);
  const TensorId low_k = lowered(k);
  const TensorId low_q = lowered(q);
  Shape result = shape(q);
  result.dims[3] = shape(v).dims[3];
  const TensorId out = make(Op::Attention, result, dtype(low_q), {low_q, low_k, low_v, bias}, true, dropout);
  const bool takes_bias = options_->attention == AttentionKernel::CuDnn;
  Node& node = graph_.nodes.back();
  const bool wide = shape(q).dims[3] > kWidestHeads;
  node.attention = !wide && (bias == kNone || takes_bias) ? options_->attention : AttentionKernel::MemoryEfficient;
  node.by_head = heads.by_head;
  node.full_attention = heads.full;
  node.padding = static_cast<std::uint8_t>(heads.padding);
  node.scale = heads.scale;
  drop({low_q, low_k, low_v});
  return out;
}

std::pair<TensorId, TensorId> GraphBuilder::select(Op op, TensorId x, Shape values) {
  const NodeId node = add_node(op, {&x, 1}, true);
  const TensorId first = add_output(values, dtype(x), node);
  const TensorId second = add_output(values, DType::Int64, node);
  graph_.tensors[second].requires_grad = false;
  run(node);
  return {first, second};
}

std::pair<TensorId, TensorId> GraphBuilder::nll_loss(TensorId log_probabilities, TensorId target, Reduction reduction) {
  const TensorId wide = widened(log_probabilities);
  const Shape result = reduction == Reduction::None ? shape(target) : Shape{};
  const TensorId loss = make(Op::NllLoss, result, dtype(wide), {wide, target}, true);
  graph_.nodes.back().reduction = reduction;
  drop({wide});
  return {loss, kNone};
}

TensorId GraphBuilder::in_place(Op op, TensorId x, TensorId other, std::int8_t axis, std::int64_t start,
                                TensorId third) {
  const NodeId node = add_node(op, std::array{x, other, third}, true);
  graph_.nodes.back().in_place = true;
  graph_.nodes.back().axis = axis;
  graph_.nodes.back().number = static_cast<double>(start);
  const bool requires_grad = graph_.nodes.back().requires_grad;
  const TensorId out = output_of(node, add_tensor(shape(x), dtype(x), graph_.tensor(x).storage, requires_grad, node));
  run(node);
  return out;
}

void GraphBuilder::drop(std::initializer_list<TensorId> tensors, TensorId read) {
  if (read != kNone) graph_.program.push_back({Instruction::Kind::Read, read});
  for (TensorId id : tensors) {
    std::int32_t& count = references_[id];
    DSPLAN_CHECK(count > 0, "a tensor is dropped twice");
    const bool made_here = graph_.tensor(id).producer != kNone;  // Parameters and buffers belong to their module.
    if (--count == 0 && made_here) graph_.program.push_back({Instruction::Kind::Drop, id});
  }
}

void GraphBuilder::forget(TensorId made) {
  const NodeId node = graph_.tensor(made).producer;
  if (graph_.node(node).requires_grad) graph_.program.push_back({Instruction::Kind::Forget, node});
}

void GraphBuilder::give_to_loop(TensorId output) {
  if (!options_->holds_outputs) return drop({output});
  graph_.held.push_back(output);
}

Graph GraphBuilder::finish(TensorId loss) {
  graph_.loss = loss;
  for (const TensorId id : references_.ids()) {
    const auto is_among = [id](const std::vector<TensorId>& list) {
      return std::find(list.begin(), list.end(), id) != list.end();
    };
    const bool held = id == loss || is_among(graph_.batch) || is_among(graph_.held);
    DSPLAN_CHECK(
        references_[id] == (held ? 1 : 0),
        formatted("tensor {} of {} ends with {} references", id.number(),
                  graph_.tensors[id].producer == kNone ? "nothing" : name(graph_.node(graph_.tensors[id].producer).op),
                  references_[id]));
  }
  return std::move(graph_);
}

TensorId mean_last(GraphBuilder& g, TensorId x) {
  Shape result = g.shape(x);
  result.dims[result.rank - 1U] = 1;
  return g.make(Op::MeanLast, result, g.dtype(x), {x}, true);
}

TensorId embedding(GraphBuilder& g, TensorId weight, TensorId ids, bool turned, std::int64_t padding) {
  Shape result = g.shape(ids);
  result.dims[result.rank++] = g.shape(weight).dims[1];
  const TensorId out =
      g.make(Op::Embedding, result, g.dtype(weight), {weight, ids}, true, static_cast<double>(padding + 1));
  g.graph_.nodes.back().by_head = turned;
  return out;
}

TensorId counted(GraphBuilder& g, std::int64_t count, DType dtype, std::int64_t first, std::int64_t step) {
  const TensorId out = g.make(Op::Arange, Shape{count}, dtype, {}, false, static_cast<double>(first));
  g.graph_.nodes.back().scale = static_cast<double>(step);
  return out;
}

TensorId picked(GraphBuilder& g, TensorId x, TensorId index, std::int8_t axis) {
  Shape part = g.shape(x);
  part.dims[static_cast<std::size_t>(axis)] = g.shape(index).dims[0];
  const TensorId out = g.make(Op::Index, part, g.dtype(x), {x, index}, true);
  g.graph_.nodes.back().axis = axis;
  return out;
}

TensorId log_softmax(GraphBuilder& g, TensorId x, bool strided) { return g.unary(Op::LogSoftmax, x, strided ? 1 : 0); }

TensorId layer_norm(GraphBuilder& g, TensorId x, TensorId weight, TensorId bias, bool strided) {
  const TensorId wide_bias = g.widened(bias);
  const TensorId wide_weight = g.widened(weight);
  const TensorId wide = g.widened(x);
  const double epsilon = g.dims().norm_epsilon;
  const TensorId out =
      g.make(Op::LayerNorm, g.shape(wide), g.dtype(wide), {wide, wide_weight, wide_bias}, true, epsilon);
  g.graph_.nodes.back().by_head = strided;
  g.drop({wide});
  if (wide_weight != kNone) g.drop({wide_weight});
  if (wide_bias != kNone) g.drop({wide_bias});
  return out;
}

TensorId arange(GraphBuilder& g, std::int64_t count) { return g.make(Op::Arange, Shape{count}, DType::Int64, {}); }

void keep_for_next(GraphBuilder& g, TensorId tensor) {
  --g.references_[tensor];
  g.graph_.program.push_back({Instruction::Kind::Keep, tensor});
}

void instruct(GraphBuilder& g, Instruction::Kind kind, TensorId about) { g.graph_.program.push_back({kind, about}); }

TensorId convolution(GraphBuilder& g, const Shape& made, TensorId x, bool turned, bool by_place) {
  const TensorId bias = g.parameter("bias");
  const TensorId low_bias = g.lowered(bias);
  const TensorId low_weight = g.lowered(g.parameter("weight"));
  const TensorId low_x = g.lowered(x);
  const TensorId out = g.make(Op::Conv2d, made, g.dtype(low_weight), {low_x, low_weight, low_bias}, true,
                              static_cast<double>(cudnn_with(g.options().torch)));
  g.graph_.nodes.back().by_head = turned;  // The gradient comes so.
  g.graph_.nodes.back().gradient_copied = by_place;
  g.drop({low_x, low_weight});
  if (low_bias != kNone) g.drop({low_bias});
  return out;
}

TensorId average_pool(GraphBuilder& g, TensorId x, std::int64_t side, bool turned) {
  const Shape& shape = g.shape(x);
  const TensorId out = g.make(Op::AvgPool2d, Shape{shape.dims[0], shape.dims[1], side, side}, g.dtype(x), {x}, true);
  g.graph_.nodes.back().by_head = turned;
  return out;
}

std::vector<TensorId> split_last(GraphBuilder& g, TensorId x, const std::vector<std::int64_t>& widths) {
  std::vector<Shape> parts(widths.size(), g.shape(x));
  const auto last = static_cast<std::size_t>(g.shape(x).rank - 1);
  for (std::size_t i = 0; i < widths.size(); ++i) parts[i].dims[last] = widths[i];
  return g.split(Op::Split, x, parts, static_cast<std::int8_t>(last));
}

std::vector<TensorId> unbind(GraphBuilder& g, TensorId x) {
  const Shape whole = g.shape(x);
  Shape part;
  for (std::uint8_t i = 1; i < whole.rank; ++i) part.dims[part.rank++] = whole.dims[i];
  return g.split(Op::Unbind, x, std::vector<Shape>(static_cast<std::size_t>(whole.dims[0]), part), 0);
}

}  // namespace dsplan
