// Parameters as constructors make them on a device, in their order, and what becomes of those that are tied.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "core/model.h"
#include "core/training.h"
#include "planner/lower/eager.h"

namespace dsplan {

class ConstructedWeights {
 public:
  // Makes one parameter.
  using Make = std::function<Variable(ParameterId, What)>;
  // `made`: by ParameterId, what is there. All must outlive this.
  ConstructedWeights(const ModelSpec& model, const Version& transformers, std::vector<Variable>& made, Make make);

  // Before the constructor of the module at `next`, or behind all: parameters of others that waited for that; then its
  // own.
  void construct_waiting(std::size_t next);
  void construct_own(std::size_t next);
  // The root's own that waited for all inside of it, which is whole then.
  void construct_root();
  // `next` is about to be made, kNone: nothing is. Models that it does not lie in are whole, and tie their weights.
  void tie_outside(ModuleId next);

 private:
  // What will be tied, as it is made.
  struct Own {
    ParameterId id;
    Variable variable;
  };
  void construct(ParameterId id);
  void tie(std::vector<Own>& weights);
  void pad_bias(ModuleId module, std::vector<Own>& weights);

  const ModelSpec& model_;
  bool pads_;  // Since transformers 5.
  std::vector<Variable>& made_;
  Make make_;
  std::vector<std::vector<ParameterId>> order_;  // By the module before which they are made, the last behind all.
  std::map<ModuleId, std::vector<Own>> tied_;    // By who ties them.
};

}  // namespace dsplan
