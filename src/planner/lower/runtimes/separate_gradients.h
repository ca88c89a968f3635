// `.grad` of each parameter, where gradients are tensors of their own.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "planner/lower/runtime.h"
#include "planner/lower/runtimes/named_parameters.h"

namespace dsplan {

class SeparateGradients {
 public:
  SeparateGradients(Emitter& emitter, std::size_t parameters) : emitter_(emitter), held_(parameters) {}

  // AccumulateGrad has run; the reference to `gradient` comes along.
  void accumulate(ParameterId parameter, BufferId gradient) {
    accumulate_gradient(of(parameter), Variable(emitter_, gradient, Reason::GradientHeld));
  }
  [[nodiscard]] bool holds(ParameterId parameter) const { return (*this)[parameter] != kNoBuffer; }
  // kNoBuffer: None.
  [[nodiscard]] BufferId operator[](ParameterId parameter) const {
    return held_[static_cast<std::size_t>(parameter)].id();
  }
  [[nodiscard]] Variable take(ParameterId parameter) { return std::move(of(parameter)); }
  // zero_grad(set_to_none=True)
  void drop(std::span<const NamedParameter> trained) {
    for (const NamedParameter& parameter : trained) of(parameter.id).reset();
  }
  // By ParameterId.
  [[nodiscard]] std::vector<BufferId> ids() const {
    std::vector<BufferId> ids;
    for (const Variable& gradient : held_) ids.push_back(gradient.id());
    return ids;
  }

 private:
  [[nodiscard]] Variable& of(ParameterId parameter) { return held_[static_cast<std::size_t>(parameter)]; }

  Emitter& emitter_;
  std::vector<Variable> held_;
};

}  // namespace dsplan
