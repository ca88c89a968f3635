// TRL's activation offloading, against the real class around steps of real models on the dry device
// (tools/oracles/activation_offloading.py): which saved tensors go to the host, which are copied before, and in which
// order they come back.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/audit.h"
#include "core/format.h"
#include "dialect_reading.h"
#include "io/text.h"
#include "io/training_file.h"
#include "lowered.h"
#include "paths.h"
#include "planner/lower/autograd/recipes.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/predict.h"
#include "planner/resolve/resolve.h"

using namespace dsplan;
using Json = nlohmann::ordered_json;
using Sizes = std::vector<std::int64_t>;

namespace {

Json witnesses() {
  std::ifstream file(test_paths::source_dir() + "/tests/witnesses/activation_offloading.json");
  return Json::parse(file).at("jobs");
}

Job job_of(const ModelSpec& model, const Json& training) {
  Json file{{"dsplan", 1}, {"kind", "training"}, {"source", "a test"}, {"loop", "minimal"}};
  file.update(training);
  return resolve(model, read_training_file(parse_json("training", file.dump())), nullptr, nullptr, nullptr);
}

Schedule schedule_of(const ModelSpec& model, const Job& job) {
  const Graph graph = build_graph(model, graph_options(model, job));
  return lower(model, job, graph, RecipeBook(graph, job.training.level, {job.training.torch}), 0);
}

// Of the second step, in order.
struct Moved : Ignores<Release, Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit> {
  explicit Moved(const Schedule& of) : schedule(of) { replay(of, *this); }

  using Ignores<Release, Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit>::on;
  void on(std::size_t, const Allocate& event) {
    const Buffer& buffer = schedule.buffers[event.buffer];
    const std::string_view label = buffer.label;
    if (!counts) return;
    if (label == "pinned copy of an activation") sent.push_back(buffer.size.value());
    if (label == "contiguous copy") copied.push_back(buffer.size.value());
    if (label == "activation brought back") back.push_back(buffer.size.value());
  }
  void on(std::size_t, const Mark& event) { counts = event.stretch == Stretch::SecondStep; }

  const Schedule& schedule;
  bool counts = false;
  Sizes sent;
  Sizes copied;
  Sizes back;
};

}  // namespace

TEST_CASE("activation offloading: what is sent, copied and brought back, as TRL's class does it") {
  for (const auto& [name, one] : witnesses().items()) {
    INFO(name);
    const ModelSpec model = lowered::inlined(name, one.at("config").dump());
    const Job job = job_of(model, one.at("training"));
    const ModelSpec trained = with_lora_of(model, job);
    REQUIRE_FALSE(unsupported(trained, job));
    const Schedule schedule = schedule_of(trained, job);
    CHECK(audit(schedule).empty());
    const Moved moved(schedule);
    CHECK(moved.sent == one.at("sent").get<Sizes>());
    CHECK(moved.copied == one.at("copied").get<Sizes>());
    Sizes back;
    for (const Json& size : one.at("back")) {
      if (size.is_number()) back.push_back(size.get<std::int64_t>());
    }
    CHECK(moved.back == back);
  }
}
