// Whether the buffers that offloading to NVMe is given can hold what DeepSpeed will put into them.
#pragma once

#include "planner/resolve/resolver.h"

namespace dsplan {

// Faults where DeepSpeed would stop at an assertion: a partition larger than `buffer_size`, and fewer buffers than one
// sub-group of the optimizer takes at a time. Valid once all of Training is resolved.
void check_nvme_buffers(Resolver& resolver);

}  // namespace dsplan
