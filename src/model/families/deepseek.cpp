// deepseek_v2, deepseek_v3, glm4_moe_lite, mistral4 and minicpm3: attention through low-rank latents (MLA). Of the
// first two the first layers with a plain MLP and the others with routed and shared experts. The multi-token-prediction
// layers of the published checkpoints are no part of the model that transformers builds.
#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "model/config/config_keys.h"
#include "model/families/decoder.h"
#include "model/families/decoders/text_heads.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

struct DeepSeek {
  std::string_view prefix;
  std::string_view block;  // The class of the expert block; v2 and v3 spell it differently.
  Dimensions dims;
  bool tied = false, attention_bias = false, mlp_bias = false;
  bool correction_bias = false;              // v3's router balances with a buffer.
  bool wide_correction = false;              // Which stays in fp32.
  std::int64_t shared = 0, first_dense = 0;  // As many layers, and all layers, have a plain MLP.
  DType scale_dtype = DType::Float32;        // Of the embedding's factor: an integer makes an integer.
  DecoderParts parts;
};

struct Defaults {
  std::int64_t vocab, hidden, ffn, layers, heads, positions, expert_ffn = 0, shared = 0, first_dense = 0;
  std::optional<std::int64_t> per_token = {}, kv_heads = {};
  double scale;
  LatentParts latent = {.query_rank = 1536, .key_rank = 512, .nope = 128, .rope = 64, .value = 128};
  bool tied = false;
};

// Keys and defaults that both versions share; `defaults` holds the ones that differ.
void read_deepseek(ConfigReader& config, DeepSeek& m, const Defaults& defaults) {
  Dimensions& d = m.dims;
  d.vocab = config.size("vocab_size", defaults.vocab);
  d.hidden = config.size("hidden_size", defaults.hidden);
  d.ffn = config.size("intermediate_size", defaults.ffn);
  d.layers = config.layer_count("num_hidden_layers", defaults.layers);
  d.heads = config.size("num_attention_heads", defaults.heads);
  d.kv_heads = config.maybe_size("num_key_value_heads", defaults.kv_heads).value_or(d.heads);
  d.max_positions = config.size("max_position_embeddings", defaults.positions);
  d.attention_dropout = config.probability("attention_dropout", 0);
  d.activation = config.activation("hidden_act", "silu");
  m.tied = config.flag("tie_word_embeddings", defaults.tied);
  m.attention_bias = config.flag("attention_bias", false);
  d.norm_epsilon = config.maybe_number("rms_norm_eps").value_or(1e-6);
  d.rotary_base = config.rotary_base(10000);
  read_rotary_scaling(config, m.parts.rotary);
  LatentParts& latent = m.parts.latent;
  latent.query_rank = config.maybe_size("q_lora_rank", defaults.latent.query_rank).value_or(0);
  latent.key_rank = config.size("kv_lora_rank", defaults.latent.key_rank);
  latent.nope = config.size("qk_nope_head_dim", defaults.latent.nope);
  latent.rope = config.size("qk_rope_head_dim", defaults.latent.rope);
  // 0: where the key is missing, as Llama's heads.
  latent.value = defaults.latent.value > 0 ? config.size("v_head_dim", defaults.latent.value)
                                           : config.maybe_size("v_head_dim").value_or(d.hidden / d.heads);
  m.parts.projections = Projections::Latent;
  config.require_divides("num_key_value_heads", d.kv_heads, "num_attention_heads", d.heads);
  if (d.kv_heads != d.heads) {
    config.gaps.push_back(
        {config.find("num_key_value_heads"), "num_key_value_heads", "fewer key heads than latents give"});
  }
  if (d.experts == 0) return;
  m.parts.experts.ffn = config.size("moe_intermediate_size", defaults.expert_ffn);
  m.shared = config.size("n_shared_experts", defaults.shared);
  m.parts.experts.shared_ffn = config.times(m.parts.experts.ffn, m.shared);
  m.parts.experts.shared = SharedPlace::Behind;
  m.parts.experts.shared_module = "shared_experts";
  m.parts.experts.scale = config.maybe_number("routed_scaling_factor", defaults.scale).value_or(1);
  m.first_dense = config.count("first_k_dense_replace", defaults.first_dense);
  d.experts_per_token = config.maybe_size("num_experts_per_tok", defaults.per_token).value_or(0);
  if (d.experts_per_token == 0) {
    config.fault("num_experts_per_tok", "\"num_experts_per_tok\" is missing, and the class has no default for it");
  }
  config.require_at_most("num_experts_per_tok", d.experts_per_token, "n_routed_experts", d.experts);
}

// Groups of experts, of which some may be chosen.
void read_groups(ConfigReader& config, DeepSeek& m, std::optional<std::int64_t> groups,
                 std::optional<std::int64_t> kept) {
  ExpertParts& experts = m.parts.experts;
  experts.groups = config.maybe_size("n_group", groups).value_or(0);
  experts.kept_groups = config.maybe_size("topk_group", kept).value_or(0);
  config.require_at_most("topk_group", experts.kept_groups, "n_group", experts.groups);
  if (experts.groups > 0) config.require_divides("n_group", experts.groups, "n_routed_experts", m.dims.experts);
}

void register_attention(ModelBuilder& b, const DeepSeek& m, std::string_view type, std::string_view norm) {
  const Dimensions& d = m.dims;
  const LatentParts& l = m.parts.latent;
  const auto attention = b.module("self_attn", type);
  const std::int64_t query = b.times(d.heads, b.plus(l.nope, l.rope));
  // Megatron has no one rule for the latents, which every rank needs whole.
  if (l.query_rank == 0) {
    b.linear("q_proj", query, d.hidden, false, Cut::Column);
  } else {
    b.linear("q_a_proj", l.query_rank, d.hidden, m.attention_bias, Cut::Unknown);
    b.rms_norm("q_a_layernorm", l.query_rank, norm);
    b.linear("q_b_proj", query, l.query_rank, false, Cut::Column);
  }
  b.linear("kv_a_proj_with_mqa", b.plus(l.key_rank, l.rope), d.hidden, m.attention_bias, Cut::Unknown);
  b.rms_norm("kv_a_layernorm", l.key_rank, norm);
  b.linear("kv_b_proj", b.times(d.heads, b.plus(l.nope, l.value)), l.key_rank, false, Cut::Column);
  b.linear("o_proj", d.hidden, b.times(d.heads, l.value), m.attention_bias, Cut::Row);
}

void register_expert_block(ModelBuilder& b, const DeepSeek& m) {
  const Dimensions& d = m.dims;
  const auto block = b.module("mlp", m.block);
  register_experts(b, formatted("{}Experts", m.prefix), d.experts, m.parts.experts.ffn, d.hidden, d.activation);
  {
    const auto gate = b.module("gate", formatted("{}TopkRouter", m.prefix));
    b.parameter("weight", {d.experts, d.hidden}, Split::Replicated);
    if (m.correction_bias) {
      b.buffer("e_score_correction_bias", {d.experts}, DType::Float32, !m.wide_correction);
      b.so_far().buffers.back().counted = true;
    }
  }
  const auto shared = b.module("shared_experts", formatted("{}MLP", m.prefix));
  register_gated_mlp(b, d.hidden, m.parts.experts.shared_ffn, m.mlp_bias, d.activation);
}

std::string layer_forward(const DeepSeek& m, bool with_experts) {
  return formatted(
      "input_layernorm self_attn({} kv_a_proj_with_mqa kv_a_layernorm kv_b_proj o_proj) post_attention_layernorm {}",
      m.parts.latent.query_rank == 0 ? "q_proj" : "q_a_proj q_a_layernorm q_b_proj",
      with_experts ? "mlp(gate experts(act_fn) shared_experts(gate_proj act_fn up_proj down_proj))" : kGatedMlpForward);
}

ModelSpec build(const ConfigReader& config, const DeepSeek& m) {
  const Dimensions& d = m.dims;
  const auto named = [&](std::string_view rest) { return formatted("{}{}", m.prefix, rest); };
  const std::string attention = named("Attention"), norm = named("RMSNorm"), layer_type = named("DecoderLayer"),
                    mlp_type = named("MLP");
  const std::string dense_forward = layer_forward(m, false);
  const std::string expert_forward = layer_forward(m, true);
  ModelBuilder b(config, class_with_head(m.prefix, m.parts.head));
  ParameterId embedding = kNone;
  {
    const auto model = b.module("model", named("Model"));
    if (m.parts.scaled_embedding) {
      const auto scope = b.module("embed_tokens", named("ScaledWordEmbedding"));
      embedding = b.parameter("weight", {d.vocab, d.hidden}, Split::Vocabulary);
      b.buffer("embed_scale", Shape(), m.scale_dtype, m.scale_dtype == DType::Float32);
    } else {
      embedding = b.embedding("embed_tokens", d.vocab, d.hidden, Split::Vocabulary);
    }
    {
      const auto list = b.module("layers", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const bool with_experts = i >= m.first_dense;
        const auto layer = b.layer(i, layer_type, with_experts ? expert_forward : dense_forward);
        register_attention(b, m, attention, norm);
        if (with_experts) {
          register_expert_block(b, m);
        } else {
          const auto mlp = b.module("mlp", mlp_type);
          register_gated_mlp(b, d.hidden, d.ffn, m.mlp_bias, d.activation);
        }
        b.rms_norm("input_layernorm", d.hidden, norm);
        b.rms_norm("post_attention_layernorm", d.hidden, norm);
      }
    }
    b.rms_norm("norm", d.hidden, norm);
    b.rotary("rotary_emb", named("RotaryEmbedding"), m.parts.latent.rope);
  }
  const std::string_view body = "model(embed_tokens rotary_emb layers* norm)";
  ModelSpec spec = finish_with_text_head(b, m.parts, d, {.table = m.tied ? embedding : ParameterId(kNone)}, body);
  spec.dims.head_dim = b.plus(m.parts.latent.nope, m.parts.latent.rope);
  spec.parts = std::make_shared<const DecoderParts>(m.parts);
  return spec;
}

}  // namespace

ModelSpec build_deepseek_v2(ConfigReader& config) {
  DeepSeek m;
  m.prefix = "DeepseekV2";
  m.block = "DeepseekV2Moe";
  m.dims.experts = config.size("n_routed_experts", 64, "num_experts");
  read_deepseek(config, m,
                {.vocab = 102400,
                 .hidden = 4096,
                 .ffn = 11008,
                 .layers = 32,
                 .heads = 32,
                 .positions = 2048,
                 .expert_ffn = 1407,
                 .shared = 2,
                 .first_dense = 0,
                 .per_token = {},
                 .kv_heads = {},
                 .scale = 1});
  m.mlp_bias = config.flag("mlp_bias", false);
  const std::string method = config.maybe_string("topk_method").value_or("greedy");
  if (method != "greedy" && method != "group_limited_greedy") {
    config.fault("topk_method", formatted("\"{}\" is no way to choose experts that the class knows", method),
                 "it is greedy or group_limited_greedy");
  }
  read_groups(config, m, {}, {});
  if (method == "greedy") m.parts.experts.groups = 0;
  m.parts.experts.router = Router::Fp32Softmax;
  m.parts.rotary.complex = true;
  read_text_head(config, m.prefix, {.tokens = false}, m.parts, m.dims);
  config.require_divides("num_attention_heads", m.dims.heads, "hidden_size", m.dims.hidden);
  config.throw_if_any();
  return build(config, m);
}

ModelSpec build_deepseek_v3(ConfigReader& config) {
  DeepSeek m;
  m.prefix = "DeepseekV3";
  m.block = "DeepseekV3MoE";
  m.correction_bias = true;
  m.dims.experts = config.size("n_routed_experts", 256, "num_local_experts");
  read_deepseek(config, m,
                {.vocab = 129280,
                 .hidden = 7168,
                 .ffn = 18432,
                 .layers = 61,
                 .heads = 128,
                 .positions = 4096,
                 .expert_ffn = 2048,
                 .shared = 1,
                 .first_dense = 3,
                 .per_token = 8,
                 .kv_heads = 128,
                 .scale = 2.5});
  read_groups(config, m, 8, 4);
  m.parts.experts.router = Router::Fp32Sigmoid;
  m.parts.experts.normalised = config.flag("norm_topk_prob", true);
  m.parts.rotary.sorts_pairs = config.flag("rope_interleave", true);
  read_text_head(config, m.prefix, {}, m.parts, m.dims);
  config.throw_if_any();
  return build(config, m);
}

namespace {

// So many plain MLPs, then experts.
std::int64_t read_leading_dense(ConfigReader& config, std::int64_t layers) {
  const std::vector<bool> dense = read_mlp_types(config, layers, 1);
  const auto first = std::find(dense.begin(), dense.end(), false);
  const auto later = std::find(first, dense.end(), true);
  if (later != dense.end()) {
    config.fault(config.find("mlp_layer_types")->items[static_cast<std::size_t>(later - dense.begin())],
                 "\"mlp_layer_types\": layers without experts behind layers with them are not modelled yet");
  }
  return first - dense.begin();
}

}  // namespace

// deepseek_v3 with sizes of its own (GLM-4.7-Flash).
ModelSpec build_glm4_moe_lite(ConfigReader& config) {
  DeepSeek m;
  m.prefix = "Glm4MoeLite";
  m.block = "Glm4MoeLiteMoE";
  m.correction_bias = m.wide_correction = true;
  m.dims.experts = config.size("n_routed_experts", 64, "num_local_experts");
  read_deepseek(config, m,
                {.vocab = 154880,
                 .hidden = 2048,
                 .ffn = 10240,
                 .layers = 47,
                 .heads = 20,
                 .positions = 202752,
                 .expert_ffn = 1536,
                 .shared = 1,
                 .first_dense = 1,
                 .per_token = 4,
                 .kv_heads = 20,
                 .scale = 1.8,
                 .latent = {.query_rank = 768, .key_rank = 512, .nope = 192, .rope = 64, .value = 256}});
  m.first_dense = read_leading_dense(config, m.dims.layers);
  read_groups(config, m, 1, 1);
  m.parts.experts.router = Router::Fp32Sigmoid;
  m.parts.experts.normalised = config.flag("norm_topk_prob", true);
  m.parts.rotary.sorts_pairs = config.flag("rope_interleave", true);
  config.throw_if_any();
  return build(config, m);
}

// deepseek_v3's attention, and a plain MLP in every layer (Youtu-LLM).
ModelSpec build_youtu(ConfigReader& config) {
  DeepSeek m;
  m.prefix = "Youtu";
  read_deepseek(config, m,
                {.vocab = 128256,
                 .hidden = 2048,
                 .ffn = 6144,
                 .layers = 32,
                 .heads = 16,
                 .positions = 131072,
                 .kv_heads = 16,
                 .scale = 1,
                 .tied = true});
  m.first_dense = m.dims.layers;
  m.parts.rotary.sorts_pairs = config.flag("rope_interleave", true);
  config.throw_if_any();
  return build(config, m);
}

namespace {

// What the rotated part of a head turns by is as wide as that part for a kind of table that reads
// partial_rotary_factor alone, which the class gives; and each layer multiplies by llama_4_scaling_beta.
void check_tempered_tables(ConfigReader& config) {
  const Value* const rope = config.find("rope_parameters");
  if (rope == nullptr || !rope->is(Value::Kind::Object)) return;
  const Value* const type = rotary_type(*rope);
  if (type == nullptr || type->string != "yarn") {
    config.fault(*rope,
                 "\"rope_type\" must be \"yarn\": other tables are as wide as a whole head, and transformers stops");
  }
  for (const std::string_view key : {"llama_4_scaling_beta", "original_max_position_embeddings"}) {
    if (rope->find(key) != nullptr) continue;
    config.fault(*rope, formatted("\"{}\" is missing, by which every layer's queries are scaled", key));
  }
}

}  // namespace

// deepseek_v3's attention, whose queries grow with the logarithm of how far they are on, and experts that a softmax
// chooses.
ModelSpec build_mistral4(ConfigReader& config) {
  DeepSeek m;
  m.prefix = "Mistral4";
  m.block = "Mistral4MoE";
  m.dims.experts = config.size("n_routed_experts", 128, "num_local_experts");
  read_deepseek(config, m,
                {.vocab = 131072,
                 .hidden = 4096,
                 .ffn = 12288,
                 .layers = 36,
                 .heads = 32,
                 .positions = 1048576,
                 .expert_ffn = 2048,
                 .shared = 1,
                 .first_dense = 0,
                 .per_token = 4,
                 .kv_heads = 32,
                 .scale = 1,
                 .latent = {.query_rank = 1024, .key_rank = 256, .nope = 64, .rope = 64, .value = 128}});
  check_tempered_tables(config);
  read_groups(config, m, 1, 1);
  m.parts.experts.router = Router::GroupedSoftmax;
  m.parts.experts.normalised = config.flag("norm_topk_prob", true);
  m.parts.rotary.sorts_pairs = config.flag("rope_interleave", true);
  m.parts.tempered_behind = true;
  if (m.parts.rotary.scaling == RotaryScaling::Other) m.parts.rotary.scaling = RotaryScaling::Yarn;  // The class's own.
  read_text_head(config, m.prefix, {.padding = 11}, m.parts, m.dims);
  config.throw_if_any();
  return build(config, m);
}

// Llama's rotary positions and MLP around latents; factors on the embedding, on what joins the residual stream, and on
// what the head reads.
ModelSpec build_minicpm3(ConfigReader& config) {
  DeepSeek m;
  m.prefix = "MiniCPM3";
  Defaults defaults{.vocab = 73448,
                    .hidden = 2560,
                    .ffn = 6400,
                    .layers = 62,
                    .heads = 40,
                    .positions = 32768,
                    .kv_heads = 40,
                    .scale = 1,
                    .latent = {.query_rank = 768, .key_rank = 256, .nope = 64, .rope = 32, .value = 0},
                    .tied = true};
  read_deepseek(config, m, defaults);
  m.mlp_bias = config.flag("mlp_bias", false);
  m.first_dense = m.dims.layers;
  m.parts.scaled_embedding = true;
  const Value* scale = config.find("scale_emb");
  m.scale_dtype = scale == nullptr || scale->is(Value::Kind::Integer) ? DType::Int64 : DType::Float32;
  const double layers = std::sqrt(static_cast<double>(m.dims.layers));
  m.parts.residual_multiplier = config.maybe_number("scale_depth", 1.4).value_or(layers) / layers;
  const auto hidden = static_cast<double>(m.dims.hidden);
  m.parts.hidden_divisor =
      hidden / static_cast<double>(config.maybe_size("dim_model_base", 256).value_or(m.dims.hidden));
  config.require_divides("num_attention_heads", m.dims.heads, "hidden_size", m.dims.hidden);
  read_text_head(config, m.prefix, {.tokens = false}, m.parts, m.dims);
  if (m.parts.head != TextHead::LanguageModel) m.parts.hidden_divisor = 0;  // Of a head over words alone.
  config.throw_if_any();
  return build(config, m);
}

}  // namespace dsplan
