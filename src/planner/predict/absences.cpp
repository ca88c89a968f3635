// What a prediction leaves out or leaves null, each with its reason.
#include <utility>

#include "core/format.h"
#include "planner/predict/library_memory.h"
#include "planner/predict/sections.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {
namespace {

void list_tensor_parallel(const ModelSpec& model, const Job& job, std::vector<Absence>& not_modelled) {
  const Training& t = job.training;
  if (job.parallelism.tp == 1) return;
  if (model.dims.kv_heads % job.parallelism.tp != 0) {
    not_modelled.push_back({"communication.tp", "how ranks that share a key-value head bring its gradients together"});
  }
  if (t.runtime == Runtime::DeepSpeed && t.zero.stage == 0 && t.dtype != DType::Float32) {
    not_modelled.push_back({"memory.peak.temporaries",
                            "on tensor-parallel ranks other than the first, FP16_Optimizer masks what is replicated "
                            "when it takes the norm (runtime/utils.py, get_flattened_grad_norm)"});
  }
}

// Whatever the schedule.
void list_what_is_missing(const ModelSpec& model, const Job& job, std::vector<Absence>& not_modelled) {
  if (job.training.level == Level::Dispatch) {
    not_modelled.push_back({"kernel temporaries", "left out by --level dispatch"});
    not_modelled.push_back({"workspace", "the libraries' workspaces are left out by --level dispatch"});
  } else if (!job.hardware) {
    not_modelled.push_back(
        {"workspace", "no device is named: the size of cuBLAS's and cuBLASLt's workspaces depends on it"});
  } else if (!library_workspaces(job)) {
    not_modelled.push_back({"workspace", formatted("the libraries' workspaces on {}", job.hardware->architecture)});
  }
  if (!job.context) {
    not_modelled.push_back({"context", "no device is named: an uncalibrated 600 MiB stand for its CUDA context"});
  }
  if (job.training.runtime == Runtime::DeepSpeed) {
    not_modelled.push_back({"eval", "forwards without gradients between steps; under ZeRO-3 they break the trace"});
    not_modelled.push_back({"resume", "loading a checkpoint, in which its tensors stand beside the engine's"});
  }
  if (ranks_differ(job.training, job.parallelism) && job.parallelism.nodes > 1 && offloads_optimizer(job.training)) {
    not_modelled.push_back({"memory.host.per_node", "ranks differ, and so do nodes: it is that of this rank's node"});
  }
  list_tensor_parallel(model, job, not_modelled);
}

void list_without_schedule(const SharedEvidence& shared, std::vector<Absence>& not_modelled) {
  const std::string& obstacle = *shared.obstacle;
  not_modelled.push_back({"memory.host", obstacle});
  if (!shared.formulas.batch_known) {
    not_modelled.push_back({"memory.persistent.inputs", formatted("the batch of the {} family", shared.model.family)});
  }
  not_modelled.push_back({"memory.held_for_backward", obstacle});
  not_modelled.push_back({"memory.peak", obstacle});
  not_modelled.push_back({"memory.loss_spike", obstacle});
  not_modelled.push_back({"memory.phases", obstacle});
  not_modelled.push_back({"memory.persistent.allocated", obstacle});
  not_modelled.push_back({"communication", obstacle});
  not_modelled.push_back({"time", obstacle});
}

}  // namespace

std::vector<Absence> absences_of(const Evidence& evidence) {
  const SharedEvidence& shared = evidence.shared;
  std::vector<Absence> not_modelled;
  list_what_is_missing(shared.model, shared.job, not_modelled);
  if (!evidence.readings) {
    list_without_schedule(shared, not_modelled);
    return not_modelled;
  }
  for (const char* what : shared.shapes->recipes.front().unknown()) {
    not_modelled.push_back({"memory.peak.temporaries", formatted("{}: the GPU alone knows its size", what)});
  }
  if (!shared.time.time) not_modelled.push_back({"time", shared.time.why});
  if (!communication_of(evidence)) {
    not_modelled.push_back({"communication", "of a step in steady state, which --phase record leaves out"});
  }
  if (leaves_second_step_out(evidence)) {
    not_modelled.push_back({"memory.held_for_backward", "of the second step, which --phase leaves out"});
  }
  return not_modelled;
}

}  // namespace dsplan
