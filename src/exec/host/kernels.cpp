#include "exec/host/kernels.h"

#include <exception>
#include <stdexcept>
#include <string>

#include "core/format.h"
#include "core/program.h"
#include "exec/host/args.h"

namespace dsplan::exec::host {
namespace {

std::string& message() {
  static thread_local std::string of_thread;
  return of_thread;
}

bool run(const dsplan_launch& call) {
  const auto body = static_cast<Body>(call.body);
  if (body != Body::Forward && body != Body::Backward) return run_flat(call);
  const Args args(call);
  for (const auto family :
       {run_parallel, run_moves, run_elementwise, run_elementwise_backward, run_products, run_attention, run_rows,
        run_lookups, run_choices, run_flags, run_picks, run_groups, run_convolution}) {
    if (family(args)) return true;
  }
  return false;
}

}  // namespace

int launch(const dsplan_launch& call) {
  try {
    if (call.size != sizeof(dsplan_launch)) {
      message() = "the launch is of another version";
      return 1;
    }
    if (run(call)) return 0;
    message() = called(call) + ": the host has no such kernel";
  } catch (const Fault& fault) {
    message() = called(call) + ": " + fault.text;
  } catch (const std::exception& error) {
    message() = called(call) + ": " + error.what();
  }
  return 1;
}

const char* launch_error() { return message().c_str(); }

}  // namespace dsplan::exec::host

namespace dsplan::exec {

void host_kernels(const dsplan_launch& what) {
  if (host::launch(what) != 0) throw std::runtime_error(host::launch_error());
}

}  // namespace dsplan::exec
