#include "planner/judge.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/report_details.h"

namespace dsplan {

// By replay under the limit, through flushes and retries.
void judge(const Schedule& schedule, const ModelSpec& model, const Placement& unlimited, Prediction& p) {
  if (!p.capacity) {
    p.verdict = Verdict::Unknown;
    p.verdict_reason = "no capacity is known: name --hardware, --cluster or --capacity";
    return;
  }
  const Bytes beside = p.context.value_or(Bytes(0)) + p.communicators.value_or(Bytes(0)) + p.reserve;
  const Bytes limit = beside < *p.capacity ? *p.capacity - beside : Bytes(0);
  if (unlimited.peak_reserved <= limit) {
    p.verdict = Verdict::Fits;
    p.verdict_reason = fmt::format("{} of {} left", human(limit - unlimited.peak_reserved), human(*p.capacity));
    return;
  }
  const Placement limited = place(schedule, AllocatorConfig{}, limit);
  p.retries = limited.retries;
  if (!limited.failed_event) {
    p.verdict = Verdict::FitsWithRetries;
    p.verdict_reason = fmt::format("the allocator gives its cache back {} times to fit", limited.retries);
    return;
  }
  p.verdict = Verdict::DoesNotFit;
  p.verdict_reason = fmt::format("tried to allocate {}, {} missing, at {}", human(limited.failed_request),
                                 human(limited.missing), describe_moment(schedule, model, *limited.failed_event));
}

void add_peak(const Schedule& schedule, const ModelSpec& model, const MemoryMeter& meter, const Placement& placement,
              Prediction& p) {
  Peak peak;
  peak.requested = meter.peak_requested();
  peak.allocated = std::max(meter.peak_allocated(), placement.peak_allocated);
  peak.reserved = placement.peak_reserved;
  peak.reserved_low = placement.peak_reserved;  // One stream: no free waits for another.
  peak.process = placement.peak_reserved + p.context.value_or(Bytes(0)) + p.communicators.value_or(Bytes(0));
  peak.process_high = peak.process;
  peak.phase = name(meter.peak_stretch());
  peak.event_index = meter.peak_event();
  peak.event = describe_moment(schedule, model, meter.peak_event());
  peak.by_role = meter.peak_by_role();
  peak.live = group_live(schedule, model, live_after(schedule, meter.peak_event()));
  p.peak = std::move(peak);
}

}  // namespace dsplan
