#include "core/schedule.h"

#include <algorithm>

#include "core/format.h"
#include "core/prediction.h"

namespace dsplan {

std::string_view name(Role role) {
  switch (role) {
    case Role::Parameters: return "parameters";
    case Role::Gradients: return "gradients";
    case Role::Optimizer: return "optimizer";
    case Role::RuntimeBuffers: return "runtime_buffers";
    case Role::Activations: return "activations";
    case Role::Temporaries: return "temporaries";
    case Role::Inputs: return "inputs";
    case Role::ModuleBuffers: return "module_buffers";
    case Role::Workspace: return "workspace";
  }
  return "?";
}

std::string_view name(Stretch stretch) {
  switch (stretch) {
    case Stretch::Init: return "init";
    case Stretch::FirstStep: return "first_step";
    case Stretch::MiddleStep: return "middle_steps";
    case Stretch::SecondStep: return "steady";
    case Stretch::Save: return "save";
  }
  return "?";
}

std::string_view name(Pass pass) {
  switch (pass) {
    case Pass::Setup: return "init";
    case Pass::Forward: return "forward";
    case Pass::Recompute: return "recompute";
    case Pass::Backward: return "backward";
    case Pass::Step: return "step";
    case Pass::Save: return "save";
  }
  return "?";
}

std::string_view name(Reason reason) {
  switch (reason) {
    case Reason::LastUse: return "last_use";
    case Reason::PythonFrame: return "python_frame";
    case Reason::AutogradGraph: return "autograd_graph";
    case Reason::CheckpointFrame: return "checkpoint_frame";
    case Reason::GradientHeld: return "gradient_held";
    case Reason::ModuleExit: return "module_exit";
    case Reason::RuntimeBucket: return "runtime_bucket";
    case Reason::CoalescedBatch: return "coalesced_batch";
    case Reason::Loop: return "loop";
  }
  return "?";
}

std::string_view name(Collective collective) {
  switch (collective) {
    case Collective::AllReduce: return "all_reduce";
    case Collective::ReduceScatter: return "reduce_scatter";
    case Collective::AllGather: return "all_gather";
    case Collective::Broadcast: return "broadcast";
    case Collective::Reduce: return "reduce";
    case Collective::AllToAll: return "all_to_all";
    case Collective::SendRecv: return "send_recv";
  }
  return "?";
}

std::string_view name(Group group) {
  switch (group) {
    case Group::DataParallel: return "dp";
    case Group::TensorParallel: return "tp";
    case Group::SequenceParallel: return "sp";
    case Group::ExpertParallel: return "ep";
    case Group::DataParallelInside: return "dp_intra";
    case Group::DataParallelBetween: return "dp_inter";
    case Group::Replicas: return "dp_replicas";
  }
  return "?";
}

std::string_view name(Moment moment) {
  switch (moment) {
    case Moment::StretchBegins: return "begin";
    case Moment::MicroBatchBegins: return "before batch";
    case Moment::ForwardBegins: return "before forward";
    case Moment::ForwardEnds: return "after forward";
    case Moment::BackwardBegins: return "before backward";
    case Moment::BackwardEnds: return "after backward";
    case Moment::StepBegins: return "before step";
    case Moment::StepEnds: return "after step";
    case Moment::StretchEnds: return "end";
  }
  return "?";
}

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
  const Module& m = model.module_at(module);
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
    case Verdict::Tight: return "tight";
    case Verdict::FitsWithRetries: return "fits_with_retries";
    case Verdict::DoesNotFit: return "does_not_fit";
    case Verdict::Unknown: return "unknown";
  }
  return "?";
}

}  // namespace dsplan
