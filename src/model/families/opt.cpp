// opt: learned positions with an offset of 2, biases and norms that can be switched off, and (350m) an embedding that
// is narrower than the model.
#include "core/format.h"
#include "model/families/builder.h"
#include "model/families/decoders/text_heads.h"
#include "model/families/family.h"
#include "model/parts.h"

namespace dsplan {
namespace {

// OPTLearnedPositionalEmbedding keeps two rows ahead of position 0.
constexpr std::int64_t kPositionOffset = 2;

struct Opt {
  Dimensions dims;
  std::int64_t embedding = 0;  // word_embed_proj_dim
  bool tied, norm_before, bias, affine, final_norm;
};

Opt read_opt(ConfigReader& config) {
  Opt opt{};
  Dimensions& d = opt.dims;
  d.vocab = config.size("vocab_size", 50272);
  d.hidden = config.size("hidden_size", 768);
  d.ffn = config.size("ffn_dim", 3072);
  d.layers = config.layer_count("num_hidden_layers", 12);
  d.heads = d.kv_heads = config.size("num_attention_heads", 12);
  d.max_positions = config.size("max_position_embeddings", 2048);
  d.activation = config.activation("activation_function", "relu");
  d.residual_dropout = config.probability("dropout", 0.1);
  d.attention_dropout = config.probability("attention_dropout", 0);
  opt.embedding = config.maybe_size("word_embed_proj_dim").value_or(d.hidden);
  opt.tied = config.flag("tie_word_embeddings", true);
  opt.norm_before = config.flag("do_layer_norm_before", true);
  opt.bias = config.flag("enable_bias", true);
  opt.affine = config.flag("layer_norm_elementwise_affine", true);
  opt.final_norm = !config.flag("_remove_final_layer_norm", false) && opt.norm_before;
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  return opt;
}

void register_layer(ModelBuilder& b, const Opt& opt) {
  const Dimensions& d = opt.dims;
  {
    const auto attention = b.module("self_attn", "OPTAttention");
    b.linear("k_proj", d.hidden, d.hidden, opt.bias, Cut::KeyValue);
    b.linear("v_proj", d.hidden, d.hidden, opt.bias, Cut::KeyValue);
    b.linear("q_proj", d.hidden, d.hidden, opt.bias, Cut::Column);
    b.linear("out_proj", d.hidden, d.hidden, opt.bias, Cut::Row);
  }
  b.activation("activation_fn", d.activation);
  b.layer_norm("self_attn_layer_norm", d.hidden, opt.affine);
  b.linear("fc1", d.ffn, d.hidden, opt.bias, Cut::Column);
  b.linear("fc2", d.hidden, d.ffn, opt.bias, Cut::Row);
  b.layer_norm("final_layer_norm", d.hidden, opt.affine);
}

std::string_view layer_forward(const Opt& opt) {
  return opt.norm_before ? "self_attn_layer_norm self_attn(q_proj k_proj v_proj out_proj) "
                           "final_layer_norm fc1 activation_fn fc2"
                         : "self_attn(q_proj k_proj v_proj out_proj) self_attn_layer_norm "
                           "fc1 activation_fn fc2 final_layer_norm";
}

}  // namespace

ModelSpec build_opt(ConfigReader& config) {
  Opt opt = read_opt(config);
  DecoderParts parts;
  parts.norms_first = opt.norm_before;
  read_text_head(config, "OPT", {.padding = 1, .tokens = false}, parts, opt.dims);
  config.throw_if_any();
  const Dimensions& d = opt.dims;
  const bool projected = opt.embedding != d.hidden;
  ModelBuilder b(config, class_with_head("OPT", parts.head));
  ParameterId embedding = kNone;
  {
    const auto model = b.module("model", "OPTModel");
    const auto decoder = b.module("decoder", "OPTDecoder");
    embedding = b.embedding("embed_tokens", d.vocab, opt.embedding, Split::Vocabulary);
    b.embedding("embed_positions", b.plus(d.max_positions, kPositionOffset), d.hidden, Split::Replicated,
                "OPTLearnedPositionalEmbedding");
    if (projected) {
      b.linear("project_out", opt.embedding, d.hidden, false, Cut::Unknown);
      b.linear("project_in", d.hidden, opt.embedding, false, Cut::Unknown);
    }
    if (opt.final_norm) b.layer_norm("final_layer_norm", d.hidden, opt.affine);
    const auto list = b.module("layers", "ModuleList");
    for (std::int64_t i = 0; i < d.layers; ++i) {
      const auto layer = b.layer(i, "OPTDecoderLayer", layer_forward(opt));
      register_layer(b, opt);
    }
  }
  const WordsHead head{.table = opt.tied ? embedding : ParameterId(kNone), .width = opt.embedding};
  // The language model calls the decoder past OPTModel, other classes do not.
  const bool words = parts.head == TextHead::LanguageModel;
  const std::string body =
      formatted("{}decoder(embed_tokens embed_positions{} layers*{}{}){}", words ? "model." : "model(",
                projected ? " project_in" : "", opt.final_norm ? " final_layer_norm" : "",
                projected ? " project_out" : "", words ? "" : ")");
  ModelSpec spec = finish_with_text_head(b, parts, d, head, body);
  spec.parts = std::make_shared<const DecoderParts>(parts);
  return spec;
}

}  // namespace dsplan
