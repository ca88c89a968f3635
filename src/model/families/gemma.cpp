// gemma, gemma2 and the text part of gemma3: Decoders with a scaled embedding; the later two with norms on both sides
// of attention and MLP, the last with one rotary table per kind of layer.
#include <algorithm>

#include "core/format.h"
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

// The kinds of layers that occur, sorted, as the rotary module orders its buffers.
std::vector<std::string> read_layer_kinds(ConfigReader& config, std::int64_t layers) {
  std::vector<std::string> kinds;
  const std::int64_t pattern = config.size("sliding_window_pattern", 6);
  const Value* given = config.find("layer_types");
  if (given == nullptr) {
    if (layers >= pattern) kinds.emplace_back("full_attention");
    if (pattern > 1) kinds.emplace_back("sliding_attention");
    return kinds;
  }
  if (!given->is(Value::Kind::Array) || given->items.size() != static_cast<std::size_t>(layers)) {
    config.fault(*given, formatted("\"layer_types\" must be an array of {} strings, one per layer", layers));
    return kinds;
  }
  for (const Value& item : given->items) {
    if (item.string != "full_attention" && item.string != "sliding_attention") {
      config.fault(item, "\"layer_types\" may hold full_attention and sliding_attention");
    } else if (std::find(kinds.begin(), kinds.end(), item.string) == kinds.end()) {
      kinds.push_back(item.string);
    }
  }
  std::sort(kinds.begin(), kinds.end());
  return kinds;
}

}  // namespace

ModelSpec build_gemma(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Gemma",
                                 {.vocab = 256000,
                                  .hidden = 3072,
                                  .ffn = 24576,
                                  .layers = 28,
                                  .heads = 16,
                                  .kv_heads = 16,
                                  .head_dim = 256,
                                  .positions = 8192,
                                  .activation = "gelu_pytorch_tanh",
                                  .tied = true});
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.scaled_embedding = true;
  config.throw_if_any();
  return build_decoder(config, decoder);
}

ModelSpec build_gemma2(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Gemma2",
                                 {.vocab = 256000,
                                  .hidden = 2304,
                                  .ffn = 9216,
                                  .layers = 26,
                                  .heads = 8,
                                  .kv_heads = 4,
                                  .head_dim = 256,
                                  .positions = 8192,
                                  .activation = "gelu_pytorch_tanh",
                                  .activation_key = "hidden_activation",
                                  .tied = true});
  Dimensions& d = decoder.dims;
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.scaled_embedding = decoder.sandwich_norms = true;
  d.sliding_window = config.maybe_size("sliding_window", 4096).value_or(0);
  d.attention_softcap = config.maybe_number("attn_logit_softcapping", 50).value_or(0);
  d.final_softcap = config.maybe_number("final_logit_softcapping", 30).value_or(0);
  config.throw_if_any();
  return build_decoder(config, decoder);
}

ModelSpec build_gemma3_text(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Gemma3",
                                 {.vocab = 262208,
                                  .hidden = 2304,
                                  .ffn = 9216,
                                  .layers = 26,
                                  .heads = 8,
                                  .kv_heads = 4,
                                  .head_dim = 256,
                                  .positions = 131072,
                                  .activation = "gelu_pytorch_tanh",
                                  .activation_key = "hidden_activation",
                                  .tied = true});
  Dimensions& d = decoder.dims;
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.scaled_embedding = decoder.sandwich_norms = true;
  decoder.qk_norm = QueryKeyNorm::Behind;
  decoder.rotary = read_layer_kinds(config, d.layers);
  d.sliding_window = config.maybe_size("sliding_window", 4096).value_or(0);
  d.attention_softcap = config.maybe_number("attn_logit_softcapping").value_or(0);
  d.final_softcap = config.maybe_number("final_logit_softcapping").value_or(0);
  config.throw_if_any();
  return build_decoder(config, decoder);
}

}  // namespace dsplan
