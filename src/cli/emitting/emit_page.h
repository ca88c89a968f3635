// `dsplan emit --format html`, and its picture alone.
#pragma once

#include <string>

#include "cli/options.h"

namespace dsplan {

// `words`: as the command was called, for whoever wants to make the page again. `measured`: a receipt of the same job,
// or empty. Refused: one of another job, by fingerprint, and one without.
int emit_page(const SimulateWords& said, const Words& words, const std::string& measured);
// That page's chart alone, as it takes charts of changed jobs (report/page.h, page_view). Refused as the page is.
[[nodiscard]] std::string chart_of(const SimulateWords& said);
// `format` is svg or png. Refused: png without librsvg, which is loaded then alone.
int emit_slide(const SimulateWords& said, const std::string& format);

}  // namespace dsplan
