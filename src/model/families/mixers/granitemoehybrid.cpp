// granitemoehybrid: granite's layers, of which most have a state-space mixer in the place of attention; each has an MLP
// of its own, beside experts or alone.
#include "core/format.h"
#include "model/families/decoder.h"
#include "model/families/family.h"
#include "model/families/mixers/mamba.h"

namespace dsplan {
namespace {

void read_hybrid_mixer(ConfigReader& config, Decoder& decoder) {
  MambaParts& p = decoder.parts.mamba;
  p.heads = config.size("mamba_n_heads", 128);
  p.groups = config.size("mamba_n_groups", 1);
  p.state = config.size("mamba_d_state", 256);
  p.kernel = config.size("mamba_d_conv", 4);
  p.chunk = config.size("mamba_chunk_size", 256);
  p.conv_bias = config.flag("mamba_conv_bias", true);
  p.biases = config.flag("mamba_proj_bias", false);
  const std::int64_t expand = config.size("mamba_expand", 2);
  const Value* width = config.find("mamba_d_head");
  const bool automatic = width == nullptr || width->string == "auto";
  const std::optional<std::int64_t> head_dim = automatic ? std::nullopt : config.maybe_size("mamba_d_head");
  config.require_divides("mamba_n_groups", p.groups, "mamba_n_heads", p.heads);
  config.throw_if_any();
  p.inner = config.times(expand, decoder.dims.hidden);
  p.head_dim = head_dim.value_or(p.inner / p.heads);
  if (config.times(p.head_dim, p.heads) != p.inner) {
    config.fault("mamba_n_heads", formatted("mamba_n_heads * mamba_d_head = {} must be mamba_expand * hidden_size = {}",
                                            p.head_dim * p.heads, p.inner));
  }
}

Decoder read_hybrid(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "GraniteMoeHybrid", {.kv_heads_may_be_null = true});
  Dimensions& d = decoder.dims;
  DecoderParts& parts = decoder.parts;
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  parts.embedding_multiplier = config.maybe_number("embedding_multiplier", 1).value_or(1);
  parts.residual_multiplier = config.maybe_number("residual_multiplier", 1).value_or(1);
  parts.attention_scale = config.maybe_number("attention_multiplier", 1).value_or(1);
  parts.logits_divisor = config.maybe_number("logits_scaling", 1).value_or(1);
  parts.tells_numbers = false;
  give_shared_mlp(parts);
  parts.experts.router = Router::LateSoftmax;
  parts.experts.logits_last = true;
  parts.experts.block = "block_sparse_moe";
  parts.experts.gate = "router";
  parts.experts.ffn = d.ffn;
  parts.experts.shared_ffn = config.size("shared_intermediate_size", 1024);
  d.experts = config.count("num_local_experts", 8);
  d.experts_per_token = config.size("num_experts_per_tok", 2);
  if (d.experts > 0) config.require_at_most("num_experts_per_tok", d.experts_per_token, "num_local_experts", d.experts);
  parts.recurrent = read_recurrent(config, d.layers, [](std::int64_t) { return true; });
  if (config.maybe_string("position_embedding_type").value_or("") != "rope") {
    parts.turned.assign(static_cast<std::size_t>(d.layers), false);
  }
  read_hybrid_mixer(config, decoder);
  return decoder;
}

void register_hybrid_experts(ModelBuilder& b, const Dimensions& d, std::int64_t ffn) {
  const auto block = b.module("block_sparse_moe", "GraniteMoeHybridMoE");
  {
    const auto router = b.module("router", "GraniteMoeHybridTopKRouter");
    b.parameter("weight", {d.experts, d.hidden}, Split::Replicated);
  }
  register_experts(b, "GraniteMoeHybridExperts", d.experts, ffn, d.hidden, d.activation);
}

void register_hybrid_layer(ModelBuilder& b, const Decoder& decoder, bool recurs) {
  const Dimensions& d = decoder.dims;
  const DecoderParts& parts = decoder.parts;
  b.rms_norm("input_layernorm", d.hidden, "GraniteMoeHybridRMSNorm");
  b.rms_norm("post_attention_layernorm", d.hidden, "GraniteMoeHybridRMSNorm");
  if (d.experts > 0) register_hybrid_experts(b, d, parts.experts.ffn);
  {
    const auto shared = b.module("shared_mlp", "GraniteMoeHybridMLP");
    b.activation("activation", d.activation);
    b.linear("input_linear", b.times(2, parts.experts.shared_ffn), d.hidden, false, Cut::Unknown);
    b.linear("output_linear", d.hidden, parts.experts.shared_ffn, false, Cut::Unknown);
  }
  if (recurs) {
    return register_mamba(b, parts.mamba, d.hidden, d.activation, "GraniteMoeHybridMambaLayer",
                          "GraniteMoeHybridRMSNormGated");
  }
  const auto attention = b.module("self_attn", "GraniteMoeHybridAttention");
  const std::int64_t query = b.times(d.heads, d.head_dim);
  const std::int64_t key = b.times(d.kv_heads, d.head_dim);
  b.linear("q_proj", query, d.hidden, decoder.qkv_bias, Cut::Unknown);
  b.linear("k_proj", key, d.hidden, decoder.qkv_bias, Cut::Unknown);
  b.linear("v_proj", key, d.hidden, decoder.qkv_bias, Cut::Unknown);
  b.linear("o_proj", d.hidden, query, decoder.output_bias, Cut::Unknown);
}

std::string hybrid_forward(const Decoder& decoder, bool recurs) {
  return formatted("input_layernorm {} post_attention_layernorm {}shared_mlp(input_linear activation output_linear)",
                   recurs ? "mamba(in_proj norm out_proj)" : "self_attn(q_proj k_proj v_proj o_proj)",
                   decoder.dims.experts > 0 ? "block_sparse_moe(router experts(act_fn)) " : "");
}

}  // namespace

ModelSpec build_granitemoehybrid(ConfigReader& config) {
  const Decoder decoder = read_hybrid(config);
  config.throw_if_any();
  const Dimensions& d = decoder.dims;
  const bool turns = !decoder.parts.none_turns();
  const std::string forwards[2] = {hybrid_forward(decoder, false), hybrid_forward(decoder, true)};
  ModelBuilder b(config, "GraniteMoeHybridForCausalLM");
  ParameterId words = kNone;
  {
    const auto model = b.module("model", "GraniteMoeHybridModel");
    words = b.embedding("embed_tokens", d.vocab, d.hidden, Split::Vocabulary);
    {
      const auto list = b.module("layers", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const bool recurs = decoder.parts.recurs(static_cast<std::size_t>(i));
        const auto layer = b.layer(i, "GraniteMoeHybridDecoderLayer", forwards[recurs ? 1 : 0]);
        register_hybrid_layer(b, decoder, recurs);
      }
    }
    b.rms_norm("norm", d.hidden, "GraniteMoeHybridRMSNorm");
    if (turns) b.rotary("rotary_emb", "GraniteMoeHybridRotaryEmbedding", d.head_dim);
  }
  return finish_with_head(b, d, decoder.tied, words,
                          formatted("model(embed_tokens {}layers* norm)", turns ? "rotary_emb " : ""), decoder.parts);
}

}  // namespace dsplan
