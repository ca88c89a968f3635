// ZeroRedundancyOptimizer (torch/distributed/optim/zero_redundancy_optimizer.py): which rank updates which parameter,
// in whole, and in which order they are sent afterwards. Neither parameters_as_bucket_view nor overlap_with_ddp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "planner/lower/runtimes/named_parameters.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {

class SharedUpdates {
 public:
  // One parameter group, `trained`, which outlives this. Of one rank everything is its own, and nothing is sent.
  SharedUpdates(const std::vector<NamedParameter>& trained, std::int64_t ranks, std::int64_t rank)
      : ranks_(ranks), rank_(rank) {
    std::vector<Elements> sizes;
    for (const NamedParameter& p : trained) sizes.emplace_back(p.elements);
    if (ranks == 1) return;
    const std::vector<std::int64_t> owners = redundancy_owners(sizes, ranks);
    for (std::size_t at = 0; at < trained.size(); ++at) by_size_.emplace_back(&trained[at], owners[at]);
    std::stable_sort(by_size_.begin(), by_size_.end(),
                     [](const Owned& a, const Owned& b) { return a.first->elements > b.first->elements; });
  }

  [[nodiscard]] bool updates(ParameterId parameter) const {
    return ranks_ == 1 || std::any_of(by_size_.begin(), by_size_.end(), [&](const Owned& one) {
             return one.first->id == parameter && one.second == rank_;
           });
  }
  // Of `group` what this rank updates, the largest first: its own optimizer's order.
  [[nodiscard]] std::vector<const NamedParameter*> own_of(const std::vector<const NamedParameter*>& group) const {
    if (ranks_ == 1) return group;
    std::vector<const NamedParameter*> own;
    for (const auto& [parameter, owner] : by_size_) {
      const auto same = [id = parameter->id](const NamedParameter* p) { return p->id == id; };
      if (owner == rank_ && std::any_of(group.begin(), group.end(), same)) own.push_back(parameter);
    }
    return own;
  }
  // _sync_params: send(parameter, owner), one by one, those of the first rank first.
  template <class Send>
  void each_sent(const Send& send) const {
    for (std::int64_t from = 0; from < ranks_; ++from) {
      for (const auto& [parameter, owner] : by_size_) {
        if (owner == from) send(parameter->id, from);
      }
    }
  }

 private:
  using Owned = std::pair<const NamedParameter*, std::int64_t>;

  std::int64_t ranks_;
  std::int64_t rank_;
  std::vector<Owned> by_size_;
};

}  // namespace dsplan
