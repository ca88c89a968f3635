// Plan -> Schedule: the only maker of events.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/graph.h"

#include "core/job.h"
#include "core/model.h"
#include "core/program.h"
#include "core/schedule.h"
#include "model/graphs/builder.h"
#include "planner/lower/recipes.h"

namespace dsplan {

// Why a schedule cannot be made for this job yet, or nullopt. States are exact in either case.
[[nodiscard]] std::optional<std::string> schedule_obstacle(const ModelSpec& model, const Job& job);

// What the graph of this job depends on.
[[nodiscard]] GraphOptions graph_options(const ModelSpec& model, const Job& job);

// Training::checkpoint with its groups: those around modules are known once the graph is.
[[nodiscard]] Checkpointing checkpointing_of(const Training& training, const Graph& graph);

// The graphs of a job, one for each length of Training::seq_list (without a list: one), with their recipes.
struct Shapes {
  std::vector<std::int64_t> lengths;
  std::vector<Graph> graphs;
  std::vector<RecipeBook> recipes;
};
// `tensor_rank`: of those that share each layer; numbers of operators depend on it, no byte does.
[[nodiscard]] Shapes build_shapes(const ModelSpec& model, const Job& job, std::int64_t tensor_rank = 0);

// Init, first and second step (with a list of lengths, steps between them) of data-parallel rank `rank` (0 <= rank <
// job.parallelism.dp).
//
// The loop that decides lifetimes: make batch, forward, keep the loss and drop the outputs, backward, drop the loss;
// the next micro-batch replaces the batch; step; zero_grad(set_to_none).
[[nodiscard]] Schedule lower(const ModelSpec& model, const Job& job, const Shapes& shapes, std::int64_t rank);

// The same with what an executor needs. `steps` >= Training::steps(): those behind the second are Stretch::MiddleStep.
// The schedule is that of all tensor-parallel ranks, the program that of `tensor_rank`.
struct Executable {
  Schedule schedule;
  Program program;
};
[[nodiscard]] Executable lower_to_execute(const ModelSpec& model, const Job& job, const Shapes& shapes,
                                          std::int64_t rank, std::int64_t steps, std::int64_t tensor_rank = 0);
// Where all rows have the same length.
[[nodiscard]] Schedule lower(const ModelSpec& model, const Job& job, const Graph& graph, const RecipeBook& recipes,
                             std::int64_t rank);

}  // namespace dsplan
