// What a prediction is made from, read once and kept whole: for whoever predicts the same again later, or with one
// part changed.
#pragma once

#include <string>

#include "cli/assemble.h"
#include "cli/options.h"
#include "report/baseline.h"

namespace dsplan {

// The words after `simulate`, which stand at `place`: what is wrong with them is refused there.
[[nodiscard]] SimulateWords words_at(const Words& command, const Place& place);

// Every file that the words name; relative paths are seen from `folder` (empty: the current one), bundled names are
// dsplan's own. Faults of all files are reported together, as `gather` does; so are safetensors headers that differ.
[[nodiscard]] Sources read_sources(const Words& command, const SimulateWords& said, const std::string& folder);

// Contents of bundled files, which a baseline names and does not hold. Refused: names that this dsplan does not have.
void read_bundled(Sources& sources);

// From sources to inputs; no file is opened beyond those that a file names in its turn.
[[nodiscard]] Inputs gather(const Sources& sources, const SimulateWords& said);

// Each option with its value, and the launch line as one: what two commands differ in.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> options_in(const SimulateWords& said);

}  // namespace dsplan
