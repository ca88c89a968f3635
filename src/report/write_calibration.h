// The hardware file of `dsplan calibrate`: a file of kind "hardware" (io/machine_files.h) that holds, under
// "calibration", what was measured, as "dsplan.calibration/1". `--hardware` and `--calibration` both take it.
#pragma once

#include <optional>
#include <string>

#include "core/cluster.h"
#include "core/measured_machine.h"

namespace dsplan {

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
