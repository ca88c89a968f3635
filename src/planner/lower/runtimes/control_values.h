// Small numbers on which ranks agree in a step: whether a gradient overflowed, and the global norm. They become the
// host's numbers (`.item()`), so the host waits for them.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/job.h"
#include "core/kernel_scratch.h"
#include "core/model.h"
#include "planner/lower/eager.h"
#include "planner/lower/runtimes/named_parameters.h"

namespace dsplan {

// The groups that one rank belongs to, and its place among the data-parallel ones.
struct Ranks {
  std::int64_t data_parallel = 1;
  std::int64_t tensor_parallel = 1;
  std::int64_t rank = 0;
};

// For an executor: of what a control value is the norm, beside what has been measured before, or what is looked at for
// an overflow; where every data-parallel rank has it all, and they add up, `copies` of them.
struct Squares {
  std::vector<ByteRange> of;
  std::uint8_t copies = 0;
};

class ControlValues {
 public:
  ControlValues(Emitter& emitter, const ModelSpec& model, Ranks ranks)
      : eager_(emitter), model_(model), ranks_(ranks) {}

  // A value of `bytes` (1: a flag, 4 or 8: a norm), over the data-parallel ranks, then over the tensor-parallel ones,
  // each where there are several. `from`: what it is made of, which goes when it is there.
  void all_reduce(Bytes bytes, What what, const Squares& squares = {}, Variable from = {});
  // Of a value that is the same on all data-parallel ranks: over the tensor-parallel ones alone.
  // Where it is made `from` something on the device it is there with one rank, too.
  void tensor_parallel(Bytes bytes, What what, const Squares& squares = {}, const Variable& from = {});
  // The norm of a sub-group of a host's optimizer: `sum` of squares, which ranks add up in fp32, its root, and -1 where
  // that is no number (zero/stage3.py, complete_grad_norm_calculation_for_cpu_offload).
  void sub_group_norm(What what, Variable sum);
  // A value that is there, over the ranks of one group; nothing where there is one.
  void share(BufferId value, Group group);
  // mask_nan_or_inf_with_val_inplace (runtime/utils.py) of one fp32 number: what compares absolute values goes at once,
  // two flags, whether one is set, and -1 when it returns.
  void mask_invalid(What what);

  // A parameter that all tensor-parallel ranks have alike counts on the first of them alone (DeepSpeed,
  // runtime/utils.py: is_model_parallel_parameter).
  [[nodiscard]] bool counts_in_norm(ParameterId parameter) const;
  // Of gradients that lie in `flat` in the order of `trained`; or by ParameterId, on all data-parallel ranks.
  [[nodiscard]] Squares squares_of(BufferId flat, std::span<const NamedParameter> trained) const;
  [[nodiscard]] Squares squares_of(const std::vector<BufferId>& gradients,
                                   std::span<const NamedParameter> trained) const;

 private:
  [[nodiscard]] Variable made(Bytes bytes, What what, const Squares& squares, const Variable& from);

  Eager eager_;
  const ModelSpec& model_;
  Ranks ranks_;
};

// Norms of gradients, which the framework takes one by one before it adds them up. Each is a number on the device, and
// while its kernel runs there is what the kernel's blocks meet in (core/kernel_scratch.h).
struct NormInMaking {
  Variable norm;
  Variable staging;     // None where one block makes it.
  Variable semaphores;  // They go first.
  void written_by(Work& work) const;
};

class GradientNorms {
 public:
  GradientNorms(Emitter& emitter, const Job& job);

  // tensor.norm(2), in the tensor's own dtype or in another. `squares`: for an executor, of what it is the norm, where
  // that is not the tensor.
  [[nodiscard]] Variable norm_of(const Part& tensor, What what,
                                 std::optional<std::vector<ByteRange>> squares = std::nullopt,
                                 std::optional<DType> type = std::nullopt);
  // The same without its work, for those who have one of their own.
  [[nodiscard]] NormInMaking begin(const Part& tensor, What what, std::optional<DType> type = std::nullopt);
  // Of one number: number ** 2, number ** 0.5.
  [[nodiscard]] Variable root_or_square(const Variable& of, What what);
  // torch.sum(torch.stack(norms).pow(2)); the list stays the caller's.
  [[nodiscard]] Variable sum_of_squares(const Variables& norms, What what);
  // The same in its two parts.
  [[nodiscard]] Variable squares_of(const Variables& norms, What what);
  [[nodiscard]] Variable sum_of(const Variable& squares, What what);
  // The squares of norms added up one after another, from 0.0 on; the list stays the caller's.
  [[nodiscard]] Variable added_squares(std::span<const Variable* const> norms, What what);

 private:
  // Made of what is in `from`, so many numbers.
  [[nodiscard]] Variable derived(std::span<const BufferId> from, std::size_t count, What what);

  Eager eager_;
  DeviceThreads device_;
};

// Norms that a DeepSpeed optimizer holds beyond the value that ranks agreed on.
class HeldNorms {
 public:
  // `step`: the function that makes them, as Buffer::source has it.
  HeldNorms(Emitter& emitter, Source step) : eager_(emitter), what_{Role::Temporaries, "global gradient norm", step} {}

  // The wrapper's _global_grad_norm: a scalar that each step replaces. `gradient`: what it is the norm of, where no
  // event of its own has measured it.
  void replace(DType type, BufferId gradient = kNoBuffer) { global_norm_ = made(type, gradient); }
  // The same under ZeRO, where the scaled norm, the norms of `groups` groups that step() has a variable for, and the
  // norm of the step before, which the engine holds, stay until `step_returns`.
  void in_step(DType type, std::size_t groups);
  void step_returns() { of_step_.reset(); }

 private:
  [[nodiscard]] Variable made(DType type, BufferId gradient);

  Eager eager_;
  What what_;
  Variables of_step_;
  Variable global_norm_;
};

}  // namespace dsplan
