#include "planner/lower/runtimes/fsdp1/flat_clip.h"

#include <utility>
#include <vector>

#include "planner/fsdp/flat_facts.h"
#include "planner/fsdp/fsdp_facts.h"

namespace dsplan {
namespace {

constexpr Source kClips = "fsdp/fully_sharded_data_parallel.py, clip_grad_norm_";

std::vector<StepParameter> clipped_ones(std::span<const StepParameter> parameters) {
  std::vector<StepParameter> kept;
  for (const StepParameter& p : parameters) {
    if (p.gradient.buffer != kNoBuffer) kept.push_back(p);
  }
  return kept;
}

}  // namespace

FlatClip::FlatClip(Emitter& emitter, GradientNorms& norms, const Job& job, Space space)
    : eager_(emitter),
      norms_(norms),
      group_(sharding_ranks(job) < job.parallelism.dp ? Group::DataParallelInside : Group::DataParallel),
      space_(space),
      whole_(keeps_whole(job)),
      of_whole_(emitter, job.training.level, 1, {1, Group::DataParallel, space}) {}

// `run` and its clipping kernels do the arithmetic: for an executor the scalars on the way are zeros.
Variable FlatClip::scalar(Label label, Space space, DType type, Body body) {
  Variable made = eager_.scratch(storage(Elements(1), type), type, {Role::Temporaries, label, kClips}, space);
  eager_.work().write(made).run(body, label);
  return made;
}

// _get_grad_norm. A rank without a gradient has the zero that is there.
Variable FlatClip::local_norm(std::span<const StepParameter> parameters) {
  if (parameters.empty()) return zero_.share();
  constexpr What kNorm{Role::Temporaries, "norm of a gradient", kClips};
  Variables norms;
  for (const StepParameter& p : parameters) {
    if (space_ == Space::Device) {
      norms.append(norms_.norm_of(p.gradient, kNorm, std::nullopt, DType::Float32));
      continue;
    }
    Variable norm = eager_.scratch(Bytes(4), DType::Float32, kNorm, space_);
    eager_.work().read(p.gradient).write(norm).run(Body::SquareSum, kNorm.label);
    norms.append(std::move(norm));
  }
  const auto count = static_cast<std::int64_t>(norms.size());
  const Variable stacked = eager_.scratch(storage(Elements(count), DType::Float32), DType::Float32,
                                          {Role::Temporaries, "stacked norms", kClips}, space_);
  eager_.work().read(norms.ids()).write(stacked).run(Body::Clear, "stack norms");
  norms.reset();
  Variable norm = scalar("norm of a rank's gradients", space_);
  if (space_ != Space::Device) norm = scalar("norm of a rank's gradients", Space::Device);
  return norm;
}

// max_norm / (total_norm + 1e-6) is a sum, a reciprocal and a product. Gradients are multiplied one by one, each by the
// coefficient in its own dtype.
void FlatClip::run(std::span<const StepParameter> all, bool keep) {
  if (!zero_) zero_ = scalar("zero", Space::Device);
  if (whole_) return of_whole_.run(all, keep);
  const std::vector<StepParameter> parameters = clipped_ones(all);
  const Variable local = local_norm(parameters);
  Variable squares = scalar("squared norm", Space::Device, DType::Float32, Body::Norm);
  eager_.work().read(squares).write(squares).control(Collective::AllReduce, DType::Float32, Bytes(4), group_);
  Variable total = scalar("total norm", Space::Device);
  squares.reset();
  if (space_ != Space::Device) total = scalar("total norm", space_);
  Variable sum = scalar("clip coefficient", space_);
  Variable reciprocal = scalar("clip coefficient", space_);
  const Variable coefficient = scalar("clip coefficient", space_);
  reciprocal.reset();
  sum.reset();
  const Variable clamped = scalar("clip coefficient", space_);
  for (const StepParameter& p : parameters) {
    Variable cast;
    if (p.dtype != DType::Float32) cast = scalar("clip coefficient", space_, p.dtype);
    eager_.work().read(p.gradient).read(cast ? cast : clamped).write(p.gradient).run(Body::Clip, "clip gradient");
  }
  if (!parameters.empty() && parameters.front().dtype != DType::Float32) {
    total = scalar("total norm", space_, parameters.front().dtype);
  }
  if (keep) kept_ = std::move(total);
}

}  // namespace dsplan
