// Fetching, prefetching and letting go.
#include "planner/lower/runtimes/zero3/coordinator.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace dsplan {
namespace {

bool contains(std::span<const ParameterId> list, ParameterId id) {
  return std::find(list.begin(), list.end(), id) != list.end();
}

void add_once(std::vector<ParameterId>& list, ParameterId id) {
  if (!contains(list, id)) list.push_back(id);
}

// As DeepSpeed numbered them.
template <typename States>
void sort_by_number(std::vector<ParameterId>& list, const States& states) {
  const auto key = [&](ParameterId id) { return std::pair(states[static_cast<std::size_t>(id)].number, id); };
  std::sort(list.begin(), list.end(), [&](ParameterId a, ParameterId b) { return key(a) < key(b); });
}

}  // namespace

std::string_view name(Coordinator::Counter counter) {
  constexpr std::array<std::string_view, Coordinator::kCounters> kNames{
      "forward_fetch_submit", "forward_fetch_wait",       "forward_prefetch_submit", "backward_fetch_submit",
      "backward_fetch_wait",  "backward_prefetch_submit", "forward_all_gather",      "backward_all_gather"};
  return kNames[static_cast<std::size_t>(counter)];
}

Coordinator::Coordinator(const CoordinatorSettings& settings, std::vector<CoordinatedParameter> parameters,
                         std::vector<CoordinatedModule> modules)
    : settings_(settings), modules_(std::move(modules)), free_swap_buffers_(settings.swap_buffers) {
  for (const CoordinatedParameter& parameter : parameters) {
    State state;
    static_cast<CoordinatedParameter&>(state) = parameter;
    state.secondary = settings.secondary_shards;  // Cutting a parameter for the first time leaves one.
    state.unread = parameter.on_nvme;
    parameters_.push_back(std::move(state));
  }
  asked_.resize(modules_.size());
  for (std::size_t id = 0; id < modules_.size(); ++id) list_asked(static_cast<ModuleId>(id));
}

void Coordinator::list_asked(ModuleId id) {
  const CoordinatedModule& of = mod(id);
  std::vector<ParameterId> all = of.leaf ? of.below : of.own;
  all.insert(all.end(), of.external.begin(), of.external.end());
  sort_by_number(all, parameters_);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  asked_[static_cast<std::size_t>(id)] = std::move(all);
}

Coordinator::Action& Coordinator::act(Act what, std::span<const ParameterId> parameters) {
  if (acted_ == actions_.size()) actions_.emplace_back();
  Action& action = actions_[acted_++];
  action.act = what;
  action.prefetch = action.secondary = action.at_once = false;
  action.parameters.assign(parameters.begin(), parameters.end());
  return action;
}

void Coordinator::count(Counter counter, std::int64_t elements) {
  Count& entry = counts_[static_cast<std::size_t>(counter)];
  ++entry.count;
  entry.elements += elements;
}

// reset_step.
void Coordinator::begin_forward() {
  acted_ = 0;
  clear_in_flight();
  if (mode_ == Mode::Record) {
    finish_record();
    mode_ = Mode::Complete;
  } else if (mode_ == Mode::Invalid) {
    mode_ = Mode::Record;
  }
  next_in_trace_ = 0;
  for (State& state : parameters_) state.latest = kAgo;
  step_ = 0;
  available_ = 0;
  counts_ = {};
  calls_.clear();
  members_.clear();
}

void Coordinator::enter(ModuleId module, Hook hook) {
  acted_ = 0;
  if (hook != Hook::Backward) forward_stack_.push_back(module);
  check_order(module);
  if (mode_ == Mode::Record) modules_in_trace_.push_back(module);
  if (hook == Hook::Backward) {
    const bool known = std::any_of(in_backward_.begin(), in_backward_.end(),
                                   [&](const InBackward& entry) { return entry.module == module; });
    if (!known) in_backward_.push_back({module, {}});
  }
  fetch(module, hook != Hook::Backward, hook == Hook::Recompute);
}

// trace_prologue.
void Coordinator::check_order(ModuleId module) {
  if (mode_ != Mode::Complete) return;
  const auto step = static_cast<std::size_t>(step_);
  if (step >= modules_in_trace_.size() || modules_in_trace_[step] != module) invalidate();
}

void Coordinator::invalidate() {
  mode_ = Mode::Invalid;
  modules_in_trace_.clear();
  trace_.clear();
  next_in_trace_ = 0;
  indexed_ = false;
  for (State& state : parameters_) state.latest = kAgo;
  clear_in_flight();
}

// What was fetched ahead and never used. Handles go last, all together.
void Coordinator::clear_in_flight() {
  for (ParameterId id : in_flight_) {
    wait_for(id);
    release(id);
  }
  for (ParameterId id : in_flight_) {
    act(Act::Forget, id);
    at(id).call = -1;
  }
  in_flight_.clear();
}

void Coordinator::fetch(ModuleId module, bool forward, bool recompute) {
  std::int64_t missing = 0;
  for (ParameterId id : asked(module)) {
    if (at(id).status == Status::Away) missing += at(id).part;
  }
  if (missing > 0) {
    gather(asked(module), forward, false);
    count(forward ? Counter::ForwardFetchSubmit : Counter::BackwardFetchSubmit, missing);
  }
  take(module, forward, recompute);
  if (mode_ == Mode::Complete) {
    pop_own(module);
    if (settings_.prefetch_bucket > 0) prefetch(forward);
  }
  ++step_;
}

// Python's set has them in the order of their addresses, which is chance: here they come by their numbers. Where a leaf
// has many, in several calls, another order may hold the buffers of all calls at once.
void Coordinator::take(ModuleId module, bool forward, bool recompute) {
  std::int64_t waited = 0;
  for (ParameterId id : asked(module)) {
    State& state = at(id);
    add_once(state.users, module);
    // What is trained is let go of by its own backward; nobody would let go of what is frozen.
    if (recompute && !state.trained && !in_backward_.empty()) {
      add_once(in_backward_.back().recomputed, id);
      add_once(state.users, in_backward_.back().module);
    }
    if (state.call < 0) continue;
    waited += state.part;
    wait_for(id);
    forget(id);
  }
  count(forward ? Counter::ForwardFetchWait : Counter::BackwardFetchWait, waited);
}

// The trace's entries for this module leave the queue, unless an earlier prefetch took them.
void Coordinator::pop_own(ModuleId module) {
  std::vector<ParameterId> expected;
  for (ParameterId id : asked(module)) {
    if (at(id).latest < step_) expected.push_back(id);
  }
  std::vector<ParameterId> found;
  while (next_in_trace_ < trace_.size() && found.size() < expected.size()) {
    const TraceEntry& entry = trace_[next_in_trace_++];
    at(entry.parameter).latest = entry.step;
    add_once(found, entry.parameter);
  }
  sort_by_number(found, parameters_);
  if (found != expected && !error_) error_ = TracingError{step_, module, std::move(expected), std::move(found)};
}

void Coordinator::prefetch(bool forward) {
  const std::int64_t limit = std::min(settings_.max_live - available_, settings_.prefetch_bucket);
  std::vector<ParameterId> ahead;
  std::int64_t elements = 0;
  while (next_in_trace_ < trace_.size() && elements < limit) {
    const TraceEntry& entry = trace_[next_in_trace_];
    State& state = at(entry.parameter);
    if (state.unread) break;
    ++next_in_trace_;
    state.latest = std::max(state.latest, entry.step);
    if (state.status != Status::Away || contains(ahead, entry.parameter)) continue;
    ahead.push_back(entry.parameter);
    elements += state.elements;
  }
  if (elements > 0) {
    sort_by_number(ahead, parameters_);
    gather(ahead, forward, true);
    count(forward ? Counter::ForwardPrefetchSubmit : Counter::BackwardPrefetchSubmit, elements);
  }
  if (settings_.swap_buffers >= 0) read_ahead();
}

// One call for those that have a secondary shard, one for those that have none.
void Coordinator::gather(const std::vector<ParameterId>& wanted, bool forward, bool ahead) {
  std::int64_t elements = 0;
  std::vector<ParameterId> kept;  // They stay on the device: their swap buffers serve others.
  for (ParameterId id : wanted) {
    const State& state = at(id);
    if (state.status != Status::Away) continue;
    elements += state.elements;
    if (state.persistent && state.on_nvme) kept.push_back(id);
  }
  available_ += elements;
  std::vector<ParameterId> part;
  for (bool secondary : {true, false}) {
    part.clear();
    std::copy_if(wanted.begin(), wanted.end(), std::back_inserter(part),
                 [&](ParameterId id) { return at(id).status == Status::Away && at(id).secondary == secondary; });
    if (part.empty()) continue;
    swap_in_missing(part);
    launch(part, ahead, secondary);
    count(forward ? Counter::ForwardAllGather : Counter::BackwardAllGather, elements);
  }
  if (!kept.empty()) drop_buffers(std::move(kept));
}

void Coordinator::launch(std::span<const ParameterId> members, bool ahead, bool secondary) {
  const auto call = static_cast<std::int32_t>(calls_.size());
  for (ParameterId id : members) {
    at(id).status = Status::InFlight;
    at(id).call = call;
    in_flight_.push_back(id);
  }
  Action& action = act(Act::Gather, members);
  action.prefetch = ahead;
  action.secondary = secondary;
  calls_.push_back({members_.size(), members_.size() + members.size()});
  members_.insert(members_.end(), members.begin(), members.end());
}

void Coordinator::wait_for(ParameterId parameter) {
  Call& call = calls_[static_cast<std::size_t>(at(parameter).call)];
  act(Act::Wait, parameter);
  if (std::exchange(call.waited, true)) return;
  for (std::size_t member = call.begin; member < call.end; ++member) at(members_[member]).status = Status::Available;
}

void Coordinator::forget(ParameterId parameter) {
  at(parameter).call = -1;
  in_flight_.erase(std::find(in_flight_.begin(), in_flight_.end(), parameter));
  act(Act::Forget, parameter);
}

void Coordinator::release(ParameterId parameter) {
  State& state = at(parameter);
  if (state.status != Status::Available || !state.users.empty()) return;
  state.status = Status::Away;
  state.secondary = settings_.secondary_shards;
  available_ -= state.elements;
  act(Act::Release, parameter);
  if (state.on_nvme) drop_buffers({parameter});
}

void Coordinator::exit(ModuleId module, Hook hook) {
  acted_ = 0;
  const std::vector<ParameterId>& released = mode_ == Mode::Complete ? released_by(module) : asked(module);
  if (hook != Hook::Backward) {
    if (!forward_stack_.empty()) forward_stack_.pop_back();
    return end_use(module, asked(module), released);
  }
  const auto entry =
      std::find_if(in_backward_.begin(), in_backward_.end(), [&](const InBackward& e) { return e.module == module; });
  DSPLAN_CHECK(entry != in_backward_.end(), "a module's backward ends that has not begun");
  const std::vector<ParameterId> recomputed = std::move(entry->recomputed);
  in_backward_.erase(entry);
  if (recomputed.empty()) return end_use(module, asked(module), released);
  std::vector<ParameterId> of = asked(module);
  std::vector<ParameterId> all = released;
  for (ParameterId id : recomputed) {
    add_once(of, id);
    if (!at(id).persistent) add_once(all, id);
  }
  end_use(module, of, all);
}

void Coordinator::end_use(ModuleId module, std::span<const ParameterId> of, std::span<const ParameterId> released) {
  for (ParameterId id : of) {
    State& state = at(id);
    std::erase(state.users, module);
    if (contains(released, id)) release(id);
  }
}

// release_backward_leftovers: the latest first.
void Coordinator::end_backward() {
  acted_ = 0;
  while (!in_backward_.empty()) {
    const InBackward entry = std::move(in_backward_.back());
    in_backward_.pop_back();
    std::vector<ParameterId> of = asked(entry.module);
    for (ParameterId id : entry.recomputed) add_once(of, id);
    for (ParameterId id : of) {
      State& state = at(id);
      std::erase(state.users, entry.module);
      if (!state.persistent) release(id);
    }
  }
}

void Coordinator::release_all() {
  acted_ = 0;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    const auto id = static_cast<ParameterId>(index);
    if (at(id).call >= 0) {
      wait_for(id);
      forget(id);
    }
    at(id).users.clear();
    release(id);
  }
}

// The getter of a module's parameters, within the engine's forward: whoever is running now asks for it from now on.
void Coordinator::touch(ParameterId parameter) {
  acted_ = 0;
  if (at(parameter).status != Status::Away) return;
  DSPLAN_CHECK(!forward_stack_.empty(), "a parameter is read outside every module");
  const ModuleId user = forward_stack_.back();
  add_once(mod(user).external, parameter);
  list_asked(user);
  indexed_ = false;
  gather_at_once(parameter);
}

// param.all_gather(): not counted among what is available, though letting go of it is.
void Coordinator::gather_at_once(ParameterId parameter) {
  swap_in_missing({parameter});
  at(parameter).status = Status::Available;
  act(Act::Gather, std::span(&parameter, 1)).at_once = true;
}

void Coordinator::made_available(ParameterId parameter) {
  State& state = at(parameter);
  state.status = Status::Available;
  if (!state.unread) return;
  state.unread = false;
  --free_swap_buffers_;
}

void Coordinator::drop_secondary_shards() {
  for (State& state : parameters_) {
    if (state.trained) state.secondary = false;
  }
}

}  // namespace dsplan
