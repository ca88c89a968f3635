// Op-graphs: refused, or read, built and lowered to a schedule in which the auditor finds nothing; never a crash.
#include "core/audit.h"
#include "io/op_graph.h"
#include "io/text.h"
#include "model/op_graphs/op_graph.h"
#include "planner/lower/lower_graph.h"
#include "property.h"

using namespace dsplan;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  Schedule schedule;
  const bool accepted = fuzz::accepts([&] {
    const OpGraph file = read_op_graph(parse_json("graph.json", text), "graph");
    const BuiltOpGraph built = build_op_graph(file);
    schedule = lower_graph(built, RecipeBook(built.graph), file.keep_outputs);
  });
  if (accepted) fuzz::require(audit(schedule).empty(), "a legal schedule");
  return 0;
}
