// What `optimizer.step()` allocates and frees on the device, in the order of the library's own Python: state that is
// made lazily in the first step, and temporaries with the lifetimes of the variables that hold them.
//
// Sources: torch 2.11 torch/optim/{adam,sgd,adagrad,rmsprop,_muon}.py, transformers 5.17 optimization.py (Adafactor),
// bitsandbytes 0.50 optim/optimizer.py (Adam8bit, Lion). tests/witnesses/optimizers.json holds what they really do.
// Multi-tensor and fused launches take no memory of their own (ATen/native/cuda/MultiTensorApply.cuh passes metadata as
// kernel arguments); the scratch of a reduction over one large tensor (Adafactor, Muon) is not modelled.
#pragma once

#include <span>
#include <vector>

#include "core/training.h"
#include "planner/lower/eager.h"
#include "planner/lower/runtimes/torchao/torchao_step.h"

namespace dsplan {

// A parameter with its gradient, as the optimizer meets it.
struct StepParameter {
  ParameterId id = 0;
  Part parameter;
  Part gradient;  // kNoBuffer: `.grad` is None, and the parameter is passed over.
  Shape shape;    // As this rank has it; a shard may have no rows.
  DType dtype = DType::Float32;
  bool hidden_matrix = false;  // A 2-D weight that is neither embedding nor head; only Muon cares.
  bool embedding = false;      // The weight of an nn.Embedding; only 8-bit states care.
  bool replicated = false;     // All tensor-parallel ranks have it alike; only norms care.
};

// Whose kernel unscales gradients and looks for infinities by itself (_step_supports_amp_scaling).
[[nodiscard]] inline bool fused_in_torch(const Optimizer& optimizer) {
  return optimizer.implementation == Implementation::Fused &&
         (optimizer.kind == OptimizerKind::Adam || optimizer.kind == OptimizerKind::AdamW ||
          optimizer.kind == OptimizerKind::Sgd);
}

// Lists of tensors of one device and dtype, as _group_tensors_by_device_and_dtype returns them: in the reverse order of
// first appearance (an unordered_map of few keys), each list in the order of the parameters.
[[nodiscard]] std::vector<std::vector<StepParameter>> grouped_by_dtype(std::span<const StepParameter> parameters);

// Where the library's code makes what a step needs (core/schedule.h); empty where that is not said.
struct StepSources {
  Source state = "";
  Source root = "";     // The square root that Adam divides by.
  Bytes l2 = Bytes(0);  // Of the device's cache, which torchao's first step flushes; zero: not known.
};

// One optimizer object. `parameters` is the number of ParameterIds.
class OptimizerStep {
 public:
  // `space`: where states and temporaries lie, which is where the parameters do.
  OptimizerStep(const Optimizer& optimizer, Emitter& emitter, std::size_t parameters, StepSources sources = {},
                Space space = Space::Device);

  // What the constructor makes: Adagrad's sums.
  void construct(std::span<const StepParameter> parameters);
  // One parameter group. Weight decay of AdamW and Muon is decoupled and takes nothing, as does that of bitsandbytes.
  void step(std::span<const StepParameter> group, double weight_decay);
  // The same with zeros as gradients, for the states that it makes; an executor leaves everything as it is.
  void dummy_step(std::span<const StepParameter> group, double weight_decay);

 private:
  using Unit = std::span<const StepParameter>;

  void adam(Unit group, Implementation form, bool adds_decay);
  void sgd(Unit group, bool adds_decay);
  void adagrad(Unit group, bool adds_decay);
  void rmsprop(Unit group, bool adds_decay);
  void muon(Unit group);
  void adafactor(Unit group);
  void one_by_one(Unit group, double weight_decay);
  void orthogonalise(const StepParameter& parameter, Variables& update);
  void adafactor_scale(const StepParameter& parameter, Variables& update);
  void adafactor_update(const StepParameter& parameter, Variables& update);

  // What one launch works on: all tensors of a dtype, or one.
  [[nodiscard]] static std::vector<std::vector<StepParameter>> units(Unit group, Implementation form);
  void create_state(const StepParameter& parameter);
  void create_maps();
  [[nodiscard]] Variables make(std::vector<Bytes> sizes, DType dtype, What what);
  [[nodiscard]] Variables like(Unit unit, Label label, Source source = "");  // One for each, of its shape and dtype.
  [[nodiscard]] Variables one(Bytes size, DType dtype, Label label);
  void update(Unit all, std::initializer_list<const Variables*> also_read);

  const Optimizer& optimizer_;
  Eager eager_;
  StepSources sources_;
  Space space_;
  std::vector<Variables> states_;  // By ParameterId, as are the next.
  std::vector<Variable> rms_;      // Adafactor's scalar, made anew in each step.
  std::vector<bool> has_state_;
  TorchaoStep torchao_;
  bool dummy_ = false;
  Variables maps_;  // bitsandbytes: two maps of 256 values, shared by all 8-bit states.
};

}  // namespace dsplan
