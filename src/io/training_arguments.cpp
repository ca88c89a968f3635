#include "io/training_arguments.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/format.h"
#include "io/deepspeed.h"
#include "io/deepspeed_keys.h"
#include "io/own_file.h"
#include "io/text.h"

namespace dsplan {
namespace {

// Fields of transformers 5.17's TrainingArguments that change no size.
constexpr std::string_view kInert[] = {"output_dir",
                                       "num_train_epochs",
                                       "max_steps",
                                       "lr_scheduler_type",
                                       "lr_scheduler_kwargs",
                                       "warmup_steps",
                                       "average_tokens_across_devices",
                                       "tf32",
                                       "torch_compile_backend",
                                       "torch_compile_mode",
                                       "liger_kernel_config",
                                       "use_cache",
                                       "logging_strategy",
                                       "logging_steps",
                                       "logging_first_step",
                                       "log_on_each_node",
                                       "logging_nan_inf_filter",
                                       "include_num_input_tokens_seen",
                                       "log_level",
                                       "log_level_replica",
                                       "disable_tqdm",
                                       "report_to",
                                       "run_name",
                                       "project",
                                       "trackio_space_id",
                                       "trackio_bucket_id",
                                       "trackio_static_space_id",
                                       "eval_strategy",
                                       "eval_steps",
                                       "eval_delay",
                                       "per_device_eval_batch_size",
                                       "prediction_loss_only",
                                       "eval_on_start",
                                       "eval_do_concat_batches",
                                       "eval_use_gather_object",
                                       "eval_accumulation_steps",
                                       "include_for_metrics",
                                       "batch_eval_metrics",
                                       "save_only_model",
                                       "save_strategy",
                                       "save_steps",
                                       "save_on_each_node",
                                       "save_total_limit",
                                       "enable_jit_checkpoint",
                                       "push_to_hub",
                                       "hub_token",
                                       "hub_private_repo",
                                       "hub_model_id",
                                       "hub_strategy",
                                       "hub_always_push",
                                       "hub_revision",
                                       "load_best_model_at_end",
                                       "metric_for_best_model",
                                       "greater_is_better",
                                       "ignore_data_skip",
                                       "restore_callback_states_from_checkpoint",
                                       "full_determinism",
                                       "seed",
                                       "data_seed",
                                       "use_cpu",
                                       "accelerator_config",
                                       "dataloader_drop_last",
                                       "dataloader_num_workers",
                                       "dataloader_pin_memory",
                                       "dataloader_persistent_workers",
                                       "dataloader_prefetch_factor",
                                       "dataloader_multiprocessing_context",
                                       "dataloader_in_order",
                                       "remove_unused_columns",
                                       "label_names",
                                       "train_sampling_strategy",
                                       "length_column_name",
                                       "ddp_find_unused_parameters",
                                       "ddp_broadcast_buffers",
                                       "ddp_static_graph",
                                       "ddp_backend",
                                       "ddp_timeout",
                                       "fsdp_config",
                                       "debug",
                                       "skip_memory_metrics",
                                       "do_train",
                                       "do_eval",
                                       "do_predict",
                                       "resume_from_checkpoint",
                                       "local_rank"};

struct Argument {
  std::string_view key;
  const Value& value;
  const Place& place;
  Request& request;
  Diagnostics& diagnostics;

  [[nodiscard]] TrainingArguments& arguments() const { return *request.training_arguments; }
  void wrong(std::string_view wanted) const {
    const std::string got = value.is(Value::Kind::String) ? formatted("\"{}\"", value.string.substr(0, 80))
                                                          : std::string(describe(value.kind));
    diagnostics.add(place.says(formatted("\"{}\" must be {}, not {}", key, wanted, got)));
  }
  void not_modelled(When when, std::string feature) const {
    request.not_modelled.push_back({place, when, std::string(key), std::move(feature)});
  }
  [[nodiscard]] Setting<std::int64_t> count() const {
    const std::optional<double> number = lax_number(value);
    if (!number || std::floor(*number) != *number || std::abs(*number) > 9e15) {
      wrong("an integer");
      return {};
    }
    if (*number < 1) {
      diagnostics.add(place.says(formatted("\"{}\" must be at least 1, not {}", key, *number)));
      return {};
    }
    return {static_cast<std::int64_t>(*number), place};
  }
  [[nodiscard]] Setting<double> number() const {
    if (const std::optional<double> read = lax_number(value); read && *read >= 0) return {*read, place};
    wrong("a number of at least 0");
    return {};
  }
  [[nodiscard]] Setting<bool> flag() const {
    if (const std::optional<bool> read = lax_boolean(value)) return {*read, place};
    wrong("true or false");
    return {};
  }
  [[nodiscard]] Setting<std::string> text() const {
    if (value.is(Value::Kind::String)) return {value.string, place};
    wrong("a string");
    return {};
  }
};

using Apply = void (*)(const Argument&);

struct Known {
  std::string_view key;
  Apply apply;
};

template <Setting<double> TrainingArguments::*Field>
void take_number(const Argument& argument) {
  argument.arguments().*Field = argument.number();
}

void take_micro_batch(const Argument& argument) {
  argument.request.micro_batch = argument.arguments().per_device_train_batch_size = argument.count();
}

void take_grad_accum(const Argument& argument) {
  argument.request.grad_accum = argument.arguments().gradient_accumulation_steps = argument.count();
}

void take_max_grad_norm(const Argument& argument) {
  argument.request.max_grad_norm = argument.arguments().max_grad_norm = argument.number();
}

void take_seq(const Argument& argument) { argument.request.seq = argument.count(); }

// bf16_full_eval and fp16_full_eval count too when DeepSpeed's blocks are filled in.
template <Setting<bool> TrainingArguments::*Field>
void take_precision(const Argument& argument) {
  const Setting<bool> flag = argument.flag();
  Setting<bool>& field = argument.arguments().*Field;
  if (flag.given() && !field.value_or(false)) field = flag;
}

void take_checkpointing(const Argument& argument) {
  const Setting<bool> flag = argument.flag();
  argument.arguments().gradient_checkpointing = flag;
  if (flag.value_or(false)) argument.request.checkpoint = {"full", argument.place};
}

// A dictionary, or its JSON text on a command line; what it holds goes to torch.utils.checkpoint.
void take_checkpointing_kwargs(const Argument& argument) {
  Document parsed;
  const Value* dictionary = &argument.value;
  if (argument.value.is(Value::Kind::String)) {
    parsed = parse_json(argument.place.path, argument.value.string);
    dictionary = &parsed.root;
  }
  const Value* reentrant = dictionary->find("use_reentrant");
  if (reentrant != nullptr && !reentrant->is(Value::Kind::Null)) {
    const bool on = lax_boolean(*reentrant).value_or(true);
    argument.request.checkpoint_impl = {on ? "reentrant" : "non_reentrant", argument.place};
  }
  const Value* preserve = dictionary->find("preserve_rng_state");
  if (preserve != nullptr)
    argument.request.preserve_rng_state = {lax_boolean(*preserve).value_or(true), argument.place};
}

void take_optim(const Argument& argument) { argument.request.optimizer = argument.arguments().optim = argument.text(); }

void take_attention(const Argument& argument) { argument.request.attention = argument.text(); }

void take_torch_dtype(const Argument& argument) { argument.request.torch_dtype = argument.text(); }

// On a command line the name alone is DeepSpeed's own switch; a path comes with it or in deepspeed_config.
void take_deepspeed(const Argument& argument) {
  if (argument.value.is(Value::Kind::String)) argument.request.deepspeed = argument.text();
}

void take_auto_find(const Argument& argument) { argument.arguments().auto_find_batch_size = argument.flag(); }

void refuse_if_set(const Argument& argument, When when, std::string_view feature) {
  const Value& value = argument.value;
  const bool empty = (value.is(Value::Kind::String) && value.string.empty()) ||
                     (value.is(Value::Kind::Array) && value.items.empty()) ||
                     (value.is(Value::Kind::Object) && value.members.empty());
  const std::optional<double> number = lax_number(value);
  if (empty || (number && *number == 0) || !lax_boolean(value).value_or(true)) return;
  argument.not_modelled(when, std::string(feature));
}

constexpr Known kKnown[] = {
    {"per_device_train_batch_size", take_micro_batch},
    {"gradient_accumulation_steps", take_grad_accum},
    {"max_grad_norm", take_max_grad_norm},
    {"learning_rate", take_number<&TrainingArguments::learning_rate>},
    {"adam_beta1", take_number<&TrainingArguments::adam_beta1>},
    {"adam_beta2", take_number<&TrainingArguments::adam_beta2>},
    {"adam_epsilon", take_number<&TrainingArguments::adam_epsilon>},
    {"weight_decay", take_number<&TrainingArguments::weight_decay>},
    {"bf16", take_precision<&TrainingArguments::bf16>},
    {"bf16_full_eval", take_precision<&TrainingArguments::bf16>},
    {"fp16", take_precision<&TrainingArguments::fp16>},
    {"fp16_full_eval", take_precision<&TrainingArguments::fp16>},
    {"auto_find_batch_size", take_auto_find},
    {"gradient_checkpointing", take_checkpointing},
    {"gradient_checkpointing_kwargs", take_checkpointing_kwargs},
    {"optim", take_optim},
    {"deepspeed", take_deepspeed},
    {"deepspeed_config", take_deepspeed},
    {"attn_implementation", take_attention},
    {"torch_dtype", take_torch_dtype},
    {"dtype", take_torch_dtype},
    {"max_seq_length", take_seq},
    {"max_length", take_seq},
    {"model_max_length", take_seq},
    {"block_size", take_seq},
    {"cutoff_len", take_seq},
    {"seq_length", take_seq},
    {"torch_compile", [](const Argument& a) { refuse_if_set(a, When::Always, "torch.compile"); }},
    {"use_liger_kernel", [](const Argument& a) { refuse_if_set(a, When::Always, "Liger kernels"); }},
    {"neftune_noise_alpha", [](const Argument& a) { refuse_if_set(a, When::Always, "NEFTune"); }},
    {"fsdp", [](const Argument& a) { refuse_if_set(a, When::Always, "FSDP"); }},
    {"torch_empty_cache_steps", [](const Argument& a) { refuse_if_set(a, When::Always, "emptying the cache"); }},
    {"label_smoothing_factor", [](const Argument& a) { refuse_if_set(a, When::Always, "label smoothing"); }},
    {"optim_target_modules", [](const Argument& a) { refuse_if_set(a, When::Always, "GaLore"); }},
    {"optim_args", [](const Argument& a) { refuse_if_set(a, When::Always, "arguments of an optimizer"); }},
    {"parallelism_config", [](const Argument& a) { refuse_if_set(a, When::Always, "accelerate's parallelism"); }},
    {"ddp_bucket_cap_mb", [](const Argument& a) { refuse_if_set(a, When::PyTorch, "another DDP bucket size"); }},
    {"use_peft", [](const Argument& a) { refuse_if_set(a, When::Always, "LoRA"); }},
    {"load_in_4bit", [](const Argument& a) { refuse_if_set(a, When::Always, "quantized weights"); }},
    {"load_in_8bit", [](const Argument& a) { refuse_if_set(a, When::Always, "quantized weights"); }},
    {"packing", [](const Argument& a) { refuse_if_set(a, When::Always, "packed sequences"); }},
};

// Arguments of training scripts that are no fields of TrainingArguments.
bool is_scripts_own(std::string_view key) {
  constexpr std::array<std::string_view, 13> kOwn = {
      "deepspeed_config", "attn_implementation", "torch_dtype", "dtype",      "max_seq_length",
      "max_length",       "model_max_length",    "block_size",  "cutoff_len", "seq_length",
      "load_in_4bit",     "load_in_8bit",        "packing"};
  return std::find(kOwn.begin(), kOwn.end(), key) != kOwn.end() || key == "use_peft";
}

}  // namespace

bool apply_training_argument(std::string_view key, const Value& value, const Place& place, Request& request,
                             Diagnostics& diagnostics) {
  const bool inert = std::find(std::begin(kInert), std::end(kInert), key) != std::end(kInert);
  const auto known = std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& k) { return k.key == key; });
  if (!inert && known == std::end(kKnown)) return false;
  if (value.is(Value::Kind::Null)) return true;
  // Names like "seed" or "max_length" are everybody's; those that decide something are taken as Hugging Face's own.
  const bool trainers = !inert && !is_scripts_own(key) && !(key == "deepspeed" && value.is(Value::Kind::Bool));
  if (trainers && !request.training_arguments) request.training_arguments.emplace().place = place;
  if (inert) {
    request.notices.push_back(
        {Notice::Kind::Inert, place, formatted("\"{}\" has no effect here: it changes no size", key), {}});
  } else {
    known->apply({key, value, place, request, diagnostics});
  }
  return true;
}

std::string_view nearest_training_argument(std::string_view key) {
  std::vector<std::string_view> names(std::begin(kInert), std::end(kInert));
  for (const Known& known : kKnown) names.push_back(known.key);
  return nearest(key, names);
}

Request read_training_arguments(const Document& document) {
  expect_object(document, "TrainingArguments");
  Diagnostics diagnostics;
  Request request;
  request.training_arguments.emplace().place = place_at(document, document.root.offset);
  for (const Member& member : document.root.members) {
    const Place place = place_at(document, member.value.offset);
    if (member.key == "deepspeed" && member.value.is(Value::Kind::Object)) {
      request.inline_deepspeed = read_deepspeed(document, member.value);
      continue;
    }
    if (apply_training_argument(member.key, member.value, place, request, diagnostics)) continue;
    const std::string_view meant = nearest_training_argument(member.key);
    std::string message = formatted("unknown argument \"{}\": without effect here", member.key);
    if (!meant.empty()) message += formatted("; did you mean \"{}\"?", meant);
    request.notices.push_back({Notice::Kind::Unknown, place_at(document, member.key_offset), std::move(message), {}});
  }
  diagnostics.throw_if_any();
  return request;
}

}  // namespace dsplan
