#include "planner/plan/choose_checkpoint.h"

#include <algorithm>
#include <map>
#include <string>

#include "core/error.h"
#include "core/format.h"
#include "model/graphs/graphs.h"
#include "planner/libraries/library_memory.h"
#include "planner/lower/lower.h"
#include "planner/lower/unsupported.h"
#include "planner/plan/recompute/bound.h"
#include "planner/plan/recompute/costs.h"
#include "planner/plan/recompute/from_model.h"
#include "planner/predict/footprint.h"
#include "planner/predict/predict.h"
#include "planner/predict/verdict.h"
#include "planner/time/graph_times.h"
#include "planner/time/rates.h"

namespace dsplan {
namespace {

constexpr std::size_t kChoices = 96;
constexpr std::size_t kLabels = 30'000;

bool asked_for(const Job& job) { return job.training.checkpoint.text == "auto"; }

class Chooser {
 public:
  Chooser(const ModelSpec& model, Job& job) : model_(model), job_(job), like_(job) {
    // The graph of a job that checkpoints something: transformers 5 makes the embeddings' output require a gradient.
    like_.training.checkpoint.groups = {
        {0, 0, job.training.checkpoint.kind, job.training.checkpoint.preserve_rng_state}};
    like_.explain_fragmentation = like_.explain_advice = false;
    if (job.training.activation_offloading != ActivationOffloading::None) {
      throw Refusal("--checkpoint", "auto weighs what stays on the device, and activation offloading takes it away");
    }
    if (const auto why = unsupported(model, like_)) {
      throw Refusal("--checkpoint", formatted("auto needs a simulation, which is not modelled yet: {}", *why));
    }
    const Graph graph = build_graph(model, graph_options(model, like_));
    const RecipeBook recipes(graph, job.training.level, catalogue_options(job));
    by_work_ = !Rates::missing(job).empty();
    const GraphTimes times =
        by_work_ ? times_by_work(graph, recipes) : graph_times(graph, job.training, Rates::of(job));
    chain_ = chain_of(model, like_, graph, recipes, times);
    front_ = front_of(chain_, job.training.checkpoint, kChoices, kLabels);
    for (SegmentationChoice& choice : front_) cut_at_lists(choice.checkpoint, model);
    activations_ = activation_bytes(model, like_, graph, recipes);
    persistent_ = footprint(model, job).persistent.total();
  }

  CheckpointChoice choose() {
    std::size_t first = 0;
    while (first < front_.size() && !may_fit(first)) ++first;
    std::optional<std::size_t> chosen = first < front_.size() ? first_that_fits(first) : std::nullopt;
    CheckpointChoice result;
    result.fits = chosen.has_value();
    if (!chosen) chosen = least();
    take(*chosen);
    result.choices = front_.size();
    result.simulated = seen_.size();
    rate(front_[*chosen], result);
    tell(result);
    return result;
  }

 private:
  struct Seen {
    bool fits = false;
    Bytes peak;
  };

  [[nodiscard]] bool may_fit(std::size_t at) const {
    // Without checkpoints frozen layers keep less than the graph of the chain says.
    if (front_[at].checkpoint.groups.empty() && activations_.trained < activations_.parameters) return true;
    const Bytes least = least_peak(model_, job_, persistent_, activations_, front_[at].checkpoint);
    return least + context_of(job_) + communicators_of(job_) + job_.reserve <= *job_.capacity;
  }

  const Seen& look(std::size_t at) {
    const auto known = seen_.find(at);
    if (known != seen_.end()) return known->second;
    Job job = like_;
    job.training.checkpoint = front_[at].checkpoint;
    Seen seen{true, Bytes(0)};
    for (const Prediction& p : predict_asked(model_, job, Detail::Fate)) {
      if (p.verdict == Verdict::DoesNotFit || surely_retries(p)) seen.fits = false;
      if (p.peak && p.peak->process) seen.peak = std::max(seen.peak, *p.peak->process);
    }
    return seen_.emplace(at, seen).first->second;
  }

  // From `first` on memory falls, nearly always: strides until one fits, then bisection.
  std::optional<std::size_t> first_that_fits(std::size_t first) {
    std::size_t at = first;
    std::size_t stride = 1;
    while (!look(at).fits) {
      if (at + 1 == front_.size()) return std::nullopt;
      first = at + 1;
      at = std::min(at + stride, front_.size() - 1);
      stride *= 2;
    }
    while (first < at) {
      const std::size_t middle = first + (at - first) / 2;
      if (look(middle).fits) {
        at = middle;
      } else {
        first = middle + 1;
      }
    }
    return at;
  }

  // Of the last few, as the chain and the simulation may differ by a hidden state or two.
  std::size_t least() {
    std::size_t best = front_.size() - 1;
    for (std::size_t back = 0; back < std::min<std::size_t>(3, front_.size()); ++back) {
      const std::size_t at = front_.size() - 1 - back;
      if (look(at).peak < look(best).peak) best = at;
    }
    return best;
  }

  void take(std::size_t at) {
    Checkpointing& checkpoint = job_.training.checkpoint;
    const DeepSpeedCheckpointing deepspeed = checkpoint.deepspeed;
    checkpoint = front_[at].checkpoint;
    checkpoint.deepspeed = deepspeed;
  }

  void rate(const SegmentationChoice& choice, CheckpointChoice& result) const {
    const detail::ChainCosts costs(chain_);
    const detail::ChainBound bound = detail::bound_of(costs, (choice.need - chain_.input).value());
    const double once = chain_.time(chain_.time_without_recompute());
    const double least = once + (bound.extra ? chain_.time(Ticks(*bound.extra)) : 0);
    result.longer = choice.extra_seconds / once;
    result.gap = (once + choice.extra_seconds) / least - 1;
  }

  void tell(const CheckpointChoice& choice) {
    const std::string& text = job_.training.checkpoint.text;
    const std::string how = by_work_ ? "operations and bytes, as no rates are known" : "estimated times";
    const std::string which =
        choice.fits ? formatted("the fastest of {} recompute plans that fits", choice.choices)
                    : formatted("none of {} recompute plans fits, and this one takes least", choice.choices);
    std::string said = formatted(
        "{}, {} simulated; by {} it computes {:.1f} % more, and no schedule in as much "
        "memory is more than {:.2f} % faster",
        which, choice.simulated, how, 100 * choice.longer, 100 * choice.gap);
    for (ResolvedInput& input : job_.inputs) {
      if (input.name != "checkpointing") continue;
      input.value = text;
      input.origin = Origin::Derived;
      input.reason = said;
    }
    job_.notices.push_back(
        {Notice::Kind::Announcement, option("--checkpoint"), formatted("auto is {}: {}", text, said), {}});
  }

  const ModelSpec& model_;
  Job& job_;
  Job like_;
  Chain chain_;
  std::vector<SegmentationChoice> front_;
  ActivationBytes activations_;
  Bytes persistent_;
  bool by_work_ = false;
  std::map<std::size_t, Seen> seen_;
};

}  // namespace

GraphTimes times_by_work(const Graph& graph, const RecipeBook& recipes) {
  GraphTimes times;
  times.regions.resize(graph.regions.size());
  times.tails.resize(graph.regions.size());
  PartTime* part = &times.before;
  PartTime* tail = nullptr;
  for (const Instruction& instruction : graph.program) {
    if (instruction.kind == Instruction::Kind::RegionBegins) {
      part = &times.regions[static_cast<std::size_t>(instruction.region())];
      tail = &times.tails[static_cast<std::size_t>(instruction.region())];
    } else if (instruction.kind == Instruction::Kind::RegionEnds) {
      part = &times.after;
      tail = nullptr;
    } else if (instruction.kind == Instruction::Kind::Run) {
      const Node& node = graph.node(instruction.node());
      const double work = static_cast<double>(forward_flops(graph, node)) +
                          300 * static_cast<double>(forward_bytes(graph, node).value());
      part->forward += work * 1e-15;
      part->backward += work * 2e-15;
      if (tail == nullptr) continue;
      // Early stop: behind the last operator that saves, and its kernel too where it saves nothing but inputs.
      const bool saves = !recipes.saved(instruction.node()).empty();
      if (saves) tail->forward = 0;
      if (!saves || !recipes.entry(instruction.node()).saves_after_kernel) tail->forward += work * 1e-15;
    }
  }
  return times;
}

std::optional<CheckpointChoice> choose_checkpointing(const ModelSpec& model, Job& job) {
  if (!asked_for(job)) return std::nullopt;
  if (!job.capacity) {
    throw Refusal("--checkpoint", "auto needs to know how much memory there is", "give --hardware or --capacity");
  }
  return Chooser(model, job).choose();
}

}  // namespace dsplan
