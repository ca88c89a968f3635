// build_model: a config.json is refused, or becomes a model whose parts agree: every parameter and module has an owner
// that exists, ties point backwards at parameters of the same shape, and the count does not wrap.
#include "io/text.h"
#include "model/families.h"
#include "property.h"

using namespace dsplan;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  ModelSpec model;
  Elements total;
  if (!fuzz::accepts([&] {
        model = build_model(parse_json("config.json", text), "fuzzed");
        total = total_elements(model);
      })) {
    return 0;
  }
  fuzz::require(total >= Elements(0), "the count does not wrap");
  for (std::size_t at = 0; at < model.parameters.size(); ++at) {
    const Parameter& p = model.parameters[at];
    fuzz::require(p.module >= 0 && static_cast<std::size_t>(p.module) < model.modules.size(), "an owner");
    if (p.tied_to == kNone) continue;
    fuzz::require(p.tied_to >= 0 && static_cast<std::size_t>(p.tied_to) < at, "a tie points backwards");
    fuzz::require(model.parameter_at(p.tied_to).shape == p.shape, "a tie has one shape");
  }
  return 0;
}
