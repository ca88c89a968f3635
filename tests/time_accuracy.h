// How far estimated steps are from published ones, by part, source and GPU.
#pragma once

#include <string>
#include <vector>

#include "time_rows.h"

namespace time_accuracy {

// Fewer rows say nothing of a stratum.
inline constexpr std::size_t kEvidence = 10;

struct Judged {
  const time_rows::Case* one = nullptr;
  std::string gpu;       // "a100", "h100": the first part of the hardware's name.
  double estimated = 0;  // Seconds.
  double low = 0;
  double high = 0;
  double constant = 0;  // Seconds by one utilisation for each GPU, fitted to the same training part; 0: none.
};

struct Summary {
  std::size_t n = 0;
  double median = 0;  // Of |estimate / step - 1|.
  double p90 = 0;
  double bias = 0;      // Median of estimate / step.
  double constant = 0;  // Median error of one utilisation; 0: none was fitted.
  double inside = 0;    // Part of the steps in the stated interval.
};

// With the constants of the library.
[[nodiscard]] std::vector<Judged> judge(const std::vector<time_rows::Case>& cases);
[[nodiscard]] Summary summary(const std::vector<const Judged*>& rows);
[[nodiscard]] double quantile(std::vector<double> values, double part);

// docs/time.md. `example`: what the command on it prints of time.
[[nodiscard]] std::string page(const std::vector<Judged>& judged, const std::string& example);

}  // namespace time_accuracy
