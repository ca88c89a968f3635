// What --explain fragmentation adds to the table.
#pragma once

#include <string>

#include "core/prediction.h"

namespace dsplan {

[[nodiscard]] std::string fragmentation_report(const Fragmentation& fragmentation);

}  // namespace dsplan
