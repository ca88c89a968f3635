// minimax_m2: Mixtral's shape with norms over all heads of queries and keys together, part of each head turned, and
// experts that are chosen by a sigmoid and a bias of the block's.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

ModelSpec build_minimax_m2(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "MiniMaxM2",
                                 {.vocab = 200064,
                                  .hidden = 3072,
                                  .ffn = 1536,
                                  .layers = 62,
                                  .heads = 48,
                                  .kv_heads = 8,
                                  .head_dim = 128,
                                  .positions = 196608});
  decoder.dims.rotary_fraction = config.rotary_share("partial_rotary_factor", 1);
  DecoderParts& parts = decoder.parts;
  parts.views_behind = true;
  parts.head_norm = HeadNorm::Whole;
  parts.rotary.part = RotaryPart::JoinedLast;
  parts.experts.router = Router::Sigmoid;
  parts.experts.ffn = decoder.dims.ffn;
  decoder.experts.count = config.size("num_local_experts", 256, "num_experts");
  decoder.experts.per_token = config.size("num_experts_per_tok", 8);
  decoder.experts.router_class = "MiniMaxM2TopKRouter";
  config.require_at_most("num_experts_per_tok", decoder.experts.per_token, "num_local_experts", decoder.experts.count);
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
