// `dsplan compare`: predictions against what was measured.
#include <algorithm>
#include <array>
#include <filesystem>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/predicted.h"
#include "cli/report_comparison.h"
#include "cli/saved_plan.h"
#include "core/format.h"
#include "io/text.h"
#include "planner/predict/predict.h"
#include "report/compare.h"
#include "report/compare_rows.h"
#include "report/comparison.h"
#include "report/comparison_report.h"
#include "report/operator_comparison.h"
#include "report/operators_receipt.h"
#include "report/plan_file.h"
#include "report/prediction_file.h"
#include "report/receipt.h"

namespace dsplan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCompareFooter =
    "RECEIPT is a file of the measuring tools (docs/receipts.md) or a folder of\n"
    "such files. Without --re-predict two files: PREDICTION.json, as simulate\n"
    "--format json printed it, or a plan, and the receipt; their fingerprints must\n"
    "agree.\n"
    "Files of measured operators are held against the catalogue, all as one.\n"
    "KIND is requested, allocated, active, reserved, process, host, calls,\n"
    "payload, wire or parameters; N is bytes, or a percentage (1%).\n"
    "Example: dsplan compare receipt.json --re-predict\n"
    "Exit codes: 0 it agrees, 2 refused, 4 something differs unexplained.";

struct CompareWords {
  std::vector<std::string> files;
  bool re_predict = false;
  RepredictWords predict;
  std::optional<std::string> explained;
  std::vector<std::string> tolerances;
  std::optional<std::string> part;
  std::optional<std::string> format;
  std::optional<std::string> out;
};

CompareWords parse_compare(const Words& words) {
  CompareWords said;
  CommandLine line("dsplan compare", "Holds predictions against measurements, row by row.", kCompareFooter);
  line.positionals("RECEIPT", "Receipts, folders of receipts; or PREDICTION RECEIPT", said.files);
  line.flag("--re-predict", "Predict anew from each receipt's own inputs", said.re_predict);
  line.option("--level", "kernel|dispatch", "Of the prediction; by the receipt's device", said.predict.level);
  line.option("--calibration", "FILE", "Measured figures of the device", said.predict.calibration);
  line.option("--explained", "FILE", "Known differences, with their reasons", said.explained);
  line.list("--tolerance", "KIND=N", "Bytes or percent; may be repeated", said.tolerances);
  line.option("--part", "causes|final|all", "Which part of the receipts; all by default", said.part);
  line.option("--format", "table|json|csv|md", "How to print", said.format);
  line.option("--out", "FILE", "Print to a file, which appears when complete", said.out);
  line.parse(words);
  Diagnostics faults;
  const auto choice = [&](const char* name, const std::optional<std::string>& word,
                          std::initializer_list<std::string_view> words_known) {
    if (!word || std::find(words_known.begin(), words_known.end(), *word) != words_known.end()) return;
    faults.add({name, 0, 0, {}, formatted("no {} \"{}\"", name + 2, *word), did_you_mean(*word, words_known)});
  };
  choice("--format", said.format, {"table", "json", "csv", "md"});
  choice("--part", said.part, {"causes", "final", "all"});
  choice("--level", said.predict.level, {"kernel", "dispatch"});
  if (said.files.empty()) faults.add({"dsplan compare", 0, 0, {}, "RECEIPT is missing", {}});
  if (!said.re_predict) {
    for (const auto& [name, given] : {std::pair{"--level", said.predict.level.has_value()},
                                      std::pair{"--calibration", said.predict.calibration.has_value()}}) {
      if (given) faults.add({name, 0, 0, {}, "belongs to --re-predict: a saved prediction is what it is", {}});
    }
  }
  faults.throw_if_any();
  return said;
}

CompareTerms terms_of(const CompareWords& said) {
  CompareTerms terms;
  terms.tolerances = read_tolerances(said.tolerances);
  if (said.explained) terms.known = read_known_differences(read_document(*said.explained));
  return terms;
}

std::string schema_of(const Document& document) {
  const Value* schema = document.root.is(Value::Kind::Object) ? document.root.find("schema") : nullptr;
  return schema != nullptr && schema->is(Value::Kind::String) ? schema->string : "";
}

// The receipts among the arguments; from folders, at any depth, every JSON file that is one.
std::vector<Receipt> read_receipts(const CompareWords& said) {
  std::vector<Receipt> receipts;
  const auto take = [&](const std::string& path, bool named) {
    const Document document = read_document(path);
    const std::string schema = schema_of(document);
    if (!named && schema != "dsplan.receipt/1") {
      if (schema.starts_with("dsplan."))
        return;  // Calibrations, verdicts, known differences: they stand beside receipts.
      return say(formatted("{}: note: passed over, it is no receipt\n", path));
    }
    receipts.push_back(read_receipt(document));
  };
  for (const std::string& file : said.files) {
    if (!fs::is_directory(file)) {
      take(file, true);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : fs::recursive_directory_iterator(file, fs::directory_options::skip_permission_denied)) {
      if (entry.is_regular_file() && entry.path().extension() == ".json") inside.push_back(entry.path().string());
    }
    std::sort(inside.begin(), inside.end());
    for (const std::string& path : inside) take(path, false);
  }
  const std::string part = said.part.value_or("all");
  std::erase_if(receipts,
                [&](const Receipt& receipt) { return part != "all" && name(part_of(receipt.inputs)) != part; });
  return receipts;
}

// What refuses one receipt of several is listed with it; of a single one it is the answer.
ReceiptComparison compare_anew(const Receipt& receipt, const CompareWords& said, const CompareTerms& terms,
                               bool alone) {
  try {
    const Repredicted predicted = repredict(receipt, said.predict);
    ReceiptComparison comparison = compare(receipt, predicted.ranks, terms);
    comparison.strata = strata_of(predicted.job, predicted.inputs.model);
    comparison.notes = predicted.notes;
    return comparison;
  } catch (const Refusal& refusal) {
    const bool of_the_receipt =
        refusal.diagnostics().empty() || !said.explained || refusal.diagnostics().front().path != *said.explained;
    if (alone || !of_the_receipt) throw;
    ReceiptComparison comparison = nothing_compared(receipt);
    comparison.refused = refusal.diagnostics().empty() ? refusal.what() : refusal.diagnostics().front().message;
    return comparison;
  }
}

// A plan says what to predict; a prediction is what it is.
std::vector<PredictedRank> predictions_in(const Document& document, const Receipt& receipt) {
  if (!is_plan(document)) return read_predictions(document);
  SimulateWords alone;
  const Inputs inputs = gather_plan(read_plan(document), {}, alone);
  const Job job = resolve(inputs);
  if (job.parallelism.world != receipt.world) {
    throw Refusal(document.path,
                  formatted("is of {} ranks, and {} were measured", job.parallelism.world, receipt.world));
  }
  return predict_measured(inputs.model, job, receipt);
}

ReceiptComparison compare_saved(const CompareWords& said, const CompareTerms& terms) {
  const Receipt receipt = read_receipt(read_document(said.files[1]));
  const std::vector<PredictedRank> predicted = predictions_in(read_document(said.files[0]), receipt);
  require_same_job(receipt, said.files[1], predicted, said.files[0]);
  for (const RankFigures& measured : receipt.ranks) {
    const bool there = std::any_of(predicted.begin(), predicted.end(),
                                   [&](const PredictedRank& one) { return one.figures.rank == measured.rank; });
    if (!there) {
      throw Refusal(said.files[0], formatted("holds no prediction of rank {}, which was measured", measured.rank),
                    "`dsplan simulate --rank all` predicts all of them");
    }
  }
  return compare(receipt, predicted, terms);
}

int finish(const CompareWords& said, const std::vector<ReceiptComparison>& comparisons) {
  const std::vector<StratumRow> strata = by_stratum(comparisons);
  const std::string format = said.format.value_or("table");
  Output output(said.out.value_or(""));
  if (format == "json") {
    output.add(comparisons_json(comparisons, strata));
  } else if (format == "csv") {
    output.add(comparisons_csv(comparisons));
  } else if (format == "md") {
    output.add(comparisons_markdown(comparisons, strata));
  } else {
    output.add(report(comparisons, strata));
  }
  output.finish();
  if (differs(comparisons)) return kDiffers;
  const bool refused = std::any_of(comparisons.begin(), comparisons.end(),
                                   [](const ReceiptComparison& one) { return one.refused.has_value(); });
  return refused ? kRefused : kDone;
}

int compare_verdicts(const CompareWords& said, const Document& document) {
  const VerdictCases cases = read_verdicts(document);
  const std::string format = said.format.value_or("table");
  if (format != "table" && format != "json") {
    throw Refusal("--format", formatted("no format \"{}\" of verdicts", format), "formats are table, json");
  }
  Output output(said.out.value_or(""));
  output.add(format == "json" ? verdicts_json(cases) : report(cases));
  output.finish();
  const bool right =
      std::all_of(cases.rows.begin(), cases.rows.end(), [](const VerdictCase& one) { return one.right(); });
  return right ? kDone : kDiffers;
}

// Measured operators against the catalogue; several files are one measurement.
int compare_measured_operators(const CompareWords& said) {
  const std::string format = said.format.value_or("table");
  if (format != "table" && format != "json") {
    throw Refusal("--format", formatted("no format \"{}\" of measured operators", format), "formats are table, json");
  }
  std::vector<OperatorRuns> files;
  for (const std::string& path : said.files) {
    files.push_back(read_operator_runs(read_document(path)));
    if (files.back().level != files.front().level) {
      throw Refusal(path, formatted("was measured at another level than {}", said.files.front()),
                    "compare them one after the other");
    }
  }
  const OperatorComparison comparison = compare_operators(files);
  Output output(said.out.value_or(""));
  output.add(format == "json" ? operator_comparison_json(comparison) : operators_report(comparison));
  output.finish();
  return comparison.differs() ? kDiffers : kDone;
}

}  // namespace

int compare_command(const Words& words) {
  const CompareWords said = parse_compare(words);
  if (!said.files.empty() && !fs::is_directory(said.files.front())) {
    const Document document = read_document(said.files.front());
    const std::string schema = schema_of(document);
    if (schema == kOperatorRunsSchema) return compare_measured_operators(said);
    if (schema == "dsplan.verdicts/1" && said.files.size() == 1) return compare_verdicts(said, document);
  }
  const CompareTerms terms = terms_of(said);
  if (!said.re_predict) {
    if (said.files.size() != 2) {
      throw Refusal("dsplan compare", "without --re-predict it takes two files: PREDICTION RECEIPT",
                    "`dsplan compare --re-predict RECEIPT` needs no prediction");
    }
    return finish(said, {compare_saved(said, terms)});
  }
  const std::vector<Receipt> receipts = read_receipts(said);
  if (receipts.empty()) throw Refusal("dsplan compare", "there is no receipt to compare");
  std::vector<ReceiptComparison> comparisons;
  for (const Receipt& receipt : receipts) {
    comparisons.push_back(compare_anew(receipt, said, terms, receipts.size() == 1));
  }
  return finish(said, comparisons);
}

}  // namespace dsplan
