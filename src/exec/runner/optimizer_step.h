// What an optimizer step has to know of all gradients together, and the step itself: the norm, whether gradients
// overflow, the loss scale, and updates.
#pragma once

#include <optional>
#include <vector>

#include "exec/runner/launcher.h"
#include "exec/runner/loss_scale.h"
#include "exec/runner/rank_plan.h"

namespace dsplan::exec {

// The squares of the norm of all gradients of a step. Groups of parameters come one after the other: each rank puts its
// part into a buffer that is summed over the ranks.
class GradientNorm {
 public:
  GradientNorm(const RankPlan& plan, Launcher& launcher) : plan_(plan), launcher_(launcher) {}

  void add_part(const Task& task);  // Of this rank, not yet with the others.
  // Writes this rank's part where the others can add theirs; where there are none, it is the whole.
  void put_part(const Task& task);
  // After a collective: if it summed what was put, that is what all ranks have.
  void take_sum(const Task& task);
  [[nodiscard]] double squares() const { return squares_ + pending_; }
  void reset() { squares_ = pending_ = 0; }

 private:
  const RankPlan& plan_;
  Launcher& launcher_;
  double squares_ = 0;      // Of all ranks' gradients.
  double pending_ = 0;      // This rank's part, not yet with the others.
  double contributed_ = 0;  // What went into `buffer_`.
  BufferId buffer_ = kNoBuffer;
};

// Whether a gradient of this step is not finite, on any rank. Without a flag (where every rank has all gradients) the
// norm says it.
class OverflowCheck {
 public:
  explicit OverflowCheck(Launcher& launcher) : launcher_(launcher) {}

  void scan(std::span<const Piece> pieces);
  // Reads gradients, and writes the flag of this rank, to which the others add theirs; or masks, which nobody looks at.
  void scan(const Task& task);
  void take_flag(const Task& task);  // After a collective over flags.
  [[nodiscard]] bool found() const { return found_; }
  void reset() { found_ = false; }

 private:
  Launcher& launcher_;
  bool found_ = false;
};

class OptimizerStep {
 public:
  // All must outlive this. Throws Refusal for an optimizer whose step cannot be executed.
  OptimizerStep(const RankPlan& plan, const RunSettings& settings, Launcher& launcher);

  void begin() { ++steps_; }
  void end();
  // False: the task is none of an optimizer step.
  [[nodiscard]] bool run(const Task& task);
  // A collective is over.
  void received(const Task& task, bool flag);

  // With which a backward that begins now runs.
  [[nodiscard]] double loss_scale() const { return scale_.now(); }
  // Each step so far: the loss scale with which its backward ran, and whether it was left out because gradients were
  // not finite. Of fp16 only.
  struct Taken {
    double loss_scale = 1;
    bool skipped = false;
  };
  [[nodiscard]] const std::vector<Taken>& taken() const { return taken_; }

 private:
  // Moves the loss scale, once in each step.
  [[nodiscard]] bool overflows();
  [[nodiscard]] double gradient_factor() const;
  void scale(const Task& task, double factor);
  void update(const Task& task);
  void update_one(std::span<const Piece> gradients, const Piece& target, std::span<const Piece> states);

  const RunSettings& settings_;
  Launcher& launcher_;
  GradientNorm norm_;
  OverflowCheck overflow_;
  LossScale scale_;
  bool clips_apart_;            // Clipping is work of its own, not part of the update,
  bool unscales_apart_;         // and so is the division by the loss scale.
  std::optional<bool> judged_;  // What `overflows` said in this step.
  double taken_scale_;          // With which the backward of this step runs.
  std::int64_t steps_ = 0;      // Begun, and not left out.
  std::vector<Taken> taken_;
};

}  // namespace dsplan::exec
