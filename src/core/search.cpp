#include "core/search.h"

namespace dsplan {

std::string_view name(Axis axis) {
  switch (axis) {
    case Axis::Gpus: return "gpus";
    case Axis::ZeroStage: return "zero_stage";
    case Axis::Offload: return "offload";
    case Axis::TensorParallel: return "tp";
    case Axis::Loss: return "loss";
    case Axis::ReduceBucket: return "reduce_bucket_size";
    case Axis::MicroBatch: return "micro_batch";
    case Axis::Checkpoint: return "checkpoint";
  }
  return "";
}

std::optional<Axis> axis_named(std::string_view text) {
  for (std::size_t i = 0; i < kAxes; ++i) {
    if (name(static_cast<Axis>(i)) == text) return static_cast<Axis>(i);
  }
  return std::nullopt;
}

std::vector<std::string_view> axis_names() {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < kAxes; ++i) names.push_back(name(static_cast<Axis>(i)));
  return names;
}

std::string_view name(Objective objective) {
  switch (objective) {
    case Objective::TokensPerSecond: return "tokens_per_second";
    case Objective::Gpus: return "gpus";
    case Objective::MicroBatch: return "micro_batch";
    case Objective::Seq: return "seq";
    case Objective::Layers: return "layers";
  }
  return "";
}

std::string_view name(Fate fate) {
  switch (fate) {
    case Fate::Fits: return "fits";
    case Fate::Tight: return "tight";
    case Fate::FitsWithRetries: return "fits_with_retries";
    case Fate::DoesNotFit: return "does_not_fit";
    case Fate::Bounded: return "too_large";
    case Fate::Unknown: return "unknown";
    case Fate::Refused: return "refused";
    case Fate::Slower: return "slower";
  }
  return "";
}

}  // namespace dsplan
