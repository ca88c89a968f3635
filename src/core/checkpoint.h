// A checkpoint as its headers tell it: what a safetensors file says of each tensor, without the data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dsplan {

struct CheckpointTensor {
  std::string name;
  std::string dtype;                // As safetensors writes it: "F32", "BF16", "F16", "F8_E4M3", ...
  std::vector<std::int64_t> shape;  // In elements, outermost first; empty for a scalar.
  std::string file;                 // For messages; may be empty.
};

}  // namespace dsplan
