#include "cli/show.h"

#include "cli/assemble.h"
#include "cli/simulate.h"
#include "cli/wrap.h"
#include "core/format.h"
#include "io/locate.h"
#include "io/machine_files.h"
#include "model/catalogue/catalogue.h"

namespace dsplan {
namespace {

std::string words_of(const std::vector<OperatorEntry::Made>& made) {
  std::string text;
  for (const OperatorEntry::Made& one : made) {
    text += formatted("{}{}{}", text.empty() ? "" : ", ", one.what, one.kernel ? "*" : "");
  }
  return text;
}

}  // namespace

std::string show_models() {
  std::string text = formatted("{:<31}{:<18}{:>17}\n", "model", "family", "parameters");
  Request said;
  for (const std::string& name : list_bundled(Bundled::Model)) {
    const ModelSpec model = load_model(name, said);
    text += formatted("{:<31}{:<18}{:>17}{}\n", model.name, model.family, grouped(total_elements(model).value()),
                      model.has_graph ? "" : "  states only");
  }
  return text;
}

std::string show_graphs() {
  std::string text = formatted("{:<20}{}\n", "op-graph", "source");
  for (const std::string& name : list_bundled(Bundled::Graph)) {
    const std::optional<OpGraph> graph = op_graph_of(name);
    if (graph) text += wrapped(formatted("{:<20}", name), graph->source, 20);
  }
  return text;
}

std::string show_hardware() {
  std::string text =
      formatted("{:<18}{:<10}{:>12}{:>12}{:>12}{:>12}\n", "device", "arch", "memory", "context", "GB/s", "link GB/s");
  for (const std::string& name : list_bundled(Bundled::Hardware)) {
    const Hardware one = load_hardware(name);
    text += formatted("{:<18}{:<10}{:>12}{:>12}{:>12.0f}{:>12.0f}\n", name, one.architecture, human(one.capacity),
                      one.context ? human(*one.context) : "-", one.memory_gb_per_s, one.link_gb_per_s);
  }
  return text + "\nmemory: what cudaMemGetInfo calls total, else the driver's figure\n";
}

std::string show_clusters() {
  std::string text =
      formatted("{:<18}{:<18}{:>12}{:>8}{:>16}\n", "cluster", "device", "GPUs/node", "nodes", "host memory");
  for (const std::string& name : list_bundled(Bundled::Cluster)) {
    const Cluster one = load_cluster(name);
    text += formatted("{:<18}{:<18}{:>12}{:>8}{:>16}\n", name, one.hardware, one.gpus_per_node, one.nodes,
                      one.host_memory ? human(*one.host_memory) : "-");
  }
  return text;
}

std::string show_operators(const std::vector<OperatorEntry>& entries) {
  std::string text = formatted("{:<34}{:<9}{}\n", "operator", "witness", "flops");
  for (const OperatorEntry& entry : entries) {
    text += formatted("{:<34}{:<9}{}{}\n", entry.name, entry.witness, entry.flops,
                      entry.since.empty() ? "" : formatted("  (torch {})", entry.since));
    std::vector<std::string> saved;
    for (const OperatorEntry::Kept& kept : entry.saved) {
      saved.push_back(formatted("{} = {}{}", kept.name.substr(kept.name.starts_with("_saved_") ? 7 : 0), kept.what,
                                kept.when.empty() ? "" : formatted(" if {} needs a gradient", kept.when)));
    }
    if (!saved.empty()) text += listed("  saved     ", saved, 12);
    if (!entry.forward.empty()) text += wrapped("  forward   ", words_of(entry.forward), 12);
    if (!entry.backward.empty()) text += wrapped("  backward  ", words_of(entry.backward), 12);
    if (!entry.unknown.empty()) text += wrapped("  unknown   ", entry.unknown, 12);
  }
  text += "\nWritten as several operators:\n";
  for (const Composite& one : composites()) text += wrapped(formatted("  {}: ", one.name), one.parts, 4);
  return text +
         "\nsaved: by which name, which tensor; forward, backward: temporaries in order,\n"
         "* inside a kernel. read: from PyTorch's source; fake: seen by its dispatcher;\n"
         "cuda: seen on a GPU\n";
}

std::string show_assumptions(const std::vector<ResolvedInput>& inputs) {
  std::string text;
  for (const ResolvedInput& input : inputs) {
    text += wrapped(formatted("{:<9}", name(input.origin)),
                    formatted("{} = {}  ({}{})", input.name, input.value, input.reason,
                              input.origin == Origin::Assumed ? "; settled by " + input.option : ""),
                    11);
  }
  return text;
}

namespace {

std::string states_table(const FormulaQuery& query, const StateWidths& widths) {
  const std::int64_t width = widths.parameter + widths.gradient + widths.optimizer;
  std::string text = formatted("Model states per rank at {} bytes per parameter ({} + {} + {})\n", width,
                               widths.parameter, widths.gradient, widths.optimizer);
  text += formatted("{:<6}{:>14}{:>14}{:>14}{:>14}\n", "stage", "parameters", "gradients", "optimizer", "total");
  for (int stage = 0; stage <= 3; ++stage) {
    const PaperStates states = paper_states(query.parameters, stage, query.degree, query.model_parallel, widths);
    text += formatted("{:<6}{:>14}{:>14}{:>14}{:>14}\n", stage, human(states.parameters), human(states.gradients),
                      human(states.optimizer), human(states.total()));
  }
  return text + "\n";
}

std::string largest_table(const FormulaQuery& query, Bytes budget) {
  std::string text = formatted("Largest model whose states fit {} per rank, in parameters\n", human(budget));
  for (int stage = 0; stage <= 3; ++stage) {
    const Elements most = largest_model(budget, stage, query.degree, query.model_parallel);
    text += formatted("{:<6}{:>28}\n", stage, grouped(most.value()));
  }
  return text + "\n";
}

std::string traffic_table(Elements parameters) {
  std::string text = "Elements sent per rank and step, as the paper counts\n";
  for (int stage = 0; stage <= 3; ++stage) {
    text += formatted("{:<6}{:>28}\n", stage, grouped(paper_traffic(parameters, stage).value()));
  }
  return text + "\n";
}

std::string offload_table(Elements parameters) {
  std::string text = "ZeRO-Offload: what stays on one GPU\n";
  for (const OffloadCut& cut : kOffloadCuts) {
    text += formatted("{:<34}{:>3} B/param{:>14}\n", cut.on_device, cut.bytes_per_parameter,
                      human(Bytes(checked_mul(parameters.value(), cut.bytes_per_parameter))));
  }
  return text;
}

std::string shape_table(const FormulaQuery& query, const TransformerShape& shape) {
  std::string text = formatted("\nZeRO-Infinity: {} layers, hidden {}, {} heads, batch {}, sequence {}\n", shape.layers,
                               shape.hidden, shape.heads, query.batch, query.seq);
  const auto row = [&](const char* label, Bytes bytes) { text += formatted("{:<46}{:>14}\n", label, human(bytes)); };
  row("states over all devices, 240 L h^2", transformer_states(shape));
  row("checkpoints, 2 bsz seq h L / ci", checkpoint_bytes(shape, query.batch, query.seq, query.checkpoint_interval));
  row("between checkpoints, bsz seq ci (16h + 2 a seq)",
      activation_working_memory(shape, query.batch, query.seq, query.checkpoint_interval));
  row("largest operator, 16 h^2", state_working_memory(shape));
  return text;
}

}  // namespace

std::string show_formulas(const FormulaQuery& query) {
  std::string text = formatted("{} parameters\ndata-parallel degree {}, model-parallel degree {}\n\n",
                               grouped(query.parameters.value()), query.degree, query.model_parallel);
  text += states_table(query, kAdam16);
  text += states_table(query, kAdam20);
  if (query.budget) text += largest_table(query, *query.budget);
  text += traffic_table(query.parameters);
  text += offload_table(query.parameters);
  if (query.shape) text += shape_table(query, *query.shape);
  return text + "\nThe papers' closed forms; `simulate` says what the framework allocates.\n";
}

namespace {

std::string_view offload_name(EstimatorOffload offload) {
  switch (offload) {
    case EstimatorOffload::None: return "none";
    case EstimatorOffload::Optimizer: return "optimizer";
    case EstimatorOffload::OptimizerAndParameters: return "optimizer+param";
  }
  return "";
}

std::string ours_text(const OurStates& ours, int stage, EstimatorOffload offload) {
  const std::optional<Bytes> states = ours ? ours(stage, offload) : std::nullopt;
  return states ? human(*states) : "-";
}

struct Row {
  int stage;
  EstimatorOffload offload;
  std::string_view zero_init;
  std::string older;  // GPU, before the ZeRO-2 change.
  std::string newer;
  Bytes host;
};

std::string line(const Row& row, const OurStates& ours) {
  return formatted("{:<6}{:<17}{:<6}{:>12}{:>12}{:>12}{:>13}\n", row.stage, offload_name(row.offload), row.zero_init,
                   row.older, row.newer, ours_text(ours, row.stage, row.offload), human(row.host));
}

}  // namespace

std::string show_estimators(const ModelSpec& model, const EstimatorQuery& query, const OurStates& ours) {
  const EstimatorInput input{total_elements(model), largest_layer(model), query.nodes, query.gpus_per_node};
  std::string text = formatted("{}: {} parameters, largest layer {}\n", model.name, grouped(input.parameters.value()),
                               grouped(input.largest_layer.value()));
  text += formatted("{} node{} with {} GPU{} each; DeepSpeed's own estimators beside dsplan, states only\n\n",
                    query.nodes, query.nodes == 1 ? "" : "s", query.gpus_per_node, query.gpus_per_node == 1 ? "" : "s");
  const bool old = query.deepspeed < kZero2EstimatorChanged;
  text += formatted("{:<6}{:<17}{:<6}{:>12}{:>12}{:>12}{:>13}\n", "", "", "zero.", old ? "*<0.14.3" : "<0.14.3",
                    old ? ">=0.14.3" : "*>=0.14.3", "dsplan", "host");
  text += formatted("{:<6}{:<17}{:<6}{:>12}{:>12}{:>12}{:>13}\n", "stage", "offload", "Init", "per GPU", "per GPU",
                    "per GPU", "per node");
  for (EstimatorOffload offload : {EstimatorOffload::Optimizer, EstimatorOffload::None}) {
    const Estimate older = estimate_zero2(input, offload, kFirstEstimators);
    const Estimate newer = estimate_zero2(input, offload, kZero2EstimatorChanged);
    text += line({2, offload, "-", human(older.per_gpu), human(newer.per_gpu), newer.per_cpu}, ours);
  }
  for (EstimatorOffload offload :
       {EstimatorOffload::OptimizerAndParameters, EstimatorOffload::Optimizer, EstimatorOffload::None}) {
    for (bool zero_init : {true, false}) {
      const Estimate all = estimate_zero3(input, offload, zero_init, kZero2EstimatorChanged);
      text += line({3, offload, zero_init ? "yes" : "no", human(all.per_gpu), human(all.per_gpu), all.per_cpu}, ours);
    }
  }
  text += formatted("\n* the version in use, {}. DeepSpeed has no estimator for ZeRO-1.\n", query.deepspeed.text());
  text +=
      "The estimators count no activations, buckets, gathered layers or padding, and\n"
      "assume 16-bit Adam; they print GiB as \"GB\". Host figures hold a factor 3/2.\n";
  return text;
}

}  // namespace dsplan
