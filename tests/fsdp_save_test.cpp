// Whole state dicts at save under fully_shard, against those of real PyTorch 2.11.0 (tools/oracles/fsdp_save.py): bytes
// beyond what is there before, at the peak and at the end.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>

#include "core/schedule.h"
#include "lowered.h"
#include "run_binary.h"
#include "sharded_jobs.h"

using namespace dsplan;

namespace {

struct Save {
  std::int64_t peak = 0;
  std::int64_t held = 0;  // Before the loop lets go of the dict.
};

// A dict on the device is let go of when the stretch ends: what it held is the peak's.
Save save_of(const Schedule& schedule) {
  Save save;
  std::int64_t now = 0;
  bool inside = false;
  for (const Event& event : schedule.events) {
    if (const auto* mark = std::get_if<Mark>(&event)) inside = inside || mark->stretch == Stretch::Save;
    if (!inside) continue;
    const auto* made = std::get_if<Allocate>(&event);
    const auto* gone = std::get_if<Release>(&event);
    if (made == nullptr && gone == nullptr) continue;
    const Buffer& buffer = schedule.buffers[made != nullptr ? made->buffer : gone->buffer];
    if (buffer.space != Space::Device) continue;
    now += made != nullptr ? buffer.size.value() : -buffer.size.value();
    save.peak = std::max(save.peak, now);
  }
  save.held = now;
  return save;
}

Schedule lowered_rank(const ModelSpec& model, const Job& job, std::int64_t rank) {
  const Graph graph = build_graph(model, graph_options(model, job));
  const RecipeBook recipes(graph, job.training.level, catalogue_options(job));
  return lower(model, job, graph, recipes, rank);
}

}  // namespace

TEST_CASE("whole state dicts at save take what PyTorch's take") {
  const auto told =
      nlohmann::json::parse(dsplan::test::slurp(test_paths::source_dir() + "/tests/witnesses/fsdp_save.json"));
  std::int64_t seen = 0;
  for (const auto& one : told.at("cases")) {
    const std::string of =
        one.at("dtype").get<std::string>() + " " + one.at("world").dump() + " " + one.at("rank").dump();
    CAPTURE(of);
    const ModelSpec model = lowered::inlined("small", one.at("config").dump());
    const DType dtype = one.at("dtype") == "fp32" ? DType::Float32 : DType::BFloat16;
    Job job = lowered::sharded(one.at("world"), dtype, dtype, dtype);
    job.training.fsdp.replicate = one.at("replicate");
    for (const char* word : {"full", "full-device"}) {
      CAPTURE(word);
      job.training.fsdp.state_dict = word;
      const Save save = save_of(lowered_rank(model, job, one.at("rank")));
      CHECK(save.peak == one.at(word).at(0).get<std::int64_t>());
      CHECK(save.held == 0);
      ++seen;
    }
    job.training.fsdp.state_dict = "sharded";
    CHECK(save_of(lowered_rank(model, job, one.at("rank"))).peak == 0);
  }
  CHECK(seen == 24);
}
