#include "planner/search/walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <tuple>

namespace dsplan::detail {
namespace {

std::vector<std::int64_t> ascending(const std::vector<std::string>& texts) {
  std::vector<std::int64_t> numbers;
  for (const std::string& text : texts) {
    std::int64_t number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

bool fits(Fate fate) { return fate == Fate::Fits || fate == Fate::FitsWithRetries; }

// Everything that a simulation depends on, as far as candidates differ.
std::string groups_text(const Checkpointing& checkpoint) {
  std::string text = checkpoint.text;
  for (const CheckpointGroup& group : checkpoint.groups)
    fmt::format_to(std::back_inserter(text), " {}-{}", group.first, group.last);
  return text;
}

Bytes wire_of(const Prediction& prediction) {
  Bytes sum;
  if (!prediction.communication) return sum;
  for (const TrafficRow& traffic : *prediction.communication) {
    const bool of_step = traffic.phase != Pass::Setup && traffic.phase != Pass::Save;
    if (of_step && traffic.kind == TrafficKind::Data) sum += traffic.wire;
  }
  return sum;
}

}  // namespace

Walk::Walk(const SearchInputs& inputs, SearchSpace space, const SearchOptions& options, Verdicts& verdicts)
    : inputs_(inputs),
      space_(std::move(space)),
      options_(options),
      verdicts_(verdicts),
      evaluator_(inputs_, space_, options.segmentations) {}

bool Walk::go_on(const PlanRow* best) {
  if (interrupted_) return false;
  if (!options_.go_on) return true;
  const auto open = static_cast<std::int64_t>(open_.size()) - counts_.simulated;
  interrupted_ = !options_.go_on({counts_.candidates, counts_.simulated, std::max<std::int64_t>(0, open), best});
  return !interrupted_;
}

void Walk::count_family(std::size_t index) {
  const PlanFamily& family = evaluator_.families()[index];
  const std::vector<std::int64_t> batches = ascending(space_[Axis::MicroBatch].values);
  const auto each = static_cast<std::int64_t>(space_[Axis::Checkpoint].values.size());
  const auto refuse = [&](const std::string& why, std::int64_t count) {
    refusals_[why] += count;
    counts_.candidates += count;
    counts_.refused += count;
  };
  if (!family.refusal.empty()) return refuse(family.refusal, each * static_cast<std::int64_t>(batches.size()));
  if (family.host_unknown) {
    return refuse("offload without a known host: name --host-memory or a cluster that has it",
                  each * static_cast<std::int64_t>(batches.size()));
  }
  for (std::size_t at = 0; at < batches.size() && go_on(); ++at) {
    std::map<std::string, std::int64_t> refused;
    std::vector<Candidate> made = evaluator_.candidates(index, batches[at], refused);
    for (const auto& [why, count] : refused) refuse(why, count);
    counts_.candidates += static_cast<std::int64_t>(made.size());
    bool any_open = false;
    for (Candidate& one : made) {
      if (smallest_.empty() || smallest_.back().family != index) {
        smallest_.push_back(one);
      } else if (one.least < smallest_.back().least) {
        smallest_.back() = one;
      }
      const bool too_large = options_.bounds && evaluator_.missing(one).has_value();
      if (too_large) {
        ++counts_.bounded;
        continue;
      }
      any_open = true;
      if (!one.time) evaluator_.add_time(one);
      open_.push_back(std::move(one));
    }
    // A larger micro-batch holds more of everything.
    if (any_open || made.empty() || !options_.bounds) continue;
    const auto rest = static_cast<std::int64_t>(made.size()) * static_cast<std::int64_t>(batches.size() - at - 1);
    counts_.candidates += rest;
    counts_.bounded += rest;
    break;
  }
}

void Walk::count() {
  for (std::size_t index = 0; index < evaluator_.families().size() && go_on(); ++index) count_family(index);
  sort_open();
}

void Walk::sort_open() {
  const bool ranks_first = options_.objective == Objective::Gpus;
  std::stable_sort(open_.begin(), open_.end(), [&](const Candidate& a, const Candidate& b) {
    const std::int64_t ranks_a = evaluator_.families()[a.family].job.parallelism.world;
    const std::int64_t ranks_b = evaluator_.families()[b.family].job.parallelism.world;
    if (ranks_first && ranks_a != ranks_b) return ranks_a < ranks_b;
    return a.time->tokens_per_second > b.time->tokens_per_second;
  });
}

std::string Walk::key_of(const Candidate& candidate) const {
  std::string key;
  for (std::size_t i = 0; i + 2 < kAxes; ++i) key += evaluator_.families()[candidate.family].settings[i] + "|";
  const Training& training = evaluator_.families()[candidate.family].job.training;
  return key + fmt::format("{}|{}|{}|{}|{}", candidate.micro_batch, candidate.grad_accum, training.seq,
                           inputs_.model.dims.layers, groups_text(candidate.checkpointing()));
}

const Simulated& Walk::verdict(const Candidate& candidate) {
  std::shared_ptr<const Simulated>& known = verdicts_[key_of(candidate)];
  if (known == nullptr) {
    known = std::make_shared<Simulated>(evaluator_.simulate(candidate));
    ++counts_.simulated;
  }
  return *known;
}

PlanRow Walk::row(const Candidate& candidate) const {
  PlanRow row = evaluator_.row(candidate);
  const auto known = verdicts_.find(key_of(candidate));
  if (known == verdicts_.end()) return row;
  const Simulated& simulated = *known->second;
  const Prediction& p = simulated.prediction;
  row.fate = simulated.fate;
  row.reason = simulated.reason;
  row.missing.reset();
  if (p.peak) row.process = p.peak->process;
  const Bytes need = row.process.value_or(Bytes(0)) + p.reserve;
  if (simulated.fate == Fate::DoesNotFit && p.capacity && need > *p.capacity) row.missing = need - *p.capacity;
  if (p.host.verdict == Verdict::DoesNotFit && !row.missing) row.missing = *p.host.per_node - *p.host.capacity;
  row.host = p.host.per_node;
  row.wire = wire_of(p);
  return row;
}

std::optional<std::size_t> Walk::best() {
  std::optional<std::size_t> clean;
  std::optional<std::size_t> retrying;
  const auto world = [this](std::size_t index) {
    return evaluator_.families()[open_[index].family].job.parallelism.world;
  };
  for (std::size_t index = 0; index < open_.size() && go_on(); ++index) {
    const bool more_ranks = options_.objective == Objective::Gpus && retrying && world(index) > world(*retrying);
    if (options_.stop_early && (clean || more_ranks)) break;
    const Fate fate = verdict(open_[index]).fate;
    if (fate == Fate::Fits && !clean && !more_ranks) clean = index;
    if (fate == Fate::FitsWithRetries && !retrying) retrying = index;
  }
  counts_.slower = static_cast<std::int64_t>(open_.size()) - counts_.simulated;
  return clean ? clean : retrying;
}

bool Walk::anything_fits() {
  std::stable_sort(open_.begin(), open_.end(),
                   [](const Candidate& a, const Candidate& b) { return a.least < b.least; });
  for (const Candidate& one : open_) {
    if (!go_on()) return false;
    if (fits(verdict(one).fate)) return true;
  }
  return false;
}

std::vector<PlanRow> Walk::front() {
  std::vector<PlanRow> front;
  for (const Candidate& one : open_) {
    // In order of speed: what is there already is at least as fast.
    std::optional<Bytes> least_wire;
    const bool beaten = std::any_of(front.begin(), front.end(), [&](const PlanRow& row) {
      if (!options_.stop_early || *row.process > one.least) return false;
      if (!least_wire) least_wire = evaluator_.least_wire(one);
      return *row.wire <= *least_wire;
    });
    if (beaten) continue;
    if (!go_on(front.empty() ? nullptr : &front.front())) break;
    if (!fits(verdict(one).fate)) continue;
    PlanRow row = this->row(one);
    const bool dominated = std::any_of(front.begin(), front.end(), [&](const PlanRow& other) {
      return *other.process <= *row.process && *other.wire <= *row.wire;
    });
    if (dominated) continue;
    // Only one that is just as fast can be beaten by a later one.
    std::erase_if(front, [&](const PlanRow& other) {
      return other.tokens_per_second() <= row.tokens_per_second() && *row.process <= *other.process &&
             *row.wire <= *other.wire;
    });
    front.push_back(std::move(row));
  }
  return front;
}

std::optional<PlanRow> Walk::nearest() {
  constexpr std::size_t kTried = 3;
  std::stable_sort(smallest_.begin(), smallest_.end(),
                   [](const Candidate& a, const Candidate& b) { return a.least < b.least; });
  std::optional<PlanRow> nearest;
  for (std::size_t i = 0; i < std::min(kTried, smallest_.size()); ++i) {
    evaluator_.add_time(smallest_[i]);
    (void)verdict(smallest_[i]);
    PlanRow row = this->row(smallest_[i]);
    if (!nearest || row.missing.value_or(Bytes(0)) < nearest->missing.value_or(Bytes(0))) nearest = std::move(row);
  }
  return nearest;
}

std::vector<PlanRow> Walk::after(std::size_t chosen, std::size_t most) const {
  const auto layout = [this](const Candidate& one) {
    const Settings& s = evaluator_.families()[one.family].settings;
    return std::tuple(s[static_cast<std::size_t>(Axis::ZeroStage)], s[static_cast<std::size_t>(Axis::Offload)],
                      s[static_cast<std::size_t>(Axis::TensorParallel)], one.micro_batch);
  };
  std::set<decltype(layout(open_.front()))> seen{layout(open_[chosen])};
  std::vector<PlanRow> rows;
  for (std::size_t index = chosen + 1; index < open_.size() && rows.size() < most; ++index) {
    if (seen.insert(layout(open_[index])).second) rows.push_back(row(open_[index]));
  }
  return rows;
}

std::vector<RefusalCount> Walk::refusals() const {
  std::vector<RefusalCount> all;
  for (const auto& [why, count] : refusals_) all.push_back({why, count});
  std::stable_sort(all.begin(), all.end(),
                   [](const RefusalCount& a, const RefusalCount& b) { return a.count > b.count; });
  return all;
}

}  // namespace dsplan::detail
