// What a device was measured to take beside the program's own tensors, in runs of their own: the rows of a
// "dsplan.calibration/1" file that a prediction uses. An absent optional was not measured.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/units.h"

namespace dsplan {

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

}  // namespace dsplan
