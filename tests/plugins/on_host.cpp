// A backend as a library, for tests without a GPU: the host's memory and streams, the device's kernels compiled for the
// host. It says of itself what a GPU says: that the host cannot read its memory, and that work is only enqueued.
#include <stdexcept>

#include "cuda/launch.h"
#include "exec/host/host_backend.h"

namespace {

void run_kernel(const dsplan_launch& what) {
  static thread_local double scratch[dsplan::cuda::kScratch];
  dsplan::cuda::Queue queue;
  queue.scratch = scratch;
  dsplan::cuda::launch(what, queue);
}

const dsplan::exec::HostBackend& host() {
  static const dsplan::exec::HostBackend backend([] {
    dsplan::exec::HostOptions options;
    options.kernels = run_kernel;
    return options;
  }());
  return backend;
}

dsplan_status info(dsplan_device* device, dsplan_device_info* info) {
  const dsplan_status status = host().table().info(device, info);
  info->flags = 0;
  return status;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const dsplan_backend* dsplan_backend_table(void);
const dsplan_backend* dsplan_backend_table(void) {
  static const dsplan_backend table = [] {
    dsplan_backend own = host().table();
    own.name = "cuda";
    own.info = info;
    return own;
  }();
  return &table;
}
