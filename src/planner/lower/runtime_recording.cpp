// What runtimes tell an executor about norms (core/program.h): a parameter that all tensor-parallel ranks have alike
// counts on the first of them alone (DeepSpeed, runtime/utils.py: is_model_parallel_parameter).
#include "planner/lower/runtime_base.h"

namespace dsplan {

bool RuntimeBase::counts_in_norm(ParameterId parameter) const {
  const Recording* recording = emitter_.recording();
  if (recording == nullptr || recording->tensor_rank() == 0) return true;
  return model_.parameters[static_cast<std::size_t>(parameter)].split != Split::Replicated;
}

void RuntimeBase::record_squares(ParameterId parameter) {
  if (Recording* recording = emitter_.recording(); recording != nullptr && !counts_in_norm(parameter)) {
    recording->reads({});
  }
}

Squares RuntimeBase::squares_of(BufferId flat) const {
  Squares squares;
  if (emitter_.recording() == nullptr) return squares;
  const DType type = emitter_.dtype(flat);
  std::int64_t offset = 0;
  for (const Leaf& leaf : trained_) {
    if (counts_in_norm(leaf.id)) {
      squares.of.push_back({flat, storage(Elements(offset), type), storage(Elements(leaf.elements), type)});
    }
    offset += leaf.elements;
  }
  return squares;
}

Squares RuntimeBase::squares_of(const std::vector<BufferId>& gradients) const {
  Squares squares;
  squares.copies = static_cast<std::uint8_t>(world());
  if (emitter_.recording() == nullptr) return squares;
  for (const Leaf& leaf : trained_) {
    const BufferId gradient = gradients[static_cast<std::size_t>(leaf.id)];
    if (gradient != kNoBuffer && counts_in_norm(leaf.id)) {
      squares.of.push_back({gradient, Bytes(0), emitter_.size(gradient)});
    }
  }
  return squares;
}

void RuntimeBase::record_norm(const Squares& squares) {
  Recording* recording = emitter_.recording();
  if (recording == nullptr) return;
  recording->reads(squares.of);
  recording->states(squares.copies);
}

}  // namespace dsplan
