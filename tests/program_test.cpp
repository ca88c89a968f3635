// Programs beside schedules: every piece of work has one task, in order; flat work reads as much as it writes; and
// recording changes no event.
#include <doctest/doctest.h>
#include <algorithm>
#include <map>
#include <set>

#include "core/format.h"
#include "lowered.h"
#include "planner/predict/schedules.h"
#include "program_fit.h"

using namespace dsplan;

namespace {

void check(const std::string& name, const Executable& plan, const Schedule& plain) {
  CAPTURE(name);
  REQUIRE(plan.schedule.events.size() == plain.events.size());
  REQUIRE(plan.schedule.buffers.size() == plain.buffers.size());
  std::size_t next = 0;
  std::set<std::string> faults;
  for (std::size_t at = 0; at < plan.schedule.events.size(); ++at) {
    const bool work = std::holds_alternative<Compute>(plan.schedule.events[at]) ||
                      std::holds_alternative<Communicate>(plan.schedule.events[at]);
    std::int64_t tasks = 0;
    for (; next < plan.program.tasks.size() && plan.program.tasks[next].event == at; ++next) {
      const Task& task = plan.program.tasks[next];
      const bool silent =
          task.body == Body::ForwardView || task.body == Body::BackwardView || task.body == Body::GradientReady;
      tasks += silent ? 0 : 1;
      if (const std::string fault = fitting::fault_of(plan, task); !fault.empty()) faults.insert(fault);
    }
    if (tasks != (work ? 1 : 0)) faults.insert(dsplan::formatted("event {}: {} tasks", at, tasks));
  }
  CHECK(next == plan.program.tasks.size());
  for (const std::string& fault : faults) FAIL_CHECK(fault);
}

// Work that has no body yet, by the variants that do it: what `dsplan run` refuses.
using Unknown = std::map<std::string, std::set<std::string>>;

void check_variants(const ModelSpec& model, int stage, std::int64_t ranks, Unknown& unknown) {
  for (const lowered::Case& one : lowered::variants(stage, ranks, static_cast<std::int32_t>(model.dims.layers))) {
    const Shapes shapes = build_shapes(model, one.job);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const Executable plan = lower_to_execute(model, one.job, shapes, rank, one.job.training.steps());
      check(dsplan::formatted("{} {} stage {} rank {}/{}", model.family, one.name, stage, rank, ranks), plan,
            lower(model, one.job, shapes, rank));
      for (const char* work : plan.program.unknown_work) unknown[work].insert(one.name);
    }
  }
}

}  // namespace

TEST_CASE("every variant's program fits its schedule") {
  const ModelSpec gpt2 = lowered::inlined("tiny-gpt2", R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
    "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 32, "vocab_size": 97})");
  const ModelSpec llama = lowered::inlined("tiny-llama", R"({"model_type": "llama",
    "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97})");
  Unknown unknown;
  for (int stage = -1; stage <= 3; ++stage) {
    for (std::int64_t ranks : {1, 2, 3}) {
      check_variants(gpt2, stage, ranks, unknown);
      check_variants(llama, stage, ranks, unknown);
    }
  }
  // Adafactor: refused by name where it is asked for.
  const std::set<std::string> refused = {"root mean square"};
  for (const auto& [work, variants] : unknown) {
    CAPTURE(dsplan::formatted("{}", dsplan::joined(variants, ", ")));
    CHECK_MESSAGE(refused.contains(work), work);
  }
}
