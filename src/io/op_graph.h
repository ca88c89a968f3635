// Op-graph files (interface.md, "Op-graph"; docs/op-graphs.md).
#pragma once

#include <string>

#include "core/document.h"
#include "core/op_graph.h"

namespace dsplan {

// Refused, all faults together: another head than {"dsplan": 1, "kind": "graph", "source"}; unknown keys, except those
// of operators, which only the operator itself can judge; wrong types; shapes with more than six dimensions, without
// elements, or beyond 63 bits of bytes; unknown dtypes; an operator with "output" and "outputs", or neither.
[[nodiscard]] OpGraph read_op_graph(Document document, std::string name);

}  // namespace dsplan
