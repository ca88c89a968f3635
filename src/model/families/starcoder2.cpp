// starcoder2: Llama's attention with biases, LayerNorms, a plain MLP, and dropout without modules.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

ModelSpec build_starcoder2(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Starcoder2",
                                 {.vocab = 49152,
                                  .hidden = 3072,
                                  .ffn = 12288,
                                  .layers = 30,
                                  .heads = 24,
                                  .kv_heads = 2,
                                  .positions = 4096,
                                  .activation = "gelu_pytorch_tanh",
                                  .epsilon_key = "norm_epsilon",
                                  .tied = true,
                                  .head_dim_may_be_null = true});
  Dimensions& d = decoder.dims;
  decoder.qkv_bias = decoder.output_bias = decoder.mlp_bias = config.flag("use_bias", true);
  d.residual_dropout = config.probability("residual_dropout", 0);
  d.embedding_dropout = config.probability("embedding_dropout", 0);
  d.sliding_window = config.maybe_size("sliding_window").value_or(0);
  DecoderParts& parts = decoder.parts;
  parts.norm = NormKind::Layer;
  parts.mlp = MlpKind::Plain;
  parts.inner_dropout = true;
  parts.up = "c_fc";
  parts.down = "c_proj";
  parts.activation = "act";
  read_head(config, decoder);
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
