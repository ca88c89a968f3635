// Low-rank adapters as peft puts them into a model: each chosen linear module becomes a wrapper that calls the frozen
// layer it had been, and adds a product of two thin trained weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/inputs.h"
#include "core/model.h"

namespace dsplan {

enum class TrainedBiases : std::uint8_t { None, All, OfTargets };  // peft's "none", "all", "lora_only".

struct Lora {
  std::int64_t r = 8;
  double dropout = 0;
  double alpha = 8;                          // peft's default; the adapters' result is scaled by alpha / r.
  bool rank_stabilized = false;              // use_rslora: by alpha / sqrt(r).
  std::vector<std::string> targets;          // Ends of module paths, or "all-linear"; none: peft's own of the family.
  std::vector<std::string> parameters = {};  // target_parameters: ends of the names of parameters.
  std::optional<DType> dtype = DType::Float32;  // Of the adapters; nullopt: the model's (autocast_adapter_dtype=False).
  TrainedBiases bias = TrainedBiases::None;
  bool dora = false;  // use_dora: a trained magnitude for each output, over the norm of the summed weight.
  std::vector<std::string> saved = {};    // modules_to_save: ends of module paths. A copy of each is trained whole.
  std::optional<DType> saved_dtype = {};  // Of these copies; nullopt: that of what they are copies of.
};

// "r=8,targets=q_proj+v_proj,parameters=experts.down_proj,dtype=fp32,dropout=0.05,alpha=16,rslora=true,bias=all,
// dora=true,save=lm_head,save_dtype=fp32"; r must be there, a dtype is fp32, bf16, fp16 or model. alpha and rslora
// scale, and move no byte. Refuses unknown words, an r below 1, a probability outside [0, 1).
[[nodiscard]] Lora parse_lora(const Setting<std::string>& text);

// What peft adapts in a family where nobody names modules; empty: it knows of none, and refuses.
// Source: peft 0.21.2, utils/constants.py, TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.
[[nodiscard]] std::vector<std::string> usual_targets(std::string_view family);

// Of a module whose copy is trained (peft's ModulesToSaveWrapper): that copy; kNone of any other.
[[nodiscard]] ModuleId trained_copy(const ModelSpec& model, ModuleId module);
[[nodiscard]] bool has_magnitudes(const ModelSpec& model);  // DoRA's.
// Of a module around one of whose parameters there are adapters (peft's ParamWrapper): that parameter's last name.
[[nodiscard]] std::optional<std::string_view> wrapped_parameter(const Module& module);
[[nodiscard]] ModuleId inside_wrappers(const ModelSpec& model, ModuleId module);  // Of a module without them: itself.
[[nodiscard]] bool has_wrapped_parameters(const ModelSpec& model);
// Whether fused experts of this class have their weights as [experts, in, out] (transformers' is_transposed).
[[nodiscard]] bool has_turned_experts(const Module& experts);

// `model` with adapters: names as peft's ("base_model.model.", ".base_layer.", ".lora_A.default."), everything else
// frozen but for copies that are trained and, if so asked, biases. Refuses a name that no module matches, targets that
// are not linear, copies of tied weights or of modules of modules, at `place` or at that of the part.
// Source: peft 0.21, tuners/lora/{model,layer,dora}.py, tuners/tuners_utils.py and utils/other.py.
[[nodiscard]] ModelSpec with_adapters(const ModelSpec& model, const Lora& lora, const Place& place,
                                      const LoraPlaces& parts = {});

}  // namespace dsplan
