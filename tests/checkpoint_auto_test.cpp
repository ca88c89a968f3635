// --checkpoint auto against everything that it may choose from, each simulated.
#include <doctest/doctest.h>
#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/format.h"
#include "io/training_file.h"
#include "lowered.h"
#include "model/graphs/graphs.h"
#include "planner/plan/choose_checkpoint.h"
#include "planner/plan/recompute/from_model.h"
#include "planner/predict/predict.h"
#include "run_binary.h"

using namespace dsplan;
using namespace dsplan::test;

namespace {

// Large enough for the allocator's segments not to hide what a layer takes.
ModelSpec five_layers() {
  return lowered::inlined("five-layers", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 1000})");
}

Job asking(int stage, std::int64_t ranks) {
  Job job = lowered::job(stage, ranks);
  job.training.seq = 1024;
  job.training.micro_batch = 8;
  job.training.grad_accum = 2;
  job.training.checkpoint.text = "auto";
  return job;
}

// Every way to cut the layers into stored ones and checkpoints.
void cuts(std::int32_t layers, std::int32_t from, std::vector<CheckpointGroup>& begun,
          std::vector<std::vector<CheckpointGroup>>& into) {
  if (from == layers) return into.push_back(begun);
  cuts(layers, from + 1, begun, into);
  for (std::int32_t last = from; last < layers; ++last) {
    begun.push_back({from, last});
    cuts(layers, last + 1, begun, into);
    begun.pop_back();
  }
}

// Layers that are alike, in units of a layer's forward: what runs again. A checkpoint's last layer leaves a part out,
// which is found in the chain.
struct Cut {
  std::vector<CheckpointGroup> groups;
  Bytes peak;
  double extra = 0;
};

Bytes process(const ModelSpec& model, Job job, const std::vector<CheckpointGroup>& groups) {
  job.training.checkpoint = {};
  job.training.checkpoint.text = "none";
  job.training.checkpoint.groups = groups;
  return *predict_asked(model, job).front().peak->process;
}

// Seconds that a segmentation takes beyond everything once, by the times of the choice.
double extra_of(const Chain& chain, const std::vector<CheckpointGroup>& groups) {
  Ticks sum(0);
  for (const CheckpointGroup& group : groups) {
    for (std::int32_t at = group.first; at <= group.last; ++at) {
      const ChainStage& stage = chain.stages[static_cast<std::size_t>(at)];
      if (group.kept.empty()) {
        sum += stage.forward_time - (at == group.last ? stage.spared_time : Ticks(0));
        continue;
      }
      std::string name;
      for (Op op : group.kept) name += (name.empty() ? "" : "+") + std::string(dsplan::name(op));
      for (const ChainOption& option : stage.options) {
        if (option.name == name) sum += option.time;
      }
    }
  }
  return chain.time(sum);
}

Chain chain_by_work(const ModelSpec& model, Job job) {
  job.training.checkpoint.groups = {{0, 0}};
  const Graph graph = build_graph(model, graph_options(model, job));
  const RecipeBook recipes(graph, job.training.level, catalogue_options(job));
  return chain_of(model, job, graph, recipes, times_by_work(graph, recipes));
}

}  // namespace

TEST_CASE("auto is as fast as the best of all segmentations, each simulated, and never slower with more memory") {
  const ModelSpec model = five_layers();
  std::vector<std::vector<CheckpointGroup>> all;
  std::vector<CheckpointGroup> begun;
  cuts(5, 0, begun, all);
  CHECK(all.size() == 89);
  int as_fast = 0;
  for (const int stage : {-1, 2, 3}) {
    Job job = asking(stage, stage < 0 ? 1 : 2);
    const Chain chain = chain_by_work(model, job);
    const double once = chain.time(chain.time_without_recompute());
    std::vector<Cut> measured;
    for (const auto& groups : all) measured.push_back({groups, process(model, job, groups), extra_of(chain, groups)});
    const auto [least, most] = std::minmax_element(measured.begin(), measured.end(),
                                                   [](const Cut& a, const Cut& b) { return a.peak < b.peak; });
    double before = std::numeric_limits<double>::infinity();
    constexpr int kSteps = 12;
    for (int step = 0; step <= kSteps; ++step) {
      job = asking(stage, stage < 0 ? 1 : 2);
      job.capacity = step == kSteps
                         ? most->peak
                         : least->peak + Bytes((most->peak - least->peak).value() / kSteps * step) + Bytes(1);
      double best = std::numeric_limits<double>::infinity();
      for (const Cut& cut : measured) {
        if (cut.peak <= *job.capacity) best = std::min(best, cut.extra);
      }
      const auto choice = choose_checkpointing(model, job);
      REQUIRE(choice.has_value());
      INFO("stage ", stage, " step ", step, " ", job.training.checkpoint.text, " of ", choice->choices);
      CHECK(choice->fits);
      const Prediction taken = predict_asked(model, job).front();
      CHECK(fits(taken.verdict));  // Budgets are cut to the byte: some are tight.
      CHECK(taken.retries_low == 0);
      const double extra = extra_of(chain, job.training.checkpoint.groups);
      // The front's memory is off by a hidden state or two, of five layers: another plan may be just within.
      CHECK(once + extra <= (once + best) * 1.04);
      as_fast += extra <= best + 1e-15 ? 1 : 0;
      CHECK(extra <= before + 1e-15);
      CHECK(choice->gap >= -1e-9);
      CHECK(choice->simulated <= 12);
      before = extra;
    }
    CHECK(job.training.checkpoint.text == "none");
  }
  MESSAGE("as fast as the best without kept results, or faster, at ", as_fast, " of ", 3 * 13, " capacities");
  CHECK(as_fast >= 33);
}

TEST_CASE("without room for any, the one of least peak") {
  const ModelSpec model = five_layers();
  for (const int stage : {-1, 0, 1, 2, 3}) {
    Job job = asking(stage, stage < 0 ? 1 : 4);
    job.capacity = Bytes(1'000'000);
    const auto choice = choose_checkpointing(model, job);
    REQUIRE(choice.has_value());
    CHECK(!choice->fits);
    CHECK(choice->simulated <= 4);
    const Bytes least = process(model, job, job.training.checkpoint.groups);
    for (std::int32_t every = 0; every <= 5; ++every) {
      std::vector<CheckpointGroup> groups;
      for (std::int32_t at = 0; every > 0 && at < 5; at += every) groups.push_back({at, std::min(at + every, 5) - 1});
      INFO("stage ", stage, " ", job.training.checkpoint.text, " every ", every);
      CHECK(least <= process(model, job, groups));
    }
    CHECK(predict_asked(model, job).front().verdict == Verdict::DoesNotFit);
  }
}

TEST_CASE("auto works for each family and says what it chose") {
  for (const ModelSpec& model : {lowered::bundled("gpt2"), lowered::tiny_mixtral(), lowered::tiny_gemma2()}) {
    for (const int stage : {-1, 1, 3}) {
      Job job = asking(stage, stage < 0 ? 1 : 2);
      job.training.seq = 256;
      Job stored = job;
      stored.training.checkpoint.text = "none";
      job.capacity = *predict_asked(model, stored).front().peak->process - Bytes(4 << 20);
      job.inputs.push_back({"checkpointing", "auto", Origin::Given, "", "--checkpoint"});
      const auto choice = choose_checkpointing(model, job);
      REQUIRE(choice.has_value());
      INFO(model.name, " stage ", stage, " ", job.training.checkpoint.text);
      CHECK(job.inputs.back().value == job.training.checkpoint.text);
      CHECK(job.inputs.back().reason.find(dsplan::formatted("{} simulated", choice->simulated)) != std::string::npos);
      CHECK(job.notices.back().message.starts_with("auto is " + job.training.checkpoint.text));
      const Verdict verdict = predict_asked(model, job).front().verdict;
      CHECK((verdict == Verdict::Fits || verdict == Verdict::Tight) == choice->fits);
    }
  }
  Job none = asking(2, 2);
  none.training.checkpoint.text = "none";
  CHECK(!choose_checkpointing(five_layers(), none));
  Job unknown = asking(2, 2);
  CHECK_THROWS_WITH_AS((void)choose_checkpointing(five_layers(), unknown),
                       doctest::Contains("auto needs to know how much memory there is"), Refusal);
  Job windowed = asking(2, 2);
  windowed.capacity = Bytes(1LL << 34);
  windowed.parallelism.sp = 2;
  CHECK_THROWS_WITH_AS((void)choose_checkpointing(five_layers(), windowed), doctest::Contains("sequence parallelism"),
                       Refusal);
}

TEST_CASE("on the command line: exit codes, and the same plan from a file") {
  const Folder folder;
  const std::vector<std::string> words = {
      "simulate", "llama-3.2-1b", "--gpus",        "8", "--zero-stage", "2",
      "--seq",    "8192",         "--micro-batch", "1", "--hardware",   "a100-sxm-40"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return run_binary(folder, more);
  };
  const Ran found = with({"--capacity", "26GiB", "--checkpoint", "auto", "--format", "json"});
  INFO(found.err);
  CHECK(found.code == 0);
  CHECK(found.err.find("--checkpoint: note: auto is auto:") != std::string::npos);
  CHECK(with({"--capacity", "26GiB", "--checkpoint", "none"}).code == 3);
  const auto field = [](const std::string& text, const std::string& key) {
    const std::size_t from = text.find("\"" + key + "\": \"") + key.size() + 5;
    return text.substr(from, text.find('"', from) - from);
  };
  const std::string fingerprint = field(found.out, "fingerprint");
  CHECK(fingerprint.starts_with("sha256:"));
  // "auto:0-4,5-15 keep:...": the same as a file.
  const std::size_t begin = found.err.find("auto is auto:") + 13;
  std::string text = found.err.substr(begin, found.err.find(": the fastest", begin) - begin);
  std::string groups;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t to = std::min(text.find(',', from), text.size());
    int first = 0;
    int last = 0;
    int length = 1;
    const std::string part = text.substr(from, to - from);
    if (std::sscanf(part.c_str(), "%d-%d/%d", &first, &last, &length) < 2) last = first;
    const std::size_t keep = part.find("keep:");
    const std::string mode = keep == std::string::npos ? "recompute" : part.substr(keep);
    for (int at = first; at <= last; at += length) {
      groups +=
          formatted("{}[{}, {}, \"{}\"]", groups.empty() ? "" : ", ", at, std::min(at + length, last + 1) - 1, mode);
    }
    from = to + 1;
  }
  spill(folder / "groups.json",
        R"({"dsplan": 1, "kind": "checkpoint", "source": "a test", "groups": [)" + groups + "]}\n");
  const Ran again = with({"--capacity", "26GiB", "--checkpoint", "groups.json", "--format", "json"});
  INFO(again.err);
  CHECK(again.code == 0);
  CHECK(field(again.out, "fingerprint") == fingerprint);
  const Ran nothing = with({"--checkpoint", "auto", "--capacity", "15GiB"});
  CHECK(nothing.code == 3);
  CHECK(nothing.err.find("recompute plans fits, and this one takes least") != std::string::npos);
}
