// nemotron_h: each layer is one norm and one module: a state-space mixer, attention without positions, an MLP of two
// products, or experts of two products beside an MLP that sees every token.
#include <algorithm>
#include <iterator>

#include "core/format.h"
#include "model/families/decoder.h"
#include "model/families/family.h"
#include "model/families/mixers/mamba.h"

namespace dsplan {
namespace {

constexpr std::size_t kMostLayers = 100'000;

struct KindName {
  char letter;  // Of hybrid_override_pattern.
  MixerKind kind;
  std::string_view name;   // Of layers_block_type.
  std::string_view older;  // The name that files before transformers 5 have.
};
constexpr KindName kKinds[] = {{'M', MixerKind::Recurrent, "linear_attention", "mamba"},
                               {'*', MixerKind::Attention, "full_attention", "attention"},
                               {'-', MixerKind::FeedForward, "mlp", "mlp"},
                               {'E', MixerKind::Mixture, "moe", "moe"}};

std::vector<MixerKind> kinds_of_pattern(ConfigReader& config, const Value& pattern) {
  std::vector<MixerKind> kinds;
  for (const char letter : pattern.string) {
    const auto* found =
        std::find_if(std::begin(kKinds), std::end(kKinds), [&](const KindName& kind) { return kind.letter == letter; });
    if (found == std::end(kKinds)) {
      config.fault(pattern, formatted("\"hybrid_override_pattern\" may hold M, *, - and E, not {}", letter));
      return kinds;
    }
    kinds.push_back(found->kind);
  }
  return kinds;
}

std::vector<MixerKind> kinds_of_list(ConfigReader& config, const Value& list) {
  std::vector<MixerKind> kinds;
  for (const Value& item : list.items) {
    const auto* found = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const KindName& kind) {
      return item.string == kind.name || item.string == kind.older;
    });
    if (found == std::end(kKinds)) {
      config.fault(item, "a layer is one of linear_attention, full_attention, mlp and moe");
      return kinds;
    }
    kinds.push_back(found->kind);
  }
  return kinds;
}

// The list decides, then the pattern; num_hidden_layers decides nothing (NemotronHConfig.__post_init__).
std::vector<MixerKind> read_kinds(ConfigReader& config) {
  if (is_present(config, "num_hidden_layers")) (void)config.layer_count("num_hidden_layers", 1);
  const Value* list = config.find("layers_block_type");
  if (list == nullptr) list = config.find("layer_types");
  const Value* pattern = config.find("hybrid_override_pattern");
  const Value* said = list != nullptr ? list : pattern;
  std::vector<MixerKind> kinds{MixerKind::Recurrent, MixerKind::Mixture, MixerKind::Attention, MixerKind::FeedForward};
  if (list != nullptr && !list->is(Value::Kind::Array)) {
    config.fault(*list, formatted("must be an array with a string for each layer, not {}", describe(list->kind)));
  } else if (list != nullptr) {
    kinds = kinds_of_list(config, *list);
  } else if (pattern != nullptr && !pattern->is(Value::Kind::String)) {
    config.fault(*pattern, formatted("must be a string with a letter for each layer, not {}", describe(pattern->kind)));
  } else if (pattern != nullptr) {
    kinds = kinds_of_pattern(config, *pattern);
  }
  if (said != nullptr && (kinds.empty() || kinds.size() > kMostLayers)) {
    config.fault(*said, formatted("from 1 to {} layers", kMostLayers));
  }
  return kinds;
}

void read_state_space(ConfigReader& config, MambaParts& p) {
  p.module = "mixer";
  p.heads = config.size("mamba_num_heads", 128);
  p.head_dim = config.size("mamba_head_dim", 64);
  p.state = config.size("ssm_state_size", 128);
  p.groups = config.size("n_groups", 8, "mamba_n_groups");
  p.kernel = config.size("conv_kernel", 4, "mamba_d_conv");
  p.chunk = config.size("chunk_size", 128, "mamba_chunk_size");
  p.biases = config.flag("use_bias", false);
  p.conv_bias = config.flag("use_conv_bias", true);
  p.activation = config.activation("mamba_hidden_act", "silu");
  p.norms_by_group = true;
  p.rescales = config.flag("rescale_prenorm_residual", true);
  config.require_divides("n_groups", p.groups, "mamba_num_heads", p.heads);
  p.inner = config.times(p.heads, p.head_dim);
}

void read_mixture(ConfigReader& config, Decoder& decoder) {
  ExpertParts& parts = decoder.parts.experts;
  Dimensions& d = decoder.dims;
  parts.block = "mixer";
  parts.router = Router::Fp32Sigmoid;
  parts.gated = false;
  parts.shared = SharedPlace::Behind;
  parts.shared_module = "shared_experts";
  parts.ffn = config.size("moe_intermediate_size", 7688);
  parts.shared_ffn = config.size("moe_shared_expert_intermediate_size", 7688);
  parts.latent = config.maybe_size("moe_latent_size").value_or(0);
  parts.normalised = config.flag("norm_topk_prob", true);
  parts.scale = config.maybe_number("routed_scaling_factor").value_or(1);
  parts.groups = config.size("n_group", 1);
  parts.kept_groups = config.size("topk_group", 1);
  d.experts = config.size("n_routed_experts", 8, "num_local_experts");
  d.experts_per_token = config.size("num_experts_per_tok", 2);
  config.require_at_most("num_experts_per_tok", d.experts_per_token, "n_routed_experts", d.experts);
  config.require_at_most("topk_group", parts.kept_groups, "n_group", parts.groups);
  config.require_divides("n_group", parts.groups, "n_routed_experts", d.experts);
}

Decoder read_nemotron_h(ConfigReader& config) {
  Decoder decoder;
  decoder.prefix = "NemotronH";
  Dimensions& d = decoder.dims;
  DecoderParts& parts = decoder.parts;
  parts.mixers = read_kinds(config);
  d.layers = static_cast<std::int64_t>(parts.mixers.size());
  d.vocab = config.size("vocab_size", 131072);
  d.hidden = config.size("hidden_size", 4096);
  d.ffn = config.size("intermediate_size", 21504);
  d.heads = config.size("num_attention_heads", 32);
  d.kv_heads = config.maybe_size("num_key_value_heads", 8).value_or(d.heads);
  d.head_dim = config.size("head_dim", 128);
  d.max_positions = config.size("max_position_embeddings", 4096);
  d.attention_dropout = config.probability("attention_dropout", 0);
  d.activation = config.activation("mlp_hidden_act", "relu2");
  d.norm_epsilon = config.maybe_number("layer_norm_epsilon").value_or(1e-5);
  d.initial_deviation = config.maybe_number("initializer_range").value_or(0.02);
  decoder.mlp_bias = config.flag("mlp_bias", false);
  if (config.sound("num_attention_heads")) {
    config.require_divides("num_key_value_heads", d.kv_heads, "num_attention_heads", d.heads);
  }
  parts.residual = Residual::OneModule;
  parts.embedding = "embeddings";
  parts.final_norm = "norm_f";
  parts.before_attention = "norm";
  parts.attention = parts.feed_forward = "mixer";
  parts.mlp = MlpKind::Plain;
  parts.wide_logits = true;
  parts.turned.assign(parts.mixers.size(), false);
  read_state_space(config, parts.mamba);
  read_mixture(config, decoder);
  const bool mixes = std::find(parts.mixers.begin(), parts.mixers.end(), MixerKind::Mixture) != parts.mixers.end();
  if (!mixes) d.experts = d.experts_per_token = 0;
  return decoder;
}

void register_mlp(ModelBuilder& b, const Dimensions& d, std::int64_t ffn, bool bias) {
  b.linear("up_proj", ffn, d.hidden, bias, Cut::Unknown);
  b.linear("down_proj", d.hidden, ffn, bias, Cut::Unknown);
  b.activation("act_fn", d.activation);
}

void register_mixture(ModelBuilder& b, const Decoder& decoder) {
  const Dimensions& d = decoder.dims;
  const ExpertParts& parts = decoder.parts.experts;
  const auto block = b.module("mixer", "NemotronHMoE");
  const std::int64_t seen = parts.latent > 0 ? parts.latent : d.hidden;
  {
    const auto experts = b.module("experts", "NemotronHExperts");
    b.parameter("up_proj", {d.experts, parts.ffn, seen}, Split::Unknown);
    b.parameter("down_proj", {d.experts, seen, parts.ffn}, Split::Unknown);
    b.activation("act_fn", d.activation);
  }
  {
    const auto gate = b.module("gate", "NemotronHTopkRouter");
    b.parameter("weight", {d.experts, d.hidden}, Split::Replicated);
    b.buffer("e_score_correction_bias", {d.experts}, DType::Float32, true);
    b.so_far().buffers.back().counted = true;
  }
  {
    const auto shared = b.module("shared_experts", "NemotronHMLP");
    register_mlp(b, d, parts.shared_ffn, decoder.mlp_bias);
  }
  if (parts.latent > 0) {
    b.linear("fc1_latent_proj", parts.latent, d.hidden, decoder.mlp_bias, Cut::Unknown);
    b.linear("fc2_latent_proj", d.hidden, parts.latent, decoder.mlp_bias, Cut::Unknown);
  } else {
    b.leaf("fc1_latent_proj", "Identity");
    b.leaf("fc2_latent_proj", "Identity");
  }
}

void register_layer(ModelBuilder& b, const Decoder& decoder, MixerKind kind) {
  const Dimensions& d = decoder.dims;
  b.rms_norm("norm", d.hidden, "NemotronHRMSNorm");
  if (kind == MixerKind::Recurrent) {
    const MambaParts& mamba = decoder.parts.mamba;
    return register_mamba(b, mamba, d.hidden, mamba.activation, "NemotronHMamba2Mixer", "Zamba2RMSNormGated");
  }
  if (kind == MixerKind::Mixture) return register_mixture(b, decoder);
  const auto mixer = b.module("mixer", kind == MixerKind::Attention ? "NemotronHAttention" : "NemotronHMLP");
  if (kind == MixerKind::FeedForward) return register_mlp(b, d, d.ffn, decoder.mlp_bias);
  const std::int64_t query = b.times(d.heads, d.head_dim);
  const std::int64_t key = b.times(d.kv_heads, d.head_dim);
  b.linear("q_proj", query, d.hidden, false, Cut::Unknown);
  b.linear("k_proj", key, d.hidden, false, Cut::Unknown);
  b.linear("v_proj", key, d.hidden, false, Cut::Unknown);
  b.linear("o_proj", d.hidden, query, false, Cut::Unknown);
}

std::string_view forward_of(MixerKind kind) {
  switch (kind) {
    case MixerKind::Recurrent: return "norm mixer(in_proj norm out_proj)";
    case MixerKind::Attention: return "norm mixer(q_proj k_proj v_proj o_proj)";
    case MixerKind::FeedForward: return "norm mixer(up_proj act_fn down_proj)";
    case MixerKind::Mixture:
      return "norm mixer(gate fc1_latent_proj experts(act_fn) fc2_latent_proj shared_experts(up_proj act_fn "
             "down_proj))";
  }
  return {};
}

}  // namespace

ModelSpec build_nemotron_h(ConfigReader& config) {
  const Decoder decoder = read_nemotron_h(config);
  config.throw_if_any();
  const Dimensions& d = decoder.dims;
  ModelBuilder b(config, "NemotronHForCausalLM");
  ParameterId words = kNone;
  {
    const auto model = b.module("model", "NemotronHModel");
    words = b.embedding("embeddings", d.vocab, d.hidden, Split::Vocabulary);
    {
      const auto list = b.module("layers", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const MixerKind kind = decoder.parts.mixers[static_cast<std::size_t>(i)];
        const auto layer = b.layer(i, "NemotronHBlock", forward_of(kind));
        register_layer(b, decoder, kind);
      }
    }
    b.rms_norm("norm_f", d.hidden, "NemotronHRMSNorm");
  }
  return finish_with_head(b, d, false, words, "model(embeddings layers* norm_f)", decoder.parts);
}

}  // namespace dsplan
