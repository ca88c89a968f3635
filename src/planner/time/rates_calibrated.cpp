// Rates that tools/frameworks/constants measured (docs/receipts.md, dsplan.calibration/1) in place of fitted ones.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "planner/time/rates.h"

namespace dsplan {
namespace {

struct MeasuredProduct {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  double rate = 0;  // Operations per second.
};

bool take_number(std::string_view& text, std::int64_t& into) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), into);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

// "gemm:bf16:8192x4096x4096"; smaller ones are launches more than products.
constexpr std::int64_t kSmallest = 512;

std::vector<MeasuredProduct> products(const Calibration& calibration, DType dtype) {
  const std::string prefix = fmt::format("gemm:{}:", name(dtype));
  std::vector<MeasuredProduct> result;
  for (const auto& [key, rate] : calibration.rates) {
    if (!key.starts_with(prefix)) continue;
    std::string_view rest = std::string_view(key).substr(prefix.size());
    MeasuredProduct one;
    one.rate = rate;
    std::array<std::int64_t*, 3> numbers = {&one.m, &one.n, &one.k};
    bool whole = true;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (i > 0 && rest.starts_with('x')) rest.remove_prefix(1);
      whole = whole && take_number(rest, *numbers[i]);
    }
    if (whole && rest.empty() && std::min({one.m, one.n, one.k}) >= kSmallest) result.push_back(one);
  }
  return result;
}

// Of the largest size that was copied; 0: none.
double copy_rate(const Calibration& calibration, const std::string& prefix) {
  std::int64_t largest = -1;
  double rate = 0;
  for (const auto& [key, value] : calibration.rates) {
    if (!key.starts_with(prefix)) continue;
    std::string_view rest = std::string_view(key).substr(prefix.size());
    std::int64_t size = 0;
    if (!take_number(rest, size) || size <= largest) continue;
    largest = size;
    rate = value;
  }
  return rate;
}

double slower(double a, double b) { return a > 0 && b > 0 ? std::min(a, b) : std::max(a, b); }

}  // namespace

void Rates::use(const Calibration& calibration, DType dtype) {
  std::vector<std::string> measured;
  const std::vector<MeasuredProduct> shapes = products(calibration, dtype);
  if (!shapes.empty()) {
    // What the model of tiles would need to reach in order to take as long: the median over shapes.
    constants_.product = 1;
    std::vector<double> parts;
    for (const MeasuredProduct& shape : shapes) {
      const double seconds =
          2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) * static_cast<double>(shape.k) / shape.rate;
      parts.push_back(product(1, shape.m, shape.n, shape.k, dtype) / seconds);
    }
    std::nth_element(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(parts.size() / 2), parts.end());
    constants_.product = parts[parts.size() / 2];
    measured.push_back("matrix products");
  }
  // Each byte is read and written, and counted once.
  const double device = 2 * copy_rate(calibration, "copy_d2d:");
  if (device > 0) {
    memory_ = device;
    measured.push_back("device memory");
  }
  const auto host = [&](const char* kind) {
    return slower(copy_rate(calibration, fmt::format("copy_h2d_{}:", kind)),
                  copy_rate(calibration, fmt::format("copy_d2h_{}:", kind)));
  };
  if (const double pinned = host("pinned"); pinned > 0) {
    pinned_ = pinned * host_share_;
    measured.push_back("pinned copies");
  }
  if (const double pageable = host("pageable"); pageable > 0) {
    pageable_ = pageable * host_share_;
    measured.push_back("pageable copies");
  }
  if (measured.empty()) return;
  std::string text;
  for (const std::string& one : measured) text += (text.empty() ? "" : ", ") + one;
  // Kernels decide: with host copies alone the step is still an estimate.
  calibrated_ = !shapes.empty() && device > 0;
  basis_ = fmt::format("{} as measured ({}); the rest: {}", text, calibration.path, basis_);
}

}  // namespace dsplan
