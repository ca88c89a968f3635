// Bad model configs: the exact text of each refusal, with its place.
#include <doctest/doctest.h>
#include "core/error.h"
#include "core/format.h"
#include "io/text.h"
#include "model/families.h"

using namespace dsplan;

namespace {

std::string refusal(const std::string& text) {
  try {
    const ModelSpec model = build_model(parse_json("config.json", text), "config");
    return dsplan::formatted("accepted: {} parameters", total_elements(model).value());
  } catch (const Refusal& refused) {
    return refused.what();
  }
}

}  // namespace

TEST_CASE("each fault has its place, its line with a caret, and the rule") {
  struct Case {
    std::string config, text;
  };
  const std::vector<Case> cases{
      {R"([1, 2])",
       R"(config.json:1:1: error: a model's config must be an object, not an array
    1 | [1, 2]
      | ^
)"},
      {R"({"hidden_size": 4096})",
       R"(config.json:1:1: error: "model_type" is missing: it names the family; known families: gpt2, gpt_bigcode, gptj, gpt_neo, opt, bloom, gpt_neox, falcon, llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, gemma, gemma2, vaultgemma, gemma3_text, gemma3n_text, gemma4_text, phi, phi3, phimoe, deepseek_v2, deepseek_v3, glm4_moe_lite, smollm3, olmo2, olmo3, granite, granitemoe, granitemoeshared, glm4, glm4_moe, gpt_oss, cohere, cohere2, starcoder2, stablelm, exaone4, nemotron, ernie4_5, hunyuan_v1_dense, arcee, jais2, hyperclovax, flex_olmo, apertus, nanochat, seed_oss, olmo, olmoe, ministral, ministral3, cwm, glm, helium, dots1, solar_open, hunyuan_v1_moe, ernie4_5_moe, minicpm3, minimax_m2, llama4_text, mamba2, granitemoehybrid, nemotron_h, lfm2, lfm2_moe, qwen3_next, qwen3_5_text, qwen3_5_moe_text, bert, roberta, xlm-roberta, camembert, deberta-v2, distilbert, electra, albert, modernbert, t5, mt5, umt5, whisper, bart, mbart, marian, m2m_100, pegasus, vit, dinov2, clip_vision_model, siglip_vision_model, clip_text_model, siglip_text_model, glm46v, exaone_moe, youtu, mistral4, hy_v3, granite_swa, granitemoe_swa, cohere2_moe, mellum, ernie, data2vec-text, plbart, blenderbot, mllama, clip, siglip, llava, llava_next, gemma3, paligemma, idefics3, smolvlm, internvl, llama4, mistral3, gemma4, glm4v, glm4v_moe, qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_vl_moe, qwen3_5, qwen3_5_moe
    1 | {"hidden_size": 4096}
      | ^
)"},
      {R"({"model_type": 7})",
       R"(config.json:1:16: error: "model_type" must be a string, not an integer
    1 | {"model_type": 7}
      |                ^
)"},
      {R"({"model_type": "lama", "hidden_size": 4096})",
       R"(config.json:1:16: error: unknown model family "lama"; did you mean "llama"?
    1 | {"model_type": "lama", "hidden_size": 4096}
      |                ^
)"},
      {R"({"model_type": "persimmon7"})",
       R"(config.json:1:16: error: unknown model family "persimmon7"; known families: gpt2, gpt_bigcode, gptj, gpt_neo, opt, bloom, gpt_neox, falcon, llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, gemma, gemma2, vaultgemma, gemma3_text, gemma3n_text, gemma4_text, phi, phi3, phimoe, deepseek_v2, deepseek_v3, glm4_moe_lite, smollm3, olmo2, olmo3, granite, granitemoe, granitemoeshared, glm4, glm4_moe, gpt_oss, cohere, cohere2, starcoder2, stablelm, exaone4, nemotron, ernie4_5, hunyuan_v1_dense, arcee, jais2, hyperclovax, flex_olmo, apertus, nanochat, seed_oss, olmo, olmoe, ministral, ministral3, cwm, glm, helium, dots1, solar_open, hunyuan_v1_moe, ernie4_5_moe, minicpm3, minimax_m2, llama4_text, mamba2, granitemoehybrid, nemotron_h, lfm2, lfm2_moe, qwen3_next, qwen3_5_text, qwen3_5_moe_text, bert, roberta, xlm-roberta, camembert, deberta-v2, distilbert, electra, albert, modernbert, t5, mt5, umt5, whisper, bart, mbart, marian, m2m_100, pegasus, vit, dinov2, clip_vision_model, siglip_vision_model, clip_text_model, siglip_text_model, glm46v, exaone_moe, youtu, mistral4, hy_v3, granite_swa, granitemoe_swa, cohere2_moe, mellum, ernie, data2vec-text, plbart, blenderbot, mllama, clip, siglip, llava, llava_next, gemma3, paligemma, idefics3, smolvlm, internvl, llama4, mistral3, gemma4, glm4v, glm4v_moe, qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_vl_moe, qwen3_5, qwen3_5_moe; record it: tools/export_graph.py writes a file that dsplan takes as MODEL (docs/exporting.md)
    1 | {"model_type": "persimmon7"}
      |                ^
)"},
      {R"({"model_type": "kosmos-2", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560}})",
       R"(config.json:1:16: error: multimodal models are not modelled yet: model_type "kosmos-2"; write its text_config (model_type "gemma3_text") to a file of its own
    1 | {"model_type": "kosmos-2", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560}}
      |                ^
)"},
      {R"({"model_type": "gemma3"})",
       R"(config.json:1:1: error: "vision_config" is missing: it describes the tower; the text part alone is model_type "gemma3_text"
    1 | {"model_type": "gemma3"}
      | ^
)"},
      {R"({"model_type": "fuyu_next", "text_config": {"hidden_size": 2560}})",
       R"(config.json:1:16: error: multimodal models are not modelled yet: model_type "fuyu_next"; write its text_config, with a model_type, to a file of its own
    1 | {"model_type": "fuyu_next", "text_config": {"hidden_size": 2560}}
      |                ^
)"},
      {R"({"model_type": "llama", "hidden_size": "4096"})",
       R"(config.json:1:40: error: "hidden_size" must be an integer, not a string
    1 | {"model_type": "llama", "hidden_size": "4096"}
      |                                        ^
)"},
      {R"({"model_type": "llama", "hidden_size": 4096.5})",
       R"(config.json:1:40: error: "hidden_size" must be an integer, not a number
    1 | {"model_type": "llama", "hidden_size": 4096.5}
      |                                        ^
)"},
      {R"({"model_type": "llama", "hidden_size": -4096})",
       R"(config.json:1:40: error: "hidden_size" must be at least 1, not -4096
    1 | {"model_type": "llama", "hidden_size": -4096}
      |                                        ^
)"},
      {R"({"model_type": "llama", "hidden_size": 0})",
       R"(config.json:1:40: error: "hidden_size" must be at least 1, not 0
    1 | {"model_type": "llama", "hidden_size": 0}
      |                                        ^
)"},
      {R"({"model_type": "llama", "hidden_size": null})",
       R"(config.json:1:40: error: "hidden_size" must be an integer, not null
    1 | {"model_type": "llama", "hidden_size": null}
      |                                        ^
)"},
      {R"({"model_type": "llama", "vocab_size": 99999999999999999999})",
       R"(config.json:1:39: error: "vocab_size" does not fit in 63 bits
    1 | {"model_type": "llama", "vocab_size": 99999999999999999999}
      |                                       ^
)"},
      {R"({"model_type": "llama", "num_attention_heads": 33})",
       R"(config.json:1:48: error: "num_attention_heads" is 33, which does not divide "hidden_size" = 4096 (the default)
    1 | {"model_type": "llama", "num_attention_heads": 33}
      |                                                ^
)"},
      {R"({"model_type": "llama", "hidden_size": 4100})",
       R"(config.json:1:1: error: "num_attention_heads" is 32 by default, which does not divide "hidden_size" = 4100
    1 | {"model_type": "llama", "hidden_size": 4100}
      | ^
)"},
      {R"({"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 5})",
       R"(config.json:1:75: error: "num_key_value_heads" is 5, which does not divide "num_attention_heads" = 32
    1 | {"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 5}
      |                                                                           ^
)"},
      {R"({"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 64})",
       R"(config.json:1:75: error: "num_key_value_heads" is 64, which does not divide "num_attention_heads" = 32
    1 | {"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 64}
      |                                                                           ^
)"},
      {R"({"model_type": "mistral", "num_attention_heads": 4})",
       R"(config.json:1:1: error: "num_key_value_heads" is 8 by default, which does not divide "num_attention_heads" = 4
    1 | {"model_type": "mistral", "num_attention_heads": 4}
      | ^
)"},
      {R"({"model_type": "mistral", "num_key_value_heads": null})",
       R"(config.json:1:50: error: "num_key_value_heads" must be an integer, not null
    1 | {"model_type": "mistral", "num_key_value_heads": null}
      |                                                  ^
)"},
      {R"({"model_type": "llama", "num_hidden_layers": 1000000000})",
       R"(config.json:1:46: error: "num_hidden_layers" must be from 1 to 100000, not 1000000000
    1 | {"model_type": "llama", "num_hidden_layers": 1000000000}
      |                                              ^
)"},
      {R"({"model_type": "llama", "num_hidden_layers": 0})",
       R"(config.json:1:46: error: "num_hidden_layers" must be from 1 to 100000, not 0
    1 | {"model_type": "llama", "num_hidden_layers": 0}
      |                                              ^
)"},
      {R"({"model_type": "bert", "num_hidden_layers": 100000, "hidden_size": 12})",
       R"(config.json:1:45: error: the model has more than 1,000,000 tensors
    1 | {"model_type": "bert", "num_hidden_layers": 100000, "hidden_size": 12}
      |                                             ^
)"},
      {R"({"model_type": "llama", "hidden_size": 4611686018427387904, "num_attention_heads": 1})",
       R"(config.json:1:40: error: the model has 2^63 parameters or more: overflow at model.embed_tokens.weight of shape [32000, 4611686018427387904]
    1 | {"model_type": "llama", "hidden_size": 4611686018427387904, "num_attention_heads": 1}
      |                                        ^
)"},
      {R"({"model_type": "llama", "head_dim": 9223372036854775807})",
       R"(config.json:1:37: error: a size overflows 63 bits: 32 * 9223372036854775807
    1 | {"model_type": "llama", "head_dim": 9223372036854775807}
      |                                     ^
)"},
      {R"({"model_type": "gpt2", "n_embd": 3074457345618258603, "n_head": 1})",
       R"(config.json:1:34: error: a size overflows 63 bits: 4 * 3074457345618258603
    1 | {"model_type": "gpt2", "n_embd": 3074457345618258603, "n_head": 1}
      |                                  ^
)"},
      {R"({"model_type": "llama", "vocab_size": 125000000000, "hidden_size": 4096, "num_hidden_layers": 1})",
       "accepted: 1024000202387456 parameters"},
      {R"({"model_type": "llama", "hidden_act": "swoosh"})",
       R"(config.json:1:39: error: "hidden_act" names no known activation: "swoosh"; did you mean "swish"?
    1 | {"model_type": "llama", "hidden_act": "swoosh"}
      |                                       ^
)"},
      {R"({"model_type": "llama", "hidden_act": "silo"})",
       R"(config.json:1:39: error: "hidden_act" names no known activation: "silo"; did you mean "silu"?
    1 | {"model_type": "llama", "hidden_act": "silo"}
      |                                       ^
)"},
      {R"({"model_type": "llama", "hidden_act": "prelu"})",
       R"(config.json:1:39: error: activation "prelu" has parameters of its own and is not modelled yet
    1 | {"model_type": "llama", "hidden_act": "prelu"}
      |                                       ^
)"},
      {R"({"model_type": "llama", "attention_dropout": 1.5})",
       R"(config.json:1:46: error: "attention_dropout" must be from 0 to 1, not 1.5
    1 | {"model_type": "llama", "attention_dropout": 1.5}
      |                                              ^
)"},
      {R"({"model_type": "llama", "attention_bias": 1})",
       R"(config.json:1:43: error: "attention_bias" must be true or false, not an integer
    1 | {"model_type": "llama", "attention_bias": 1}
      |                                           ^
)"},
      {R"({"model_type": "llama", "torch_dtype": "bfloat61"})",
       R"(config.json:1:40: error: "torch_dtype" must be one of float64, float32, float16, bfloat16, not "bfloat61"; did you mean "bfloat16"?
    1 | {"model_type": "llama", "torch_dtype": "bfloat61"}
      |                                        ^
)"},
      {R"({"model_type": "llama", "dtype": 16})",
       R"(config.json:1:34: error: "dtype" must be a string, not an integer
    1 | {"model_type": "llama", "dtype": 16}
      |                                  ^
)"},
      {R"({"model_type": "gpt2", "n_embd": 768, "hidden_size": 1024})",
       R"(config.json:1:54: error: "hidden_size" contradicts "n_embd": both name the same attribute
    1 | {"model_type": "gpt2", "n_embd": 768, "hidden_size": 1024}
      |                                                      ^
)"},
      {R"({"model_type": "gpt2", "add_cross_attention": true})",
       R"(config.json:1:47: error: cross attention in gpt2 is not modelled yet
    1 | {"model_type": "gpt2", "add_cross_attention": true}
      |                                               ^
)"},
      {R"({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 8})",
       R"(config.json:1:74: error: "num_experts_per_tok" is 8, more than "num_local_experts" = 4
    1 | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 8}
      |                                                                          ^
)"},
      {R"({"model_type": "qwen3_moe", "mlp_only_layers": [0, 24, "x"]})",
       R"(config.json:1:52: error: "mlp_only_layers" must list layers from 0 to 23
    1 | {"model_type": "qwen3_moe", "mlp_only_layers": [0, 24, "x"]}
      |                                                    ^
config.json:1:56: error: "mlp_only_layers" must list layers from 0 to 23
    1 | {"model_type": "qwen3_moe", "mlp_only_layers": [0, 24, "x"]}
      |                                                        ^
)"},
      {R"({"model_type": "falcon", "new_decoder_architecture": true, "parallel_attn": false})",
       R"(config.json:1:77: error: "new_decoder_architecture" needs "parallel_attn"
    1 | {"model_type": "falcon", "new_decoder_architecture": true, "parallel_attn": false}
      |                                                                             ^
)"},
      {R"({"model_type": "falcon", "num_ln_in_parallel_attn": 2})",
       R"(config.json:1:53: error: "num_ln_in_parallel_attn" must be 1 without "new_decoder_architecture", not 2
    1 | {"model_type": "falcon", "num_ln_in_parallel_attn": 2}
      |                                                     ^
)"},
      {R"({"model_type": "t5", "feed_forward_proj": "gated-swoosh"})",
       R"(config.json:1:43: error: "feed_forward_proj" must be an activation or "gated-" and one, not "gated-swoosh"
    1 | {"model_type": "t5", "feed_forward_proj": "gated-swoosh"}
      |                                           ^
)"},
      {R"({"model_type": "t5", "num_decoder_layers": 9223372036854775807})",
       R"(config.json:1:44: error: "num_decoder_layers" must be from 1 to 100000, not 9223372036854775807
    1 | {"model_type": "t5", "num_decoder_layers": 9223372036854775807}
      |                                            ^
)"},
      {R"({"model_type": "t5", "num_layers": 60000, "num_decoder_layers": 60000})",
       R"(config.json:1:65: error: encoder and decoder together have more than 100,000 layers
    1 | {"model_type": "t5", "num_layers": 60000, "num_decoder_layers": 60000}
      |                                                                 ^
)"},
      {R"({"model_type": "vit", "architectures": ["ViTForMaskedImageModeling"]})",
       R"(config.json:1:41: error: "ViTForMaskedImageModeling" is not modelled yet; ViTForImageClassification and ViTModel are
    1 | {"model_type": "vit", "architectures": ["ViTForMaskedImageModeling"]}
      |                                         ^
)"},
      {R"({"model_type": "vit", "patch_size": [16, 16]})",
       R"(config.json:1:37: error: "patch_size" must be an integer, not an array
    1 | {"model_type": "vit", "patch_size": [16, 16]}
      |                                     ^
)"},
      {R"({"model_type": "gemma3_text", "layer_types": ["full_attention"]})",
       R"(config.json:1:46: error: "layer_types" must be an array of 26 strings, one per layer
    1 | {"model_type": "gemma3_text", "layer_types": ["full_attention"]}
      |                                              ^
)"},
      {R"({"model_type": "phi", "partial_rotary_factor": 1.5})",
       R"(config.json:1:48: error: "partial_rotary_factor" must be above 0 and at most 1, not 1.5
    1 | {"model_type": "phi", "partial_rotary_factor": 1.5}
      |                                                ^
)"},
      {R"({"model_type": "gpt_neox", "rope_parameters": {"partial_rotary_factor": 0}})",
       R"(config.json:1:73: error: "partial_rotary_factor" must be a number above 0 and at most 1
    1 | {"model_type": "gpt_neox", "rope_parameters": {"partial_rotary_factor": 0}}
      |                                                                         ^
)"},
      {R"({
  "model_type": "llama",
  "hidden_size": -1,
  "vocab_size": "many",
  "num_attention_heads": 32,
  "num_key_value_heads": 7,
  "rope_theta": "ignored"
})",
       R"(config.json:3:18: error: "hidden_size" must be at least 1, not -1
    3 |   "hidden_size": -1,
      |                  ^
config.json:4:17: error: "vocab_size" must be an integer, not a string
    4 |   "vocab_size": "many",
      |                 ^
config.json:6:26: error: "num_key_value_heads" is 7, which does not divide "num_attention_heads" = 32
    6 |   "num_key_value_heads": 7,
      |                          ^
)"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.config);
    CHECK(refusal(c.config) == c.text);
  }
}

TEST_CASE("each fault of a model of several parts has its place") {
  const std::vector<std::pair<std::string, std::string>> cases{
      {R"({"model_type": "clip", "architectures": ["CLIPTextModel"]})",
       R"(config.json:1:42: error: "CLIPTextModel" is not modelled yet; CLIPModel and CLIPForImageClassification are, and clip_vision_model alone
    1 | {"model_type": "clip", "architectures": ["CLIPTextModel"]}
      |                                          ^
)"},
      {R"({"model_type": "deepseek_v2", "hidden_size": 64, "num_attention_heads": 4})",
       R"(config.json:1:1: error: "num_experts_per_tok" is missing, and the class has no default for it
    1 | {"model_type": "deepseek_v2", "hidden_size": 64, "num_attention_heads": 4}
      | ^
)"},
      {R"({"model_type": "gemma4"})",
       R"(config.json:1:1: error: "vision_config" is missing: it describes the tower; the text part alone is model_type "gemma4_text"
    1 | {"model_type": "gemma4"}
      | ^
)"},
      {R"({"model_type": "gemma4", "vision_config": {"model_type": "siglip_vision_model"}})",
       R"(config.json:1:58: error: "vision_config" of a model_type other than "gemma4_vision" is not modelled yet
    1 | {"model_type": "gemma4", "vision_config": {"model_type": "siglip_vision_model"}}
      |                                                          ^
)"},
      {R"({"model_type": "gemma4", "vision_config": {"num_key_value_heads": 4}})",
       R"(config.json:1:67: error: "num_key_value_heads" of a tower other than its 12 heads is not modelled yet
    1 | {"model_type": "gemma4", "vision_config": {"num_key_value_heads": 4}}
      |                                                                   ^
)"},
      {R"({"model_type": "mistral3"})",
       R"(config.json:1:1: error: "vision_config" is missing: it describes the tower
    1 | {"model_type": "mistral3"}
      | ^
)"},
      {R"({"model_type": "mistral3", "vision_config": {"model_type": "siglip_vision_model"}})",
       R"(config.json:1:60: error: "vision_config" of a model_type other than "pixtral" is not modelled yet
    1 | {"model_type": "mistral3", "vision_config": {"model_type": "siglip_vision_model"}}
      |                                                            ^
)"},
      {R"({"model_type": "llava", "vision_config": {"model_type": "dinov2"}})",
       R"(config.json:1:57: error: "vision_config" of model_type "dinov2" is not modelled yet; here it is one of clip_vision_model, siglip_vision_model
    1 | {"model_type": "llava", "vision_config": {"model_type": "dinov2"}}
      |                                                         ^
)"},
      {R"({"model_type": "llava", "vision_config": {"hidden_size": 100}})",
       R"(config.json:1:42: error: "num_attention_heads" is 12 by default, which does not divide "hidden_size" = 100
    1 | {"model_type": "llava", "vision_config": {"hidden_size": 100}}
      |                                          ^
)"},
      {R"({"model_type": "mllama", "vision_config": {"hidden_sizes": 1}, "text_config": {"hidden_layers": 2, "heads": 4}})",
       R"(config.json:1:60: error: "hidden_sizes" is no key that the configuration class of mllama knows; did you mean "hidden_size"? Else take it out of a copy of the file if nothing reads it
    1 | ype": "mllama", "vision_config": {"hidden_sizes": 1}, "text_config": {"hidden_layers": 2, "heads": 4
      |                                                   ^
config.json:1:97: error: "hidden_layers" is no key that the configuration class of mllama knows; take it out of a copy of the file if nothing reads it
    1 | e": "mllama", "vision_config": {"hidden_sizes": 1}, "text_config": {"hidden_layers": 2, "heads": 4}}
      |                                                                                      ^
config.json:1:109: error: "heads" is no key that the configuration class of mllama knows; take it out of a copy of the file if nothing reads it
    1 | e": "mllama", "vision_config": {"hidden_sizes": 1}, "text_config": {"hidden_layers": 2, "heads": 4}}
      |                                                                                                  ^
)"},
      {R"({"model_type": "llava", "vision_config": {}, "vision_feature_layer": [-2, -5]})",
       R"(config.json:1:70: error: "vision_feature_layer": several layers joined are not modelled yet
    1 | {"model_type": "llava", "vision_config": {}, "vision_feature_layer": [-2, -5]}
      |                                                                      ^
)"},
      {R"({"model_type": "llava", "vision_config": {}, "vision_feature_select_strategy": "cls"})",
       R"(config.json:1:80: error: "vision_feature_select_strategy" is "default" or "full", not "cls"
    1 | {"model_type": "llava", "vision_config": {}, "vision_feature_select_strategy": "cls"}
      |                                                                                ^
)"},
      {R"({"model_type": "llava_next", "vision_config": {"image_size": 336}, "image_grid_pinpoints": [[336, 600]]})",
       R"(config.json:1:92: error: 336 by 600 pixels are no squares of 336 pixels a side
    1 | del_type": "llava_next", "vision_config": {"image_size": 336}, "image_grid_pinpoints": [[336, 600]]}
      |                                                                                        ^
)"},
      {R"({"model_type": "llava_next", "vision_config": {"image_size": 336}, "image_grid_pinpoints": [336]})",
       R"(config.json:1:93: error: "image_grid_pinpoints" lists heights and widths, two numbers each
    1 | {"model_type": "llava_next", "vision_config": {"image_size": 336}, "image_grid_pinpoints": [336]}
      |                                                                                             ^
)"},
      {R"({"model_type": "llava_next", "vision_config": {"image_size": 336}, "vision_feature_select_strategy": "full"})",
       R"(config.json:1:102: error: places of squares come to lie side by side: "default" leaves out clip's class token, and "full" is of a tower without one
    1 | type": "llava_next", "vision_config": {"image_size": 336}, "vision_feature_select_strategy": "full"}
      |                                                                                              ^
)"},
      {R"({"model_type": "gemma3n_text", "num_hidden_layers": 2, "intermediate_size": [64, 128]})",
       R"(config.json:1:82: error: "intermediate_size": layers of different widths are not modelled yet
    1 | {"model_type": "gemma3n_text", "num_hidden_layers": 2, "intermediate_size": [64, 128]}
      |                                                                                  ^
)"},
      {R"({"model_type": "gemma3n_text", "num_hidden_layers": 2, "altup_active_idx": 4})",
       R"(config.json:1:76: error: "altup_active_idx" is 4, and there are 4 tensors from 0 on
    1 | {"model_type": "gemma3n_text", "num_hidden_layers": 2, "altup_active_idx": 4}
      |                                                                            ^
)"},
      {R"({"model_type": "gemma3n_text", "num_hidden_layers": 2, "activation_sparsity_pattern": [0.95, 1.5]})",
       R"(config.json:1:94: error: "activation_sparsity_pattern" lists shares, from 0 to below 1
    1 | {"model_type": "gemma3n_text", "num_hidden_layers": 2, "activation_sparsity_pattern": [0.95, 1.5]}
      |                                                                                              ^
)"},
      {R"({"model_type": "glm4v", "vision_config": {"out_hidden_size": 2048}})",
       R"(config.json:1:42: error: the tower's result is 2048 wide, the text's embedding 4096
    1 | {"model_type": "glm4v", "vision_config": {"out_hidden_size": 2048}}
      |                                          ^
)"},
      {R"({"model_type": "llava"})",
       R"(config.json:1:1: error: "vision_config" is missing: it describes the tower
    1 | {"model_type": "llava"}
      | ^
)"},
      {R"({"model_type": "gemma3", "vision_config": {}, "mm_tokens_per_image": 100})",
       R"(config.json:1:70: error: "mm_tokens_per_image" is 100: 14 by 14 patches cannot be averaged to so many
    1 | {"model_type": "gemma3", "vision_config": {}, "mm_tokens_per_image": 100}
      |                                                                      ^
)"},
  };
  for (const auto& [config, text] : cases) {
    CAPTURE(config);
    CHECK(refusal(config) == text);
  }
}

TEST_CASE("twenty faults are shown and the rest counted") {
  std::string config = R"({"model_type": "qwen3_moe", "mlp_only_layers": [)";
  for (int i = 0; i < 30; ++i) config += i == 0 ? "-1" : ", -1";
  const std::string text = refusal(config + "]}");
  std::size_t shown = 0;
  for (std::size_t at = 0; (at = text.find("must list layers", at)) != std::string::npos; ++at) ++shown;
  CHECK(shown == 20);
  CHECK(text.ends_with("error: 10 more faults are not shown\n"));
}

TEST_CASE("what transformers takes is taken") {
  for (const std::string config : {
           R"({"model_type": "llama", "num_key_value_heads": null, "head_dim": null, "rope_scaling": null})",
           R"({"model_type": "gpt2", "hidden_size": 1024, "num_attention_heads": 16, "n_inner": null})",
           R"({"model_type": "gpt2", "n_embd": 768, "hidden_size": 768})",
           R"({"model_type": "llama", "hidden_size": 4.096e3})",
           R"({"model_type": "qwen3", "hidden_size": 5120, "num_attention_heads": 64, "num_key_value_heads": 8})",
           R"({"model_type": "mistral", "hidden_size": 5120, "head_dim": 128, "num_attention_heads": 48})",
           R"({"model_type": "llama", "some_new_key": {}, "torch_dtype": "torch.bfloat16"})",
           R"({"model_type": "llama", "num_hidden_layers": 1})",
       }) {
    CAPTURE(config);
    CHECK(refusal(config).starts_with("accepted: "));
  }
}

TEST_CASE("deberta-v2: what its convolution cannot be has a place") {
  const std::vector<std::pair<std::string, std::string>> cases{
      {R"({"model_type": "deberta-v2", "conv_kernel_size": 4})",
       R"(config.json:1:50: error: conv_kernel_size must be odd, not 4: its output has one token less than the layer's, and transformers fails to add them
    1 | {"model_type": "deberta-v2", "conv_kernel_size": 4}
      |                                                  ^
)"},
      {R"({"model_type": "deberta-v2", "conv_kernel_size": 3, "conv_groups": 7})",
       R"(config.json:1:68: error: "conv_groups" is 7, which does not divide "hidden_size" = 1536 (the default)
    1 | {"model_type": "deberta-v2", "conv_kernel_size": 3, "conv_groups": 7}
      |                                                                    ^
)"},
  };
  for (const auto& [config, text] : cases) CHECK(refusal(config) == text);
}

TEST_CASE("gemma4: what layers share has a place") {
  CHECK(refusal(R"({"model_type": "gemma4_text", "num_hidden_layers": 6, "num_kv_shared_layers": 6})") ==
        R"(config.json:1:79: error: all layers cannot read the keys of earlier ones: one must have them
    1 | {"model_type": "gemma4_text", "num_hidden_layers": 6, "num_kv_shared_layers": 6}
      |                                                                               ^
)");
  CHECK(
      refusal(
          R"({"model_type": "gemma4_text", "num_hidden_layers": 6, "per_layer_config": {"0": {"head_dim": 64}, "5": {}}})") ==
      R"(config.json:1:81: error: heads of a layer's own are modelled for full_attention alone
    1 | _type": "gemma4_text", "num_hidden_layers": 6, "per_layer_config": {"0": {"head_dim": 64}, "5": {}}}
      |                                                                          ^
)");
}
