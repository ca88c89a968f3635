// The catalogue in words: every row's recipe for a sample of its operator, in which each tensor has a size of its own.
#pragma once

#include <vector>

#include "core/operator_entry.h"
#include "model/catalogue.h"

namespace dsplan {

// In the order of Op; attention has an entry for each kernel. An operator that options.torch does not have is left out.
[[nodiscard]] std::vector<OperatorEntry> describe_catalogue(const CatalogueOptions& options = {});

}  // namespace dsplan
