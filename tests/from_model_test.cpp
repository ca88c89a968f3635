// A model as a chain of its layers: what the chain's ledger says against what the tape takes, and the front of its
// segmentations against the ones that have names.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "io/text.h"
#include "io/training_file.h"
#include "lowered.h"
#include "model/families.h"
#include "planner/lower/autograd/activation_profile.h"
#include "planner/plan/recompute/baselines.h"
#include "planner/plan/recompute/blocks.h"
#include "planner/plan/recompute/costs.h"
#include "planner/plan/recompute/flat.h"
#include "planner/plan/recompute/from_model.h"
#include "planner/plan/recompute/replay.h"
#include "random_jobs.h"

using namespace dsplan;
using namespace dsplan::test;

namespace {

struct Made {
  ModelSpec model;
  Job job;
  Graph graph;
  RecipeBook recipes;
  GraphTimes times;

  Made(ModelSpec of, Job with)
      : model(std::move(of)),
        job(std::move(with)),
        graph(build_graph(model, graph_options(model, job))),
        recipes(graph, job.training.level, catalogue_options(job)) {
    times.regions.resize(graph.regions.size());
    times.tails.resize(graph.regions.size());
    for (PartTime& part : times.regions) {
      part.forward = 0.01;
      part.backward = 0.02;
    }
    for (PartTime& part : times.tails) part.forward = 0.002;
    times.after.forward = 0.003;
    times.after.backward = 0.006;
  }

  [[nodiscard]] Chain chain() const { return chain_of(model, job, graph, recipes, times); }

  // The most that the tape takes of activations, without a runtime, from the first layer to the loss and back.
  [[nodiscard]] Bytes held(const std::vector<CheckpointGroup>& groups) const {
    Checkpointing checkpoint;
    checkpoint.groups = groups;
    const ModelSpec part = tensor_parallel_part(model, job.parallelism.tp);
    const ActivationProfile profile = profile_activations(part, job, graph, recipes, checkpoint);
    Bytes most = std::max(profile.head_forward, profile.head_backward);
    for (const std::vector<Bytes>* places : {&profile.forward, &profile.recomputation, &profile.backward}) {
      for (Bytes one : *places) most = std::max(most, one);
    }
    return most;
  }
  [[nodiscard]] Bytes hidden() const { return graph.bytes(graph.regions.front().arguments.front()); }
};

Made random_model(Dice& dice) {
  const ModelSpec model = build_model(parse_json("random", random_config(dice)), "random");
  Job job = random_job(dice, model);
  job.training.checkpoint = {};
  job.training.freeze.clear();
  return {model, job};
}

std::vector<ChainSegment> segments_of(const Chain& chain, const std::vector<CheckpointGroup>& groups) {
  using Mode = ChainSegment::Mode;
  std::vector<ChainSegment> segments;
  const auto last = static_cast<std::int32_t>(chain.stages.size());
  auto next = groups.begin();
  for (std::int32_t at = 1; at <= last; ++at) {
    if (next == groups.end() || next->first + 1 != at) {
      segments.push_back({at, at, Mode::Store, kNoOption});
      continue;
    }
    std::int32_t option = kNoOption;
    const std::vector<ChainOption>& options = chain.stages[static_cast<std::size_t>(at - 1)].options;
    std::string wanted;
    for (Op op : next->kept) wanted += (wanted.empty() ? "" : "+") + std::string(name(op));
    for (std::size_t k = 0; k < options.size(); ++k) {
      if (options[k].name == wanted) option = static_cast<std::int32_t>(k);
    }
    REQUIRE(next->kept.empty() == (option == kNoOption));
    segments.push_back({at, next->last + 1, next->kept.empty() ? Mode::Recompute : Mode::Store, option});
    at = next++->last + 1;
  }
  return segments;
}

ChainReplay replayed(const Chain& chain, const std::vector<ChainSegment>& segments) {
  return replay(chain, detail::operations_of(chain, segments));
}

}  // namespace

TEST_CASE("a chain's peak is what the tape takes, but for a hidden state or two") {
  Dice dice(30);
  double most_below = 0;
  double most_above = 0;
  int compared = 0;
  for (int draw = 0; draw < 150; ++draw) {
    const Made made = random_model(dice);
    const Chain chain = made.chain();
    for (const SegmentationChoice& choice : front_of(chain, made.job.training.checkpoint, 8, kQuickLabels)) {
      const ChainReplay run = replayed(chain, segments_of(chain, choice.checkpoint.groups));
      INFO(tell(made.model, made.job), " draw ", draw, " ", choice.checkpoint.text, " hidden ", made.hidden().value());
      REQUIRE(run.fault == "");
      CHECK(run.peak == choice.need);
      CHECK(chain.time(run.time - chain.time_without_recompute()) == doctest::Approx(choice.extra_seconds));
      const Bytes held = made.held(choice.checkpoint.groups);
      const double off = static_cast<double>((run.peak - held).value()) / static_cast<double>(made.hidden().value());
      CHECK(off >= -2);
      CHECK(off <= 3);
      most_below = std::min(most_below, off);
      most_above = std::max(most_above, off);
      ++compared;
    }
  }
  MESSAGE("chain's peak - tape's peak over ", compared, " segmentations, in hidden states: ", most_below, " to ",
          most_above);
  CHECK(compared > 500);
}

TEST_CASE("no segmentation that has a name beats the front") {
  Dice dice(31);
  int compared = 0;
  for (int draw = 0; draw < 60; ++draw) {
    const Made made = random_model(dice);
    const Chain chain = made.chain();
    const auto layers = static_cast<std::int32_t>(made.model.dims.layers);
    for (const std::size_t labels : {std::size_t{1}, std::size_t{1} << 20}) {  // Of two blocks, and exact.
      const std::vector<SegmentationChoice> front = front_of(chain, {}, 10'000, labels);
      for (std::size_t i = 1; i < front.size(); ++i) {
        CHECK(front[i].need < front[i - 1].need);
        CHECK(front[i].extra_seconds > front[i - 1].extra_seconds);
      }
      for (std::int32_t every = 0; every <= layers; ++every) {
        std::vector<CheckpointGroup> groups;
        for (std::int32_t at = 0; every > 0 && at < layers; at += every) {
          groups.push_back({at, std::min(at + every, layers) - 1});
        }
        const ChainReplay run = replayed(chain, segments_of(chain, groups));
        const double extra = chain.time(run.time - chain.time_without_recompute());
        const auto as_good = [&](const SegmentationChoice& choice) {
          return choice.need <= run.peak && choice.extra_seconds <= extra + 1e-12;
        };
        INFO(tell(made.model, made.job), " draw ", draw, " every ", every, " labels ", labels);
        CHECK(std::any_of(front.begin(), front.end(), as_good));
        ++compared;
      }
    }
  }
  CHECK(compared > 300);
}

TEST_CASE("plans of two blocks are nearly those of the exact front") {
  for (const char* name : {"llama-3-8b", "gpt2-xl"}) {
    const ModelSpec model = lowered::bundled(name);
    Job job = lowered::job(-1, 1);
    job.training.seq = 1024;
    const Made made(model, job);
    const Chain chain = made.chain();
    const detail::ChainCosts costs(chain);
    const auto exact = detail::flat_plans(costs, {}, 1'000'000);
    REQUIRE(exact.has_value());
    const std::vector<detail::FlatPlan> plans = detail::block_plans(costs, 100'000);
    CHECK(plans.front().need == exact->front().need);
    CHECK(plans.back().need == exact->back().need);
    double worst = 0;
    for (const detail::FlatPlan& one : *exact) {
      std::int64_t found = plans.front().extra;
      for (const detail::FlatPlan& plan : plans) found = plan.need <= one.need ? plan.extra : found;
      const auto once = static_cast<double>(chain.time_without_recompute().value());
      worst = std::max(worst, static_cast<double>(found - one.extra) / (once + static_cast<double>(one.extra)));
      CHECK(found >= one.extra);
    }
    MESSAGE(name, ": two blocks are slower than the exact front by at most ", worst);
    CHECK(worst < 0.02);
    for (const detail::FlatPlan& plan : plans) {
      const ChainReplay run = replayed(chain, plan.segments);
      REQUIRE(run.fault == "");
      CHECK(run.peak == chain.input + Bytes(plan.need));
      CHECK(run.time == chain.time_without_recompute() + Ticks(plan.extra));
    }
  }
}

TEST_CASE("a choice has a name, and a file with an operator that nobody knows is refused") {
  std::vector<CheckpointGroup> groups{{0, 3}, {4, 7}, {8, 8}, {9, 9}, {12, 12}};
  groups.back().kept = {Op::Linear, Op::Attention};
  CHECK(checkpointing_text({}) == "none");
  CHECK(checkpointing_text(groups) == "auto:0-7/4,8-9,12 keep:linear+scaled_dot_product_attention");
  CHECK_THROWS_WITH_AS(
      (void)read_checkpoint_file(
          parse_json("file", R"({"dsplan": 1, "kind": "checkpoint", "source": "", "groups": [[0, 1, "keep:liner"]]})")),
      doctest::Contains("did you mean"), Refusal);
}
