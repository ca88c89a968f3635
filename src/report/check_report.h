// Checked baselines: in words, for machines and for reviews.
#pragma once

#include <string>
#include <vector>

#include "report/baseline.h"

namespace dsplan {

// "takes 75.10 GiB, and at most 72.00 GiB are allowed"; empty where nothing is exceeded.
[[nodiscard]] std::string threshold_words(const CheckedBaseline& checked);
// "1,234", the verdict's word, or "-".
[[nodiscard]] std::string figure_words(const FigureValue& value);
// "+1,234", "-1,234", "0"; "moved" where a side is no number.
[[nodiscard]] std::string moved_words(const FigureValue& before, const FigureValue& after);
// Of a row without numbers: a line that says who moved it, or nothing.
[[nodiscard]] std::string by_whom(const CheckedRow& row);
// Of several changes, what each moves alone, and what they move only together; nothing for one change.
[[nodiscard]] std::vector<std::string> shares_of(const CheckedRow& row, const std::vector<SourceChange>& changes);
// "ds.json:5:3: zero_optimization.reduce_bucket_size: 500000000 -> 200000000"
[[nodiscard]] std::string key_words(const KeyChange& key);
// "seq: 2048 -> 4096 (--seq)"
[[nodiscard]] std::string input_words(const InputChange& input);
// Why a newer dsplan says something else, as far as it is known; empty where it says the same.
[[nodiscard]] std::vector<std::string> newer_words(const CheckedBaseline& checked);
// "14 of 61 rows moved by your change, 0 by a newer dsplan"
[[nodiscard]] std::string summary_words(const CheckedBaseline& checked);
// "3 baselines: 1 agrees, 1 differs, 1 refused"
[[nodiscard]] std::string totals_words(const std::vector<CheckedBaseline>& checked);
// A fault on one line: "ds.json:5:3: message; hint".
[[nodiscard]] std::string fault_words(const Diagnostic& fault);
// The rows that moved and stand for the whole run, in short: "peak.requested -1,200,000,000".
[[nodiscard]] std::vector<std::string> headlines(const CheckedBaseline& checked);

// "dsplan.check/1". Bytes are integers; an absent figure is null.
[[nodiscard]] std::string check_json(const std::vector<CheckedBaseline>& checked);
[[nodiscard]] std::string check_schema();

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
