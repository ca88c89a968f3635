// A model as a chain of its layers: what the chain's ledger says against what the tape takes, and the front of its
// segmentations against the ones that have names.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "io/text.h"
#include "lowered.h"
#include "model/families.h"
#include "planner/lowering/activation_profile.h"
#include "planner/segmentation/baselines.h"
#include "planner/segmentation/blocks.h"
#include "planner/segmentation/costs.h"
#include "planner/segmentation/flat.h"
#include "planner/segmentation/from_model.h"
#include "planner/segmentation/replay.h"
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
        recipes(graph, job.training.level, CatalogueOptions{job.training.torch}) {
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
    for (const SegmentationChoice& choice :
         segmentation_front(made.model, made.job, made.graph, made.recipes, made.times, 8)) {
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
