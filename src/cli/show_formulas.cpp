#include "cli/show.h"

#include "core/format.h"

namespace dsplan {
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

}  // namespace dsplan
