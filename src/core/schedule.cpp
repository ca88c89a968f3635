#include "core/schedule.h"

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

}  // namespace dsplan
