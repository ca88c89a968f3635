// `dsplan sweep --format html`.
#include <algorithm>
#include <cmath>

#include "cli/many/sweep.h"
#include "cli/screen/first_screen.h"
#include "core/format.h"
#include "report/page/points_page.h"

namespace dsplan {
namespace {

// The axis that lies from left to right: the one with the most values.
std::size_t longest(const std::vector<SweepAxis>& axes) {
  const auto most = std::max_element(axes.begin(), axes.end(), [](const SweepAxis& a, const SweepAxis& b) {
    return a.values.size() < b.values.size();
  });
  return static_cast<std::size_t>(most - axes.begin());
}

bool all_numbers(const SweepAxis& axis) {
  return std::all_of(axis.values.begin(), axis.values.end(), [](const std::string& value) {
    return !value.empty() && value.size() < 16 && value.find_first_not_of("0123456789") == std::string::npos;
  });
}

std::string colour_of(const SweepPoint& point) {
  if (!point.prediction) return "soft";
  switch (point.prediction->verdict) {
    case Verdict::Fits: return "good";
    case Verdict::Tight:
    case Verdict::FitsWithRetries: return "warn";
    case Verdict::DoesNotFit: return "bad";
    case Verdict::Unknown: break;
  }
  return "soft";
}

// "micro_batch 4, checkpoint full"
std::string values_text(const std::vector<SweepAxis>& axes, const SweepPoint& point,
                        std::optional<std::size_t> but = {}) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (i != but) parts.push_back(formatted("{} {}", axes[i].name, point.values[i]));
  }
  return joined(parts, ", ");
}

using Measure = std::optional<double> (*)(const SweepFigures&);

// A line for each combination of the other axes.
Chart chart_of(const std::vector<SweepAxis>& axes, const std::vector<SweepPoint>& points, Chart chart,
               Measure measure) {
  const std::size_t across = longest(axes);
  const bool numbers = all_numbers(axes[across]);
  chart.below = axes[across].name;
  if (!numbers) chart.places = axes[across].values;
  for (const SweepPoint& point : points) {
    if (!point.prediction) continue;
    const std::optional<double> value = measure(figures_at(*point.prediction));
    if (!value) continue;
    const std::string name = values_text(axes, point, across);
    auto line = std::find_if(chart.series.begin(), chart.series.end(),
                             [&](const ChartSeries& one) { return one.name == name; });
    if (line == chart.series.end()) line = chart.series.insert(chart.series.end(), ChartSeries{name, true, {}});
    const auto& values = axes[across].values;
    const auto place = std::find(values.begin(), values.end(), point.values[across]) - values.begin();
    const std::string words = formatted("{}: {}, takes {}, {}", values_text(axes, point),
                                        in_words(point.prediction->verdict), taken(*point.prediction), remark(point));
    line->points.push_back({numbers ? std::stod(point.values[across]) : static_cast<double>(place), *value,
                            words.ends_with(", ") ? words.substr(0, words.size() - 2) : words, colour_of(point)});
  }
  for (ChartSeries& one : chart.series) {
    std::stable_sort(one.points.begin(), one.points.end(),
                     [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
  }
  return chart;
}

}  // namespace

std::string sweep_page(const std::string& model, const std::vector<SweepAxis>& axes,
                       const std::vector<SweepPoint>& points, std::string command) {
  PointsPage page;
  page.title = model.empty() ? std::string("models side by side") : model;
  page.lead = summary(axes, points);
  page.command = std::move(command);
  Chart memory{"What the process of a GPU takes", "", true, {}, {}, {}};
  for (const SweepPoint& point : points) {
    const bool same = !memory.limit || (point.prediction && point.prediction->capacity == memory.limit);
    if (point.prediction && same) memory.limit = point.prediction->capacity;
  }
  const auto bytes = [](const SweepFigures& f) {
    return f.process ? std::optional(static_cast<double>(f.process->value())) : std::nullopt;
  };
  page.charts.push_back(chart_of(axes, points, std::move(memory), bytes));
  Chart speed = chart_of(axes, points, {"Tokens per second, estimated", "", false, {}, {}, {}},
                         [](const SweepFigures& f) { return f.tokens; });
  if (!speed.series.empty()) page.charts.push_back(std::move(speed));
  page.heads = {"verdict"};
  for (const SweepAxis& axis : axes) page.heads.push_back(axis.name);
  page.heads.insert(page.heads.end(), {"takes", "needs", "tokens/s", ""});
  for (const SweepPoint& point : points) {
    const SweepFigures f = point.prediction ? figures_at(*point.prediction) : SweepFigures{};
    std::vector<std::string> row = {point.prediction ? in_words(point.prediction->verdict) : "refused"};
    row.insert(row.end(), point.values.begin(), point.values.end());
    row.insert(row.end(), {point.prediction ? taken(*point.prediction) : "-", f.needed ? human(*f.needed) : "-",
                           f.tokens ? grouped(std::llround(*f.tokens)) : "-", remark(point)});
    page.rows.push_back(std::move(row));
    page.kinds.push_back(colour_of(point));
  }
  return points_page(page);
}

}  // namespace dsplan
