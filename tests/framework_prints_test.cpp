// What see_memory_usage would print where DeepSpeed calls it: which lines, what they say, and how logs find them.
#include <doctest/doctest.h>
#include <algorithm>

#include "core/format.h"
#include "io/oom_log.h"
#include "lowered.h"
#include "planner/advise/explain_log.h"
#include "planner/predict/predict.h"
#include "sim/allocation_log.h"
#include "sim/placement.h"

using namespace dsplan;

namespace {

std::vector<std::string> names_of(const Phase& phase) {
  std::vector<std::string> names;
  for (const PhasePrint& print : phase.prints) names.push_back(print.name);
  return names;
}

using Names = std::vector<std::string>;

const Names kMicroBatch = {"Engine before forward", "Engine after forward", "Engine before backward"};

Names joined(std::initializer_list<Names> parts) {
  Names all;
  for (const Names& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

const Names kModel = {"DeepSpeed Engine: After args sanity test",
                      "DeepSpeed Engine: Before configure distributed model",
                      "DeepSpeed Engine: After configure distributed model"};

// As DeepSpeed rounds it, in GiB.
std::string rounded(Bytes bytes, int decimals) {
  return dsplan::formatted("{:.{}f}", static_cast<double>(bytes.value()) / 1073741824.0, decimals);
}

}  // namespace

TEST_CASE("lines by stage, in DeepSpeed's order") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const Prediction two = predict(model, lowered::job(2, 2), 0);
  CHECK(names_of(two.phases[0]) ==
        joined({kModel,
                {"After flattening param group 0 on cuda", "After Flattening and after emptying param group 0 cache",
                 "Before initializing optimizer states", "After initializing optimizer states",
                 "After initializing ZeRO optimizer"}}));
  CHECK(names_of(two.phases.back()) ==
        joined({kMicroBatch,
                {"End ipg_epilogue", "Engine after backward", "Engine before step", "In step before checking overflow",
                 "Before norm calculation", "After norm before optimizer", "After optimizer before all-gather",
                 "After zero_optimizer step", "Engine after step"}}));
  const Prediction three = predict(model, lowered::job(3, 2), 0);
  CHECK(
      names_of(three.phases[0]) ==
      joined({kModel,
              {"Stage 3 initialize beginning", "DeepSpeedZeRoOffload initialize [begin]",
               "DeepSpeedZeRoOffload initialize [end]", "Before creating fp16 partitions",
               "After creating fp16 partitions: 1", "Before creating fp32 partitions", "After creating fp32 partitions",
               "Before initializing optimizer states", "After initializing optimizer states",
               "After Set Grad positions", "After initializing ZeRO optimizer"}}));
  CHECK(names_of(three.phases.back()) ==
        joined({kMicroBatch,
                {"Engine after backward", "Engine before step", "In step before checking overflow",
                 "Before prepare optimizer sub group 0", "After prepare optimizer sub group 0",
                 "Before release optimizer sub group 0", "After release optimizer sub group 0",
                 "After zero_optimizer step", "Engine after step"}}));
  CHECK(predict(model, lowered::job(-1, 2), 0).phases.front().prints.empty());
}

TEST_CASE("engine.step is called for every micro-batch, and its lines with it") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = lowered::job(1, 2);
  job.training.grad_accum = 3;
  const Names names = names_of(predict(model, job, 0).phases.back());
  CHECK(std::count(names.begin(), names.end(), "Engine before step") == 3);
  CHECK(std::count(names.begin(), names.end(), "Engine after step") == 3);
  CHECK(std::count(names.begin(), names.end(), "In step before checking overflow") == 1);
}

TEST_CASE("lines say what the allocator has, and the most since the line before") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const Prediction prediction = predict(model, lowered::job(stage, 2), 0);
    for (const Phase& phase : prediction.phases) {
      if (phase.name == kRecord) continue;  // Its lines are among the first step's.
      REQUIRE(!phase.prints.empty());
      Bytes allocated;
      Bytes reserved;
      for (const PhasePrint& print : phase.prints) {
        CHECK(print.allocated <= print.peak_allocated);
        CHECK(print.reserved <= print.peak_reserved);
        CHECK(print.allocated <= print.reserved);
        allocated = std::max(allocated, print.peak_allocated);
        reserved = std::max(reserved, print.peak_reserved);
      }
      if (stage == 0 && phase.name == "init") continue;  // FP16_Optimizer's constructor has no line.
      // Nothing is made between a phase's last line and its end.
      CHECK(allocated == phase.peak_allocated);
      CHECK(reserved == phase.peak_reserved);
      CHECK(phase.prints.back().allocated == phase.marks.back().allocated);
    }
    // The outputs are still there when the model's forward returns, and not when the loop goes on.
    const Phase& steady = prediction.phases.back();
    const auto line = [&](std::string_view name) {
      return *std::find_if(steady.prints.begin(), steady.prints.end(),
                           [&](const PhasePrint& print) { return print.name == name; });
    };
    CHECK(line("Engine after forward").allocated > line("Engine before backward").allocated);
  }
}

TEST_CASE("a line of a log is looked up under its own title") {
  const ModelSpec model = lowered::bundled("llama-3.2-1b");
  const Schedule schedule = lowered::all_ranks(model, lowered::job(2, 4)).front();
  const AllocatorConfig config;
  const AllocationLog log = allocation_log(schedule, config);
  REQUIRE(log.prints.size() == schedule.prints.size());
  const auto found = [&](const std::string& title, const MarkMoment& says) {
    const std::string text = dsplan::formatted(
        "{}\nMA {} GB         Max_MA {} GB         CA {} GB         Max_CA {} GB\n", title, rounded(says.allocated, 2),
        rounded(says.peak_allocated, 2), rounded(says.reserved, 2), rounded(says.peak_reserved, 0));
    return find_in_schedule(read_oom_log("log", text), schedule, model, config).front();
  };
  for (std::size_t at = 0; at < log.prints.size(); ++at) {
    const std::string& title = schedule.prints[at].text;
    CAPTURE(title);
    const LogFinding finding = found(title, log.prints[at]);
    CHECK(finding.matches);
    REQUIRE(!finding.candidates.empty());
    CHECK(finding.candidates.front().moment.starts_with("\"" + title + "\", "));
  }
  // The figures of another moment: the nearest line of that title is named, and does not print the same.
  const auto at = [&](std::string_view title) {
    return static_cast<std::size_t>(std::find_if(schedule.prints.begin(), schedule.prints.end(),
                                                 [&](const FrameworkPrint& print) { return print.text == title; }) -
                                    schedule.prints.begin());
  };
  const LogFinding wrong = found("After initializing ZeRO optimizer", log.prints[at("Engine after forward")]);
  CHECK_FALSE(wrong.matches);
  CHECK(wrong.candidates.front().allocated == log.prints[at("After initializing ZeRO optimizer")].allocated);
  // A title of the user's own is looked for at the marks.
  CHECK(found("my own words", log.marks.back()).matches);
}
