#include "planner/lower/runtime_base.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace dsplan {

std::vector<Leaf> leaves_of(const ModelSpec& model, const Training& training) {
  std::vector<Leaf> leaves;
  leaves.reserve(model.parameters.size());
  for (std::size_t at = 0; at < model.parameters.size(); ++at) {
    const Parameter& parameter = model.parameters[at];
    if (parameter.tied_to != kNone) continue;
    const bool frozen = std::any_of(training.freeze.begin(), training.freeze.end(),
                                    [&](const std::string& glob) { return glob_matches(glob, parameter.name); });
    leaves.push_back({static_cast<ParameterId>(at), parameter.shape.elements().value(), parameter.trainable && !frozen,
                      training.dtype_of(parameter)});
  }
  return leaves;
}

namespace {

// Row and column statistics for matrices (over the last two dimensions), a full moment for vectors; always fp32.
std::vector<StateTensor> adafactor_state(const Shape& shape) {
  const std::int64_t elements = shape.elements().value();
  if (shape.rank < 2 || elements == 0)
    return {{storage(Elements(elements), DType::Float32), DType::Float32, "exp_avg_sq"}};
  const std::int64_t rows = elements / shape.dims[shape.rank - 1U];
  const std::int64_t columns = elements / shape.dims[shape.rank - 2U];
  return {{storage(Elements(rows), DType::Float32), DType::Float32, "exp_avg_sq_row"},
          {storage(Elements(columns), DType::Float32), DType::Float32, "exp_avg_sq_col"}};
}

std::vector<StateTensor> adam8bit_state(std::int64_t elements) {
  if (elements < 4096) {
    const Bytes full = storage(Elements(elements), DType::Float32);
    return {{full, DType::Float32, "exp_avg"}, {full, DType::Float32, "exp_avg_sq"}};
  }
  const Bytes scales = storage(div_ceil(Elements(elements), 256), DType::Float32);
  const Bytes quantised = storage(Elements(elements), DType::UInt8);
  return {{quantised, DType::UInt8, "exp_avg"},
          {quantised, DType::UInt8, "exp_avg_sq"},
          {scales, DType::Float32, "absmax of exp_avg"},
          {scales, DType::Float32, "absmax of exp_avg_sq"}};
}

}  // namespace

std::vector<StateTensor> optimizer_state(const Optimizer& optimizer, const Shape& shape, DType dtype,
                                         bool hidden_matrix) {
  const Bytes same = storage(shape.elements(), dtype);
  switch (optimizer.kind) {
    case OptimizerKind::Adam:
    case OptimizerKind::AdamW: return {{same, dtype, "exp_avg"}, {same, dtype, "exp_avg_sq"}};
    case OptimizerKind::Sgd:
      if (optimizer.momentum > 0) return {{same, dtype, "momentum_buffer"}};
      return {};
    case OptimizerKind::Lion: return {{same, dtype, "exp_avg"}};
    case OptimizerKind::Adagrad: return {{same, dtype, "sum"}};
    case OptimizerKind::RmsProp:
      if (optimizer.momentum > 0) return {{same, dtype, "square_avg"}, {same, dtype, "momentum_buffer"}};
      return {{same, dtype, "square_avg"}};
    case OptimizerKind::Adafactor: return adafactor_state(shape);
    case OptimizerKind::Adam8bit: return adam8bit_state(shape.elements().value());
    case OptimizerKind::Muon:
      if (hidden_matrix) return {{same, dtype, "momentum_buffer"}};
      return {{same, dtype, "exp_avg"}, {same, dtype, "exp_avg_sq"}};
  }
  return {};
}

std::vector<StateTensor> separate_state(const Optimizer& optimizer, const Shape& shape, DType dtype, bool hidden_matrix,
                                        bool embedding) {
  const Bytes full = storage(shape.elements(), DType::Float32);
  const bool adam = optimizer.kind == OptimizerKind::Adam || optimizer.kind == OptimizerKind::AdamW;
  if (optimizer.kind == OptimizerKind::Lion) return {{full, DType::Float32, "exp_avg"}};
  if (optimizer.kind == OptimizerKind::Adam8bit && embedding && optimizer.embeddings_32bit) {
    return {{full, DType::Float32, "exp_avg"}, {full, DType::Float32, "exp_avg_sq"}};
  }
  std::vector<StateTensor> state = optimizer_state(optimizer, shape, dtype, hidden_matrix);
  if (adam && optimizer.implementation == Implementation::Fused) {
    state.insert(state.begin(), {Bytes(4), DType::Float32, "step"});
  }
  return state;
}

namespace {

// A part of the path is "norm" or ends in "_norm".
bool has_norm_part(std::string_view name) {
  constexpr std::string_view kNorm = "norm";
  for (std::size_t at = name.find(kNorm); at != std::string_view::npos; at = name.find(kNorm, at + 1)) {
    const std::size_t end = at + kNorm.size();
    const bool begins = at == 0 || name[at - 1] == '.' || name[at - 1] == '_';
    if (begins && (end == name.size() || name[end] == '.')) return true;
  }
  return false;
}

// Patterns over the lower-case name, and everything in an nn.LayerNorm.
bool decays(const ModelSpec& model, const Parameter& parameter) {
  if (model.modules[static_cast<std::size_t>(parameter.module)].type == "LayerNorm") return false;
  std::string name = parameter.name;
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  for (std::string_view part : {"bias", "layernorm", "rmsnorm"}) {
    if (name.find(part) != std::string::npos) return false;
  }
  return !has_norm_part(name);
}

}  // namespace

std::vector<ParameterGroup> parameter_groups(const ModelSpec& model, const Training& training,
                                             const std::vector<Leaf>& trained) {
  ParameterGroup first{{}, training.optimizer.weight_decay};
  ParameterGroup second;
  for (const Leaf& leaf : trained) {
    const bool in_first = training.param_groups == ParamGroups::Single ||
                          decays(model, model.parameters[static_cast<std::size_t>(leaf.id)]);
    (in_first ? first : second).leaves.push_back(&leaf);
  }
  std::vector<ParameterGroup> groups;
  for (ParameterGroup* group : {&first, &second}) {
    if (!group->leaves.empty()) groups.push_back(std::move(*group));
  }
  return groups;
}

RuntimeBase::RuntimeBase(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
    : job_(job),
      model_(model),
      rank_(rank),
      emitter_(emitter),
      leaves_(leaves_of(model, job.training)),
      trained_index_(model.parameters.size(), -1) {
  for (const Leaf& leaf : leaves_) {
    if (!leaf.trainable) continue;
    trained_index_[static_cast<std::size_t>(leaf.id)] = static_cast<std::int32_t>(trained_.size());
    trained_.push_back(leaf);
  }
}

void RuntimeBase::collective(Collective kind, DType type, Bytes payload) {
  if (world() > 1) {
    emitter_.communicate(kind, type, payload);
  } else {
    emitter_.compute("local copy");
  }
}

void RuntimeBase::control_all_reduce(Bytes bytes, Label label, const Squares& squares) {
  const BufferId value = control_value(bytes, label, squares);
  share_control(value, Group::DataParallel);
  share_control(value, Group::TensorParallel);
  emitter_.release(value, Reason::PythonFrame);
  emitter_.wait(kHostWaits, kComputeStream);  // Whose number it becomes.
}

void RuntimeBase::tensor_parallel_control(Bytes bytes, Label label, const Squares& squares) {
  if (tensor_ranks() == 1) return;
  const BufferId value = control_value(bytes, label, squares);
  share_control(value, Group::TensorParallel);
  emitter_.release(value, Reason::PythonFrame);
  emitter_.wait(kHostWaits, kComputeStream);
}

BufferId RuntimeBase::control_value(Bytes bytes, Label label, const Squares& squares) {
  const DType type = bytes == Bytes(1) ? DType::UInt8 : bytes == Bytes(4) ? DType::Float32 : DType::Float64;
  const BufferId value = emitter_.allocate(bytes, type, Role::Temporaries, label);
  emitter_.mark_scratch(value);
  emitter_.begin();
  emitter_.write(value);
  record_norm(squares);
  emitter_.compute(label);
  return value;
}

void RuntimeBase::share_control(BufferId value, Group group) {
  if ((group == Group::TensorParallel ? tensor_ranks() : world()) == 1) return;
  emitter_.begin();
  emitter_.read(value);
  emitter_.write(value);
  emitter_.communicate(Collective::AllReduce, emitter_.dtype(value), emitter_.size(value), TrafficKind::Control, group);
}

BufferId move_to_device(Emitter& emitter, BufferId source, Role role, Label label, ParameterId parameter) {
  const BufferId made = emitter.allocate(emitter.size(source), emitter.dtype(source), role, label, parameter);
  emitter.begin();
  emitter.read(source);
  emitter.write(made);
  emitter.compute("move to device");
  emitter.release(source, Reason::LastUse);
  return made;
}

// As from_pretrained does: in the dtype asked for, and without tied tensors of their own.
void RuntimeBase::build_on_host() {
  on_host_.assign(model_.parameters.size(), kNoBuffer);
  for (const Leaf& leaf : leaves_) {
    const BufferId made = emitter_.allocate(storage(Elements(leaf.elements), leaf.dtype), leaf.dtype, Role::Parameters,
                                            "parameter on the host", leaf.id, false, Space::Pageable);
    emitter_.begin();
    emitter_.write(made);
    emitter_.compute("load parameter");
    on_host_[static_cast<std::size_t>(leaf.id)] = made;
  }
}

void RuntimeBase::print_model_given() {
  print("DeepSpeed Engine: After args sanity test");
  print("DeepSpeed Engine: Before configure distributed model");
}

// engine.py, _configure_distributed_model.
std::vector<BufferId> RuntimeBase::load_model(Label label) {
  std::vector<BufferId> whole(model_.parameters.size(), kNoBuffer);
  const auto load = [&] {
    for (const Leaf& leaf : leaves_) whole[static_cast<std::size_t>(leaf.id)] = load_whole(leaf, label);
  };
  const bool moves = !on_host_.empty();
  if (!moves) load();
  print_model_given();
  if (moves) load();
  for (const Leaf& leaf : leaves_) broadcast(whole[static_cast<std::size_t>(leaf.id)]);
  print("DeepSpeed Engine: After configure distributed model");
  return whole;
}

BufferId RuntimeBase::load_whole(const Leaf& leaf, Label label) {
  if (!on_host_.empty()) {
    BufferId& source = on_host_[static_cast<std::size_t>(leaf.id)];
    return move_to_device(emitter_, std::exchange(source, kNoBuffer), Role::Parameters, label, leaf.id);
  }
  const BufferId buffer =
      emitter_.allocate(storage(Elements(leaf.elements), leaf.dtype), leaf.dtype, Role::Parameters, label, leaf.id);
  emitter_.begin();
  emitter_.write(buffer);
  emitter_.compute("load parameter");
  return buffer;
}

// Since 0.19.8 parameters are broadcast as bytes (engine.py, _broadcast_model).
void RuntimeBase::broadcast(BufferId buffer, DType type) {
  if (world() == 1) return;
  const bool as_bytes = training().runtime == Runtime::DeepSpeed && training().deepspeed >= Version{0, 19, 8};
  if (as_bytes) type = DType::UInt8;
  emitter_.begin();
  emitter_.read(buffer);
  emitter_.write(buffer);
  emitter_.communicate(Collective::Broadcast, type, emitter_.size(buffer));
}

void accumulate_gradient(Emitter& emitter, BufferId& held, BufferId gradient) {
  if (held == kNoBuffer) {
    held = gradient;
    return;
  }
  emitter.begin();
  emitter.read(held);
  emitter.read(gradient);
  emitter.write(held);
  emitter.compute("accumulate gradient");
  emitter.release(gradient, Reason::AutogradGraph);
}

void RuntimeBase::make_overflow_buffer() {
  const Optimizer& optimizer = training().optimizer;
  const bool adam = optimizer.kind == OptimizerKind::Adam || optimizer.kind == OptimizerKind::AdamW;
  if (!adam || optimizer.implementation != Implementation::Fused) return;
  const BufferId flag = emitter_.allocate(Bytes(4), DType::Int32, Role::Temporaries, "overflow buffer of FusedAdam");
  emitter_.mark_scratch(flag);
  emitter_.begin();
  emitter_.write(flag);
  emitter_.compute("zero overflow buffer");
}

void RuntimeBase::hold_norm(DType type, BufferId gradient) {
  const BufferId norm = make_norm(type, gradient);
  if (norm_ != kNoBuffer) emitter_.release(norm_, Reason::PythonFrame);
  norm_ = norm;
}

void RuntimeBase::hold_norms(DType type, std::size_t groups) {
  for (std::size_t one = 0; one < groups + 1; ++one) norms_of_step_.push_back(make_norm(type));
  if (norm_ != kNoBuffer) norms_of_step_.push_back(norm_);
  norm_ = make_norm(type);
}

void RuntimeBase::let_go_of_norms() {
  for (const BufferId norm : std::exchange(norms_of_step_, {})) emitter_.release(norm, Reason::PythonFrame);
}

BufferId RuntimeBase::make_norm(DType type, BufferId gradient) {
  const BufferId norm =
      emitter_.allocate(Bytes(bytes_per_element(type)), type, Role::Temporaries, "global gradient norm");
  emitter_.mark_scratch(norm);
  emitter_.begin();
  emitter_.write(norm);
  if (Recording* recording = emitter_.recording(); recording != nullptr && gradient != kNoBuffer) {
    recording->as(Body::SquareSum);
    recording->reads({{gradient, Bytes(0), emitter_.size(gradient)}});
  }
  emitter_.compute("global gradient norm");
  return norm;
}

BufferId RuntimeBase::padding_of_flat(std::int64_t elements) {
  if (elements == 0) return kNoBuffer;
  const BufferId zeros =
      emitter_.allocate(in_model_dtype(elements), dtype(), Role::Temporaries, "padding of flat parameters");
  emitter_.begin();
  emitter_.write(zeros);
  emitter_.compute("zero padding");
  return zeros;
}

BufferId RuntimeBase::flatten_trained(std::vector<BufferId>& whole, std::int64_t elements, std::int64_t padded,
                                      const std::vector<std::string>& printed) {
  const BufferId zeros = padding_of_flat(padded - elements);
  const BufferId flat = emitter_.allocate(in_model_dtype(padded), dtype(), Role::Parameters, "flat parameters");
  emitter_.begin();
  for (const Leaf& leaf : trained_) emitter_.read(whole[static_cast<std::size_t>(leaf.id)]);
  if (zeros != kNoBuffer) emitter_.read(zeros);
  emitter_.write(flat);
  emitter_.compute("flatten parameters");
  for (const std::string& text : printed) print(text);
  for (const Leaf& leaf : trained_) {
    emitter_.release(std::exchange(whole[static_cast<std::size_t>(leaf.id)], kNoBuffer), Reason::PythonFrame);
  }
  if (zeros != kNoBuffer) emitter_.release(zeros, Reason::PythonFrame);
  return flat;
}

void RuntimeBase::create_flat_state(std::int64_t elements, std::vector<BufferId>& state) {
  for (const StateTensor& tensor :
       optimizer_state(training().optimizer, Shape{elements}, training().master_dtype, false)) {
    state.push_back(emitter_.allocate(tensor.bytes, tensor.dtype, Role::Optimizer, tensor.label));
  }
  if (state.empty()) return;
  emitter_.begin();
  write_all(state);
  emitter_.compute("create optimizer state");
}

void RuntimeBase::read_all(const std::vector<BufferId>& buffers) {
  for (BufferId buffer : buffers) emitter_.read(buffer);
}

void RuntimeBase::write_all(const std::vector<BufferId>& buffers) {
  for (BufferId buffer : buffers) emitter_.write(buffer);
}

std::unique_ptr<TrainingRuntime> make_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                              Emitter& emitter) {
  if (job.training.runtime == Runtime::PyTorch) return make_pytorch_runtime(job, model, rank, emitter);
  switch (job.training.zero.stage) {
    case 0: return make_stage0_runtime(job, model, rank, emitter);
    case 1:
      if (uses_bf16_optimizer(job.training)) return make_bf16_runtime(job, model, rank, emitter);
      return make_stage12_runtime(job, model, rank, emitter);
    case 2: return make_stage12_runtime(job, model, rank, emitter);
    case 3: return make_stage3_runtime(job, model, rank, emitter);
    default: break;
  }
  DSPLAN_CHECK(false, "stage " + std::to_string(job.training.zero.stage));
}

}  // namespace dsplan
