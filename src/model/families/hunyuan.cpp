// hunyuan_v1_dense: Llama's shape with norms over each head of queries and keys behind the rotation.
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
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
