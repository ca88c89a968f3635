// Chain files (interface.md, "Chain"; docs/segmentation.md).
#pragma once

#include <string>

#include "core/chain.h"
#include "core/document.h"

namespace dsplan {

// Refused, all faults together: another head than {"dsplan": 1, "kind": "chain", "source"}; unknown keys; no stages or
// more than kMostStages; a size or a time that is missing, no number, negative, or too large together with the others;
// "saved" without room for "output", of a stage or of one of its options; two options of one stage of equal name.
// Temporaries default to 0 as written in interface.md's own example of a full stage; so do "gathered" and
// "gather_time". Sizes are integers of bytes; times are decimal numbers of any one unit and are taken digit by digit.
[[nodiscard]] Chain read_chain(const Document& document, std::string name);

}  // namespace dsplan
