// `dsplan simulate` of an op-graph.
#pragma once

#include <optional>
#include <string>

#include "cli/options.h"
#include "core/op_graph.h"

namespace dsplan {

// The op-graph that MODEL names; nothing where it names something else, or nothing at all.
[[nodiscard]] std::optional<OpGraph> op_graph_of(const std::string& model);

// Refuses options that have no meaning for an op-graph, by name. Returns the exit code.
[[nodiscard]] int simulate_graph(const OpGraph& file, const SimulateWords& said);

}  // namespace dsplan
