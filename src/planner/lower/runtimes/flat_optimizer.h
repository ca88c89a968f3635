// An optimizer over one flat tensor: master weights of a part of the flat parameters, and the states beside them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/training.h"
#include "planner/lower/eager.h"

namespace dsplan {

// All state tensors of one flat tensor of `elements` in master dtype.
[[nodiscard]] Variables make_states(Eager& eager, const Training& training, std::int64_t elements,
                                    Space space = Space::Device);

// torch.optim.Adam's multi-tensor form divides by a tensor of its own, which goes when step() returns.
[[nodiscard]] bool makes_root(const Optimizer& optimizer);
[[nodiscard]] Variable square_root(Eager& eager, BufferId exp_avg_sq);

class FlatOptimizer {
 public:
  // `source`: where the wrapper makes its master weights.
  FlatOptimizer(Emitter& emitter, const Training& training, Source source)
      : eager_(emitter), training_(training), source_(source) {}

  // parameters.clone().float(): the clone is there while it is cast.
  void create_master(const Part& parameters, What clone, Label work);
  // Where there is nothing to cast the clone itself is the master.
  void clone_master(const Part& parameters, Label work);
  // Master weights that others made.
  void take_master(Variable master) { master_ = std::move(master); }

  void create_states(Space space = Space::Device);
  // optimizer.step(). `reads`: what an executor reads, where the gradient is not laid out as the master is.
  void step(const Part& gradient, std::vector<ByteRange> reads = {});
  // With zeros, for the states that it makes. It is left without effect on the weights: with weight decay the real one
  // takes a step of decay.
  void dummy_step(const Part& zeros);
  void copy_master_to(const Part& parameters);

  [[nodiscard]] BufferId master() const { return master_.id(); }
  [[nodiscard]] const Variables& states() const { return states_; }

 private:
  Work update(const Part& gradient);

  Eager eager_;
  const Training& training_;
  Source source_;
  Variable master_;
  Variables states_;
};

}  // namespace dsplan
