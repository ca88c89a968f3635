// Every setting of a run in one table, a row each: its names (a key of the DeepSpeed JSON, a key of the training file,
// an option), its type, when it applies, since which version, which field of the job it decides, and where a
// fingerprint says it, or why no byte depends on it. Made from these rows: the readers of the DeepSpeed JSON and of the
// training file, the options and their help, the DeepSpeed JSON that is written, the fingerprint, docs/scope.md.
// tests/settings_test.cpp holds the table against the structs: a field without a row fails there.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/inputs.h"
#include "core/job.h"

namespace dsplan {

// How a row reaches its field in a struct, whatever the field's type is.
template <class Owner, class... Types>
struct FieldAccess {
  using Struct = Owner;
  using Read = std::variant<const Types*...>;
  using Write = std::variant<Types*...>;
  Read (*read)(const Owner&) = nullptr;
  Write (*write)(Owner&) = nullptr;

  explicit operator bool() const { return read != nullptr; }
  [[nodiscard]] Read of(const Owner& owner) const { return read(owner); }
  [[nodiscard]] Write of(Owner& owner) const { return write(owner); }
};

using DeepSpeedAccess = FieldAccess<DeepSpeedInput, Setting<bool>, Setting<std::int64_t>, Setting<double>,
                                    Setting<std::string>, Setting<DType>, Setting<OffloadDevice>,
                                    Setting<std::vector<std::string>>, Setting<std::vector<double>>>;
using RequestAccess =
    FieldAccess<Request, Setting<bool>, Setting<std::int64_t>, Setting<double>, Setting<std::string>, Setting<Bytes>,
                Setting<std::vector<std::string>>, Setting<std::vector<CheckpointEntry>>,
                Setting<std::vector<TokenCounts>>, Setting<Calibration>>;
using JobAccess =
    FieldAccess<Job, bool, int, std::int64_t, double, Elements, std::string, std::vector<std::string>,
                std::vector<std::int64_t>, Version, DType, std::optional<DType>, Runtime, OptimizerKind, Implementation,
                OffloadDevice, CheckpointKind, ActivationOffloading, ModelInit, Attention, Loss, LoopKind, ParamGroups,
                Level, StreamFrees, PlacementKind, LigerKernels, AdapterKernels, ModelCode, ExpertsImplementation,
                Routing, std::vector<CheckpointGroup>, AllocatorConfig, Bytes, std::optional<Bytes>,
                std::optional<Hardware>, std::optional<Cluster>, std::optional<Calibration>, std::vector<ResolvedInput>,
                std::vector<Notice>>;

// A line of a fingerprint's canonical text; planner/predict/fingerprint.cpp says its words and when it is there.
enum class Line : std::uint8_t {
  None,
  Runtime,
  Dtypes,
  Lengths,
  TargetSeq,
  Autocast,
  Optimizer,
  Batch,
  Clipping,
  Immediate,
  Checkpoint,
  Attention,
  Loss,
  Loop,
  UseCache,
  LabelsAreIds,
  CastModel,
  LossChunks,
  Level,
  Freeze,
  Versions,
  Zero,
  OffloadParam,
  OffloadOptimizer,
  OffloadRatio,
  Aio,
  Fetch,
  WeightDecay,
  Embeddings32bit,
  ParamGroups,
  ModelInit,
  ZeroGrad,
  GradScaler,
  Ranks,
  Allocator,
  Frees,
  Placement,
  Workspaces,
  Fsdp,
  PagedStates,
  FsdpOutputs,
  Ddp,
  Liger,
  DdpReduction,
  FsdpOffload,
  Images,
  ImageSize,
  FsdpPrefetch,
  FsdpIgnored,
  LigerKernels,
  FsdpStateDict,
  FsdpTail,
  FsdpLast,
  DdpOptimizer,
  AdapterKernels,
  FsdpFlat,
  Experts,
  Routing,
  ModelCode,
  Torchtitan,
  InputRequireGrads,
  LayersRequireGrads,
  WindowsInKernel,
  ActivationOffloading,
  Count,  // Of the lines above; none itself.
};

// A field of the job. Either a line says it, or `inert` says why no byte depends on it.
struct JobColumn {
  JobAccess field = {};  // Empty: the row decides no field of the job by itself.
  Line line = Line::None;
  int at = 0;  // Its place among the fields of the line: rows may move, a fingerprint does not.
  std::string_view inert = {};
};

// What a Request takes, from whichever source.
struct RequestColumn {
  RequestAccess field = {};
  const char* option = nullptr;  // "--seq"; null: no option of one value says it.
  const char* type = "";         // "N", as --help shows it.
  const char* help = "";
  std::string_view key = {};      // Of the training file: "seq", "optimizer.momentum"; empty: it has none.
  std::string_view choices = {};  // Of a text there: "bf16|fp16|fp32"; empty: any.
  std::int64_t least = 1;         // Of an integer there.
  // Says what to print, or names a file that a receipt holds itself: without meaning for whoever predicts the same.
  bool stays_behind = false;
};

// A key of the DeepSpeed JSON.
struct DeepSpeedKey {
  enum class Treatment : std::uint8_t {
    Honoured,     // Decides a field of Training.
    NotModelled,  // Refused by name as soon as its value would matter.
    Inert,        // Read, type-checked where DeepSpeed checks it, and reported with the reason.
    Block,        // An object whose keys have rows of their own.
  };
  std::string_view path = {};  // "zero_optimization.stage"; empty: the JSON has no such key.
  Treatment treatment = Treatment::Inert;
  When when = When::Always;     // Where the key can have an effect at all.
  std::string_view note = {};   // NotModelled: the feature's name. Inert: the reason. Else empty.
  DeepSpeedAccess field = {};   // Honoured: what it is read into.
  std::int64_t least = 0;       // Of an integer.
  Version since = {0, 0, 0};    // The first version that has it, as far as that was read.
  Version removed = {0, 0, 0};  // The first version that refuses it; 0: none does.
  bool on = false;              // NotModelled: a switch that is on where nobody writes it.
  // write_deepspeed writes it wherever it has a meaning, defaults included: `when`, and `written_when` besides.
  bool written = false;
  When written_when = When::Always;
  bool strict = false;  // Block: DeepSpeed refuses unknown keys in it (pydantic's extra="forbid",
                        // deepspeed/runtime/config_utils.py). The others are read with dict.get.
};

// deepspeed/runtime/config.py: the first version that refuses keys of removed features, knows compute_grad_norm and
// wants a reduce bucket of more than nothing. 0.19.6 is without these rules, 0.19.8 has them, 0.19.7 was not read.
inline constexpr Version kRulesOfKeys{0, 19, 7};

struct SettingRow {
  RequestColumn request = {};
  DeepSpeedKey json = {};
  JobColumn job = {};
};

// All rows; those with options in the order of --help.
[[nodiscard]] std::span<const SettingRow> settings();
// The row of a key of the DeepSpeed JSON, or null.
[[nodiscard]] const SettingRow* find_deepspeed_key(std::string_view path);

// zero_optimization where the JSON is silent. Some defaults moved with DeepSpeed's versions
// (deepspeed/runtime/zero/{config,offload_config}.py of the released ones).
[[nodiscard]] Zero usual_zero(const Version& deepspeed, int stage);

// Calls visit(a.field, b.field) for every Setting of two Requests.
template <class A, class B, class Visit>
void visit_settings(A& a, B& b, Visit&& visit) {
  for (const SettingRow& row : settings()) {
    if (!row.request.field) continue;
    const auto theirs = row.request.field.of(b);
    std::visit(
        [&](auto* mine) {
          using Type = std::remove_const_t<std::remove_pointer_t<decltype(mine)>>;
          using Other = std::conditional_t<std::is_const_v<B>, const Type*, Type*>;
          visit(*mine, *std::get<Other>(theirs));
        },
        row.request.field.of(a));
  }
}

namespace detail {

template <auto First, auto... Rest, class Owner>
constexpr auto& reach(Owner& owner) {
  if constexpr (sizeof...(Rest) == 0) {
    return owner.*First;
  } else {
    return reach<Rest...>(owner.*First);
  }
}

// The keys of the DeepSpeed JSON that no other source names (settings_deepspeed.cpp).
[[nodiscard]] const std::vector<SettingRow>& deepspeed_rows();

}  // namespace detail

// How to reach the field at the end of a path of members: kField<JobAccess, &Job::training, &Training::seq>.
template <class To, auto... Path>
inline constexpr To kField{
    [](const typename To::Struct& owner) -> typename To::Read { return &detail::reach<Path...>(owner); },
    [](typename To::Struct& owner) -> typename To::Write { return &detail::reach<Path...>(owner); }};
template <auto... Path>
inline constexpr JobAccess kJobField = kField<JobAccess, Path...>;
template <auto... Path>
inline constexpr JobAccess kTrained = kField<JobAccess, &Job::training, Path...>;
template <auto... Path>
inline constexpr JobAccess kZeroField = kField<JobAccess, &Job::training, &Training::zero, Path...>;
template <auto... Path>
inline constexpr DeepSpeedAccess kSaid = kField<DeepSpeedAccess, Path...>;

}  // namespace dsplan
