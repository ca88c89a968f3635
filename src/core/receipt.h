// What a run measured, in the words of a prediction, with everything that is needed to predict it again
// (docs/receipts.md). Bytes are integers; an absent optional was not measured, and `absent` says why.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/calibration.h"
#include "core/document.h"
#include "core/prediction.h"
#include "core/units.h"

namespace dsplan {

// The five ways to count one rank's device memory, as PyTorch and the driver define them.
enum class Counter : std::uint8_t { Requested, Allocated, Active, Reserved, Process };
inline constexpr std::size_t kCounters = 5;
[[nodiscard]] std::string_view name(Counter counter);  // "requested", ...

struct Counters {
  std::array<std::optional<Bytes>, kCounters> bytes{};

  [[nodiscard]] std::optional<Bytes>& operator[](Counter c) { return bytes[static_cast<std::size_t>(c)]; }
  [[nodiscard]] const std::optional<Bytes>& operator[](Counter c) const { return bytes[static_cast<std::size_t>(c)]; }
  friend bool operator==(const Counters&, const Counters&) = default;
};

struct FigureMark {
  std::string name;  // "before forward"; repeats with each micro-batch.
  Counters at;
  friend bool operator==(const FigureMark&, const FigureMark&) = default;
};

struct FigurePhase {
  std::string name;  // "init", "first_step", "steady"
  std::vector<FigureMark> marks;
  Counters peak;  // Without Process, which has no peak of its own.
  // What was asked for in all, whatever was freed meanwhile, and how often: every single size is in the sum.
  std::optional<Bytes> requested_total;
  std::optional<std::int64_t> allocations;
  std::optional<Bytes> host_requested_total;  // Likewise, of the host's memory.
  friend bool operator==(const FigurePhase&, const FigurePhase&) = default;
};

// One kind of collective of one rank: per optimizer step, all micro-batches summed, steady state.
struct TrafficFigure {
  std::string collective;  // "all_gather"
  std::string group;       // "dp"
  std::string phase;       // "forward"
  std::string dtype;       // "bf16"
  std::string kind;        // "data" or "control"
  std::optional<std::int64_t> calls;
  std::optional<Bytes> payload;
  std::optional<Bytes> wire;
  friend bool operator==(const TrafficFigure&, const TrafficFigure&) = default;
};

// What one rank holds and sends, from either side: measured, or predicted.
struct RankFigures {
  std::int64_t rank = 0;
  std::optional<Elements> parameters_total;
  std::optional<Elements> parameters_trainable;
  Counters persistent;  // Requested and Allocated: after the second step.
  Counters peak;
  std::string peak_phase;  // Empty: unknown.
  std::vector<FigurePhase> phases;
  HostMemory host;
  std::optional<std::vector<TrafficFigure>> communication;
  std::string snapshot;         // A file beside the receipt; empty: none.
  std::vector<Absence> absent;  // Paths as in a prediction ("memory.host"), or "memory.reserved" for one counter.
};

struct ReceiptEnvironment {
  std::optional<std::string> gpu;
  std::optional<Bytes> capacity;
  std::optional<std::string> driver;
  std::optional<std::string> cuda;
  std::optional<std::string> python;
  std::optional<std::string> torch;
  std::optional<std::string> transformers;
  std::optional<std::string> deepspeed;
  std::optional<std::string> peft;
  std::string allocator_conf;
  std::optional<Bytes> limit;  // What the allocator may reserve.
  std::string recorded;        // ISO 8601.
};

// Each part is a document of the receipt's own text, so that a fault in it points into the receipt.
struct ReceiptInputs {
  std::optional<Document> model;  // Absent only before it was read.
  std::optional<Document> deepspeed;
  std::optional<Document> training;
  std::optional<Document> training_arguments;
  std::vector<std::string> options;
  std::optional<std::string> fingerprint;
  std::string digest;  // SHA-256 over canonical_json of all but the fingerprint.
};

struct ReceiptSample {
  std::string phase;
  std::int64_t rank = 0;
  std::optional<std::int64_t> step_ns;
};

struct Receipt {
  // What carried the ranks: threads or processes on hosts, virtual ranks of one GPU, NCCL; or a framework's own run.
  enum class Level : std::uint8_t { Threads, Virtual, Nccl, Framework, Tcp };
  // Host: dsplan's own executor on the host's memory, with an allocator of its own. Cpu and Fake: a framework's
  // tensors, counted by its dispatcher.
  enum class Device : std::uint8_t { Cuda, Cpu, Fake, Host };
  enum class Ranks : std::uint8_t { Process, FakeProcessGroup };
  enum class Outcome : std::uint8_t { Ran, OutOfMemory, Error };

  std::string path;  // As the user named it.
  std::string source;
  std::string name;
  Level level = Level::Framework;
  Device device = Device::Cuda;
  Ranks ranks_are = Ranks::Process;
  bool complete = false;
  Outcome outcome = Outcome::Ran;
  std::optional<std::string> message;
  ReceiptEnvironment environment;
  ReceiptInputs inputs;
  std::int64_t world = 1;
  std::vector<RankFigures> ranks;
  std::vector<ReceiptSample> samples;
  std::optional<ProcessBytes> process;  // Of dsplan's own executor.
  // Of its ranks as processes: connections that were not of the run, and were dropped.
  std::optional<std::int64_t> strangers;

  // Only requested bytes were measured, and none of what kernels take inside.
  [[nodiscard]] bool by_dispatcher() const { return device == Device::Cpu || device == Device::Fake; }
};
[[nodiscard]] std::string_view name(Receipt::Level level);
[[nodiscard]] std::string_view name(Receipt::Device device);
[[nodiscard]] std::string_view name(Receipt::Ranks ranks);
[[nodiscard]] std::string_view name(Receipt::Outcome outcome);

// Three quarters of all configurations may be used to find causes; the others are held out for the final table. The
// split is by the inputs alone: the first byte of their digest, modulo 4, is 0 for the held-out part.
enum class HeldFor : std::uint8_t { Causes, Final };
[[nodiscard]] HeldFor part_of(const ReceiptInputs& inputs);
[[nodiscard]] std::string_view name(HeldFor part);  // "causes", "final"

// The entry of `absent` that covers a path of a rank ("memory.peak.reserved"): the path itself, one above it, or its
// counter wherever it stands ("memory.reserved"). nullptr: none.
[[nodiscard]] const Absence* absence_of(const std::vector<Absence>& absent, std::string_view path);

// JSON without blanks, the keys of each object in ascending order of their bytes, numbers in their shortest decimal
// form (an integral one without point or exponent below 10^16), strings with only the escapes that JSON requires.
[[nodiscard]] std::string canonical_json(const Value& value);

}  // namespace dsplan
