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
#include "report/comparison.h"

namespace dsplan {

// The same job with one setting changed.
struct PageChange {
  std::string option;  // "--checkpoint full"
  Verdict verdict = Verdict::Unknown;
  std::optional<Bytes> needed;         // Prediction::needed.
  std::optional<Bytes> process;        // With all that the allocator would reserve of a larger device.
  std::optional<double> seconds;       // Of an optimizer step.
  std::optional<std::string> refused;  // Why there is none.
  std::string view;                    // page_view; empty where there is none.
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
  std::optional<ReceiptComparison> measured;  // A run of the same job.
};

// The head of page and slide.
struct PageWords {
  std::string verdict;  // "does not fit"
  std::string kind;     // The style's name of its colour: good, warn, bad, soft.
  std::string job;      // In a line.
  std::string figure;   // "needs at least 49.18 GiB of 39.49 GiB: 9.69 GiB short"
};
[[nodiscard]] PageWords page_words(const PageInput& input);

// What the page shows of a changed job while its switch is on: verdict, cards, and the chart in some 500 moments, of
// which each is the highest of its neighbours. JSON. `changes` of it are not asked for.
[[nodiscard]] std::string page_view(const PageInput& changed);

// The verdict on cards; requested bytes over the schedule, stacked by role, with the reserved line, the limit and the
// place of an out-of-memory; what is alive at the peak or at a moment that is clicked, by role, by module, and as a
// map; phases, traffic and time; what single changes would do, each a switch that shows it; assumptions. Figures are in
// the page's data, and as text where scripts do not run. Schedules of more than some 20,000 events of the device are
// thinned: of several events in a row the page then has the highest moment and the end.
[[nodiscard]] std::string html_page(const PageInput& input);

}  // namespace dsplan
