#include "report/kept_figures.h"

#include <algorithm>

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

namespace detail {
namespace {

// Their paths are the keys, so that none stands twice.
void describe_rows(Fields& fields, std::vector<FigureRow>& rows) {
  ObjectReader* reader = fields.reader();
  if (reader != nullptr) {
    for (const Member& member : reader->value().members) rows.push_back({member.key, {}});
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    FigureRow& row = rows[i];
    const std::optional<RowKind> kind = kind_of_row(row.path);
    if (kind == RowKind::Verdict) {
      fields.text_or_null(row.path, row.value.text);
      if (reader != nullptr)
        (void)reader->choice(row.path, {"fits", "tight", "fits_with_retries", "does_not_fit", "unknown"});
    } else if (kind) {
      fields(row.path, row.value.number);
    } else if (reader != nullptr) {
      reader->accept(row.path);
      const std::size_t at = reader->value().members[i].key_offset;
      reader->diagnostics().add(reader->document().at(at, formatted("no row \"{}\"", row.path)));
    }
  }
}

}  // namespace

void describe_versions(Fields& fields, const Key& key, BaselineVersions& versions) {
  fields.object(key, {"\"written\"", FieldLine::Same}, [&] {
    fields("dsplan", versions.dsplan);
    fields("torch", versions.torch);
    fields("transformers", versions.transformers);
    fields("deepspeed", versions.deepspeed);
  });
}

void describe_ranks(Fields& fields, std::vector<BaselineRank>& ranks, std::string_view what) {
  fields.list("ranks", ranks, {what, FieldLine::Same}, [&](BaselineRank& rank) {
    fields("rank", rank.rank);
    const bool twice = std::any_of(ranks.data(), &rank, [&](const BaselineRank& one) { return one.rank == rank.rank; });
    if (fields.reader() != nullptr && twice) {
      fields.reader()->fault("rank", formatted("rank {} stands twice", rank.rank));
    }
    fields.object("rows", {"the rows of a rank"}, [&] { describe_rows(fields, rank.rows); });
  });
  ObjectReader* reader = fields.reader();
  const Value* list = reader == nullptr ? nullptr : reader->value().find("ranks");
  if (list != nullptr && list->is(Value::Kind::Array) && list->items.empty()) {
    reader->fault("ranks", "\"ranks\" is empty: there is nothing to hold a prediction against");
  }
}

}  // namespace detail
}  // namespace dsplan
