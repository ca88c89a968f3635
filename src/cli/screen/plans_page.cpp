// `dsplan plan --format html`.
#include <cmath>

#include "cli/report_plan.h"
#include "core/format.h"
#include "report/page/points_page.h"

namespace dsplan {
namespace {

ChartPoint plan_point(const PlanRow& row, const char* kind) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < kAxes; ++i) {
    if (!row.settings[i].empty()) parts.push_back(formatted("{} {}", name(static_cast<Axis>(i)), row.settings[i]));
  }
  return {row.tokens_per_second(), static_cast<double>(row.process.value_or(Bytes(0)).value()), joined(parts, ", "),
          kind};
}

}  // namespace

std::string plans_page(const PlanAnswer& answer, const std::string& lead, std::string command) {
  PointsPage page;
  page.title = answer.model;
  page.lead = lead;
  page.command = std::move(command);
  page.heads = {"plan", "settings", "process", "tokens/s"};
  Chart chart{"Memory against speed", "tokens per second, estimated", true, answer.limit, {}, {}};
  const auto add = [&](const char* what, const std::vector<PlanRow>& rows, const char* kind) {
    ChartSeries series{what, false, {}};
    for (const PlanRow& row : rows) {
      if (!row.process || !row.time) continue;
      series.points.push_back(plan_point(row, kind));
      page.rows.push_back(
          {what, series.points.back().words, human(*row.process), grouped(std::llround(row.tokens_per_second()))});
      page.kinds.emplace_back(kind);
    }
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  };
  if (answer.chosen) add("chosen", {*answer.chosen}, "good");
  add("next", answer.next, "good");
  add("front", answer.front, "good");
  if (answer.nearest) add("nearest", {*answer.nearest}, "bad");
  page.charts.push_back(std::move(chart));
  return points_page(page);
}

}  // namespace dsplan
