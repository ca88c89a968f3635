// Schedules of a job for whoever looks at their events or carries them out.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "core/schedule.h"
#include "planner/lower/lower.h"

namespace dsplan {

// Of one rank, 0 <= rank < world. Refuses, under `what`, a job for which no schedule can be made yet.
[[nodiscard]] Schedule schedule_of(const ModelSpec& model, const Job& job, std::int64_t rank, const std::string& what);

// The plans of all ranks as an executor takes them.
struct ExecutableRanks {
  std::vector<Shapes> shapes;     // Whose graphs the programs name: by tensor-parallel rank.
  std::vector<Executable> ranks;  // All of them; those that share layers are neighbours.

  [[nodiscard]] std::int64_t tensor_rank(std::size_t rank) const {
    return static_cast<std::int64_t>(rank % shapes.size());
  }
  [[nodiscard]] std::span<const Graph> graphs(std::size_t rank) const { return shapes[rank % shapes.size()].graphs; }
};

// `steps` >= 2 optimizer steps. Refuses, under `what`, a job for which no schedule can be made, and one whose schedule
// nobody can carry out yet, by name.
// Whose kernels compute what transformers does, gradient by gradient (tests/witnesses/exec); others are refused.
[[nodiscard]] bool is_executable(std::string_view family);
[[nodiscard]] ExecutableRanks executables_of(const ModelSpec& model, const Job& job, std::int64_t steps,
                                             const std::string& what);

}  // namespace dsplan
