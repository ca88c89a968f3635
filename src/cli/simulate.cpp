#include "cli/simulate.h"

#include <algorithm>
#include <array>

#include "cli/assemble.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/report.h"
#include "cli/wrap.h"
#include "core/cluster.h"
#include "core/format.h"
#include "io/locate.h"
#include "io/machine_files.h"
#include "io/op_graph.h"
#include "planner/predict/predict.h"
#include "planner/predict/predict_graph.h"
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

void warn(const Prediction& p) {
  if (fits(p.verdict) && p.retries > 0) {
    say("warning: it fits only after the allocator has given cached memory back, which costs time\n");
  } else if (p.verdict == Verdict::Tight) {
    say("warning: less is to spare than the prediction may be off (--explain assumed)\n");
  }
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
  const bool one_rank = format == Format::Table && job.rank != "all";
  const bool screen = one_rank && !said.verbose;
  const Detail detail = screen && said.explain.empty() ? Detail::Screen : Detail::All;
  std::vector<Prediction> predictions = predict_asked(inputs.model, job, detail);
  if (std::find(said.explain.begin(), said.explain.end(), Topic::Saved) != said.explain.end()) {
    const std::vector<SavedTensor> saved = saved_tensors(inputs.model, job);  // The same on every rank.
    for (Prediction& prediction : predictions) prediction.saved = saved;
  }
  if (one_rank) add_changes(inputs, job, predictions.front(), screen);
  output.add(printed(predictions, job, format, {output.colour(said.color), said.explain, said.verbose}));
  output.finish();
  const Verdict verdict = worst_of(predictions).verdict;
  warn(worst_of(predictions));
  return verdict == Verdict::DoesNotFit ? kDoesNotFit : kDone;
}

namespace {

// A double as Python prints it.
std::string python_number(double value) {
  std::string text = formatted("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

// (bytes - base - 10^9) / 2^30: the seed experiments subtract 10^9 where they mean 2^30.
std::string seed_line(const OpGraph& file, const AboveInputs& above) {
  const auto printed = [&](Bytes bytes) {
    return python_number(static_cast<double>(bytes.value() - *file.seed_base) / static_cast<double>(1LL << 30));
  };
  return formatted("  as the seed script prints it: persistent {}\n{:>32}peak {}\n", printed(above.after_forward), "",
                   printed(above.forward_peak));
}

std::string above_table(const AboveInputs& above) {
  static constexpr char kRow[] = "  {:<18}{:>14}{:>20}\n";
  std::string text = formatted(kRow, "above the inputs", "requested", "bytes");
  const auto row = [&](const char* label, const std::optional<Bytes>& bytes) {
    text += formatted(kRow, label, bytes ? human(*bytes) : "-", bytes ? grouped(bytes->value()) : "-");
  };
  row("after forward", above.after_forward);
  row("forward peak", above.forward_peak);
  row("backward peak", above.backward_peak);
  row("after backward", above.after_backward);
  return text;
}

std::string counted(std::size_t count, std::string_view what) {
  return formatted("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string table(const OpGraph& file, const Prediction& p, const ReportStyle& style) {
  const auto asked = [&](Topic topic) {
    return std::find(style.explain.begin(), style.explain.end(), topic) != style.explain.end();
  };
  std::string text = verdict_lines(p, {}, style);
  text +=
      "\n" + listed("", {file.name, counted(file.tensors.size(), "tensor"), counted(file.ops.size(), "operator")}, 2);
  text += "\n" + above_table(*p.above_inputs);
  if (file.seed_base) text += seed_line(file, *p.above_inputs);
  text += "\n" + process_rows(p) + moment(p);
  if (asked(Topic::Peak)) text += "\n" + explained(p);
  if (asked(Topic::Saved)) text += "\n" + saved_table(*p.saved);
  std::vector<std::string> missing;
  for (const Absence& absence : all_absences(p)) missing.push_back(absence.what);
  return text + "\n" + listed("not modelled: ", missing, 2);
}

void refuse_what_means_nothing(const SimulateWords& said, Diagnostics& diagnostics) {
  constexpr std::array<std::string_view, 6> kMeaningful = {"--hardware", "--capacity", "--reserve",
                                                           "--format",   "--out",      "--strict"};
  refuse_all_but(kMeaningful, said.options, "an op-graph", diagnostics);
  if (!said.launch.empty()) diagnostics.add({"--", 0, 0, {}, "a launch line has no meaning for an op-graph", {}});
  if (std::find(said.explain.begin(), said.explain.end(), Topic::Traffic) != said.explain.end()) {
    diagnostics.add({"--explain", 0, 0, {}, "an op-graph has no traffic", "peak and saved are there"});
  }
}

GraphMachine machine_of(const SimulateWords& said, Diagnostics& diagnostics) {
  GraphMachine machine;
  const Request& request = said.options;
  if (request.hardware.given()) {
    const Hardware hardware = load_hardware(*request.hardware);
    machine.capacity = hardware.capacity;
    machine.context = hardware.context;
  }
  if (request.capacity.given()) machine.capacity = *request.capacity;
  machine.reserve = request.reserve.value_or(Bytes(0));
  if (machine.capacity && machine.reserve >= *machine.capacity) {
    diagnostics.add(request.reserve.place.says(
        formatted("a reserve of {} leaves nothing of {}", human(machine.reserve), human(*machine.capacity))));
  }
  if (request.strict.value_or(false) && machine.capacity && !machine.context) {
    diagnostics.add(request.strict.place.says("the CUDA context of 600 MiB is assumed",
                                              "name a --hardware whose context has been measured"));
  }
  return machine;
}

}  // namespace

std::optional<OpGraph> op_graph_of(const std::string& model) {
  std::optional<ModelFiles> files;
  try {
    files = locate_model(model);
  } catch (const Refusal&) {
    return std::nullopt;  // Said again, together with what else is wrong, by whoever wants a model.
  }
  if (files->kind != ModelFiles::Kind::OpGraph) return std::nullopt;
  return read_op_graph(std::move(files->document), std::move(files->name));
}

int simulate_graph(const OpGraph& file, const SimulateWords& said) {
  Diagnostics diagnostics;
  refuse_what_means_nothing(said, diagnostics);
  const std::string format = said.options.format.value_or("table");
  if (format == "md") {
    diagnostics.add(said.options.format.place.says("the report of an op-graph as Markdown is not modelled yet",
                                                   "table, json and csv are"));
  } else if (format != "table" && format != "json" && format != "csv") {
    diagnostics.add(
        said.options.format.place.says(formatted("no format \"{}\"", format), "formats are table, json, csv, md"));
  }
  const GraphMachine machine = machine_of(said, diagnostics);
  diagnostics.throw_if_any();
  Output output(said.options.out.value_or(""));
  const BuiltOpGraph built = build_op_graph(file);
  for (const Diagnostic& warning : built.warnings) say(render(warning, "warning"));
  const Prediction prediction = predict_graph(file, built, machine);
  if (format == "json") {
    output.add(prediction_json(prediction, Job{}));
  } else if (format == "csv") {
    output.add(predictions_csv({prediction}, Job{}));
  } else {
    output.add(table(file, prediction, {output.colour(said.color), said.explain, said.verbose}));
  }
  output.finish();
  warn(prediction);
  return prediction.verdict == Verdict::DoesNotFit ? kDoesNotFit : kDone;
}

}  // namespace dsplan
