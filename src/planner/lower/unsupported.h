// What cannot be lowered yet. The jobs are valid, and their states are known by formula; what is missing is the order
// in which the framework makes and frees what it needs beside them.
#pragma once

#include <optional>
#include <string>

#include "core/job.h"
#include "core/model.h"

namespace dsplan {

// Why no schedule can be made for this job, in words that follow "not supported yet: "; nullopt: one can.
[[nodiscard]] std::optional<std::string> unsupported(const ModelSpec& model, const Job& job);

}  // namespace dsplan
