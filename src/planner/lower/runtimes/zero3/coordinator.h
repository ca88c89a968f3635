// ZeRO-3's parameter coordinator as an automaton (DeepSpeed runtime/zero/partitioned_param_coordinator.py, with the
// hooks of parameter_offload.py): module boundaries go in, and out comes what is gathered, waited for and let go of. It
// knows nothing of events, sizes in bytes or autograd, so that it can be held against DeepSpeed's own trace alone.
//
// The first pass is recorded: a pass runs from one root forward to the next. From the second on the trace is complete,
// parameters are fetched ahead of their modules, and are kept where the trace shows that they come back soon. A module
// out of order invalidates the trace; the rest of that pass is not traced, and the next one is recorded again.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/model.h"

namespace dsplan {

// All sizes are elements.
struct CoordinatorSettings {
  std::int64_t prefetch_bucket = 50'000'000;
  std::int64_t max_reuse_distance = 1'000'000'000;
  std::int64_t max_live = 1'000'000'000;
  bool secondary_shards = false;   // hpZ: a parameter that is let go of keeps a shard inside the node.
  std::int64_t swap_buffers = -1;  // NVMe: buffers for partitions that are read ahead. -1: no partition is there.
};

struct CoordinatedParameter {
  std::int64_t elements = 0;
  std::int64_t part = 0;  // Of one rank: what the profiler counts.
  bool persistent = false;
  bool trained = true;
  bool on_nvme = false;     // Its partition is read from there for every gather.
  std::int32_t number = 0;  // ds_id, by which a call has them in order; equal ones by ParameterId.
};

// Parameters are given by their id, each once. A leaf module (z3_leaf) asks for all that lies below it, and nothing
// below it carries hooks of its own.
struct CoordinatedModule {
  std::vector<ParameterId> own;
  std::vector<ParameterId> below;     // Its own and its descendants'.
  std::vector<ParameterId> external;  // Registered with it, though another module's.
  bool leaf = false;
};

class Coordinator {
 public:
  enum class Mode : std::uint8_t { Invalid, Record, Complete };
  enum class Hook : std::uint8_t { Forward, Recompute, Backward };
  enum class Act : std::uint8_t {
    Gather,       // One call for all of them, launched.
    Wait,         // The call that this parameter is part of is waited for; nothing if it was already.
    Forget,       // The parameter's handle is dropped; the last one of a call takes the call's buffers along.
    Release,      // Back to its partition.
    SwapIn,       // Partitions are read from NVMe into swap buffers. One that is named twice is an error.
    DropBuffers,  // And the swap buffers given back.
  };
  struct Action {
    Act act = Act::Gather;
    bool prefetch = false;   // Gather: ahead of its module.
    bool secondary = false;  // Gather: of shards inside the node.
    bool at_once = false;    // Gather: waited for before anything else runs; no handle remains.
    std::vector<ParameterId> parameters;
  };
  // What DeepSpeed's profiler of the coordinator counts in one pass.
  enum class Counter : std::uint8_t {
    ForwardFetchSubmit,
    ForwardFetchWait,
    ForwardPrefetchSubmit,
    BackwardFetchSubmit,
    BackwardFetchWait,
    BackwardPrefetchSubmit,
    ForwardAllGather,
    BackwardAllGather,
  };
  static constexpr std::size_t kCounters = 8;
  struct Count {
    std::int64_t count = 0;
    std::int64_t elements = 0;  // Of partitions where a fetch is counted, whole otherwise.
    friend bool operator==(const Count&, const Count&) = default;
  };
  using Counts = std::array<Count, kCounters>;
  // Where DeepSpeed raises "tracing error": the module's parameters are not those that the trace has next.
  struct TracingError {
    std::int64_t step = 0;
    ModuleId module = 0;
    std::vector<ParameterId> expected;
    std::vector<ParameterId> found;
  };

  // `modules` by ModuleId; those that carry no hooks are never entered.
  Coordinator(const CoordinatorSettings& settings, std::vector<CoordinatedParameter> parameters,
              std::vector<CoordinatedModule> modules);

  // Each of these leaves in `actions` what it made the framework do, in order.
  void begin_forward();                    // The root's forward begins: one pass ends and the next begins.
  void enter(ModuleId module, Hook hook);  // Before a module's forward or backward.
  void exit(ModuleId module, Hook hook);   // After it; never for a module that early stop abandons.
  void end_backward();                     // Modules whose backward had no end, as no input of theirs wants a gradient.
  void release_all();                      // The optimizer step begins, or the model is saved.
  void touch(ParameterId parameter);       // A forward reads it outside the module that owns it.
  [[nodiscard]] std::span<const Action> actions() const { return {actions_.data(), acted_}; }

  // The runtime has gathered it by itself, where its partition is in a buffer of NVMe's still, and has dropped the
  // secondary shards of what is trained.
  void made_available(ParameterId parameter);
  void drop_secondary_shards();

  [[nodiscard]] Mode mode() const { return mode_; }
  [[nodiscard]] std::int64_t available() const { return available_; }
  [[nodiscard]] bool is_gathered(ParameterId parameter) const {
    return parameters_[static_cast<std::size_t>(parameter)].status != Status::Away;
  }
  [[nodiscard]] const CoordinatedParameter& parameter(ParameterId id) const {
    return parameters_[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] const CoordinatedModule& module(ModuleId id) const { return modules_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] const Counts& counts() const { return counts_; }  // Of the pass under way.
  [[nodiscard]] const std::optional<TracingError>& tracing_error() const { return error_; }
  // What the ranks compare at the next begin_forward: lengths of the lists of integers that rank 0 sends to all.
  [[nodiscard]] std::vector<std::int64_t> compared_lists() const;

 private:
  enum class Status : std::uint8_t { Away, InFlight, Available };
  struct State : CoordinatedParameter {
    Status status = Status::Away;
    bool unread = false;  // Its partition is on NVMe and in no buffer.
    bool secondary = false;
    std::int64_t latest = kAgo;  // The latest use that the queue has been emptied for.
    std::int32_t call = -1;      // The call that is in flight for it.
    std::vector<ModuleId> users;
  };
  struct TraceEntry {
    ParameterId parameter = 0;
    std::int64_t step = 0;
  };
  struct Use {
    std::vector<std::vector<std::int64_t>> steps;  // By parameter: where the trace has it, ascending.
    std::vector<std::int64_t> before;              // By step: elements of all modules before it.
  };
  static constexpr std::int64_t kAgo = -10'000'000'000;

  [[nodiscard]] State& at(ParameterId id) { return parameters_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] CoordinatedModule& mod(ModuleId id) { return modules_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] const std::vector<ParameterId>& asked(ModuleId id) const {
    return asked_[static_cast<std::size_t>(id)];
  }
  Action& act(Act what, std::span<const ParameterId> parameters);
  void act(Act what, ParameterId parameter) { act(what, std::span(&parameter, 1)); }
  void count(Counter counter, std::int64_t elements);
  void list_asked(ModuleId module);

  // coordinator.cpp
  void check_order(ModuleId module);
  void invalidate();
  void clear_in_flight();
  void fetch(ModuleId module, bool forward, bool recompute);
  void take(ModuleId module, bool forward, bool recompute);
  void pop_own(ModuleId module);
  void prefetch(bool forward);
  void gather(const std::vector<ParameterId>& wanted, bool forward, bool ahead);
  void launch(std::span<const ParameterId> parameters, bool ahead, bool secondary);
  void wait_for(ParameterId parameter);
  void forget(ParameterId parameter);
  void release(ParameterId parameter);
  void end_use(ModuleId module, std::span<const ParameterId> of, std::span<const ParameterId> released);
  void gather_at_once(ParameterId parameter);

  // coordinator_trace.cpp
  void finish_record();
  void index(Use& use, bool leaf) const;
  [[nodiscard]] const std::vector<ParameterId>& released_by(ModuleId module);
  [[nodiscard]] std::vector<ParameterId> decide_release(ModuleId module);
  [[nodiscard]] bool comes_back(const Use& use, ParameterId parameter) const;
  void swap_in_missing(const std::vector<ParameterId>& parameters);
  void read_ahead();
  void drop_buffers(std::vector<ParameterId> parameters);

  CoordinatorSettings settings_;
  std::vector<State> parameters_;
  std::vector<CoordinatedModule> modules_;
  std::vector<std::vector<ParameterId>> asked_;  // By module: what its entry fetches, in a call's order.
  std::vector<Action> actions_;                  // The first `acted_`; those behind them only keep their room.
  std::size_t acted_ = 0;

  Mode mode_ = Mode::Invalid;
  std::int64_t step_ = 0;       // Modules entered in this pass.
  std::int64_t available_ = 0;  // Elements gathered in this pass and not let go of.
  std::vector<ModuleId> modules_in_trace_;
  std::vector<TraceEntry> trace_;
  std::size_t next_in_trace_ = 0;  // The queue is what is left of the trace.
  Use direct_;                     // As a module that is no leaf looks ahead, and as a leaf does.
  Use deep_;
  bool indexed_ = false;
  // Python caches what a module lets go of at a step, and keeps the cache when the trace is invalidated.
  std::unordered_map<std::uint64_t, std::vector<ParameterId>> decisions_;

  struct Call {
    std::size_t begin = 0;  // Of `members_`.
    std::size_t end = 0;
    bool waited = false;
  };
  std::vector<Call> calls_;  // Of this pass.
  std::vector<ParameterId> members_;
  std::vector<ParameterId> in_flight_;   // In order of launch.
  std::vector<ModuleId> forward_stack_;  // Early stop never takes a module off it.
  // Entered in backward and not left, oldest first, with frozen parameters that a recomputation used within it.
  struct InBackward {
    ModuleId module = 0;
    std::vector<ParameterId> recomputed;
  };
  std::vector<InBackward> in_backward_;
  std::int64_t free_swap_buffers_ = 0;
  Counts counts_{};
  std::optional<TracingError> error_;
};

[[nodiscard]] std::string_view name(Coordinator::Counter counter);  // "forward_fetch_submit"

}  // namespace dsplan
