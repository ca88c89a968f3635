// What FullyShardedDataParallel decides about a job before anything runs: which parameters are flattened into one, with
// what padding, and how that is cut (torch/distributed/fsdp/_flat_param.py of 2.11). predict/footprint*.cpp derive the
// same a second time and must not include this header (tools/layering.py).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "core/units.h"

namespace dsplan {

// What lies in a flat parameter, one after another.
struct FlatPiece {
  ParameterId id = kNone;  // kNone: padding.
  Elements from;
  Elements elements;
  bool trained = false;
};

struct FlatUnit {
  ModuleId module = kNone;
  std::vector<FlatPiece> pieces;
  Elements total;                 // Of the pieces,
  Elements shard;                 // and what each rank keeps, with zeros behind the last ones.
  std::vector<ModuleId> breadth;  // The modules that it takes, breadth first.
  std::int64_t order = 0;         // When it was wrapped: what lies inside comes before.
  bool trains = false;            // One of the pieces is trained: then all have gradients.
  bool within_layer = false;      // A checkpoint around the layer runs it again.
  bool follows_unit = false;      // A layer whose input the one before has made, which is a unit too.
  // The dtypes in which its parameters are made, its shard is kept, the whole is used, and gradients are reduced. What
  // is trained is cast to fp32 where accelerate casts any.
  DType made = DType::Float32;
  DType kept = DType::Float32;
  DType gathered = DType::Float32;
  DType reduced = DType::Float32;
};
// In the order of their modules, the model's own first.
[[nodiscard]] std::vector<FlatUnit> flat_units(const ModelSpec& model, const Job& job);

// NO_SHARD, which is what PyTorch makes of one rank, too (_init_utils.py, _init_core_state): each keeps whole units.
[[nodiscard]] bool keeps_whole(const Job& job);

// What a rank has of a piece.
struct FlatSlice {
  ParameterId id = kNone;
  Elements from;  // In the shard.
  Elements elements;
  bool trained = false;
};
// But for padding; those of which the rank has nothing are left out.
[[nodiscard]] std::vector<FlatSlice> slices_of(const FlatUnit& unit, std::int64_t rank);

// In which the weight of an adapter that has a unit of its own is seen from outside of that unit's forward: views of
// the shard, which accelerate may have cast since, or without use_orig_params those that the unit used last. The first
// ones are as they were made.
struct ShownAdapters {
  DType first;
  DType later;
};
// nullopt: no adapter has a unit of its own.
[[nodiscard]] std::optional<ShownAdapters> shown_adapters(const ModelSpec& model, const Job& job);

}  // namespace dsplan
