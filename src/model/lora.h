// Low-rank adapters as peft puts them into a model: each chosen linear module becomes a wrapper that calls the frozen
// layer it had been, and adds a product of two thin trained weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/inputs.h"
#include "core/model.h"

namespace dsplan {

struct Lora {
  std::int64_t r = 8;
  double dropout = 0;
  double alpha = 8;                             // peft's default; the adapters' result is scaled by alpha / r.
  std::vector<std::string> targets;             // Ends of module paths, or "all-linear".
  std::optional<DType> dtype = DType::Float32;  // Of the adapters; nullopt: the model's (autocast_adapter_dtype=False).
};

// "r=8,targets=q_proj+v_proj,dtype=fp32,dropout=0.05,alpha=16"; r and targets must be there, dtype is fp32, bf16, fp16
// or model. alpha scales, and moves no byte. Refuses unknown words, an r below 1, a probability outside [0, 1).
[[nodiscard]] Lora parse_lora(const Setting<std::string>& text);

// `model` with adapters: names as peft's ("base_model.model.", ".base_layer.", ".lora_A.default."), everything else
// frozen. Refuses a target that no module matches, and modules that are not linear, at `place`.
// Source: peft 0.21, tuners/lora/{model,layer}.py and tuners/tuners_utils.py.
[[nodiscard]] ModelSpec with_adapters(const ModelSpec& model, const Lora& lora, const Place& place);

}  // namespace dsplan
