#include "report/comparison_report.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "core/format.h"
#include "io/fields.h"
#include "io/json_text.h"
#include "report/cells.h"

namespace dsplan {
namespace {

using detail::cell;
using detail::quoted;
using detail::signed_number;

// Bytes, a count, or the verdict's word.
Json side_of(const ComparedRow& row, const std::optional<std::int64_t>& number, const std::string& text) {
  return row.kind == RowKind::Verdict ? Json(text) : Json(number);
}

void describe(Fields& fields, ComparedRow& row) {
  const Json any = {{"type", Json::array({"integer", "string", "null"})}};
  const bool both = is_said(row) && row.kind != RowKind::Verdict;
  const auto if_both = [&](const char* key, std::int64_t value) {
    fields.derived(key, both ? std::optional(value) : std::nullopt, INT64_MIN);
  };
  fields("row", row.path);
  fields.named("kind", row.kind, all_up_to(RowKind::Verdict));
  fields.other("predicted", side_of(row, row.predicted, row.predicted_text), any);
  fields.other("measured", side_of(row, row.measured, row.measured_text), any);
  if_both("explained", row.explained);
  fields.texts("by", row.reasons, "a reason");
  if_both("unexplained", row.unexplained);
  if_both("tolerance", row.tolerance);
  fields.named("state", row.state, all_up_to(ComparedRow::State::NotPredicted));
  fields("note", row.note);
}

void describe(Fields& fields, RankComparison& rank) {
  std::map<ComparedRow::State, std::int64_t> counts;
  for (const ComparedRow& row : rank.rows) ++counts[row.state];
  fields("rank", rank.rank);
  fields.object("counts", {"counts"}, [&] {
    for (const auto state : {ComparedRow::State::Equal, ComparedRow::State::Within, ComparedRow::State::Differs,
                             ComparedRow::State::NotMeasured, ComparedRow::State::NotPredicted}) {
      fields.derived(name(state), counts[state]);
    }
  });
  fields.list("rows", rank.rows, {"a row"}, [&](ComparedRow& row) { describe(fields, row); });
}

void describe(Fields& fields, ReceiptComparison& comparison) {
  fields("receipt", comparison.receipt);
  fields("path", comparison.path);
  fields("source", comparison.source);
  fields.derived("level", std::string(name(comparison.level)));
  fields.derived("device", std::string(name(comparison.device)));
  fields.derived("part", std::string(name(comparison.part)));
  fields.texts("strata", comparison.strata, "a stratum");
  fields("fingerprint", comparison.fingerprint);
  fields("complete", comparison.complete);
  fields.derived("outcome", std::string(name(comparison.outcome)));
  fields.named("verdict", comparison.verdict, all_up_to(Verdict::Unknown));
  fields("refused", comparison.refused);
  fields.derived("differs", differs(comparison));
  fields.texts("notes", comparison.notes, "a note");
  fields.texts("stale", comparison.stale, "an explanation");
  fields.list("ranks", comparison.ranks, {"a rank"}, [&](RankComparison& rank) { describe(fields, rank); });
}

void describe(Fields& fields, StratumRow& row) {
  const bool percents = row.cases >= kLeastCases && row.row != "verdict";
  const auto percent = [&](const char* key, double value) {
    fields.derived(key, percents ? std::optional(value) : std::nullopt, INT64_MIN);
  };
  std::string evidence = row.cases >= kLeastCases ? "sufficient" : "insufficient";
  fields("stratum", row.stratum);
  fields.derived("device", std::string(name(row.device)));
  fields("row", row.row);
  fields("cases", row.cases);
  fields("equal", row.equal);
  fields("unexplained", row.unexplained);
  percent("median_percent", row.median_percent);
  percent("worst_percent", row.worst_percent);
  fields.word("evidence", evidence, {"sufficient", "insufficient"});
}

constexpr const char* kComparisonSchema = "dsplan.comparison/1";

void describe_comparisons(Fields& fields, std::vector<ReceiptComparison>& comparisons,
                          std::vector<StratumRow>& strata) {
  fields.constant("schema", kComparisonSchema);
  fields.derived("differs", differs(comparisons));
  fields.list("receipts", comparisons, {"a receipt"}, [&](ReceiptComparison& one) { describe(fields, one); });
  fields.list("strata", strata, {"a stratum"}, [&](StratumRow& row) { describe(fields, row); });
}

std::string number(const std::optional<std::int64_t>& value) { return value ? grouped(*value) : "-"; }

}  // namespace

std::string comparisons_json(const std::vector<ReceiptComparison>& comparisons, const std::vector<StratumRow>& strata) {
  return written([&](Fields& fields) { describe_comparisons(fields, described(comparisons), described(strata)); });
}

std::string comparison_schema() {
  return schema_of(kComparisonSchema, "What `dsplan compare --format json` prints (docs/comparing.md).",
                   [](Fields& fields) {
                     std::vector<ReceiptComparison> any;
                     std::vector<StratumRow> strata;
                     describe_comparisons(fields, any, strata);
                   });
}

std::string comparisons_csv(const std::vector<ReceiptComparison>& comparisons) {
  std::string text = "receipt,rank,row,kind,predicted,measured,explained,unexplained,tolerance,state,note\n";
  const auto plain = [](const std::optional<std::int64_t>& value) { return value ? std::to_string(*value) : ""; };
  for (const ReceiptComparison& comparison : comparisons) {
    for (const RankComparison& rank : comparison.ranks) {
      for (const ComparedRow& row : rank.rows) {
        const bool verdict = row.kind == RowKind::Verdict;
        const auto if_both = [&](std::int64_t value) {
          return is_said(row) && !verdict ? std::to_string(value) : std::string();
        };
        const std::string why = row.note.empty() ? formatted("{}", joined(row.reasons, "; ")) : row.note;
        text += formatted("{},{},{},{},{},{},{},{},{},{},{}\n", quoted(comparison.receipt), rank.rank, quoted(row.path),
                          name(row.kind), verdict ? row.predicted_text : plain(row.predicted),
                          verdict ? row.measured_text : plain(row.measured), if_both(row.explained),
                          if_both(row.unexplained), if_both(row.tolerance), name(row.state), quoted(why));
      }
    }
  }
  return text;
}

std::string comparisons_markdown(const std::vector<ReceiptComparison>& comparisons,
                                 const std::vector<StratumRow>& strata) {
  std::string text =
      "| receipt | rank | row | predicted | measured | explained | unexplained | |\n"
      "|:--|--:|:--|--:|--:|--:|--:|:--|\n";
  for (const ReceiptComparison& comparison : comparisons) {
    if (comparison.refused) {
      text += formatted("| {} | | | | | | | refused: {} |\n", cell(comparison.receipt), cell(*comparison.refused));
    }
    for (const RankComparison& rank : comparison.ranks) {
      for (const ComparedRow& row : rank.rows) {
        const bool differs = row.state == ComparedRow::State::Differs;
        if (!is_said(row) || (!stands_for_the_run(row) && !differs && row.explained == 0)) continue;
        const bool verdict = row.kind == RowKind::Verdict;
        text += formatted("| {} | {} | {} | {} | {} | {} | {} | {} |\n", cell(comparison.receipt), rank.rank,
                          cell(row.path), verdict ? cell(row.predicted_text) : number(row.predicted),
                          verdict ? cell(row.measured_text) : number(row.measured),
                          row.explained == 0 ? "" : signed_number(row.explained),
                          verdict ? "" : signed_number(row.unexplained), cell(name(row.state)));
      }
    }
  }
  if (strata.empty()) return text;
  text +=
      "\n| stratum | device | row | cases | equal | unexplained | median error | worst error |\n"
      "|:--|:--|:--|--:|--:|--:|--:|--:|\n";
  for (const StratumRow& row : strata) {
    const bool enough = row.cases >= kLeastCases;
    const std::string median = enough ? formatted("{:+.3f} %", row.median_percent) : "insufficient evidence";
    const std::string worst = enough ? formatted("{:+.3f} %", row.worst_percent) : "";
    const bool verdict = row.row == "verdict";
    text += formatted("| {} | {} | {} | {} | {} | {} | {} | {} |\n", cell(row.stratum), name(row.device), cell(row.row),
                      row.cases, row.equal, row.unexplained, verdict ? "" : median, verdict ? "" : worst);
  }
  return text;
}

namespace {

constexpr const char* kConfusionSchema = "dsplan.confusion/1";

// How often a verdict was followed by a run and how often by running out of memory.
struct Confusion {
  Verdict predicted;
  std::int64_t ran = 0;
  std::int64_t out_of_memory = 0;
};

std::vector<Confusion> confusion_of(const VerdictCases& cases) {
  std::vector<Confusion> rows;
  for (const Verdict verdict : {Verdict::Fits, Verdict::Tight, Verdict::FitsWithRetries, Verdict::DoesNotFit}) {
    Confusion row{verdict};
    for (const VerdictCase& one : cases.rows) {
      if (one.verdict != verdict) continue;
      if (one.outcome == Receipt::Outcome::Ran) ++row.ran;
      if (one.outcome == Receipt::Outcome::OutOfMemory) ++row.out_of_memory;
    }
    rows.push_back(row);
  }
  return rows;
}

void describe_confusion(Fields& fields, VerdictCases& cases) {
  std::vector<VerdictCase> wrong;
  std::copy_if(cases.rows.begin(), cases.rows.end(), std::back_inserter(wrong),
               [](const VerdictCase& one) { return !one.right(); });
  std::vector<Confusion> matrix = confusion_of(cases);
  fields.constant("schema", kConfusionSchema);
  fields("source", cases.source);
  fields.derived("cases", cases.rows.size());
  fields.derived("right", cases.rows.size() - wrong.size());
  fields.list("matrix", matrix, {"a verdict"}, [&](Confusion& row) {
    fields.named("predicted", row.predicted, all_up_to(Verdict::DoesNotFit));
    fields("ran", row.ran);
    fields("out_of_memory", row.out_of_memory);
  });
  fields.list("wrong", wrong, {"a case"}, [&](VerdictCase& one) {
    fields("name", one.name);
    fields("factor_permille", one.permille);
  });
}

}  // namespace

std::string verdicts_json(const VerdictCases& cases) {
  return written([&](Fields& fields) { describe_confusion(fields, described(cases)); });
}

std::string confusion_schema() {
  return schema_of(kConfusionSchema, "What `dsplan compare VERDICTS --format json` prints (docs/comparing.md).",
                   [](Fields& fields) {
                     VerdictCases any;
                     describe_confusion(fields, any);
                   });
}

}  // namespace dsplan
