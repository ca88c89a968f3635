// qwen3_next: layers of a gated delta net, and every fourth of attention with a gate; experts beside one that sees all.
#include "core/format.h"
#include "model/families/decoder.h"
#include "model/families/family.h"
#include "model/families/mixers/mamba.h"

namespace dsplan {
namespace {

void read_delta(ConfigReader& config, DeltaParts& p) {
  p.kernel = config.size("linear_conv_kernel_dim", 4);
  p.key_dim = config.size("linear_key_head_dim", 128);
  p.value_dim = config.size("linear_value_head_dim", 128);
  p.key_heads = config.size("linear_num_key_heads", 16);
  p.heads = config.size("linear_num_value_heads", 32);
  config.require_divides("linear_num_key_heads", p.key_heads, "linear_num_value_heads", p.heads);
}

Decoder read_next(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Qwen3Next",
                                 {.vocab = 151936,
                                  .hidden = 2048,
                                  .ffn = 5632,
                                  .layers = 48,
                                  .heads = 16,
                                  .kv_heads = 2,
                                  .head_dim = 256,
                                  .positions = 32768});
  Dimensions& d = decoder.dims;
  DecoderParts& parts = decoder.parts;
  d.rotary_fraction = config.rotary_share("partial_rotary_factor", 0.25);
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  parts.norm = NormKind::RmsPlusOne;
  parts.head_norm = HeadNorm::ByToken;
  parts.rotary.part = d.rotary_fraction < 1 ? RotaryPart::JoinedLast : RotaryPart::Whole;
  parts.gates_queries = true;
  const std::int64_t interval = config.size("full_attention_interval", 4);
  parts.recurrent = read_recurrent(config, d.layers, [&](std::int64_t layer) { return (layer + 1) % interval != 0; });
  read_delta(config, parts.delta);
  d.experts = config.count("num_experts", 512);
  d.experts_per_token = config.size("num_experts_per_tok", 10);
  if (d.experts > 0) config.require_at_most("num_experts_per_tok", d.experts_per_token, "num_experts", d.experts);
  parts.experts.router = Router::Softmax;
  parts.experts.ffn = config.size("moe_intermediate_size", 512);
  parts.experts.shared_ffn = config.size("shared_expert_intermediate_size", 512);
  parts.experts.normalised = config.flag("norm_topk_prob", true);
  decoder.experts.dense = read_dense_layers(config, d.layers, d.experts);
  return decoder;
}

void register_delta(ModelBuilder& b, const Dimensions& d, const DeltaParts& p) {
  const auto mixer = b.module("linear_attn", "Qwen3NextGatedDeltaNet");
  const std::int64_t keys = b.times(p.key_heads, p.key_dim);
  const std::int64_t values = b.times(p.heads, p.value_dim);
  b.parameter("dt_bias", {p.heads}, Split::Unknown);
  b.parameter("A_log", {p.heads}, Split::Unknown);
  {
    const auto convolution = b.module("conv1d", "Conv1d");
    b.parameter("weight", {b.plus(b.times(2, keys), values), 1, p.kernel}, Split::Unknown);
  }
  b.linear("in_proj_qkvz", b.times(2, b.plus(keys, values)), d.hidden, false, Cut::Unknown);
  b.linear("in_proj_ba", b.times(2, p.heads), d.hidden, false, Cut::Unknown);
  b.rms_norm("norm", p.value_dim, "Qwen3NextRMSNormGated");
  b.linear("out_proj", d.hidden, values, false, Cut::Unknown);
}

void register_next_attention(ModelBuilder& b, const Decoder& decoder) {
  const Dimensions& d = decoder.dims;
  const auto attention = b.module("self_attn", "Qwen3NextAttention");
  const std::int64_t query = b.times(d.heads, d.head_dim);
  const std::int64_t key = b.times(d.kv_heads, d.head_dim);
  b.linear("q_proj", b.times(2, query), d.hidden, decoder.qkv_bias, Cut::Unknown);
  b.linear("k_proj", key, d.hidden, decoder.qkv_bias, Cut::Unknown);
  b.linear("v_proj", key, d.hidden, decoder.qkv_bias, Cut::Unknown);
  b.linear("o_proj", d.hidden, query, decoder.output_bias, Cut::Unknown);
  b.rms_norm("q_norm", d.head_dim, "Qwen3NextRMSNorm");
  b.rms_norm("k_norm", d.head_dim, "Qwen3NextRMSNorm");
}

void register_next_experts(ModelBuilder& b, const Dimensions& d, const ExpertParts& parts) {
  const auto block = b.module("mlp", "Qwen3NextSparseMoeBlock");
  {
    const auto gate = b.module("gate", "Qwen3NextTopKRouter");
    b.parameter("weight", {d.experts, d.hidden}, Split::Replicated);
  }
  register_experts(b, "Qwen3NextExperts", d.experts, parts.ffn, d.hidden, d.activation);
  {
    const auto shared = b.module("shared_expert", "Qwen3NextMLP");
    register_gated_mlp(b, d.hidden, parts.shared_ffn, false, d.activation);
  }
  b.linear("shared_expert_gate", 1, d.hidden, false, Cut::Whole);
}

void register_next_layer(ModelBuilder& b, const Decoder& decoder, bool recurs, bool mixes) {
  const Dimensions& d = decoder.dims;
  if (recurs) {
    register_delta(b, d, decoder.parts.delta);
  } else {
    register_next_attention(b, decoder);
  }
  if (mixes) {
    register_next_experts(b, d, decoder.parts.experts);
  } else {
    const auto mlp = b.module("mlp", "Qwen3NextMLP");
    register_gated_mlp(b, d.hidden, d.ffn, false, d.activation);
  }
  b.rms_norm("input_layernorm", d.hidden, "Qwen3NextRMSNorm");
  b.rms_norm("post_attention_layernorm", d.hidden, "Qwen3NextRMSNorm");
}

std::string next_forward(bool recurs, bool mixes) {
  return formatted(
      "input_layernorm {} post_attention_layernorm {}",
      recurs ? "linear_attn(in_proj_qkvz in_proj_ba norm out_proj)"
             : "self_attn(q_proj q_norm k_proj k_norm v_proj o_proj)",
      mixes ? "mlp(shared_expert(gate_proj act_fn up_proj down_proj) gate experts(act_fn) shared_expert_gate)"
            : kGatedMlpForward);
}

}  // namespace

ModelSpec build_qwen3_next(ConfigReader& config) {
  const Decoder decoder = read_next(config);
  config.throw_if_any();
  const Dimensions& d = decoder.dims;
  // By whether it recurs, and whether it has experts.
  const std::string forwards[2][2] = {{next_forward(false, false), next_forward(false, true)},
                                      {next_forward(true, false), next_forward(true, true)}};
  ModelBuilder b(config, "Qwen3NextForCausalLM");
  ParameterId words = kNone;
  {
    const auto model = b.module("model", "Qwen3NextModel");
    words = b.embedding("embed_tokens", d.vocab, d.hidden, Split::Vocabulary);
    {
      const auto list = b.module("layers", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const bool recurs = decoder.parts.recurs(static_cast<std::size_t>(i));
        const bool mixes = !decoder.experts.dense[static_cast<std::size_t>(i)];
        const auto layer = b.layer(i, "Qwen3NextDecoderLayer", forwards[recurs ? 1 : 0][mixes ? 1 : 0]);
        register_next_layer(b, decoder, recurs, mixes);
      }
    }
    b.rms_norm("norm", d.hidden, "Qwen3NextRMSNorm");
    b.rotary("rotary_emb", "Qwen3NextRotaryEmbedding", rotated(d));
  }
  const ParameterId head = b.linear("lm_head", d.vocab, d.hidden, false, Cut::Vocabulary);
  if (decoder.tied) b.tie(head, words);
  ModelSpec spec = b.finish("model(embed_tokens rotary_emb layers* norm) lm_head");
  spec.dims = d;
  spec.parts = std::make_shared<const DecoderParts>(decoder.parts);
  return spec;
}

}  // namespace dsplan
