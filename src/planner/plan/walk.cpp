#include "planner/plan/walk.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>

#include "core/format.h"
#include "core/machine/in_parallel.h"
#include "core/text/whole_numbers.h"
#include "planner/predict/verdict.h"

namespace dsplan::detail {
namespace {

std::vector<std::int64_t> ascending(const std::vector<std::string>& texts) {
  std::vector<std::int64_t> numbers;
  for (const std::string& text : texts) {
    numbers.push_back(whole_number(text).value_or(0));
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::optional<Bytes> wire_of(const Prediction& prediction) {
  if (!prediction.communication) return std::nullopt;
  Bytes sum;
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
      evaluator_(inputs_, space_, options.segmentations),
      simulations_(inputs_, evaluator_, verdicts, options.whole ? Detail::Verdict : Detail::Fate) {}

bool Walk::go_on(const PlanRow* best) {
  if (interrupted_) return false;
  if (!options_.go_on) return true;
  const auto open = static_cast<std::int64_t>(open_.size()) - counts_.simulated;
  interrupted_ = !options_.go_on({counts_.candidates, counts_.simulated, std::max<std::int64_t>(0, open), best});
  return !interrupted_;
}

void Walk::count_family(std::size_t index) {
  const std::vector<std::int64_t> batches = ascending(space_[Axis::MicroBatch].values);
  for (std::size_t at = 0; at < batches.size() && go_on(); ++at) {
    // Where the smallest fits by its bound the next is likely to be asked for.
    if (at > 0)
      evaluator_.profile_ahead(index, std::span(batches).subspan(at, std::min(at_once(), batches.size() - at)));
    std::map<std::string, std::int64_t> refused;
    std::vector<Candidate> made = evaluator_.candidates(index, batches[at], refused);
    for (const auto& [why, count] : refused) refuse(why, count);
    counts_.candidates += static_cast<std::int64_t>(made.size());
    const std::size_t before = open_.size();
    for (Candidate& one : made) put(std::move(one));
    // A larger micro-batch holds more of everything.
    if (open_.size() > before || made.empty() || !options_.bounds) continue;
    const auto rest = static_cast<std::int64_t>(made.size()) * static_cast<std::int64_t>(batches.size() - at - 1);
    counts_.candidates += rest;
    counts_.bounded += rest;
    break;
  }
}

void Walk::put(Candidate candidate) {
  const auto smallest = std::find_if(smallest_.begin(), smallest_.end(),
                                     [&](const Candidate& one) { return one.family == candidate.family; });
  if (smallest == smallest_.end()) {
    smallest_.push_back(candidate);
  } else if (candidate.least < smallest->least) {
    *smallest = candidate;
  }
  if (options_.bounds && evaluator_.missing(candidate)) {
    ++counts_.bounded;
    return;
  }
  evaluator_.add_time(candidate);
  open_.push_back(std::move(candidate));
  waiting_.push_back(open_.size() - 1);
}

void Walk::refuse(const std::string& why, std::int64_t count) {
  refusals_[why] += count;
  counts_.candidates += count;
  counts_.refused += count;
}

void Walk::count() {
  const auto each =
      static_cast<std::int64_t>(space_[Axis::Checkpoint].values.size() * space_[Axis::MicroBatch].values.size());
  const std::vector<PlanFamily>& families = evaluator_.families();
  const auto lacks_files = [](const PlanFamily& one) { return one.files > Bytes(0) && !one.job.nvme_memory; };
  std::vector<double> fastest(families.size());
  in_parallel(families.size(), [&](std::size_t at) {
    const PlanFamily& one = families[at];
    if (one.refusal.empty() && !one.host_unknown && !lacks_files(one)) fastest[at] = evaluator_.fastest(at);
  });
  for (std::size_t index = 0; index < families.size() && go_on(); ++index) {
    const PlanFamily& family = families[index];
    if (!family.refusal.empty()) {
      refuse(family.refusal, each);
    } else if (family.host_unknown) {
      refuse("offload without a known host: name --host-memory or a cluster that has it", each);
    } else if (lacks_files(family)) {
      refuse("files without a known disk: name --nvme-memory or a cluster that has it", each);
    } else {
      unopened_.push_back({family.job.parallelism.world, fastest[index], index});
    }
  }
  const bool ranks_first = options_.objective == Objective::Gpus;
  std::stable_sort(unopened_.begin(), unopened_.end(), [ranks_first](const Unopened& a, const Unopened& b) {
    if (ranks_first && a.ranks != b.ranks) return a.ranks > b.ranks;
    return a.speed != b.speed ? a.speed < b.speed : a.family > b.family;
  });
}

void Walk::open_families() {
  if (!opens_) return;
  const auto later = [this](std::size_t a, std::size_t b) { return comes_later(a, b); };
  const bool ranks_first = options_.objective == Objective::Gpus;
  while (!unopened_.empty()) {
    const Unopened& next = unopened_.back();
    if (!waiting_.empty()) {
      const Candidate& top = open_[waiting_.front()];
      const std::int64_t ranks = evaluator_.families()[top.family].job.parallelism.world;
      const bool later_ranks = ranks_first && next.ranks > ranks;
      const bool same_ranks = !ranks_first || next.ranks == ranks;
      if (later_ranks || (same_ranks && next.speed < top.time->tokens_per_second)) return;
    }
    if (!go_on()) return;
    const std::size_t family = next.family;
    unopened_.pop_back();
    count_family(family);
    std::make_heap(waiting_.begin(), waiting_.end(), later);
  }
}

bool Walk::comes_later(std::size_t a, std::size_t b) const {
  const Candidate& first = open_[a];
  const Candidate& second = open_[b];
  if (options_.objective == Objective::Gpus) {
    const std::int64_t ranks = evaluator_.families()[first.family].job.parallelism.world;
    const std::int64_t others = evaluator_.families()[second.family].job.parallelism.world;
    if (ranks != others) return ranks > others;
  }
  const double speed = first.time->tokens_per_second;
  const double other = second.time->tokens_per_second;
  return speed != other ? speed < other : a > b;
}

std::optional<std::size_t> Walk::next() {
  const auto later = [this](std::size_t a, std::size_t b) { return comes_later(a, b); };
  while (true) {
    open_families();
    if (waiting_.empty()) return std::nullopt;
    std::pop_heap(waiting_.begin(), waiting_.end(), later);
    const std::size_t index = waiting_.back();
    waiting_.pop_back();
    if (open_[index].segmented != nullptr) return index;
    // None of those that it stands for is faster than it, so that the order stays.
    write_out(index, later);
  }
}

template <class Later>
void Walk::write_out(std::size_t index, const Later& later) {
  constexpr std::size_t kNear = 16;  // The next ones are among the first of the heap.
  std::vector<const Candidate*> others;
  for (std::size_t at = 0; at < std::min(kNear, waiting_.size()); ++at) {
    if (open_[waiting_[at]].segmented == nullptr) others.push_back(&open_[waiting_[at]]);
  }
  std::vector<Candidate> made = evaluator_.expanded(open_[index], others);
  counts_.candidates += static_cast<std::int64_t>(made.size()) - 1;
  ++written_out_;
  for (Candidate& one : made) {
    const std::size_t before = waiting_.size();
    put(std::move(one));
    if (waiting_.size() > before) std::push_heap(waiting_.begin(), waiting_.end(), later);
  }
}

const Simulated* Walk::simulated(const Candidate& candidate, Wanted wanted) {
  if (simulations_.asked(candidate) == nullptr) ++counts_.simulated;
  return simulations_.of(candidate, wanted);
}

std::vector<const Candidate*> Walk::likely(std::size_t first) const {
  std::vector<const Candidate*> all{&open_[first]};
  std::vector<std::size_t> rest;
  std::copy_if(waiting_.begin(), waiting_.end(), std::back_inserter(rest),
               [this](std::size_t index) { return open_[index].segmented != nullptr; });
  const std::size_t more = std::min(at_once(), rest.size());
  std::partial_sort(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(more), rest.end(),
                    [this](std::size_t a, std::size_t b) { return comes_later(b, a); });
  for (std::size_t at = 0; at < more; ++at) all.push_back(&open_[rest[at]]);
  return all;
}

PlanRow Walk::row(const Candidate& candidate) const {
  PlanRow row = evaluator_.row(candidate);
  const Known* const asked = simulations_.asked(candidate);
  if (asked == nullptr || asked->whole == nullptr) return row;
  const Simulated& simulated = *asked->whole;
  const Prediction& p = simulated.prediction;
  row.fate = simulated.fate;
  row.reason = simulated.reason;
  row.missing.reset();
  // When frees end that wait for other streams is not known. What does not fit at their high end may at their low one.
  if (p.peak) row.process = p.peak->process;
  const std::optional<Bytes> least = least_process(p);
  if (least && (p.retries > 0 || !fits(p.verdict))) {
    row.process = least;
  }
  if (simulated.fate == Fate::DoesNotFit && p.shortfall && *p.shortfall > Bytes(0)) row.missing = p.shortfall;
  if (p.host.verdict == Verdict::DoesNotFit && !row.missing) row.missing = *p.host.per_node - *p.host.capacity;
  row.host = p.host.per_node;
  if (p.host.nvme_verdict == Verdict::DoesNotFit && !row.missing) {
    row.missing = *p.host.nvme_per_node - *p.host.nvme_capacity;
  }
  row.nvme = p.host.nvme_per_node;
  row.wire = wire_of(p);
  return row;
}

// Of most that come first it is enough to know that they are not clean: where one is there nobody asks how they fared.
Walk::Found Walk::first_to_fit() {
  Found found;
  while (go_on()) {
    const std::optional<std::size_t> index = next();
    if (!index) break;
    judged_.push_back(*index);
    simulations_.ahead(likely(*index), Wanted::IfClean, 1);
    const Simulated* const made = simulated(open_[*index], Wanted::IfClean);
    open_[*index].seen = true;
    if (made != nullptr && made->fate == Fate::Tight && !found.tight) found.tight = index;
    if (made == nullptr || made->fate != Fate::Fits) continue;
    simulations_.drop();
    found.best = index;
    return found;
  }
  found.tight.reset();  // One before it may turn out to be.
  for (const std::size_t index : judged_) {
    const Simulated* const made = simulated(open_[index], Wanted::IfFits);
    if (made == nullptr) continue;
    if (made->fate == Fate::Tight && !found.tight) found.tight = index;
    if (made->fate != Fate::FitsWithRetries) continue;
    found.best = index;
    return found;
  }
  found.best = found.tight;
  return found;
}

Walk::Found Walk::best() {
  // With fewer GPUs one that retries is better than one that does not with more.
  if (options_.stop_early && options_.objective != Objective::Gpus) return first_to_fit();
  std::optional<std::size_t> clean;
  std::optional<std::size_t> retrying;
  std::optional<std::size_t> tight;
  const auto world = [this](std::size_t index) {
    return evaluator_.families()[open_[index].family].job.parallelism.world;
  };
  while (go_on()) {
    if (options_.stop_early && clean) break;
    const std::optional<std::size_t> index = next();
    if (!index) break;
    const bool more_ranks = options_.objective == Objective::Gpus && retrying && world(*index) > world(*retrying);
    if (options_.stop_early && more_ranks) break;
    judged_.push_back(*index);
    simulations_.ahead(likely(*index), Wanted::Any, options_.stop_early ? 1 : kAll);
    const Fate fate = simulated(open_[*index], Wanted::Any)->fate;
    open_[*index].seen = true;
    if (fate == Fate::Fits && !clean && !more_ranks) clean = index;
    if (fate == Fate::FitsWithRetries && !retrying) retrying = index;
    if (fate == Fate::Tight && !tight) tight = index;
  }
  if (clean) return {clean, tight};
  return {retrying ? retrying : tight, tight};
}

namespace {

// What retries is slower than its estimate says; what is tight may fail.
bool is_no_worse(Fate fate, Fate worst) {
  if (fate == Fate::Tight) return worst == Fate::Tight;
  return fate == Fate::Fits || (fate == Fate::FitsWithRetries && worst != Fate::Fits);
}

}  // namespace

// Those of least memory first; `auto` is written out when its own bound is reached, as none of its plans is below it.
bool Walk::anything_fits(Fate worst) {
  while (!unopened_.empty() && go_on()) {
    count_family(unopened_.back().family);
    unopened_.pop_back();
  }
  const auto later = [this](std::size_t a, std::size_t b) { return open_[a].least > open_[b].least; };
  std::make_heap(waiting_.begin(), waiting_.end(), later);
  while (!waiting_.empty() && go_on()) {
    std::pop_heap(waiting_.begin(), waiting_.end(), later);
    const std::size_t index = waiting_.back();
    waiting_.pop_back();
    if (open_[index].segmented != nullptr) {
      const Wanted wanted = worst == Fate::Fits ? Wanted::IfClean : Wanted::IfFits;
      const Simulated* const made = simulated(open_[index], wanted);
      open_[index].seen = true;
      if (made != nullptr && is_no_worse(made->fate, worst)) return true;
      continue;
    }
    write_out(index, later);
  }
  return false;
}

std::vector<PlanRow> Walk::front() {
  std::vector<PlanRow> front;
  waiting_.insert(waiting_.end(), judged_.begin(), judged_.end());
  std::make_heap(waiting_.begin(), waiting_.end(), [this](std::size_t a, std::size_t b) { return comes_later(a, b); });
  for (std::optional<std::size_t> index = next(); index; index = next()) {
    const Candidate& one = open_[*index];
    // In order of speed: what is there already is at least as fast.
    std::optional<Bytes> least_wire;
    const bool beaten = std::any_of(front.begin(), front.end(), [&](const PlanRow& row) {
      if (!options_.stop_early || *row.process > one.least) return false;
      if (!least_wire) least_wire = evaluator_.least_wire(one);
      return *row.wire <= *least_wire;
    });
    if (beaten) continue;
    if (!go_on(front.empty() ? nullptr : &front.front())) break;
    open_[*index].seen = true;
    const Simulated* const made = simulated(one, Wanted::IfFits);
    if (made == nullptr || !fits(made->fate)) continue;
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
    Candidate one = smallest_[i];
    if (one.segmented == nullptr) {
      const std::vector<Candidate> made = evaluator_.expanded(one);
      if (made.empty()) continue;
      one = *std::min_element(made.begin(), made.end(),
                              [](const Candidate& a, const Candidate& b) { return a.least < b.least; });
    }
    evaluator_.add_time(one);
    (void)simulated(one, Wanted::Any);
    PlanRow row = this->row(one);
    if (!nearest || row.missing.value_or(Bytes(0)) < nearest->missing.value_or(Bytes(0))) nearest = std::move(row);
  }
  return nearest;
}

std::vector<PlanRow> Walk::after(std::size_t best, std::size_t most) {
  const auto layout = [this](const Candidate& one) {
    const Settings& s = evaluator_.families()[one.family].settings;
    return std::tuple(s[static_cast<std::size_t>(Axis::ZeroStage)], s[static_cast<std::size_t>(Axis::Offload)],
                      s[static_cast<std::size_t>(Axis::TensorParallel)], one.micro_batch);
  };
  std::set<decltype(layout(open_.front()))> seen{layout(open_[best])};
  std::vector<PlanRow> rows;
  std::vector<std::size_t> taken;
  opens_ = false;
  const std::size_t tries = 3 * most;
  std::deque<std::size_t> coming;
  // As many as it takes if all of them fit, and what processors may begin while others are at those.
  const auto look_ahead = [&](std::size_t tried) {
    const std::size_t lacking = most - rows.size();
    while (coming.size() < std::min(lacking + at_once() - 1, tries - tried)) {
      const std::optional<std::size_t> index = next();
      if (!index) break;
      taken.push_back(*index);
      if (seen.insert(layout(open_[*index])).second) coming.push_back(*index);
    }
    std::vector<const Candidate*> together;
    for (const std::size_t index : coming) together.push_back(&open_[index]);
    simulations_.ahead(together, Wanted::IfFits, lacking);
  };
  for (std::size_t tried = 0; rows.size() < most && tried < tries && go_on(); ++tried) {
    look_ahead(tried);
    if (coming.empty()) break;
    const std::size_t index = coming.front();
    coming.pop_front();
    open_[index].seen = true;
    const Simulated* const made = simulated(open_[index], Wanted::IfFits);
    if (made != nullptr && fits(made->fate)) rows.push_back(row(open_[index]));
  }
  simulations_.drop();
  opens_ = true;
  waiting_.insert(waiting_.end(), taken.begin(), taken.end());  // A front may want them.
  return rows;
}

SearchCounts Walk::counts() const {
  SearchCounts counts = counts_;
  const auto unopened = static_cast<std::int64_t>(unopened_.size() * space_[Axis::Checkpoint].values.size() *
                                                  space_[Axis::MicroBatch].values.size());
  counts.candidates += unopened;
  counts.simulated = std::count_if(open_.begin(), open_.end(), [](const Candidate& one) { return one.seen; });
  counts.slower = unopened + static_cast<std::int64_t>(open_.size()) - written_out_ - counts.simulated;
  return counts;
}

std::vector<RefusalCount> Walk::refusals() const {
  std::vector<RefusalCount> all;
  for (const auto& [why, count] : refusals_) all.push_back({why, count});
  std::stable_sort(all.begin(), all.end(),
                   [](const RefusalCount& a, const RefusalCount& b) { return a.count > b.count; });
  return all;
}

}  // namespace dsplan::detail
