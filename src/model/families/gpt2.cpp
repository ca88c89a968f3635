// gpt2: learned positions, LayerNorms, Conv1D layers whose weights are stored [in, out]; and gpt_bigcode (starcoder),
// the same with Linear layers, whose heads share one key and one value.
#include "model/families/builder.h"
#include "model/families/decoders/text_heads.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

void register_gpt2_block(ModelBuilder& b, const Dimensions& d) {
  b.layer_norm("ln_1", d.hidden);
  {
    const auto attention = b.module("attn", "GPT2Attention");
    b.conv1d("c_attn", b.times(3, d.hidden), d.hidden, Cut::QueryKeyValue);
    b.conv1d("c_proj", d.hidden, d.hidden, Cut::Row);
    b.leaf("attn_dropout", "Dropout");
    b.leaf("resid_dropout", "Dropout");
  }
  b.layer_norm("ln_2", d.hidden);
  const auto mlp = b.module("mlp", "GPT2MLP");
  b.conv1d("c_fc", d.ffn, d.hidden, Cut::Column);
  b.conv1d("c_proj", d.hidden, d.ffn, Cut::Row);
  b.activation("act", d.activation);
  b.leaf("dropout", "Dropout");
}

void register_bigcode_block(ModelBuilder& b, const Dimensions& d) {
  b.layer_norm("ln_1", d.hidden);
  {
    const auto attention = b.module("attn", "GPTBigCodeAttention");
    const std::int64_t keys = b.times(2, b.times(d.kv_heads, d.head_dim));
    b.linear("c_attn", b.plus(d.hidden, keys), d.hidden, true, Cut::Unknown);
    b.linear("c_proj", d.hidden, d.hidden, true, Cut::Unknown);
    b.leaf("resid_dropout", "Dropout");
  }
  b.layer_norm("ln_2", d.hidden);
  const auto mlp = b.module("mlp", "GPTBigCodeMLP");
  b.linear("c_fc", d.ffn, d.hidden, true, Cut::Unknown);
  b.linear("c_proj", d.hidden, d.ffn, true, Cut::Unknown);
  b.activation("act", d.activation);
  b.leaf("dropout", "Dropout");
}

// What the two families differ in.
struct Kind {
  std::string_view prefix;
  std::string_view model;
  std::string_view body;
  std::string_view block;
  std::string_view activation;
  bool shares_keys;  // As "multi_query" says; else it is no key of the class's.
  void (*register_block)(ModelBuilder&, const Dimensions&);
};
constexpr Kind kGpt2{"GPT2", "GPT2LMHeadModel", "GPT2Model", "GPT2Block", "gelu_new", false, register_gpt2_block};
constexpr Kind kBigCode{"GPTBigCode",          "GPTBigCodeForCausalLM", "GPTBigCodeModel",
                        "GPTBigCodeBlock",     "gelu_pytorch_tanh",     true,
                        register_bigcode_block};

Dimensions read_dimensions(ConfigReader& config, const Kind& kind) {
  Dimensions d;
  d.vocab = config.size("vocab_size", 50257);
  d.hidden = config.size("n_embd", 768, "hidden_size");
  d.layers = config.layer_count("n_layer", 12, "num_hidden_layers");
  d.heads = d.kv_heads = config.size("n_head", 12, "num_attention_heads");
  if (kind.shares_keys && config.flag("multi_query", true)) d.kv_heads = 1;
  d.max_positions = config.size("n_positions", 1024, "max_position_embeddings");
  const std::optional<std::int64_t> inner = config.maybe_size("n_inner");
  d.activation = config.activation("activation_function", kind.activation);
  d.attention_dropout = config.probability("attn_pdrop", 0.1);
  d.residual_dropout = config.probability("resid_pdrop", 0.1);
  d.embedding_dropout = config.probability("embd_pdrop", 0.1);
  d.norm_epsilon = config.maybe_number("layer_norm_epsilon").value_or(1e-5);
  d.initial_deviation = config.maybe_number("initializer_range").value_or(0.02);
  config.require_divides("n_head", d.heads, "n_embd", d.hidden);
  if (!kind.shares_keys && config.flag("add_cross_attention", false)) {
    config.fault("add_cross_attention", "cross attention in gpt2 is not modelled yet");
  }
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  d.ffn = inner ? *inner : config.times(4, d.hidden);
  return d;
}

ModelSpec build(ConfigReader& config, const Kind& kind) {
  const bool tied = config.flag("tie_word_embeddings", true);
  Dimensions d = read_dimensions(config, kind);
  DecoderParts parts;
  parts.token_classes = "classifier";
  read_text_head(config, kind.prefix, {}, parts, d);
  config.throw_if_any();
  ModelBuilder b(config, class_with_head(kind.prefix, parts.head, kind.model));
  ParameterId embedding = kNone;
  {
    const auto model = b.module("transformer", kind.body);
    embedding = b.embedding("wte", d.vocab, d.hidden, Split::Vocabulary);
    b.embedding("wpe", d.max_positions, d.hidden, Split::Replicated);
    b.leaf("drop", "Dropout");
    {
      const auto list = b.module("h", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        // Inside SDPA attention the attention dropout is an argument, so attn_dropout is never called.
        const auto block =
            b.layer(i, kind.block, "ln_1 attn(c_attn c_proj resid_dropout) ln_2 mlp(c_fc act c_proj dropout)");
        kind.register_block(b, d);
      }
    }
    b.layer_norm("ln_f", d.hidden);
    if (kind.shares_keys) b.buffer("bias", {d.max_positions, d.max_positions}, DType::Bool, false);
  }
  return finish_with_text_head(b, parts, d, {.table = tied ? embedding : ParameterId(kNone)},
                               "transformer(wte wpe drop h* ln_f)");
}

}  // namespace

ModelSpec build_gpt2(ConfigReader& config) { return build(config, kGpt2); }
ModelSpec build_gpt_bigcode(ConfigReader& config) { return build(config, kBigCode); }

}  // namespace dsplan
