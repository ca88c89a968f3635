#include "report/check_report.h"

#include <algorithm>
#include <cstdlib>

#include "core/format.h"
#include "io/fields.h"
#include "io/json_text.h"
#include "report/cells.h"
#include "report/kept_figures.h"

namespace dsplan {

namespace {

std::string or_none(const std::string& text) { return text.empty() ? "(none)" : text; }

// "1,234,567,890 (1.15 GiB)": people compare the latter. Small numbers and counts stay alone.
std::string with_size(const std::string& text, RowKind kind, const std::optional<std::int64_t>& bytes) {
  const bool counts = kind == RowKind::Calls || kind == RowKind::Parameters || kind == RowKind::Verdict;
  if (counts || !bytes || std::abs(*bytes) < 1024) return text;
  return formatted("{} ({}{})", text, *bytes < 0 ? "-" : "", human(Bytes(std::abs(*bytes))));
}

}  // namespace

std::string threshold_words(const CheckedBaseline& checked) {
  if (!exceeds(checked)) return {};
  const std::optional<Bytes> process = process_now(checked);
  if (!process) return "no process is predicted, and a threshold wants one";
  return formatted("takes {}, and at most {} are allowed", human(*process), human(*checked.at_most));
}

std::string figure_words(const FigureValue& value) {
  if (value.number) return grouped(*value.number);
  return value.text.empty() ? "-" : value.text;
}

std::string moved_words(const FigureValue& before, const FigureValue& after) {
  if (before == after) return "0";
  const std::optional<std::int64_t> by = difference(before, after);
  return by ? detail::signed_number(*by) : "moved";
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
    if (share && *share != 0) shares.push_back(formatted("{} {}", changes[i].name, detail::signed_number(*share)));
  }
  if (rest != 0) shares.push_back(formatted("{} {}", all ? "together" : "the others", detail::signed_number(rest)));
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
  const std::string threshold = threshold_words(checked);
  return threshold.empty() ? text : threshold + "; " + text;
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
      const std::string by =
          row.kind == RowKind::Verdict
              ? formatted("{} -> {}", figure_words(row.stored), figure_words(row.now))
              : with_size(moved_words(row.stored, row.now), row.kind, difference(row.stored, row.now));
      lines.push_back(formatted("{} {}", name, by));
    }
    if (!lines.empty()) break;  // The first rank stands for the others here.
  }
  return lines;
}

namespace {

using detail::cell;
// ---- JSON

// A number, the verdict's word, or null.
void describe_figure(Fields& fields, const char* key, const FigureValue& value) {
  Json said = value.text.empty() ? Json() : Json(value.text);
  if (value.number) said = *value.number;
  fields.other(key, said, {{"type", Json::array({"integer", "string", "null"})}});
}

void describe_place(Fields& fields, Place& place) {
  fields("file", place.path);
  fields("line", place.line);
  fields("column", place.column);
}

void describe_changes(Fields& fields, const char* key, std::vector<InputChange>& changes) {
  fields.list(key, changes, {"an input"}, [&](InputChange& one) {
    fields("name", one.name);
    fields("before", one.before);
    fields("after", one.after);
    fields("reason", one.reason);
  });
}

void describe(Fields& fields, SourceChange& change) {
  fields.named("source", change.kind, all_up_to(SourceKind::Command));
  fields("name", change.name);
  fields.list("keys", change.keys, {"a key"}, [&](KeyChange& key) {
    fields("key", key.key);
    fields("before", key.before);
    fields("after", key.after);
    describe_place(fields, key.place);
  });
  fields("refused_alone", change.refused_alone);
}

void describe(Fields& fields, CheckedRow& row) {
  fields("row", row.path);
  fields.named("kind", row.kind, all_up_to(RowKind::Verdict));
  describe_figure(fields, "baseline", row.stored);
  describe_figure(fields, "replayed", row.replayed);
  describe_figure(fields, "now", row.now);
  fields.derived("newer_dsplan", difference(row.stored, row.replayed), INT64_MIN);
  fields.derived("your_change", difference(row.replayed, row.now), INT64_MIN);
  Json shares = Json::array();
  for (const auto& share : row.by_source) shares.push_back(share);
  fields.other("by_change", shares, {{"type", "array"}, {"items", {{"type", Json::array({"integer", "null"})}}}});
  fields("tolerance", row.tolerance);
  fields("moved_by_newer_dsplan", row.newer);
  fields("moved_by_your_change", row.yours);
}

void describe(Fields& fields, CheckedRank& rank) {
  fields("rank", rank.now);
  fields("rank_in_baseline", rank.stored);
  fields.list("rows", rank.rows, {"a row"}, [&](CheckedRow& row) { describe(fields, row); });
}

void describe(Fields& fields, Diagnostic& fault) {
  Place place{fault.path, fault.line, fault.column, {}};
  describe_place(fields, place);
  fields("message", fault.message);
  fields("hint", fault.hint);
}

constexpr const char* kCheckSchema = "dsplan.check/1";

void describe(Fields& fields, CheckedBaseline& checked) {
  const RowCounts rows = counts(checked);
  std::string said(state(checked));
  fields("baseline", checked.path);
  fields.word("state", said, {"agrees", "differs", "refused"});
  detail::describe_versions(fields, "written", checked.written);
  detail::describe_versions(fields, "here", checked.here);
  fields.derived("rows", rows.rows);
  fields.derived("moved_by_newer_dsplan", rows.newer);
  fields.derived("moved_by_your_change", rows.yours);
  fields.derived("within_tolerance", rows.within);
  fields("model_differs", checked.model_differs);
  fields.derived("process_bytes", process_now(checked));
  fields("at_most_bytes", checked.at_most);
  describe_changes(fields, "inputs_by_newer_dsplan", checked.newer_inputs);
  describe_changes(fields, "inputs_by_your_change", checked.your_inputs);
  fields.list("changes", checked.changes, {"a change"}, [&](SourceChange& one) { describe(fields, one); });
  fields.list("refused", checked.refused, {"a fault"}, [&](Diagnostic& one) { describe(fields, one); });
  fields.list("ranks", checked.ranks, {"a rank"}, [&](CheckedRank& rank) { describe(fields, rank); });
}

std::int64_t count(const std::vector<CheckedBaseline>& checked, std::string_view word) {
  return std::count_if(checked.begin(), checked.end(), [&](const CheckedBaseline& one) { return state(one) == word; });
}

void describe_check(Fields& fields, std::vector<CheckedBaseline>& checked) {
  fields.constant("schema", kCheckSchema);
  fields.derived("agree", count(checked, "agrees"));
  fields.derived("differ", count(checked, "differs"));
  fields.derived("refused", count(checked, "refused"));
  fields.list("baselines", checked, {"a baseline"}, [&](CheckedBaseline& one) { describe(fields, one); });
}

// ---- JUnit

// What XML 1.0 does not allow at all becomes a question mark.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      case '\n':
      case '\t': result += c; break;
      default: result += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return result;
}

std::string junit_case(const CheckedBaseline& checked, const std::string& details) {
  const std::string head = formatted("  <testcase classname=\"dsplan.check\" name=\"{}\"", escaped(checked.path));
  const std::string_view word = state(checked);
  if (word == "agrees") return head + "/>\n";
  const char* element = word == "refused" ? "error" : "failure";
  return head + formatted(">\n    <{0} message=\"{1}\">{2}</{0}>\n  </testcase>\n", element,
                          escaped(summary_words(checked)), escaped(details));
}

// ---- GitHub's workflow commands

// A message ends its line; a property also ends at a colon or comma
// (docs.github.com, "Workflow commands for GitHub Actions", and actions/toolkit, command.ts).
std::string in_command(std::string_view text, bool property) {
  std::string result;
  for (const char c : text) {
    if (c == '%') {
      result += "%25";
    } else if (c == '\r') {
      result += "%0D";
    } else if (c == '\n') {
      result += "%0A";
    } else if (property && c == ':') {
      result += "%3A";
    } else if (property && c == ',') {
      result += "%2C";
    } else {
      result += c;
    }
  }
  return result;
}

std::string annotation(const std::string& file, std::size_t line, std::size_t column, std::string_view title,
                       std::string_view message) {
  std::string where = "file=" + in_command(file, true);
  if (line > 0) where += formatted(",line={},col={}", line, column);
  return formatted("::error {},title={}::{}\n", where, in_command(title, true), in_command(message, false));
}

std::string threshold_annotation(const CheckedBaseline& checked) {
  const std::string threshold = threshold_words(checked);
  if (threshold.empty()) return {};
  return annotation(checked.path, checked.place.line, checked.place.column, "Memory above its threshold",
                    formatted("{}: {}", checked.path, threshold));
}

std::string annotations(const CheckedBaseline& checked) {
  std::string text;
  for (const Diagnostic& fault : checked.refused) {
    const bool in_a_file = fault.line > 0;
    text += annotation(in_a_file ? fault.path : checked.path, in_a_file ? fault.line : checked.place.line,
                       in_a_file ? fault.column : checked.place.column, "Memory prediction refused",
                       in_a_file ? fault.message : fault.path + ": " + fault.message);
  }
  const RowCounts rows = counts(checked);
  const std::string moved = formatted("{}", joined(headlines(checked), "; "));
  const std::string which = moved.empty() ? summary_words(checked) : moved;
  for (const SourceChange& change : checked.changes) {
    for (const KeyChange& key : change.keys) {
      if (rows.yours == 0) continue;
      const bool in_a_file = key.place.line > 0;
      text += annotation(in_a_file ? key.place.path : checked.path, in_a_file ? key.place.line : checked.place.line,
                         in_a_file ? key.place.column : checked.place.column, "Memory moved by your change",
                         formatted("{}\n{}: {}", key_words(key), checked.path, which));
    }
  }
  text += threshold_annotation(checked);
  if (rows.newer > 0) {
    text += annotation(checked.path, checked.place.line, checked.place.column, "Memory moved by a newer dsplan",
                       formatted("{}\n{}", joined(newer_words(checked), "\n"), which));
  }
  return text;
}

// ---- Markdown

std::string row_cells(const CheckedBaseline& checked, const CheckedRow& row, std::int64_t rank) {
  return formatted("| {} | {} | {} | {} | {} | {} | {} |\n", cell(checked.path), rank, cell(row.path),
                   with_size(figure_words(row.stored), row.kind, row.stored.number),
                   with_size(moved_words(row.stored, row.replayed), row.kind, difference(row.stored, row.replayed)),
                   with_size(moved_words(row.replayed, row.now), row.kind, difference(row.replayed, row.now)),
                   with_size(figure_words(row.now), row.kind, row.now.number));
}

constexpr const char* kTableHead =
    "| baseline | rank | row | was | newer dsplan | your change | now |\n"
    "|:--|--:|:--|--:|--:|--:|--:|\n";

std::string markdown_of(const CheckedBaseline& checked) {
  std::string text = formatted("\n### `{}`: {}\n\n{}\n", checked.path, state(checked), cell(summary_words(checked)));
  if (!checked.refused.empty()) {
    text += "\n";
    for (const Diagnostic& fault : checked.refused) text += formatted("- {}\n", cell(fault_words(fault)));
    return text;
  }
  if (!checked.changes.empty()) text += "\n";
  for (const SourceChange& change : checked.changes) {
    for (const KeyChange& key : change.keys) text += formatted("- your change: {}\n", cell(key_words(key)));
  }
  const std::vector<std::string> newer = newer_words(checked);
  if (!newer.empty()) text += "\n";
  for (const std::string& words : newer) text += formatted("- newer dsplan: {}\n", cell(words));
  std::string main;
  std::string rest;
  for (const CheckedRank& rank : checked.ranks) {
    for (const CheckedRow& row : rank.rows) {
      if (row.moved()) (stands_for_the_run(row) ? main : rest) += row_cells(checked, row, rank.now);
    }
  }
  if (!main.empty()) text += "\n" + (kTableHead + main);
  if (!rest.empty()) {
    text +=
        formatted("\n<details><summary>all other rows that moved</summary>\n\n{}{}\n</details>\n", kTableHead, rest);
  }
  return text;
}

}  // namespace

std::string check_json(const std::vector<CheckedBaseline>& checked) {
  return written([&](Fields& fields) { describe_check(fields, described(checked)); });
}

std::string check_schema() {
  return schema_of(kCheckSchema, "What `dsplan check --format json` prints (docs/ci.md). Sizes are bytes.",
                   [](Fields& fields) {
                     std::vector<CheckedBaseline> any;
                     describe_check(fields, any);
                   });
}

std::string check_junit(const std::vector<CheckedBaseline>& checked, const std::vector<std::string>& details) {
  const std::string totals = formatted("tests=\"{}\" failures=\"{}\" errors=\"{}\"", checked.size(),
                                       count(checked, "differs"), count(checked, "refused"));
  std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  text += formatted("<testsuites {0}>\n <testsuite name=\"dsplan check\" {0}>\n", totals);
  for (std::size_t i = 0; i < checked.size(); ++i) text += junit_case(checked[i], details[i]);
  return text + " </testsuite>\n</testsuites>\n";
}

std::string check_github(const std::vector<CheckedBaseline>& checked) {
  std::string text;
  for (const CheckedBaseline& one : checked) text += annotations(one);
  return text + formatted("::notice title=dsplan check::{}\n", in_command(totals_words(checked), false));
}

std::string check_markdown(const std::vector<CheckedBaseline>& checked) {
  std::string text = formatted("## Memory and traffic: {}\n", totals_words(checked));
  for (const CheckedBaseline& one : checked) {
    if (state(one) != "agrees") text += markdown_of(one);
  }
  return text;
}

}  // namespace dsplan
