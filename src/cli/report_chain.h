// The plan of a chain, for people: at most 80 columns.
#pragma once

#include <string>

#include "core/chain.h"

namespace dsplan {

// "fits: ..." or "no plan fits: ..." first, then the figures, then the segments, equal neighbours in one row.
[[nodiscard]] std::string chain_report(const ChainPlan& plan, const Chain& chain, bool colour);

}  // namespace dsplan
