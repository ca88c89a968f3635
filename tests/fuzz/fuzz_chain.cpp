// Chain files: refused, or read, written, read back the same, and planned: a plan within its budget, never below the
// bound; never a crash.
#include "../chain_file.h"
#include "core/chain.h"
#include "io/plan_inputs.h"
#include "io/text.h"
#include "planner/plan/recompute/plan_chain.h"
#include "property.h"

using namespace dsplan;
using dsplan::test::chain_json;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  Chain chain;
  const bool accepted = fuzz::accepts([&] { chain = read_chain(parse_json("chain.json", text), "chain"); });
  if (!accepted || chain.stages.size() > 64) return 0;
  const std::string written = chain_json(chain);
  fuzz::require(chain_json(read_chain(parse_json("again.json", written), "chain")) == written, "the same chain");
  const ChainPlan least = plan_chain(chain, {"flat:64", {}});
  fuzz::require(least.feasible && *least.peak == least.minimum, "a plan in the least budget");
  const ChainPlan more = plan_chain(chain, {"flat:64", least.minimum * 2});
  fuzz::require(more.feasible && *more.peak <= more.budget && *more.time >= *more.lower_bound,
                "a plan above the bound");
  return 0;
}
