#include "planner/lower/gradient_scaling.h"

#include <algorithm>

namespace dsplan {
namespace {

constexpr std::int64_t kChunk = 65'536;  // Elements that one block of a multi-tensor kernel works on.

std::vector<StepParameter> with_gradient(std::span<const StepParameter> parameters) {
  std::vector<StepParameter> kept;
  std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(kept),
               [](const StepParameter& parameter) { return parameter.gradient != kNoBuffer; });
  return kept;
}

Bytes scalar_of(DType dtype) { return storage(Elements(1), dtype); }

}  // namespace

DType norm_dtype(std::span<const StepParameter> parameters) {
  DType dtype = parameters.front().dtype;
  for (const StepParameter& parameter : parameters) {
    if (parameter.dtype != dtype) dtype = DType::Float32;
  }
  return dtype;
}

void GradientClip::drop(BufferId& buffer) {
  if (buffer != kNoBuffer) emitter_.release(buffer, Reason::PythonFrame);
  buffer = kNoBuffer;
}

BufferId GradientClip::scalar(Bytes size, DType dtype, Label label, Body body) {
  const BufferId made = emitter_.allocate(size, dtype, Role::Temporaries, label);
  emitter_.mark_scratch(made);
  emitter_.begin();
  emitter_.write(made);
  emitter_.as(body);  // Clear: `run` does the arithmetic.
  emitter_.compute(label);
  return made;
}

// _foreach_norm: per-chunk sums of all tensors in one scratch, which only the kernel sees, then a scalar for each
// tensor.
std::vector<BufferId> GradientClip::norms(std::span<const StepParameter> group) {
  std::int64_t chunks = 0;
  for (const StepParameter& p : group) chunks = std::max(chunks, (p.shape.elements().value() + kChunk - 1) / kChunk);
  const auto count = static_cast<std::int64_t>(group.size());
  BufferId sums = kNoBuffer;
  if (level_ == Level::Kernel) {
    sums = emitter_.allocate(storage(Elements(checked_mul(count, chunks)), DType::Float32), DType::Float32,
                             Role::Temporaries, "sums of squares by chunk");
    emitter_.mark_scratch(sums);
  }
  std::vector<BufferId> made;
  for (const StepParameter& p : group) {
    made.push_back(emitter_.allocate(scalar_of(p.dtype), p.dtype, Role::Temporaries, "norm of a gradient"));
    emitter_.mark_scratch(made.back());
  }
  emitter_.begin();
  for (const StepParameter& p : group) emitter_.read(p.gradient);
  if (sums != kNoBuffer) emitter_.write(sums);
  for (BufferId norm : made) emitter_.write(norm);
  emitter_.as(Body::SquareSum);
  record_squares(group);
  emitter_.compute("norms of gradients");
  if (sums != kNoBuffer) emitter_.release(sums, Reason::LastUse);
  return made;
}

// What all tensor-parallel ranks have alike counts once.
void GradientClip::record_squares(std::span<const StepParameter> group) {
  Recording* recording = emitter_.recording();
  if (recording == nullptr || recording->tensor_rank() == 0) return;
  std::vector<ByteRange> own;
  for (const StepParameter& p : group) {
    if (!p.replicated) own.push_back({p.gradient, Bytes(0), emitter_.size(p.gradient)});
  }
  recording->reads(std::move(own));
}

BufferId GradientClip::total_norm(std::span<const StepParameter> parameters, DType& dtype) {
  std::vector<BufferId> parts;
  for (const auto& group : grouped_by_dtype(parameters)) {
    const std::vector<BufferId> made = norms(group);
    parts.insert(parts.end(), made.begin(), made.end());
  }
  dtype = norm_dtype(parameters);
  BufferId stacked = scalar(storage(Elements(static_cast<std::int64_t>(parts.size())), dtype), dtype, "stacked norms");
  const BufferId total = scalar(scalar_of(dtype), dtype, "total norm", tensor_ranks_ > 1 ? Body::Norm : Body::Clear);
  drop(stacked);
  for (BufferId part : parts) emitter_.release(part, Reason::PythonFrame);
  return total;
}

void GradientClip::forget() {
  if (norm_ != kNoBuffer) emitter_.release(norm_, Reason::Loop);
  norm_ = kNoBuffer;
}

void GradientClip::run(std::span<const StepParameter> all, bool keep) {
  const std::vector<StepParameter> parameters = with_gradient(all);
  if (parameters.empty()) return;
  DType dtype = DType::Float32;
  BufferId total = total_norm(parameters, dtype);
  if (tensor_ranks_ > 1) {
    emitter_.begin();
    emitter_.read(total);
    emitter_.write(total);
    emitter_.communicate(Collective::AllReduce, dtype, emitter_.size(total), TrafficKind::Control,
                         Group::TensorParallel);
  }
  // max_norm / (total + 1e-6) is a sum, a reciprocal and a product.
  BufferId sum = scalar(scalar_of(dtype), dtype, "clip coefficient");
  BufferId reciprocal = scalar(scalar_of(dtype), dtype, "clip coefficient");
  BufferId coefficient = scalar(scalar_of(dtype), dtype, "clip coefficient");
  drop(sum);
  drop(reciprocal);
  BufferId clamped = scalar(scalar_of(dtype), dtype, "clip coefficient");
  for (const auto& group : grouped_by_dtype(parameters)) {
    emitter_.begin();
    for (const StepParameter& p : group) emitter_.read(p.gradient);
    emitter_.read(clamped);
    for (const StepParameter& p : group) emitter_.write(p.gradient);
    emitter_.as(Body::Clip);
    emitter_.compute("clip gradients");
  }
  drop(coefficient);
  drop(clamped);
  if (keep) {
    norm_ = total;
  } else {
    drop(total);
  }
}

void LossScaler::drop(BufferId& buffer) {
  if (buffer != kNoBuffer) emitter_.release(buffer, Reason::PythonFrame);
  buffer = kNoBuffer;
}

BufferId LossScaler::scalar(Bytes size, DType dtype, Role role, Label label) {
  const BufferId made = emitter_.allocate(size, dtype, role, label);
  emitter_.mark_scratch(made);  // Who reads a scalar is not told.
  emitter_.begin();
  emitter_.write(made);
  emitter_.compute(label);
  return made;
}

void LossScaler::scale() {
  if (scale_ == kNoBuffer) {
    scale_ = scalar(Bytes(4), DType::Float32, Role::Optimizer, "loss scale");
    growth_tracker_ = scalar(Bytes(4), DType::Int32, Role::Optimizer, "growth tracker");
  }
  scaled_loss_ = scalar(Bytes(4), DType::Float32, Role::Temporaries, "scaled loss");
}

void LossScaler::backward_done() { drop(scaled_loss_); }

// _unscale_grads_ copies both scalars to each device that holds gradients.
void LossScaler::check(std::span<const StepParameter> parameters, BufferId& inverse) {
  BufferId found = scalar(Bytes(4), DType::Float32, Role::Temporaries, "found inf");
  found_inf_ = scalar(Bytes(4), DType::Float32, Role::Temporaries, "found inf");
  BufferId copy = scalar(Bytes(4), DType::Float32, Role::Temporaries, "inverse of the loss scale");
  for (const auto& group : grouped_by_dtype(with_gradient(parameters))) {
    emitter_.begin();
    for (const StepParameter& p : group) emitter_.read(p.gradient);
    for (const StepParameter& p : group) emitter_.write(p.gradient);
    emitter_.compute("unscale gradients");
  }
  drop(copy);
  drop(found);
  drop(inverse);
}

void LossScaler::unscale(std::span<const StepParameter> parameters) {
  BufferId wide = scalar(Bytes(8), DType::Float64, Role::Temporaries, "loss scale in fp64");
  BufferId reciprocal = scalar(Bytes(8), DType::Float64, Role::Temporaries, "inverse of the loss scale");
  drop(wide);
  BufferId inverse = scalar(Bytes(4), DType::Float32, Role::Temporaries, "inverse of the loss scale");
  drop(reciprocal);
  check(parameters, inverse);
}

void LossScaler::before_step(std::span<const StepParameter> parameters, bool fused) {
  const bool unscaled = found_inf_ != kNoBuffer;
  if (!fused) {
    if (!unscaled) unscale(parameters);
    return;
  }
  if (!unscaled) {
    BufferId ones = scalar(Bytes(4), DType::Float32, Role::Temporaries, "inverse of the loss scale");
    check(parameters, ones);
  }
  found_sum_ = scalar(Bytes(4), DType::Float32, Role::Temporaries, "found inf");
  if (!unscaled) handed_scale_ = scalar(Bytes(4), DType::Float32, Role::Temporaries, "loss scale");
}

void LossScaler::after_step() {
  drop(handed_scale_);
  drop(found_sum_);
  drop(found_inf_);
}

}  // namespace dsplan
