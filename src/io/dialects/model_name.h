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

// `above`, which is the launch line's, over `below`, which is the training file's. Refused: they name two models, two
// programs or two trainers, so that they are of two jobs. A model that is a path which is not here is not compared.
[[nodiscard]] Said of_one_job(const Said& below, const Said& above);

}  // namespace dsplan
