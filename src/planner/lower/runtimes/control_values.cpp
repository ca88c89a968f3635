#include "planner/lower/runtimes/control_values.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace dsplan {

Variable ControlValues::made(Bytes bytes, What what, const Squares& squares, const Variable& from) {
  const DType type = bytes == Bytes(1) ? DType::UInt8 : bytes == Bytes(4) ? DType::Float32 : DType::Float64;
  Variable value = eager_.scratch(bytes, type, what);
  Work work = eager_.work();
  if (from) work.read(from);
  work.write(value).really_reads(squares.of).states(squares.copies);
  work.run(type == DType::UInt8 ? Body::OverflowScan : Body::Norm, what.label);
  return value;
}

void ControlValues::all_reduce(Bytes bytes, What what, const Squares& squares, Variable from) {
  Variable value = made(bytes, what, squares, from);
  from.reset();
  share(value.id(), Group::DataParallel);
  share(value.id(), Group::TensorParallel);
  value.reset();
  eager_.emitter().wait_stream(kHostSync, kComputeStream);  // Whose number it becomes.
}

void ControlValues::tensor_parallel(Bytes bytes, What what, const Squares& squares, const Variable& from) {
  if (ranks_.tensor_parallel == 1 && !from) return;
  Variable value = made(bytes, what, squares, from);
  share(value.id(), Group::TensorParallel);
  value.reset();
  eager_.emitter().wait_stream(kHostSync, kComputeStream);
}

void ControlValues::sub_group_norm(What what, Variable sum) {
  eager_.emitter().wait_stream(kHostSync, kComputeStream);  // float(total_norm)
  const Variable value = made(Bytes(4), what, {}, sum);
  share(value.id(), Group::DataParallel);
  share(value.id(), Group::TensorParallel);
  What of_root = what;
  of_root.label = "root of a norm";
  const Variable root = eager_.scratch(Bytes(4), DType::Float32, of_root);
  eager_.work().read(value).write(root).run(Body::Nothing, of_root.label);
  sum.reset();
  mask_invalid(what);
  eager_.emitter().wait_stream(kHostSync, kComputeStream);
}

void ControlValues::mask_invalid(What what) {
  what.label = "mask of an invalid norm";
  const auto made = [&](DType type) {
    Variable one = eager_.scratch(Bytes(bytes_per_element(type)), type, what);
    eager_.work().write(one).run(Body::Nothing, what.label);
    return one;
  };
  Variables masks;
  Variable absolute = made(DType::Float32);
  masks.append(made(DType::Bool));
  absolute.reset();
  for (const DType type : {DType::Bool, DType::Bool, DType::Float32}) masks.append(made(type));
}

void ControlValues::share(BufferId value, Group group) {
  if ((group == Group::TensorParallel ? ranks_.tensor_parallel : ranks_.data_parallel) == 1) return;
  const Emitter& emitter = eager_.emitter();
  eager_.work().read(value).write(value).control(Collective::AllReduce, emitter.dtype(value), emitter.size(value),
                                                 group);
}

bool ControlValues::counts_in_norm(ParameterId parameter) const {
  const Recording* recording = eager_.emitter().recording();
  if (recording == nullptr || recording->tensor_rank() == 0) return true;
  return model_.parameter_at(parameter).split != Split::Replicated;
}

Squares ControlValues::squares_of(BufferId flat, std::span<const NamedParameter> trained) const {
  Squares squares;
  if (eager_.emitter().recording() == nullptr) return squares;
  const DType type = eager_.emitter().dtype(flat);
  std::int64_t offset = 0;
  for (const NamedParameter& parameter : trained) {
    if (counts_in_norm(parameter.id)) {
      squares.of.push_back({flat, storage(Elements(offset), type), storage(Elements(parameter.elements), type)});
    }
    offset += parameter.elements;
  }
  return squares;
}

Squares ControlValues::squares_of(const std::vector<BufferId>& gradients,
                                  std::span<const NamedParameter> trained) const {
  Squares squares;
  squares.copies = static_cast<std::uint8_t>(ranks_.data_parallel);
  if (eager_.emitter().recording() == nullptr) return squares;
  for (const NamedParameter& parameter : trained) {
    const BufferId gradient = gradients[static_cast<std::size_t>(parameter.id)];
    if (gradient != kNoBuffer && counts_in_norm(parameter.id)) {
      squares.of.push_back({gradient, Bytes(0), eager_.emitter().size(gradient)});
    }
  }
  return squares;
}

GradientNorms::GradientNorms(Emitter& emitter, const Job& job) : eager_(emitter) {
  if (job.hardware && job.training.level == Level::Kernel) device_ = device_threads(*job.hardware);
}

void NormInMaking::written_by(Work& work) const {
  for (const Variable* made : {&norm, &staging, &semaphores}) {
    if (*made) work.write(*made);
  }
}

NormInMaking GradientNorms::begin(const Part& tensor, What what, std::optional<DType> type) {
  const DType own = eager_.emitter().dtype(tensor.buffer);
  const Bytes one(bytes_per_element(own));
  NormInMaking making;
  making.norm = eager_.empty(Bytes(bytes_per_element(type.value_or(own))), type.value_or(own), what);
  // Beyond 32-bit offsets halves are reduced one after the other (TensorIterator.cpp, SplitUntil32Bit).
  constexpr std::int64_t kMostBytes = std::numeric_limits<std::int32_t>::max();
  std::int64_t bytes = eager_.bytes_of(tensor).value();
  while (bytes > kMostBytes) bytes = div_ceil(bytes, std::int64_t{2});
  const ReducedTensor all{1, bytes / one.value(), 0};
  const ReductionScratch scratch = reduction_scratch(all, device_, std::max(one, Bytes(4)));
  if (scratch.staging == Bytes(0)) return making;
  constexpr Source kReduces = "aten/src/ATen/native/cuda/Reduce.cuh, gpu_reduce_kernel";
  making.staging = eager_.scratch(scratch.staging, DType::UInt8, {Role::Temporaries, "staging of a norm", kReduces});
  making.semaphores =
      eager_.scratch(scratch.semaphores, DType::Int32, {Role::Temporaries, "semaphores of a norm", kReduces});
  return making;
}

Variable GradientNorms::norm_of(const Part& tensor, What what, std::optional<std::vector<ByteRange>> squares,
                                std::optional<DType> type) {
  NormInMaking making = begin(tensor, what, type);
  Work work = eager_.work().read(tensor);
  making.written_by(work);
  if (squares) work.really_reads(std::move(*squares));
  work.run(Body::SquareSum, what.label);
  return std::move(making.norm);
}

Variable GradientNorms::root_or_square(const Variable& of, What what) {
  const BufferId from = of.id();
  return derived({&from, 1}, 1, what);
}

Variable GradientNorms::sum_of_squares(const Variables& norms, What what) {
  return sum_of(squares_of(norms, what), what);
}

Variable GradientNorms::sum_of(const Variable& squares, What what) { return root_or_square(squares, what); }

Variable GradientNorms::squares_of(const Variables& norms, What what) {
  what.label = "gradient norms";
  const Variable stacked = derived(norms.ids(), norms.size(), what);
  const BufferId from = stacked.id();
  return derived({&from, 1}, norms.size(), what);
}

Variable GradientNorms::added_squares(std::span<const Variable* const> norms, What what) {
  Variable sum;
  for (const Variable* norm : norms) {
    const Variable square = root_or_square(*norm, what);
    if (sum) {
      eager_.add(sum, square, "add squares of norms");
    } else {
      sum = root_or_square(square, what);
    }
  }
  return sum;
}

// Squares have been added up already.
Variable GradientNorms::derived(std::span<const BufferId> from, std::size_t count, What what) {
  const DType type = eager_.emitter().dtype(from.front());
  Variable made = eager_.empty(storage(Elements(static_cast<std::int64_t>(count)), type), type, what);
  eager_.work().read(from).write(made).run(Body::Clear, what.label);
  return made;
}

Variable HeldNorms::made(DType type, BufferId gradient) {
  Variable norm = eager_.scratch(Bytes(bytes_per_element(type)), type, what_);
  Work work = eager_.work();
  work.write(norm);
  if (gradient != kNoBuffer) work.really_reads({{gradient, Bytes(0), eager_.emitter().size(gradient)}});
  // Without a gradient it is a copy of a number that nobody reads.
  work.run(gradient != kNoBuffer ? Body::SquareSum : Body::Nothing, what_.label);
  return norm;
}

void HeldNorms::in_step(DType type, std::size_t groups) {
  for (std::size_t one = 0; one < groups + 1; ++one) of_step_.append(made(type, kNoBuffer));
  if (global_norm_) of_step_.append(std::move(global_norm_));
  global_norm_ = made(type, kNoBuffer);
}

}  // namespace dsplan
