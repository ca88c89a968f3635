// The command that starts a training job, as words: what follows `--` on dsplan's own command line.
#pragma once

#include <string>
#include <vector>

#include "core/inputs.h"

namespace dsplan {

// Understands deepspeed, torchrun, accelerate launch, python -m with one of these, mpirun and mpiexec, srun, and a
// plain python; launchers may be nested (srun torchrun ...), then the inner one counts ranks per node. From the
// launcher: ranks, nodes, ranks per node. From the script's own words: Hugging Face's arguments (see
// training_arguments.h); the others become notices. Files that the line names beside the DeepSpeed JSON (host files,
// accelerate's configuration) are not read, and a notice says so. Faults: counts that are no positive integers.
[[nodiscard]] Request read_launch_line(const std::vector<std::string>& words);

}  // namespace dsplan
