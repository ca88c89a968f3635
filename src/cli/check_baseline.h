// One baseline against today's files and this dsplan.
#pragma once

#include <optional>
#include <string>

#include "cli/options.h"
#include "report/baseline.h"

namespace dsplan {

struct CheckResult {
  CheckedBaseline checked;
  // The same baseline with today's figures; absent where today's files are refused.
  std::optional<Baseline> renewed;
  std::vector<Notice> notices;         // Of today's prediction.
  std::optional<std::string> unknown;  // Why, where today's verdict of a rank is unknown.
};

// Never throws a Refusal: what is refused stands in the result, at its place. Every assumed input is refused, as
// --strict does.
[[nodiscard]] CheckResult check_baseline(const std::string& path, const Tolerances& tolerances);

// The first prediction of a baseline that will lie at `path`, by the words after `simulate`; relative paths in them are
// seen from the current folder. Throws what check_baseline lists.
// `init`: what is assumed is recorded as given: by options in the command where there are any, else as accepted.
// Refused: a verdict that is unknown, which no gate could hold anything against.
[[nodiscard]] CheckResult new_baseline(const std::string& path, const Words& command, bool init);

// Refuses a baseline of which a rank has an unknown verdict today, with the verdict's own reason.
void refuse_unknown_verdict(const CheckResult& result);

}  // namespace dsplan
