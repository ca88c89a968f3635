// The model that a file or a launch line names, against the one that the command names.
#pragma once

#include <string>

#include "core/dialects/dialects.h"

namespace dsplan {

// What to look up: `argument`, or where it is empty what `named` says: a bundled model under its own name or its hub
// id, else as it stands. Refused: nothing names a model; `argument` and `named` are two. A path that is not here cannot
// be compared, and a notice says so.
[[nodiscard]] std::string agreed_model(const std::string& argument, const Setting<std::string>& named,
                                       std::vector<Notice>& notices);

}  // namespace dsplan
