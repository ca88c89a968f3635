// hunyuan_v1_dense: Llama's shape with norms over each head of queries and keys behind the rotation.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

ModelSpec build_hunyuan_v1_dense(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "HunYuanDenseV1",
                                 {.vocab = 290943,
                                  .hidden = 4096,
                                  .ffn = 11008,
                                  .layers = 32,
                                  .heads = 32,
                                  .kv_heads = 0,
                                  .head_dim = 0,
                                  .positions = 2048,
                                  .kv_heads_may_be_null = true,
                                  .head_dim_may_be_null = true});
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.parts.head_norm = HeadNorm::AfterRotary;
  decoder.parts.query_norm = "query_layernorm";
  decoder.parts.key_norm = "key_layernorm";
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
