// A prediction as one page that shows itself: nothing is loaded from elsewhere.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"
#include "core/schedule.h"
#include "core/timeline.h"

namespace dsplan {

// The same job with one setting changed.
struct PageChange {
  std::string option;  // "--checkpoint full"
  Verdict verdict = Verdict::Unknown;
  std::optional<Bytes> least;          // What the process takes at least: blocks handed out, context, communicators.
  std::optional<Bytes> process;        // With all that the allocator would reserve of a larger device.
  std::optional<double> seconds;       // Of an optimizer step.
  std::optional<std::string> refused;  // Why there is none.
};

struct PageInput {
  const Timeline& timeline;
  const Schedule& schedule;
  const ModelSpec& model;
  const Prediction& prediction;
  const Job& job;
  std::string command;              // That makes this page.
  std::optional<Bytes> limit;       // What the allocator may reserve.
  std::optional<std::size_t> over;  // The event that runs out of memory under it.
  std::vector<PageChange> changes;
};

// PageChange::least of a prediction; absent where its parts are.
[[nodiscard]] std::optional<Bytes> least_of(const Prediction& prediction);

// The verdict on cards; requested bytes over the schedule, stacked by role, with the reserved line, the limit and the
// place of an out-of-memory; what is alive at the peak or at a moment that is clicked, by role, by module, and as a
// map; phases, traffic and time; what single changes would do; assumptions. Figures are in the page's data, and as text
// where scripts do not run. Schedules of more than some 20,000 events of the device are thinned: of several events in a
// row the page then has the highest moment and the end.
[[nodiscard]] std::string html_page(const PageInput& input);

}  // namespace dsplan
