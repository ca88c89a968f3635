// The whole report of `simulate --verbose`, and the topics of --explain: within the terminal's columns, every size
// labelled.
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"
#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"

namespace dsplan {

struct ReportStyle {
  bool colour = false;
  std::vector<Topic> explain = {};
  bool verbose = true;  // False: the first screen.
};

// The verdict first, then the job, memory by role, the moment of the peak, traffic, what was assumed and what is not
// modelled. In each row persistent + transient = at peak.
[[nodiscard]] std::string report(const Prediction& prediction, const Job& job, const ReportStyle& style);

// The verdict and what it rests on (cli/screen/first_screen.h). `device`: empty where none is named.
[[nodiscard]] std::string verdict_lines(const Prediction& prediction, const std::string& device,
                                        const ReportStyle& style);

// What --explain adds below the first screen, one part for each topic.
[[nodiscard]] std::string topics(const Prediction& prediction, const Job& job, const std::vector<Topic>& asked);

// `--explain saved`: what each autograd node keeps, storages once.
[[nodiscard]] std::string saved_table(const std::vector<SavedTensor>& saved);
// `--explain peak`.
[[nodiscard]] std::string explained(const Prediction& prediction);
// What lies around the allocator's bytes: allocated, reserved, context, process.
[[nodiscard]] std::string process_rows(const Prediction& prediction);
// "peak in ...", where and when.
[[nodiscard]] std::string moment(const Prediction& prediction);

// --rank all: the verdict of the worst, and one row per rank.
[[nodiscard]] std::string report_ranks(const std::vector<Prediction>& predictions, const Job& job,
                                       const ReportStyle& style);

// The worst verdict, then the largest peak.
[[nodiscard]] const Prediction& worst_of(const std::vector<Prediction>& predictions);

// The step time in the report of `simulate`.

// Seconds by phase, what communication and copies add to them, and how sure that is. "estimated" until rates were
// measured on the user's own machine.
[[nodiscard]] std::string time_report(const StepTime& time);

// "1.24 s", "35.1 ms"
[[nodiscard]] std::string seconds_text(double seconds);

// What --explain fragmentation adds to the table.

[[nodiscard]] std::string fragmentation_report(const Fragmentation& fragmentation);

}  // namespace dsplan
