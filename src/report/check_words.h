// A checked baseline in words: what the report, JUnit, GitHub's annotations and Markdown say alike.
#pragma once

#include <string>
#include <vector>

#include "report/baseline.h"

namespace dsplan {

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

}  // namespace dsplan
