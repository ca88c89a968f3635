// Five layers say everything of many: sizes to the byte, times to the last digit; and where they do not, nobody says
// so.
#include <doctest/doctest.h>

#include "model/graphs/graphs.h"
#include "planner/lower/lower.h"
#include "planner/plan/repeated_layers.h"
#include "searching.h"

using namespace dsplan;
using namespace dsplan::test;

namespace {

struct Whole {
  GraphTimes times;
  ActivationBytes activations;
};

Whole whole(const ModelSpec& model, const Job& job) {
  const Graph graph = build_graph(model, graph_options(model, job));
  const RecipeBook recipes(graph, job.training.level, catalogue_options(job));
  return {graph_times(graph, job.training, Rates::of(job)), activation_bytes(model, job, graph, recipes)};
}

void check_same(const PartTime& a, const PartTime& b) {
  CHECK(a.forward == b.forward);
  CHECK(a.backward == b.backward);
  CHECK(a.forward_launch == b.forward_launch);
  CHECK(a.backward_launch == b.backward_launch);
  CHECK(a.forward_collectives == b.forward_collectives);
  CHECK(a.backward_collectives == b.backward_collectives);
  CHECK(a.forward_flops == b.forward_flops);
  CHECK(a.backward_flops == b.backward_flops);
}

void check_same(const Whole& a, const Whole& b) {
  REQUIRE(a.times.regions.size() == b.times.regions.size());
  check_same(a.times.before, b.times.before);
  check_same(a.times.after, b.times.after);
  for (std::size_t at = 0; at < a.times.regions.size(); ++at) {
    CAPTURE(at);
    check_same(a.times.regions[at], b.times.regions[at]);
    check_same(a.times.tails[at], b.times.tails[at]);
    CHECK(a.times.region_parameters[at].tensors == b.times.region_parameters[at].tensors);
    CHECK(a.times.region_parameters[at].modules == b.times.region_parameters[at].modules);
    const ActivationBytes& x = a.activations;
    const ActivationBytes& y = b.activations;
    CHECK(x.stored[at] == y.stored[at]);
    CHECK(x.checkpointed[at] == y.checkpointed[at]);
    CHECK(x.both[at] == y.both[at]);
    CHECK(x.stored_backward[at] == y.stored_backward[at]);
    CHECK(x.checkpointed_backward[at] == y.checkpointed_backward[at]);
    CHECK(x.recomputed_backward[at] == y.recomputed_backward[at]);
    CHECK(x.stored_forward[at] == y.stored_forward[at]);
    CHECK(x.gradients_before[at] == y.gradients_before[at]);
  }
  CHECK(a.activations.rest == b.activations.rest);
  CHECK(a.activations.early == b.activations.early);
  CHECK(a.activations.head == b.activations.head);
  CHECK(a.activations.end == b.activations.end);
  CHECK(a.activations.gradients == b.activations.gradients);
  CHECK(a.activations.end_gradients == b.activations.end_gradients);
  CHECK(a.activations.parameters == b.activations.parameters);
  CHECK(a.activations.trained == b.activations.trained);
}

std::optional<detail::FewLayers> few_of(const Asked& asked) {
  return detail::few_layers(asked.model, [&](std::int64_t layers) {
    return build_model(with_layers(asked.files.document, layers), asked.files.name);
  });
}

}  // namespace

TEST_CASE("sizes and times of a whole model by five of its layers") {
  for (const char* name : {"llama-3.2-1b", "gpt2", "qwen3-0.6b", "llama-3-8b"}) {
    const Asked asked(name);
    const std::optional<detail::FewLayers> few = few_of(asked);
    REQUIRE(few.has_value());
    for (const char* stage : {"0", "2", "3"}) {
      for (const char* tp : {"1", "2"}) {
        for (const char* loss : {"hf", "chunked:8"}) {
          if (std::string_view(tp) == "2" && std::string_view(loss) != "hf") continue;
          CAPTURE(name);
          CAPTURE(stage);
          CAPTURE(tp);
          CAPTURE(loss);
          SearchSpace space;
          Settings settings = {"8", stage, "none", tp, loss, "50000000", "3", "full"};
          const CandidateInputs made = inputs_of(asked.inputs(), settings, space);
          Job job = resolve(asked.model, made.request, made.file(), &h100(), &eight_h100());
          const Whole direct = whole(asked.model, job);
          job.training.checkpoint.groups.resize(1);
          const Whole five = whole(few->five, job);
          const auto layers = static_cast<std::size_t>(asked.model.dims.layers);
          const auto times = detail::repeated(five.times, layers);
          const auto activations = detail::repeated(five.activations, layers, *few, job);
          REQUIRE(times.has_value());
          REQUIRE(activations.has_value());
          check_same({*times, *activations}, direct);
        }
      }
    }
  }
}

TEST_CASE("layers that differ, and windows, are looked at one by one") {
  CHECK(!few_of(Asked("gemma-2-2b")).has_value());  // Every second layer has a window.
  CHECK(!few_of(Asked("tiny-llama")).has_value());  // Too few to begin with.
  CHECK(!few_of(Asked("mistral-7b")).has_value());  // A sliding window.
  CHECK(few_of(Asked("llama-3.2-1b")).has_value());
}

TEST_CASE("a search answers the same with and without the shortcut") {
  for (const std::int64_t gib : {14, 24, 60}) {
    Asked asked("llama-3.2-1b");
    asked.with_capacity(Bytes(gib << 30));
    SearchOptions options;
    const PlanAnswer quick = asked.answer(options);
    options.few_layers = false;
    const PlanAnswer direct = asked.answer(options);
    REQUIRE(quick.chosen.has_value() == direct.chosen.has_value());
    CHECK(quick.counts.candidates == direct.counts.candidates);
    CHECK(quick.counts.bounded == direct.counts.bounded);
    if (!quick.chosen) continue;
    CHECK(quick.chosen->settings == direct.chosen->settings);
    CHECK(quick.chosen->least == direct.chosen->least);
    CHECK(quick.chosen->time->total == direct.chosen->time->total);
    CHECK(quick.neighbours.size() == direct.neighbours.size());
  }
}
