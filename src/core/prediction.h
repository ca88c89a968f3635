// What dsplan says of one rank: the numbers of interface.md's "JSON of simulate", as values. Integer bytes throughout.
// An absent optional is `null` in JSON and must have an entry in `not_modelled` that says why.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/schedule.h"
#include "core/units.h"

namespace dsplan {

// How long one optimizer step takes, as estimated. Seconds, as floating point: nothing exact follows from them.

// One part of an optimizer step, all micro-batches together, on one rank.
struct PhaseTime {
  std::string name;      // "forward", "backward", "step"
  double compute = 0;    // Kernels, recomputation included.
  double recompute = 0;  // Of `compute`: backward only.
  double launch = 0;     // What the host needs to launch kernels beyond their own time.
  double exposed = 0;    // Collectives that nothing hides.
  double hidden = 0;     // Collectives under computation: not part of `total`.
  double host = 0;       // Copies to and from the host, its optimizer, files: as far as nothing hides them.

  [[nodiscard]] double total() const { return compute + launch + exposed + host; }
};

struct StepTime {
  std::vector<PhaseTime> phases;  // forward, backward, step
  double total = 0;
  double low = 0;  // The interval in which eight of ten measured steps lie (docs/time.md).
  double high = 0;
  double tokens_per_second = 0;  // Of all ranks together.
  double model_flops = 0;        // Of one rank and step; recomputation is not counted.
  double hardware_flops = 0;     // With recomputation.
  double mfu = 0;                // Of the peak rate of the dtype: 0 to 1.
  double hfu = 0;
  bool calibrated = false;  // By rates that were measured on the user's own machine; otherwise "estimated".
  std::string basis;        // Where the rates are from, in words.
};

// Bytes by role; the total is their sum by construction.
struct ByRole {
  std::array<Bytes, kRoles> bytes{};

  [[nodiscard]] Bytes& operator[](Role role) { return bytes[static_cast<std::size_t>(role)]; }
  [[nodiscard]] Bytes operator[](Role role) const { return bytes[static_cast<std::size_t>(role)]; }
  [[nodiscard]] Bytes total() const {
    Bytes sum;
    for (Bytes part : bytes) sum += part;
    return sum;
  }
  friend bool operator==(const ByRole&, const ByRole&) = default;
};

// The paper's view of the states: gradients at their largest within a step.
struct States {
  Bytes parameters;
  Bytes gradients;
  Bytes optimizer;
  [[nodiscard]] Bytes total() const { return parameters + gradients + optimizer; }
  friend bool operator==(const States&, const States&) = default;
};

struct Persistent {
  ByRole by_role;
  std::optional<Bytes> allocated;  // After rounding to blocks; absent where only formulas speak.
};

struct LiveBuffer {
  std::string name;    // "saved input of linear, model.layers.3.mlp.down_proj"
  std::string module;  // Path; empty where it belongs to none.
  Role role = Role::Temporaries;
  Bytes bytes;  // Of one buffer, or of `count` alike.
  std::int64_t count = 1;
  std::string rule = {};  // File and function of the framework that makes it; empty where it is an operator's own.
};

struct ModuleBytes {
  std::string module;
  Bytes bytes;
};

struct HeldForBackward {
  ByRole by_role;
  std::vector<ModuleBytes> by_module;  // Largest first; checkpointable layers summed each on its own.
  std::vector<LiveBuffer> largest;
};

// One tensor, or several alike, that autograd's nodes keep for backward.
struct SavedTensor {
  std::string node;    // The operator whose node keeps it, "mul".
  std::string module;  // Where it stands; layers as "*".
  std::string name;    // PyTorch's: "_saved_other". A checkpoint's own: "argument", "keyword".
  std::string tensor;  // The op-graph's name for it, if it has one.
  Bytes bytes;         // Of one, whoever holds it.
  Bytes counted;       // Of all: 0 where an earlier node holds the storage, or where it is a parameter.
  std::int64_t count = 1;
  enum class Storage : std::uint8_t { Own, Shared, Parameter } storage = Storage::Own;
};
[[nodiscard]] std::string_view name(SavedTensor::Storage storage);

// An op-graph's figures beyond its own tensors, in requested bytes. The last two are absent without a gradient.
struct AboveInputs {
  Bytes after_forward;
  Bytes forward_peak;
  std::optional<Bytes> backward_peak;
  std::optional<Bytes> after_backward;
};

struct Peak {
  Bytes requested;
  Bytes allocated;                    // Largest sum of blocks handed out.
  Bytes active;                       // Largest sum of those and of blocks whose free waits for another stream.
  std::optional<Bytes> reserved;      // Caching allocator without a limit; frees at synchronisation (high end).
  std::optional<Bytes> reserved_low;  // Immediate frees.
  // Frees complete when their events would have, by estimated times; absent where the ends are one, or no rates known.
  std::optional<Bytes> reserved_expected;
  std::optional<Bytes> process;       // reserved (by --stream-frees) + context + communicators.
  std::optional<Bytes> process_high;  // With `reserved` at its high end.
  std::string phase;                  // "init", "first_step", "steady".
  std::string event;                  // In words.
  std::size_t event_index = 0;
  ByRole by_role;
  std::vector<LiveBuffer> live;  // Largest first.
};

// Logits, their fp32 copy, log-softmax and the gradients of these: the most that is alive of them at once.
struct LossSpike {
  Bytes requested;
  std::string event;             // In words.
  std::vector<LiveBuffer> live;  // Largest first.
};

// A block that keeps a segment from being given back.
struct PinningBlock {
  std::string name;    // What its buffer is.
  std::string module;  // Path; empty where it belongs to none.
  Role role = Role::Temporaries;
  Bytes address;  // Logical: segments ascend in creation order on 2 MiB multiples.
  Bytes requested;
  Bytes size;
};

// A segment of which parts are handed out and parts are free.
struct PinnedSegment {
  Bytes address;
  Bytes size;
  Bytes free;                      // Within it; empty_cache cannot give it back.
  std::int64_t blocks = 0;         // That pin it.
  std::vector<PinningBlock> pins;  // Largest first, at most 8.
};

// What another allocator conf would reserve for the same schedule.
struct AllocatorRemedy {
  std::string conf;          // All of it: "expandable_segments:True"
  Bytes reserved;            // Its largest.
  std::optional<bool> fits;  // Under the verdict's limit; absent without a capacity.
};

// Right after the first event at which `reserved` is largest, without a limit. reserved = requested + slack + awaiting
// + inactive_split + cached, by construction.
struct Fragmentation {
  std::string event;  // In words.
  std::size_t event_index = 0;
  Bytes reserved;
  Bytes requested;                      // Of the blocks handed out.
  Bytes slack;                          // Of the same: their sizes beyond what was asked for.
  Bytes awaiting;                       // Blocks whose free waits for another stream.
  Bytes inactive_split;                 // Free parts of segments in use.
  Bytes cached;                         // Wholly free segments and pages.
  std::vector<PinnedSegment> segments;  // Those in use with most free bytes first, at most 20.
  std::int64_t segments_in_use = 0;     // Of those with free parts, how many there are.
  std::vector<AllocatorRemedy> remedies;
};

// All device buffers in one arena that was laid out beforehand.
struct PlannedArena {
  Bytes height;       // What the arena takes.
  Bytes lower_bound;  // The largest sum of what is live at once: no layout takes less.
  Bytes reserved;     // What the caching allocator reserves for the same schedule (`peak.reserved`).
  std::size_t buffers = 0;
  // In bytes from the arena's beginning; -1 for what lies on the host. For an executor, not for reports.
  Indexed<BufferId, std::int64_t> offsets;

  // Negative where the plan takes more.
  [[nodiscard]] Bytes saved() const { return reserved - height; }
};

// A setting that does nothing, or costs memory for nothing.
struct Advice {
  std::string rule;  // "bucket_larger_than_model"
  std::string key;   // "zero_optimization.reduce_bucket_size"
  Bytes costs;       // Per rank; 0 where it only does nothing.
  std::string text;  // What it does, by which comparison the bytes were found, and what to write instead.
};

// Peaks between two marks, the level at the first included.
struct Stretched {
  Bytes requested;
  Bytes allocated;
  Bytes active;
  Bytes reserved;
};

// Of every micro-batch, in order: names repeat.
struct PhaseMark {
  std::string name;  // "before forward"
  Bytes requested;
  Bytes allocated;
  Bytes active;
  Bytes reserved;
  std::size_t event = 0;
  Stretched since = {};  // The mark before.
};

// A part of a phase, all its micro-batches together: "forward" (with the making of the batch), "outputs_released" (the
// loss is kept and the outputs are dropped), "backward", "step".
struct PhasePart {
  std::string name;
  Stretched peak;
};

// What a framework's own line about memory says, were all of them printed: its peaks count since the line before.
struct PhasePrint {
  std::string name;  // "After initializing optimizer states"
  Bytes allocated;   // MA
  Bytes peak_allocated;
  Bytes reserved;  // CA
  Bytes peak_reserved;
};

// The name of the phase that is a part of the first step: the micro-batch in which ZeRO-3 records its trace.
inline constexpr const char* kRecord = "record";

// Peaks since the phase began, what was there then included.
struct Phase {
  std::string name;
  std::vector<PhaseMark> marks;
  Bytes peak_requested;
  Bytes peak_allocated;
  Bytes peak_active;
  Bytes peak_reserved;
  std::vector<PhasePrint> prints = {};
  std::vector<PhasePart> parts = {};  // Those that the phase has.
  // Over all of the phase's steps, whatever is freed meanwhile. nullopt where the phase is a part of another.
  std::optional<Bytes> requested_total = {};
  std::optional<std::int64_t> allocations = {};
  std::optional<Bytes> host_requested_total = {};  // Pinned, locked and pageable together, files apart.
};

struct TrafficRow {
  Collective collective = Collective::AllReduce;
  Group group = Group::DataParallel;
  Pass phase = Pass::Forward;  // Recompute counts as backward.
  DType dtype = DType::Float32;
  TrafficKind kind = TrafficKind::Data;
  std::int64_t calls = 0;
  Bytes payload;
  Bytes wire;
  friend bool operator==(const TrafficRow&, const TrafficRow&) = default;
};

struct Absence {
  std::string what;  // The JSON path that is null or the effect that is missing: "time", "memory.host".
  std::string why;
};

// Part of a step's traffic that the ZeRO paper counts, or that departs from its count; signed.
struct TrafficTerm {
  std::string what;
  Bytes wire;
  std::string why;
};

// From best to worst. Tight: it fits by the figures, with less to spare than they may be off.
enum class Verdict : std::uint8_t { Fits, Tight, FitsWithRetries, DoesNotFit, Unknown };
[[nodiscard]] std::string_view name(Verdict verdict);
[[nodiscard]] constexpr bool fits(Verdict verdict) { return verdict < Verdict::DoesNotFit; }

// A change with which a job fits.
struct FittingChange {
  std::string options;  // What to say instead: "--checkpoint full", "--zero-stage 3 --micro-batch 1".
  Verdict verdict = Verdict::Fits;
  Bytes process;                // The worst rank's peak; of one that retries what it needs.
  bool at_best_clean = false;   // Without retries where frees end at once.
  std::optional<double> speed;  // Tokens per second and GPU, over those of the job as it is.
  std::string note;             // What else it takes or means; empty: nothing.
};

// By how much a figure that the verdict rests on may be too low, and how that is known.
struct Doubt {
  std::string what;  // "reserved memory"
  Bytes bytes;
  std::string why;
};

// Of tensors and byte arrays: what the processes themselves take is not known.
struct HostMemory {
  std::optional<Bytes> pinned;            // Taken by the pool: powers of two, never given back.
  std::optional<Bytes> pinned_requested;  // The most that was handed out of it.
  std::optional<Bytes> pageable;          // At its largest.
  std::optional<Bytes> peak;              // Pool and pageable together, of this rank.
  std::optional<Bytes> per_node;          // The same, summed over the ranks of this rank's node.
  std::optional<Bytes> nvme;              // Files of this rank at their largest.
  std::optional<Bytes> nvme_per_node;     // The same, summed as `per_node`.
  std::optional<Bytes> nvme_read;         // From files, in one optimizer step in steady state.
  std::optional<Bytes> nvme_written;      // To files, likewise.
  std::optional<Bytes> capacity;          // Of one node.
  Verdict verdict = Verdict::Unknown;     // Fits, DoesNotFit or Unknown.
  std::string verdict_reason;
  std::optional<Bytes> nvme_capacity;       // Of one node.
  Verdict nvme_verdict = Verdict::Unknown;  // Of nvme_per_node: Fits, DoesNotFit or Unknown.
  std::string nvme_verdict_reason;
};

// The steady step again and again, until what the allocator holds at a step's end, block by block, is what it held at
// the end of an earlier one: from there on everything repeats. Under the verdict's limit.
struct LongRun {
  std::int64_t steps = 0;           // Simulated in all, the first two among them.
  bool repeats = false;             // Else that many were not enough.
  std::int64_t period = 0;          // Steps after which everything repeats.
  Bytes reserved;                   // The largest of all steps and of initialisation.
  std::int64_t retries = 0;         // Of all steps.
  std::int64_t retries_period = 0;  // Of one period.
  std::int64_t first_retry = 0;     // In which step behind the second; 0: in none.
  std::int64_t failed_step = 0;     // In which memory ran out; 0: it did not.
  Verdict verdict = Verdict::Unknown;
};

struct Prediction {
  std::string fingerprint;  // "sha256:..."
  std::string model;        // Name and family, for the report's head.
  std::int64_t rank = 0;
  std::int64_t world = 1;
  Elements parameters_total;  // Unsharded, ties once.
  Elements parameters_trainable;
  States states;
  Persistent persistent;
  std::optional<HeldForBackward> held_for_backward;
  std::optional<std::vector<SavedTensor>> saved;  // Of each node, in order of the forward; if asked for.
  std::optional<AboveInputs> above_inputs;        // Op-graphs only.
  std::optional<Peak> peak;
  std::optional<LossSpike> loss_spike;
  std::optional<Fragmentation> fragmentation;  // Absent unless Job::explain_fragmentation.
  std::optional<PlannedArena> arena;           // Absent unless Job::placement is Planned.
  std::vector<Advice> advice;                  // Inert keys last.
  std::vector<Phase> phases;
  HostMemory host;
  // Absent where no schedule could be made and no formula covers it.
  std::optional<std::vector<TrafficRow>> communication;
  std::vector<TrafficTerm> traffic_terms;  // Sum to the data rows of the dp groups; empty where one rank is alone.
  std::optional<StepTime> time;            // Absent where rates are missing; `not_modelled` says which.
  std::vector<FrameworkCount> fetches;     // As DeepSpeed's parameter coordinator counts them; empty without ZeRO-3.
  std::optional<Bytes> capacity;
  std::optional<Bytes> context;
  std::optional<Bytes> communicators;  // NCCL's own memory, by formula.
  Bytes reserve;
  Verdict verdict = Verdict::Unknown;
  std::string verdict_reason;  // One sentence; what is missing and where, for DoesNotFit the missing bytes.
  std::int64_t retries = 0;    // Allocator retries under the limit, by --stream-frees.
  // The same where frees that wait for another stream end at once.
  std::int64_t retries_low = 0;
  std::optional<std::int64_t> retries_expected;  // At estimated times, as Peak::reserved_expected.
  // Over all phases, saving included: the largest sum of blocks handed out, context and communicators. Without a
  // schedule what the states take at least.
  std::optional<Bytes> needed;
  // What `needed` exceeds the device by, less `reserve`; where it does not and fragmentation alone ends the job, what
  // the failing request misses. 0 where it fits; absent without a capacity.
  std::optional<Bytes> shortfall;
  std::string failure;                 // Where it first fails, in words; empty where it does not.
  std::vector<Doubt> doubts;           // Largest first. Together: by how much the process may take more.
  std::vector<FittingChange> changes;  // The fastest first; empty unless they were asked for.
  // Frees that wait for another stream end at once. Absent where the second step is not the one that repeats.
  std::optional<LongRun> long_run = {};
  // They end when their events would have, at estimated times. Absent besides where none waits, no rates are known, or
  // nobody asks.
  std::optional<LongRun> long_run_expected = {};
  std::size_t events = 0;
  std::size_t buffers = 0;
  std::vector<Absence> not_modelled;

  [[nodiscard]] Bytes doubt() const {
    Bytes sum;
    for (const Doubt& one : doubts) sum += one.bytes;
    return sum;
  }
};

}  // namespace dsplan
