// What `simulate` prints first: the answer, in at most sixteen lines, and where to read on.
#pragma once

#include <string>
#include <vector>

#include "core/job.h"
#include "core/prediction.h"

namespace dsplan {

inline constexpr std::size_t kScreenLines = 16;
inline constexpr std::size_t kMostChanges = 3;  // That it shows.

// The verdict, what is needed against what there is, and what is assumed of it: "DOES NOT FIT  needs at least ...".
// `device` is what to call the device; empty: "the device".
[[nodiscard]] std::string headline(const Prediction& prediction, const std::string& device, bool colour);
// In words, as the headline begins: "FITS WITH RETRIES".
[[nodiscard]] std::string in_words(Verdict verdict);

// `prediction.changes` are shown where there are any.
[[nodiscard]] std::string first_screen(const Prediction& prediction, const Job& job, bool colour);

}  // namespace dsplan
