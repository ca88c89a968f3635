// Our own training file and the lists that it may point at.
#pragma once

#include <string>
#include <vector>

#include "core/document.h"
#include "core/inputs.h"

namespace dsplan {

// Kind "training". Every option of `simulate` has a key here (interface.md, Files); unknown keys are refused, sizes in
// bytes are integers or texts such as "70GiB". `document` may be JSON, Hjson or YAML.
[[nodiscard]] Request read_training_file(const Document& document);

// Kind "checkpoint": {"dsplan": 1, "kind": "checkpoint", "source": "...", "groups": [[first, last, mode], ...]} with
// layers counted from 0, both ends inclusive, and mode "recompute", "store", "reentrant", "non_reentrant" or
// "keep:OP+OP". Refused: groups out of order or overlapping. Whether the layers exist is the resolver's question.
[[nodiscard]] std::vector<CheckpointEntry> read_checkpoint_file(const Document& document);

// Kind "routing": {"dsplan": 1, "kind": "routing", "source": "...", "counts": [[tokens of each expert], ...]}, a row
// for each mixture, or one for all. Refused: what is no whole number of at least 0. Whether the sums are a batch's is
// the resolver's question.
[[nodiscard]] std::vector<TokenCounts> read_routing_file(const Document& document);

}  // namespace dsplan
