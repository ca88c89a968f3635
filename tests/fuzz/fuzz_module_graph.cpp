// What tools/export_graph.py recorded: refused, or read, built, resolved as a job of one GPU and lowered to a schedule
// in which the auditor finds nothing; never a crash.
#include "core/audit.h"
#include "io/module_graph.h"
#include "io/text.h"
#include "model/recorded.h"
#include "planner/predict/schedules.h"
#include "planner/resolve/resolve.h"
#include "property.h"

using namespace dsplan;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  Schedule schedule;
  const bool accepted = fuzz::accepts([&] {
    const ModelSpec model = build_recorded_model(read_module_graph(parse_json("module.json", text)), "fuzzed");
    Request request;
    request.gpus = {1, option("--gpus")};
    schedule = schedule_of(model, resolve(model, request, nullptr, nullptr, nullptr), 0, "module.json");
  });
  if (accepted) fuzz::require(audit(schedule).empty(), "a legal schedule");
  return 0;
}
