// A prediction as one picture for slides and papers.
#pragma once

#include <string>

#include "report/page.h"

namespace dsplan {

// SVG of 1280 by 720: the verdict, what it takes, and memory over the schedule by role with the limit and the place of
// an out-of-memory, in estimated time where the timeline has a clock, else in events. Colours are the page's.
[[nodiscard]] std::string svg_slide(const PageInput& input);

}  // namespace dsplan
