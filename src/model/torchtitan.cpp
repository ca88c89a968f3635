#include "model/torchtitan.h"

#include <algorithm>

#include "core/error.h"
#include "core/format.h"
#include "model/families/builder.h"
#include "model/parts.h"

namespace dsplan {
namespace {

void add_attention(ModelBuilder& b, const Dimensions& d, bool qwen) {
  const auto attention = b.module("attention", "Attention");
  const std::int64_t query = checked_mul(d.heads, d.head_dim);
  const std::int64_t key = checked_mul(d.kv_heads, d.head_dim);
  if (qwen) {
    b.rms_norm("q_norm", d.head_dim, "RMSNorm");
    b.rms_norm("k_norm", d.head_dim, "RMSNorm");
  }
  b.linear("wq", query, d.hidden, false, Cut::Unknown);
  b.linear("wk", key, d.hidden, false, Cut::Unknown);
  b.linear("wv", key, d.hidden, false, Cut::Unknown);
  b.linear("wo", d.hidden, query, false, Cut::Unknown);
  b.leaf("inner_attention", "ScaledDotProductAttentionWrapper");
}

void add_layer(ModelBuilder& b, const Dimensions& d, bool qwen, std::int64_t index) {
  const auto layer = b.layer(
      index, "TransformerBlock",
      qwen ? "attention_norm attention(wq wk wv q_norm k_norm inner_attention wo) ffn_norm feed_forward(w1 w3 w2)"
           : "attention_norm attention(wq wk wv inner_attention wo) ffn_norm feed_forward(w1 w3 w2)");
  add_attention(b, d, qwen);
  {
    const auto feed = b.module("feed_forward", "FeedForward");
    b.linear("w1", d.ffn, d.hidden, false, Cut::Unknown);
    b.linear("w2", d.hidden, d.ffn, false, Cut::Unknown);
    b.linear("w3", d.ffn, d.hidden, false, Cut::Unknown);
  }
  b.rms_norm("attention_norm", d.hidden, "RMSNorm");
  b.rms_norm("ffn_norm", d.hidden, "RMSNorm");
}

bool has_biases(const ModelSpec& model) {
  return std::any_of(model.parameters.begin(), model.parameters.end(),
                     [](const Parameter& parameter) { return parameter.name.ends_with(".bias"); });
}

bool ties(const ModelSpec& model) {
  return std::any_of(model.parameters.begin(), model.parameters.end(),
                     [](const Parameter& parameter) { return parameter.tied_to != kNone; });
}

}  // namespace

std::optional<std::string> torchtitan_lacks(const ModelSpec& model) {
  const bool llama = model.family == "llama";
  if (!llama && model.family != "qwen3") return formatted("the {} family", model.family);
  const Dimensions& d = model.dims;
  if (model.causal != 0) return "adapters";
  if (has_biases(model)) return "biases of linear layers";
  if (llama && d.head_dim * d.heads != d.hidden) return "heads that are not as wide together as the model";
  if (llama && ties(model)) return "a head that shares the embedding's weight in a Llama";
  if (d.activation != "silu") return formatted("the activation {}", d.activation);
  if (model.parts == nullptr || model.parts->head != TextHead::LanguageModel) return formatted("{}", model.graph_class);
  if (d.sliding_window > 0) return "a sliding window";
  return std::nullopt;
}

ModelSpec as_torchtitan(const ModelSpec& model) {
  DSPLAN_CHECK(!torchtitan_lacks(model), "a model that torchtitan has not");
  const Dimensions& d = model.dims;
  const bool qwen = model.family == "qwen3";
  ModelBuilder b(model, qwen ? "Qwen3Model" : "Transformer");
  const ParameterId table = b.embedding("tok_embeddings", d.vocab, d.hidden, Split::Unknown);
  // rope_cache, cosines beside sines; freqs_cis, complex numbers, of which each counts as a pair here.
  if (qwen) {
    b.buffer("rope_cache", {1, 2 * d.head_dim}, DType::Float32, false);
  } else {
    b.buffer("freqs_cis", {1, d.head_dim / 2, 2}, DType::Float32, false);
  }
  b.so_far().buffers.back().by_length = true;
  {
    const auto layers = b.module("layers", "ModuleDict");
    for (std::int64_t i = 0; i < d.layers; ++i) add_layer(b, d, qwen, i);
  }
  b.rms_norm("norm", d.hidden, "RMSNorm");
  const ParameterId head = b.linear("output", d.vocab, d.hidden, false, Cut::Unknown);
  if (ties(model)) b.tie(head, table);
  ModelSpec made = b.finish("tok_embeddings layers* norm output");
  made.has_graph = true;
  made.code = ModelCode::Torchtitan;
  return made;
}

}  // namespace dsplan
