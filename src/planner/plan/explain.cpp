#include "planner/plan/explain.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "core/format.h"
#include "core/text/whole_numbers.h"

namespace dsplan::detail {
namespace {

std::int64_t number(const std::string& text) { return whole_number(text).value_or(0); }

std::vector<std::string> joined(std::vector<std::string> values, const std::vector<std::string>& more) {
  for (const std::string& one : more) {
    if (std::find(values.begin(), values.end(), one) == values.end()) values.push_back(one);
  }
  return values;
}

// Half and twice a count that dsplan's own list may not hold.
std::vector<std::string> beside(Axis axis, const std::string& value) {
  const std::int64_t count = number(value);
  if (axis != Axis::MicroBatch && axis != Axis::TensorParallel) return {};
  std::vector<std::string> values;
  if (count > 1) values.push_back(std::to_string(count / 2));
  if (axis == Axis::MicroBatch && count > 1) values.push_back(std::to_string(count + 1));
  if (axis == Axis::MicroBatch && count > 3) values.push_back(std::to_string(count + count / 2));
  values.push_back(std::to_string(count * 2));
  return values;
}

SearchSpace around(const PlanRow& row, const SearchSpace& space) {
  SearchSpace fixed = space;
  for (std::size_t i = 0; i < kAxes; ++i) fixed.axes[i] = {{row.settings[i]}, Origin::Derived, "the plan", false};
  return fixed;
}

// Of one GPU's speed, so that more GPUs are no gain of their own.
double ratio(const PlanRow& row, const PlanRow& to) {
  const double speed = row.tokens_per_second() / static_cast<double>(row.world);
  const double other = to.tokens_per_second() / static_cast<double>(to.world);
  return other > 0 ? speed / other : 0;
}

// Values of one axis other than the plan's own, as a space around it.
SearchSpace varied(Axis axis, const SearchInputs& inputs, const SearchSpace& space, const PlanRow& plan,
                   const SearchOptions& options) {
  const std::string& own = plan.settings[static_cast<std::size_t>(axis)];
  std::vector<std::string> values = joined(space[axis].values, beside(axis, own));
  if (axis != Axis::MicroBatch && axis != Axis::Gpus)
    values = joined(values, own_values(axis, inputs, options.objective));
  if (axis == Axis::MicroBatch) values = beside(axis, own);
  std::erase(values, own);
  SearchSpace fixed = around(plan, space);
  fixed[axis].values = std::move(values);
  return fixed;
}

std::string joined_text(const std::vector<std::string>& values) {
  return formatted("{}", dsplan::joined(values, ", "));
}

bool listed(const SearchSpace& space, Axis axis, const std::string& value) {
  const std::vector<std::string>& values = space[axis].values;
  return std::find(values.begin(), values.end(), value) != values.end();
}

// Of one family and micro-batch, `auto` written out.
std::vector<Candidate> recompute_plans(Evaluator& evaluator, std::size_t family, std::int64_t micro_batch) {
  std::map<std::string, std::int64_t> refused;
  std::vector<Candidate> all;
  for (Candidate& one : evaluator.candidates(family, micro_batch, refused)) {
    if (one.segmented != nullptr) {
      all.push_back(std::move(one));
      continue;
    }
    for (Candidate& written : evaluator.expanded(one)) all.push_back(std::move(written));
  }
  return all;
}

// Judges neighbours as far as it takes to say why they lost.
void judge(Walk& walk, Axis axis, const std::vector<Candidate>& candidates, const PlanRow& plan,
           const SearchSpace& space, std::vector<PlanChange>& into) {
  const auto asks = [&](const Candidate& one) {
    const PlanRow row = walk.row(one);
    return row.fate == Fate::Slower && (ratio(row, plan) > 1 || walk.simulations().asked(one) != nullptr);
  };
  std::vector<const Candidate*> asked;
  for (const Candidate& one : candidates) {
    if (asks(one)) asked.push_back(&one);
  }
  walk.simulations().ahead(asked, Wanted::Any, detail::kAll);
  for (const Candidate* one : asked) (void)walk.simulated(*one, Wanted::Any);
  for (const Candidate& one : candidates) {
    PlanRow row = walk.row(one);
    const double speed = ratio(row, plan);
    if (fits(row.fate) && !listed(space, axis, row.settings[static_cast<std::size_t>(axis)])) {
      row.reason = formatted("{}, but {} says {}", row.fate == Fate::Tight ? "tight" : "fits", space[axis].reason,
                             joined_text(space[axis].values));
    }
    into.push_back({{axis}, std::move(row), speed});
  }
}

void add_varied(Axis axis, const SearchInputs& inputs, const SearchSpace& space, const PlanRow& plan,
                const std::shared_ptr<const Checkpointing>& segmented, const SearchOptions& options, Verdicts& verdicts,
                std::vector<PlanChange>& into) {
  SearchSpace fixed = varied(axis, inputs, space, plan, options);
  if (fixed[axis].values.empty()) return;
  const bool batches = axis == Axis::MicroBatch;
  const std::vector<std::string> counts = batches ? fixed[axis].values : fixed[Axis::MicroBatch].values;
  if (batches) fixed[axis].values.resize(1);
  if (axis != Axis::Checkpoint) fixed[Axis::Checkpoint].values = {"full"};
  Walk walk(inputs, fixed, options, verdicts);
  std::vector<Candidate> candidates;
  for (std::size_t family = 0; family < walk.evaluator().families().size(); ++family) {
    if (!walk.evaluator().families()[family].refusal.empty()) continue;
    for (const std::string& count : counts) {
      if (axis == Axis::Checkpoint) {
        for (Candidate& one : recompute_plans(walk.evaluator(), family, number(count))) {
          walk.evaluator().add_time(one);
          if (one.segmented->groups != segmented->groups) candidates.push_back(std::move(one));
        }
        continue;
      }
      std::string refusal;
      auto one = walk.evaluator().candidate(family, number(count), segmented->text, segmented,
                                            axis == Axis::Gpus ? 0 : plan.tokens_per_second(), refusal);
      if (one) candidates.push_back(std::move(*one));
    }
  }
  judge(walk, axis, candidates, plan, space, into);
}

SearchSpace opened(const SearchSpace& space, Axis axis, const SearchInputs& inputs, const SearchOptions& options) {
  SearchSpace wider = space;
  AxisValues& values = wider[axis];
  if (axis == Axis::Gpus) {
    const std::int64_t most = number(values.values.back());
    values.values = {std::to_string(most * 2), std::to_string(most * 4), std::to_string(most * 8)};
  } else if (axis == Axis::MicroBatch) {
    std::vector<std::string> smaller;
    for (std::int64_t rows = number(values.values.front()) / 2; rows >= 1; rows /= 2) {
      smaller.push_back(std::to_string(rows));
    }
    values.values = std::move(smaller);
  } else if (axis == Axis::Loss) {
    values.values = joined(values.values, {"chunked:8", "liger"});
  } else {
    values.values = joined(values.values, own_values(axis, inputs, options.objective));
  }
  values.pinned = false;
  return wider;
}

bool wider(const SearchSpace& space, const SearchSpace& opened_space, Axis axis) {
  return !opened_space[axis].values.empty() && opened_space[axis].values != space[axis].values;
}

std::optional<PlanChange> remedy(const SearchInputs& inputs, const SearchSpace& space, std::vector<Axis> axes,
                                 const PlanRow& nearest, const SearchOptions& options, Verdicts& verdicts) {
  SearchOptions asked = options;
  if (std::find(axes.begin(), axes.end(), Axis::Gpus) != axes.end()) asked.objective = Objective::Gpus;
  Walk walk(inputs, space, asked, verdicts);
  walk.count();
  const auto best = walk.best().best;
  if (!best) return std::nullopt;
  PlanRow row = walk.row(walk.open(*best));
  const double speed = ratio(row, nearest);
  return PlanChange{std::move(axes), std::move(row), speed};
}

void fastest_first(std::vector<PlanChange>& changes) {
  std::stable_sort(changes.begin(), changes.end(),
                   [](const PlanChange& a, const PlanChange& b) { return a.speed > b.speed; });
}

}  // namespace

std::vector<PlanChange> neighbours_of(const SearchInputs& inputs, Walk& walk, const Candidate& chosen,
                                      const SearchOptions& options, Verdicts& verdicts) {
  const PlanRow plan = walk.row(chosen);
  const std::shared_ptr<const Checkpointing>& segmented = chosen.segmented;
  SearchOptions quiet = options;
  quiet.segmentations = std::min<std::size_t>(quiet.segmentations, 6);
  std::vector<PlanChange> changes;
  for (std::size_t i = 0; i < kAxes; ++i) {
    add_varied(static_cast<Axis>(i), inputs, walk.space(), plan, segmented, quiet, verdicts, changes);
  }
  fastest_first(changes);
  return changes;
}

std::vector<PlanChange> remedies_for(const SearchInputs& inputs, const Walk& walk, const PlanRow& nearest,
                                     const SearchOptions& options, Verdicts& verdicts) {
  SearchOptions quiet = options;
  quiet.segmentations = std::min<std::size_t>(quiet.segmentations, 6);
  std::vector<PlanChange> found;
  const SearchSpace& space = walk.space();
  for (std::size_t a = 0; a < kAxes; ++a) {
    const Axis axis = static_cast<Axis>(a);
    const SearchSpace one = opened(space, axis, inputs, quiet);
    if (!wider(space, one, axis)) continue;
    if (auto change = remedy(inputs, one, {axis}, nearest, quiet, verdicts)) found.push_back(std::move(*change));
  }
  for (std::size_t a = 0; a < kAxes && found.empty(); ++a) {
    for (std::size_t b = a + 1; b < kAxes; ++b) {
      const SearchSpace one = opened(space, static_cast<Axis>(a), inputs, quiet);
      const SearchSpace two = opened(one, static_cast<Axis>(b), inputs, quiet);
      if (!wider(space, one, static_cast<Axis>(a)) || !wider(one, two, static_cast<Axis>(b))) continue;
      auto change = remedy(inputs, two, {static_cast<Axis>(a), static_cast<Axis>(b)}, nearest, quiet, verdicts);
      if (change) found.push_back(std::move(*change));
    }
  }
  fastest_first(found);
  return found;
}

namespace {

// The possible family whose states are the smallest.
const PlanFamily* least_states(const Evaluator& evaluator) {
  const PlanFamily* least = nullptr;
  for (const PlanFamily& family : evaluator.families()) {
    if (!family.refusal.empty()) continue;
    if (least == nullptr || family.persistent + family.beside < least->persistent + least->beside) least = &family;
  }
  return least;
}

std::string layout(const PlanFamily& family) {
  const auto value = [&](Axis axis) { return family.settings[static_cast<std::size_t>(axis)]; };
  return formatted("zero_stage {}, offload {}, tp {}", value(Axis::ZeroStage), value(Axis::Offload),
                   value(Axis::TensorParallel));
}

// One axis at a time, the stage first; else all three at once.
std::string what_would_do(const SearchInputs& inputs, const SearchSpace& space, Bytes limit) {
  constexpr std::array<Axis, 3> kAxesOfStates = {Axis::ZeroStage, Axis::Offload, Axis::TensorParallel};
  const auto fitting = [limit](const Evaluator& evaluator) -> const PlanFamily* {
    for (const PlanFamily& family : evaluator.families()) {
      if (family.refusal.empty() && family.persistent + family.beside <= limit) return &family;
    }
    return nullptr;
  };
  SearchSpace all = space;
  for (const Axis axis : kAxesOfStates) {
    SearchSpace one = space;
    one[axis].values = all[axis].values = own_values(axis, inputs, Objective::TokensPerSecond);
    const Evaluator evaluator(inputs, one, 1);
    if (const PlanFamily* would = fitting(evaluator)) {
      return formatted("; with {} they take {}", layout(*would), human(would->persistent));
    }
  }
  const Evaluator evaluator(inputs, all, 1);
  const PlanFamily* would = fitting(evaluator);
  if (would != nullptr) return formatted("; with {} they take {}", layout(*would), human(would->persistent));
  const PlanFamily* least = least_states(evaluator);
  if (least == nullptr) return {};
  return formatted("; no stage would do: with {} they still take {}", layout(*least), human(least->persistent));
}

// Degrees of tensor parallelism that are impossible because the data-parallel ranks they leave cannot share the rows of
// a step: "tp 1, 2, 4 (37 rows; 32 or 40 divide)". One row more or less can be worth several times the speed.
std::optional<std::string> degrees_without_rows(const SearchSpace& space) {
  const std::vector<std::string>& gpus = space[Axis::Gpus].values;
  if (!space.global_batch || gpus.size() != 1) return std::nullopt;
  const std::int64_t batch = *space.global_batch;
  std::string degrees;
  std::int64_t most = 0;
  for (const std::string& tp : space[Axis::TensorParallel].values) {
    const std::int64_t sharing = number(tp);
    if (sharing < 1 || number(gpus.front()) % sharing != 0) continue;
    const std::int64_t ranks = number(gpus.front()) / sharing;
    if (batch % ranks == 0) continue;
    degrees += (degrees.empty() ? "" : ", ") + tp;
    most = std::max(most, ranks);
  }
  if (degrees.empty()) return std::nullopt;
  const std::int64_t below = batch / most * most;
  return formatted("tp {} ({} rows; {}{} divide{})", degrees, batch, below > 0 ? formatted("{} or ", below) : "",
                   below + most, below > 0 ? "" : "s");
}

}  // namespace

std::vector<std::string> not_searched(Walk& walk) {
  std::vector<std::string> left_out;
  if (std::optional<std::string> degrees = degrees_without_rows(walk.space())) left_out.push_back(std::move(*degrees));
  const std::vector<PlanFamily>& families = walk.evaluator().families();
  const auto any = [&families](auto&& is) { return std::any_of(families.begin(), families.end(), is); };
  if (any([](const PlanFamily& family) { return family.refusal.empty() && family.host_unknown; })) {
    left_out.emplace_back("offload (no --host-memory)");
  }
  if (any([](const PlanFamily& family) {
        return family.refusal.empty() && family.files > Bytes(0) && !family.job.nvme_memory;
      })) {
    left_out.emplace_back("files (no --nvme-memory)");
  }
  left_out.emplace_back("pipeline parallelism");
  return left_out;
}

std::string states_too_large(const SearchInputs& inputs, Walk& walk) {
  const PlanFamily* least = least_states(walk.evaluator());
  if (least == nullptr || !least->job.capacity) return {};
  const Bytes limit = *least->job.capacity;
  if (least->persistent + least->beside <= limit) return {};
  const Footprint states = footprint(inputs.model, least->job);
  std::string text = formatted(
      "the states alone take {} with {}: parameters {}, gradients and buffers {}, optimizer {}; {} are left for them",
      human(least->persistent), layout(*least), human(states.persistent[Role::Parameters]),
      human(states.persistent[Role::Gradients] + states.persistent[Role::RuntimeBuffers]),
      human(states.persistent[Role::Optimizer]), human(limit > least->beside ? limit - least->beside : Bytes(0)));
  return text + what_would_do(inputs, walk.space(), limit);
}

}  // namespace dsplan::detail
