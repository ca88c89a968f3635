#include "planner/plan/search.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/machine/in_parallel.h"
#include "planner/plan/explain.h"
#include "planner/plan/walk.h"
#include "planner/predict/predict.h"
#include "planner/time/rates.h"

namespace dsplan {
namespace {

using detail::Verdicts;
using detail::Walk;

// Every combination is impossible: nobody's memory is at fault. Where a cluster is all that lacks, that alone is said.
[[noreturn]] void refuse_impossible(const Walk& walk) {
  std::string reasons;
  for (const RefusalCount& one : walk.refusals()) {
    if (one.why.starts_with(kNoCluster)) {
      throw Refusal("--cluster", formatted("is wanted: {}; --cluster 8xh100, for example", one.why));
    }
    reasons += formatted("{}{} ({})", reasons.empty() ? "" : "; ", one.why, one.count);
    if (reasons.size() > 400) break;
  }
  throw Refusal("the space", formatted("every combination is impossible: {}", reasons));
}

void take_counts(const Walk& walk, PlanAnswer& answer) {
  answer.counts = walk.counts();
  answer.refusals = walk.refusals();
  answer.complete = !walk.interrupted();
}

// A neighbour that is faster, or fits where the chosen one only retries or is tight, and was left out by dsplan's own
// list alone: what the list was too coarse for.
const PlanChange* left_out(const PlanAnswer& answer) {
  for (const PlanChange& one : answer.neighbours) {
    const AxisValues& axis = answer.space[one.axes.front()];
    const std::string& value = one.row.settings[static_cast<std::size_t>(one.axes.front())];
    const bool own_list = axis.origin == Origin::Assumed && !axis.pinned;
    const bool there = std::find(axis.values.begin(), axis.values.end(), value) != axis.values.end();
    const bool clean = one.row.fate == Fate::Fits;
    const bool better = (clean && answer.chosen->fate != Fate::Fits) ||
                        (one.speed > 1 && (clean || one.row.fate == answer.chosen->fate));
    if (own_list && !there && better && fits(one.row.fate)) return &one;
  }
  return nullptr;
}

// What is told of the chosen one beside its own row. `if_best`: nothing more where a neighbour was left out.
void tell_chosen(const SearchInputs& inputs, Walk& walk, const Walk::Found& found, const SearchOptions& options,
                 Verdicts& verdicts, bool if_best, PlanAnswer& answer) {
  const std::size_t best = *found.best;
  const detail::Candidate& chosen = walk.open(best);
  const detail::Simulated& simulated = *walk.simulated(chosen, Wanted::Any);
  answer.chosen = walk.row(chosen);
  answer.job = simulated.job;
  answer.advice = simulated.prediction.advice;
  if (options.explain) answer.neighbours = detail::neighbours_of(inputs, walk, chosen, options, verdicts);
  if (if_best && !walk.interrupted() && left_out(answer) != nullptr) return;
  answer.prediction = simulated.prediction;
  // With all that a verdict does not need.
  Beside whole(
      [&] {
        if (options.whole) answer.prediction = std::move(predict_asked(inputs.model, *answer.job).front());
      },
      options.whole);
  if (found.tight && answer.chosen->fate != Fate::Tight) {
    PlanRow faster = walk.row(walk.open(*found.tight));
    if (faster.tokens_per_second() > answer.chosen->tokens_per_second()) answer.tight = std::move(faster);
  }
  answer.next = walk.after(best, options.listed);
  if (options.front) answer.front = walk.front();
  whole.wait();
  answer.prediction->time = chosen.time;
}

// The fastest plan of a space, with everything around it.
PlanAnswer fastest_in(const SearchInputs& inputs, SearchSpace space, const SearchOptions& options, Verdicts& verdicts,
                      bool if_best) {
  PlanAnswer answer;
  answer.model = inputs.model.name;
  answer.space = space;
  answer.objective = options.objective;
  Walk walk(inputs, std::move(space), options, verdicts);
  answer.limit = walk.evaluator().limit();
  if (answer.space.assumed_per_node) {
    answer.assumed.push_back(formatted("nodes of {} GPUs (--gpus-per-node)", *answer.space.assumed_per_node));
  }
  const AxisValues& gpus = answer.space[Axis::Gpus];
  if (gpus.pinned && gpus.origin == Origin::Assumed) {
    answer.assumed.push_back(formatted("{} GPU, {} (--gpus)", gpus.values.front(), gpus.reason));
  }
  answer.not_searched = detail::not_searched(walk);
  walk.count();
  take_counts(walk, answer);
  if (walk.impossible() && answer.complete) refuse_impossible(walk);
  const Walk::Found found = walk.best();
  if (found.best) {
    tell_chosen(inputs, walk, found, options, verdicts, if_best, answer);
  } else if (!walk.interrupted()) {
    answer.nearest = walk.nearest();
    if (options.explain) {
      answer.states = detail::states_too_large(inputs, walk);
      answer.remedies = detail::remedies_for(inputs, walk, *answer.nearest, options, verdicts);
    }
  }
  take_counts(walk, answer);
  return answer;
}

// The same with the space made finer where a neighbour outside it is better: what is called the fastest must not be
// followed by a faster one.
PlanAnswer fastest(const SearchInputs& inputs, SearchSpace space, const SearchOptions& options, Verdicts& verdicts) {
  constexpr int kMostRounds = 16;
  for (int round = 0;; ++round) {
    PlanAnswer answer = fastest_in(inputs, space, options, verdicts, round < kMostRounds);
    if (!answer.chosen || answer.prediction) return answer;
    const PlanChange& better = *left_out(answer);
    const Axis axis = better.axes.front();
    space[axis].values.push_back(better.row.settings[static_cast<std::size_t>(axis)]);
  }
}

// What an objective counts: its unit, where to begin, and where to end.
struct Counted {
  std::int64_t unit = 1;
  std::int64_t start = 1;
  std::int64_t most = 1;
};

Counted counted(const SearchInputs& inputs, Objective objective) {
  constexpr std::int64_t kTokens = 64;
  switch (objective) {
    case Objective::MicroBatch: return {1, 1, 1 << 20};
    case Objective::Seq: return {kTokens, 2048, std::int64_t{1} << 26};
    default: return {1, std::max<std::int64_t>(1, inputs.model.dims.layers), 1 << 14};
  }
}

// The same question with one count fixed.
class Largest {
  template <class Ask>
  auto with(std::int64_t count, const Ask& ask) {
    Request request = inputs_.request;
    const Place here{"the search", 0, 0, {}};
    if (options_.objective == Objective::Seq) request.seq = {count, here};
    std::optional<ModelSpec> model;
    if (options_.objective == Objective::Layers) model = options_.with_layers(count);
    const SearchInputs changed{
        model ? *model : inputs_.model,  request, inputs_.deepspeed, inputs_.hardware, inputs_.cluster,
        model ? nullptr : inputs_.graphs};
    SearchSpace space = space_of(changed, listed_, options_.objective);
    if (options_.objective == Objective::MicroBatch) {
      space[Axis::MicroBatch] = {{std::to_string(count)}, Origin::Derived, "what is sought", false};
    }
    return ask(changed, std::move(space));
  }

 public:
  Largest(const SearchInputs& inputs, const ListedSpace& listed, const SearchOptions& options, Verdicts& verdicts)
      : inputs_(inputs), listed_(listed), options_(options), verdicts_(verdicts) {}

  // Counts what is no worse than this, from now on.
  void take(Fate worst) {
    worst_ = worst;
    known_.clear();
  }

  // Doubles or halves to a count that fits beside one that does not, and cuts in two from there. 0: not even one unit.
  std::int64_t find() {
    const Counted limits = counted(inputs_, options_.objective);
    std::int64_t low = 0;
    std::int64_t high = limits.start;
    while (high <= limits.most && fits(high)) {
      low = high;
      high *= 2;
    }
    if (low == 0) {
      while (high > limits.unit && !fits(high)) high = std::max(limits.unit, high / 2 / limits.unit * limits.unit);
      if (!fits(high)) return 0;
      low = high;
      high *= 2;
    }
    while (high - low > limits.unit && !interrupted_) {
      const std::int64_t middle = low + (high - low) / limits.unit / 2 * limits.unit;
      (fits(middle) ? low : high) = middle;
    }
    return low;
  }

  // The fastest with that count.
  PlanAnswer answer(std::int64_t count) {
    return with(count, [&](const SearchInputs& inputs, SearchSpace space) {
      SearchOptions options = options_;
      options.objective = Objective::TokensPerSecond;
      PlanAnswer answer = fastest(inputs, std::move(space), options, verdicts_);
      answer.objective = options_.objective;
      answer.found = count;
      answer.complete = answer.complete && !interrupted_;
      answer.counts += probed_;
      return answer;
    });
  }

 private:
  bool fits(std::int64_t count) {
    const auto known = known_.find(count);
    if (known != known_.end()) return known->second;
    const bool any = with(count, [&](const SearchInputs& inputs, SearchSpace space) {
      Walk walk(inputs, std::move(space), options_, verdicts_);
      walk.count();
      const bool found = walk.anything_fits(worst_);
      probed_ += walk.counts();
      interrupted_ |= walk.interrupted();
      return found;
    });
    known_[count] = any;
    return any;
  }

  const SearchInputs& inputs_;
  const ListedSpace& listed_;
  const SearchOptions& options_;
  Verdicts& verdicts_;
  std::map<std::int64_t, bool> known_;
  SearchCounts probed_;
  Fate worst_ = Fate::Fits;
  bool interrupted_ = false;
};

}  // namespace

PlanAnswer search(const SearchInputs& asked, const ListedSpace& listed, const SearchOptions& options) {
  Verdicts verdicts;
  // Frozen layers are named one by one.
  std::optional<detail::FewLayers> few;
  if (options.few_layers && !asked.request.freeze.given()) few = detail::few_layers(asked.model, options.with_layers);
  detail::SharedGraphs graphs(asked.model, std::move(few));
  SearchInputs inputs = asked;
  inputs.graphs = &graphs;
  const bool counts = options.objective == Objective::MicroBatch || options.objective == Objective::Seq ||
                      options.objective == Objective::Layers;
  if (!counts) return fastest(inputs, space_of(inputs, listed, options.objective), options, verdicts);
  Largest largest(inputs, listed, options, verdicts);
  std::int64_t count = largest.find();
  for (const Fate worse : {Fate::FitsWithRetries, Fate::Tight}) {
    if (count > 0) break;
    largest.take(worse);
    count = largest.find();
  }
  PlanAnswer answer = largest.answer(std::max<std::int64_t>(count, 1));
  if (count == 0) answer.found.reset();
  return answer;
}

}  // namespace dsplan
