#include <algorithm>

#include "cli/assemble.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/report.h"
#include "cli/simulate_graph.h"
#include "core/format.h"
#include "planner/predict/predict.h"
#include "planner/predict/saved_tensors.h"
#include "report/prediction_file.h"
#include "report/prediction_tables.h"

namespace dsplan {
namespace {

enum class Format : std::uint8_t { Table, Json, Csv, Markdown };

Format format_of(const Request& request) {
  const std::string text = request.format.value_or("table");
  if (text == "table") return Format::Table;
  if (text == "json") return Format::Json;
  if (text == "csv") return Format::Csv;
  if (text == "md") return Format::Markdown;
  throw Refusal({request.format.place.says(formatted("no format \"{}\"", text), "formats are table, json, csv, md")});
}

std::string printed(const std::vector<Prediction>& predictions, const Job& job, Format format,
                    const ReportStyle& style) {
  const bool all = job.rank == "all";
  switch (format) {
    case Format::Table: return all ? report_ranks(predictions, job, style) : report(predictions.front(), job, style);
    case Format::Json: return all ? predictions_json(predictions, job) : prediction_json(predictions.front(), job);
    case Format::Csv: return predictions_csv(predictions, job);
    case Format::Markdown: return predictions_markdown(predictions, job);
  }
  return {};
}

}  // namespace

int simulate_command(const Words& words) {
  const SimulateWords said = parse_simulate("simulate", words);
  if (const std::optional<OpGraph> graph = op_graph_of(said.model)) return simulate_graph(*graph, said);
  const Inputs inputs = gather(said);
  const Format format = format_of(inputs.request);
  Output output(inputs.request.out.value_or(""));
  Job job = resolve(inputs);
  job.explain_fragmentation = std::count(said.explain.begin(), said.explain.end(), Topic::Fragmentation) > 0;
  job.explain_advice = std::count(said.explain.begin(), said.explain.end(), Topic::Advice) > 0;
  say(render(job.notices));
  std::vector<Prediction> predictions = predict_asked(inputs.model, job);
  if (std::find(said.explain.begin(), said.explain.end(), Topic::Saved) != said.explain.end()) {
    const std::vector<SavedTensor> saved = saved_tensors(inputs.model, job);  // The same on every rank.
    for (Prediction& prediction : predictions) prediction.saved = saved;
  }
  output.add(printed(predictions, job, format, {output.colour(), said.explain}));
  output.finish();
  const Verdict verdict = worst_of(predictions).verdict;
  if (verdict == Verdict::FitsWithRetries) {
    say("warning: it fits only after the allocator has given cached memory back, which costs time\n");
  }
  return verdict == Verdict::DoesNotFit ? kDoesNotFit : kDone;
}

}  // namespace dsplan
