#include "report/export/launch_line.h"

#include "core/error.h"
#include "core/format.h"

namespace dsplan {
namespace {

void refuse_what_no_line_says(const ModelSpec& model, const Job& job) {
  Diagnostics faults;
  const auto refuse = [&](std::string message, std::string hint = {}) {
    faults.add({model.name, 0, 0, {}, std::move(message), std::move(hint)});
  };
  const Parallelism& p = job.parallelism;
  if (p.world % p.gpus_per_node != 0) {
    refuse(formatted("{} ranks are no whole nodes of {}: no launch line says how the last one differs", p.world,
                     p.gpus_per_node),
           "give --gpus-per-node");
  }
  if (p.tp * p.sp * p.ep > 1) {
    refuse(formatted("tp = {}: tensor parallelism is started by the script's own arguments", p.tp));
  }
  if (job.placement == PlacementKind::Planned) {
    refuse("PyTorch lays out no arena beforehand", "leave --placement out, or `dsplan run` it");
  }
  faults.throw_if_any();
}

std::string environment(const Job& job) {
  return job.allocator_conf.empty() ? "" : formatted("PYTORCH_CUDA_ALLOC_CONF={} ", job.allocator_conf);
}

std::string by_deepspeed(const Parallelism& p) {
  const std::string where = p.nodes > 1 ? formatted("--hostfile hostfile --num_nodes {} ", p.nodes) : std::string();
  return formatted("deepspeed {}--num_gpus {} train.py --deepspeed ds_config.json", where, p.gpus_per_node);
}

std::string by_accelerate(const Job& job) {
  const Parallelism& p = job.parallelism;
  std::string text = formatted("accelerate launch --mixed_precision {} --num_processes {} --num_machines {}",
                               name(*job.training.autocast), p.world, p.nodes);
  if (p.nodes > 1) text += " --machine_rank $NODE_RANK --main_process_ip $HEAD_NODE --main_process_port 29500";
  return text + " train.py";
}

std::string by_torchrun(const Parallelism& p) {
  const std::string where = p.nodes > 1
                                ? formatted("--nnodes {} --rdzv-backend c10d --rdzv-endpoint $HEAD_NODE:29500", p.nodes)
                                : std::string("--standalone");
  return formatted("torchrun {} --nproc-per-node {} train.py", where, p.gpus_per_node);
}

}  // namespace

std::string launch_line(const ModelSpec& model, const Job& job) {
  refuse_what_no_line_says(model, job);
  const Training& t = job.training;
  std::string command;
  if (t.runtime == Runtime::DeepSpeed) {
    command = by_deepspeed(job.parallelism);
  } else if (t.outputs_to_fp32 && t.runtime == Runtime::PyTorch) {
    command = by_accelerate(job);
  } else {
    command = job.parallelism.world > 1 ? by_torchrun(job.parallelism) : "python train.py";
  }
  return environment(job) + command + "\n";
}

}  // namespace dsplan
