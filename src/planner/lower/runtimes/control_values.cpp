#include "planner/lower/runtimes/control_values.h"

#include <utility>

namespace dsplan {

Variable ControlValues::made(Bytes bytes, What what, const Squares& squares) {
  const DType type = bytes == Bytes(1) ? DType::UInt8 : bytes == Bytes(4) ? DType::Float32 : DType::Float64;
  Variable value = eager_.scratch(bytes, type, what);
  Work work = eager_.work();
  work.write(value).really_reads(squares.of).states(squares.copies);
  work.run(type == DType::UInt8 ? Body::OverflowScan : Body::Norm, what.label);
  return value;
}

void ControlValues::all_reduce(Bytes bytes, What what, const Squares& squares) {
  Variable value = made(bytes, what, squares);
  share(value.id(), Group::DataParallel);
  share(value.id(), Group::TensorParallel);
  value.reset();
  eager_.emitter().wait_stream(kHostSync, kComputeStream);  // Whose number it becomes.
}

void ControlValues::tensor_parallel(Bytes bytes, What what, const Squares& squares) {
  if (ranks_.tensor_parallel == 1) return;
  Variable value = made(bytes, what, squares);
  share(value.id(), Group::TensorParallel);
  value.reset();
  eager_.emitter().wait_stream(kHostSync, kComputeStream);
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
  return model_.parameters[static_cast<std::size_t>(parameter)].split != Split::Replicated;
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
