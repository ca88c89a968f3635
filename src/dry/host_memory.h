// Large memory of the host whose values nobody needs: all of it shows the same few pages, so that writing to it costs
// the machine nothing. What a training job keeps there (offloaded states, flat copies) is as large as the model.
//
// DSPLAN_DRY_SHARED_HOST says from how many bytes on (256 MiB; 0: never). Below, host memory is the machine's own.
#pragma once

#include <cstddef>

namespace dsplan::dry {

[[nodiscard]] bool is_large_host_memory(std::size_t bytes);
// nullptr: the machine does not give it.
void* map_shared_pages(std::size_t bytes);
// False: it was not made so.
bool unmap_shared_pages(void* address);

}  // namespace dsplan::dry
