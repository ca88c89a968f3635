// The answer to a chain: which stages to keep and which to compute again within a budget.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/chain.h"

namespace dsplan {

struct ChainRequest {
  std::string method = "flat";
  std::optional<Bytes> budget;  // Absent: the smallest at which the method has a plan.
};

// Every plan that comes back has been replayed: its time and its peak are the replay's, and the peak is within the
// budget. Methods are those of docs/recompute-plans.md. Refused: an unknown method, with the nearest one; a parameter
// out of range; segments:K with more segments than stages.
[[nodiscard]] ChainPlan plan_chain(const Chain& chain, const ChainRequest& request);

// "flat", "flat:N", "selective", ...: for help and messages.
[[nodiscard]] const std::vector<std::string>& chain_methods();

}  // namespace dsplan
