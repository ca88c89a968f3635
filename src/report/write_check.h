// Checked baselines for machines and for reviews.
#pragma once

#include <string>
#include <vector>

#include "report/baseline.h"

namespace dsplan {

// "dsplan.check/1". Bytes are integers; an absent figure is null.
[[nodiscard]] std::string check_json(const std::vector<CheckedBaseline>& checked);

// JUnit's XML: one suite, one case per baseline; what differs is a failure with its details, what is refused an error.
// `details` are the reports of each.
[[nodiscard]] std::string check_junit(const std::vector<CheckedBaseline>& checked,
                                      const std::vector<std::string>& details);

// GitHub's workflow commands: an error at each changed key, at the baseline for what a newer dsplan moved, and at each
// fault; a notice with the counts last.
[[nodiscard]] std::string check_github(const std::vector<CheckedBaseline>& checked);

// A comment for a pull request: a table of the rows that stand for the whole run, the changed inputs, all moved rows
// folded away.
[[nodiscard]] std::string check_markdown(const std::vector<CheckedBaseline>& checked);

}  // namespace dsplan
