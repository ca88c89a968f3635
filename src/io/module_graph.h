// Reads what tools/export_graph.py wrote (docs/exporting.md). Whatever an edit has made nonsense of is refused with its
// line: numbers of storages, values, modules and slots that are not there, ends before beginnings, sizes beyond 63 bits.
#pragma once

#include "core/document.h"
#include "core/module_graph.h"

namespace dsplan {

[[nodiscard]] ModuleGraph read_module_graph(const Document& document);

}  // namespace dsplan
