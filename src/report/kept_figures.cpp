#include "report/kept_figures.h"

#include <algorithm>

#include "core/format.h"
#include "core/receipt.h"
#include "io/measured_file.h"

namespace dsplan::detail {
namespace {

// Paths are the keys, so that none stands twice.
std::vector<FigureRow> read_rows(const Document& document, const Value& value, Diagnostics& faults) {
  ObjectReader reader(document, value, faults);
  std::vector<FigureRow> rows;
  for (const Member& member : value.members) {
    FigureRow row{member.key, {}};
    const std::optional<RowKind> kind = kind_of_row(member.key);
    if (!kind) {
      faults.add(document.at(member.key_offset, formatted("no row \"{}\"", member.key)));
    } else if (*kind == RowKind::Verdict) {
      const auto word = reader.choice(member.key, {"fits", "fits_with_retries", "does_not_fit", "unknown"});
      row.value.text = word.value_or("");
    } else {
      row.value.number = reader.integer(member.key, 0, INT64_MAX);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// A whole number that was written with a point stays one, as it was read.
std::string scalar_text(const Value& value) {
  std::string text = canonical_json(value);
  const bool whole = value.is(Value::Kind::Real) && text.find_first_of(".eE") == std::string::npos;
  return whole && !value.huge ? text + ".0" : text;
}

std::string figure_text(const FigureRow& row) {
  if (row.value.number) return std::to_string(*row.value.number);
  return row.value.text.empty() ? "null" : quoted(row.value.text);
}

std::string rank_text(const BaselineRank& rank) {
  std::string text = formatted("  {{\"rank\": {}, \"rows\": {{\n", rank.rank);
  for (std::size_t i = 0; i < rank.rows.size(); ++i) {
    text += formatted("   {}: {}{}\n", quoted(rank.rows[i].path), figure_text(rank.rows[i]),
                      i + 1 < rank.rows.size() ? "," : "");
  }
  return text + "  }}";
}

// `items` between brackets, each on lines of its own.
std::string list_text(const std::vector<std::string>& items) {
  std::string text = "[\n";
  for (std::size_t i = 0; i < items.size(); ++i) text += items[i] + (i + 1 < items.size() ? ",\n" : "\n");
  return text + " ]";
}

}  // namespace

std::string kept_text(ObjectReader& reader, std::string_view key) {
  const std::optional<std::string> said = reader.string(key);
  if (!said && reader.value().find(key) != nullptr && !reader.has(key)) {
    reader.fault(key, formatted("\"{}\" must not be null", key));
  }
  return said.value_or("");
}

BaselineVersions read_versions(const Document& document, const Value& value, Diagnostics& faults) {
  ObjectReader reader(document, value, faults);
  need(reader, {"dsplan", "torch", "transformers", "deepspeed"});
  BaselineVersions into{kept_text(reader, "dsplan"), kept_text(reader, "torch"), kept_text(reader, "transformers"),
                        kept_text(reader, "deepspeed")};
  reader.refuse_unread("\"written\"");
  return into;
}

std::vector<BaselineRank> read_ranks(ObjectReader& whole, const Value& list, std::string_view what) {
  std::vector<BaselineRank> ranks;
  if (list.items.empty()) whole.fault("ranks", "\"ranks\" is empty: there is nothing to hold a prediction against");
  for (const Value& item : list.items) {
    if (!is_object(whole.document(), item, "a rank", whole.diagnostics())) continue;
    ObjectReader reader(whole.document(), item, whole.diagnostics());
    need(reader, {"rank", "rows"});
    BaselineRank rank;
    rank.rank = reader.integer("rank", 0, INT64_MAX).value_or(0);
    const bool twice =
        std::any_of(ranks.begin(), ranks.end(), [&](const BaselineRank& one) { return one.rank == rank.rank; });
    if (twice) reader.fault("rank", formatted("rank {} stands twice", rank.rank));
    if (const Value* rows = reader.object("rows")) rank.rows = read_rows(whole.document(), *rows, whole.diagnostics());
    reader.refuse_unread(formatted("a rank of {}", what));
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

std::vector<ResolvedInput> read_resolved(const Document& document, const Value& list, Diagnostics& faults) {
  std::vector<ResolvedInput> inputs;
  for (const Value& item : list.items) {
    if (!is_object(document, item, "a resolved input", faults)) continue;
    ObjectReader reader(document, item, faults);
    need(reader, {"name", "value", "origin"});
    ResolvedInput input;
    input.name = kept_text(reader, "name");
    input.value = kept_text(reader, "value");
    const std::string origin = reader.choice("origin", {"given", "derived", "assumed"}).value_or("given");
    for (const Origin one : {Origin::Given, Origin::Derived, Origin::Assumed}) {
      if (origin == name(one)) input.origin = one;
    }
    reader.refuse_unread("a resolved input");
    inputs.push_back(std::move(input));
  }
  return inputs;
}

std::string quoted(std::string_view text) {
  Value value;
  value.kind = Value::Kind::String;
  value.string = text;
  return canonical_json(value);
}

void write_value(const Value& value, std::size_t indent, std::string& text) {
  const bool object = value.is(Value::Kind::Object);
  const bool flat = std::none_of(value.items.begin(), value.items.end(), [](const Value& item) {
    return item.is(Value::Kind::Object) || item.is(Value::Kind::Array);
  });
  const std::size_t count = object ? value.members.size() : value.items.size();
  if ((!object && (!value.is(Value::Kind::Array) || flat)) || count == 0) {
    text += value.items.empty() ? scalar_text(value) : canonical_json(value);
    return;
  }
  text += object ? "{\n" : "[\n";
  for (std::size_t i = 0; i < count; ++i) {
    text.append(indent + 1, ' ');
    if (object) text += quoted(value.members[i].key) + ": ";
    write_value(object ? value.members[i].value : value.items[i], indent + 1, text);
    text += i + 1 < count ? ",\n" : "\n";
  }
  text.append(indent, ' ');
  text += object ? '}' : ']';
}

std::string versions_text(const BaselineVersions& versions) {
  return formatted(R"({{"dsplan": {}, "torch": {}, "transformers": {}, "deepspeed": {}}})", quoted(versions.dsplan),
                   quoted(versions.torch), quoted(versions.transformers), quoted(versions.deepspeed));
}

std::string ranks_text(const std::vector<BaselineRank>& ranks) {
  std::vector<std::string> items;
  for (const BaselineRank& rank : ranks) items.push_back(rank_text(rank));
  return list_text(items);
}

std::string resolved_text(const std::vector<ResolvedInput>& inputs) {
  std::vector<std::string> items;
  for (const ResolvedInput& input : inputs) {
    items.push_back(formatted(R"(  {{"name": {}, "value": {}, "origin": "{}"}})", quoted(input.name),
                              quoted(input.value), name(input.origin)));
  }
  return list_text(items);
}

}  // namespace dsplan::detail
