#include "planner/lower/runtimes/optimizer_step.h"

#include <algorithm>

#include "planner/lower/runtimes/runtime_base.h"

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

OptimizerStep::OptimizerStep(const Optimizer& optimizer, Emitter& emitter, std::size_t parameters, StepSources sources,
                             Space space)
    : optimizer_(optimizer),
      eager_(emitter),
      sources_(sources),
      space_(space),
      states_(parameters),
      rms_(parameters),
      has_state_(parameters, false),
      torchao_(optimizer.kind, sources.l2, emitter) {}

void OptimizerStep::construct(Unit parameters) {
  if (optimizer_.kind != OptimizerKind::Adagrad) return;
  for (const StepParameter& parameter : parameters) create_state(parameter);
}

void OptimizerStep::step(Unit all, double weight_decay) {
  std::vector<StepParameter> group;
  std::copy_if(all.begin(), all.end(), std::back_inserter(group),
               [](const StepParameter& parameter) { return parameter.gradient.buffer != kNoBuffer; });
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
    case OptimizerKind::Adam8bit:
    case OptimizerKind::AdamW32bit:
    case OptimizerKind::Lion8bit:
    case OptimizerKind::AdEmaMix:
    case OptimizerKind::AdEmaMix8bit:
    case OptimizerKind::AoAdamW8bit:
    case OptimizerKind::AoAdamW4bit:
    case OptimizerKind::AoAdamWFp8: return one_by_one(group, weight_decay);
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
  Variables denominator;
  Variables gradient;
  for (const auto& unit : units(group, form)) {
    gradient.reset();
    if (form == Implementation::Fused) {
      update(unit, {});
      continue;
    }
    if (adds_decay) gradient = like(unit, "gradient with weight decay");
    if (form == Implementation::Foreach) gradient.reset();
    Variables root = like(unit, "square root of exp_avg_sq", sources_.root);
    if (form == Implementation::ForLoop) {
      Variables quotient = like(unit, "denominator");
      root.reset();
      root = std::move(quotient);
    }
    denominator = std::move(root);
    update(unit, {&denominator});
  }
}

// The first momentum is a copy of the gradient, made when its turn comes; the fused form makes all of them before.
void OptimizerStep::sgd(Unit group, bool adds_decay) {
  if (optimizer_.implementation == Implementation::Fused) {
    for (const StepParameter& parameter : group) create_state(parameter);
  }
  for (const auto& unit : units(group, optimizer_.implementation)) {
    Variables gradient;
    if (adds_decay && optimizer_.implementation != Implementation::Fused) {
      gradient = like(unit, "gradient with weight decay");
    }
    for (const StepParameter& parameter : unit) create_state(parameter);
    update(unit, {&gradient});
  }
}

void OptimizerStep::adagrad(Unit group, bool adds_decay) {
  const bool foreach = optimizer_.implementation == Implementation::Foreach;
  Variables numerator;
  Variables root;
  Variables gradient;
  for (const auto& unit : units(group, optimizer_.implementation)) {
    gradient.reset();
    if (adds_decay) gradient = like(unit, "gradient with weight decay");
    root = like(unit, "square root of sum");
    if (foreach && adds_decay) numerator = std::move(gradient);
    if (foreach && !adds_decay) numerator = like(unit, "numerator");
    update(unit, {&gradient, &root, &numerator});
  }
}

void OptimizerStep::rmsprop(Unit group, bool adds_decay) {
  for (const StepParameter& parameter : group) create_state(parameter);
  Variables root;
  Variables gradient;
  for (const auto& unit : units(group, optimizer_.implementation)) {
    gradient.reset();
    if (adds_decay) gradient = like(unit, "gradient with weight decay");
    root = like(unit, "square root of square_avg");
    update(unit, {&gradient, &root});
  }
}

// torch.optim.Muon takes matrices only. What is left goes through a torch.optim.AdamW in its usual form, foreach.
void OptimizerStep::muon(Unit group) {
  std::vector<StepParameter> hidden;
  std::vector<StepParameter> others;
  for (const StepParameter& p : group) (p.hidden_matrix ? hidden : others).push_back(p);
  for (const StepParameter& parameter : hidden) create_state(parameter);
  Variables direction;
  for (const StepParameter& parameter : hidden) {
    direction = like({&parameter, 1}, "update");
    orthogonalise(parameter, direction);
    update({&parameter, 1}, {&direction});
  }
  direction.reset();
  adam(others, Implementation::Foreach, false);
}

// _zeropower_via_newtonschulz: five iterations in bf16; X X^T has the smaller of the two dimensions.
void OptimizerStep::orthogonalise(const StepParameter& parameter, Variables& update) {
  constexpr int kIterations = 5;
  const Bytes whole = storage(parameter.shape.elements(), DType::BFloat16);
  const std::int64_t smaller = std::min(parameter.shape.dims[0], parameter.shape.dims[1]);
  const Bytes gram = storage(Elements(checked_mul(smaller, smaller)), DType::BFloat16);
  const Bytes scalar(2);
  Variables orthogonal;
  if (parameter.dtype != DType::BFloat16) orthogonal = one(whole, DType::BFloat16, "update in bf16");
  Variables norm = one(scalar, DType::BFloat16, "norm");
  Variables clamped = one(scalar, DType::BFloat16, "norm");
  norm.reset();
  clamped.reset();
  Variables polynomial;
  Variables product;
  for (int i = 0; i < kIterations; ++i) {
    product = one(gram, DType::BFloat16, "X X^T");
    polynomial = one(gram, DType::BFloat16, "polynomial of X X^T");
    orthogonal = one(whole, DType::BFloat16, "orthogonalised update");
  }
  product.reset();
  polynomial.reset();
  update = std::move(orthogonal);
}

// 16-bit gradients and parameters are worked on in fp32 copies, which live until the next parameter's turn.
void OptimizerStep::adafactor(Unit group) {
  Variables direction;
  Variables parameter;
  Variables gradient;
  for (const StepParameter& p : group) {
    const Bytes wide = storage(p.shape.elements(), DType::Float32);
    const bool half = p.dtype == DType::Float16 || p.dtype == DType::BFloat16;
    gradient.reset();
    if (half) gradient = one(wide, DType::Float32, "gradient in fp32");
    create_state(p);
    parameter.reset();
    if (half) parameter = one(wide, DType::Float32, "parameter in fp32");
    adafactor_scale(p, direction);
    Variables negated = one(wide, DType::Float32, "negated update");
    update({&p, 1}, {&gradient, &parameter, &direction, &negated});
  }
}

// From the parameter's root mean square to the clipped update.
void OptimizerStep::adafactor_scale(const StepParameter& p, Variables& direction) {
  const Bytes wide = storage(p.shape.elements(), DType::Float32);
  const Bytes scalar(4);
  Variables norm = one(scalar, DType::Float32, "norm");
  Variable rms = eager_.empty(scalar, DType::Float32, {Role::Optimizer, "RMS", sources_.state}, p.id);
  eager_.emitter().mark_scratch(rms.id());  // Only a scaled learning rate reads it.
  eager_.work().write(rms).run_unexecutable("root mean square");
  rms_[static_cast<std::size_t>(p.id)] = std::move(rms);
  norm.reset();
  Variables square = one(wide, DType::Float32, "squared gradient");
  Variables added = one(wide, DType::Float32, "update");
  square.reset();
  direction = std::move(added);
  adafactor_update(p, direction);
  norm = one(scalar, DType::Float32, "norm");
  Variables ratio = one(scalar, DType::Float32, "root mean square");
  norm.reset();
  Variables threshold = one(scalar, DType::Float32, "clip coefficient");
  ratio.reset();
  threshold.reset();
}

// Matrices: means over rows and columns, then the outer product of two roots; vectors: one root.
void OptimizerStep::adafactor_update(const StepParameter& p, Variables& direction) {
  const Bytes wide = storage(p.shape.elements(), DType::Float32);
  if (p.shape.rank < 2) {
    direction = one(wide, DType::Float32, "update");
    return;
  }
  const std::int64_t last = p.shape.dims[p.shape.rank - 1U];
  const std::int64_t second = p.shape.dims[p.shape.rank - 2U];
  const std::int64_t elements = p.shape.elements().value();
  const Bytes row = storage(Elements(elements / last), DType::Float32);
  const Bytes column = storage(Elements(elements / second), DType::Float32);
  const Bytes row_means = storage(Elements(elements / last / second), DType::Float32);
  for (const Bytes mean : {row, column}) {
    const Variables made = one(mean, DType::Float32, "mean of update");
  }
  Variables mean = one(row_means, DType::Float32, "mean of rows");
  Variables rows = one(row, DType::Float32, "row factor");
  mean.reset();
  Variables columns = one(column, DType::Float32, "column factor");
  Variables product = one(wide, DType::Float32, "update");
  rows.reset();
  columns.reset();
  direction = std::move(product);
}

// Each parameter's state is made right before its own kernel; bitsandbytes' kernels take nothing.
void OptimizerStep::one_by_one(Unit group, double weight_decay) {
  for (const StepParameter& parameter : group) {
    create_state(parameter);
    if (!is_torchao(optimizer_.kind)) {
      update({&parameter, 1}, {});
      continue;
    }
    const TorchaoTemporaries made = torchao_.make(parameter.shape, parameter.dtype, weight_decay);
    update({&parameter, 1}, {});
  }
}

void OptimizerStep::create_maps() {
  if (!maps_.empty()) return;
  for (Label label : {"quantisation map of exp_avg", "quantisation map of exp_avg_sq"}) {
    if (optimizer_.kind == OptimizerKind::Lion8bit && !maps_.empty()) break;  // It has one state.
    maps_.append(eager_.empty(Bytes(1024), DType::Float32, {Role::Optimizer, label, sources_.state}));
  }
  eager_.zero(maps_, "create optimizer state");
}

void OptimizerStep::create_state(const StepParameter& parameter) {
  const auto at = static_cast<std::size_t>(parameter.id);
  if (has_state_[at]) return;
  has_state_[at] = true;
  const std::vector<StateTensor> tensors =
      separate_state(optimizer_, parameter.shape, parameter.dtype, parameter.hidden_matrix, parameter.embedding);
  const bool quantised = std::any_of(tensors.begin(), tensors.end(),
                                     [](const StateTensor& tensor) { return tensor.dtype == DType::UInt8; });
  if (quantised && !is_torchao(optimizer_.kind)) create_maps();  // torchao's states have their own.
  for (const StateTensor& tensor : tensors) {
    if (tensor.bytes == Bytes(0)) continue;  // Of a shard without rows.
    const Space space = tensor.paged ? Space::Pageable : space_;
    states_[at].append(
        eager_.empty(tensor.bytes, tensor.dtype, {Role::Optimizer, tensor.label, sources_.state}, parameter.id, space));
  }
  if (!states_[at].empty()) eager_.zero(states_[at], "create optimizer state");
}

// `update` does the arithmetic: for an executor intermediate results are zeros.
Variables OptimizerStep::make(std::vector<Bytes> sizes, DType dtype, What what) {
  Variables made;
  for (Bytes size : sizes) {
    if (size > Bytes(0)) made.append(eager_.scratch(size, dtype, what, space_));
  }
  if (!made.empty()) eager_.zero(made, what.label);
  return made;
}

Variables OptimizerStep::like(Unit unit, Label label, Source source) {
  std::vector<Bytes> sizes;
  for (const StepParameter& p : unit) sizes.push_back(storage(p.shape.elements(), p.dtype));
  return make(std::move(sizes), unit.front().dtype, {Role::Temporaries, label, source});
}

Variables OptimizerStep::one(Bytes size, DType dtype, Label label) {
  return make({size}, dtype, {Role::Temporaries, label});
}

void OptimizerStep::update(Unit all, std::initializer_list<const Variables*> also_read) {
  std::vector<StepParameter> unit;
  std::copy_if(all.begin(), all.end(), std::back_inserter(unit),
               [](const StepParameter& p) { return p.shape.elements() > Elements(0); });
  if (unit.empty()) return;
  const auto states = [&](const StepParameter& p) -> const Variables& {
    return states_[static_cast<std::size_t>(p.id)];
  };
  Work work = eager_.work();
  for (const StepParameter& p : unit) work.read(p.parameter).read(p.gradient).read(states(p));
  work.read(maps_);
  for (const Variables* variable : also_read) work.read(*variable);
  for (const StepParameter& p : unit) work.write(p.parameter).write(states(p));
  if (eager_.emitter().recording() != nullptr) {
    std::vector<ByteRange> reads;  // Without intermediate results.
    const auto read = [&](const Part& part) { reads.push_back({part.buffer, part.offset, eager_.bytes_of(part)}); };
    for (const StepParameter& p : unit) {
      read(p.parameter);
      read(p.gradient);
      for (BufferId buffer : states(p).ids()) read(buffer);
    }
    work.really_reads(std::move(reads));
  }
  work.states(states(unit.front()).size());
  if (dummy_) return work.run(Body::Nothing, "dummy optimizer step");
  work.run(Body::Update, "optimizer update");
}

}  // namespace dsplan
