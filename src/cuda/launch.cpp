#include "cuda/launch.h"

#include <stdexcept>

#include "core/program.h"
#include "cuda/kernels.h"

namespace dsplan::cuda {
namespace {

bool run(const dsplan_launch& call, const Queue& queue) {
  const auto body = static_cast<Body>(call.body);
  if (body != Body::Forward && body != Body::Backward) return run_flat(call, queue);
  const Args args(call);
  for (const auto family : {run_parallel, run_moves, run_elementwise, run_elementwise_backward, run_products,
                            run_attention, run_rows, run_choices, run_flags, run_picks}) {
    if (family(args, queue)) return true;
  }
  return false;
}

}  // namespace

void launch(const dsplan_launch& call, const Queue& queue) {
  if (call.size != sizeof(dsplan_launch)) throw std::runtime_error("the launch is of another version");
  try {
    if (run(call, queue)) return;
  } catch (const exec::host::Fault& fault) {
    throw std::runtime_error(exec::host::called(call) + ": " + fault.text);
  }
  throw std::runtime_error(exec::host::called(call) + ": the device has no such kernel");
}

}  // namespace dsplan::cuda
