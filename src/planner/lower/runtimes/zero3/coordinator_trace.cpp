// The recorded trace, what it says of parameters that come back, and partitions on NVMe.
#include <algorithm>

#include "planner/lower/runtimes/zero3/coordinator.h"

namespace dsplan {

// Parameters in the order of the modules that ask for them, by id within a module.
void Coordinator::finish_record() {
  trace_.clear();
  for (std::size_t step = 0; step < modules_in_trace_.size(); ++step) {
    for (ParameterId id : asked(modules_in_trace_[step])) trace_.push_back({id, static_cast<std::int64_t>(step)});
  }
  indexed_ = false;
}

// assert_ints_same_as_other_ranks: modules while the trace is not complete; after a recording, parameters and steps.
std::vector<std::int64_t> Coordinator::compared_lists() const {
  if (mode_ == Mode::Complete) return {};
  const auto modules = static_cast<std::int64_t>(modules_in_trace_.size());
  if (mode_ == Mode::Invalid) return {modules};
  std::int64_t entries = 0;
  for (ModuleId module : modules_in_trace_) entries += static_cast<std::int64_t>(asked(module).size());
  return {modules, entries, entries};
}

// A module that is no leaf sees of every module ahead what is its own; a leaf sees all that lies below it. Either way
// with what is registered besides, counted again where it is the module's own.
void Coordinator::index(Use& use, bool leaf) const {
  use.steps.assign(parameters_.size(), {});
  use.before.assign(1, 0);
  for (std::size_t step = 0; step < modules_in_trace_.size(); ++step) {
    const CoordinatedModule& of = module(modules_in_trace_[step]);
    std::int64_t elements = 0;
    for (const auto* list : {leaf ? &of.below : &of.own, &of.external}) {
      for (ParameterId id : *list) {
        elements += parameters_[static_cast<std::size_t>(id)].elements;
        std::vector<std::int64_t>& steps = use.steps[static_cast<std::size_t>(id)];
        if (steps.empty() || steps.back() != static_cast<std::int64_t>(step)) {
          steps.push_back(static_cast<std::int64_t>(step));
        }
      }
    }
    use.before.push_back(use.before.back() + elements);
  }
}

const std::vector<ParameterId>& Coordinator::released_by(ModuleId module) {
  const std::uint64_t key = static_cast<std::uint64_t>(module) << 32U | static_cast<std::uint64_t>(step_);
  const auto known = decisions_.find(key);
  if (known != decisions_.end()) return known->second;
  return decisions_.emplace(key, decide_release(module)).first->second;
}

std::vector<ParameterId> Coordinator::decide_release(ModuleId id) {
  if (!indexed_) {
    index(direct_, false);
    const bool leaves =
        std::any_of(modules_.begin(), modules_.end(), [](const CoordinatedModule& m) { return m.leaf; });
    if (leaves) index(deep_, true);
    indexed_ = true;
  }
  const Use& use = module(id).leaf ? deep_ : direct_;
  std::vector<ParameterId> released;
  for (ParameterId parameter : asked(id)) {
    const State& state = at(parameter);
    if (state.persistent) continue;
    // The prefetcher has passed over a later use of it, as it was there.
    if (state.latest > step_) continue;
    if (comes_back(use, parameter)) continue;
    released.push_back(parameter);
  }
  return released;
}

// Whether a module asks for it before those from the next on have asked for `max_reuse_distance` elements.
bool Coordinator::comes_back(const Use& use, ParameterId parameter) const {
  const std::vector<std::int64_t>& steps = use.steps[static_cast<std::size_t>(parameter)];
  const auto next = std::lower_bound(steps.begin(), steps.end(), step_);
  if (next == steps.end()) return false;
  const std::int64_t passed = use.before[static_cast<std::size_t>(*next)] - use.before[static_cast<std::size_t>(step_)];
  return passed < settings_.max_reuse_distance;
}

// A gather waits for partitions that are not in memory.
void Coordinator::swap_in_missing(const std::vector<ParameterId>& wanted) {
  std::vector<ParameterId> missing;
  std::copy_if(wanted.begin(), wanted.end(), std::back_inserter(missing),
               [&](ParameterId id) { return at(id).unread; });
  if (missing.empty()) return;
  for (ParameterId id : missing) at(id).unread = false;
  free_swap_buffers_ -= static_cast<std::int64_t>(missing.size());
  act(Act::SwapIn, missing);
}

// __prefetch_nvme_param_partitions: while what is looked at is no more than twice what is in flight, and a buffer free.
// A partition that is used twice within that is asked for twice, where DeepSpeed stops at an assertion.
void Coordinator::read_ahead() {
  std::int64_t in_flight = 0;
  for (ParameterId id : in_flight_) in_flight += at(id).elements;
  std::int64_t considered = 0;
  std::vector<ParameterId> wanted;
  for (std::size_t next = next_in_trace_; next < trace_.size(); ++next) {
    State& state = at(trace_[next].parameter);
    if (considered > 2 * in_flight || static_cast<std::int64_t>(wanted.size()) >= free_swap_buffers_) break;
    if (state.unread) wanted.push_back(trace_[next].parameter);
    considered += state.elements;
  }
  if (wanted.empty()) return;
  for (ParameterId id : wanted) at(id).unread = false;
  free_swap_buffers_ -= static_cast<std::int64_t>(wanted.size());
  act(Act::SwapIn, wanted);
}

void Coordinator::drop_buffers(std::vector<ParameterId> of) {
  std::erase_if(of, [&](ParameterId id) { return at(id).unread; });
  if (of.empty()) return;
  for (ParameterId id : of) at(id).unread = true;
  free_swap_buffers_ += static_cast<std::int64_t>(of.size());
  act(Act::DropBuffers, of);
}

}  // namespace dsplan
