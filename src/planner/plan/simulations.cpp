#include "planner/plan/simulations.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "core/format.h"

namespace dsplan::detail {
namespace {

// Everything that a simulation depends on, as far as candidates differ.
std::string groups_text(const Checkpointing& checkpoint) {
  std::string text = checkpoint.text;
  for (const CheckpointGroup& group : checkpoint.groups) append_formatted(text, " {}-{}", group.first, group.last);
  return text;
}

}  // namespace

std::size_t at_once() { return std::min<std::size_t>(4, processors()); }

std::string Simulations::key_of(const Candidate& candidate) const {
  const PlanFamily& family = evaluator_.families()[candidate.family];
  std::string key;
  for (std::size_t i = 0; i + 2 < kAxes; ++i) key += family.settings[i] + "|";
  return key + formatted("{}|{}|{}|{}|{}", candidate.micro_batch, candidate.grad_accum, family.job.training.seq,
                         inputs_.model.dims.layers, groups_text(*candidate.segmented));
}

const Known* Simulations::asked(const Candidate& candidate) const {
  const auto found = verdicts_.find(key_of(candidate));
  const bool known = found != verdicts_.end() && (found->second.whole != nullptr || found->second.unclean);
  return known ? &found->second : nullptr;
}

Known Simulations::simulated(const Candidate& candidate, Wanted wanted, const std::atomic<bool>* needless) const {
  std::optional<Simulated> made = evaluator_.simulate(candidate, detail_, wanted, needless);
  if (made) return {std::make_shared<const Simulated>(std::move(*made)), false, false};
  return {nullptr, wanted == Wanted::IfFits, true};
}

struct Simulations::Coming {
  enum class State : std::uint8_t { Offered, Begun, Done };

  Candidate candidate;
  Wanted wanted;
  std::atomic<State> state = State::Offered;
  std::atomic<bool> needless = false;
  std::vector<std::shared_ptr<Coming>> behind;
  std::atomic<std::size_t> lacking = 0;  // Before it.
  std::optional<Known> known;

  Coming(const Candidate& of, Wanted as, std::size_t enough) : candidate(of), wanted(as), lacking(enough) {}
  // False: somebody else has.
  bool begin() {
    State offered = State::Offered;
    return state.compare_exchange_strong(offered, State::Begun);
  }
  [[nodiscard]] bool is_wanted() const {
    if (!known || known->whole == nullptr) return false;
    return wanted == Wanted::IfFits ? fits(known->whole->fate) : known->whole->fate == Fate::Fits;
  }
};

// What has ended because it is needless has said nothing.
void Simulations::simulate(Coming& coming) const {
  if (!coming.begin()) return;
  try {
    std::optional<Known> made;
    if (!coming.needless) made = simulated(coming.candidate, coming.wanted, &coming.needless);
    if (made && (made->whole != nullptr || !coming.needless)) coming.known = std::move(made);
    if (coming.is_wanted()) {
      for (const std::shared_ptr<Coming>& one : coming.behind) {
        if (--one->lacking == 0) one->needless = true;
      }
    }
  } catch (const std::exception&) {
    // It is thrown to whoever asks for it.
  }
  coming.behind.clear();
  coming.state = Coming::State::Done;
}

std::optional<Known> Simulations::take(const std::string& key) {
  const auto found = coming_.find(key);
  if (found == coming_.end()) return std::nullopt;
  const std::shared_ptr<Coming> coming = found->second;
  coming_.erase(found);
  if (coming->begin()) return std::nullopt;  // Whoever asks is faster.
  crew_.work_until([&] { return coming->state == Coming::State::Done; });
  return coming->known;
}

const Simulated* Simulations::of(const Candidate& candidate, Wanted wanted) {
  const std::string key = key_of(candidate);
  Known& known = verdicts_[key];
  if (!known.answers(wanted)) {
    if (std::optional<Known> made = take(key)) known = std::move(*made);
  }
  if (!known.answers(wanted)) known = simulated(candidate, wanted, nullptr);
  return known.whole.get();
}

void Simulations::ahead(const std::vector<const Candidate*>& candidates, Wanted wanted, std::size_t enough) {
  std::map<std::string, std::shared_ptr<Coming>> wished;
  std::vector<std::shared_ptr<Coming>> fresh;
  for (std::size_t at = 0; at < candidates.size(); ++at) {
    const std::string key = key_of(*candidates[at]);
    const auto asked = verdicts_.find(key);
    if (asked != verdicts_.end() && asked->second.answers(wanted)) continue;
    const auto begun = coming_.find(key);
    std::shared_ptr<Coming> one = begun != coming_.end() ? begun->second : nullptr;
    const bool serves = one != nullptr && one->wanted == wanted && !one->needless && !one->begin();
    if (serves) {
      wished.emplace(key, one);
    } else if (at > 0) {
      one = std::make_shared<Coming>(*candidates[at], wanted, enough);
      if (wished.emplace(key, one).second) fresh.push_back(one);
    }
  }
  for (const auto& [key, one] : coming_) {
    const auto again = wished.find(key);
    if (again == wished.end() || again->second != one) one->needless = true;
  }
  coming_ = std::move(wished);
  std::deque<Crew::Work> work;
  for (std::size_t at = 0; at < fresh.size(); ++at) {
    if (enough < kAll) fresh[at]->behind.assign(fresh.begin() + static_cast<std::ptrdiff_t>(at) + 1, fresh.end());
    work.emplace_back([this, one = fresh[at]] { simulate(*one); });
  }
  crew_.offer(std::move(work));
}

}  // namespace dsplan::detail
