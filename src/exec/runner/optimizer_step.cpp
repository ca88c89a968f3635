#include "exec/runner/optimizer_step.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/format.h"

namespace dsplan::exec {
namespace {

bool is_float(DType dtype) { return dtype <= DType::BFloat16; }

// As the kernels number them; nullopt: there is none.
std::optional<std::int64_t> kind_of_update(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::Adam: return 0;
    case OptimizerKind::AdamW: return 1;
    case OptimizerKind::Sgd: return 2;
    case OptimizerKind::Lion: return 3;
    case OptimizerKind::Adagrad: return 4;
    case OptimizerKind::RmsProp: return 5;
    default: return std::nullopt;
  }
}

// The frameworks' defaults where they are not Adam's: Lion's second beta, RMSprop's alpha in its place; Adagrad's
// epsilon.
double second_beta(const RunSettings& settings) {
  const bool other = settings.optimizer == OptimizerKind::Lion || settings.optimizer == OptimizerKind::RmsProp;
  return other ? 0.99 : settings.beta2;
}
double epsilon_of(const RunSettings& settings) {
  return settings.optimizer == OptimizerKind::Adagrad ? 1e-10 : settings.epsilon;
}

bool has(const Program& program, Body body) {
  return std::any_of(program.tasks.begin(), program.tasks.end(), [&](const Task& task) { return task.body == body; });
}

}  // namespace

void GradientNorm::add_part(const Task& task) {
  const Piece sum = launcher_.scratch(DType::Float64);
  launcher_.put_number(0, sum);
  for (const Piece& piece : launcher_.pieces(task.reads)) {
    if (piece.data != nullptr) launcher_.launch(Body::SquareSum, {&piece, 1}, {&sum, 1});
  }
  pending_ += launcher_.number_at(sum);
}

void GradientNorm::put_part(const Task& task) {
  add_part(task);
  const double part = std::exchange(pending_, 0) / std::max<double>(task.part, 1);
  launcher_.put_number(part, launcher_.pieces(task.writes).front());
  buffer_ = plan_.program.range(task.writes).front().buffer;
  squares_ += part;
  contributed_ = part;
}

void GradientNorm::take_sum(const Task& task) {
  if (plan_.program.range(task.writes).front().buffer != buffer_) return;
  const double now = launcher_.number_at(launcher_.pieces(task.writes).front());
  squares_ += now - contributed_;
  contributed_ = now;  // The next group's sum contains it.
}

void OverflowCheck::scan(std::span<const Piece> pieces) {
  std::int64_t verdict = 0;
  const Piece found = launcher_.scratch(DType::Int64);
  launcher_.write(found, &verdict, sizeof verdict);
  for (const Piece& piece : pieces) {
    if (piece.data == nullptr || !is_float(piece.dtype)) continue;
    launcher_.launch(Body::OverflowScan, {&piece, 1}, {&found, 1});
  }
  launcher_.read(found, &verdict, sizeof verdict);
  found_ = found_ || verdict != 0;
}

void OverflowCheck::scan(const Task& task) {
  scan(launcher_.pieces(task.reads));
  for (const Piece& piece : launcher_.pieces(task.writes)) {
    launcher_.launch(Body::Clear, {}, {&piece, 1});
    const std::uint8_t flag = 1;
    if (piece.elements == 1 && bytes_per_element(piece.dtype) == 1 && found_)
      launcher_.write(piece, &flag, sizeof flag);
  }
}

void OverflowCheck::take_flag(const Task& task) {
  std::uint8_t flag = 0;
  launcher_.read(launcher_.pieces(task.writes).front(), &flag, sizeof flag);
  found_ = found_ || flag != 0;
}

OptimizerStep::OptimizerStep(const RankPlan& plan, const RunSettings& settings, Launcher& launcher)
    : settings_(settings),
      launcher_(launcher),
      norm_(plan, launcher),
      overflow_(launcher),
      scale_(settings.loss_scaling),
      clips_apart_(has(plan.program, Body::Clip)),
      unscales_apart_(has(plan.program, Body::Unscale)),
      taken_scale_(scale_.now()) {
  if (!kind_of_update(settings.optimizer)) {
    throw Refusal("run", formatted("the step of {} cannot be executed yet: those of Adam, AdamW, SGD, Lion, Adagrad "
                                   "and RMSprop can",
                                   name(settings.optimizer)));
  }
}

bool OptimizerStep::run(const Task& task) {
  switch (task.body) {
    case Body::SquareSum: norm_.add_part(task); return true;
    case Body::Norm: norm_.put_part(task); return true;
    case Body::Clip: scale(task, gradient_factor()); return true;
    case Body::Scale: scale(task, 1 / scale_.now()); return true;
    case Body::OverflowScan: overflow_.scan(task); return true;
    case Body::Unscale:
      overflow_.scan(launcher_.pieces(task.writes));
      scale(task, 1 / scale_.now());
      return true;
    case Body::Update: update(task); return true;
    default: return false;
  }
}

void OptimizerStep::received(const Task& task, bool flag) {
  norm_.take_sum(task);
  if (flag) overflow_.take_flag(task);
}

void OptimizerStep::scale(const Task& task, double factor) {
  if (factor == 1) return;
  for (const Piece& piece : launcher_.pieces(task.writes)) {
    launcher_.launch(Body::Scale, {}, {&piece, 1}, {{}, {&factor, 1}});
  }
}

double OptimizerStep::gradient_factor() const {
  const double scale = unscales_apart_ ? 1 : scale_.now();
  const double norm = std::sqrt(norm_.squares()) / scale;
  const double clipped = settings_.clip > 0 ? std::min(1.0, settings_.clip / (norm + 1e-6)) : 1.0;
  return clipped / scale;
}

bool OptimizerStep::overflows() {
  if (!scale_.looks()) return false;
  if (judged_) return *judged_;
  judged_ = overflow_.found() || !std::isfinite(norm_.squares());
  if (!scale_.moves_before_update() || scale_.step(*judged_)) return *judged_;
  // Rank and event are filled in by whoever keeps the ranks.
  throw RunFailure(
      {DSPLAN_INVALID, -1, kNoEvent, "loss scale",
       formatted("gradients overflow at the smallest scale, {}: DeepSpeed ends the training here", scale_.now())});
}

void OptimizerStep::end() {
  if (scale_.looks()) {
    const double before = taken_scale_;
    const bool skipped = overflows();
    if (skipped) --steps_;
    if (!scale_.moves_before_update()) (void)scale_.step(skipped);
    taken_.push_back({before, skipped});
  }
  taken_scale_ = scale_.now();
  judged_.reset();
  overflow_.reset();
  norm_.reset();
}

// reads: for each target the target itself, its gradient and its states (or, where a gradient lies in pieces, those);
// writes: the targets, each with its states.
void OptimizerStep::update(const Task& task) {
  // The schedule is that of a step that is taken. One that is left out goes through it all the same, and changes
  // nothing: what is copied afterwards is what was there.
  if (overflows()) return;
  const std::vector<Piece> writes = launcher_.pieces(task.writes);
  std::vector<Piece> gradients = launcher_.pieces(task.reads, writes.front().dtype);
  std::erase_if(gradients, [&](const Piece& piece) { return is_among(piece, writes); });
  std::int64_t used = 0;
  for (std::size_t at = 0; at < writes.size();) {
    const Piece& target = writes[at++];
    std::vector<Piece> states;  // Counters of steps are smaller than what they count for.
    for (std::uint8_t k = 0; k < task.part; ++k) states.push_back(writes[at++]);
    update_one(stretch(gradients, used, target.elements), target, states);
    used += target.elements;
  }
}

void OptimizerStep::update_one(std::span<const Piece> gradients, const Piece& target, std::span<const Piece> states) {
  const std::vector<double> numbers{settings_.learning_rate,
                                    settings_.beta1,
                                    second_beta(settings_),
                                    epsilon_of(settings_),
                                    settings_.weight_decay,
                                    settings_.momentum,
                                    clips_apart_ ? 1 : gradient_factor()};
  const std::vector<std::int64_t> integers{*kind_of_update(settings_.optimizer), steps_};
  std::int64_t done = 0;
  for (const Piece& gradient : gradients) {
    std::vector<Piece> made{target.part(done, gradient.elements)};
    for (const Piece& state : states) {
      if (state.elements == target.elements) made.push_back(state.part(done, gradient.elements));
    }
    done += gradient.elements;
    if (gradient.data == nullptr) continue;  // Padding.
    launcher_.launch(Body::Update, {&gradient, 1}, made, {integers, numbers});
  }
}

}  // namespace dsplan::exec
