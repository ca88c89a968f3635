#include "planner/plan/simulations.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "core/format.h"
#include "core/machine/in_parallel.h"

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

const Simulated* Simulations::of(const Candidate& candidate, Wanted wanted) {
  const std::string key = key_of(candidate);
  Known& known = verdicts_[key];
  if (const auto ahead = ahead_.find(key); ahead != ahead_.end() && !known.answers(wanted)) known = ahead->second;
  if (!known.answers(wanted)) known = simulated(candidate, wanted, nullptr);
  return known.whole.get();
}

void Simulations::ahead(const std::vector<const Candidate*>& candidates, Wanted wanted, bool first_of_all) {
  std::vector<std::pair<const Candidate*, Known*>> work;
  for (const Candidate* one : candidates) {
    const std::string key = key_of(*one);
    const auto asked = verdicts_.find(key);
    const bool known = asked != verdicts_.end() && asked->second.answers(wanted);
    Known& made = ahead_[key];
    if (first_of_all && one == candidates.front() && (known || made.answers(wanted))) return;
    if (known) continue;
    const bool twice = std::any_of(work.begin(), work.end(), [&](const auto& other) { return other.second == &made; });
    if (!twice && !made.answers(wanted)) work.emplace_back(one, &made);
  }
  if (work.size() < 2) return;  // Whoever asks for it simulates it.
  std::atomic<bool> needless = false;
  in_parallel(work.size(), [&](std::size_t at) {
    try {
      Known made = simulated(*work[at].first, wanted, first_of_all && at > 0 ? &needless : nullptr);
      if (at == 0 && made.whole != nullptr && made.whole->fate == Fate::Fits) needless = true;
      // What has ended because it is needless has said nothing.
      if (made.whole != nullptr || at == 0 || !needless) *work[at].second = std::move(made);
    } catch (const std::exception&) {
      // It is thrown to whoever asks for it.
    }
  });
}

}  // namespace dsplan::detail
