// From a Hugging Face config.json to a ModelSpec, for the families that dsplan knows.
//
// The facts (parameter names, shapes and order, modules, call order, defaults of missing keys) are those of
// transformers 5.17.0; tests/witnesses/parameters holds what transformers itself printed, and every family is compared
// with it line by line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/document.h"
#include "core/model.h"

namespace dsplan {

// The model that a trainer gets: AutoModelForCausalLM for decoders, BertModel and RobertaModel (with pooler, without a
// head), T5ForConditionalGeneration, ViTForImageClassification (ViTModel where `architectures` names it).
// `name` becomes ModelSpec::name; ModelSpec::source stays empty, a config.json does not know it; shapes are in elements
// and unsharded. A missing key takes the default of the family's config class; of keys that no builder asks for
// model/config/config_keys.h says what becomes. Refused with positions, up to 20 faults together: wrong types, sizes below
// 1, more than kMostLayers layers, heads that do not divide the hidden size, key-value heads that do not divide the
// heads, unknown activations. Refused alone: an unknown or missing model_type, multimodal configs, more than
// kMostTensors tensors, 2^63 elements or more.
[[nodiscard]] ModelSpec build_model(const Document& config, std::string name);

// The model_type values that build_model accepts, in the order of documentation.
[[nodiscard]] std::vector<std::string_view> family_names();

inline constexpr std::int64_t kMostLayers = 100'000;
inline constexpr std::int64_t kMostTensors = 1'000'000;

// A language model's config.json as AutoModelForSequenceClassification reads it with num_labels = 1, and as TRL's
// RewardTrainer leaves it: a head of one label, and a token that pads.
[[nodiscard]] Document with_reward_head(Document config);

}  // namespace dsplan
