// Our own training file and the two lists that it may point at.
#pragma once

#include <vector>

#include "core/document.h"
#include "core/inputs.h"

namespace dsplan {

// Kind "training". Every option of `simulate` has a key here (interface.md, Files); unknown keys are refused, sizes in
// bytes are integers or texts such as "70GiB". `document` may be JSON, Hjson or YAML.
[[nodiscard]] Request read_training_file(const Document& document);

// Kind "checkpoint": {"dsplan": 1, "kind": "checkpoint", "source": "...", "groups": [[first, last, mode], ...]} with
// layers counted from 0, both ends inclusive, and mode "recompute" or "store". Refused: groups out of order or
// overlapping. Whether the layers exist is the resolver's question.
[[nodiscard]] std::vector<CheckpointEntry> read_checkpoint_file(const Document& document);

}  // namespace dsplan
