#include "exec/calibrate/bench.h"

#include <algorithm>

#include "core/error.h"
#include "core/format.h"

namespace dsplan::exec {
namespace {

// Long enough for a clock, and for a kernel's start not to count.
constexpr std::int64_t kLeastSample = 2'000'000;
constexpr std::int64_t kMostCalls = 1000;

std::string said_by(const RunFailure& failure) {
  const Failure& what = failure.failure();
  return what.text.empty() ? std::string(failure.what()) : formatted("{}: {}", what.call, what.text);
}

}  // namespace

Bench::Bench(Device& device, const CalibrateOptions& options, MeasuredMachine& into)
    : device_(device), options_(options), into_(into), begin_(device), end_(device), started_(Clock::now()) {}

void Bench::throw_if_stopped() const {
  if (options_.stop != nullptr && options_.stop->load()) throw Interrupted();
}

void Bench::part(const std::string& what, double share, const std::function<void()>& run) {
  throw_if_stopped();
  // What earlier parts left over is this one's.
  share_ += share;
  const std::chrono::duration<double, std::nano> until(static_cast<double>(options_.time.count()) * share_);
  deadline_ = started_ + std::chrono::duration_cast<Clock::duration>(until);
  if (options_.progress) options_.progress(what);
  row(what, run);
}

void Bench::row(const std::string& name, const std::function<void()>& run) {
  throw_if_stopped();
  if (!time_left()) return failed(name, "no time was left");
  try {
    run();
  } catch (const RunFailure& failure) {
    failed(name, said_by(failure));
  } catch (const Refusal& refusal) {
    failed(name, refusal.diagnostics().front().message);
  }
}

std::vector<std::int64_t> Bench::times(const std::function<void()>& work) {
  const auto sample = [&](std::int64_t calls) {
    begin_.record(0);
    for (std::int64_t i = 0; i < calls; ++i) work();
    end_.record(0);
    end_.synchronize();
    throw_if_stopped();
    return end_.since(begin_);
  };
  (void)sample(1);  // What is paid once.
  const std::int64_t first = std::max<std::int64_t>(sample(1), 1);
  const std::int64_t calls = std::clamp<std::int64_t>(kLeastSample / first, 1, kMostCalls);
  std::vector<std::int64_t> nanoseconds;
  for (int i = 0; i < samples() && (i < 3 || time_left()); ++i) {
    nanoseconds.push_back(std::max<std::int64_t>(sample(calls) / calls, 1));
  }
  return nanoseconds;
}

std::vector<std::int64_t> Bench::host_times(const std::function<void()>& work) {
  std::vector<std::int64_t> nanoseconds;
  for (int i = -1; i < samples(); ++i) {
    device_.synchronize();
    const Clock::time_point begin = Clock::now();
    for (std::int64_t call = 0; call < kMostCalls; ++call) work();
    const auto taken = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
    if (i >= 0) nanoseconds.push_back(std::max<std::int64_t>(taken / kMostCalls, 1));
    throw_if_stopped();
  }
  device_.synchronize();
  return nanoseconds;
}

std::vector<std::int64_t> Bench::per_second(const std::vector<std::int64_t>& nanoseconds, std::int64_t amount) {
  std::vector<std::int64_t> rates;
  for (const std::int64_t each : nanoseconds) {
    const double rate = static_cast<double>(amount) * 1e9 / static_cast<double>(each);
    rates.push_back(std::max<std::int64_t>(static_cast<std::int64_t>(rate), 1));
  }
  return rates;
}

void Bench::rate(const std::string& name, MeasuredRow::Unit unit, std::int64_t amount, const std::string& how,
                 const std::function<void()>& work) {
  const std::vector<std::int64_t> nanoseconds = times(work);
  add(name, unit, formatted("{}; {} samples, device events", how, nanoseconds.size()), per_second(nanoseconds, amount));
}

}  // namespace dsplan::exec
