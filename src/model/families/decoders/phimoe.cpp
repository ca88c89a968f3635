// phimoe: mixtral's shape with nn.LayerNorm and biases, whose router draws its two experts.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

ModelSpec build_phimoe(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Phimoe", {.vocab = 32064, .ffn = 6400, .kv_heads = 8, .positions = 131072});
  Dimensions& d = decoder.dims;
  d.norm_epsilon = config.maybe_number("rms_norm_eps").value_or(1e-5);
  d.sliding_window = config.maybe_size("sliding_window").value_or(0);
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.head_bias = config.flag("lm_head_bias", false);
  decoder.experts.count = config.size("num_local_experts", 16);
  decoder.experts.per_token = 2;  // Whatever num_experts_per_tok says.
  decoder.experts.router_class = "PhimoeTopKRouter";
  DecoderParts& parts = decoder.parts;
  parts.norm = NormKind::Layer;
  parts.rotary.made_anew = true;
  parts.experts.router = Router::Sampled;
  parts.experts.gate = "router";
  parts.experts.ffn = d.ffn;
  parts.experts.spread = config.maybe_number("router_jitter_noise", 0.01).value_or(0.01);
  read_head(config, decoder);
  if (parts.head == TextHead::Token) parts.head = TextHead::LanguageModel;  // There is no such class, which is refused.
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
