#include "cli/show_lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/assemble.h"
#include "cli/simulate_graph.h"
#include "cli/wrap.h"
#include "io/locate.h"
#include "io/machine_files.h"
#include "model/catalogue.h"
#include "model/graphs/graphs.h"

namespace dsplan {
namespace {

struct OperatorUse {
  bool used = false;
  std::vector<std::string> saved;  // In the order in which they were first seen.
};

using OperatorUses = std::array<OperatorUse, kOps>;

void look_at(const Graph& graph, OperatorUses& uses) {
  Recipe recipe;
  for (const Node& node : graph.nodes) {
    OperatorUse& use = uses[static_cast<std::size_t>(node.op)];
    use.used = true;
    if (!node.requires_grad) continue;
    recipe_of(graph, node, recipe);
    for (const Saved& saved : recipe.saved) {
      std::string_view text = saved.name;
      if (text.starts_with("_saved_")) text.remove_prefix(7);
      if (std::find(use.saved.begin(), use.saved.end(), text) == use.saved.end()) use.saved.emplace_back(text);
    }
  }
}

OperatorUses uses_in_bundled_models() {
  OperatorUses uses;
  std::vector<Notice> notices;
  for (const char* name : {"tiny-gpt2", "tiny-llama", "gemma-2-2b", "mixtral-8x7b", "qwen3-0.6b"}) {
    const ModelSpec model = load_model(name, notices);
    if (!model.has_graph) continue;
    for (const AttentionKernel kernel : {AttentionKernel::Flash, AttentionKernel::MemoryEfficient}) {
      GraphOptions options;
      options.seq = 16;
      options.attention = kernel;
      look_at(build_graph(model, options), uses);
    }
  }
  return uses;
}

}  // namespace

std::string show_models() {
  std::string text = fmt::format("{:<24}{:<14}{:>20}\n", "model", "family", "parameters");
  std::vector<Notice> notices;
  for (const std::string& name : list_bundled(Bundled::Model)) {
    const ModelSpec model = load_model(name, notices);
    text += fmt::format("{:<24}{:<14}{:>20}{}\n", model.name, model.family, grouped(total_elements(model).value()),
                        model.has_graph ? "" : "  states only");
  }
  return text;
}

std::string show_graphs() {
  std::string text = fmt::format("{:<20}{}\n", "op-graph", "source");
  for (const std::string& name : list_bundled(Bundled::Graph)) {
    const std::optional<OpGraph> graph = op_graph_of(name);
    if (graph) text += wrapped(fmt::format("{:<20}", name), graph->source, 20);
  }
  return text;
}

std::string show_hardware() {
  std::string text =
      fmt::format("{:<18}{:<10}{:>12}{:>12}{:>12}{:>12}\n", "device", "arch", "memory", "context", "GB/s", "link GB/s");
  for (const std::string& name : list_bundled(Bundled::Hardware)) {
    const Hardware one = load_hardware(name);
    text += fmt::format("{:<18}{:<10}{:>12}{:>12}{:>12.0f}{:>12.0f}\n", name, one.architecture, human(one.capacity),
                        one.context ? human(*one.context) : "-", one.memory_gb_per_s, one.link_gb_per_s);
  }
  return text + "\nmemory: what cudaMemGetInfo calls total, else the driver's figure\n";
}

std::string show_clusters() {
  std::string text =
      fmt::format("{:<18}{:<18}{:>12}{:>8}{:>16}\n", "cluster", "device", "GPUs/node", "nodes", "host memory");
  for (const std::string& name : list_bundled(Bundled::Cluster)) {
    const Cluster one = load_cluster(name);
    text += fmt::format("{:<18}{:<18}{:>12}{:>8}{:>16}\n", name, one.hardware, one.gpus_per_node, one.nodes,
                        one.host_memory ? human(*one.host_memory) : "-");
  }
  return text;
}

std::string show_operators() {
  const OperatorUses uses = uses_in_bundled_models();
  std::string text = fmt::format("{:<30}{:<9}{}\n", "operator", "witness", "saves for backward");
  for (std::size_t i = 0; i < kOps; ++i) {
    const Op op = static_cast<Op>(i);
    const std::string first = fmt::format("{:<30}{:<9}", name(op), name(witness_of(op)));
    if (uses[i].saved.empty()) {
      text += first + (uses[i].used ? "-\n" : "?\n");
    } else {
      text += listed(first, uses[i].saved, 39);
    }
  }
  return text + "\nread: from PyTorch's source; fake: seen by its dispatcher; cuda: seen on a GPU\n";
}

std::string show_assumptions(const std::vector<ResolvedInput>& inputs) {
  std::string text;
  for (const ResolvedInput& input : inputs) {
    text += wrapped(fmt::format("{:<9}", name(input.origin)),
                    fmt::format("{} = {}  ({}{})", input.name, input.value, input.reason,
                                input.origin == Origin::Assumed ? "; settled by " + input.option : ""),
                    11);
  }
  return text;
}

}  // namespace dsplan
