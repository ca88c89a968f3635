// `dsplan emit --format html`, and its picture alone.
#pragma once

#include <string>

#include "cli/options.h"

namespace dsplan {

// `words`: as the command was called, for whoever wants to make the page again.
int emit_page(const SimulateWords& said, const Words& words);
// `format` is svg or png. Refused: png without librsvg, which is loaded then alone.
int emit_slide(const SimulateWords& said, const std::string& format);

}  // namespace dsplan
