/* exec/backend.h as a C compiler sees it: exec_backend_test.cpp compares. */
#include <stddef.h>

#include "exec/backend.h"

size_t dsplan_c_sizes(int which);
size_t dsplan_c_sizes(int which) {
  switch (which) {
    case 0: return sizeof(dsplan_backend);
    case 1: return sizeof(dsplan_launch);
    case 2: return sizeof(dsplan_tensor);
    case 3: return sizeof(dsplan_device_info);
    case 4: return sizeof(dsplan_collective);
    case 5: return sizeof(dsplan_open);
    case 6: return sizeof(dsplan_usage);
    case 7: return offsetof(dsplan_backend, comm_memory);
    case 8: return offsetof(dsplan_launch, random);
    default: return 0;
  }
}
