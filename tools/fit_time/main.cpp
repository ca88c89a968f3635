// Fits the constants of src/planner/time/constants.cpp to the training part of tests/data/step-times.csv, and prints
// them as its rows. Held-out rows are never looked at, but for --report, which prints errors and fits nothing, and
// --exposure (exposure.h).
//
//   build/release/tests/fit_time tests/data/step-times.csv [--report|--exposure]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "exposure.h"
#include "time_accuracy.h"
#include "time_rows.h"

namespace {

using namespace dsplan;
using time_rows::Case;

// What is fitted: one overlap for all, as it is the runtimes' own, and by architecture the rate of products and what
// old attention kernels reach.
struct Point {
  double overlap = 0.5;
  std::map<std::string, std::pair<double, double>> rates;  // Product, old attention.
};

double estimate(const Case& one, const Point& at) {
  const std::string& architecture = one.job.hardware->architecture;
  TimeConstants constants = time_constants(architecture);
  constants.overlap = at.overlap;
  constants.product = at.rates.at(architecture).first;
  return time_rows::estimated(one, constants, {at.rates.at(architecture).second}).total;
}

// What lies between estimate and step, as logarithms: the root of the mean square, in which sources count as the roots
// of their rows. The constants have to serve sources that were never seen, so that the largest must not decide alone.
double loss(const std::vector<const Case*>& cases, const Point& at) {
  std::map<std::string, std::pair<double, double>> sums;
  for (const Case* one : cases) {
    auto& [sum, count] = sums[one->row.source + one->job.hardware->architecture];
    const double apart = std::log(estimate(*one, at) / one->row.seconds);
    sum += apart * apart;
    count += 1;
  }
  double total = 0;
  double weight = 0;
  for (const auto& [source, sum] : sums) {
    total += sum.first / std::sqrt(sum.second);
    weight += std::sqrt(sum.second);
  }
  return std::sqrt(total / weight);
}

Point fit(const std::vector<const Case*>& cases, Point at) {
  std::vector<const std::string*> architectures;
  for (const auto& [architecture, rates] : at.rates) architectures.push_back(&architecture);
  const std::size_t knobs = 1 + 2 * architectures.size();
  const auto knob = [&](Point& point, std::size_t i) -> double& {
    if (i == 0) return point.overlap;
    auto& rates = point.rates.at(*architectures[(i - 1) / 2]);
    return (i - 1) % 2 == 0 ? rates.first : rates.second;
  };
  double best = loss(cases, at);
  std::printf("loss %.4f ->", best);
  for (double step = 0.2; step > 0.005; step /= 2) {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = 0; i < knobs; ++i) {
        for (const double factor : {1 + step, 1 / (1 + step)}) {
          Point other = at;
          knob(other, i) = std::clamp(knob(at, i) * factor, 0.1, 0.95);
          const double one = loss(cases, other);
          if (one >= best - 1e-6) continue;
          best = one;
          at = other;
          moved = true;
        }
      }
    }
  }
  std::printf(" %.4f\n", best);
  return at;
}

void print(const Point& at) {
  std::printf("overlap %.3f\n", at.overlap);
  for (const auto& [architecture, rates] : at.rates) {
    std::printf("%s: product %.3f, old flash %.3f\n", architecture.c_str(), rates.first, rates.second);
  }
}

// Measured over estimated, and how much the row counts.
using Weighted = std::vector<std::pair<double, double>>;

double quantile(Weighted values, double part) {
  std::sort(values.begin(), values.end());
  double all = 0;
  for (const auto& [ratio, weight] : values) all += weight;
  double below = 0;
  for (const auto& [ratio, weight] : values) {
    below += weight;
    if (below >= part * all) return ratio;
  }
  return values.empty() ? 1 : values.back().first;
}

// What a source's steps take of an estimate that never saw the source: each source fitted without.
Weighted leave_one_out(const std::vector<const Case*>& cases, const Point& from) {
  Weighted apart;
  std::map<std::string, std::vector<const Case*>> sources;
  for (const Case* one : cases) sources[one->row.source].push_back(one);
  for (const auto& [source, left_out] : sources) {
    std::vector<const Case*> others;
    std::set<std::string> known;
    for (const Case* one : cases) {
      if (one->row.source == source) continue;
      others.push_back(one);
      known.insert(one->job.hardware->architecture);
    }
    std::printf("without %s: ", source.c_str());
    const Point at = fit(others, from);
    for (const Case* one : left_out) {
      if (!known.contains(one->job.hardware->architecture)) continue;
      apart.push_back({one->row.seconds / estimate(*one, at), 1 / std::sqrt(static_cast<double>(left_out.size()))});
    }
  }
  return apart;
}

void report(const std::vector<Case>& cases) {
  std::map<std::string, std::vector<const time_accuracy::Judged*>> strata;
  const std::vector<time_accuracy::Judged> judged = time_accuracy::judge(cases);
  for (const auto& one : judged) {
    const std::string part = one.one->row.train ? "train " : "held  ";
    strata[part + one.gpu].push_back(&one);
    strata[part + one.gpu + " " + one.one->row.source].push_back(&one);
  }
  std::printf("%-28s %4s %8s %8s %8s %8s %8s\n", "", "n", "median", "p90", "bias", "constant", "inside");
  for (const auto& [name, members] : strata) {
    const time_accuracy::Summary s = time_accuracy::summary(members);
    std::printf("%-28s %4zu %7.1f%% %7.1f%% %8.3f %7.1f%% %7.0f%%\n", name.c_str(), s.n, 100 * s.median, 100 * s.p90,
                s.bias, 100 * s.constant, 100 * s.inside);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const std::string what = argc > 2 ? argv[2] : "";
  std::vector<Case> cases;
  for (const time_rows::Row& row : time_rows::read(argv[1])) cases.push_back(time_rows::make(row));
  if (what == "--report") return report(cases), 0;
  if (what == "--exposure") return report_exposure(cases), 0;
  std::vector<const Case*> train;
  Point from;
  for (const Case& one : cases) {
    if (!one.row.train) continue;
    train.push_back(&one);
    from.rates[one.job.hardware->architecture] = {0.7, 0.6};
  }
  const Point at = fit(train, from);
  print(at);
  const Weighted apart = leave_one_out(train, at);
  std::printf("low %.3f high %.3f of %zu rows\n", quantile(apart, 0.1), quantile(apart, 0.9), apart.size());
  return 0;
}
