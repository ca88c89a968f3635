// The runner's optimizer steps: the norm's factor, overflows and the loss scale, updates, files.
#include <cmath>

#include "core/error.h"
#include "core/format.h"
#include "exec/runner.h"

namespace dsplan::exec {
namespace {

bool is_float(DType dtype) { return dtype <= DType::BFloat16; }

std::int64_t kind_of_update(OptimizerKind kind) {
  if (kind == OptimizerKind::Adam) return 0;
  if (kind == OptimizerKind::AdamW) return 1;
  if (kind == OptimizerKind::Sgd) return 2;
  if (kind == OptimizerKind::Lion) return 3;
  if (kind == OptimizerKind::Adagrad) return 4;
  DSPLAN_CHECK(kind == OptimizerKind::RmsProp, "an optimizer that the runner should have refused");
  return 5;
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

}  // namespace

double Runner::gradient_factor() const {
  const double scale = unscales_apart_ ? 1 : scale_.now();
  const double norm = std::sqrt(squares_ + pending_) / scale;
  const double clipped = settings_.clip > 0 ? std::min(1.0, settings_.clip / (norm + 1e-6)) : 1.0;
  return clipped / scale;
}

void Runner::scan(std::span<const Piece> pieces) {
  std::int64_t verdict = 0;
  const Piece found{registers_, DType::Int64, 1, Space::Device};
  to_device(found, &verdict, sizeof verdict);
  const dsplan_tensor target = exec::tensor_of(found);
  for (const Piece& piece : pieces) {
    if (piece.data == nullptr || !is_float(piece.dtype)) continue;
    const dsplan_tensor source = exec::tensor_of(piece);
    launch(Body::OverflowScan, {&source, 1}, {&target, 1});
  }
  device_.copy(&verdict, Space::Pageable, found.data, Space::Device, Bytes(sizeof verdict));
  device_.synchronize();
  overflow_ = overflow_ || verdict != 0;
}

// What is written is the flag of this rank, to which the others add theirs; or masks, which nobody looks at.
void Runner::scan_for_overflow(const Task& task) {
  scan(pieces(task.reads));
  for (const Piece& piece : pieces(task.writes)) {
    const dsplan_tensor target = exec::tensor_of(piece);
    launch(Body::Clear, {}, {&target, 1});
    const std::uint8_t flag = 1;
    if (piece.elements == 1 && bytes_per_element(piece.dtype) == 1 && overflow_) to_device(piece, &flag, sizeof flag);
  }
}

void Runner::take_flag(const Task& task) {
  const Piece piece = pieces(task.writes).front();
  std::uint8_t flag = 0;
  device_.copy(&flag, Space::Pageable, piece.data, piece.space, Bytes(1));
  device_.synchronize();
  overflow_ = overflow_ || flag != 0;
}

void Runner::unscale(const Task& task) {
  scan(pieces(task.writes));
  scale(task, 1 / scale_.now());
}

// Without a flag (where every rank has all gradients) the norm says it.
bool Runner::overflows() {
  if (!scale_.looks()) return false;
  if (judged_) return *judged_;
  judged_ = overflow_ || !std::isfinite(squares_ + pending_);
  if (!scale_.moves_before_update() || scale_.step(*judged_)) return *judged_;
  throw RunFailure(
      {DSPLAN_INVALID, device_.rank(), event_, "loss scale",
       formatted("gradients overflow at the smallest scale, {}: DeepSpeed ends the training here", scale_.now())});
}

void Runner::end_step() {
  if (scale_.looks()) {
    const double before = taken_scale_;
    const bool skipped = overflows();
    if (skipped) --steps_;
    if (!scale_.moves_before_update()) (void)scale_.step(skipped);
    taken_.push_back({before, skipped});
  }
  taken_scale_ = scale_.now();
  judged_.reset();
  overflow_ = false;
  squares_ = pending_ = 0;
}

// Aligned stretches: what lies behind a tensor's end in its buffer goes along.
void Runner::move_file(const Task& task) {
  const bool reads = task.body == Body::FileRead;
  const ByteRange& file = plan_.program.range(reads ? task.reads : task.writes).front();
  const ByteRange& memory = plan_.program.range(reads ? task.writes : task.reads).front();
  DSPLAN_CHECK(memory.offset + file.bytes <= memory_.size(memory.buffer), "a file reaches beyond its buffer");
  std::byte* at = memory_.pointer(memory.buffer) + memory.offset.value();
  device_.synchronize();
  if (reads) {
    device_.read_file(memory_.file(file.buffer), file.offset, at, file.bytes);
  } else {
    device_.write_file(memory_.file(file.buffer), file.offset, at, file.bytes);
  }
}

// reads: for each target the target itself, its gradient and its states (or, where a gradient lies in pieces, those);
// writes: the targets, each with its states.
void Runner::update(const Task& task) {
  // The schedule is that of a step that is taken. One that is left out goes through it all the same, and changes
  // nothing: what is copied afterwards is what was there.
  if (overflows()) return;
  const std::vector<Piece> writes = pieces(task.writes);
  std::vector<Piece> gradients;
  for (const Piece& piece : pieces(task.reads, writes.front().dtype)) {
    if (std::none_of(writes.begin(), writes.end(), [&](const Piece& w) { return same_stretch(w, piece); })) {
      gradients.push_back(piece);
    }
  }
  std::int64_t used = 0;
  for (std::size_t at = 0; at < writes.size();) {
    const Piece& target = writes[at++];
    std::vector<Piece> states;  // Counters of steps are smaller than what they count for.
    for (std::uint8_t k = 0; k < task.part; ++k) states.push_back(writes[at++]);
    update_one(stretch(gradients, used, target.elements), target, states);
    used += target.elements;
  }
}

void Runner::update_one(std::span<const Piece> gradients, const Piece& target, std::span<const Piece> states) {
  const std::vector<double> numbers{settings_.learning_rate,
                                    settings_.beta1,
                                    second_beta(settings_),
                                    epsilon_of(settings_),
                                    settings_.weight_decay,
                                    settings_.momentum,
                                    clips_apart_ ? 1 : gradient_factor()};
  const std::vector<std::int64_t> integers{kind_of_update(settings_.optimizer), steps_};
  std::int64_t done = 0;
  for (const Piece& gradient : gradients) {
    std::vector<dsplan_tensor> made{exec::tensor_of(target.part(done, gradient.elements))};
    for (const Piece& state : states) {
      if (state.elements == target.elements) made.push_back(exec::tensor_of(state.part(done, gradient.elements)));
    }
    done += gradient.elements;
    if (gradient.data == nullptr) continue;  // Padding.
    const dsplan_tensor source = exec::tensor_of(gradient);
    launch(Body::Update, {&source, 1}, made, integers, numbers);
  }
}

}  // namespace dsplan::exec
