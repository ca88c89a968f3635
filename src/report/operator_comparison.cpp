#include "report/operator_comparison.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "io/json_text.h"
#include "model/catalogue/catalogue.h"
#include "model/catalogue/operator_words.h"
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
      if (buffer.space != Space::Device) continue;  // Paged states.
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

namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

bool is_temporary(const std::string& word) { return word.starts_with("+t:") || word.starts_with("-t:"); }

OperatorDifference::Kind kind_of(const std::string& predicted, const std::string& measured, bool unmodelled) {
  std::vector<std::string> ours = split(predicted);
  std::vector<std::string> theirs = split(measured);
  if (unmodelled) {
    std::erase_if(ours, is_temporary);
    std::erase_if(theirs, is_temporary);
    if (ours == theirs) return OperatorDifference::Kind::Unmodelled;
  }
  std::sort(ours.begin(), ours.end());
  std::sort(theirs.begin(), theirs.end());
  return ours == theirs ? OperatorDifference::Kind::Order : OperatorDifference::Kind::Contents;
}

void compare(const OperatorRun& run, RunLevel level, const CatalogueOptions& options, OperatorRow& row) {
  const Node& node = run.graph.nodes.front();
  Recipe recipe;
  recipe_of(run.graph, node, recipe, options);
  const OperatorWords ours = catalogue_words(run.graph, level, options);
  const std::size_t before = row.differences.size();
  const auto part = [&](const char* what, const std::string& predicted, const std::string& measured) {
    if (predicted == measured) return;
    row.differences.push_back(
        {kind_of(predicted, measured, recipe.unknown != nullptr), run.title, what, predicted, measured});
  };
  part("forward", ours.forward, run.words.forward);
  part("saved", formatted("{}", joined(ours.saved, " ")), formatted("{}", joined(run.words.saved, " ")));
  if (!run.artefact) part("backward", ours.backward, run.words.backward);
  part("passes", formatted("{}", joined(ours.passes, " ")), formatted("{}", joined(run.words.passes, " ")));
  ++row.cases;
  row.artefact |= run.artefact;
  if (row.differences.size() == before) ++row.equal;
}

// "2.11.0+cu130": the build's tag moves no byte.
Version torch_of(const OperatorRuns& file) {
  const std::optional<Version> version = Version::parse(file.torch.substr(0, file.torch.find('+')));
  if (!version) throw Refusal(file.path, "no version of torch: \"" + file.torch + "\"");
  return *version;
}

}  // namespace

OperatorComparison compare_operators(std::span<const OperatorRuns> files) {
  OperatorComparison comparison;
  for (std::size_t i = 0; i < kOps; ++i) comparison.rows.emplace_back().op = static_cast<Op>(i);
  if (!files.empty()) {
    comparison.level = files.front().level;
    comparison.device = files.front().device;
    comparison.torch = files.front().torch;
  }
  for (const OperatorRuns& file : files) {
    DSPLAN_CHECK(file.level == comparison.level, file.path);
    comparison.complete = comparison.complete && file.complete;
    compare_optimizers(file, comparison);
    const CatalogueOptions options{torch_of(file)};
    for (const OperatorRun& run : file.runs) {
      compare(run, file.level, options, comparison.rows[static_cast<std::size_t>(run.graph.nodes.front().op)]);
    }
    for (const FailedRun& failed : file.failed) {
      const std::optional<Op> op = operator_named(failed.operation);
      if (op) ++comparison.rows[static_cast<std::size_t>(*op)].failed;
    }
  }
  return comparison;
}

std::vector<Op> confirmed_on_cuda(std::span<const OperatorRuns> files) {
  std::vector<OperatorRuns> of_cuda;
  std::copy_if(files.begin(), files.end(), std::back_inserter(of_cuda),
               [](const OperatorRuns& file) { return file.device == "cuda" && file.level == RunLevel::Kernel; });
  std::vector<Op> confirmed;
  for (const OperatorRow& row : compare_operators(of_cuda).rows) {
    if (row.confirmed()) confirmed.push_back(row.op);
  }
  return confirmed;
}

namespace {

Json made_value(const std::vector<OperatorEntry::Made>& made) {
  Json list = Json::array();
  for (const OperatorEntry::Made& one : made) {
    list.push_back({{"size", one.what}, {"seen_by", one.kernel ? "kernel" : "dispatch"}});
  }
  return list;
}

std::string made_text(const std::vector<OperatorEntry::Made>& made) {
  std::string text;
  for (std::size_t at = 0; at < made.size();) {
    std::size_t end = at;
    while (end < made.size() && made[end].what == made[at].what && made[end].kernel == made[at].kernel) ++end;
    const std::string one = end - at > 1 ? formatted("{} x {}", end - at, made[at].what) : made[at].what;
    text += formatted("{}{}", text.empty() ? "" : ", ", made[at].kernel ? formatted("*{}*", one) : one);
    at = end;
  }
  return text.empty() ? "-" : text;
}

std::string saved_text(const OperatorEntry& entry) {
  std::string text;
  for (const OperatorEntry::Kept& kept : entry.saved) {
    text += formatted("{}`{}` = {}{}", text.empty() ? "" : ", ", kept.name, kept.what,
                      kept.when.empty() ? "" : formatted(" if {} needs a gradient", kept.when));
  }
  return text.empty() ? "-" : text;
}

Json differences_value(const std::vector<OperatorDifference>& differences) {
  Json list = Json::array();
  for (const OperatorDifference& one : differences) {
    list.push_back({{"case", one.title},
                    {"part", one.part},
                    {"kind", name(one.kind)},
                    {"predicted", one.predicted},
                    {"measured", one.measured}});
  }
  return list;
}

}  // namespace

std::string operators_json(const std::vector<OperatorEntry>& entries, const std::string& torch) {
  Json list = Json::array();
  for (const OperatorEntry& entry : entries) {
    Json saved = Json::array();
    for (const OperatorEntry::Kept& kept : entry.saved) {
      saved.push_back(
          {{"name", kept.name}, {"tensor", kept.what}, {"when", kept.when.empty() ? Json(nullptr) : Json(kept.when)}});
    }
    list.push_back({{"name", entry.name},
                    {"inputs", entry.inputs},
                    {"saved", std::move(saved)},
                    {"forward_temporaries", made_value(entry.forward)},
                    {"backward_temporaries", made_value(entry.backward)},
                    {"not_modelled", entry.unknown.empty() ? Json(nullptr) : Json(entry.unknown)},
                    {"flops", entry.flops},
                    {"witness", entry.witness},
                    {"since", entry.since.empty() ? Json(nullptr) : Json(entry.since)},
                    {"source", entry.source}});
  }
  const Json value = {{"schema", "dsplan.operators/1"}, {"torch", torch}, {"operators", std::move(list)}};
  return json_text(value, 2) + "\n";
}

std::string operator_comparison_json(const OperatorComparison& comparison) {
  Json rows = Json::array();
  Json without = Json::array();
  Json confirmed = Json::array();
  for (const OperatorRow& row : comparison.rows) {
    if (row.confirmed()) confirmed.push_back(name(row.op));
    if (row.cases + row.failed == 0) {
      without.push_back(name(row.op));
      continue;
    }
    rows.push_back({{"name", name(row.op)},
                    {"cases", row.cases},
                    {"equal", row.equal},
                    {"failed", row.failed},
                    {"differences", differences_value(row.differences)}});
  }
  const Json optimizers = {{"cases", comparison.optimizer_cases},
                           {"equal", comparison.optimizers_equal},
                           {"differences", differences_value(comparison.optimizer_differences)}};
  const Json value = {{"schema", "dsplan.operator_comparison/1"},
                      {"device", comparison.device},
                      {"level", comparison.level == RunLevel::Kernel ? "kernel" : "dispatch"},
                      {"torch", comparison.torch},
                      {"complete", comparison.complete},
                      {"agrees", !comparison.differs()},
                      {"rows", std::move(rows)},
                      {"optimizers", optimizers},
                      {"without_case", std::move(without)},
                      {"confirmed", std::move(confirmed)}};
  return json_text(value, 2) + "\n";
}

std::string operators_markdown(const std::vector<OperatorEntry>& entries) {
  std::string text =
      "| operator | saved for backward | forward temporaries | backward temporaries | FLOPs | witness | source |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const OperatorEntry& entry : entries) {
    std::string forward = entry.forward.empty() && !entry.unknown.empty() ? std::string() : made_text(entry.forward);
    if (!entry.unknown.empty()) forward += formatted("{}{}: not modelled", forward.empty() ? "" : ", ", entry.unknown);
    text += formatted("| {}{} | {} | {} | {} | {} | {} | {} |\n", entry.name,
                      entry.since.empty() ? "" : formatted(" (torch {})", entry.since), saved_text(entry), forward,
                      made_text(entry.backward), entry.flops, entry.witness, entry.source);
  }
  return text;
}

}  // namespace dsplan
