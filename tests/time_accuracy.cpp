#include "time_accuracy.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace time_accuracy {

namespace {

std::string gpu_of(const std::string& hardware) { return hardware.substr(0, hardware.find('-')); }
double error(double estimated, double measured) { return std::abs(estimated / measured - 1); }

}  // namespace

double quantile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = part * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  const double rest = at - static_cast<double>(below);
  return values[below] * (1 - rest) + values[above] * rest;
}

std::vector<Judged> judge(const std::vector<time_rows::Case>& cases) {
  std::vector<Judged> result;
  std::map<std::string, std::vector<double>> utilisation;
  std::vector<double> operations;  // Of a step at its peak rate: seconds.
  for (const time_rows::Case& one : cases) {
    const dsplan::StepTime time = time_rows::estimated(one);
    result.push_back({&one, gpu_of(one.row.hardware), time.total, time.low, time.high, 0});
    operations.push_back(time.hfu * time.total);
    if (one.row.train) utilisation[result.back().gpu].push_back(operations.back() / one.row.seconds);
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    const auto found = utilisation.find(result[i].gpu);
    if (found != utilisation.end()) result[i].constant = operations[i] / quantile(found->second, 0.5);
  }
  return result;
}

Summary summary(const std::vector<const Judged*>& rows) {
  std::vector<double> errors;
  std::vector<double> ratios;
  std::vector<double> constants;
  Summary result;
  result.n = rows.size();
  for (const Judged* row : rows) {
    const double step = row->one->row.seconds;
    errors.push_back(error(row->estimated, step));
    ratios.push_back(row->estimated / step);
    if (row->constant > 0) constants.push_back(error(row->constant, step));
    if (step >= row->low && step <= row->high) result.inside += 1 / static_cast<double>(rows.size());
  }
  result.median = quantile(errors, 0.5);
  result.p90 = quantile(errors, 0.9);
  result.bias = quantile(ratios, 0.5);
  result.constant = quantile(constants, 0.5);
  return result;
}

}  // namespace time_accuracy
