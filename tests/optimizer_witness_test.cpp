// Optimizer steps, clipping and the loss scaler against what PyTorch, transformers and bitsandbytes did
// (tests/witnesses/optimizers.json, made by tools/oracles/optimizers.py): every allocation with its dtype and bytes in
// order, every free between the same two allocations, and the peak. Only what a kernel launch takes inside is left out,
// because the witness watches the dispatcher.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/audit.h"
#include "planner/lowering/gradient_scaling.h"
#include "planner/lowering/optimizer_step.h"
#include "planner/lowering/runtime.h"
#include "planner/lowering/runtime_base.h"

using namespace dsplan;
using Json = nlohmann::json;

namespace {

const Json& witness() {
  static const Json data = Json::parse(std::ifstream(DSPLAN_SOURCE_DIR "/tests/witnesses/optimizers.json"));
  return data;
}

DType dtype_named(const std::string& text) {
  for (DType dtype : {DType::Float32, DType::Float16, DType::BFloat16}) {
    if (name(dtype) == text) return dtype;
  }
  FAIL("no dtype ", text);
  return DType::Float32;
}

std::string title(const Json& c) {
  std::string text;
  for (const auto& [key, value] : c.items()) {
    if (value.is_primitive()) text += fmt::format("{}={} ", key, value.dump());
  }
  return text;
}

Optimizer optimizer_of(const Json& c) {
  Optimizer optimizer;
  const std::string kind = c.value("optimizer", "adamw");
  for (int k = 0; k <= static_cast<int>(OptimizerKind::RmsProp); ++k) {
    if (name(static_cast<OptimizerKind>(k)) == kind) optimizer.kind = static_cast<OptimizerKind>(k);
  }
  REQUIRE(name(optimizer.kind) == kind);
  const std::string form = c.at("implementation");
  for (Implementation one : {Implementation::Fused, Implementation::Foreach, Implementation::ForLoop}) {
    if (name(one) == form) optimizer.implementation = one;
  }
  REQUIRE(name(optimizer.implementation) == form);
  optimizer.momentum = c.value("momentum", 0.0);
  optimizer.weight_decay = c.value("weight_decay", 0.0);
  optimizer.embeddings_32bit = c.contains("embedding");
  return optimizer;
}

// The events from `first` on, as the witness writes them: allocations stay in order, frees between two of them are
// sorted. `live` is carried from one call to the next.
struct Log {
  std::vector<std::string> lines;
  std::int64_t peak = 0;
};

void sort_frees(std::vector<std::string>& lines) {
  const auto is_free = [](const std::string& line) { return line.starts_with('-'); };
  for (auto at = lines.begin(); at != lines.end();) {
    at = std::find_if(at, lines.end(), is_free);
    const auto end = std::find_if_not(at, lines.end(), is_free);
    std::sort(at, end);
    at = end;
  }
}

Log log_of(const Schedule& schedule, std::size_t first, std::size_t last, std::int64_t& live) {
  Log log;
  log.peak = live;
  for (std::size_t at = first; at < last; ++at) {
    if (const auto* made = std::get_if<Allocate>(&schedule.events[at])) {
      const Buffer& buffer = schedule.buffers[made->buffer];
      live += buffer.size.value();
      log.peak = std::max(log.peak, live);
      log.lines.push_back(fmt::format("{} {}", name(buffer.dtype), buffer.size.value()));
    } else if (const auto* freed = std::get_if<Release>(&schedule.events[at])) {
      const Buffer& buffer = schedule.buffers[freed->buffer];
      live -= buffer.size.value();
      log.lines.push_back(fmt::format("-{}", buffer.size.value()));
    }
  }
  sort_frees(log.lines);
  return log;
}

std::vector<std::string> expected_lines(const Json& log) {
  std::vector<std::string> lines = log.get<std::vector<std::string>>();
  sort_frees(lines);
  return lines;
}

// Parameters and gradients that are there, and what acts on them.
class Bench {
 public:
  explicit Bench(const Json& c) : emitter(4096) {
    emitter.mark(Moment::StretchBegins, Stretch::Init);
    for (const Json& p : c.at("parameters")) {
      StepParameter made;
      made.id = static_cast<ParameterId>(parameters.size());
      made.shape.rank = static_cast<std::uint8_t>(p.at("shape").size());
      for (std::size_t i = 0; i < p.at("shape").size(); ++i) made.shape.dims[i] = p.at("shape")[i];
      made.dtype = dtype_named(p.at("dtype"));
      made.parameter = filled(made, Role::Parameters);
      made.gradient = filled(made, Role::Gradients);
      made.hidden_matrix = made.shape.rank == 2;
      made.embedding = c.value("embedding", -1) == made.id;
      parameters.push_back(made);
    }
  }

  BufferId filled(const StepParameter& p, Role role) {
    const BufferId buffer = emitter.allocate(storage(p.shape.elements(), p.dtype), p.dtype, role, "given");
    emitter.begin();
    emitter.write(buffer);
    emitter.compute("given");
    return buffer;
  }

  // What follows belongs to another part of the log.
  void part() {
    if (std::exchange(parted_, true)) emitter.mark(Moment::StepEnds, Stretch::FirstStep);
    emitter.mark(Moment::StepBegins, Stretch::FirstStep);
  }

  // One log for each part.
  std::vector<Log> finish() {
    emitter.mark(Moment::StepEnds, Stretch::FirstStep);
    const Schedule schedule = emitter.finish();
    CHECK(audit_text(schedule) == "");
    std::vector<std::size_t> begins;
    for (std::size_t at = 0; at < schedule.events.size(); ++at) {
      const auto* mark = std::get_if<Mark>(&schedule.events[at]);
      if (mark != nullptr && mark->moment == Moment::StepBegins) begins.push_back(at);
    }
    begins.push_back(schedule.events.size());
    std::vector<Log> logs;
    std::int64_t live = 0;
    for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
      logs.push_back(log_of(schedule, begins[i], begins[i + 1], live));
    }
    return logs;
  }

  Emitter emitter;
  std::vector<StepParameter> parameters;

 private:
  // A parameter that is only written has no reader here: the model is missing.
  static std::string audit_text(const Schedule& schedule) {
    std::string text;
    for (const Finding& finding : audit(schedule)) {
      if (finding.text.find("never read") == std::string::npos) text += finding.text + "\n";
    }
    return text;
  }

  bool parted_ = false;
};

void compare(const std::vector<Log>& logs, const Json& c) {
  REQUIRE(logs.size() == 3);
  CHECK(logs[0].lines == expected_lines(c.at("constructed")));
  CHECK(logs[1].lines == expected_lines(c.at("first").at("log")));
  CHECK(logs[2].lines == expected_lines(c.at("second").at("log")));
  CHECK(logs[1].peak == c.at("first").at("peak").get<std::int64_t>());
  CHECK(logs[2].peak == c.at("second").at("peak").get<std::int64_t>());
}

void check_step(const Json& c) {
  const std::string about = title(c);
  CAPTURE(about);
  Bench bench(c);
  const Optimizer optimizer = optimizer_of(c);
  OptimizerStep step(optimizer, bench.emitter, bench.parameters.size());
  bench.part();
  step.construct(bench.parameters);
  for (int i = 0; i < 2; ++i) {
    bench.part();
    step.step(bench.parameters, optimizer.weight_decay);
  }
  compare(bench.finish(), c);
}

void check_clip(const Json& c) {
  const std::string about = title(c);
  CAPTURE(about);
  Bench bench(c);
  GradientClip clip(bench.emitter, Level::Dispatch);
  bench.part();
  for (int i = 0; i < 2; ++i) {
    bench.part();
    clip.forget();
    clip.run(bench.parameters, c.at("keep"));
  }
  compare(bench.finish(), c);
}

void check_scaler(const Json& c) {
  const std::string about = title(c);
  CAPTURE(about);
  Bench bench(c);
  const Optimizer optimizer = optimizer_of(c);
  OptimizerStep step(optimizer, bench.emitter, bench.parameters.size());
  GradientClip clip(bench.emitter, Level::Dispatch);
  LossScaler scaler(bench.emitter);
  bench.part();
  for (int i = 0; i < 2; ++i) {
    bench.part();
    const BufferId loss = bench.emitter.allocate(Bytes(4), DType::Float32, Role::Inputs, "loss");
    bench.emitter.mark_scratch(loss);
    bench.emitter.begin();
    bench.emitter.write(loss);
    bench.emitter.compute("loss");
    scaler.scale();
    scaler.backward_done();
    bench.emitter.release(loss, Reason::Loop);
    clip.forget();
    if (c.at("clip").get<bool>()) {
      scaler.unscale(bench.parameters);
      clip.run(bench.parameters, true);
    }
    scaler.before_step(bench.parameters, optimizer.implementation == Implementation::Fused);
    step.step(bench.parameters, 0);
    scaler.after_step();
  }
  compare(bench.finish(), c);
}

// A model of these parameters alone, so that the whole runtime can step it.
ModelSpec model_of(const Json& c) {
  ModelSpec model;
  model.name = model.family = "witness";
  model.modules = {{"", "Root", kNone, kNone}, {"h.0", "Linear", 0, 0}, {"embed", "Embedding", 0, kNone}};
  for (const Json& p : c.at("parameters")) {
    Parameter made;
    made.name = fmt::format("p{}", model.parameters.size());
    made.shape.rank = static_cast<std::uint8_t>(p.at("shape").size());
    for (std::size_t i = 0; i < p.at("shape").size(); ++i) made.shape.dims[i] = p.at("shape")[i];
    made.module = c.value("embedding", -1) == static_cast<int>(model.parameters.size()) ? 2 : 1;
    made.split = Split::Replicated;
    model.parameters.push_back(made);
  }
  return model;
}

// The step phase of the runtime: clipping if asked, the optimizer, zero_grad.
void check_runtime(const Json& c, bool to_none) {
  const std::string about = title(c);
  CAPTURE(about);
  CAPTURE(to_none);
  const ModelSpec model = model_of(c);
  Job job;
  job.training.runtime = Runtime::PyTorch;
  job.training.dtype = dtype_named(c.at("parameters")[0].at("dtype"));
  job.training.optimizer = optimizer_of(c);
  job.training.zero_grad_to_none = to_none;
  Emitter emitter(4096);
  const auto runtime = make_runtime(job, model, 0, emitter);
  runtime->initialise();
  for (int i = 0; i < 2; ++i) {
    for (std::size_t p = 0; p < model.parameters.size(); ++p) {
      const BufferId gradient = emitter.allocate(storage(model.parameters[p].shape.elements(), job.training.dtype),
                                                 job.training.dtype, Role::Gradients, "gradient");
      emitter.begin();
      emitter.write(gradient);
      emitter.compute("backward");
      runtime->gradient_ready(static_cast<ParameterId>(p), gradient);
    }
    emitter.mark(Moment::StepBegins, Stretch::FirstStep);
    runtime->step(i == 0);
    emitter.mark(Moment::StepEnds, Stretch::FirstStep);
  }
  const Schedule schedule = emitter.finish();
  std::vector<std::size_t> marks;
  for (std::size_t at = 0; at < schedule.events.size(); ++at) {
    if (std::holds_alternative<Mark>(schedule.events[at])) marks.push_back(at);
  }
  REQUIRE(marks.size() == 4);
  for (std::size_t i = 0; i < 2; ++i) {
    std::vector<std::string> expected = c.at(i == 0 ? "first" : "second").at("log").get<std::vector<std::string>>();
    for (const Parameter& p : model.parameters) {
      if (to_none) expected.push_back(fmt::format("-{}", storage(p.shape.elements(), job.training.dtype).value()));
    }
    sort_frees(expected);
    std::int64_t live = 0;
    CHECK(log_of(schedule, marks[i * 2], marks[i * 2 + 1], live).lines == expected);
  }
}

std::vector<Json> cases(std::string_view key, std::string_view value = {}) {
  std::vector<Json> found;
  for (const Json& c : witness().at("cases")) {
    if (c.contains(key) && (value.empty() || c.at(std::string(key)) == value)) found.push_back(c);
  }
  return found;
}

}  // namespace

TEST_CASE("optimizer witness: each optimizer's allocations and frees, in order") {
  const std::vector<Json> all = cases("optimizer");
  REQUIRE(all.size() > 100);
  for (const Json& c : all) check_step(c);
}

TEST_CASE("optimizer witness: clip_grad_norm_") {
  const std::vector<Json> all = cases("action", "clip");
  REQUIRE(all.size() == 16);
  for (const Json& c : all) check_clip(c);
}

TEST_CASE("optimizer witness: GradScaler") {
  const std::vector<Json> all = cases("action", "grad_scaler");
  REQUIRE(all.size() == 6);
  for (const Json& c : all) check_scaler(c);
}

TEST_CASE("optimizer witness: the runtime's step is the optimizer's, then zero_grad") {
  int checked = 0;
  for (const Json& c : cases("optimizer")) {
    if (c.at("dtypes") == "mixed" || c.at("dtypes") == "three") continue;
    for (bool to_none : {true, false}) check_runtime(c, to_none);
    ++checked;
  }
  CHECK(checked > 50);
}

TEST_CASE("optimizer witness: zero_grad drops all gradients or none") {
  for (const Json& c : cases("action", "zero_grad")) {
    const bool none = c.at("set_to_none");
    CHECK(c.at("first").at("log").size() == (none ? c.at("parameters").size() : 0U));
    CHECK(c.at("second").at("log").empty());
  }
}
