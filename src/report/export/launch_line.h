// The command that starts a job.
#pragma once

#include <string>

#include "core/job.h"
#include "core/model.h"

namespace dsplan {

// One line for a shell, to be run on one node, or where there are several and the launcher wants it, on each: the
// allocator's conf as PYTORCH_CUDA_ALLOC_CONF, then deepspeed, accelerate (whose mixed precision makes outputs fp32),
// torchrun, or python alone, with nodes and GPUs per node. `train.py` stands for the user's script, `ds_config.json`
// for the job's DeepSpeed JSON, `hostfile` and `$HEAD_NODE` for the user's hosts. read_launch_line reads it back.
//
// Refused by name: nodes with different numbers of ranks, tensor parallelism (Megatron's own launcher and arguments)
// and a planned arena, which PyTorch has not.
[[nodiscard]] std::string launch_line(const ModelSpec& model, const Job& job);

}  // namespace dsplan
