// The host's kernels as its backend's table takes them.
#pragma once

#include "exec/backend.h"

namespace dsplan::exec {

// Carries out one kernel (exec/host/launch.h); throws std::runtime_error with what it refuses.
void host_kernels(const dsplan_launch& what);

}  // namespace dsplan::exec
