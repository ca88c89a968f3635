#include "exec/failure.h"

#include "core/format.h"

namespace dsplan::exec {

std::string_view name(dsplan_status status) {
  switch (status) {
    case DSPLAN_OK: return "done";
    case DSPLAN_OUT_OF_MEMORY: return "out of memory";
    case DSPLAN_INVALID: return "invalid call";
    case DSPLAN_UNSUPPORTED: return "not supported";
    case DSPLAN_IO: return "input or output failed";
    case DSPLAN_DEVICE: return "device failed";
    case DSPLAN_UNAVAILABLE: return "not available";
    case DSPLAN_ABORTED: return "aborted";
    case DSPLAN_TIMEOUT: return "timed out";
    default: return "unknown status";
  }
}

std::string describe(const Failure& failure) {
  std::string text;
  if (failure.rank >= 0) text += formatted("rank {}, ", failure.rank);
  if (failure.event != kNoEvent) text += formatted("event {}, ", failure.event);
  text += formatted("{}: {}", failure.call, name(failure.status));
  if (!failure.text.empty()) text += ": " + failure.text;
  return text;
}

}  // namespace dsplan::exec
