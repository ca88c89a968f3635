#include "planner/lower/optimizer_step.h"

#include <algorithm>

#include "planner/lower/runtime_base.h"

namespace dsplan {

std::vector<std::vector<StepParameter>> grouped_by_dtype(std::span<const StepParameter> parameters) {
  std::vector<std::vector<StepParameter>> groups;
  for (const StepParameter& parameter : parameters) {
    const auto same = [&](const std::vector<StepParameter>& group) { return group.front().dtype == parameter.dtype; };
    auto at = std::find_if(groups.begin(), groups.end(), same);
    if (at == groups.end()) at = groups.insert(groups.begin(), std::vector<StepParameter>());
    at->push_back(parameter);
  }
  return groups;
}

OptimizerStep::OptimizerStep(const Optimizer& optimizer, Emitter& emitter, std::size_t parameters)
    : optimizer_(optimizer), emitter_(emitter), states_(parameters), rms_(parameters), has_state_(parameters, false) {}

void OptimizerStep::construct(Unit parameters) {
  if (optimizer_.kind != OptimizerKind::Adagrad) return;
  for (const StepParameter& parameter : parameters) create_state(parameter);
}

void OptimizerStep::step(Unit all, double weight_decay) {
  std::vector<StepParameter> group;
  std::copy_if(all.begin(), all.end(), std::back_inserter(group),
               [](const StepParameter& parameter) { return parameter.gradient != kNoBuffer; });
  const bool decays = weight_decay != 0;
  switch (optimizer_.kind) {
    case OptimizerKind::Adam: return adam(group, optimizer_.implementation, decays);
    case OptimizerKind::AdamW: return adam(group, optimizer_.implementation, false);
    case OptimizerKind::Sgd: return sgd(group, decays);
    case OptimizerKind::Adagrad: return adagrad(group, decays);
    case OptimizerKind::RmsProp: return rmsprop(group, decays);
    case OptimizerKind::Muon: return muon(group);
    case OptimizerKind::Adafactor: return adafactor(group);
    case OptimizerKind::Lion:
    case OptimizerKind::Adam8bit: return bitsandbytes(group);
  }
}

void OptimizerStep::dummy_step(Unit group, double weight_decay) {
  dummy_ = true;
  step(group, weight_decay);
  dummy_ = false;
}

std::vector<std::vector<StepParameter>> OptimizerStep::units(Unit group, Implementation form) {
  if (form != Implementation::ForLoop) return grouped_by_dtype(group);
  std::vector<std::vector<StepParameter>> each;
  for (const StepParameter& parameter : group) each.push_back({parameter});
  return each;
}

// The loop's last sqrt and quotient live until the next parameter's take their place; the multi-tensor list of square
// roots until the next dtype's does.
void OptimizerStep::adam(Unit group, Implementation form, bool adds_decay) {
  for (const StepParameter& parameter : group) create_state(parameter);
  Variable gradient;
  Variable denominator;
  for (const auto& unit : units(group, form)) {
    drop(gradient);
    if (form == Implementation::Fused) {
      update(unit, {});
      continue;
    }
    if (adds_decay) gradient = like(unit, "gradient with weight decay");
    if (form == Implementation::Foreach) drop(gradient);
    Variable root = like(unit, "square root of exp_avg_sq");
    if (form == Implementation::ForLoop) {
      Variable quotient = like(unit, "denominator");
      drop(root);
      root = std::move(quotient);
    }
    assign(denominator, std::move(root));
    update(unit, {&denominator});
  }
  drop(gradient);
  drop(denominator);
}

// The first momentum is a copy of the gradient, made when its turn comes; the fused form makes all of them before.
void OptimizerStep::sgd(Unit group, bool adds_decay) {
  if (optimizer_.implementation == Implementation::Fused) {
    for (const StepParameter& parameter : group) create_state(parameter);
  }
  for (const auto& unit : units(group, optimizer_.implementation)) {
    Variable gradient;
    if (adds_decay && optimizer_.implementation != Implementation::Fused) {
      gradient = like(unit, "gradient with weight decay");
    }
    for (const StepParameter& parameter : unit) create_state(parameter);
    update(unit, {&gradient});
    drop(gradient);
  }
}

void OptimizerStep::adagrad(Unit group, bool adds_decay) {
  const bool foreach = optimizer_.implementation == Implementation::Foreach;
  Variable gradient;
  Variable root;
  Variable numerator;
  for (const auto& unit : units(group, optimizer_.implementation)) {
    drop(gradient);
    if (adds_decay) gradient = like(unit, "gradient with weight decay");
    assign(root, like(unit, "square root of sum"));
    if (foreach && adds_decay) assign(numerator, std::exchange(gradient, {}));
    if (foreach && !adds_decay) assign(numerator, like(unit, "numerator"));
    update(unit, {&gradient, &root, &numerator});
  }
  drop(gradient);
  drop(root);
  drop(numerator);
}

void OptimizerStep::rmsprop(Unit group, bool adds_decay) {
  for (const StepParameter& parameter : group) create_state(parameter);
  Variable gradient;
  Variable root;
  for (const auto& unit : units(group, optimizer_.implementation)) {
    drop(gradient);
    if (adds_decay) gradient = like(unit, "gradient with weight decay");
    assign(root, like(unit, "square root of square_avg"));
    update(unit, {&gradient, &root});
  }
  drop(gradient);
  drop(root);
}

// torch.optim.Muon takes matrices only. What is left goes through a torch.optim.AdamW in its usual form, foreach.
void OptimizerStep::muon(Unit group) {
  std::vector<StepParameter> hidden;
  std::vector<StepParameter> others;
  for (const StepParameter& p : group) (p.hidden_matrix ? hidden : others).push_back(p);
  for (const StepParameter& parameter : hidden) create_state(parameter);
  Variable direction;
  for (const StepParameter& parameter : hidden) {
    assign(direction, like({&parameter, 1}, "update"));
    orthogonalise(parameter, direction);
    update({&parameter, 1}, {&direction});
  }
  drop(direction);
  adam(others, Implementation::Foreach, false);
}

// _zeropower_via_newtonschulz: five iterations in bf16; X X^T has the smaller of the two dimensions.
void OptimizerStep::orthogonalise(const StepParameter& parameter, Variable& update) {
  constexpr int kIterations = 5;
  const Bytes whole = storage(parameter.shape.elements(), DType::BFloat16);
  const std::int64_t smaller = std::min(parameter.shape.dims[0], parameter.shape.dims[1]);
  const Bytes gram = storage(Elements(checked_mul(smaller, smaller)), DType::BFloat16);
  const Bytes scalar(2);
  Variable orthogonal;
  if (parameter.dtype != DType::BFloat16) orthogonal = one(whole, DType::BFloat16, "update in bf16");
  Variable norm = one(scalar, DType::BFloat16, "norm");
  Variable clamped = one(scalar, DType::BFloat16, "norm");
  drop(norm);
  drop(clamped);
  Variable product;
  Variable polynomial;
  for (int i = 0; i < kIterations; ++i) {
    assign(product, one(gram, DType::BFloat16, "X X^T"));
    assign(polynomial, one(gram, DType::BFloat16, "polynomial of X X^T"));
    assign(orthogonal, one(whole, DType::BFloat16, "orthogonalised update"));
  }
  drop(product);
  drop(polynomial);
  assign(update, std::move(orthogonal));
}

// 16-bit gradients and parameters are worked on in fp32 copies, which live until the next parameter's turn.
void OptimizerStep::adafactor(Unit group) {
  Variable gradient;
  Variable parameter;
  Variable direction;
  for (const StepParameter& p : group) {
    const Bytes wide = storage(p.shape.elements(), DType::Float32);
    const bool half = p.dtype == DType::Float16 || p.dtype == DType::BFloat16;
    drop(gradient);
    if (half) gradient = one(wide, DType::Float32, "gradient in fp32");
    create_state(p);
    drop(parameter);
    if (half) parameter = one(wide, DType::Float32, "parameter in fp32");
    adafactor_scale(p, direction);
    Variable negated = one(wide, DType::Float32, "negated update");
    update({&p, 1}, {&gradient, &parameter, &direction, &negated});
    drop(negated);
  }
  drop(gradient);
  drop(parameter);
  drop(direction);
}

// From the parameter's root mean square to the clipped update.
void OptimizerStep::adafactor_scale(const StepParameter& p, Variable& direction) {
  const Bytes wide = storage(p.shape.elements(), DType::Float32);
  const Bytes scalar(4);
  Variable norm = one(scalar, DType::Float32, "norm");
  const BufferId rms = emitter_.allocate(scalar, DType::Float32, Role::Optimizer, "RMS", p.id);
  emitter_.mark_scratch(rms);  // Only a scaled learning rate reads it.
  emitter_.begin();
  emitter_.write(rms);
  emitter_.compute_unexecutable("root mean square");
  assign(rms_[static_cast<std::size_t>(p.id)], {rms});
  drop(norm);
  Variable square = one(wide, DType::Float32, "squared gradient");
  Variable added = one(wide, DType::Float32, "update");
  drop(square);
  assign(direction, std::move(added));
  adafactor_update(p, direction);
  norm = one(scalar, DType::Float32, "norm");
  Variable ratio = one(scalar, DType::Float32, "root mean square");
  drop(norm);
  Variable threshold = one(scalar, DType::Float32, "clip coefficient");
  drop(ratio);
  drop(threshold);
}

// Matrices: means over rows and columns, then the outer product of two roots; vectors: one root.
void OptimizerStep::adafactor_update(const StepParameter& p, Variable& direction) {
  const Bytes wide = storage(p.shape.elements(), DType::Float32);
  if (p.shape.rank < 2) return assign(direction, one(wide, DType::Float32, "update"));
  const std::int64_t last = p.shape.dims[p.shape.rank - 1U];
  const std::int64_t second = p.shape.dims[p.shape.rank - 2U];
  const std::int64_t elements = p.shape.elements().value();
  const Bytes row = storage(Elements(elements / last), DType::Float32);
  const Bytes column = storage(Elements(elements / second), DType::Float32);
  const Bytes row_means = storage(Elements(elements / last / second), DType::Float32);
  for (const Bytes mean : {row, column}) {
    Variable made = one(mean, DType::Float32, "mean of update");
    drop(made);
  }
  Variable mean = one(row_means, DType::Float32, "mean of rows");
  Variable rows = one(row, DType::Float32, "row factor");
  drop(mean);
  Variable columns = one(column, DType::Float32, "column factor");
  Variable product = one(wide, DType::Float32, "update");
  drop(rows);
  drop(columns);
  assign(direction, std::move(product));
}

// Each parameter's state is made right before its own kernel; the kernels take nothing.
void OptimizerStep::bitsandbytes(Unit group) {
  for (const StepParameter& parameter : group) {
    create_state(parameter);
    update({&parameter, 1}, {});
  }
}

void OptimizerStep::create_maps() {
  if (!maps_.empty()) return;
  for (Label label : {"quantisation map of exp_avg", "quantisation map of exp_avg_sq"}) {
    maps_.push_back(emitter_.allocate(Bytes(1024), DType::Float32, Role::Optimizer, label));
  }
  emitter_.begin();
  for (BufferId map : maps_) emitter_.write(map);
  emitter_.compute("create optimizer state");
}

void OptimizerStep::create_state(const StepParameter& parameter) {
  const auto at = static_cast<std::size_t>(parameter.id);
  if (has_state_[at]) return;
  has_state_[at] = true;
  const std::vector<StateTensor> tensors =
      separate_state(optimizer_, parameter.shape, parameter.dtype, parameter.hidden_matrix, parameter.embedding);
  const bool quantised = std::any_of(tensors.begin(), tensors.end(),
                                     [](const StateTensor& tensor) { return tensor.dtype == DType::UInt8; });
  if (quantised) create_maps();
  for (const StateTensor& tensor : tensors) {
    states_[at].push_back(emitter_.allocate(tensor.bytes, tensor.dtype, Role::Optimizer, tensor.label, parameter.id));
  }
  if (states_[at].empty()) return;
  emitter_.begin();
  for (BufferId state : states_[at]) emitter_.write(state);
  emitter_.compute("create optimizer state");
}

OptimizerStep::Variable OptimizerStep::make(std::vector<Bytes> sizes, DType dtype, Label label) {
  Variable made;
  for (Bytes size : sizes) {
    made.push_back(emitter_.allocate(size, dtype, Role::Temporaries, label));
    emitter_.mark_scratch(made.back());
  }
  emitter_.begin();
  for (BufferId buffer : made) emitter_.write(buffer);
  emitter_.as(Body::Clear);  // `update` does the arithmetic.
  emitter_.compute(label);
  return made;
}

OptimizerStep::Variable OptimizerStep::like(Unit unit, Label label) {
  std::vector<Bytes> sizes;
  for (const StepParameter& p : unit) sizes.push_back(storage(p.shape.elements(), p.dtype));
  return make(std::move(sizes), unit.front().dtype, label);
}

OptimizerStep::Variable OptimizerStep::one(Bytes size, DType dtype, Label label) { return make({size}, dtype, label); }

void OptimizerStep::assign(Variable& variable, Variable value) {
  drop(variable);
  variable = std::move(value);
}

void OptimizerStep::drop(Variable& variable) {
  for (BufferId buffer : variable) emitter_.release(buffer, Reason::PythonFrame);
  variable.clear();
}

void OptimizerStep::update(Unit unit, std::initializer_list<const Variable*> also_read) {
  emitter_.begin();
  for (const StepParameter& p : unit) {
    emitter_.read(p.parameter);
    emitter_.read(p.gradient);
    const Variable& state = states_[static_cast<std::size_t>(p.id)];
    for (BufferId buffer : state) emitter_.read(buffer);
  }
  for (BufferId buffer : maps_) emitter_.read(buffer);
  for (const Variable* variable : also_read) {
    for (BufferId buffer : *variable) emitter_.read(buffer);
  }
  for (const StepParameter& p : unit) {
    emitter_.write(p.parameter);
    for (BufferId buffer : states_[static_cast<std::size_t>(p.id)]) emitter_.write(buffer);
  }
  if (Recording* recording = emitter_.recording()) {
    std::vector<ByteRange> reads;  // Without intermediate results.
    const auto read = [&](BufferId buffer) { reads.push_back({buffer, Bytes(0), emitter_.size(buffer)}); };
    for (const StepParameter& p : unit) {
      read(p.parameter);
      read(p.gradient);
      for (BufferId buffer : states_[static_cast<std::size_t>(p.id)]) read(buffer);
    }
    recording->reads(std::move(reads));
  }
  emitter_.states_of_update(states_[static_cast<std::size_t>(unit.front().id)].size());
  emitter_.compute(dummy_ ? "dummy optimizer step" : "optimizer update");
}

}  // namespace dsplan
