// What was measured of a device and of a process beside the program's own tensors: the rows of a "dsplan.calibration/1"
// file that a prediction uses, all that `dsplan calibrate` measures, and what the machine counts of a run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"

namespace dsplan {

// What the machine counts of a run's process while no rank moves, beside what the run counts itself. The rows between
// are from a calibration, which is another run; what is left over is called unexplained, and never shared out.

struct ProcessMoment {
  std::string name;                  // "opened": before any rank has memory; "end": after the last event.
  std::optional<Bytes> device_used;  // Of the whole device, whoever uses it (cudaMemGetInfo); absent on a host.
  std::optional<Bytes> process;      // Of this process: NVML's figure; on a host the resident set.
  Bytes reserved;                    // What the allocators of all ranks have taken.
};

struct ProcessRow {
  std::string what;  // "context:opened", "cublaslt_handle", "first_use:kernels"
  Bytes bytes;
  std::string from;  // The calibration's file.
};

struct ProcessBytes {
  std::vector<ProcessMoment> moments;
  std::vector<ProcessRow> rows;

  // Of the last moment: what is counted of the process, less what its allocators have and what the rows say; it may be
  // negative. Absent where nobody counts the process, or nothing was calibrated.
  [[nodiscard]] std::optional<std::int64_t> unexplained() const {
    if (moments.empty() || rows.empty() || !moments.back().process) return std::nullopt;
    std::int64_t left = moments.back().process->value() - moments.back().reserved.value();
    for (const ProcessRow& row : rows) left -= row.bytes.value();
    return left;
  }
};

// What a device was measured to take beside the program's own tensors, in runs of their own: the rows of a
// "dsplan.calibration/1" file that a prediction uses. An absent optional was not measured.

struct Calibration {
  std::string path;
  std::string gpu;  // As the driver calls it: "NVIDIA H200".
  std::optional<Bytes> context;
  std::optional<Bytes> cublas_workspace;
  std::optional<Bytes> cublaslt_workspace;
  std::map<std::int64_t, Bytes> communicators;  // By the number of ranks: `communicator_1`, `communicator_8`, ...
  // Rates by name, per second: "gemm:bf16:8192x8192x8192" in operations, "copy_h2d_pinned:1048576" in bytes.
  std::map<std::string, double> rates;
};

// Whether a driver's name for a device ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB") and the name of a file in
// configs/hardware ("h100-sxm", "a100-sxm-80") mean the same model: the latter's first part is a word of the former, or
// several in a row ("rtx4090", "GeForce RTX 4090"), letter case aside. Form factor and memory are not looked at.
[[nodiscard]] bool same_device(std::string_view gpu, std::string_view hardware);

// What `dsplan calibrate` measured of a machine, row by row, as a "dsplan.calibration/1" file holds it
// (docs/receipts.md). What could not be measured is not among the rows.

struct MeasuredRow {
  enum class Unit : std::uint8_t { PlainBytes, Nanoseconds, BytesPerSecond, FlopPerSecond, ElementsPerSecond };

  std::string name;  // "gemm:bf16:4096x4096x4096"
  Unit unit = Unit::PlainBytes;
  std::string how;
  std::vector<std::int64_t> samples;  // At least one, in the order in which they were taken.

  // The median; of an even number the upper one.
  [[nodiscard]] std::int64_t value() const {
    std::vector<std::int64_t> sorted = samples;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    return *middle;
  }
};

[[nodiscard]] constexpr std::string_view name(MeasuredRow::Unit unit) {
  switch (unit) {
    case MeasuredRow::Unit::PlainBytes: return "bytes";
    case MeasuredRow::Unit::Nanoseconds: return "ns";
    case MeasuredRow::Unit::BytesPerSecond: return "bytes_per_s";
    case MeasuredRow::Unit::FlopPerSecond: return "flop_per_s";
    case MeasuredRow::Unit::ElementsPerSecond: return "elements_per_s";
  }
  return "";
}

struct NotMeasured {
  std::string name;
  std::string why;
};

struct MeasuredMachine {
  std::string backend;  // "host", "cuda"
  std::string device;   // As its driver calls it: "NVIDIA H200".
  Bytes memory;
  std::int32_t driver = 0;  // As the driver numbers them; 0: there is none.
  std::int32_t runtime = 0;
  std::vector<MeasuredRow> rows;
  std::vector<NotMeasured> failed;
  bool interrupted = false;

  [[nodiscard]] const MeasuredRow* find(std::string_view name) const {
    const auto found = std::find_if(rows.begin(), rows.end(), [&](const MeasuredRow& row) { return row.name == name; });
    return found == rows.end() ? nullptr : &*found;
  }
};

}  // namespace dsplan
