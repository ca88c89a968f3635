#include <algorithm>

#include "core/format.h"
#include "core/prediction.h"
#include "core/schedule.h"

namespace dsplan {
namespace {

// What surrounds an event: found by walking the markers up to it.
struct Surroundings {
  Mark mark;
  ModuleId module = kNone;  // Innermost module of the outer pass.
  ModuleId recomputed = kNone;
  bool in_backward = false;
  bool in_step = false;
};

Surroundings look(const Schedule& schedule, std::size_t event) {
  Surroundings s;
  std::vector<ModuleId> stack;
  std::vector<ModuleId> recompute;
  if (schedule.events.empty()) return s;
  const std::size_t last = std::min(event, schedule.events.size() - 1);
  std::size_t first = last;  // No module is open at a mark: nothing before the latest one matters.
  while (first > 0 && !std::holds_alternative<Mark>(schedule.events[first])) --first;
  for (std::size_t at = first; at <= last; ++at) {
    if (const auto* mark = std::get_if<Mark>(&schedule.events[at])) {
      s.mark = *mark;
      stack.clear();
      recompute.clear();
    } else if (const auto* enter = std::get_if<Enter>(&schedule.events[at])) {
      (enter->pass == Pass::Recompute ? recompute : stack).push_back(enter->module);
    } else if (const auto* exit = std::get_if<Exit>(&schedule.events[at])) {
      std::vector<ModuleId>& open = exit->pass == Pass::Recompute ? recompute : stack;
      if (!open.empty()) open.pop_back();
    }
  }
  s.module = stack.empty() ? kNone : stack.back();
  s.recomputed = recompute.empty() ? kNone : recompute.back();
  s.in_backward = s.mark.moment == Moment::BackwardBegins;
  s.in_step = s.mark.moment == Moment::StepBegins;
  return s;
}

std::string place_of(const ModelSpec& model, ModuleId module) {
  if (module == kNone) return {};
  const Module& m = model.modules[static_cast<std::size_t>(module)];
  const std::string path = m.path.empty() ? "the model itself" : m.path;
  return m.layer == kNone ? path : formatted("layer {} ({})", m.layer, path);
}

Label label_of(const Schedule& schedule, std::size_t event) {
  if (const auto* made = std::get_if<Allocate>(&schedule.events[event])) return schedule.buffers[made->buffer].label;
  if (const auto* work = std::get_if<Compute>(&schedule.events[event])) return work->work;
  return "";
}

std::string_view stretch_in_words(Stretch stretch) {
  switch (stretch) {
    case Stretch::Init: return "initialisation";
    case Stretch::FirstStep: return "first step";
    case Stretch::MiddleStep: return "a later step";
    case Stretch::SecondStep: return "second step";
    case Stretch::Save: return "saving";
  }
  return "?";
}

}  // namespace

std::string describe_moment(const Schedule& schedule, const ModelSpec& model, std::size_t event) {
  const Surroundings s = look(schedule, event);
  std::string text;
  if (s.mark.stretch == Stretch::Init) {
    text = "initialisation";
  } else if (s.mark.stretch == Stretch::Save) {
    text = "saving the model";
  } else if (s.in_step) {
    text = formatted("optimizer of the {}", stretch_in_words(s.mark.stretch));
  } else {
    const char* pass = s.in_backward ? "backward" : "forward";
    const std::string where = place_of(model, s.module);
    text = where.empty() ? formatted("{} of the {}", pass, stretch_in_words(s.mark.stretch))
                         : formatted("{} of {}, {}", pass, where, stretch_in_words(s.mark.stretch));
    if (s.recomputed != kNone) text += formatted(", recomputing {}", place_of(model, s.recomputed));
    if (s.mark.micro_batch > 0) text += formatted(", micro-batch {}", s.mark.micro_batch + 1);
  }
  const std::string_view label = label_of(schedule, event);
  if (!label.empty()) text += formatted(": {}", label);
  return text;
}

std::string_view name(SavedTensor::Storage storage) {
  switch (storage) {
    case SavedTensor::Storage::Own: return "own";
    case SavedTensor::Storage::Shared: return "shared";
    case SavedTensor::Storage::Parameter: return "parameter";
  }
  return "?";
}

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::Fits: return "fits";
    case Verdict::FitsWithRetries: return "fits_with_retries";
    case Verdict::DoesNotFit: return "does_not_fit";
    case Verdict::Unknown: return "unknown";
  }
  return "?";
}

}  // namespace dsplan
