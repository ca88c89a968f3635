// The kernels of the host: one entry for all of them, as the table of the host backend calls it.
#pragma once

#include "exec/backend.h"

namespace dsplan::exec::host {

// Runs one kernel to its end. 0, or 1 where it cannot: launch_error() then says why, on the same thread, until the next
// call. Takes no memory that grows with tensors; sums in a fixed order, so that equal inputs give equal bits.
int launch(const dsplan_launch& call);
[[nodiscard]] const char* launch_error();

}  // namespace dsplan::exec::host
