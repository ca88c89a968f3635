// A space file: what a search may choose from.
#pragma once

#include "core/document.h"
#include "core/search.h"

namespace dsplan {

// {"dsplan": 1, "kind": "space", "source": "...", "zero_stage": [2, 3], "micro_batch": [1, 2, 4], "global_batch": 512}:
// each key an axis with its values, as numbers or words. Refused, all together: unknown keys, with the nearest; values
// that are neither. What an axis takes is for the search to say.
[[nodiscard]] ListedSpace read_space(const Document& document);

}  // namespace dsplan
