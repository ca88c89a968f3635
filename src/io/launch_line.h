// The command that starts a training job, as words: what follows `--` on dsplan's own command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/inputs.h"
#include "io/dialects/program_line.h"

namespace dsplan {

// Understands deepspeed, torchrun, accelerate launch, python -m with one of these, mpirun and mpiexec, srun, and a
// plain python; launchers may be nested (srun torchrun ...), then the inner one counts ranks per node. From the
// launcher: ranks, nodes, ranks per node, and accelerate's configuration. What is behind it is read by the dialect of
// the program (io/dialects/program_line.h). Files that the line names are opened by `read`. Host files are not read,
// and a notice says so. `accelerate launch` without a configuration takes the one that `accelerate config` left in
// HF_HOME, of the line's own variables or of this process; where the line is another machine's, or may be, a notice
// says that it is not read. Faults: counts that
// are no positive integers, options and arguments that no row knows.
enum class LaunchedOn : std::uint8_t { ThisMachine, AnotherMachine };
[[nodiscard]] Said read_launch(const std::vector<std::string>& words, const ReadNamed& read,
                               LaunchedOn machine = LaunchedOn::ThisMachine);
// The same from the disk, without what is for a dialect's program.
[[nodiscard]] Request read_launch_line(const std::vector<std::string>& words);

}  // namespace dsplan
