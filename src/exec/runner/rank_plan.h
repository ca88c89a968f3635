// What one rank carries out, and how it says that the plan was wrong.
#pragma once

#include <cstddef>
#include <exception>
#include <span>
#include <string>

#include "core/graph.h"
#include "core/model.h"
#include "core/program.h"
#include "core/schedule.h"

namespace dsplan::exec {

// `model` is the whole model, graphs, schedule and program are the rank's. Everything must outlive the runner.
struct RankPlan {
  const ModelSpec& model;
  std::span<const Graph> graphs;
  const Schedule& schedule;
  const Program& program;
  std::int64_t tensor_rank = 0;  // Of the ranks that share each layer.

  // Among all ranks: those that share layers are neighbours.
  [[nodiscard]] std::int64_t rank() const { return schedule.rank * schedule.tp + tensor_rank; }
};

// Prediction and measurement part at an event of this rank.
class Parted : public std::exception {
 public:
  Parted(std::int64_t rank, std::size_t event, std::string text);
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] std::size_t event() const { return event_; }

 private:
  std::size_t event_;
  std::string text_;
};

}  // namespace dsplan::exec
