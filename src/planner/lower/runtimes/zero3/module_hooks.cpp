#include "planner/lower/runtimes/zero3/module_hooks.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "planner/lower/runtimes/zero3/hooked_modules.h"

namespace dsplan {
namespace {

Coordinator::Hook hook_of(Pass pass) {
  if (pass == Pass::Backward) return Coordinator::Hook::Backward;
  return pass == Pass::Recompute ? Coordinator::Hook::Recompute : Coordinator::Hook::Forward;
}

Coordinator coordinator_for(const Training& training, const ModelSpec& model, const Sharding& sharding) {
  const Zero& zero = training.zero;
  CoordinatorSettings settings;
  // The engine sets it to one element for sequential gathers.
  settings.prefetch_bucket = zero.allgather_sequential ? 1 : zero.prefetch_bucket_size.value();
  settings.max_reuse_distance = zero.max_reuse_distance.value();
  settings.max_live = zero.max_live_parameters.value();
  settings.secondary_shards = zero.hpz_partition_size > 1;
  if (zero.offload_param.device == OffloadDevice::Nvme) settings.swap_buffers = zero.offload_param.buffer_count;
  std::vector<CoordinatedParameter> parameters;
  const std::vector<std::int32_t> numbers = numbers_of_conversion(model, training.under_zero_init());
  for (std::size_t id = 0; id < sharding.parameters(); ++id) {
    const Shard& of = sharding.of(static_cast<ParameterId>(id));
    parameters.push_back({of.elements, of.part, of.persistent, of.trained, of.in_file, numbers[id]});
  }
  return {settings, std::move(parameters), coordinated_modules(model, leaf_modules(model, zero))};
}

}  // namespace

ModuleHooks::ModuleHooks(const Training& training, const ModelSpec& model, const Sharding& sharding,
                         PartitionHome& home, ParameterStore& store, Emitter& emitter)
    : sharding_(sharding),
      home_(home),
      store_(store),
      gathers_(training, model, sharding, store, emitter),
      eager_(emitter),
      gather_stream_(training.zero.overlap_comm ? kGatherStream : kComputeStream),
      coordinator_(coordinator_for(training, model, sharding)),
      wraps_(model.modules.size(), kNone),
      leaf_of_(model.parameters.size(), kNone),
      by_keyword_(called_by_keyword(model)),
      left_(model.modules.size(), false),
      read_before_(read_before_call(model)) {
  const std::vector<bool> leaf = leaf_modules(model, training.zero);
  carries_ = hooked_modules(model, leaf);
  for (std::size_t at = 0; at < model.parameters.size(); ++at) {
    ModuleId module = model.parameters[at].module;
    while (!carries_[static_cast<std::size_t>(module)]) module = model.module_at(module).parent;
    if (leaf[static_cast<std::size_t>(module)]) leaf_of_[at] = module;
    if (!by_keyword_[static_cast<std::size_t>(module)]) wraps_[static_cast<std::size_t>(module)] = module;
  }
  // Parents come before children: what lies below a leaf is wrapped as the leaf is.
  for (std::size_t at = 1; at < wraps_.size(); ++at) {
    if (!carries_[at]) wraps_[at] = wraps_[static_cast<std::size_t>(model.modules[at].parent)];
  }
}

std::vector<ParameterId> ModuleHooks::own(ModuleId module) const {
  std::vector<ParameterId> own = coordinator_.module(module).own;
  std::sort(own.begin(), own.end());
  return own;
}

void ModuleHooks::begin_forward() {
  compare_trace();
  coordinator_.begin_forward();
  apply();
  gathers_.begin_pass();
}

// assert_ints_same_as_other_ranks: rank 0 sends a list's length, then the list; it is read at once, as 64-bit numbers.
void ModuleHooks::compare_trace() {
  for (std::int64_t length : coordinator_.compared_lists()) {
    for (std::int64_t numbers : {std::int64_t{1}, length}) {
      if (numbers == 0) continue;
      Variable list =
          eager_.empty(storage(Elements(numbers), DType::Int64), DType::Int64,
                       {Role::Temporaries, "trace to compare", "zero/utils.py, assert_ints_same_as_other_ranks"});
      list.mark_scratch();
      eager_.zero(list, "copy trace to device");
      if (sharding_.world() > 1) {
        eager_.work().read(list).write(list).control(Collective::Broadcast, DType::Int64, eager_.bytes_of(list));
      }
      list.reset();
      eager_.emitter().wait_stream(kHostSync, kComputeStream);
    }
  }
}

void ModuleHooks::enter(ModuleId module, Pass pass) {
  if (!carries_[static_cast<std::size_t>(module)]) return;
  if (pass == Pass::Forward) {
    for (const ParameterId early : read_before_[static_cast<std::size_t>(module)]) ask(early);
  }
  if (pass != Pass::Backward) left_[static_cast<std::size_t>(module)] = false;
  coordinator_.enter(module, hook_of(pass));
  DSPLAN_CHECK(!coordinator_.tracing_error(), "the trace that was recorded does not fit the pass that follows");
  apply(From::Fetch);
}

// The getter looks for what is not there within the engine's forward alone.
void ModuleHooks::ask(ParameterId parameter) {
  coordinator_.touch(parameter);
  apply();
}

void ModuleHooks::exit(ModuleId module, Pass pass) {
  if (!carries_[static_cast<std::size_t>(module)]) return;
  if (pass == Pass::Backward) {
    // What counts gradients to come begins anew with each call, so that one end is seen of all calls (deberta's
    // products of positions).
    if (by_keyword_[static_cast<std::size_t>(module)] || left_[static_cast<std::size_t>(module)]) return;
    left_[static_cast<std::size_t>(module)] = true;
  }
  coordinator_.exit(module, hook_of(pass));
  apply();
}

void ModuleHooks::end_backward() {
  coordinator_.end_backward();
  apply(From::Outside);
}

void ModuleHooks::release_all() {
  coordinator_.release_all();
  apply(From::Outside);
}

// One by one, in place for the next step.
void ModuleHooks::gather_persistent() {
  store_.gather_in_place(sharding_.persistent());
  // Without any nothing in DeepSpeed makes the gathers to come wait for what the step wrote: they are made to here.
  eager_.emitter().wait_stream(gather_stream_, kComputeStream);
  for (ParameterId id : sharding_.persistent()) coordinator_.made_available(id);
}

void ModuleHooks::drop_secondary() {
  store_.drop_secondary();
  coordinator_.drop_secondary_shards();
}

// fetch_sub_module: once what the module needs has arrived the compute stream waits for the gather stream, ahead of
// what is prefetched then. Elsewhere (release_and_reset_all) handles are waited for on the compute stream itself.
//
// The host also waits for the gather stream when more than two fetches are under way, which tells it nothing of the
// compute stream, whose uses are what gathered parameters wait for: left out.
void ModuleHooks::apply(From from) {
  Emitter& emitter = eager_.emitter();
  const std::span<const Coordinator::Action> actions = coordinator_.actions();
  std::size_t arrived = 0;  // Behind the last wait.
  for (std::size_t at = 0; at < actions.size(); ++at) {
    if (actions[at].act == Coordinator::Act::Wait || actions[at].act == Coordinator::Act::Forget) arrived = at + 1;
  }
  if (from != From::Fetch && arrived > 0) emitter.wait_stream(kComputeStream, gather_stream_);
  for (std::size_t at = 0; at < actions.size(); ++at) {
    if (from == From::Fetch && at == arrived) emitter.wait_stream(kComputeStream, gather_stream_);
    const bool on_gather = from == From::Fetch && actions[at].act != Coordinator::Act::Release;
    const OnStream stream(emitter, on_gather && !actions[at].at_once ? gather_stream_ : kComputeStream);
    act(actions[at], from);
  }
  if (from == From::Fetch && arrived == actions.size()) emitter.wait_stream(kComputeStream, gather_stream_);
}

void ModuleHooks::act(const Coordinator::Action& action, From from) {
  switch (action.act) {
    case Coordinator::Act::Gather:
      if (action.at_once) return store_.gather_whole(action.parameters.front());
      return gathers_.launch(action.parameters, action.secondary);
    case Coordinator::Act::Wait: return gathers_.wait(action.parameters.front());
    case Coordinator::Act::Forget: return gathers_.forget(action.parameters.front());
    case Coordinator::Act::Release:
      return store_.release(action.parameters.front(), Reason::ModuleExit, from != From::Outside);
    case Coordinator::Act::SwapIn:
      for (ParameterId id : action.parameters) home_.read(id);
      return;
    case Coordinator::Act::DropBuffers:
      for (ParameterId id : action.parameters) home_.drop(id);
      return;
  }
}

// partitioned_param_profiler.py.
std::vector<FrameworkCount> ModuleHooks::counts() const {
  std::vector<FrameworkCount> list;
  for (std::size_t at = 0; at < Coordinator::kCounters; ++at) {
    const Coordinator::Count& count = coordinator_.counts()[at];
    list.push_back({name(static_cast<Coordinator::Counter>(at)), count.count, count.elements});
  }
  return list;
}

}  // namespace dsplan
