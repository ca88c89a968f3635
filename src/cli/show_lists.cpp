#include "cli/show_lists.h"

#include "cli/assemble.h"
#include "cli/simulate_graph.h"
#include "cli/wrap.h"
#include "core/format.h"
#include "io/locate.h"
#include "io/machine_files.h"
#include "model/catalogue.h"

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
  std::string text = formatted("{:<24}{:<14}{:>20}\n", "model", "family", "parameters");
  std::vector<Notice> notices;
  for (const std::string& name : list_bundled(Bundled::Model)) {
    const ModelSpec model = load_model(name, notices);
    text += formatted("{:<24}{:<14}{:>20}{}\n", model.name, model.family, grouped(total_elements(model).value()),
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

}  // namespace dsplan
