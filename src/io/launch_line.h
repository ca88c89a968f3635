// The command that starts a training job, as words: what follows `--` on dsplan's own command line.
#pragma once

#include <string>
#include <vector>

#include "core/inputs.h"
#include "io/dialects/program_line.h"

namespace dsplan {

// Understands deepspeed, torchrun, accelerate launch, python -m with one of these, mpirun and mpiexec, srun, and a
// plain python; launchers may be nested (srun torchrun ...), then the inner one counts ranks per node. From the
// launcher: ranks, nodes, ranks per node, and accelerate's configuration. What is behind it is read by the dialect of
// the program (io/dialects/program_line.h). Files that the line names are opened by `read`. Host files are not read,
// and a notice says so. Faults: counts that are no positive integers, options and arguments that no row knows.
[[nodiscard]] Said read_launch(const std::vector<std::string>& words, const ReadNamed& read);
// The same from the disk, without what is for a dialect's program.
[[nodiscard]] Request read_launch_line(const std::vector<std::string>& words);

}  // namespace dsplan
