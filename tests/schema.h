// Whether what a command prints with --format json obeys the schema that `dsplan show schema` prints of its kind.
#pragma once

#include <string>

#include "run_binary.h"

namespace dsplan::test {

void check_schema(const Folder& folder, const std::string& kind, const std::string& json);

}  // namespace dsplan::test
