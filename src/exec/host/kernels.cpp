#include "exec/host/kernels.h"

#include <stdexcept>

#include "exec/host/launch.h"

namespace dsplan::exec {

void host_kernels(const dsplan_launch& what) {
  if (host::launch(what) != 0) throw std::runtime_error(host::launch_error());
}

}  // namespace dsplan::exec
