// Rates that `dsplan calibrate` or tools/frameworks/constants measured (docs/receipts.md, dsplan.calibration/1) in
// place of fitted ones.
#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <vector>

#include "core/format.h"
#include "planner/time/links.h"
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

std::vector<MeasuredProduct> products(const Calibration& calibration, DType dtype, std::int64_t least) {
  const std::string prefix = formatted("gemm:{}:", name(dtype));
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
    if (whole && rest.empty() && std::min({one.m, one.n, one.k}) >= least) result.push_back(one);
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

double fastest(const Calibration& calibration, const std::string& prefix) {
  double most = 0;
  for (const auto& [key, value] : calibration.rates) {
    if (key.starts_with(prefix)) most = std::max(most, value);
  }
  return most;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

bool Rates::use_products(const Calibration& calibration, DType dtype) {
  const bool tiles = hardware_tiles_;
  const std::vector<MeasuredProduct> shapes = products(calibration, dtype, tiles ? kSmallest : 1);
  if (shapes.empty()) return false;
  measured_.push_back("matrix products");
  const auto operations = [](const MeasuredProduct& one) {
    return 2.0 * static_cast<double>(one.m) * static_cast<double>(one.n) * static_cast<double>(one.k);
  };
  if (!tiles) {
    std::map<double, std::pair<double, int>> by_size;  // Shapes of one size count together.
    for (const MeasuredProduct& shape : shapes) {
      auto& [rate, count] = by_size[operations(shape)];
      rate += shape.rate;
      ++count;
    }
    for (const auto& [size, sum] : by_size) measured_products_.emplace_back(size, sum.first / sum.second);
    return true;
  }
  // What the model of tiles would need to reach in order to take as long: the median over shapes.
  constants_.product = 1;
  std::vector<double> parts;
  for (const MeasuredProduct& shape : shapes) {
    parts.push_back(product(1, shape.m, shape.n, shape.k, dtype) / (operations(shape) / shape.rate));
  }
  constants_.product = median(std::move(parts));
  return true;
}

bool Rates::use_kernels(const Calibration& calibration, DType dtype) {
  const auto each = [&](const char* what) {
    const auto found = calibration.rates.find(what);
    return found == calibration.rates.end() ? 0.0 : 1 / found->second;
  };
  if (const double kernel = each("kernel"); kernel > 0) {
    kernel_ = kernel;
    measured_.push_back("kernels' starts");
  }
  if (const double launch = each("launch"); launch > 0) {
    constants_.launch = launch;
    measured_.push_back("launches");
  }
  std::vector<double> moved;
  for (const char* kind : {"add", "mul", "silu", "layer_norm", "softmax"}) {
    const double rate = copy_rate(calibration, formatted("elementwise:{}:{}:", kind, name(dtype)));
    if (rate > 0) moved.push_back(rate);
  }
  // Each byte of a copy is read and written, and counted once.
  const double device = moved.empty() ? 2 * copy_rate(calibration, "copy_d2d:") : median(std::move(moved));
  if (device > 0) {
    memory_ = device;
    measured_.push_back("device memory");
  }
  const auto attention = [&](const char* pass, double& part) {
    const double rate = fastest(calibration, formatted("{}:{}:", pass, name(dtype)));
    if (rate > 0 && peak(dtype) > 0) part = rate / peak(dtype);
    return rate > 0;
  };
  const bool forward = attention("attention", constants_.attention);
  if (attention("attention_backward", constants_.attention_backward) || forward) measured_.push_back("attention");
  return device > 0;
}

void Rates::use_host(const Calibration& calibration, const Job& job) {
  const auto copies = [&](const char* kind) {
    return slower(copy_rate(calibration, formatted("copy_h2d_{}:", kind)),
                  copy_rate(calibration, formatted("copy_d2h_{}:", kind)));
  };
  const auto take = [&](double rate, double share, double& into, const char* what) {
    if (rate <= 0) return;
    into = rate * share;
    measured_.emplace_back(what);
  };
  const double ranks = static_cast<double>(machine::ranks_of_node(job));
  take(copies("pinned"), host_share_, pinned_, "pinned copies");
  take(copies("pageable"), host_share_, pageable_, "pageable copies");
  take(copy_rate(calibration, "host_adam:"), 1 / ranks, host_adam_, "the host's Adam");
  take(copy_rate(calibration, "file_read:"), 1 / ranks, nvme_read_, "reading files");
  take(copy_rate(calibration, "file_write:"), 1 / ranks, nvme_write_, "writing files");
}

// "collective_threads:all_reduce:4:1048576": by ranks and bytes.
void Rates::use_threads(const Calibration& calibration) {
  for (const Collective kind : {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter}) {
    const std::string prefix = formatted("collective_threads:{}:", name(kind));
    std::map<std::int64_t, std::map<double, double>> by_ranks;
    for (const auto& [key, rate] : calibration.rates) {
      if (!key.starts_with(prefix)) continue;
      std::string_view rest = std::string_view(key).substr(prefix.size());
      std::int64_t ranks = 0;
      std::int64_t bytes = 0;
      if (!take_number(rest, ranks) || !rest.starts_with(':')) continue;
      rest.remove_prefix(1);
      if (take_number(rest, bytes) && rest.empty()) by_ranks[ranks][static_cast<double>(bytes)] = rate;
    }
    for (const auto& [ranks, curve] : by_ranks) measured_collectives_[kind][ranks] = {curve.begin(), curve.end()};
  }
  if (!measured_collectives_.empty()) measured_.push_back("collectives between threads");
}

void Rates::use(const Calibration& calibration, const Job& job) {
  const DType dtype = job.training.compute_dtype();
  hardware_tiles_ = job.hardware->architecture != "host";
  const bool products = use_products(calibration, dtype);
  const bool memory = use_kernels(calibration, dtype);
  use_host(calibration, job);
  if (!hardware_tiles_) use_threads(calibration);
  if (measured_.empty()) return;
  // Kernels decide: with host copies alone the step is still an estimate.
  calibrated_ = products && memory;
  basis_ = formatted("{} as measured ({}); the rest: {}", joined(measured_, ", "), calibration.path, basis_);
}

}  // namespace dsplan
