#include "report/figure_rows.h"

#include "core/format.h"
#include "report/compare.h"
#include "report/compare_rows.h"

namespace dsplan {
namespace {

class Rows {
 public:
  template <class Count>
  void add(std::string path, const std::optional<Count>& count) {
    rows_.push_back({std::move(path), {count ? std::optional(count->value()) : std::nullopt, {}}});
  }
  void add(std::string path, std::optional<std::int64_t> number) { rows_.push_back({std::move(path), {number, {}}}); }
  void add(std::string path, std::string_view text) { rows_.push_back({std::move(path), {{}, std::string(text)}}); }

  void roles(const std::string& prefix, const ByRole& by_role) {
    for (std::size_t i = 0; i < kRoles; ++i) {
      const auto role = static_cast<Role>(i);
      add(prefix + std::string(name(role)), std::optional(by_role[role]));
    }
  }

  void counters(const std::string& prefix, const Counters& at, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto counter = static_cast<Counter>(i);
      add(prefix + std::string(name(counter)), at[counter]);
    }
  }

  [[nodiscard]] std::vector<FigureRow> all() && { return std::move(rows_); }

 private:
  std::vector<FigureRow> rows_;
};

void add_traffic(const std::optional<std::vector<TrafficFigure>>& traffic, Rows& rows) {
  if (!traffic) return rows.add("communication", std::optional<std::int64_t>());
  for (const TrafficFigure& one : *traffic) {
    const std::string path = detail::traffic_path(one);
    rows.add(path + ".calls", one.calls);
    rows.add(path + ".payload_bytes", one.payload);
    rows.add(path + ".wire_bytes", one.wire);
  }
}

}  // namespace

BaselineRank figure_rows(const Prediction& prediction) {
  const RankFigures figures = figures_of(prediction).figures;
  Rows rows;
  rows.add("verdict", name(prediction.verdict));
  rows.add("parameters.total", figures.parameters_total);
  rows.add("parameters.trainable", figures.parameters_trainable);
  rows.counters("memory.persistent.", figures.persistent, 2);
  rows.roles("memory.persistent.", prediction.persistent.by_role);
  rows.counters("memory.peak.", figures.peak, kCounters);
  if (prediction.peak) rows.roles("memory.peak.by_role.", prediction.peak->by_role);
  for (const FigurePhase& phase : figures.phases) {
    rows.counters(formatted("memory.phases.{}.peak_", phase.name), phase.peak, kCounters - 1);
  }
  rows.add("memory.host.pinned", figures.host.pinned);
  rows.add("memory.host.pageable", figures.host.pageable);
  rows.add("memory.host.peak", figures.host.peak);
  rows.add("memory.host.per_node", figures.host.per_node);
  rows.add("memory.host.nvme", figures.host.nvme);
  add_traffic(figures.communication, rows);
  return {prediction.rank, std::move(rows).all()};
}

}  // namespace dsplan
