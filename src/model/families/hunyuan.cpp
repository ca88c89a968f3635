// hunyuan_v1_dense and hunyuan_v1_moe: Llama's shape with norms over each head of queries and keys behind the rotation.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

ModelSpec build_hunyuan_v1_dense(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "HunYuanDenseV1",
                                 {.vocab = 290943, .kv_heads_may_be_null = true, .head_dim_may_be_null = true});
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.parts.head_norm = HeadNorm::AfterRotary;
  decoder.parts.query_norm = "query_layernorm";
  decoder.parts.key_norm = "key_layernorm";
  read_head(config, decoder, 0);
  return finish_decoder(config, decoder);
}

// The same with experts behind a Linear in fp32, and one that sees every token.
ModelSpec build_hunyuan_v1_moe(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "HunYuanMoEV1",
                                 {.vocab = 290943, .kv_heads_may_be_null = true, .head_dim_may_be_null = true});
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.parts.head_norm = HeadNorm::AfterRotary;
  decoder.parts.query_norm = "query_layernorm";
  decoder.parts.key_norm = "key_layernorm";
  ExpertParts& parts = decoder.parts.experts;
  parts.router = Router::Module;
  parts.shared = SharedPlace::Whole;
  parts.shared_module = "shared_mlp";
  parts.ffn = parts.shared_ffn = decoder.dims.ffn;
  decoder.experts.count = config.size("num_experts", 1, "num_local_experts");
  decoder.experts.per_token = config.size("moe_topk", 1, "num_experts_per_tok");
  decoder.experts.router_class = "HunYuanMoEV1Gate";
  decoder.experts.block_class = "Moe";
  config.require_at_most("moe_topk", decoder.experts.per_token, "num_experts", decoder.experts.count);
  read_head(config, decoder, 0);
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
