// The runtime is what a framework hangs around the plain training loop: it owns the parameters, takes the gradients,
// talks to the other ranks and steps the optimizer. It attaches only to module boundaries, gradient-ready events and
// the loop's own moments, never to operators.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "core/schedule.h"
#include "planner/lower/eager.h"

namespace dsplan {

// Where a parameter can be read now.
struct ParameterPlace {
  BufferId buffer = kNoBuffer;
  Bytes offset;
  Bytes bytes;
};

// Makes the buffers of a module, or moves them: those whose names end so, or all that are not there yet.
class BuffersOf {
 public:
  using Act = std::function<void(ModuleId, std::string_view)>;
  explicit BuffersOf(Act act) : act_(std::move(act)) {}
  void operator()(ModuleId module, std::string_view end = {}) const { act_(module, end); }

 private:
  Act act_;
};

class TrainingRuntime {
 public:
  virtual ~TrainingRuntime() noexcept(false) = default;

  // On which several gradients of one parameter are summed: the stream on which the node that takes them was made.
  StreamId sums_gradients_on = kComputeStream;
  // Of a module in backward: after everything inside, whatever it is given. Empty: nobody asks.
  std::function<void(ModuleId)> leave;
  // Of a parameter in forward: Python asks a module for it that is not called for that. Empty: nobody listens.
  std::function<void(ParameterId)> ask;
  // As the first step begins others take the places of the model's buffers; empty: none do.
  std::function<void(std::vector<BufferId>&)> replace_buffers;

  // The model's buffers stay, whatever its modules put in their place: DDP's list of what it sends has them
  // (nn/parallel/distributed.py, _assign_modules_buffers).
  bool holds_buffers = false;
  // What an attribute of the model holds from one forward to the next (Instruction::Kind::Keep).
  BufferId kept = kNoBuffer;

  // Where `build` multiplies: a library's workspace is there from then on. Empty: none is placed.
  std::function<void()> before_product;

  // All parameters, and the buffers of each module by `buffers_of`: on the device in the order in which constructors
  // run; made on no device, in the order in which to_empty goes. In the host's memory buffers are there already, and
  // `buffers_of` moves them, here or in `initialise`, which moves the parameters. What is cut as it is made,
  // `initialise` makes.
  virtual void build(ModelInit /*where*/, const BuffersOf& /*buffers_of*/) {}
  // Everything that is there before the first batch. `buffers`: of the model, which are on the device, by index into
  // ModelSpec::buffers; kNoBuffer where there is none.
  virtual void initialise(const std::vector<BufferId>& buffers) = 0;
  [[nodiscard]] virtual ParameterPlace place(ParameterId parameter) const = 0;

  // A parameter's memory changes while the parameter stays: who keeps the memory keeps it past its release.
  [[nodiscard]] virtual bool moves_parameters() const { return false; }

  virtual void enter(ModuleId, Pass) {}
  // In backward only where the module is given a tensor that wants a gradient: the hook hangs on that. Of no module:
  // the pass itself, with what was queued for its end (torch/csrc/autograd/engine.cpp, queue_callback), before
  // torch.autograd.backward lets go of what it holds.
  virtual void exit(ModuleId, Pass) {}
  // The module whose input's gradient passes through the runtime's own function after everything inside, and only then
  // meets other gradients, for an operator of the module given: itself, or one around it. kNone: there is none.
  [[nodiscard]] virtual ModuleId wraps_input(ModuleId) const { return kNone; }
  // The model's forward returns: its outputs are still there. `with_outputs`: and the framework has done to them what
  // it does.
  virtual void forward_returns(bool /*with_outputs*/) {}
  virtual void forward_begins() {}
  // `boundary`: the last micro-batch before the optimizer step.
  virtual void backward_begins(bool /*boundary*/) {}
  // `.grad` is there already: AccumulateGrad adds to it, and needs no gradient of its own
  // (torch/csrc/autograd/functions/accumulate_grad.h).
  [[nodiscard]] virtual bool holds_gradient(ParameterId) const { return false; }
  // AccumulateGrad has run for `parameter`; the reference to `gradient` passes to the runtime.
  virtual void gradient_ready(ParameterId parameter, BufferId gradient) = 0;
  virtual void backward_ends(bool /*boundary*/) {}
  // The optimizer step and zero_grad.
  virtual void step(bool first) = 0;
  // Saving the model, where that takes memory or traffic of its own. Afterwards all is as it was.
  [[nodiscard]] virtual bool saves() const { return false; }
  virtual void save() {}
  // What the framework's own profiler has counted in the last micro-batch.
  [[nodiscard]] virtual std::vector<FrameworkCount> counts() const { return {}; }
};

// tensor.to(device): `source`, in pageable memory, ends with the copy. Returns the copy, which is written whole.
BufferId move_to_device(Emitter& emitter, BufferId source, What what, ParameterId parameter = kNone);

// AccumulateGrad: the first gradient becomes `held`; to what is there already the new one is added in place, and dies.
void accumulate_gradient(Variable& grad, Variable gradient);
void accumulate_gradient(Emitter& emitter, BufferId& held, BufferId gradient);

// The runtime of `job` for data-parallel rank `rank`. Refuses what is not modelled yet, by name.
[[nodiscard]] std::unique_ptr<TrainingRuntime> make_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                            Emitter& emitter);

}  // namespace dsplan
