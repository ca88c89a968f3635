#include "report/check_words.h"

#include <algorithm>

#include "core/format.h"

namespace dsplan {
namespace {

std::string signed_number(std::int64_t value) {
  return value < 0 ? "-" + grouped(-value) : (value > 0 ? "+" : "") + grouped(value);
}

std::string or_none(const std::string& text) { return text.empty() ? "(none)" : text; }

}  // namespace

std::string figure_words(const FigureValue& value) {
  if (value.number) return grouped(*value.number);
  return value.text.empty() ? "-" : value.text;
}

std::string moved_words(const FigureValue& before, const FigureValue& after) {
  if (before == after) return "0";
  const std::optional<std::int64_t> by = difference(before, after);
  return by ? signed_number(*by) : "moved";
}

std::string by_whom(const CheckedRow& row) {
  if (!row.moved()) return {};
  const char* who = row.newer && row.yours ? "a newer dsplan and your change"
                    : row.newer            ? "a newer dsplan"
                                           : "your change";
  return formatted("      moved by {}\n", who);
}

std::vector<std::string> shares_of(const CheckedRow& row, const std::vector<SourceChange>& changes) {
  std::vector<std::string> shares;
  const std::optional<std::int64_t> whole = difference(row.replayed, row.now);
  if (changes.size() < 2 || !whole || *whole == 0) return shares;
  std::int64_t rest = *whole;
  bool all = true;
  for (std::size_t i = 0; i < changes.size() && i < row.by_source.size(); ++i) {
    const std::optional<std::int64_t> share = row.by_source[i];
    all = all && share.has_value();
    if (share) rest = checked_add(rest, -*share);
    if (share && *share != 0) shares.push_back(formatted("{} {}", changes[i].name, signed_number(*share)));
  }
  if (rest != 0) shares.push_back(formatted("{} {}", all ? "together" : "the others", signed_number(rest)));
  return shares;
}

std::string key_words(const KeyChange& key) {
  const std::string where = key.place.text();
  const std::string what = key.key.empty() ? std::string() : key.key + ": ";
  return formatted("{}: {}{} -> {}", where, what, or_none(key.before), or_none(key.after));
}

std::string input_words(const InputChange& input) {
  const std::string why = input.reason.empty() ? std::string() : formatted(" ({})", input.reason);
  return formatted("{}: {} -> {}{}", input.name, or_none(input.before), or_none(input.after), why);
}

std::vector<std::string> newer_words(const CheckedBaseline& checked) {
  std::vector<std::string> words;
  const bool moved = counts(checked).newer > 0 || !checked.newer_inputs.empty() || checked.model_differs;
  if (!moved) return words;
  if (checked.written.dsplan != checked.here.dsplan) {
    words.push_back(formatted("the baseline is by dsplan {}, this is {}", checked.written.dsplan, checked.here.dsplan));
  } else {
    words.push_back(formatted("the baseline is by dsplan {} too: by another build of it, or edited by hand",
                              checked.written.dsplan));
  }
  if (checked.model_differs) words.emplace_back("its model is not the one whose hash the baseline holds");
  for (const InputChange& input : checked.newer_inputs) words.push_back(input_words(input));
  return words;
}

std::string summary_words(const CheckedBaseline& checked) {
  if (!checked.refused.empty()) return fault_words(checked.refused.front());
  const RowCounts rows = counts(checked);
  std::string text =
      rows.newer == 0 && rows.yours == 0
          ? formatted("{} rows agree", rows.rows)
          : formatted("of {} rows your change moved {}, a newer dsplan {}", rows.rows, rows.yours, rows.newer);
  if (rows.within > 0) text += formatted("; {} within the tolerance", rows.within);
  return text;
}

std::string totals_words(const std::vector<CheckedBaseline>& checked) {
  const auto count = [&](std::string_view word) {
    return std::count_if(checked.begin(), checked.end(),
                         [&](const CheckedBaseline& one) { return state(one) == word; });
  };
  return formatted("{} baseline{}: {} agree, {} differ, {} refused", checked.size(), checked.size() == 1 ? "" : "s",
                   count("agrees"), count("differs"), count("refused"));
}

std::string fault_words(const Diagnostic& fault) {
  const Place place{fault.path, fault.line, fault.column, {}};
  return formatted("{}: {}{}{}", place.text(), fault.message, fault.hint.empty() ? "" : "; ", fault.hint);
}

std::vector<std::string> headlines(const CheckedBaseline& checked) {
  std::vector<std::string> lines;
  for (const CheckedRank& rank : checked.ranks) {
    for (const CheckedRow& row : rank.rows) {
      if (!row.moved() || !stands_for_the_run(row)) continue;
      const std::string name = row.path.starts_with("memory.") ? row.path.substr(7) : row.path;
      const std::string by = row.kind == RowKind::Verdict
                                 ? formatted("{} -> {}", figure_words(row.stored), figure_words(row.now))
                                 : moved_words(row.stored, row.now);
      lines.push_back(formatted("{} {}", name, by));
    }
    if (!lines.empty()) break;  // The first rank stands for the others here.
  }
  return lines;
}

}  // namespace dsplan
