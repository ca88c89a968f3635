#include "report/compare_optimizers.h"

#include <algorithm>
#include <utility>

#include "core/format.h"
#include "planner/lower/runtimes/gradient_scaling.h"
#include "planner/lower/runtimes/optimizer_step.h"

namespace dsplan {
namespace {

constexpr std::size_t kEventsExpected = 4096;

// Parameters and gradients that are there, and what acts on them.
class Bench {
 public:
  Bench(const OptimizerRun& run, RunLevel level)
      : run_(run),
        emitter_(kEventsExpected),
        step_(run.optimizer, emitter_, run.parameters.size()),
        clip_(emitter_, level == RunLevel::Kernel ? Level::Kernel : Level::Dispatch),
        scaler_(emitter_) {
    emitter_.mark(Moment::StretchBegins, Stretch::Init);
    for (const OptimizerRun::Given& given : run.parameters) add(given);
  }

  Schedule finish() {
    part();
    if (run_.action == OptimizerRun::Action::Step) step_.construct(parameters_);
    for (int i = 0; i < 2; ++i) {
      part();
      act();
    }
    emitter_.mark(Moment::StepEnds, Stretch::FirstStep);
    return emitter_.finish();
  }

 private:
  void add(const OptimizerRun::Given& given) {
    StepParameter made;
    made.id = static_cast<ParameterId>(parameters_.size());
    made.shape = given.shape;
    made.dtype = given.dtype;
    made.parameter = filled(made, Role::Parameters);
    made.gradient = filled(made, Role::Gradients);
    made.hidden_matrix = made.shape.rank == 2;
    made.embedding = run_.embedding == made.id;
    parameters_.push_back(made);
  }

  BufferId filled(const StepParameter& parameter, Role role) {
    const Bytes bytes = storage(parameter.shape.elements(), parameter.dtype);
    const BufferId buffer = emitter_.allocate(bytes, parameter.dtype, {role, "given"});
    write(buffer, "given");
    return buffer;
  }

  void write(BufferId buffer, const char* what) {
    emitter_.begin();
    emitter_.write(buffer);
    emitter_.compute(Body::Clear, what);
  }

  // What follows belongs to another part of the log.
  void part() {
    if (std::exchange(parted_, true)) emitter_.mark(Moment::StepEnds, Stretch::FirstStep);
    emitter_.mark(Moment::StepBegins, Stretch::FirstStep);
  }

  void act() {
    switch (run_.action) {
      case OptimizerRun::Action::Step: step_.step(parameters_, run_.optimizer.weight_decay); return;
      case OptimizerRun::Action::Clip:
        clip_.forget();
        clip_.run(parameters_, run_.keep);
        return;
      case OptimizerRun::Action::LossScaler: scale(); return;
      case OptimizerRun::Action::ZeroGrad: return;
    }
  }

  void scale() {
    const BufferId loss = emitter_.allocate(Bytes(4), DType::Float32, {Role::Inputs, "loss"});
    emitter_.mark_scratch(loss);
    write(loss, "loss");
    scaler_.scale();
    scaler_.backward_done();
    emitter_.release(loss, Reason::Loop);
    clip_.forget();
    if (run_.clip) {
      scaler_.unscale(parameters_);
      clip_.run(parameters_, true);
    }
    scaler_.before_step(parameters_, run_.optimizer.implementation == Implementation::Fused);
    step_.step(parameters_, 0);
    scaler_.after_step();
  }

  const OptimizerRun& run_;
  Emitter emitter_;
  OptimizerStep step_;
  GradientClip clip_;
  LossScaler scaler_;
  std::vector<StepParameter> parameters_;
  bool parted_ = false;
};

std::string freed(Bytes bytes) { return "-" + std::to_string(bytes.value()); }

OptimizerLogs zero_grad_logs(const OptimizerRun& run) {
  OptimizerLogs logs;
  if (!run.set_to_none) return logs;
  for (const OptimizerRun::Given& given : run.parameters) {
    logs[1].lines.push_back(freed(storage(given.shape.elements(), given.dtype)));
  }
  sort_frees(logs[1].lines);
  return logs;
}

}  // namespace

Schedule optimizer_schedule(const OptimizerRun& run, RunLevel level) { return Bench(run, level).finish(); }

OptimizerLog optimizer_log(const Schedule& schedule, std::size_t first, std::size_t last, RunLevel level,
                           std::int64_t& live) {
  OptimizerLog log;
  log.peak = live;
  for (std::size_t at = first; at < last; ++at) {
    if (const auto* made = std::get_if<Allocate>(&schedule.events[at])) {
      const Buffer& buffer = schedule.buffers[made->buffer];
      live += buffer.size.value();
      log.peak = std::max(log.peak, live);
      const std::string kind = level == RunLevel::Kernel ? std::string("+") : std::string(name(buffer.dtype)) + " ";
      log.lines.push_back(kind + std::to_string(buffer.size.value()));
    } else if (const auto* let_go = std::get_if<Release>(&schedule.events[at])) {
      const Bytes size = schedule.buffers[let_go->buffer].size;
      live -= size.value();
      log.lines.push_back(freed(size));
    }
  }
  sort_frees(log.lines);
  return log;
}

OptimizerLogs optimizer_logs(const Schedule& schedule, RunLevel level) {
  std::vector<std::size_t> begins;
  for (std::size_t at = 0; at < schedule.events.size(); ++at) {
    const auto* mark = std::get_if<Mark>(&schedule.events[at]);
    if (mark != nullptr && mark->moment == Moment::StepBegins) begins.push_back(at);
  }
  begins.push_back(schedule.events.size());
  OptimizerLogs logs;
  std::int64_t live = 0;
  for (std::size_t i = 0; i < logs.size(); ++i) {
    logs[i] = optimizer_log(schedule, begins.at(i), begins.at(i + 1), level, live);
  }
  return logs;
}

OptimizerLogs predicted_logs(const OptimizerRun& run, RunLevel level) {
  if (run.action == OptimizerRun::Action::ZeroGrad) return zero_grad_logs(run);
  return optimizer_logs(optimizer_schedule(run, level), level);
}

void compare_optimizers(const OperatorRuns& file, OperatorComparison& comparison) {
  constexpr const char* kParts[] = {"constructed", "first", "second"};
  for (const OptimizerRun& run : file.optimizers) {
    const OptimizerLogs ours = predicted_logs(run, file.level);
    const std::size_t before = comparison.optimizer_differences.size();
    for (std::size_t i = 0; i < ours.size(); ++i) {
      std::string predicted = formatted("{}", joined(ours[i].lines, ", "));
      std::string measured = formatted("{}", joined(run.logs[i].lines, ", "));
      const bool same_peak = i == 0 || ours[i].peak == run.logs[i].peak ||
                             run.action == OptimizerRun::Action::ZeroGrad;  // Counts what was there before.
      if (predicted == measured && same_peak) continue;
      if (predicted == measured) {
        predicted = "peak " + std::to_string(ours[i].peak);
        measured = "peak " + std::to_string(run.logs[i].peak);
      }
      comparison.optimizer_differences.push_back(
          {OperatorDifference::Kind::Contents, run.title, kParts[i], std::move(predicted), std::move(measured)});
    }
    ++comparison.optimizer_cases;
    if (comparison.optimizer_differences.size() == before) ++comparison.optimizers_equal;
  }
}

}  // namespace dsplan
