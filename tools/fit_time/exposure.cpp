#include "exposure.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <variant>

#include "planner/lower/lower.h"
#include "planner/lower/unsupported.h"
#include "planner/time/event_times.h"
#include "sim/stream_clock.h"
#include "time_accuracy.h"

using namespace dsplan;
using time_rows::Case;

namespace {

// How long the second step takes on the clock.
double second_step(const Schedule& schedule, const EventTimes& times) {
  StreamClock clock(times);
  double begin = 0;
  double end = 0;
  const auto now = [&] {
    double latest = clock.now();
    for (StreamId stream = 0; stream < kStreams; ++stream) latest = std::max(latest, clock.ready(stream));
    return latest;
  };
  for (std::size_t at = 0; at < schedule.events.size(); ++at) {
    const Event& event = schedule.events[at];
    if (const auto* compute = std::get_if<Compute>(&event)) clock.work(at, compute->stream);
    if (const auto* sent = std::get_if<Communicate>(&event)) clock.work(at, sent->stream);
    if (const auto* recorded = std::get_if<RecordEvent>(&event)) clock.record_event(*recorded);
    if (const auto* waited = std::get_if<WaitEvent>(&event)) clock.wait_event(*waited);
    const auto* mark = std::get_if<Mark>(&event);
    if (mark == nullptr || mark->stretch != Stretch::SecondStep) continue;
    if (mark->moment == Moment::StretchBegins) begin = now();
    if (mark->moment == Moment::StretchEnds) end = now();
  }
  return end - begin;
}

template <class Kind>
EventTimes scaled(EventTimes times, const Schedule& schedule, double by) {
  for (std::size_t at = 0; at < schedule.events.size(); ++at) {
    if (std::holds_alternative<Kind>(schedule.events[at])) times.work[at] *= static_cast<float>(by);
  }
  return times;
}

struct Compared {
  double step = 0;  // As published, in seconds.
  double formula = 0;
  double clock = 0;  // The formula's computation, and what the clock leaves exposed beside it.
};

Compared compare(const Case& one) {
  const StepTime formula = time_rows::estimated(one);
  double exposed = 0;
  for (const PhaseTime& phase : formula.phases) exposed += phase.exposed;
  const Schedule schedule = lower(one.model, one.job, build_shapes(one.model, one.job), 0);
  EventTimes times = event_times(schedule, one.job, Rates::of(one.job));
  times.host = 0;  // The formula's computation has what launches take.
  const double alone = second_step(schedule, scaled<Communicate>(times, schedule, 0));
  times = scaled<Compute>(std::move(times), schedule, (formula.total - exposed) / alone);
  const double beside = second_step(schedule, times) - second_step(schedule, scaled<Communicate>(times, schedule, 0));
  return {one.row.seconds, formula.total, formula.total - exposed + beside};
}

void print(const std::string& name, const std::vector<Compared>& rows) {
  const auto quantile = [&](double part, double Compared::*of) {
    std::vector<double> errors;
    for (const Compared& one : rows) errors.push_back(std::abs(one.*of / one.step - 1));
    return 100 * time_accuracy::quantile(errors, part);
  };
  std::printf("%-22s %4zu  formula %5.1f %% (p90 %5.1f %%)  clock %5.1f %% (p90 %5.1f %%)\n", name.c_str(), rows.size(),
              quantile(0.5, &Compared::formula), quantile(0.9, &Compared::formula), quantile(0.5, &Compared::clock),
              quantile(0.9, &Compared::clock));
}

}  // namespace

void report_exposure(const std::vector<Case>& cases) {
  std::map<std::string, std::vector<Compared>> groups;
  std::size_t left_out = 0;
  for (const Case& one : cases) {
    if (unsupported(one.model, one.job)) {
      ++left_out;
      continue;
    }
    const Compared compared = compare(one);
    const std::string part = one.row.train ? "fitted to" : "held out";
    groups[part].push_back(compared);
    groups[part + ", " + one.row.source].push_back(compared);
  }
  for (const auto& [name, rows] : groups) print(name, rows);
  std::printf("left out, without a schedule: %zu\n", left_out);
}
