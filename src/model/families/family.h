// The table of families: one entry per model_type. Each build function reads its keys from the config, throws the
// collected faults before it builds, and fills everything of the ModelSpec but name, family and stored dtype.
#pragma once

#include <string_view>
#include <vector>

#include "core/model.h"
#include "model/config/config_reader.h"

namespace dsplan {

struct Family {
  std::string_view model_type;
  ModelSpec (*build)(ConfigReader& config);
  bool has_graph;  // Operator graphs exist: activations can be predicted.
  // What `architectures` may name besides the class that is built.
  std::vector<std::string_view> other_classes = {};
};

[[nodiscard]] const std::vector<Family>& families();

[[nodiscard]] ModelSpec build_gpt2(ConfigReader& config);
[[nodiscard]] ModelSpec build_gpt_bigcode(ConfigReader& config);
[[nodiscard]] ModelSpec build_gptj(ConfigReader& config);
[[nodiscard]] ModelSpec build_gpt_neo(ConfigReader& config);
[[nodiscard]] ModelSpec build_opt(ConfigReader& config);
[[nodiscard]] ModelSpec build_bloom(ConfigReader& config);
[[nodiscard]] ModelSpec build_gpt_neox(ConfigReader& config);
[[nodiscard]] ModelSpec build_falcon(ConfigReader& config);
[[nodiscard]] ModelSpec build_llama(ConfigReader& config);
[[nodiscard]] ModelSpec build_mistral(ConfigReader& config);
[[nodiscard]] ModelSpec build_mixtral(ConfigReader& config);
[[nodiscard]] ModelSpec build_qwen2(ConfigReader& config);
[[nodiscard]] ModelSpec build_qwen2_moe(ConfigReader& config);
[[nodiscard]] ModelSpec build_qwen3(ConfigReader& config);
[[nodiscard]] ModelSpec build_qwen3_moe(ConfigReader& config);
[[nodiscard]] ModelSpec build_gemma(ConfigReader& config);
[[nodiscard]] ModelSpec build_gemma2(ConfigReader& config);
[[nodiscard]] ModelSpec build_vaultgemma(ConfigReader& config);
[[nodiscard]] ModelSpec build_gemma3_text(ConfigReader& config);
[[nodiscard]] ModelSpec build_gemma3n_text(ConfigReader& config);
[[nodiscard]] ModelSpec build_gemma4_text(ConfigReader& config);
[[nodiscard]] ModelSpec build_phi(ConfigReader& config);
[[nodiscard]] ModelSpec build_phi3(ConfigReader& config);
[[nodiscard]] ModelSpec build_phimoe(ConfigReader& config);
[[nodiscard]] ModelSpec build_deepseek_v2(ConfigReader& config);
[[nodiscard]] ModelSpec build_deepseek_v3(ConfigReader& config);
[[nodiscard]] ModelSpec build_glm4_moe_lite(ConfigReader& config);
[[nodiscard]] ModelSpec build_smollm3(ConfigReader& config);
[[nodiscard]] ModelSpec build_olmo2(ConfigReader& config);
[[nodiscard]] ModelSpec build_olmo3(ConfigReader& config);
[[nodiscard]] ModelSpec build_granite(ConfigReader& config);
[[nodiscard]] ModelSpec build_granitemoe(ConfigReader& config);
[[nodiscard]] ModelSpec build_granitemoeshared(ConfigReader& config);
[[nodiscard]] ModelSpec build_glm4(ConfigReader& config);
[[nodiscard]] ModelSpec build_glm4_moe(ConfigReader& config);
[[nodiscard]] ModelSpec build_gpt_oss(ConfigReader& config);
[[nodiscard]] ModelSpec build_cohere(ConfigReader& config);
[[nodiscard]] ModelSpec build_cohere2(ConfigReader& config);
[[nodiscard]] ModelSpec build_starcoder2(ConfigReader& config);
[[nodiscard]] ModelSpec build_stablelm(ConfigReader& config);
[[nodiscard]] ModelSpec build_exaone4(ConfigReader& config);
[[nodiscard]] ModelSpec build_nemotron(ConfigReader& config);
[[nodiscard]] ModelSpec build_ernie4_5(ConfigReader& config);
[[nodiscard]] ModelSpec build_hunyuan_v1_dense(ConfigReader& config);
[[nodiscard]] ModelSpec build_arcee(ConfigReader& config);
[[nodiscard]] ModelSpec build_jais2(ConfigReader& config);
[[nodiscard]] ModelSpec build_hyperclovax(ConfigReader& config);
[[nodiscard]] ModelSpec build_flex_olmo(ConfigReader& config);
[[nodiscard]] ModelSpec build_apertus(ConfigReader& config);
[[nodiscard]] ModelSpec build_nanochat(ConfigReader& config);
[[nodiscard]] ModelSpec build_seed_oss(ConfigReader& config);
[[nodiscard]] ModelSpec build_olmo(ConfigReader& config);
[[nodiscard]] ModelSpec build_olmoe(ConfigReader& config);
[[nodiscard]] ModelSpec build_ministral(ConfigReader& config);
[[nodiscard]] ModelSpec build_ministral3(ConfigReader& config);
[[nodiscard]] ModelSpec build_mistral3(ConfigReader& config);
[[nodiscard]] ModelSpec build_gemma4(ConfigReader& config);
[[nodiscard]] ModelSpec build_cwm(ConfigReader& config);
[[nodiscard]] ModelSpec build_glm(ConfigReader& config);
[[nodiscard]] ModelSpec build_helium(ConfigReader& config);
[[nodiscard]] ModelSpec build_dots1(ConfigReader& config);
[[nodiscard]] ModelSpec build_solar_open(ConfigReader& config);
[[nodiscard]] ModelSpec build_hunyuan_v1_moe(ConfigReader& config);
[[nodiscard]] ModelSpec build_ernie4_5_moe(ConfigReader& config);
[[nodiscard]] ModelSpec build_minicpm3(ConfigReader& config);
[[nodiscard]] ModelSpec build_minimax_m2(ConfigReader& config);
[[nodiscard]] ModelSpec build_llama4_text(ConfigReader& config);
[[nodiscard]] ModelSpec build_mamba2(ConfigReader& config);
[[nodiscard]] ModelSpec build_granitemoehybrid(ConfigReader& config);
[[nodiscard]] ModelSpec build_nemotron_h(ConfigReader& config);
[[nodiscard]] ModelSpec build_lfm2(ConfigReader& config);
[[nodiscard]] ModelSpec build_lfm2_moe(ConfigReader& config);
[[nodiscard]] ModelSpec build_qwen3_next(ConfigReader& config);
[[nodiscard]] ModelSpec build_qwen3_5_text(ConfigReader& config);
[[nodiscard]] ModelSpec build_qwen3_5_moe_text(ConfigReader& config);
[[nodiscard]] ModelSpec build_qwen3_5(ConfigReader& config);
[[nodiscard]] ModelSpec build_qwen3_5_moe(ConfigReader& config);
[[nodiscard]] ModelSpec build_bert(ConfigReader& config);
[[nodiscard]] ModelSpec build_roberta(ConfigReader& config);
[[nodiscard]] ModelSpec build_xlm_roberta(ConfigReader& config);
[[nodiscard]] ModelSpec build_camembert(ConfigReader& config);
[[nodiscard]] ModelSpec build_deberta_v2(ConfigReader& config);
[[nodiscard]] ModelSpec build_electra(ConfigReader& config);
[[nodiscard]] ModelSpec build_albert(ConfigReader& config);
[[nodiscard]] ModelSpec build_distilbert(ConfigReader& config);
[[nodiscard]] ModelSpec build_whisper(ConfigReader& config);
[[nodiscard]] ModelSpec build_bart(ConfigReader& config);
[[nodiscard]] ModelSpec build_mbart(ConfigReader& config);
[[nodiscard]] ModelSpec build_marian(ConfigReader& config);
[[nodiscard]] ModelSpec build_m2m_100(ConfigReader& config);
[[nodiscard]] ModelSpec build_pegasus(ConfigReader& config);
[[nodiscard]] ModelSpec build_modernbert(ConfigReader& config);
[[nodiscard]] ModelSpec build_mt5(ConfigReader& config);
[[nodiscard]] ModelSpec build_umt5(ConfigReader& config);
[[nodiscard]] ModelSpec build_t5(ConfigReader& config);
[[nodiscard]] ModelSpec build_vit(ConfigReader& config);
[[nodiscard]] ModelSpec build_dinov2(ConfigReader& config);
[[nodiscard]] ModelSpec build_clip_vision_model(ConfigReader& config);
[[nodiscard]] ModelSpec build_siglip_vision_model(ConfigReader& config);
[[nodiscard]] ModelSpec build_clip_text_model(ConfigReader& config);
[[nodiscard]] ModelSpec build_siglip_text_model(ConfigReader& config);
[[nodiscard]] ModelSpec build_clip(ConfigReader& config);
[[nodiscard]] ModelSpec build_siglip(ConfigReader& config);
[[nodiscard]] ModelSpec build_llava(ConfigReader& config);
[[nodiscard]] ModelSpec build_llava_of_pixtral(ConfigReader& config);  // pictures/mistral3.cpp: for build_llava.
[[nodiscard]] ModelSpec build_llava_next(ConfigReader& config);
[[nodiscard]] ModelSpec build_llama4(ConfigReader& config);
[[nodiscard]] ModelSpec build_mllama(ConfigReader& config);
[[nodiscard]] ModelSpec build_glm46v(ConfigReader& config);
[[nodiscard]] ModelSpec build_exaone_moe(ConfigReader& config);
[[nodiscard]] ModelSpec build_youtu(ConfigReader& config);
[[nodiscard]] ModelSpec build_mistral4(ConfigReader& config);
[[nodiscard]] ModelSpec build_hy_v3(ConfigReader& config);
[[nodiscard]] ModelSpec build_granite_swa(ConfigReader& config);
[[nodiscard]] ModelSpec build_granitemoe_swa(ConfigReader& config);
[[nodiscard]] ModelSpec build_cohere2_moe(ConfigReader& config);
[[nodiscard]] ModelSpec build_mellum(ConfigReader& config);
[[nodiscard]] ModelSpec build_ernie(ConfigReader& config);
[[nodiscard]] ModelSpec build_data2vec_text(ConfigReader& config);
[[nodiscard]] ModelSpec build_plbart(ConfigReader& config);
[[nodiscard]] ModelSpec build_blenderbot(ConfigReader& config);
[[nodiscard]] ModelSpec build_gemma3(ConfigReader& config);
[[nodiscard]] ModelSpec build_paligemma(ConfigReader& config);
[[nodiscard]] ModelSpec build_idefics3(ConfigReader& config);
[[nodiscard]] ModelSpec build_smolvlm(ConfigReader& config);
[[nodiscard]] ModelSpec build_internvl(ConfigReader& config);
[[nodiscard]] ModelSpec build_glm4v(ConfigReader& config);
[[nodiscard]] ModelSpec build_glm4v_moe(ConfigReader& config);
[[nodiscard]] ModelSpec build_qwen2_vl(ConfigReader& config);
[[nodiscard]] ModelSpec build_qwen2_5_vl(ConfigReader& config);
[[nodiscard]] ModelSpec build_qwen3_vl(ConfigReader& config);
[[nodiscard]] ModelSpec build_qwen3_vl_moe(ConfigReader& config);

}  // namespace dsplan
