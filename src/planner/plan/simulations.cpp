#include "planner/plan/simulations.h"

#include <algorithm>
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

// With two processors a simulation's own pieces have the other one.
std::size_t ahead_of_need() { return processors() > 2 ? at_once() - 1 : 0; }

std::string Simulations::key_of(const Candidate& candidate) const {
  const PlanFamily& family = evaluator_.families()[candidate.family];
  std::string key;
  for (std::size_t i = 0; i + 2 < kAxes; ++i) key += family.settings[i] + "|";
  return key + formatted("{}|{}|{}|{}|{}", candidate.micro_batch, candidate.grad_accum, family.job.training.seq,
                         inputs_.model.dims.layers, groups_text(*candidate.segmented));
}

bool Simulations::knows(const std::string& key) const { return ahead_.contains(key) || verdicts_.contains(key); }

const Simulated* Simulations::asked(const Candidate& candidate) const {
  const auto found = verdicts_.find(key_of(candidate));
  return found == verdicts_.end() ? nullptr : found->second.get();
}

const Simulated& Simulations::of(const Candidate& candidate) {
  const std::string key = key_of(candidate);
  const auto found = verdicts_.find(key);
  if (found != verdicts_.end()) return *found->second;
  const auto ahead = ahead_.find(key);
  std::shared_ptr<const Simulated> made = ahead != ahead_.end() ? ahead->second : nullptr;
  if (made == nullptr) made = std::make_shared<Simulated>(evaluator_.simulate(candidate, detail_));
  return *verdicts_.emplace(key, std::move(made)).first->second;
}

void Simulations::ahead(const std::vector<const Candidate*>& candidates) {
  std::map<std::string, const Candidate*> unknown;
  for (const Candidate* one : candidates) {
    if (std::string key = key_of(*one); !knows(key)) unknown.emplace(std::move(key), one);
  }
  if (unknown.size() < 2) return;  // Whoever asks for it simulates it.
  std::vector<std::pair<const Candidate*, std::shared_ptr<const Simulated>*>> work;
  for (const auto& [key, candidate] : unknown) work.emplace_back(candidate, &ahead_[key]);
  in_parallel(work.size(), [&](std::size_t at) {
    try {
      *work[at].second = std::make_shared<Simulated>(evaluator_.simulate(*work[at].first, detail_));
    } catch (const std::exception&) {
      // It is thrown to whoever asks for it.
    }
  });
}

}  // namespace dsplan::detail
