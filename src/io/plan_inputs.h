// What a plan begins with: chain files (interface.md, "Chain"; docs/recompute-plans.md) and space files.
#pragma once

#include <string>

#include "core/chain.h"
#include "core/document.h"
#include "core/search.h"

namespace dsplan {

// Refused, all faults together: another head than {"dsplan": 1, "kind": "chain", "source"}; unknown keys; no stages or
// more than kMostStages; a size or a time that is missing, no number, negative, or too large together with the others;
// "saved" without room for "output", of a stage or of one of its options; two options of one stage of equal name.
// Temporaries default to 0 as written in interface.md's own example of a full stage; so do "gathered" and
// "gather_time". Sizes are integers of bytes; times are decimal numbers of any one unit and are taken digit by digit.
[[nodiscard]] Chain read_chain(const Document& document, std::string name);

// A space file: what a search may choose from.

// {"dsplan": 1, "kind": "space", "source": "...", "zero_stage": [2, 3], "micro_batch": [1, 2, 4], "global_batch": 512}:
// each key an axis with its values, as numbers or words. Refused, all together: unknown keys, with the nearest; values
// that are neither. What an axis takes is for the search to say.
[[nodiscard]] ListedSpace read_space(const Document& document);

}  // namespace dsplan
