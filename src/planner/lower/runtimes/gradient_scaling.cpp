#include "planner/lower/runtimes/gradient_scaling.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace dsplan {
namespace {

constexpr std::int64_t kChunk = 65'536;  // Elements that one block of a multi-tensor kernel works on.

std::vector<StepParameter> with_gradient(std::span<const StepParameter> parameters) {
  std::vector<StepParameter> kept;
  std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(kept),
               [](const StepParameter& parameter) { return parameter.gradient.buffer != kNoBuffer; });
  return kept;
}

}  // namespace

DType norm_dtype(std::span<const StepParameter> parameters) {
  DType dtype = parameters.front().dtype;
  for (const StepParameter& parameter : parameters) {
    if (parameter.dtype != dtype) dtype = DType::Float32;
  }
  return dtype;
}

// `run` and its clipping kernels do the arithmetic: for an executor the scalars on the way are zeros.
Variable GradientClip::scalars(std::int64_t count, DType dtype, Label label, Body body) {
  Variable made = eager_.scratch(storage(Elements(count), dtype), dtype, {Role::Temporaries, label}, sharded_.space);
  eager_.work().write(made).run(body, label);
  return made;
}

// _foreach_norm: per-chunk sums of all tensors in one scratch, which only the kernel sees, then a scalar for each
// tensor; that of one without elements gives way to a zero. What all tensor-parallel ranks have alike counts once.
void GradientClip::foreach_norm(std::span<const StepParameter> group, Variables& norms) {
  std::int64_t chunks = 0;
  for (const StepParameter& p : group) chunks = std::max(chunks, div_ceil(p.shape.elements().value(), kChunk));
  const auto count = static_cast<std::int64_t>(group.size());
  Variable sums;
  if (level_ == Level::Kernel && chunks > 0 && sharded_.space == Space::Device) {
    sums = eager_.scratch(storage(Elements(checked_mul(count, chunks)), DType::Float32), DType::Float32,
                          {Role::Temporaries, "sums of squares by chunk"});
  }
  constexpr What kNorm{Role::Temporaries, "norm of a gradient"};
  std::vector<Variable> made;
  for (const StepParameter& p : group) {
    made.push_back(eager_.scratch(storage(Elements(1), p.dtype), p.dtype, kNorm, sharded_.space));
  }
  Work work = eager_.work();
  for (const StepParameter& p : group) work.read(p.gradient);
  if (sums) work.write(sums);
  work.write(made);
  if (const Recording* recording = eager_.emitter().recording(); recording != nullptr && recording->tensor_rank() > 0) {
    std::vector<ByteRange> own;
    for (const StepParameter& p : group) {
      if (!p.replicated) own.push_back({p.gradient.buffer, p.gradient.offset, eager_.bytes_of(p.gradient)});
    }
    work.really_reads(std::move(own));
  }
  work.run(Body::SquareSum, "norms of gradients");
  for (std::size_t at = 0; at < group.size(); ++at) {
    const bool empty = group[at].shape.elements() == Elements(0);
    norms.append(empty ? scalars(1, group[at].dtype, kNorm.label) : std::move(made[at]));
  }
}

// Squares, their sums over the ranks in a tensor of its own, and the roots of those.
Variable GradientClip::sum_over_shards(std::int64_t count, DType dtype) {
  const Variable squares = scalars(count, dtype, "squares of norms");
  const Variable sums = scalars(count, dtype, "sums of squares", Body::Norm);
  eager_.work().read(sums).write(sums).control(Collective::AllReduce, dtype, eager_.bytes_of(sums), sharded_.group);
  return scalars(count, dtype, "norms of whole gradients");
}

Variable GradientClip::get_total_norm(std::span<const StepParameter> parameters, DType dtype) {
  Variables norms;
  for (const auto& group : grouped_by_dtype(parameters)) foreach_norm(group, norms);
  const auto count = static_cast<std::int64_t>(norms.size());
  const Variable stacked = scalars(count, dtype, "stacked norms");
  Variable whole;
  if (sharded_.ranks > 1) whole = sum_over_shards(count, dtype);
  return scalars(1, dtype, "total norm", tensor_ranks_ > 1 ? Body::Norm : Body::Clear);
}

void GradientClip::run(std::span<const StepParameter> all, bool keep) {
  const std::vector<StepParameter> parameters = with_gradient(all);
  if (parameters.empty()) return;
  const DType dtype = norm_dtype(parameters);
  Variable total_norm = get_total_norm(parameters, dtype);
  if (tensor_ranks_ > 1) {
    eager_.work()
        .read(total_norm)
        .write(total_norm)
        .control(Collective::AllReduce, dtype, storage(Elements(1), dtype), Group::TensorParallel);
  }
  // max_norm / (total_norm + 1e-6) is a sum, a reciprocal and a product.
  Variable sum = scalars(1, dtype, "clip coefficient");
  Variable reciprocal = scalars(1, dtype, "clip coefficient");
  Variable clip_coef = scalars(1, dtype, "clip coefficient");
  sum.reset();
  reciprocal.reset();
  Variable clip_coef_clamped = scalars(1, dtype, "clip coefficient");
  for (const auto& group : grouped_by_dtype(parameters)) {
    Work multiply = eager_.work();
    for (const StepParameter& p : group) multiply.read(p.gradient);
    multiply.read(clip_coef_clamped);
    for (const StepParameter& p : group) multiply.write(p.gradient);
    multiply.run(Body::Clip, "clip gradients");
  }
  clip_coef.reset();
  clip_coef_clamped.reset();
  if (keep) norm_ = std::move(total_norm);
}

Variable LossScaler::scalar(DType dtype, What what, Body body) {
  Variable made = eager_.scratch(storage(Elements(1), dtype), dtype, what);  // Who reads a scalar is not told.
  eager_.work().write(made).run(body, what.label);
  return made;
}

void LossScaler::scale() {
  if (divides_) {
    constexpr What kDivided{Role::Temporaries, "loss by micro-batches", "accelerate: accelerator.py, backward"};
    divided_loss_ = scalar(DType::Float32, kDivided);
  }
  if (!scale_) {  // _lazy_init_scale_growth_tracker
    scale_ = scalar(DType::Float32, {Role::Optimizer, "loss scale"});
    growth_tracker_ = scalar(DType::Int32, {Role::Optimizer, "growth tracker"});
  }
  scaled_loss_ =
      scalar(DType::Float32, {Role::Temporaries, "scaled loss", "fp16/loss_scaler.py, scale_loss"}, Body::Copy);
}

// _unscale_grads_ copies both scalars to each device that holds gradients.
void LossScaler::unscale_grads(std::span<const StepParameter> parameters, Variable inv_scale) {
  Variable found_inf = scalar(DType::Float32, {Role::Temporaries, "found inf"});
  found_inf_ = scalar(DType::Float32, {Role::Temporaries, "found inf"});
  const std::vector<StepParameter> all = with_gradient(parameters);
  Variable inv_scale_here;
  if (!all.empty()) inv_scale_here = scalar(DType::Float32, {Role::Temporaries, "inverse of the loss scale"});
  for (const auto& group : grouped_by_dtype(all)) {
    Work unscale = eager_.work();
    for (const StepParameter& p : group) unscale.read(p.gradient);
    for (const StepParameter& p : group) unscale.write(p.gradient);
    unscale.run(Body::Unscale, "unscale gradients");
  }
  inv_scale_here.reset();
  found_inf.reset();
  inv_scale.reset();
}

// self._scale.double().reciprocal().float()
void LossScaler::unscale(std::span<const StepParameter> parameters) {
  Variable wide = scalar(DType::Float64, {Role::Temporaries, "loss scale in fp64"});
  Variable reciprocal = scalar(DType::Float64, {Role::Temporaries, "inverse of the loss scale"});
  wide.reset();
  Variable inv_scale = scalar(DType::Float32, {Role::Temporaries, "inverse of the loss scale"});
  reciprocal.reset();
  unscale_grads(parameters, std::move(inv_scale));
  if (ranks_ == 1) return;
  eager_.work()
      .read(found_inf_)
      .write(found_inf_)
      .control(Collective::AllReduce, DType::Float32, Bytes(4), Group::DataParallel);
}

void LossScaler::before_step(std::span<const StepParameter> parameters, bool fused) {
  const bool unscaled = static_cast<bool>(found_inf_);
  if (!fused) {
    if (!unscaled) unscale(parameters);
    return;
  }
  if (!unscaled) {  // _check_inf_per_device
    unscale_grads(parameters, scalar(DType::Float32, {Role::Temporaries, "inverse of the loss scale"}));
  }
  found_sum_ = scalar(DType::Float32, {Role::Temporaries, "found inf"});
  if (!unscaled) handed_scale_ = scalar(DType::Float32, {Role::Temporaries, "loss scale"});
}

void LossScaler::after_step() {
  handed_scale_.reset();
  found_sum_.reset();
  found_inf_.reset();
}

}  // namespace dsplan
