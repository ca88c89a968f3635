// One entry for all kernels of the device, as its backend's table calls it.
#pragma once

#include <string>

#include "cuda/queue.h"
#include "exec/backend.h"

namespace dsplan::cuda {

// Enqueues one kernel. Throws std::runtime_error, or what the device's calls throw, with the kernel's name in front.
void launch(const dsplan_launch& call, const Queue& queue);

}  // namespace dsplan::cuda
