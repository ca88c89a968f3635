// Measured constants of one device (docs/receipts.md, "dsplan.calibration/1"): read, and written by `dsplan calibrate`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/calibration.h"
#include "core/cluster.h"
#include "core/document.h"

namespace dsplan {

// Of the rows, a prediction uses `context`, `cublas_workspace`, `cublaslt_workspace` and `communicator_N`; the others
// (rates, handles) are read and left to the planner. Faults: another schema, missing and unknown keys, names that
// nobody knows or that stand twice, bytes that are no whole number, no GPU.
// A hardware file that holds a calibration is taken for it.
[[nodiscard]] Calibration read_calibration(const Document& document);
// What a hardware file holds under "calibration"; nullopt: nothing.
[[nodiscard]] std::optional<Calibration> calibration_in(const Document& hardware);
// What a process was measured to hold beside its own memory: the rows in bytes of the calibration that stands in this
// file, or in the hardware file or the plan that it is. `context` is left out where its parts are there.
[[nodiscard]] std::vector<ProcessRow> calibrated_rows(const std::string& path);

// The hardware file of `dsplan calibrate`: a file of kind "hardware" (io/machine_files.h) that holds, under
// "calibration", what was measured. `--hardware` and `--calibration` both take it.
struct CalibratedFile {
  std::string name;    // Of the hardware.
  std::string source;  // Program, machine and date.
  std::string recorded;
  std::string processor;  // Of the host: "Intel(R) Xeon(R) ..."
  // Figures of the same model of device in configs/hardware, in the place of what nothing measures (multiprocessors,
  // links, peaks by the data sheet).
  std::optional<Hardware> like;
};

[[nodiscard]] std::string calibrated_hardware_json(const MeasuredMachine& machine, const CalibratedFile& file);

}  // namespace dsplan
