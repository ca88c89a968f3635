#include "planner/predict/planned.h"

#include <utility>

#include "core/format.h"
#include "planner/predict/judge.h"
#include "sim/arena.h"

namespace dsplan {

PlannedArena plan_arena(const Schedule& schedule, Bytes reserved) {
  const Lives lives = lives_of(schedule);
  const Layout layout = pack(lives.intervals);
  PlannedArena arena;
  arena.height = layout.height;
  arena.lower_bound = layout.lower_bound;
  arena.reserved = reserved;
  arena.buffers = lives.buffers.size();
  arena.offsets.assign(schedule.buffers.size(), -1);
  for (std::size_t at = 0; at < lives.buffers.size(); ++at) {
    arena.offsets[lives.buffers[at]] = layout.offsets[at].value();
  }
  return arena;
}

void judge_planned(PlannedArena arena, Prediction& p) {
  const Bytes beside = p.context.value_or(Bytes(0)) + p.communicators.value_or(Bytes(0));
  p.peak->reserved = p.peak->reserved_low = arena.height;
  p.peak->process = p.peak->process_high = arena.height + beside;
  p.retries = p.retries_low = 0;
  if (const std::optional<VerdictLimit> limit = verdict_limit(p)) {
    const bool fits = arena.height <= limit->limit;
    p.verdict = fits ? Verdict::Fits : Verdict::DoesNotFit;
    p.verdict_reason = fits ? formatted("{} of {} left beside the planned arena", human(limit->limit - arena.height),
                                        human(*p.capacity))
                            : formatted("the planned arena of {} is {} too large", human(arena.height),
                                        human(arena.height - limit->limit));
  }
  p.arena = std::move(arena);
}

}  // namespace dsplan
