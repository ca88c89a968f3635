// The schedule: one rank's buffers and events in program order, for init, the first and the second optimizer step.
// Lowering (planner/lower) is the only maker of events; everyone else is a reader that rides on `replay`.
//
// What an event says is meant to be judged: every buffer has contents with identities, every write says what it makes
// and every read says what it expects to find, so that the auditor (core/audit.h) can tell a legal schedule from one
// in which a single event was deleted, moved or changed, without knowing anything of ZeRO or autograd.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/ids.h"
#include "core/model.h"
#include "core/units.h"

namespace dsplan {

using BufferId = Id<struct BufferTag, std::uint32_t>;
// Identity of what one write made. Unique in a schedule; kNone, which is 0, is "nothing".
using ContentId = Id<struct ContentTag, std::uint32_t, 0>;
using StreamId = std::uint8_t;
inline constexpr StreamId kComputeStream = 0;
inline constexpr StreamId kGatherStream = 1;   // Parameters on their way to all ranks.
inline constexpr StreamId kReduceStream = 2;   // Gradients on their way out of them.
inline constexpr StreamId kCopyStream = 3;     // Activations on their way to the host and back.
inline constexpr StreamId kCopyInStream = 4;   // Shards on their way into what is gathered.
inline constexpr StreamId kReplicaStream = 5;  // Sums of shards on their way to replicas.
inline constexpr StreamId kStreams = 6;
inline constexpr StreamId kHostSync = 255;  // In WaitEvent alone: nothing is enqueued before.
inline constexpr BufferId kNoBuffer = kNone;

// The nine roles of interface.md; every byte has exactly one.
enum class Role : std::uint8_t {
  Parameters,
  Gradients,
  Optimizer,
  RuntimeBuffers,
  Activations,
  Temporaries,
  Inputs,
  ModuleBuffers,
  Workspace,
};
inline constexpr std::size_t kRoles = 9;
[[nodiscard]] std::string_view name(Role role);  // "runtime_buffers"

// MiddleStep: between the first and the last one that is simulated, where lengths alternate. Save: after the last step,
// where saving the model takes memory of its own.
enum class Stretch : std::uint8_t { Init, FirstStep, MiddleStep, SecondStep, Save };
enum class Pass : std::uint8_t { Setup, Forward, Recompute, Backward, Step, Save };
[[nodiscard]] std::string_view name(Stretch stretch);  // "init", "first_step", "middle_steps", "steady", "save"
[[nodiscard]] std::string_view name(Pass pass);

// What a buffer is, for people: "saved input of linear". Points to a string literal, so that labels cost nothing.
using Label = const char*;

// The framework's file and function that makes it: "zero/stage3.py, _create_fp32_partitions". A literal likewise.
using Source = const char*;

// Where a buffer lives. Host buffers and files count in the host's ledger, never in the device's. Locked: page-locked
// by DeepSpeed itself to the byte, where Pinned comes from PyTorch's pool.
enum class Space : std::uint8_t { Device, Pinned, Locked, Pageable, Nvme };

struct Buffer {
  Bytes size;  // Requested bytes; > 0.
  Label label = "";
  Source source = "";             // Empty where an operator's own recipe says it.
  ModuleId module = kNone;        // Where it belongs, if anywhere.
  ParameterId parameter = kNone;  // The parameter it holds a part of, if one.
  DType dtype = DType::Float32;
  Role role = Role::Temporaries;
  // The allocation is a capacity (a bucket) that need not be filled; all others must be used to their last byte.
  bool capacity = false;
  // Used inside one operator only: its contents need no reader.
  bool scratch = false;
  // Logits and what the loss makes of them, forward and backward.
  bool of_loss = false;
  // It stands for many small tensors that are made, used and let go of one right behind the other (Schedule::pieces).
  // Only where nothing but figures is read off a schedule.
  bool in_pieces = false;
  Space space = Space::Device;
};

// What such a buffer stands for: none is larger than the allocator's smallest block.
struct Pieces {
  BufferId buffer = kNoBuffer;
  std::size_t count = 0;
  std::vector<Bytes> sizes;  // Of the first ones; those behind repeat them.

  // Of the first `some` of them.
  [[nodiscard]] Bytes bytes(std::size_t some) const {
    const auto rounds = static_cast<std::int64_t>(some / sizes.size());
    Bytes sum;
    for (std::size_t at = 0; at < sizes.size(); ++at) {
      sum += sizes[at] * (rounds + (at < some % sizes.size() ? 1 : 0));
    }
    return sum;
  }
};

// One touch of a buffer: `content` fills [offset, offset + bytes) of it.
struct Access {
  BufferId buffer = kNone;
  ContentId content = kNone;
  Bytes offset;
  Bytes bytes;
};

// A range of Schedule::accesses.
struct Span {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

// Why a buffer outlives its last reader. A closed list; the auditor refuses a late release without a reason.
enum class Reason : std::uint8_t {
  LastUse,          // Not late: released right after its last reader.
  PythonFrame,      // A Python variable of the framework's code still holds it.
  AutogradGraph,    // Saved by a node whose backward does not read it, or held by a graph until the graph dies.
  CheckpointFrame,  // Held by a checkpoint's closure until its region has been differentiated.
  GradientHeld,     // `.grad`, or a gradient partition, until the optimizer or zero_grad drops it.
  ModuleExit,       // A gathered parameter, until the module that uses it has returned.
  RuntimeBucket,    // A bucket, until the runtime's epilogue.
  CoalescedBatch,   // What several parameters were gathered into, until the last of them has been asked for.
  Loop,             // The training loop's own variables: batch, loss.
};
[[nodiscard]] std::string_view name(Reason reason);

enum class Collective : std::uint8_t { AllReduce, ReduceScatter, AllGather, Broadcast, Reduce, AllToAll, SendRecv };
// DataParallelInside: the ranks that hold secondary shards of one another's parameters (hpZ). DataParallelBetween: all
// data-parallel ranks, where such groups exist: what leaves the group of a rank. Replicas: the ranks that hold the same
// shards (HSDP), one of each group inside.
enum class Group : std::uint8_t {
  DataParallel,
  TensorParallel,
  SequenceParallel,
  ExpertParallel,
  DataParallelInside,
  DataParallelBetween,
  Replicas,
};
inline constexpr std::size_t kGroups = 7;
enum class TrafficKind : std::uint8_t { Data, Control };
[[nodiscard]] std::string_view name(Collective collective);  // "all_gather"
[[nodiscard]] std::string_view name(Group group);            // "dp"

struct Allocate {
  BufferId buffer = kNone;
  StreamId stream = 0;
};

// A release follows what causes it with nothing but other releases in between. LastUse: the work that touched the
// buffer last; `cause` is kNone. A late release (any other reason) names its cause: the first content that a work made,
// or the identity of a marker, or of a recorded or awaited event. `stream` is the one that allocated; what other
// streams do with the buffer holds its memory up (record_stream), not the release.
struct Release {
  BufferId buffer = kNone;
  ContentId cause = kNone;
  StreamId stream = 0;
  Reason reason = Reason::LastUse;
};

// One kernel, or a group that takes no memory in between. `scratch` buffers are made and used inside.
// What the time of a piece of work goes by: the bytes that it moves, a product's shape, pairs of tokens.
enum class Cost : std::uint8_t { Memory, Product, Attention };

struct Compute {
  Label work = "";
  ModuleId module = kNone;
  StreamId stream = 0;
  Pass pass = Pass::Forward;
  Span reads;
  Span writes;
  Cost cost = Cost::Memory;
};

struct Communicate {
  Collective collective = Collective::AllReduce;
  Group group = Group::DataParallel;
  DType dtype = DType::Float32;
  TrafficKind kind = TrafficKind::Data;
  StreamId stream = 0;
  Pass pass = Pass::Forward;
  ModuleId module = kNone;
  Bytes payload;  // The full logical buffer, as in nccl-tests.
  Span reads;
  Span writes;
};

// Work is enqueued on streams by one host, in program order. Streams run beside each other and each in its own order,
// as far as nothing waits. RecordEvent: all that `stream` was given before, and what that has waited for (an event that
// is recorded). WaitEvent: what `waiter` is given from here on comes after what the recorded event stands for; where
// the host waits (kHostSync), so does whatever any stream is given from here on. Both have identities from the same
// numbers as contents, so that a release can name them.
struct RecordEvent {
  StreamId stream = 0;
  ContentId id = kNone;
};
struct WaitEvent {
  ContentId recorded = kNone;
  StreamId waiter = 0;
  ContentId id = kNone;
};

// torch.cuda.empty_cache(): the allocator waits for the frees that wait for streams, then gives back every segment that
// holds nothing. No work and no buffer depends on it. The identity is from the same numbers as contents.
struct EmptyCache {
  ContentId id = kNone;
};

// A module's forward, recomputed forward or backward begins or ends. `abandoned`: early stop left it before its end.
// Markers have identities from the same numbers as contents, so that a release can name the marker that it follows.
struct Enter {
  ModuleId module = 0;
  Pass pass = Pass::Forward;
  ContentId id = kNone;
};
struct Exit {
  ModuleId module = 0;
  Pass pass = Pass::Forward;
  bool abandoned = false;
  ContentId id = kNone;
};

enum class Moment : std::uint8_t {
  StretchBegins,
  MicroBatchBegins,
  ForwardBegins,
  ForwardEnds,  // The loss is kept, the outputs are dropped.
  BackwardBegins,
  BackwardEnds,  // Everything that belongs to the backward pass is gone.
  StepBegins,
  StepEnds,
  StretchEnds,
};
[[nodiscard]] std::string_view name(Moment moment);

struct Mark {
  Moment moment = Moment::StretchBegins;
  Stretch stretch = Stretch::Init;
  std::int32_t micro_batch = 0;
  ContentId id = kNone;
};

using Event =
    std::variant<Allocate, Release, Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit, Mark>;

// What a schedule promises to have done; the auditor holds it to that.
enum class PromiseKind : std::uint8_t {
  UpdatedEachStep,  // Between StepBegins and StepEnds, computes write each byte of this range once. `content` is 0.
  HeldAtTheEnd,     // After the last event the range holds `content`; together these are all that survivors hold.
};
struct Promise {
  PromiseKind kind = PromiseKind::HeldAtTheEnd;
  Access what;
};

// What a framework's own profiler counts: "forward_fetch_submit".
struct FrameworkCount {
  std::string_view name;
  std::int64_t count = 0;
  std::int64_t elements = 0;
};

// Where the framework itself calls its function that prints what the allocator has: before which event.
struct FrameworkPrint {
  std::size_t event = 0;
  std::string text;  // "After initializing optimizer states"
};

// Of whose uses by other streams the allocator is not told (record_stream): whoever frees has waited for them before,
// and frees are done as they are asked for.
struct UntoldUses {
  bool all = false;
  std::vector<BufferId> of;  // Ascending.

  [[nodiscard]] bool has(BufferId buffer) const { return all || std::binary_search(of.begin(), of.end(), buffer); }
};

struct Schedule {
  std::int64_t rank = 0;  // Among the data-parallel ranks.
  std::int64_t world = 1;
  std::int64_t dp = 1;
  std::int64_t dp_inside = 1;  // Ranks of a DataParallelInside group.
  std::int64_t tp = 1;
  bool several_streams = false;
  UntoldUses untold;
  bool keeps_results = false;  // Recomputations leave out operators whose results a selective checkpoint kept.
  Indexed<BufferId, Buffer> buffers;
  std::vector<Pieces> pieces;       // Of buffers that stand for many, ascending.
  std::vector<Access> accesses;     // Pool for the spans.
  std::vector<Event> events;        // Program order.
  std::vector<BufferId> survivors;  // Live after the last event, ascending: the persistent state.
  std::vector<Promise> promises;
  std::vector<FrameworkCount> counts;  // Of the last micro-batch; empty where nobody counts.
  std::vector<FrameworkPrint> prints;  // In order of their events.

  // Of groups that a schedule can have.
  [[nodiscard]] std::int64_t ranks_of(Group group) const {
    if (group == Group::TensorParallel) return tp;
    if (group == Group::Replicas) return dp / dp_inside;
    return group == Group::DataParallelInside ? dp_inside : dp;
  }
  // Of a buffer in pieces.
  [[nodiscard]] const Pieces& pieces_of(BufferId buffer) const {
    return *std::lower_bound(pieces.begin(), pieces.end(), buffer,
                             [](const Pieces& one, BufferId id) { return one.buffer < id; });
  }
  [[nodiscard]] std::span<const Access> range(Span span) const {
    return {accesses.data() + span.begin, static_cast<std::size_t>(span.end - span.begin)};
  }
};

// The only loop that walks a schedule, from event `from` on. A reader that lacks an event type does not compile.
template <class... Readers>
void replay_from(std::size_t from, const Schedule& schedule, Readers&... readers) {
  for (std::size_t at = from; at < schedule.events.size(); ++at) {
    std::visit([&](const auto& event) { (readers.on(at, event), ...); }, schedule.events[at]);
  }
}
template <class... Readers>
void replay(const Schedule& schedule, Readers&... readers) {
  replay_from(0, schedule, readers...);
}

// A reader that wants only some event types derives from this and hides nothing by accident: it must say
// `using Ignores<...>::on;` with exactly the types that it passes over.
template <class... Ignored>
struct Ignores {
  template <class E>
  requires(std::is_same_v<E, Ignored> || ...) void on(std::size_t, const E&) {}
};

// "backward of model.layers.11, recomputing": one line for people about what happens at `event`.
[[nodiscard]] std::string describe_moment(const Schedule& schedule, const ModelSpec& model, std::size_t event);

}  // namespace dsplan
