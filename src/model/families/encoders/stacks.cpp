#include "model/families/encoders/stacks.h"

#include "core/format.h"
#include "model/families.h"
#include "model/families/family.h"

namespace dsplan {

BothStacks read_both_stacks(ConfigReader& config, const UsualStacks& usual, Dimensions& dims) {
  BothStacks stacks;
  dims.ffn = config.size("encoder_ffn_dim", usual.ffn);
  stacks.decoder_ffn = config.size("decoder_ffn_dim", usual.ffn);
  dims.heads = dims.kv_heads = config.size("encoder_attention_heads", usual.heads, "num_attention_heads");
  const std::int64_t heads = config.size("decoder_attention_heads", usual.heads);
  if (heads != dims.heads) {
    config.fault("decoder_attention_heads",
                 formatted("{} heads in the decoder and {} in the encoder are not modelled", heads, dims.heads));
  }
  dims.decoder_layers = config.layer_count("decoder_layers", usual.layers);
  stacks.encoder_layers = config.layer_count(
      "encoder_layers", usual.encoder_layers > 0 ? usual.encoder_layers : usual.layers, "num_hidden_layers");
  return stacks;
}

void conclude_both_stacks(const ConfigReader& config, const BothStacks& stacks, Dimensions& dims) {
  dims.head_dim = dims.hidden / dims.heads;
  dims.layers = stacks.encoder_layers + dims.decoder_layers;
  if (dims.layers > kMostLayers) {
    config.refuse("decoder_layers",
                  formatted("encoder and decoder together have more than {} layers", grouped(kMostLayers)));
  }
}

}  // namespace dsplan
