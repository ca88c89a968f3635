// To what peaks can be restricted: a stretch of a run, a part of its steps, or the micro-batch that records.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/schedule.h"

namespace dsplan {

// Parts of a step, each of all its micro-batches together: forward with the making of the batch; "outputs
// released", in which the loss is kept and the outputs are dropped; backward; the optimizer's step.
enum class StepPart : std::uint8_t { Forward, OutputsReleased, Backward, Step };
[[nodiscard]] std::string_view name(StepPart part);  // "forward", "outputs_released", "backward", "step"

// What goes on from a mark to the next one; nullopt: no part of a step.
[[nodiscard]] std::optional<StepPart> part_after(Moment moment);

struct Window {
  Stretch stretch = Stretch::SecondStep;
  std::optional<StepPart> part = {};  // nullopt: all of the stretch.
  bool recording = false;             // Only the first micro-batch, to the end of its backward.
};

// By the name of a stretch ("init", "steady"), of a part (of the steady step) or "record", the first micro-batch of
// all, in which a framework may record what it will need; nullopt for others.
[[nodiscard]] std::optional<Window> window_named(std::string_view phase);

// Follows the marks of a schedule.
class WindowWalk {
 public:
  explicit WindowWalk(const Window& window) : window_(window) {}
  // Whether what comes behind this mark, up to the next, lies in the window.
  [[nodiscard]] bool inside_after(const Mark& mark);

 private:
  Window window_;
  bool open_ = false;
};

}  // namespace dsplan
