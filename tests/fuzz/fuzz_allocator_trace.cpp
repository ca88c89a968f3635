// read_allocator_trace and replay_csv: an accepted trace gives a header and one row for each step that prints one; a
// conf fault points into its text, or right behind it.
#include <algorithm>

#include "core/allocator_config.h"
#include "io/allocator_trace.h"
#include "property.h"
#include "sim/allocator_replay.h"

using namespace dsplan;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  AllocatorConfig config;
  const auto fault = apply_allocator_conf(text, config);
  fuzz::require(!fault || fault->offset <= text.size(), "a conf fault has a place");

  AllocatorTrace trace;
  if (!fuzz::accepts([&] { trace = read_allocator_trace("input.trace", text); })) return 0;
  std::string rows;
  if (!fuzz::accepts([&] { rows = replay_csv(trace); })) return 0;
  const auto printed = std::count_if(trace.steps.begin(), trace.steps.end(),
                                     [](const TraceStep& step) { return prints_row(step.kind); });
  fuzz::require(std::count(rows.begin(), rows.end(), '\n') == printed + 1, "one row for each step that prints one");
  return 0;
}
