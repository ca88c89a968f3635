#include "core/dialects/dialects.h"

#include <algorithm>
#include <array>

#include "core/document.h"
#include "core/field_count.h"

namespace dsplan {
namespace {

using Treatment = DialectKey::Treatment;

const DialectKey* exactly(const DialectTable& table, std::string_view path) {
  const auto at =
      std::find_if(table.keys.begin(), table.keys.end(), [path](const DialectKey& key) { return key.path == path; });
  return at == table.keys.end() ? nullptr : &*at;
}

}  // namespace

ShardingInput overlay(const ShardingInput& below, const ShardingInput& above) {
  return laid_over<0>(below, above, &ShardingInput::on, &ShardingInput::version, &ShardingInput::inner_version,
                      &ShardingInput::strategy, &ShardingInput::backward_prefetch, &ShardingInput::forward_prefetch,
                      &ShardingInput::use_orig_params, &ShardingInput::limits_gathers, &ShardingInput::least_parameters,
                      &ShardingInput::reshard_after_forward, &ShardingInput::wrap_policy, &ShardingInput::classes,
                      &ShardingInput::offload, &ShardingInput::pins, &ShardingInput::rank0_loads,
                      &ShardingInput::synchronises, &ShardingInput::state_dict, &ShardingInput::checkpoints,
                      &ShardingInput::replicas, &ShardingInput::shards);
}

ForeignInput overlay(const ForeignInput& below, const ForeignInput& above) {
  ForeignInput all = laid_over<2>(
      below, above, &ForeignInput::program, &ForeignInput::model, &ForeignInput::adapters, &ForeignInput::lora_r,
      &ForeignInput::lora_alpha, &ForeignInput::lora_dropout, &ForeignInput::lora_targets,
      &ForeignInput::lora_all_linear, &ForeignInput::lora_in_fp32, &ForeignInput::lora_rank_stabilized,
      &ForeignInput::lora_dora, &ForeignInput::lora_saved, &ForeignInput::lora_task, &ForeignInput::trainer,
      &ForeignInput::loss_types, &ForeignInput::precomputed, &ForeignInput::pair_loss, &ForeignInput::rewards,
      &ForeignInput::supervised, &ForeignInput::model_class, &ForeignInput::centered, &ForeignInput::lora_kernels,
      &ForeignInput::plugins, &ForeignInput::liger_rope, &ForeignInput::liger_norms, &ForeignInput::liger_layer_norms,
      &ForeignInput::liger_gates, &ForeignInput::liger_loss, &ForeignInput::cut_loss, &ForeignInput::by_32,
      &ForeignInput::trains, &ForeignInput::segments, &ForeignInput::packs, &ForeignInput::packing_strategy,
      &ForeignInput::bits, &ForeignInput::bits_kind, &ForeignInput::bits_storage, &ForeignInput::bits_nested,
      &ForeignInput::pure_bf16, &ForeignInput::also_bf16, &ForeignInput::freeze_tower, &ForeignInput::freeze_projector,
      &ForeignInput::freeze_language, &ForeignInput::freeze_shown, &ForeignInput::trained_names,
      &ForeignInput::image_pixels, &ForeignInput::image_sides, &ForeignInput::all_rows, &ForeignInput::flavor,
      &ForeignInput::shards, &ForeignInput::replicas, &ForeignInput::offload, &ForeignInput::every_nth,
      &ForeignInput::distribution, &ForeignInput::launch_file, &ForeignInput::distributed, &ForeignInput::init_on,
      &ForeignInput::in_bf16, &ForeignInput::checkpoints, &ForeignInput::data_ranks);
  all.launched = overlay(below.launched, above.launched);
  all.trainers = overlay(below.trainers, above.trainers);
  return all;
}

Said overlay(const Said& below, const Said& above) {
  return {overlay(below.request, above.request), overlay(below.foreign, above.foreign)};
}

namespace {

using detail::TypesOf;

bool among(std::string_view path, std::string_view paths) {
  for (std::size_t at = paths.find(path); at != std::string_view::npos; at = paths.find(path, at + 1)) {
    const std::size_t end = at + path.size();
    if ((at == 0 || paths[at - 1] == ' ') && (end == paths.size() || paths[end] == ' ')) return true;
  }
  return false;
}

// Of several projects the first that annotates a key.
std::vector<DialectKey> typed(std::vector<DialectKey> keys, std::initializer_list<TypesOf> projects) {
  for (DialectKey& key : keys) {
    if (key.treatment != DialectKey::Treatment::Inert) continue;
    for (const TypesOf project : projects) {
      for (const detail::Names& group : detail::key_types(project)) {
        if (key.type.empty() && among(key.path, group.paths)) key.type = group.note;
      }
    }
  }
  return keys;
}

}  // namespace

std::span<const DialectTable> dialects() {
  static const std::array<DialectTable, 7> kAll = {{
      {Dialect::TrainingArguments, "TrainingArguments", "", "TrainingArguments", "transformers 5.17.0 and 4.57.6",
       false, typed(detail::training_arguments_keys(), {TypesOf::Trainer})},
      {Dialect::Trl, "TRL", "trl", "a TRL configuration", "trl 1.16.0", true,
       typed(detail::trl_keys(), {TypesOf::Trl, TypesOf::Trainer})},
      {Dialect::LlamaFactory, "LLaMA-Factory", "llama-factory", "a LLaMA-Factory configuration", "llamafactory 0.9.5",
       false, typed(detail::llama_factory_keys(), {TypesOf::Factory, TypesOf::Trainer})},
      {Dialect::LlamaFactoryV1, "LLaMA-Factory v1", "llama-factory-v1", "a LLaMA-Factory v1 configuration",
       "llamafactory 0.9.6.dev0, its folder v1", false, typed(detail::llama_factory_v1_keys(), {TypesOf::FactoryV1})},
      {Dialect::Axolotl, "axolotl", "axolotl", "an axolotl configuration", "axolotl 0.19.0", true,
       typed(detail::axolotl_keys(), {TypesOf::Axolotl})},
      {Dialect::Accelerate, "accelerate", "", "accelerate's configuration", "accelerate 1.15.0", false,
       detail::accelerate_keys()},
      {Dialect::Torchtitan, "torchtitan", "torchtitan", "a torchtitan configuration", "torchtitan 0.2.2 and 0.1.0",
       false, typed(detail::torchtitan_keys(), {TypesOf::Torchtitan})},
  }};
  return kAll;
}

const DialectTable& dialect(Dialect which) {
  const std::span<const DialectTable> all = dialects();
  const auto at =
      std::find_if(all.begin(), all.end(), [which](const DialectTable& one) { return one.dialect == which; });
  DSPLAN_CHECK(at != all.end(), "each dialect has a table");
  return *at;
}

const DialectKey* find_key(const DialectTable& table, std::string_view path) {
  const DialectKey* const own = exactly(table, path);
  if (own != nullptr) return own;
  for (std::size_t dot = path.rfind('.'); dot != std::string_view::npos; dot = path.rfind('.', dot - 1)) {
    const DialectKey* const around = exactly(table, path.substr(0, dot));
    const bool whole = around != nullptr && around->treatment != Treatment::Block;
    if (around != nullptr) return whole ? around : nullptr;
    if (dot == 0) break;
  }
  return nullptr;
}

std::string_view nearest_key(const DialectTable& table, std::string_view path) {
  std::vector<std::string_view> names;
  names.reserve(table.keys.size());
  for (const DialectKey& key : table.keys) names.push_back(key.path);
  return nearest(path, names);
}

namespace detail {

namespace {

std::vector<DialectKey> keys_of(std::span<const Names> groups, Treatment treatment) {
  std::vector<DialectKey> keys;
  for (const Names& group : groups) {
    std::string_view rest = group.paths;
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      if (end > 0) keys.push_back({.path = rest.substr(0, end), .treatment = treatment, .note = group.note});
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  return keys;
}

}  // namespace

std::vector<DialectKey> inert_keys(std::span<const Names> groups) { return keys_of(groups, Treatment::Inert); }
std::vector<DialectKey> refused_keys(std::span<const Names> groups) { return keys_of(groups, Treatment::Refused); }

void append(std::vector<DialectKey>& keys, std::span<const DialectKey> more) {
  keys.insert(keys.end(), more.begin(), more.end());
}

void append(std::vector<DialectKey>& keys, const std::vector<DialectKey>& more) {
  append(keys, std::span<const DialectKey>(more));
}

}  // namespace detail
}  // namespace dsplan
