// `dsplan emit --format html`.
#pragma once

#include "cli/options.h"

namespace dsplan {

// `words`: as the command was called, for whoever wants to make the page again.
int emit_page(const SimulateWords& said, const Words& words);

}  // namespace dsplan
