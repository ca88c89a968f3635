// hunyuan_v1_dense and hunyuan_v1_moe: Llama's shape with norms over each head of queries and keys behind the rotation.
#include <algorithm>

#include "core/format.h"
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

namespace {

// moe_topk: a number, or one for each layer, as published files have it.
std::int64_t read_experts_per_token(ConfigReader& config, std::int64_t layers) {
  constexpr const char* kKey = "moe_topk";
  const Value* const said = config.find(kKey);
  if (said == nullptr || !said->is(Value::Kind::Array)) return config.size(kKey, 1, "num_experts_per_tok");
  const std::vector<Value>& each = said->items;
  const auto is_size = [](const Value& one) { return one.is(Value::Kind::Integer) && one.integer > 0; };
  if (each.size() != static_cast<std::size_t>(layers) || !std::all_of(each.begin(), each.end(), is_size)) {
    config.fault(kKey, formatted("\"{}\" must be a number, or an array of {} numbers, one per layer", kKey, layers));
    return 1;
  }
  const auto differs = [&](const Value& one) { return one.integer != each.front().integer; };
  if (std::any_of(each.begin(), each.end(), differs)) {
    config.refuse(kKey, formatted("\"{}\": layers with other numbers of experts are not modelled yet", kKey));
  }
  return each.front().integer;
}

}  // namespace

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
  decoder.experts.per_token = read_experts_per_token(config, decoder.dims.layers);
  decoder.experts.router_class = "HunYuanMoEV1Gate";
  decoder.experts.block_class = "Moe";
  config.require_at_most("moe_topk", decoder.experts.per_token, "num_experts", decoder.experts.count);
  read_head(config, decoder, 0);
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
