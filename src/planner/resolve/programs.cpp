#include "planner/resolve/programs.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/format.h"
#include "model/graphs/graphs.h"
#include "model/parts.h"
#include "model/traits.h"
#include "planner/resolve/program_parts.h"
#include "planner/resolve/sharding_plugin.h"

namespace dsplan {
namespace {

// All of a tower that has parameters, but its end, which counts as the projector.
void add_parts_of(const ModelSpec& base, const TowerParts& tower, std::vector<std::string>& globs) {
  const std::string outer = formatted("model.{}.", tower.module);
  for (const Parameter& parameter : base.parameters) {
    if (!parameter.name.starts_with(outer)) continue;
    const std::string part = parameter.name.substr(0, parameter.name.find('.', outer.size()));
    const std::string glob = part + ".*";
    if (part != outer + "merger" && (globs.empty() || globs.back() != glob)) globs.push_back(glob);
  }
}

// A picture has image_max_pixels at most (mm_plugin.py, _preprocess_image): a square of as many is taken.
void size_shown(const ForeignInput& foreign, const ModelSpec& base, const Place& usual, Request& request) {
  if (sized_tower(base) == nullptr || request.image_size.given()) return;
  const std::int64_t pixels = foreign.image_pixels.value_or(768 * 768);
  const auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(pixels)));
  request.image_size = {std::to_string(side), foreign.image_pixels.given() ? foreign.image_pixels.place : usual};
}

// TRL's hooks in place of transformers' checkpoints: around layers that axolotl wraps itself, in the other form, and
// with adapters around nothing, where frozen weights go to the host as well (loaders/model.py, core/trainers/mixins).
void take_offloading(const ForeignInput& foreign, Request& request) {
  Setting<std::string>& offloading = request.activation_offloading;
  if (offloading.value_or("none") == "none") return;
  const Place place = offloading.place;
  if (foreign.adapters.value_or(false)) {
    offloading = {};
    request.not_modelled.push_back(
        {place, When::Always, "activation_offloading", "activation offloading beside adapters in axolotl"});
  } else if (!request.checkpoint.given()) {
    request.not_modelled.push_back(
        {place, When::Always, "activation_offloading", "activation offloading without gradient_checkpointing"});
  }
  request.checkpoint_impl = {"non_reentrant", place};
}

bool is_flash(const Request& request) {
  const std::string attention = request.attention.value_or("sdpa");
  return attention.starts_with("flash") || attention == "fa2" || attention == "fa3";
}

// A micro-batch in one row.
void fold_rows(const Place& place, Request& request, std::int64_t usual_seq) {
  const std::int64_t rows = request.micro_batch.value_or(1);
  if (rows == 1) return;
  request.seq = {checked_mul(rows, request.seq.value_or(usual_seq)), place};
  request.micro_batch = {1, place};
  if (request.training_arguments) request.training_arguments->per_device_train_batch_size = request.micro_batch;
}

void tell_of_packing(std::string_view key, const Place& place, std::string_view uncounted, Request& request) {
  const std::int64_t rows = request.micro_batch.value_or(1);
  request.notices.push_back(
      {Notice::Kind::Announcement,
       place,
       formatted("{}: a micro-batch is {} of {} tokens, taken as full{}", key,
                 rows == 1 ? "one row" : formatted("{} rows", rows), request.seq.value_or(512), uncounted),
       {}});
}

// _create_multipack_sampler (core/trainers/base.py): flash attention keeps sequences of one row apart, so that a
// micro-batch is one row; with other kernels rows stay rows, which sequences fill.
void pack_rows(const ForeignInput& foreign, Request& request) {
  if (!foreign.packs.value_or(false)) return;
  const Place& place = foreign.packs.place;
  if (is_flash(request)) fold_rows(place, request, 512);
  tell_of_packing("sample_packing", place,
                  "; positions and the lengths of the sequences, 8 to 16 bytes a token beside the batch, are not "
                  "counted",
                  request);
}

// TRL 1.16.0, SFTTrainer: "wrapped" fills rows and leaves them as they are; the others fold a micro-batch into one row
// (DataCollatorForLanguageModeling, padding_free), whose sequences flash attention keeps apart. For other kernels
// transformers makes a mask of whole squares.
void pack_for_trl(const ForeignInput& foreign, std::string_view trainer, Request& request, Diagnostics& faults) {
  if (!foreign.packs.value_or(false)) return;
  const Place& place = foreign.packs.place;
  if (trainer != "sft") {
    return faults.add(place.says(formatted("`trl {}` has no packing, which `trl sft` has", trainer)));
  }
  if (foreign.packing_strategy.value_or("bfd") == "wrapped") return tell_of_packing("packing", place, "", request);
  if (!is_flash(request)) {
    return faults.add(place.says(
        "the mask that keeps packed sequences apart without flash attention is not modelled yet",
        "attn_implementation: flash_attention_2 needs none; packing_strategy: wrapped does not keep them apart"));
  }
  fold_rows(place, request, 1024);
  tell_of_packing("packing", place,
                  "; positions and the lengths of the sequences, 12 bytes a token beside the batch, are not counted",
                  request);
}

// LLaMA-Factory 0.9.5: supervised rows are padded to cutoff_len and bring positions; pretraining's are cut one shorter
// (hparams/data_args.py, __post_init__; data/processor). What else packs nothing.
void pack_for_factory(const ForeignInput& foreign, Request& request) {
  if (!foreign.packs.value_or(false)) return;
  const Place& place = foreign.packs.place;
  const std::string stage = foreign.trainer.value_or("sft");
  if (stage == "pt") {
    request.seq = {request.seq.value_or(2048) - 1, place};
    return tell_of_packing("packing", place, ", one less than cutoff_len", request);
  }
  if (stage == "sft") {
    return tell_of_packing("packing", place, "; their positions, 8 bytes a token beside the batch, are not counted",
                           request);
  }
  request.notices.push_back(
      {Notice::Kind::Inert, place, formatted("\"packing\" has no effect here: stage {} packs nothing", stage), {}});
}

// Sequences of one row are kept apart in linear attention by flash-linear-attention's kernels alone: axolotl stops
// where they are not installed (monkeypatch/models/qwen3_5/modeling.py), LLaMA-Factory too (model/patcher.py);
// transformers' own form is modelled.
void judge_packed_mixers(std::string_view key, const ForeignInput& foreign, const ModelSpec& base, Request& request) {
  if (!foreign.packs.value_or(false) || base.parts == nullptr || base.parts->delta.heads == 0) return;
  request.not_modelled.push_back(
      {foreign.packs.place, When::Always, std::string(key),
       "flash-linear-attention's kernels, which keep sequences apart in packed rows of linear attention"});
}

// check_auto_enable_lora_kernels (utils/schemas/config.py).
void choose_adapter_kernels(const ForeignInput& foreign, const Place& usual, Request& request, Diagnostics& faults) {
  const bool rows = foreign.bits.value_or(0) == 8;
  const bool flat = request.runtime.value_or({}) == "fsdp1";
  const bool usually = !foreign.lora_kernels.given() && !foreign.trainer.given() && !flat;  // With `rl` none by itself.
  if (usually && !rows) request.lora_kernels = {"all", usual};
  if (!rows || request.lora_kernels.value_or("none") == "none") return;
  faults.add(foreign.lora_kernels.place.says("axolotl's kernels for adapters over 8-bit weights: axolotl refuses them",
                                             "say lora_mlp_kernel: false, which turns all of them off"));
}

bool has_plugin(const ForeignInput& foreign, std::string_view name) {
  const std::vector<std::string> plugins = foreign.plugins.value_or({});
  return std::find(plugins.begin(), plugins.end(), name) != plugins.end();
}

// Why Liger's LayerNorm, which its plugin puts in the place of torch.nn's, changes nothing; empty: it does. A tower is
// not called without pictures.
std::string_view no_layer_norms(const ModelSpec& base, const Request& request) {
  const auto is_norm = [](const Module& module) { return module.type == "LayerNorm"; };
  const auto in_tower = [](const Module& module) { return module.path.find("vision") != std::string::npos; };
  if (std::none_of(base.modules.begin(), base.modules.end(), is_norm)) return "the model has no LayerNorm";
  const bool all = std::all_of(base.modules.begin(), base.modules.end(),
                               [&](const Module& module) { return !is_norm(module) || in_tower(module); });
  return all && request.images.value_or(0) == 0 ? "the tower's LayerNorms do not run without pictures" : "";
}

// integrations/liger/plugin.py
void take_liger_parts(const ForeignInput& foreign, const ModelSpec& base, Request& request) {
  struct Part {
    const Setting<bool>& said;
    std::string_view key;
    std::string_view word;
  };
  const Part parts[] = {{foreign.liger_rope, "liger_rope", "rope"},
                        {foreign.liger_norms, "liger_rms_norm", "rms_norm"},
                        {foreign.liger_gates, "liger_glu_activation", "swiglu"},
                        {foreign.liger_layer_norms, "liger_layer_norm", ""},
                        {foreign.liger_loss, "liger_fused_linear_cross_entropy", "loss"}};
  const bool plugged = has_plugin(foreign, "axolotl.integrations.liger.LigerPlugin");
  std::vector<std::string_view> words;
  const Place* first = nullptr;
  for (const Part& part : parts) {
    if (!part.said.value_or(false)) continue;
    const auto inert = [&](std::string_view why) {
      request.notices.push_back(
          {Notice::Kind::Inert, part.said.place, formatted("\"{}\" has no effect here: {}", part.key, why), {}});
    };
    if (!plugged) {
      inert("plugins does not name axolotl.integrations.liger.LigerPlugin, which reads it");
    } else if (part.word == "loss") {
      if (!request.loss.given()) request.loss = {"liger", part.said.place};
    } else if (!part.word.empty()) {
      words.push_back(part.word);
      if (first == nullptr) first = &part.said.place;
    } else if (const std::string_view why = no_layer_norms(base, request); !why.empty()) {
      inert(why);
    } else {
      request.not_modelled.push_back(
          {part.said.place, When::Always, std::string(part.key), "Liger's LayerNorm by axolotl's plugin"});
    }
  }
  if (first != nullptr && !request.liger_kernels.given()) {
    request.liger_kernels = {formatted("{}", joined(words, ",")), *first};
  }
}

constexpr std::string_view kCutPlugin = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin";

// integrations/cut_cross_entropy: its plugin turns it on unless the key says otherwise, in 16 bits alone. A trainer of
// preferences asks the model for logits, and has no use for it.
void take_cut_loss(const ForeignInput& foreign, Request& request, Diagnostics& faults) {
  const bool plugged = has_plugin(foreign, kCutPlugin);
  const Setting<bool>& said = foreign.cut_loss;
  const auto inert = [&](const Place& place, std::string_view why) {
    request.notices.push_back(
        {Notice::Kind::Inert, place, formatted("\"cut_cross_entropy\" has no effect here: {}", why), {}});
  };
  if (!said.value_or(plugged)) return;
  const Place& place = said.given() ? said.place : foreign.plugins.place;
  if (!plugged) return inert(place, formatted("plugins does not name {}, which reads it", kCutPlugin));
  if (foreign.trainer.given() || foreign.rewards.value_or(false)) {
    return inert(place, "its trainer computes the loss from logits");
  }
  const TrainingArguments arguments = request.training_arguments.value_or(TrainingArguments());
  if (!arguments.bf16.value_or(false) && !arguments.fp16.value_or(false)) {
    return faults.add(place.says("cut_cross_entropy without bf16 or fp16: axolotl refuses it"));
  }
  if (foreign.liger_loss.value_or(false) && !request.loss.mentioned()) {
    return faults.add(place.says("cut_cross_entropy beside liger_fused_linear_cross_entropy", "one of them"));
  }
  if (!request.loss.given()) request.loss = {"cut", place};
}

// _resize_token_embeddings (loaders/model.py): a table that is a multiple of 32, and no smaller than the tokenizer,
// stays as it is.
void judge_words(const ForeignInput& foreign, const ModelSpec& base, Request& request) {
  constexpr std::int64_t kMultiple = 32;
  if (!foreign.by_32.value_or(false)) return;
  if (base.dims.vocab > 0 && base.dims.vocab % kMultiple == 0) {
    request.notices.push_back({Notice::Kind::Announcement,
                               foreign.by_32.place,
                               formatted("resize_token_embeddings_to_32x: {} words are a multiple of 32 already; the "
                                         "tokenizer is taken to have no more",
                                         base.dims.vocab),
                               {}});
    return;
  }
  request.not_modelled.push_back(
      {foreign.by_32.place, When::Always, "resize_token_embeddings_to_32x", "a resized vocabulary"});
}

// utils/schemas/enums.py: optimizers of its own, and under "muon" (axolotl.contribs.mit.muon) another one than torch's.
void judge_optimizer(const Request& request, Diagnostics& faults) {
  constexpr std::string_view kOwn[] = {
      "muon",         "dion",       "sinkgd",      "polora",    "adamc",      "adopt_adamw", "came_pytorch",
      "optimi_adamw", "flash_adam", "flash_adamw", "flash_sgd", "flash_sgdw", "flash_lion",  "q_galore_adamw8bit"};
  if (!request.training_arguments) return;
  const Setting<std::string>& said = request.training_arguments->optim;
  const bool stands = !request.optimizer.given() || request.optimizer.place.text() == said.place.text();
  if (!stands || std::find(std::begin(kOwn), std::end(kOwn), said.value_or({})) == std::end(kOwn)) return;
  faults.add(said.place.says(formatted("optimizer \"{}\" of axolotl's own is not modelled yet", *said),
                             "adamw_torch_fused and adamw_8bit are"));
}

// Those that only report, and those whose parts are modelled.
void judge_plugins(const ForeignInput& foreign, Request& request) {
  constexpr std::string_view kKnown[] = {"axolotl.integrations.swanlab.SwanLabPlugin",
                                         "axolotl.integrations.lm_eval.LMEvalPlugin",
                                         "axolotl.integrations.liger.LigerPlugin", kCutPlugin};
  for (const std::string& plugin : foreign.plugins.value_or({})) {
    if (std::find(std::begin(kKnown), std::end(kKnown), plugin) != std::end(kKnown)) continue;
    request.not_modelled.push_back(
        {foreign.plugins.place, When::Always, "plugins", formatted("axolotl's plugin {}", plugin)});
  }
}

// A program's trainers of preferences, and the loss of each; empty: none that is modelled.
struct TrainersLoss {
  std::string_view trainer;
  std::string_view loss;
};

std::string_view loss_among(const TrainersLoss* first, const TrainersLoss* last, std::string_view trainer) {
  const auto* const at = std::find_if(first, last, [&](const TrainersLoss& one) { return one.trainer == trainer; });
  return at == last ? std::string_view() : at->loss;
}

constexpr TrainersLoss kFactoryLosses[] = {{"sigmoid", "dpo-logits"},
                                           {"orpo", "orpo-logits"},
                                           {"simpo", "simpo-logits"},
                                           {"kto", "kto-logits"},
                                           {"rm", "reward-values"}};

// train/tuner.py: each stage has a trainer of its own. Of Liger's parts a stage of pairs takes all but the loss.
void take_factory_stage(const ForeignInput& foreign, Request& request, Diagnostics& faults) {
  const std::string stage = foreign.trainer.value_or("sft");
  if (stage == "sft" || stage == "pt") return;
  const std::string kind = stage == "dpo" ? foreign.pair_loss.value_or("sigmoid") : stage;
  const std::string_view loss = loss_among(std::begin(kFactoryLosses), std::end(kFactoryLosses), kind);
  if (loss.empty() && stage == "dpo") {
    return faults.add(foreign.pair_loss.place.says(formatted("the loss of pairs {} is not modelled yet", kind),
                                                   "sigmoid, orpo and simpo are"));
  }
  if (loss.empty()) {
    return faults.add(foreign.trainer.place.says(
        formatted("LLaMA-Factory's stage {}, which generates while it trains, is not modelled yet", stage),
        "sft, pt, rm, dpo and kto are"));
  }
  const bool ligers = request.loss.given() && request.liger_kernels.given() &&
                      request.loss.place.text() == request.liger_kernels.place.text();
  if (!request.loss.given() || ligers) request.loss = {std::string(loss), foreign.trainer.place};
}

void expand_segments(const ForeignInput& foreign, Request& request) {
  if (!foreign.segments.given()) return;
  if (*foreign.segments == "several" && request.gpus.value_or(1) < 2) return;
  const Place& place = foreign.segments.place;
  if (request.alloc_conf.given() && request.alloc_conf.place.line == 0 &&
      request.alloc_conf.place.text().starts_with("--")) {
    return;  // An option.
  }
  request.alloc_conf = {"expandable_segments:True", place};
  request.notices.push_back({Notice::Kind::Announcement,
                             place,
                             "it starts torchrun with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; OPTIM_TORCH=0 "
                             "turns that off",
                             {}});
}

// train/sft/workflow.py and its like: without do_train there are predictions, exports or a chat.
void judge_training(const ForeignInput& foreign, const Place& usual, Request& request) {
  if (foreign.trains.value_or(false)) return;
  if (foreign.trains.given()) {
    request.not_modelled.push_back({foreign.trains.place, When::Always, "do_train", "a run that trains nothing"});
    return;
  }
  request.notices.push_back({Notice::Kind::Warning,
                             foreign.program.place.path.empty() ? usual : foreign.program.place,
                             "do_train is not said, and without it LLaMA-Factory trains nothing: predicted is what it "
                             "would do with do_train: true",
                             {}});
}

constexpr TrainersLoss kAxolotlLosses[] = {
    {"dpo", "dpo-rows"}, {"ipo", "ipo-rows"}, {"orpo", "orpo-rows"}, {"simpo", "simpo-rows"}, {"kto", "kto-rows"}};

// Rewards are of a class for sequences, which axolotl names by itself (utils/schemas/validation.py).
void judge_class(const ForeignInput& foreign, Request& request) {
  constexpr std::string_view kCausal[] = {"AutoModelForCausalLM", "LlamaForCausalLM",
                                          "MistralForCausalLM",   "MixtralForCausalLM",
                                          "Qwen2ForCausalLM",     "Qwen3ForCausalLM",
                                          "GemmaForCausalLM",     "Gemma2ForCausalLM",
                                          "Gemma3ForCausalLM",    "PhiForCausalLM",
                                          "Phi3ForCausalLM",      "GPTNeoXForCausalLM",
                                          "FalconForCausalLM",    "AutoModelForImageTextToText"};
  if (!foreign.model_class.given()) return;
  const std::string& given = *foreign.model_class;
  const bool causal = std::find(std::begin(kCausal), std::end(kCausal), given) != std::end(kCausal);
  const bool rewards = foreign.rewards.value_or(false);
  if (rewards ? given == "AutoModelForSequenceClassification" : causal) return;
  request.not_modelled.push_back({foreign.model_class.place, When::Always, "model_type",
                                  formatted("another class than the one for {}",
                                            rewards ? "sequence classification" : "causal language modelling")});
}

// core/builders/rl.py and causal.py: TRL 1.9.0's trainers. Its classes for sequences bring their head to peft.
void take_axolotl_pairs(ForeignInput& foreign, Request& request, Diagnostics& faults) {
  if (foreign.rewards.value_or(false)) {
    const bool centers = foreign.centered.value_or(0) > 0;
    if (!request.loss.given()) request.loss = {centers ? "reward-centered" : "reward", foreign.rewards.place};
    foreign.lora_task = {"SEQ_CLS", foreign.rewards.place};
    return;
  }
  if (!foreign.trainer.given()) return;
  std::string_view loss = loss_among(std::begin(kAxolotlLosses), std::end(kAxolotlLosses), *foreign.trainer);
  if (loss.empty()) {
    return faults.add(foreign.trainer.place.says(formatted("axolotl's rl: {} is not modelled yet", *foreign.trainer),
                                                 "dpo, ipo, orpo, simpo and kto are"));
  }
  if (*foreign.trainer == "simpo" && foreign.supervised.value_or(1) == 0) loss = "simpo-rows-bare";
  if (!request.loss.given()) request.loss = {std::string(loss), foreign.trainer.place};
}

// A file of a trainer that is refused by name is not read as another one's with one fault.
void add_not_modelled(const Request& request, Diagnostics& faults) {
  for (const NotModelled& one : request.not_modelled) {
    if (one.when != When::Always) continue;
    faults.add(one.place.says(formatted("\"{}\": not modelled yet: {}", one.key, one.feature)));
  }
}

void check_adapted_tower(const ForeignInput& foreign, Diagnostics& faults) {
  for (const Setting<bool>* one : {&foreign.freeze_tower, &foreign.freeze_projector}) {
    if (one->value_or(true)) continue;
    faults.add(one->place.says("adapters of LLaMA-Factory in a tower or its projector are not modelled yet",
                               "the language model's are"));
  }
  if (foreign.freeze_language.value_or(false)) {
    faults.add(foreign.freeze_language.place.says("adapters in a language model that is frozen"));
  }
}

// Layers of which something is trained are checkpointed, and make what they are given require gradients
// (model/model_utils/checkpointing.py, get_custom_gradient_checkpointing_func).
void checkpoint_trained(const ForeignInput& foreign, const ModelSpec& base, const Place& usual, Request& request) {
  if (request.checkpoint.value_or("none") != "full") return;
  if (!request.layers_require_grads.given()) request.layers_require_grads = {true, usual};
  const TowerParts* tower = base.parts == nullptr ? nullptr : base.parts->tower.get();
  if (tower == nullptr) return;
  const bool adapted = foreign.adapters.value_or(false);
  const bool pictures = !adapted && !foreign.freeze_tower.value_or(true);
  const bool text = adapted || !foreign.freeze_language.value_or(false);
  std::vector<std::string> trained;
  const std::vector<ModuleId> lists = lists_of_layers(base);
  for (std::size_t layer = 0; layer < lists.size(); ++layer) {
    if (lists[layer] == kNone) return;
    const bool seen = base.module_at(lists[layer]).path.find(formatted("{}.", tower->module)) != std::string::npos;
    if (seen ? pictures : text) trained.push_back(std::to_string(layer));
  }
  if (trained.size() == lists.size()) return;
  request.checkpoint = {trained.empty() ? "none" : formatted("groups:{}", joined(trained, ",")), usual};
}

// utils/config/__init__.py, normalize_config; core/builders/base.py, _configure_gradient_checkpointing.
void choose_axolotl_checkpoints(const ForeignInput& foreign, const ModelSpec& base, const Place& usual,
                                Request& request) {
  if (base.family == "gemma4") {
    if (!request.ddp.find_unused_parameters.mentioned()) request.ddp.find_unused_parameters = {true, usual};
    const Setting<std::string>& form = request.checkpoint_impl;
    if (form.given() && *form == "reentrant") {
      request.notices.push_back({Notice::Kind::Warning,
                                 form.place,
                                 "axolotl checkpoints gemma4 in the non-reentrant form, whatever it is told",
                                 {}});
    }
    if (request.checkpoint.given()) request.checkpoint_impl = {"non_reentrant", usual};
  }
  if (!request.checkpoint.given() || request.checkpoint_impl.mentioned()) return;
  const bool plain = !foreign.trainer.given() && !foreign.trained_names.given();
  request.checkpoint_impl = {plain ? "reentrant" : "non_reentrant", usual};
}

// How packed weights are kept decides how they are sharded.
void pack_for_axolotl(const ForeignInput& foreign, const Place& usual, Request& request) {
  if (foreign.bits.value_or(0) != 4 || request.quantization.given()) return;
  request.quantization = {foreign.bits_kind.value_or("nf4"), foreign.bits.place};
  if (!request.training_arguments) request.training_arguments.emplace().place = usual;
  if (!request.quant_storage.mentioned()) request.quant_storage = {foreign.bits_storage.value_or("bfloat16"), usual};
}

class OfProgram {
 public:
  OfProgram(const Said& said, const ModelSpec& base, const DeepSpeedInput* deepspeed)
      : foreign_(said.foreign), request_(said.request), base_(base), deepspeed_(deepspeed) {
    name_ = foreign_.program.value_or({});
    if (deepspeed_ == nullptr && request_.inline_deepspeed) deepspeed_ = &*request_.inline_deepspeed;
  }

  Request complete() {
    if (name_ == "axolotl") pack_for_axolotl(foreign_, own(), request_);
    apply_sharding_plugin(foreign_, base_, request_, faults_);
    if (name_ == "trl") trl();
    if (name_ == "llama-factory") llama_factory();
    if (name_ == "llama-factory-v1") {
      expand_segments(foreign_, request_);
      complete_llama_factory_v1(foreign_, base_, request_, faults_);
    }
    if (name_ == "axolotl") axolotl();
    if (name_ == "torchtitan") complete_torchtitan(foreign_, base_, request_, faults_);
    complete_adapters({foreign_, base_, name_, stage3()}, request_, faults_);
    packed_weights();
    if (faults_.any()) add_not_modelled(request_, faults_);
    faults_.throw_if_any();
    return std::move(request_);
  }

 private:
  // Where a value stands that the program chooses.
  [[nodiscard]] Place own() const {
    const std::string shown = name_ == "trl" ? "TRL" : name_ == "llama-factory" ? "LLaMA-Factory" : name_;
    return option(formatted("{}'s default", shown));
  }
  [[nodiscard]] bool stage3() const {
    return request_.zero_stage.value_or(0) == 3 || (deepspeed_ != nullptr && deepspeed_->zero.stage.value_or(0) == 3);
  }
  [[nodiscard]] bool runs_deepspeed() const {
    return deepspeed_ != nullptr || request_.deepspeed.given() || request_.zero_stage.given();
  }
  TrainingArguments& trainer() {
    if (!request_.training_arguments) request_.training_arguments.emplace().place = own();
    return *request_.training_arguments;
  }
  template <class T>
  void usually(Setting<T>& setting, T value) const {
    if (!setting.mentioned()) setting = {std::move(value), own()};
  }
  void checkpoints_usually() {
    const bool said = trainer().gradient_checkpointing.given() || request_.checkpoint.given();
    if (!said) request_.checkpoint = {"full", own()};
  }

  void trl() {
    TrainingArguments& arguments = trainer();
    checkpoints_usually();
    if (!arguments.fp16.value_or(false)) usually(arguments.bf16, true);
    usually(arguments.learning_rate, 2e-5);
    usually(request_.torch_dtype, std::string("float32"));
    usually<std::int64_t>(request_.seq, 1024);
    if (foreign_.adapters.value_or(false) && stage3() && request_.checkpoint.given()) {
      usually(request_.checkpoint_impl, std::string("reentrant"));
    }
    trl_loss();
  }

  // Which of TRL's trainers: what the line says, or what keys say that only one of them has.
  [[nodiscard]] std::string kind_of_trainer() const {
    if (foreign_.trainer.given()) return *foreign_.trainer;
    const std::vector<std::string> types = foreign_.loss_types.value_or({});
    if (!types.empty() && (types.front() == "kto" || types.front() == "apo_zero_unpaired")) return "kto";
    const bool pairs = !types.empty() && types.front() != "nll" && types.front() != "dft";
    return pairs || foreign_.precomputed.given() ? "dpo" : "sft";
  }

  void trl_loss() {
    const std::string which = kind_of_trainer();
    pack_for_trl(foreign_, which, request_, faults_);
    const bool apart = foreign_.packing_strategy.value_or("bfd") != "wrapped";
    if (apart) judge_packed_mixers("packing", foreign_, base_, request_);
    const std::string_view plain = which == "sft" ? "nll" : which == "kto" ? "kto" : "sigmoid";
    for (const std::string& type : foreign_.loss_types.value_or({})) {
      if (type == plain || which == "reward") continue;
      faults_.add(foreign_.loss_types.place.says(
          formatted("the loss \"{}\" of `trl {}` is not modelled yet", type, which), formatted("{} is", plain)));
    }
    if (request_.loss.given()) return;
    const bool centers = foreign_.centered.value_or(0) > 0;
    if (which == "reward") return usually(request_.loss, std::string(centers ? "reward-centered" : "reward"));
    if (which == "kto") {
      if (foreign_.precomputed.value_or(false)) {
        faults_.add(
            foreign_.precomputed.place.says("a reference of `trl kto` that is asked beforehand is not modelled "
                                            "yet"));
      }
      return usually(request_.loss, std::string("kto"));
    }
    if (which == "dpo") {
      const bool known = foreign_.precomputed.value_or(false);
      return usually(request_.loss, std::string(known ? "dpo-precomputed" : "dpo"));
    }
    const std::optional<std::string> other = stage3() ? "ZeRO-3" : fused_head_unsupported(base_);
    if (!other && request_.runtime.value_or("") != "fsdp2") return usually(request_.loss, std::string("trl"));
    request_.notices.push_back(
        {Notice::Kind::Warning,
         foreign_.program.place.path.empty() ? own() : foreign_.program.place,
         formatted("TRL's own loss is not modelled with {}: transformers' loss over whole logits is predicted, without "
                   "the metrics that TRL computes beside it",
                   other.value_or("fully_shard")),
         {}});
  }

  // The layers' forward is checkpointed unless it is turned off. What is trained is kept in fp32, but for pure bf16 and
  // ZeRO-3.
  void llama_factory() {
    TrainingArguments& arguments = trainer();
    checkpoints_usually();
    if (request_.checkpoint.given()) usually(request_.checkpoint_impl, std::string("reentrant"));
    usually<std::int64_t>(request_.seq, 2048);
    if (!foreign_.adapters.given()) foreign_.adapters = {true, own()};
    if (*foreign_.adapters) usually(request_.ddp.find_unused_parameters, false);  // hparams/parser.py
    take_factory_stage(foreign_, request_, faults_);
    judge_training(foreign_, own(), request_);
    expand_segments(foreign_, request_);
    pack_for_factory(foreign_, request_);
    if (foreign_.trainer.value_or("sft") == "sft") judge_packed_mixers("packing", foreign_, base_, request_);
    freeze_shown();
    checkpoint_trained(foreign_, base_, own(), request_);
    size_shown(foreign_, base_, own(), request_);
    if (runs_deepspeed()) return;
    const bool pure = foreign_.pure_bf16.value_or(false);
    const bool half = arguments.fp16.value_or(false);
    const std::string computed = half && !pure ? "float16" : "bfloat16";
    const bool whole = !*foreign_.adapters && !pure;
    request_.torch_dtype = {whole ? "float32" : computed, own()};
  }

  // get_forbidden_modules (model/model_utils/visual.py): tower and projector are frozen unless a key says otherwise.
  void freeze_shown() {
    const bool shown = base_.parts != nullptr && base_.parts->tower != nullptr && base_.parts->tower->beside_text();
    if (!shown) {
      if (!foreign_.freeze_language.value_or(false)) return;
      return faults_.add(foreign_.freeze_language.place.says("a frozen language model that reads no pictures"));
    }
    if (*foreign_.adapters) return check_adapted_tower(foreign_, faults_);  // What has no adapters is frozen.
    std::vector<std::string> globs = request_.freeze.value_or({});
    const TowerParts& tower = *base_.parts->tower;
    const bool apart = tower.projection != ProjectorKind::Merged;
    if (foreign_.freeze_tower.value_or(true)) {
      if (apart) globs.push_back(formatted("model.{}.*", tower.module));
      if (!apart) add_parts_of(base_, tower, globs);
    }
    if (foreign_.freeze_projector.value_or(true)) {
      globs.push_back(apart ? formatted("model.{}.*", tower.projector) : formatted("model.{}.merger.*", tower.module));
    }
    if (foreign_.freeze_language.value_or(false))
      globs.insert(globs.end(), {formatted("model.{}.*", tower.language), "lm_head.*"});
    if (!globs.empty()) request_.freeze = {std::move(globs), own()};
  }

  // Weights are loaded in the dtype of autocast. Norms and embeddings of what has no adapters stay in fp32, unless
  // flash attention, which wants 16 bits, brings them back.
  void axolotl() {
    TrainingArguments& arguments = trainer();
    usually<std::int64_t>(arguments.per_device_train_batch_size, 1);
    usually<std::int64_t>(request_.micro_batch, 1);
    usually<std::int64_t>(request_.seq, 512);
    if (foreign_.image_sides.given() && sized_tower(base_) != nullptr && !request_.image_size.given()) {
      request_.image_size = foreign_.image_sides;
    }
    if (foreign_.also_bf16.value_or(false) && !arguments.bf16.value_or(false)) {
      arguments.bf16 = foreign_.also_bf16;  // core/builders/base.py, _configure_precision_settings
    }
    if (!arguments.fp16.value_or(false)) usually(arguments.bf16, true);
    choose_axolotl_checkpoints(foreign_, base_, own(), request_);
    freeze_unnamed(foreign_, base_, request_, faults_);
    freeze_beside_language(foreign_, base_, request_);
    judge_class(foreign_, request_);
    take_axolotl_pairs(foreign_, request_, faults_);
    judge_plugins(foreign_, request_);
    judge_optimizer(request_, faults_);
    judge_words(foreign_, base_, request_);
    take_cut_loss(foreign_, request_, faults_);
    take_liger_parts(foreign_, base_, request_);
    const bool adapted = foreign_.adapters.value_or(false);
    if (adapted) {
      choose_adapter_kernels(foreign_, own(), request_, faults_);
      usually(request_.input_require_grads, true);  // loaders/adapter.py, load_adapter
    }
    take_offloading(foreign_, request_);
    pack_rows(foreign_, request_);
    judge_packed_mixers("sample_packing", foreign_, base_, request_);
    if (runs_deepspeed()) return;
    const bool half = arguments.fp16.value_or(false);
    const bool bf16 = arguments.bf16.value_or(false);
    request_.torch_dtype = {bf16 ? "bfloat16" : (half ? "float16" : "float32"), own()};
    const std::string attention = request_.attention.value_or("sdpa");
    const std::string runtime = request_.runtime.value_or({});
    if (runtime == "fsdp1" || runtime == "fsdp2") return;  // _configure_embedding_dtypes leaves all as it was loaded.
    if (adapted || (!bf16 && !half) || (attention != "sdpa" && attention != "eager")) return;
    faults_.add(foreign_.program.place.says(
        "norms and embeddings in fp32 over 16-bit weights, as axolotl trains without adapters, are not modelled yet",
        "DeepSpeed casts them; flash attention does too"));
  }

  // In which the model is loaded.
  [[nodiscard]] std::string loaded() const {
    return request_.dtype.given() ? *request_.dtype : request_.torch_dtype.value_or("bfloat16");
  }

  // What each program hands to BitsAndBytesConfig. axolotl calls prepare_model_for_kbit_training and casts norms,
  // embeddings and head back; the others do not call it.
  void packed_weights() {
    const std::int64_t bits = foreign_.bits.value_or(0);
    const Place& place = foreign_.bits.place;
    if (bits != 0 && bits != 4 && bits != 8) {
      return faults_.add(
          place.says(formatted("bitsandbytes packs no weights of {} bits", bits), "it packs those of 4 and of 8"));
    }
    if (bits != 0 && !request_.quantization.given()) {
      request_.quantization = {bits == 8 ? "int8" : foreign_.bits_kind.value_or("nf4"), place};
    }
    if (name_.empty() || request_.quantization.value_or("none") == "none") return;
    usually(request_.kbit_prepare, false);
    if (*request_.quantization == "int8" && name_ == "llama-factory" && stage3()) {
      faults_.add(place.says("8 bits under ZeRO-3: LLaMA-Factory takes 4 alone there", "quantization_bit: 4"));
    }
    if (*request_.quantization == "int8") return;  // What they say of 4-bit weights, BitsAndBytesConfig leaves alone.
    const std::string stored = name_ == "trl" ? "uint8" : name_ == "axolotl" ? "bfloat16" : loaded();
    usually(request_.double_quant, foreign_.bits_nested.value_or(name_ != "trl"));
    usually(request_.quant_compute_dtype, loaded());
    usually(request_.quant_storage, foreign_.bits_storage.value_or(stored));
  }

  ForeignInput foreign_;
  Request request_;
  const ModelSpec& base_;
  const DeepSpeedInput* deepspeed_;
  std::string name_;
  Diagnostics faults_;
};

}  // namespace

Request with_program(const Said& said, const ModelSpec& base, const DeepSpeedInput* deepspeed) {
  return OfProgram(said, base, deepspeed).complete();
}

}  // namespace dsplan
