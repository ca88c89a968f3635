// The plans of all ranks as an executor takes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "planner/lowering/lower.h"

namespace dsplan {

struct ExecutableRanks {
  Shapes shapes;                  // Whose graphs the programs name.
  std::vector<Executable> ranks;  // Of the data-parallel group, in order.
};

// `steps` >= 2 optimizer steps. Refuses, under `what`, a job for which no schedule can be made, and one whose schedule
// nobody can carry out yet, by name.
[[nodiscard]] ExecutableRanks executables_of(const ModelSpec& model, const Job& job, std::int64_t steps,
                                             const std::string& what);

}  // namespace dsplan
