// A chain of stages, as the question "which activations to keep and which to compute again" sees a network, and the
// answer to that question. Stages count from 1; the output of stage 0 is the chain's input (interface.md, "Chain").
//
// Times are integers too: ticks of 10^-digits of the file's own unit, so that sums and comparisons are exact and two
// plans of equal time are equal. The reader chooses `digits` so that every time of the file is a whole number of ticks;
// where that many would not fit (kMostTicks), it rounds to the nearest tick and says so in `times_rounded`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"

namespace dsplan {

using Ticks = Count<struct TicksTag>;

// All times of a chain, each as often as any schedule of ours may take it, stay below this: doubles hold them exactly.
inline constexpr std::int64_t kMostTicks = std::int64_t{1} << 53;
// All bytes of a chain together; sums of them may then be compared and added without a thought of overflow.
inline constexpr std::int64_t kMostChainBytes = std::int64_t{1} << 58;
inline constexpr std::size_t kMostStages = 10'000;

// What a stage may keep instead of everything: `saved` bytes from its forward to its backward, which computes the rest
// again in `time`. The temporaries are beyond `saved` and take the place of the stage's own.
struct ChainOption {
  std::string name;
  Bytes saved;  // Contains the output.
  Ticks time;
  Bytes forward_temporary;
  Bytes backward_temporary;
};

struct ChainStage {
  Bytes output;    // a: what the next stage reads.
  Bytes saved;     // a-bar: all that the stage's own backward reads, its output included.
  Bytes gradient;  // delta: the gradient of the output.
  Ticks forward_time;
  Ticks backward_time;
  Bytes forward_temporary;
  Bytes backward_temporary;
  // ZeRO-3: the stage's full weights, which each of its operations needs, and the time of gathering them once. Both are
  // beyond the temporaries and the times above.
  Bytes gathered;
  Ticks gather_time;
  // Of the forward, where a recomputation ends with this stage: what it leaves out because nothing behind the last
  // saved tensor is needed (early stop of torch.utils.checkpoint). At most `forward_time`.
  Ticks spared_time;
  std::vector<ChainOption> options;
};

struct Chain {
  std::string name;
  std::string source;
  Bytes input;           // Alive throughout; counts in every budget and peak.
  Bytes input_gradient;  // What the backward of stage 1 makes.
  std::vector<ChainStage> stages;
  int digits = 0;
  bool times_rounded = false;

  [[nodiscard]] bool gathers() const;  // Any stage has weights to gather.
  [[nodiscard]] bool spares() const;   // Any stage leaves out a part of its recomputation.
  // Every forward and every backward once, weights gathered once for each.
  [[nodiscard]] Ticks time_without_recompute() const;
  // In the file's unit: exact, as ticks stay below 2^53.
  [[nodiscard]] double time(Ticks ticks) const;
};

// What a schedule does, in the words of checkpointing literature. A forward reads the output of the stage before.
enum class ChainStep : std::uint8_t {
  ForwardNone,       // Keeps its output only, and lets go of its input.
  ForwardKeepInput,  // Keeps input and output.
  ForwardSave,       // Keeps input and all that its backward reads.
  Backward,          // Needs the gradient of its output; lets go of it, of what was saved, and of the stage's input.
  Gather,            // ZeRO-3: makes the stage's weights whole.
  Release,           // Lets go of them.
};
[[nodiscard]] std::string_view name(ChainStep step);

inline constexpr std::int32_t kNoOption = -1;

struct ChainOperation {
  ChainStep step = ChainStep::Backward;
  std::int32_t stage = 0;
  std::int32_t option = kNoOption;  // ForwardSave only: an index into the stage's options.
  friend bool operator==(const ChainOperation&, const ChainOperation&) = default;
};

// A schedule without nesting, as frameworks run it: every stage is stored, or computed again with its whole segment.
struct ChainSegment {
  enum class Mode : std::uint8_t {
    Store,
    Recompute,
    RecomputeHeld,  // Weights gathered for the recomputation stay until the backward (ZeRO-3).
  };
  std::int32_t first = 0;
  std::int32_t last = 0;
  Mode mode = Mode::Store;
  std::int32_t option = kNoOption;  // Store of a single stage only.
  friend bool operator==(const ChainSegment&, const ChainSegment&) = default;
};
[[nodiscard]] std::string_view name(ChainSegment::Mode mode);

// The answer of one method at one budget. Absent: there is no plan, or the bound proves that no schedule exists at all.
struct ChainPlan {
  std::string method;  // With the parameter that was chosen: "megatron-block:12".
  Bytes budget;        // Of everything that the chain holds, its input included.
  bool feasible = false;
  // Whether `time` is the least of all plans that the method may choose from. False: sizes were rounded up to slots,
  // and the least lies between `method_bound` and `time`.
  bool optimal = true;
  std::optional<Ticks> time;
  std::optional<Ticks> method_bound;  // Set where `optimal` is false.
  Ticks time_without_recompute;
  std::optional<Ticks> lower_bound;  // No schedule whatever is faster within the budget; absent: none exists.
  std::optional<Bytes> peak;
  Bytes minimum;                       // The smallest budget at which the method has a plan.
  Bytes memory_bound;                  // No schedule whatever takes less: the backward of `culprit`.
  std::int32_t culprit = 0;            // A stage.
  std::vector<ChainSegment> segments;  // Empty for nested schedules.
  std::vector<ChainOperation> operations;
  std::vector<std::string> fitting;  // Without a plan: other methods that have one.
};

}  // namespace dsplan
