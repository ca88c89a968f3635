#include "sim/window.h"

#include "core/prediction.h"

namespace dsplan {

std::string_view name(StepPart part) {
  switch (part) {
    case StepPart::Forward: return "forward";
    case StepPart::OutputsReleased: return "outputs_released";
    case StepPart::Backward: return "backward";
    case StepPart::Step: return "step";
  }
  return "?";
}

std::optional<StepPart> part_after(Moment moment) {
  switch (moment) {
    case Moment::MicroBatchBegins:
    case Moment::ForwardBegins: return StepPart::Forward;
    case Moment::ForwardEnds: return StepPart::OutputsReleased;
    case Moment::BackwardBegins: return StepPart::Backward;
    case Moment::StepBegins: return StepPart::Step;
    case Moment::StretchBegins:
    case Moment::BackwardEnds:
    case Moment::StepEnds:
    case Moment::StretchEnds: break;
  }
  return std::nullopt;
}

std::optional<Window> window_named(std::string_view phase) {
  for (const Stretch stretch :
       {Stretch::Init, Stretch::FirstStep, Stretch::MiddleStep, Stretch::SecondStep, Stretch::Save}) {
    if (phase == name(stretch)) return Window{stretch};
  }
  for (const StepPart part : {StepPart::Forward, StepPart::OutputsReleased, StepPart::Backward, StepPart::Step}) {
    if (phase == name(part)) return Window{Stretch::SecondStep, part};
  }
  if (phase == kRecord) return Window{Stretch::FirstStep, std::nullopt, true};
  return std::nullopt;
}

bool WindowWalk::inside_after(const Mark& mark) {
  if (mark.moment == Moment::StretchBegins) open_ = mark.stretch == window_.stretch;
  if (mark.moment == Moment::StretchEnds) open_ = false;
  if (mark.moment == Moment::BackwardEnds && window_.recording) open_ = false;
  return open_ && (!window_.part || part_after(mark.moment) == window_.part);
}

}  // namespace dsplan
