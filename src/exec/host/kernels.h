// The kernels of the host: one entry for all of them.
#pragma once

#include "exec/backend.h"

namespace dsplan::exec::host {

// Runs one kernel to its end. 0, or 1 where it cannot: launch_error() then says why, on the same thread, until the next
// call. Takes no memory that grows with tensors; sums in a fixed order, so that equal inputs give equal bits.
int launch(const dsplan_launch& call);
[[nodiscard]] const char* launch_error();

}  // namespace dsplan::exec::host

namespace dsplan::exec {

// The same as the table of the host's backend takes it; throws std::runtime_error with what it refuses.
void host_kernels(const dsplan_launch& what);

}  // namespace dsplan::exec
