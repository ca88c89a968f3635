// What candidates of a search share: graphs with their times and sizes, and fronts of recompute plans. Each is made
// once, by whoever asks first.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "planner/plan/recompute/from_model.h"
#include "planner/plan/repeated_layers.h"
#include "planner/time/graph_times.h"

namespace dsplan::detail {

// One micro-batch's graph, for all families that share it.
struct PlanGraph {
  Graph graph;  // With all layers, unless `of_few`.
  bool of_few = false;
  GraphTimes times;
  std::optional<ActivationBytes> activations;  // Absent until somebody asks.
  bool repeats = false;                        // Of few layers, and the activations of all are theirs.
};

class PlanGraphs {
 public:
  // `few` absent: layers differ. `model` must outlive this.
  PlanGraphs(const ModelSpec& model, std::optional<FewLayers> few) : model_(model), few_(std::move(few)) {}

  // Of several jobs at once.
  [[nodiscard]] PlanGraph& of(const Job& job);
  // Of several graphs at once.
  [[nodiscard]] const ActivationBytes& activations(PlanGraph& graph, const Job& job) const;

  // A front before it is known: the job with the smallest micro-batch, as sizes and times grow alike with it, at most
  // how many plans are asked for, and a name that another one has where it is the same.
  struct Front {
    Job job;
    std::size_t most;
    std::string name;
  };
  [[nodiscard]] Front front_named(const Job& smallest, std::size_t most) const;
  // At most `most` recompute plans that no other beats. Those of `others` are worked out at once with it.
  [[nodiscard]] const std::vector<Checkpointing>& front(const Front& asked, std::span<const Front> others);

 private:
  [[nodiscard]] std::vector<Checkpointing> solved(const Front& front);

  const ModelSpec& model_;
  std::optional<FewLayers> few_;
  std::mutex making_;  // Of `made_`.
  std::map<std::string, PlanGraph> made_;
  std::map<std::string, std::vector<Checkpointing>> fronts_;
};

}  // namespace dsplan::detail
