// Single numbers on their way between the host and a tensor of any floating dtype.
#pragma once

#include <cstddef>

#include "core/units.h"

namespace dsplan::exec {

// Rounds to the nearest, ties to even. InternalError for a dtype that is no floating one.
void encode_float(double value, DType dtype, std::byte* to);
[[nodiscard]] double decode_float(const std::byte* from, DType dtype);

}  // namespace dsplan::exec
