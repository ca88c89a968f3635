// Takes times of work on one device, and turns them into rows. Private to exec/calibrate.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "exec/calibrate/calibrate.h"
#include "exec/device.h"

namespace dsplan::exec {

// Somebody wants all of it to end: thrown through the parts.
struct Interrupted {};

class Bench {
 public:
  using Clock = std::chrono::steady_clock;

  Bench(Device& device, const CalibrateOptions& options, MeasuredMachine& into);
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  [[nodiscard]] Device& device() { return device_; }
  [[nodiscard]] const CalibrateOptions& options() const { return options_; }
  [[nodiscard]] bool host() const { return into_.backend == "host"; }

  // One part: what it throws is told in a row of its own, and the next part goes on. `share`: of the time that was
  // given for all.
  void part(const std::string& what, double share, const std::function<void()>& run);
  // Runs `row` if there is time; what it throws becomes `name`'s entry among what was not measured.
  void row(const std::string& name, const std::function<void()>& run);

  // Nanoseconds of one call of `work`, several samples. The stream is not waited for within a sample.
  [[nodiscard]] std::vector<std::int64_t> times(const std::function<void()>& work);
  // The same by the host's clock, up to the return of the last call.
  [[nodiscard]] std::vector<std::int64_t> host_times(const std::function<void()>& work);
  // `amount` for each of these times, per second.
  [[nodiscard]] static std::vector<std::int64_t> per_second(const std::vector<std::int64_t>& nanoseconds,
                                                            std::int64_t amount);

  void add(MeasuredRow row) { into_.rows.push_back(std::move(row)); }
  void add(const std::string& name, MeasuredRow::Unit unit, std::string how, std::vector<std::int64_t> samples) {
    add({name, unit, std::move(how), std::move(samples)});
  }
  // A rate by `times` of `work`.
  void rate(const std::string& name, MeasuredRow::Unit unit, std::int64_t amount, const std::string& how,
            const std::function<void()>& work);
  void failed(const std::string& name, std::string why) { into_.failed.push_back({name, std::move(why)}); }
  void throw_if_stopped() const;
  // Of this part; the least time for which something is begun is left to whoever asks.
  [[nodiscard]] bool time_left() const { return Clock::now() < deadline_; }

 private:
  [[nodiscard]] int samples() const { return options_.quick ? 3 : 7; }

  Device& device_;
  const CalibrateOptions& options_;
  MeasuredMachine& into_;
  DeviceEvent begin_;
  DeviceEvent end_;
  Clock::time_point started_;
  double share_ = 0;  // Of the parts before, this one among them.
  Clock::time_point deadline_;
};

// The parts, each in a file of its own.
void measure_process(Bench& bench);      // process.cpp: what a process holds beside its own memory.
void measure_kernels(Bench& bench);      // kernels.cpp: launches, what only reads and writes, attention,
void measure_products(Bench& bench);     //              products.
void measure_copies(Bench& bench);       // copies.cpp: within the device, and both ways to the host.
void measure_collectives(Bench& bench);  // collectives.cpp: of ranks that share this device.
void measure_adam(Bench& bench);         // host.cpp: Adam on all of the host's cores,
void measure_files(Bench& bench);        //           files.

}  // namespace dsplan::exec
