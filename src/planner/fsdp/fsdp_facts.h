// What fully_shard decides about a job before anything runs: which parameters are gathered together, and how each is
// cut. Pure functions (torch/distributed/fsdp/_fully_shard of 2.11). predict/footprint*.cpp derive the same a second
// time and must not include this header (tools/layering.py).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "core/units.h"

namespace dsplan {

// Of one rank: rows of dimension 0, as torch.chunk divides them. The last ranks may have fewer rows than the others, or
// none; their shards are padded to as many (_fsdp_param.py, _init_sharded_param).
struct FsdpShard {
  Shape local;      // Without padding; no rows where there are none.
  Elements from;    // Where it begins in the parameter.
  Elements real;    // Of `local`.
  Elements padded;  // What every rank sends.
};
[[nodiscard]] FsdpShard shard_on_dim0(const Shape& shape, std::int64_t ranks, std::int64_t rank);
// The first ranks, of which none has less than a whole share.
[[nodiscard]] std::int64_t full_shards(const Shape& shape, std::int64_t ranks);

// The ranks over which parameters are cut; each shard is on `replicate` times as many.
[[nodiscard]] inline std::int64_t sharding_ranks(const Job& job) {
  return job.parallelism.dp / job.training.fsdp.replicate;
}

// Whether both ranks have as many rows of each parameter. Rank 0 has the most.
[[nodiscard]] bool same_shards(const ModelSpec& model, const Job& job, std::int64_t a, std::int64_t b);

// What one call of fully_shard makes.
struct FsdpGroup {
  std::vector<ModuleId> modules;        // As they were passed.
  std::vector<ParameterId> parameters;  // Untied, in the order in which they are found; may be empty.
  std::vector<ModuleId> managed;        // The modules and what lies in them, children first, but for other groups'.
  ModuleId first = kNone;               // Of the modules: whose forward begins first,
  ModuleId last = kNone;                // and whose ends last.
  std::int64_t reshards = 1;            // After forward: Fsdp::reshard_after_forward.
};
// In the order of the calls: what lies inside comes before what lies around it, the model itself last.
[[nodiscard]] std::vector<FsdpGroup> fsdp_groups(const ModelSpec& model, const Fsdp& fsdp);
// Layers of a decoder have groups of their own.
[[nodiscard]] bool shards_decoder_layers(const ModelSpec& model, const Fsdp& fsdp);

// A word of Fsdp::wrap beside "ends": what is on the host or the device is cut by a caller that has variables of both
// ends' weights, which stay whole until all is cut, and of the last parameter (accelerate's fsdp2_prepare_model:
// input_weight, output_weight, and the last `param` of a loop).
inline constexpr std::string_view kHeldEnds = "held";
[[nodiscard]] bool is_held(const ModelSpec& model, const Fsdp& fsdp, ParameterId id);

// A word of Fsdp::wrap: axolotl's own fsdp2_prepare_model takes accelerate's place (axolotl 0.19,
// monkeypatch/accelerate/fsdp2.py). A dictionary of what is on the device holds all of it until all is cut; nothing is
// cast to fp32; what rank 0 sends goes at once.
inline constexpr std::string_view kAxolotl = "axolotl";
[[nodiscard]] bool prepared_by_axolotl(std::string_view wrap);

// Under FSDP1 what peft's fsdp_auto_wrap_policy wraps beside classes: modules without others inside whose weight is
// trained (peft 0.21, utils/other.py). Under fully_shard each factor that axolotl passes to a call of its own, right
// before what lies around it (monkeypatch/accelerate/fsdp2.py, _process_lora_module_for_fsdp).
inline constexpr std::string_view kAdapters = "adapters";
[[nodiscard]] bool wraps_adapters(const Fsdp& fsdp);
// peft casts an adapter's input to the dtype in which its weight is seen before its module is called: that of the
// shard, where fully_shard has given it a group of its own. nullopt: none has one.
[[nodiscard]] std::optional<DType> sharded_adapters(const ModelSpec& model, const Training& training);

// A word of FSDP1 alone, "size:100000000": size_based_auto_wrap_policy with so many parameters at least
// (torch/distributed/fsdp/wrap.py). nullopt: another word, or no number.
[[nodiscard]] std::optional<std::int64_t> least_wrapped(std::string_view word);

// Of one factor of an adapter.
[[nodiscard]] bool is_factor(const ModelSpec& model, const FsdpGroup& group);

// Of those the ones of whole layers, in the order of the layers: set_modules_to_forward_prefetch is called on them.
[[nodiscard]] std::vector<std::size_t> layer_groups(const ModelSpec& model, const std::vector<FsdpGroup>& groups);

// In words, what fully_shard would do to such groups that nobody wants; nullopt if they are sound.
[[nodiscard]] std::optional<std::string> groups_unsupported(const ModelSpec& model, const Training& training);

}  // namespace dsplan
