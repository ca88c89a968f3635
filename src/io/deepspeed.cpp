#include "io/deepspeed.h"

#include <algorithm>

#include "core/format.h"
#include "io/deepspeed_keys.h"
#include "io/deepspeed_reader.h"
#include "io/deepspeed_values.h"
#include "io/place.h"

namespace dsplan {
namespace detail {
namespace {

constexpr std::string_view kZero = "zero_optimization";

// One name or a list of them (deepspeed/runtime/zero/leaf_module_config.py).
template <auto... Path>
void take_names(Reader& reader, std::string_view key, const Value& value) {
  if (value.is(Value::Kind::Null)) return;
  std::vector<std::string> names;
  if (value.is(Value::Kind::String)) names.push_back(value.string);
  for (const Value& item : value.items) {
    if (item.is(Value::Kind::String)) names.push_back(item.string);
  }
  const bool list = value.is(Value::Kind::Array) && names.size() == value.items.size();
  if (!list && !value.is(Value::Kind::String)) {
    reader.context.fault(value, formatted("\"{}\" must be a name or an array of names", key));
    return;
  }
  reach<Path...>(reader.input) = {std::move(names), reader.context.place(value)};
}

constexpr auto kInputZero = &DeepSpeedInput::zero;
constexpr auto kActivation = &DeepSpeedInput::activation_checkpointing;
constexpr auto kInputOptimizer = &DeepSpeedInput::optimizer;
constexpr auto kParam = &ZeroInput::offload_param;
constexpr auto kState = &ZeroInput::offload_optimizer;

constexpr Honoured kTop[] = {
    {"train_batch_size", take_count<1, &DeepSpeedInput::train_batch_size>},
    {"train_micro_batch_size_per_gpu", take_count<1, &DeepSpeedInput::micro_batch>},
    {"gradient_accumulation_steps", take_count<1, &DeepSpeedInput::grad_accum>},
    {"gradient_clipping", take_number<&DeepSpeedInput::gradient_clipping>},
    {"communication_data_type", take_communication_dtype},
    {"prescale_gradients", take_flag<&DeepSpeedInput::prescale_gradients>},
    {"gradient_predivide_factor", take_number<&DeepSpeedInput::gradient_predivide_factor>},
    {"gradient_allreduce_op", take_allreduce_op},
    {"zero_allow_untested_optimizer", take_flag<&DeepSpeedInput::allow_untested_optimizer>},
    {"bfloat16", take_old_bf16},
    {"bf16.enabled", take_flag<&DeepSpeedInput::bf16_enabled>},
    {"bf16.check_grad_overflow", take_flag<&DeepSpeedInput::bf16_check_grad_overflow>},
    {"bf16.immediate_grad_update", take_flag<&DeepSpeedInput::bf16_immediate_grad_update>},
    {"fp16.enabled", take_flag<&DeepSpeedInput::fp16_enabled>},
    {"data_types.grad_accum_dtype", take_dtype<&DeepSpeedInput::grad_accum_dtype>},
    {"data_types.param_dtype", take_dtype<&DeepSpeedInput::param_dtype>},
    {"aio.block_size", take_count<1, &DeepSpeedInput::aio_block_size>},
    {"aio.intra_op_parallelism", take_count<1, &DeepSpeedInput::aio_intra_op_parallelism>},
    {"optimizer.type", take_text<kInputOptimizer, &OptimizerInput::type>},
    {"optimizer.params.torch_adam", take_flag<kInputOptimizer, &OptimizerInput::torch_adam>},
    {"optimizer.params.adam_w_mode", take_flag<kInputOptimizer, &OptimizerInput::adam_w_mode>},
    {"optimizer.params.momentum", take_number<kInputOptimizer, &OptimizerInput::momentum>},
    {"optimizer.params.lr", take_number<kInputOptimizer, &OptimizerInput::learning_rate>},
    {"optimizer.params.betas", take_betas},
    {"optimizer.params.eps", take_number<kInputOptimizer, &OptimizerInput::epsilon>},
    {"optimizer.params.weight_decay", take_number<kInputOptimizer, &OptimizerInput::weight_decay>},
    {"optimizer.params.max_grad_norm", refuse_max_grad_norm},
    {"activation_checkpointing.partition_activations",
     take_flag<kActivation, &ActivationCheckpointingInput::partition_activations>},
    {"activation_checkpointing.cpu_checkpointing",
     take_flag<kActivation, &ActivationCheckpointingInput::cpu_checkpointing>},
    {"activation_checkpointing.contiguous_memory_optimization",
     take_flag<kActivation, &ActivationCheckpointingInput::contiguous_memory_optimization>},
    {"activation_checkpointing.number_checkpoints",
     take_count<1, kActivation, &ActivationCheckpointingInput::number_checkpoints>},
};

// Below "zero_optimization.".
constexpr Honoured kZeroKeys[] = {
    {"stage", take_stage},
    {"contiguous_gradients", take_flag<kInputZero, &ZeroInput::contiguous_gradients>},
    {"reduce_scatter", take_flag<kInputZero, &ZeroInput::reduce_scatter>},
    {"reduce_bucket_size", take_count<0, kInputZero, &ZeroInput::reduce_bucket_size>},
    {"use_multi_rank_bucket_allreduce", take_flag<kInputZero, &ZeroInput::use_multi_rank_bucket_allreduce>},
    {"overlap_comm", take_flag<kInputZero, &ZeroInput::overlap_comm>},
    {"round_robin_gradients", take_flag<kInputZero, &ZeroInput::round_robin_gradients>},
    {"sub_group_size", take_count<0, kInputZero, &ZeroInput::sub_group_size>},
    {"stage3_prefetch_bucket_size", take_count<0, kInputZero, &ZeroInput::prefetch_bucket_size>},
    {"stage3_param_persistence_threshold", take_count<0, kInputZero, &ZeroInput::param_persistence_threshold>},
    {"stage3_model_persistence_threshold", take_count<0, kInputZero, &ZeroInput::model_persistence_threshold>},
    {"stage3_max_live_parameters", take_count<0, kInputZero, &ZeroInput::max_live_parameters>},
    {"stage3_max_reuse_distance", take_count<0, kInputZero, &ZeroInput::max_reuse_distance>},
    {"stage3_gather_16bit_weights_on_model_save",
     take_flag<kInputZero, &ZeroInput::gather_16bit_weights_on_model_save>},
    {"stage3_gather_fp16_weights_on_model_save", take_legacy_gather},
    {"stage3_use_all_reduce_for_fetch_params", take_flag<kInputZero, &ZeroInput::all_reduce_for_fetch>},
    {"stage3_allgather_sequential", take_flag<kInputZero, &ZeroInput::allgather_sequential>},
    {"stage3_module_granularity_threshold", take_count<0, kInputZero, &ZeroInput::module_granularity_threshold>},
    {"zero_hpz_partition_size", take_count<0, kInputZero, &ZeroInput::hpz_partition_size>},
    {"zero_quantized_weights", take_flag<kInputZero, &ZeroInput::quantized_weights>},
    {"leaf_module.classes", take_names<kInputZero, &ZeroInput::leaf_classes>},
    {"leaf_module.names", take_names<kInputZero, &ZeroInput::leaf_names>},
    {"leaf_module.name_suffixes", take_names<kInputZero, &ZeroInput::leaf_suffixes>},
    {"legacy_stage1", refuse_legacy_stage1},
    {"compute_grad_norm", take_flag<&DeepSpeedInput::compute_grad_norm>},
    {"cpu_offload", take_legacy_offload<kState>},
    {"cpu_offload_param", take_legacy_offload<kParam>},
    {"offload_param.device", take_device<kParam>},
    {"offload_param.nvme_path", take_text<kInputZero, kParam, &OffloadInput::nvme_path>},
    {"offload_param.pin_memory", take_flag<kInputZero, kParam, &OffloadInput::pin_memory>},
    {"offload_param.buffer_count", take_count<0, kInputZero, kParam, &OffloadInput::buffer_count>},
    {"offload_param.buffer_size", take_count<0, kInputZero, kParam, &OffloadInput::buffer_size>},
    {"offload_param.max_in_cpu", take_count<0, kInputZero, kParam, &OffloadInput::max_in_cpu>},
    {"offload_optimizer.device", take_device<kState>},
    {"offload_optimizer.nvme_path", take_text<kInputZero, kState, &OffloadInput::nvme_path>},
    {"offload_optimizer.pin_memory", take_flag<kInputZero, kState, &OffloadInput::pin_memory>},
    {"offload_optimizer.buffer_count", take_count<0, kInputZero, kState, &OffloadInput::buffer_count>},
    {"offload_optimizer.pipeline_read", take_flag<kInputZero, kState, &OffloadInput::pipeline_read>},
    {"offload_optimizer.pipeline_write", take_flag<kInputZero, kState, &OffloadInput::pipeline_write>},
    {"offload_optimizer.ratio", take_number<&DeepSpeedInput::offload_optimizer_ratio>},
};

Take find_take(std::string_view path) {
  const auto in = [&path](const auto& table) -> Take {
    const auto at = std::find_if(std::begin(table), std::end(table), [&](const Honoured& h) { return h.path == path; });
    return at == std::end(table) ? nullptr : at->take;
  };
  if (path.starts_with("zero_optimization.")) {
    path.remove_prefix(kZero.size() + 1);
    return in(kZeroKeys);
  }
  return in(kTop);
}

std::string joined(std::string_view block, std::string_view key) {
  return block.empty() ? std::string(key) : formatted("{}.{}", block, key);
}

// DeepSpeed's pydantic fields may also be named without their alias (populate_by_name).
std::string canonical(std::string_view block, std::string_view key) {
  std::string path = joined(block, key);
  if (block == kZero && find_deepspeed_key(path) == nullptr) {
    std::string aliased = formatted("{}.stage3_{}", block, key);
    if (find_deepspeed_key(aliased) != nullptr) return aliased;
  }
  return path;
}

}  // namespace

void Reader::unknown(std::string_view block, const Member& member) {
  std::vector<std::string_view> siblings;
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    const std::size_t dot = key.path.rfind('.');
    const std::string_view parent = dot == std::string_view::npos ? std::string_view() : key.path.substr(0, dot);
    if (parent == block) siblings.push_back(dot == std::string_view::npos ? key.path : key.path.substr(dot + 1));
  }
  const std::string_view meant = nearest(member.key, siblings);
  std::string hint = did_you_mean(meant);
  if (deepspeed_forbids_unknown(block)) {
    context.diagnostics.add(context.document.at(
        member.key_offset, formatted("unknown key \"{}\" in {}: DeepSpeed forbids it", member.key, block),
        std::move(hint)));
    return;
  }
  std::string message = formatted("unknown key \"{}\": DeepSpeed ignores it", joined(block, member.key));
  if (!hint.empty()) message += "; " + hint;
  input.notices.push_back(
      {Notice::Kind::Unknown, place_at(context.document, member.key_offset), std::move(message), {}});
}

void Reader::not_modelled(const DeepSpeedKey& key, const Member& member) {
  if (is_harmless(key.path, member.value)) return;
  input.not_modelled.push_back({context.place(member.value), key.when, std::string(key.path), std::string(key.note)});
}

void Reader::inert(const DeepSpeedKey& key, const Member& member) {
  if (member.value.is(Value::Kind::Null)) return;
  check_inert(context, key.path, member);
  input.notices.push_back({Notice::Kind::Inert,
                           place_at(context.document, member.key_offset),
                           formatted("\"{}\" has no effect here: {}", key.path, key.note),
                           {},
                           "inert_key",
                           std::string(key.path)});
}

void Reader::honour(const DeepSpeedKey& key, const Member& member) {
  const Take take = find_take(key.path);
  DSPLAN_CHECK(take != nullptr, std::string(key.path) + " is marked honoured and nobody reads it");
  take(*this, member.key, member.value);
  if (key.when != When::Always && !member.value.is(Value::Kind::Null)) {
    input.conditional.push_back({place_at(context.document, member.key_offset), key.when, std::string(key.path)});
  }
}

void Reader::enter(const DeepSpeedKey& key, const Value& value) {
  if (value.is(Value::Kind::Null)) return;
  // "zero_optimization": true is an old way to say stage 1 (deepspeed/runtime/zero/config.py).
  if (key.path == kZero && value.is(Value::Kind::Bool)) {
    input.zero.present = true;
    input.zero.place = context.place(value);
    input.zero.stage = {value.boolean ? 1 : 0, input.zero.place};
    return;
  }
  if (!value.is(Value::Kind::Object)) {
    context.fault(value, formatted("\"{}\" must be an object, not {}", key.path, describe(value.kind)));
    return;
  }
  const auto mark = [&](auto& block) {
    block.present = true;
    block.place = context.place(value);
  };
  if (key.path == kZero) mark(input.zero);
  if (key.path == "optimizer") mark(input.optimizer);
  if (key.path == "activation_checkpointing") mark(input.activation_checkpointing);
  if (key.path == "zero_optimization.offload_param") mark(input.zero.offload_param);
  if (key.path == "zero_optimization.offload_optimizer") mark(input.zero.offload_optimizer);
  block(key.path, value);
}

void Reader::member(std::string_view block, const Member& member) {
  const std::string path = canonical(block, member.key);
  const DeepSpeedKey* const key = find_deepspeed_key(path);
  if (key == nullptr) return unknown(block, member);
  const ConditionalKey here{place_at(context.document, member.key_offset), When::Always, path};
  if (deepspeed_removed(path)) input.removed.push_back(here);
  if (deepspeed_added(path)) input.added.push_back(here);
  switch (key->treatment) {
    case DeepSpeedKey::Treatment::Honoured: return honour(*key, member);
    case DeepSpeedKey::Treatment::NotModelled: return not_modelled(*key, member);
    case DeepSpeedKey::Treatment::Inert: return inert(*key, member);
    case DeepSpeedKey::Treatment::Block: return enter(*key, member.value);
  }
}

void Reader::block(std::string_view path, const Value& object) {
  // A deprecated key is judged against its successor, so it is read last, wherever it stands.
  const auto deprecated = [](const Member& m) {
    return m.key.starts_with("cpu_offload") || m.key == "stage3_gather_fp16_weights_on_model_save" ||
           m.key == "bfloat16";
  };
  for (const Member& m : object.members) {
    if (!deprecated(m)) member(path, m);
  }
  for (const Member& m : object.members) {
    if (deprecated(m)) member(path, m);
  }
}

}  // namespace detail

DeepSpeedInput read_deepspeed(const Document& document) { return read_deepspeed(document, document.root); }

DeepSpeedInput read_deepspeed(const Document& document, const Value& object) {
  Diagnostics diagnostics;
  detail::Reader reader{{document, diagnostics}, {}};
  reader.input.path = document.path;
  reader.input.place = place_at(document, object.offset);
  if (object.is(Value::Kind::Object)) {
    reader.block({}, object);
  } else {
    diagnostics.add(document.at(object.offset, "a DeepSpeed configuration must be an object",
                                formatted("found {}", describe(object.kind))));
  }
  detail::check_together(reader.context, reader.input);
  diagnostics.throw_if_any();
  return std::move(reader.input);
}

}  // namespace dsplan
