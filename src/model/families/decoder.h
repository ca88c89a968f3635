// What the Llama-shaped decoders share: q, k, v, o projections, a gated MLP or a block of experts, RMS norms and rotary
// positions. A family fills a Decoder from its config and registers it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/model.h"
#include "model/families/builder.h"
#include "model/families/config_reader.h"

namespace dsplan {

// Where q and k are normalised per head.
enum class QueryKeyNorm : std::uint8_t {
  None,
  Interleaved,  // Called right behind its projection (qwen3).
  Behind,       // Called behind all three projections (gemma3).
};

// A block of experts in place of the MLP. transformers 5 holds all experts of a layer in two 3-D parameters.
struct Experts {
  std::int64_t count = 0;  // 0: no layer has experts.
  std::int64_t per_token = 0;
  std::int64_t ffn = 0;
  std::int64_t shared_ffn = 0;  // qwen2_moe's shared expert with its gate; 0: none.
  bool router_first = true;     // Registered before the experts.
  std::string_view router_class;
  std::vector<bool> dense;  // Per layer: a plain MLP after all. Empty: no layer is.
};

struct Decoder {
  std::string_view prefix;  // Of the class names: "Llama".
  Dimensions dims;
  bool tied = false;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  QueryKeyNorm qk_norm = QueryKeyNorm::None;
  bool sandwich_norms = false;      // gemma2, gemma3: norms behind attention and MLP too.
  bool scaled_embedding = false;    // gemma: the embedding has a class and a scale buffer of its own.
  std::vector<std::string> rotary;  // gemma3: one pair of tables per kind of layer, in the order of the buffers.
  Experts experts;
};

// The keys that (nearly) all of them have, with the class's defaults for sizes. kv_heads = 0: as many as heads where
// the key is missing. head_dim = 0: hidden / heads where it is missing. null means the same as 0 does here where the
// class's field may be None, and is a fault elsewhere.
struct DecoderDefaults {
  std::int64_t vocab, hidden, ffn, layers, heads, kv_heads, head_dim, positions;
  std::string_view activation = "silu";
  std::string_view activation_key = "hidden_act";
  bool tied = false;
  bool kv_heads_may_be_null = false;
  bool head_dim_may_be_null = false;
};
[[nodiscard]] Decoder read_decoder(ConfigReader& config, std::string_view prefix, const DecoderDefaults& defaults);

// decoder_sparse_step and mlp_only_layers of the qwen families: true where a layer has a plain MLP.
[[nodiscard]] std::vector<bool> read_dense_layers(ConfigReader& config, std::int64_t layers, std::int64_t experts);

[[nodiscard]] ModelSpec build_decoder(const ConfigReader& config, const Decoder& decoder);

// A gated MLP's own registration: gate_proj, up_proj, down_proj, act_fn. deepseek and shared experts use it too.
void register_gated_mlp(ModelBuilder& builder, std::int64_t hidden, std::int64_t ffn, bool bias,
                        std::string_view activation);
// The fused expert parameters of transformers 5: gate_up_proj [experts, 2 * ffn, hidden], down_proj.
void register_experts(ModelBuilder& builder, std::string_view type, std::int64_t experts, std::int64_t ffn,
                      std::int64_t hidden, std::string_view activation);

inline constexpr std::string_view kGatedMlpForward = "mlp(gate_proj act_fn up_proj down_proj)";

}  // namespace dsplan
