// dsplan's own prediction at dispatch level against real PyTorch and transformers (tools/oracles/memory.py): every
// allocation and free of two optimizer steps, in order and to the byte, and the figures that follow from them.
#include <doctest/doctest.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/format.h"
#include "io/text.h"
#include "io/training_file.h"
#include "model/families.h"
#include "model/families/family.h"
#include "model/graphs/graphs.h"
#include "moves.h"
#include "paths.h"
#include "planner/lower/lower.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/predict.h"
#include "planner/resolve/resolve.h"
#include "recorder.h"

using namespace dsplan;
using namespace dsplan::testing;
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

const fs::path kWitnesses = fs::path(test_paths::source_dir()) / "tests" / "witnesses" / "memory";

std::vector<Moves> read_log(const fs::path& path) {
  std::ifstream file(path);
  std::vector<Moves> log;
  for (std::string line; std::getline(file, line);) read_log_line(line, log);
  for (Moves& moves : log) moves.sort();
  return log;
}

// The two steps of a schedule, one Moves for each allocation, and the figures of each stretch.
class Steps {
 public:
  struct MicroBatch {
    std::int64_t before_forward = 0;
    std::int64_t after_forward = 0;
    std::int64_t forward_peak = 0;
    std::int64_t backward_peak = 0;
    std::int64_t after_backward = 0;
    std::vector<std::int64_t> layers;
  };
  struct Step {
    std::vector<MicroBatch> micro_batches;
    std::int64_t peak_of_optimizer = 0;
    std::int64_t after_step = 0;
  };

  Steps(const Schedule& schedule, const ModelSpec& model) : schedule_(schedule), model_(model) {
    replay(schedule, *this);
    for (Moves& moves : log) moves.sort();
  }

  void on(std::size_t, const Allocate& event) {
    const Buffer& buffer = schedule_.buffers[event.buffer];
    if (buffer.space != Space::Device) return;
    live_ += buffer.size.value();
    peak_ = std::max(peak_, live_);
    const std::string where = buffer.module == kNone ? "" : model_.module_at(buffer.module).path;
    if (begun_) log.push_back({{buffer.size.value()}, {}, dsplan::formatted("{} ({})", buffer.label, where)});
  }
  void on(std::size_t, const Release& event) {
    const Buffer& buffer = schedule_.buffers[event.buffer];
    if (buffer.space != Space::Device) return;
    live_ -= buffer.size.value();
    if (begun_ && !log.empty()) log.back().freed.push_back(buffer.size.value());
  }
  void on(std::size_t, const Compute&) {}
  void on(std::size_t, const Communicate&) {}
  void on(std::size_t, const RecordEvent&) {}
  void on(std::size_t, const WaitEvent&) {}
  void on(std::size_t, const EmptyCache&) {}
  void on(std::size_t, const Enter& event) {
    if (is_layer(event.module) && event.pass == Pass::Forward) {
      steps.back().micro_batches.back().layers.push_back(-live_);
    }
  }
  void on(std::size_t, const Exit& event) {
    if (is_layer(event.module) && event.pass == Pass::Forward) {
      steps.back().micro_batches.back().layers.back() += live_;
    }
  }
  void on(std::size_t, const Mark& event) {
    if (event.stretch == Stretch::Init) {
      if (event.moment == Moment::StretchEnds) persistent = live_;
      return;
    }
    begun_ = true;
    if (event.moment == Moment::StretchBegins) steps.emplace_back();
    Step& step = steps.back();
    switch (event.moment) {
      case Moment::MicroBatchBegins: step.micro_batches.emplace_back(); break;
      case Moment::ForwardBegins: step.micro_batches.back().before_forward = peak_ = live_; break;
      case Moment::ForwardEnds:
        step.micro_batches.back().forward_peak = peak_;
        step.micro_batches.back().after_forward = peak_ = live_;
        break;
      case Moment::BackwardEnds:
        step.micro_batches.back().backward_peak = peak_;
        step.micro_batches.back().after_backward = peak_ = live_;
        break;
      case Moment::StepEnds:
        step.peak_of_optimizer = peak_;
        step.after_step = live_;
        break;
      default: break;
    }
  }

  std::int64_t persistent = 0;
  std::vector<Step> steps;
  std::vector<Moves> log;

 private:
  [[nodiscard]] bool is_layer(ModuleId module) const {
    const Module& at = model_.module_at(module);
    if (at.layer == kNone || at.parent == kNone) return false;
    return model_.module_at(at.parent).layer == kNone;
  }

  const Schedule& schedule_;
  const ModelSpec& model_;
  std::int64_t live_ = 0;
  std::int64_t peak_ = 0;
  bool begun_ = false;
};

// A witness and what dsplan says of the same configuration.
struct Case {
  Json witness;
  ModelSpec model;
  Job job;
};

Case read_case(const fs::path& path) {
  Case made;
  std::ifstream file(path);
  made.witness = Json::parse(file);
  made.model = build_model(parse_json(path.string(), made.witness["config"].dump()), path.stem().string());
  Request request = read_training_file(parse_json(path.string(), made.witness["training"].dump()));
  request.level = {"dispatch", Place{"--level", 0, 0, {}}};
  made.model = model_of(std::move(made.model), request);
  made.job = resolve(made.model, request, nullptr, nullptr, nullptr);
  // The form of checkpointing has no key in a training file yet.
  if (made.witness.value("reentrant", false)) {
    for (CheckpointGroup& group : made.job.training.checkpoint.groups) group.kind = CheckpointKind::Reentrant;
  }
  return made;
}

void compare_step(const Json& witness, const Steps::Step& ours) {
  const Json& micro_batches = witness["micro_batches"];
  REQUIRE(micro_batches.size() == ours.micro_batches.size());
  for (std::size_t i = 0; i < micro_batches.size(); ++i) {
    INFO("micro-batch ", i);
    const Json& theirs = micro_batches[i];
    const Steps::MicroBatch& made = ours.micro_batches[i];
    CHECK(made.before_forward == theirs["before_forward"].get<std::int64_t>());
    CHECK(made.after_forward == theirs["after_forward"].get<std::int64_t>());
    CHECK(made.forward_peak == theirs["forward_peak"].get<std::int64_t>());
    CHECK(made.layers == theirs["layers"].get<std::vector<std::int64_t>>());
    CHECK(made.backward_peak == theirs["backward_peak"].get<std::int64_t>());
    CHECK(made.after_backward == theirs["after_backward"].get<std::int64_t>());
  }
  CHECK(ours.peak_of_optimizer == witness["peak_of_optimizer"].get<std::int64_t>());
  CHECK(ours.after_step == witness["after_step"].get<std::int64_t>());
}

}  // namespace

TEST_CASE("dispatch level equals real PyTorch and transformers to the byte") {
  std::set<std::string> families;
  std::size_t compared = 0;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(kWitnesses)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) {
    const std::string name = path.stem().string();
    INFO(name);
    const Case made = read_case(path);
    CHECK(unsupported(made.model, made.job) == std::nullopt);
    const Graph graph = build_graph(made.model, graph_options(made.model, made.job));
    CHECK(ready_order(made.model, graph, made.job.training.checkpoint) ==
          made.witness["ready"].get<std::vector<std::string>>());
    const Schedule schedule =
        lower(made.model, made.job, graph, RecipeBook(graph, made.job.training.level, catalogue_options(made.job)), 0);
    const Steps steps(schedule, made.model);
    CHECK(steps.persistent == made.witness["persistent_before_training"].get<std::int64_t>());
    REQUIRE(steps.steps.size() == 2);
    {
      INFO("first step");
      compare_step(made.witness["first_step"], steps.steps[0]);
    }
    {
      INFO("second step");
      compare_step(made.witness["second_step"], steps.steps[1]);
    }
    const std::vector<Moves> witness = read_log(fs::path(path).replace_extension(".log"));
    REQUIRE(!witness.empty());
    const std::string difference = first_difference(witness, grouped_like(witness, steps.log));
    CHECK_MESSAGE(difference.empty(), difference);
    families.insert(made.model.family);
    if (made.job.parallelism.tp == 1) CHECK_NOTHROW(predict(made.model, made.job, 0));  // Formulas agree with it.
    ++compared;
  }
  CHECK(compared >= 16);
  for (const Family& family : dsplan::families()) {
    CAPTURE(family.model_type);
    CHECK(families.contains(std::string(family.model_type)) == family.has_graph);
  }
}
