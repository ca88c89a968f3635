// Job -> Schedule. `loop.h` is where to begin reading: the training loop that is lowered here.
#pragma once

#include <optional>

#include "core/program.h"
#include "core/schedule.h"
#include "planner/lower/shapes.h"
#include "planner/lower/until.h"

namespace dsplan {

// Init, first and second step (with a list of lengths, steps between them) of data-parallel rank `rank` (0 <= rank <
// job.parallelism.dp). The job must be one that `unsupported` has nothing against.
[[nodiscard]] Schedule lower(const ModelSpec& model, const Job& job, const Shapes& shapes, std::int64_t rank);
// The same; nullopt where `until` was reached.
[[nodiscard]] std::optional<Schedule> lower_within(const ModelSpec& model, const Job& job, const Shapes& shapes,
                                                   std::int64_t rank, const Until& until);
// Where all rows have the same length.
[[nodiscard]] Schedule lower(const ModelSpec& model, const Job& job, const Graph& graph, const RecipeBook& recipes,
                             std::int64_t rank);

// Init alone.
[[nodiscard]] Schedule lower_init(const ModelSpec& model, const Job& job, const Shapes& shapes, std::int64_t rank);

// The same with what an executor needs. `steps` >= Training::steps(): those behind the second are Stretch::MiddleStep.
// The schedule is that of all tensor-parallel ranks, the program that of `tensor_rank`.
struct Executable {
  Schedule schedule;
  Program program;
};
[[nodiscard]] Executable lower_to_execute(const ModelSpec& model, const Job& job, const Shapes& shapes,
                                          std::int64_t rank, std::int64_t steps, std::int64_t tensor_rank = 0);

}  // namespace dsplan
