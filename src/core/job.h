// Everything that decides a prediction, with final values: the training run, the ranks, the machine, and for each
// input whether it was given, derived from what was given, or assumed. Made by planner/resolve.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/cluster.h"
#include "core/inputs.h"
#include "core/training.h"
#include "core/units.h"

namespace dsplan {

struct Parallelism {
  std::int64_t world = 1;          // All ranks: dp * tp * sp.
  std::int64_t gpus_per_node = 1;  // The last node may hold fewer.
  std::int64_t nodes = 1;
  std::int64_t tp = 1;
  std::int64_t sp = 1;
  std::int64_t ep = 1;
  std::int64_t dp = 1;  // world / (tp * sp).
};

enum class Origin : std::uint8_t { Given, Derived, Assumed };
[[nodiscard]] std::string_view name(Origin origin);  // "given", "derived", "assumed"

struct ResolvedInput {
  std::string name;   // "seq"
  std::string value;  // "2048"
  Origin origin = Origin::Given;
  std::string reason;  // Where it was given, or by which rule it was derived or assumed.
  std::string option;  // What would settle it: "--seq".
};

struct Job {
  Training training;
  Parallelism parallelism;
  std::optional<Hardware> hardware;
  std::optional<Cluster> cluster;
  std::optional<Bytes> capacity;     // Per device; nullopt: unknown hardware.
  Bytes reserve;                     // Taken off the capacity by wish.
  std::optional<Bytes> context;      // CUDA context; nullopt without a capacity.
  std::optional<Bytes> host_memory;  // Per node.
  std::string rank = "worst";        // A number, "all" or "worst".
  std::string phase;                 // Empty: all.
  std::vector<ResolvedInput> inputs;
  std::vector<Notice> notices;

  // The inputs that were assumed, in order: the head of the report.
  [[nodiscard]] std::vector<ResolvedInput> assumptions() const;
};

}  // namespace dsplan
