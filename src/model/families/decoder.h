// What the Llama-shaped decoders share: q, k, v, o projections, a gated MLP or a block of experts, RMS norms and rotary
// positions. A family fills a Decoder from its config and registers it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model.h"
#include "model/config/config_reader.h"
#include "model/families/builder.h"
#include "model/parts.h"

namespace dsplan {

// A block of experts in place of the MLP. transformers 5 holds all experts of a layer in two 3-D parameters.
struct Experts {
  std::int64_t count = 0;  // 0: no layer has experts.
  std::int64_t per_token = 0;
  bool router_first = true;  // Registered before the experts.
  std::string_view router_class;
  std::string_view block_class = "SparseMoeBlock";  // Behind the prefix.
  bool wide_correction = false;                     // The router's bias stays in fp32.
  std::vector<bool> dense;                          // Per layer: a plain MLP after all. Empty: no layer is.
};

struct Decoder {
  std::string_view prefix;  // Of the class names: "Llama".
  Dimensions dims;
  bool tied = false;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  bool head_bias = false;  // Of a head over words.
  DecoderParts parts;
  Experts experts;
  // Of a layer, in the order of its constructor.
  std::vector<std::string_view> norms{"input_layernorm", "post_attention_layernorm"};
  bool norms_before_mlp = false;            // Registered so.
  bool activation_first = false;            // Ahead of an MLP's two products (nanochat).
  std::string_view norm_class = "RMSNorm";  // Behind the prefix; of NormKind::Layer there is none.
  std::string_view whole_norm_class;        // Where it has another prefix.
  bool norm_bias = true;                    // NormKind::Layer, LayerPlusOne.
  bool idle_post_norms = false;             // Those behind attention and MLP are Identities (hyperclovax).
  std::string_view body_class = "Model";
  std::string_view mlp_class;      // Where it has another prefix.
  std::string_view headed_prefix;  // Of classes with a head over classes, where theirs is another.
};

// The keys that (nearly) all of them have, with the class's defaults, of which those of Llama are not
// repeated. kv_heads = 0: as many as heads where
// the key is missing. head_dim = 0: hidden / heads where it is missing. null means the same as 0 does here where the
// class's field may be None, and is a fault elsewhere.
struct DecoderDefaults {
  std::int64_t vocab = 32000;
  std::int64_t hidden = 4096;
  std::int64_t ffn = 11008;
  std::int64_t layers = 32;
  std::int64_t heads = 32;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t positions = 2048;
  std::string_view activation = "silu";
  std::string_view activation_key = "hidden_act";
  std::string_view epsilon_key = "rms_norm_eps";
  bool tied = false;
  bool kv_heads_may_be_null = false;
  bool head_dim_may_be_null = false;
  bool heads_divide = true;   // Where no head_dim is given; else a head is as wide as the quotient's whole part.
  bool ffn_by_layer = false;  // `ffn` is what was read of intermediate_size already.
};
// gemma.cpp: Gemma2Config's, and those of the configurations that were made after it.
[[nodiscard]] DecoderDefaults gemma2_defaults(std::int64_t vocab, std::int64_t layers, std::int64_t positions);
// By which function the tables of rotary frequencies are scaled that are: there is one at most.
void read_rotary_scaling(ConfigReader& config, RotaryParts& rotary);
[[nodiscard]] Decoder read_decoder(ConfigReader& config, std::string_view prefix, const DecoderDefaults& defaults);

// Which head `architectures` asks for; `padding` is the class's pad_token_id, `tokens`: there is a head over them.
void read_head(ConfigReader& config, Decoder& decoder, std::optional<std::int64_t> padding = {}, bool tokens = true);

// decoder_sparse_step and mlp_only_layers of the qwen families: true where a layer has a plain MLP.
[[nodiscard]] std::vector<bool> read_dense_layers(ConfigReader& config, std::int64_t layers, std::int64_t experts);

// The first layers have plain MLPs, as many as the key says: true there. No key: as many as `fallback`.
[[nodiscard]] std::vector<bool> read_first_dense(ConfigReader& config, std::int64_t layers, std::int64_t fallback,
                                                 std::string_view key = "first_k_dense_replace");
// mlp_layer_types, "dense" or "sparse" for each layer; as above where the key is missing or null.
[[nodiscard]] std::vector<bool> read_mlp_types(ConfigReader& config, std::int64_t layers, std::int64_t fallback,
                                               std::string_view key = "first_k_dense_replace");

// layer_types, one string for each layer; `fallback` where the key is missing. A name other than full_attention and
// `sliding` is a fault.
[[nodiscard]] std::vector<LayerKind> read_layer_kinds(ConfigReader& config, std::int64_t layers,
                                                      const std::function<LayerKind(std::int64_t)>& fallback,
                                                      std::string_view sliding = "sliding_attention");

// One number or boolean for each layer; `fallback` where the key is missing or null.
[[nodiscard]] std::vector<bool> read_layer_flags(ConfigReader& config, std::string_view key, std::int64_t layers,
                                                 const std::function<bool(std::int64_t)>& fallback);

// The class that the head makes of it, and the head's registration with its part of the forward.
[[nodiscard]] std::string class_of(const Decoder& decoder);
[[nodiscard]] std::string register_head(ModelBuilder& b, const Decoder& decoder, ParameterId embedding);

[[nodiscard]] ModelSpec build_decoder(const ConfigReader& config, const Decoder& decoder);
// Throws the collected faults first.
[[nodiscard]] ModelSpec finish_decoder(const ConfigReader& config, const Decoder& decoder);

// granite's: an MLP of each layer's own beside its experts, gate and values as one product.
void give_shared_mlp(DecoderParts& parts);

// The head, over words tied or not, behind the modules that are there; `body`: the forward of what is before it.
[[nodiscard]] ModelSpec finish_with_head(ModelBuilder& b, const Dimensions& dims, bool tied, ParameterId words,
                                         std::string_view body, const DecoderParts& parts);

// glm.cpp: deepseek_v3's experts, as classes beside it have them, with the keys that theirs are called.
struct RoutedDefaults {
  std::int64_t ffn = 0;
  bool normalised = true;
  double scale = 1;
  std::int64_t count = 128;
  std::string_view key = "n_routed_experts";
  std::string_view alias = "num_local_experts";
  std::string_view shared_key = "n_shared_experts";
};
void read_routed_experts(ConfigReader& config, Decoder& decoder, const RoutedDefaults& defaults);
// The same behind the first layers, as glm4_moe has them.
void read_glm_mixture(ConfigReader& config, Decoder& decoder, std::string_view router);

// A gated MLP's own registration: gate_proj, up_proj, down_proj, act_fn. deepseek and shared experts use it too.
void register_gated_mlp(ModelBuilder& builder, std::int64_t hidden, std::int64_t ffn, bool bias,
                        std::string_view activation);
// The fused expert parameters of transformers 5: gate_up_proj [experts, 2 * ffn, hidden], down_proj.
void register_experts(ModelBuilder& builder, std::string_view type, std::int64_t experts, std::int64_t ffn,
                      std::int64_t hidden, std::string_view activation);

inline constexpr std::string_view kGatedMlpForward = "mlp(gate_proj act_fn up_proj down_proj)";

}  // namespace dsplan
