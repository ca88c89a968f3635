// The files of other projects that say how a model is trained. A dialect is one table: what its files are called, whose
// sources say which keys there are, and a row for each key: honoured (which setting), refused (what it would need), or
// inert (why it moves no byte). src/io/dialects reads files by these rows and recognises a file by the keys that it
// has; docs/scope.md lists them; tests/dialects_test.cpp holds them against the fields of the projects' own sources.
// The DeepSpeed JSON and our own files have their rows in core/settings.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/inputs.h"
#include "core/settings.h"

namespace dsplan {

// What accelerate's FullyShardedDataParallelPlugin is made of.
struct ShardingInput {
  Setting<bool> on;                            // distributed_type: FSDP, use_fsdp; TrainingArguments' fsdp.
  Setting<std::string> version;                // 1|2
  Setting<std::string> inner_version;          // The same in axolotl's fsdp_config.
  Setting<std::string> strategy;               // sharding_strategy, read under version 1; a word of the Trainer's fsdp.
  Setting<std::string> reshard_after_forward;  // true|false, under version 2.
  Setting<std::string> wrap_policy;
  Setting<std::vector<std::string>> classes;  // transformer_layer_cls_to_wrap
  Setting<bool> offload;
  Setting<bool> pins;          // axolotl's cpu_offload_pin_memory, of version 2.
  Setting<bool> rank0_loads;   // cpu_ram_efficient_loading
  Setting<bool> synchronises;  // sync_module_states
  Setting<std::string> state_dict;
  Setting<bool> checkpoints;       // activation_checkpointing
  Setting<std::int64_t> replicas;  // parallelism_config: dp_replicate_size
  Setting<std::int64_t> shards;    // dp_shard_size
  // Under version 1.
  Setting<std::string> backward_prefetch;  // BACKWARD_PRE|BACKWARD_POST|NO_PREFETCH
  Setting<bool> forward_prefetch;
  Setting<bool> use_orig_params;
  Setting<bool> limits_gathers;            // limit_all_gathers
  Setting<std::int64_t> least_parameters;  // min_num_params, of SIZE_BASED_WRAP.
};
[[nodiscard]] ShardingInput overlay(const ShardingInput& below, const ShardingInput& above);

// What these files say in keys that make no setting by themselves: planner/resolve/programs.h makes settings of them,
// by the rules of the program that reads them.
struct ForeignInput {
  Setting<std::string> program;  // "trl", "llama-factory", "llama-factory-v1", "axolotl", "torchtitan".
  Setting<std::string> model;    // model_name_or_path, base_model: a hub id, a bundled name or a path.
  Setting<bool> adapters;        // use_peft, adapter: lora, finetuning_type: lora.
  Setting<std::int64_t> lora_r;
  Setting<double> lora_alpha;
  Setting<double> lora_dropout;
  Setting<std::vector<std::string>> lora_targets;
  Setting<bool> lora_all_linear;                 // lora_target_linear
  Setting<bool> lora_in_fp32;                    // peft_autocast_adapter_dtype
  Setting<bool> lora_rank_stabilized;            // use_rslora
  Setting<bool> lora_dora;                       // use_dora
  Setting<std::vector<std::string>> lora_saved;  // modules_to_save: modules that are trained whole.
  Setting<std::string> lora_task;                // CAUSAL_LM, SEQ_CLS.
  Setting<std::string> trainer;                  // Of TRL: "sft", "dpo", "kto", "reward".
  Setting<std::vector<std::string>> loss_types;  // loss_type
  Setting<double> centered;                      // center_rewards_coefficient
  Setting<bool> precomputed;                     // precompute_ref_log_probs
  Setting<std::string> pair_loss;                // pref_loss
  Setting<bool> rewards;                         // axolotl's reward_model
  Setting<double> supervised;                    // cpo_alpha
  Setting<std::string> model_class;              // axolotl's model_type
  Setting<bool> packs;                           // sample_packing, packing
  Setting<std::string> packing_strategy;         // TRL's
  Setting<bool> lora_kernels;                    // axolotl's, which it turns on where nobody says anything.
  Setting<std::vector<std::string>> plugins;     // axolotl's
  Setting<bool> liger_rope;                      // What its plugin for Liger takes of Liger's.
  Setting<bool> liger_norms;
  Setting<bool> liger_layer_norms;
  Setting<bool> liger_gates;
  Setting<bool> liger_loss;
  Setting<bool> cut_loss;          // cut_cross_entropy, of its plugin for that.
  Setting<bool> by_32;             // resize_token_embeddings_to_32x
  Setting<std::string> segments;   // llamafactory-cli lets segments expand: "always", or for "several" ranks.
  Setting<bool> trains;            // LLaMA-Factory's do_train, without which it does not.
  Setting<std::int64_t> bits;      // quantization_bit: of packed weights. load_in_4bit is 4, load_in_8bit 8.
  Setting<std::string> bits_kind;  // bnb_4bit_quant_type: "nf4", "fp4".
  Setting<std::string> bits_storage;
  Setting<bool> bits_nested;
  Setting<bool> pure_bf16;     // Trains in bf16 throughout, without autocast.
  Setting<bool> also_bf16;     // Says what bf16 says.
  Setting<bool> freeze_tower;  // Of a model that is shown pictures, as are the next two.
  Setting<bool> freeze_projector;
  Setting<bool> freeze_language;
  Setting<bool> freeze_shown;                       // freeze_mm_modules
  Setting<std::vector<std::string>> trained_names;  // unfrozen_parameters, by patterns.
  Setting<std::int64_t> image_pixels;               // image_max_pixels: of a picture, at most.
  Setting<std::string> image_sides;                 // axolotl's image_size, as HEIGHTxWIDTH.
  Setting<std::int64_t> all_rows;  // global_batch_size: of all ranks, in one step; -1: as many as they have.
  Setting<std::string> flavor;     // torchtitan's, which names a model together with model.name.
  Setting<std::int64_t> shards;    // data_parallel_shard_degree; -1: all ranks that replicas leave.
  Setting<std::int64_t> replicas;
  Setting<bool> offload;              // enable_cpu_offload
  Setting<std::string> every_nth;     // selective_ac_option: a number of layers, or "op".
  Setting<std::string> launch_file;   // TRL's accelerate_config.
  Setting<std::string> distributed;   // LLaMA-Factory v1's dist_config.name.
  Setting<std::string> init_on;       // Its init_config.name.
  Setting<bool> in_bf16;              // Its bf16, which FSDP2 alone reads.
  Setting<bool> checkpoints;          // Its enable_activation_checkpointing.
  Setting<std::int64_t> data_ranks;   // Its dp_size.
  Setting<std::string> distribution;  // accelerate's distributed_type, or the option that says it.
  ShardingInput launched;             // By accelerate's own configuration.
  ShardingInput trainers;             // By TrainingArguments.
};
// `above` wins wherever it says something.
[[nodiscard]] ForeignInput overlay(const ForeignInput& below, const ForeignInput& above);

// What a file or a launch line says, both together.
struct Said {
  Request request;
  ForeignInput foreign;
};
[[nodiscard]] Said overlay(const Said& below, const Said& above);

using ForeignAccess = FieldAccess<ForeignInput, Setting<bool>, Setting<std::int64_t>, Setting<double>,
                                  Setting<std::string>, Setting<std::vector<std::string>>>;

enum class Dialect : std::uint8_t {
  TrainingArguments,
  Trl,
  LlamaFactory,
  LlamaFactoryV1,
  Axolotl,
  Accelerate,
  Torchtitan
};

// How a value becomes what a Request says. Where no other word is said: by the type of the row's field.
enum class Reading : std::uint8_t {
  Plain,
  On,               // A flag that several keys can turn on: one that is false turns nothing off.
  Checkpointing,    // A flag: every layer is checkpointed.
  NoCheckpointing,  // disable_gradient_checkpointing
  Reentrant,        // A flag: the reentrant form, or the other.
  DeepSpeed,        // A path, the configuration itself, or (on a command line) the bare switch.
  Targets,          // "all", "q_proj,v_proj" or a list: which modules get adapters, or are trained whole.
  Method,           // finetuning_type, adapter: "lora", or what trains every weight.
  FourBits,         // A flag: packed weights of 4 bits.
  EightBits,        // The same of 8.
  Environment,      // TRL's `env`: environment variables of the run.
  MixedPrecision,   // accelerate's "bf16", "fp16", "no".
  Distribution,     // accelerate's distributed_type.
  OnOrAuto,         // A flag, or "auto", which is on where the device can.
  Attention,        // LLaMA-Factory's "auto", "disabled", "fa2"; or a flag whose own name says which.
  Kernels,          // A flag of one of axolotl's kernels for adapters, which turn one another's default off.
  Plugin,           // What accelerate makes a DeepSpeed configuration of.
  Preference,       // A number that only DPO or KTO has: whoever says it runs that trainer.
  Rewards,          // What only TRL's trainer of rewards has, which a dump says with null as well.
  Scalar,           // A text, or what YAML makes of one: true, 2.
  Liger,            // A flag: all of Liger's kernels, and its loss.
  Offloading,       // A flag, or axolotl's "legacy" (on one stream), "disk", "hidden_states".
  Sides,            // axolotl's image_size: a number, or width and height.
  Sharding,         // TrainingArguments' fsdp: a flag, or words: "full_shard auto_wrap".
  OlderSharding,    // What they have beside it in transformers 4 alone, whose FSDP is version 1.
};

struct DialectKey {
  enum class Treatment : std::uint8_t {
    Honoured,
    Refused,  // Not modelled: refused by name as soon as its value would matter.
    Inert,    // Moves no byte; reported with the reason.
    Block,    // An object whose keys have rows of their own.
  };
  std::string_view path = {};  // "lora_r", "fsdp_config.fsdp_version"
  Treatment treatment = Treatment::Inert;
  // Honoured: what it decides, in the words of our own options. Refused: the feature. Inert: the reason.
  std::string_view note = {};
  RequestAccess field = {};
  RequestAccess also = {};     // A second field that takes the same value.
  ForeignAccess foreign = {};  // Instead of `field`.
  Reading reading = Reading::Plain;
  // Refused: values that ask for nothing, beside null, false, 0, "" and empty lists: "no|none". Honoured: the values
  // that a text may have; empty: any.
  std::string_view values = {};
  When when = When::Always;
  std::int64_t least = 1;  // Of an integer.
  // An argument of transformers' Trainer: who says it runs that Trainer, whose defaults then count.
  bool trainers = false;
  // Of an inert key's value, by the project's own annotation: letters of a flag, an integer, a float, a string, a list,
  // a dictionary ("bs"), and the words that it may be ("=no|steps|epoch"). Empty: any.
  std::string_view type = {};
};

struct DialectTable {
  Dialect dialect;
  std::string_view name;     // "LLaMA-Factory"
  std::string_view program;  // ForeignInput::program; empty: none of its own.
  std::string_view what;     // "a LLaMA-Factory configuration"
  std::string_view sources;  // "llamafactory 0.9.5"
  bool numbers_in_quotes;    // Its reader takes "4" for 4.
  std::vector<DialectKey> keys;
};

[[nodiscard]] std::span<const DialectTable> dialects();
[[nodiscard]] const DialectTable& dialect(Dialect which);
// Of the key itself, or of the object that it stands in where that has one row for all; null: none.
[[nodiscard]] const DialectKey* find_key(const DialectTable& table, std::string_view path);
// The table's key nearest to `path`, or empty.
[[nodiscard]] std::string_view nearest_key(const DialectTable& table, std::string_view path);

namespace detail {

// Several keys with one reason, or of one feature: "logging_dir logging_steps".
struct Names {
  std::string_view note;
  std::string_view paths;
};
[[nodiscard]] std::vector<DialectKey> inert_keys(std::span<const Names> groups);
enum class TypesOf : std::uint8_t { Trainer, Trl, Factory, FactoryV1, Axolotl, Torchtitan };
[[nodiscard]] std::span<const Names> key_types(TypesOf whose);  // Types, and the keys that have them.
[[nodiscard]] std::vector<DialectKey> refused_keys(std::span<const Names> groups);
void append(std::vector<DialectKey>& keys, std::span<const DialectKey> more);
void append(std::vector<DialectKey>& keys, const std::vector<DialectKey>& more);

// One for each dialect.
[[nodiscard]] std::vector<DialectKey> training_arguments_keys();
[[nodiscard]] std::vector<DialectKey> trainer_keys();  // The fields of TrainingArguments alone.
[[nodiscard]] std::vector<DialectKey> trl_keys();
[[nodiscard]] std::vector<DialectKey> llama_factory_keys();
[[nodiscard]] std::vector<DialectKey> llama_factory_v1_keys();
[[nodiscard]] std::vector<DialectKey> axolotl_keys();
[[nodiscard]] std::vector<DialectKey> accelerate_keys();
[[nodiscard]] std::vector<DialectKey> torchtitan_keys();

// TrainingArguments are there as soon as one of their fields is said.
template <auto Field>
inline constexpr RequestAccess kTrainer{
    [](const Request& request) -> RequestAccess::Read {
      static const TrainingArguments kNone;
      return &((request.training_arguments ? *request.training_arguments : kNone).*Field);
    },
    [](Request& request) -> RequestAccess::Write {
      if (!request.training_arguments) request.training_arguments.emplace();
      return &((*request.training_arguments).*Field);
    }};
template <auto... Path>
inline constexpr RequestAccess kSays = kField<RequestAccess, Path...>;
template <auto... Path>
inline constexpr ForeignAccess kOther = kField<ForeignAccess, Path...>;

constexpr DialectKey honoured(std::string_view path, std::string_view setting, const RequestAccess& field,
                              Reading reading = Reading::Plain) {
  return {
      .path = path, .treatment = DialectKey::Treatment::Honoured, .note = setting, .field = field, .reading = reading};
}
constexpr DialectKey honoured(std::string_view path, std::string_view setting, const RequestAccess& field,
                              const RequestAccess& also, Reading reading = Reading::Plain) {
  DialectKey key = honoured(path, setting, field, reading);
  key.also = also;
  return key;
}
constexpr DialectKey honoured(std::string_view path, std::string_view setting, const ForeignAccess& field,
                              Reading reading = Reading::Plain) {
  DialectKey key = honoured(path, setting, RequestAccess(), reading);
  key.foreign = field;
  return key;
}
constexpr DialectKey refused(std::string_view path, std::string_view feature, std::string_view without = {},
                             When when = When::Always) {
  return {.path = path, .treatment = DialectKey::Treatment::Refused, .note = feature, .values = without, .when = when};
}
constexpr DialectKey choice(DialectKey key, std::string_view values) {
  key.values = values;
  return key;
}
constexpr DialectKey block(std::string_view path) { return {.path = path, .treatment = DialectKey::Treatment::Block}; }

}  // namespace detail
}  // namespace dsplan
