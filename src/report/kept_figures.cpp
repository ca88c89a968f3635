#include "report/kept_figures.h"

#include <algorithm>

#include "core/format.h"

namespace dsplan::detail {
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
      if (reader != nullptr) (void)reader->choice(row.path, {"fits", "fits_with_retries", "does_not_fit", "unknown"});
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

void describe_versions(Fields& fields, BaselineVersions& versions) {
  fields.object("written", {"\"written\"", Line::Same}, [&] {
    fields("dsplan", versions.dsplan);
    fields("torch", versions.torch);
    fields("transformers", versions.transformers);
    fields("deepspeed", versions.deepspeed);
  });
}

void describe_ranks(Fields& fields, std::vector<BaselineRank>& ranks, std::string_view what) {
  fields.list("ranks", ranks, {what, Line::Same}, [&](BaselineRank& rank) {
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

}  // namespace dsplan::detail
