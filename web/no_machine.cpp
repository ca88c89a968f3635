// The commands that need a machine of ranks and devices, in a browser, which is none.
#include "cli/commands.h"
#include "cli/running/machine.h"
#include "core/format.h"

namespace dsplan {
namespace {

[[noreturn]] int absent(std::string_view command) {
  throw Unavailable(formatted("dsplan {}: a browser runs nothing; predicting and planning are here\n", command));
}

}  // namespace

int run_command(const Words& /*words*/) { absent("run"); }
int measure_command(const Words& /*words*/) { absent("measure"); }
int calibrate_command(const Words& /*words*/) { absent("calibrate"); }
std::string describe_cuda() { return "none in a browser"; }
std::string describe_nccl() { return "none in a browser"; }

}  // namespace dsplan
