// gptj: attention and MLP side by side behind one norm, a part of each head turned by a table of each layer's own.
// gpt_neo: one behind the other, learned positions, and in every other layer a window. Both: eager attention in fp32.
#include "core/format.h"
#include "model/families/builder.h"
#include "model/families/decoders/text_heads.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

void register_projections(ModelBuilder& b, const Dimensions& d, bool bias) {
  b.leaf("attn_dropout", "Dropout");
  b.leaf("resid_dropout", "Dropout");
  for (const std::string_view name : {"k_proj", "v_proj", "q_proj"}) {
    b.linear(name, d.hidden, d.hidden, false, Cut::Unknown);
  }
  b.linear("out_proj", d.hidden, d.hidden, bias, Cut::Unknown);
}

void register_mlp(ModelBuilder& b, const Dimensions& d, std::string_view type, std::string_view up,
                  std::string_view down) {
  const auto mlp = b.module("mlp", type);
  b.linear(up, d.ffn, d.hidden, true, Cut::Unknown);
  b.linear(down, d.hidden, d.ffn, true, Cut::Unknown);
  b.activation("act", d.activation);
  b.leaf("dropout", "Dropout");
}

constexpr std::string_view kAttention = "q_proj k_proj v_proj attn_dropout out_proj resid_dropout";

// What both read under the names that their classes give it.
struct Keys {
  std::string_view hidden, layers, heads, inner, dropout, embedding_dropout, attention_dropout;
};
constexpr Keys kGptj{"n_embd", "n_layer", "n_head", "n_inner", "resid_pdrop", "embd_pdrop", "attn_pdrop"};
constexpr Keys kGptNeo{"hidden_size",   "num_layers",    "num_heads",        "intermediate_size",
                       "resid_dropout", "embed_dropout", "attention_dropout"};

struct Usual {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t vocab = 0;
};

// Names of the attributes that the classes map to those above; empty where they are the same.
Dimensions read_dimensions(ConfigReader& config, const Keys& keys, std::string_view hidden_alias, const Usual& usual) {
  Dimensions d;
  d.vocab = config.size("vocab_size", usual.vocab);
  d.hidden = config.size(keys.hidden, usual.hidden, hidden_alias);
  d.layers = config.layer_count(keys.layers, usual.layers, "num_hidden_layers");
  d.heads = d.kv_heads = config.size(keys.heads, 16, "num_attention_heads");
  const std::optional<std::int64_t> inner = config.maybe_size(keys.inner);
  d.activation = config.activation("activation_function", "gelu_new");
  d.residual_dropout = config.probability(keys.dropout, 0);
  d.embedding_dropout = config.probability(keys.embedding_dropout, 0);
  d.attention_dropout = config.probability(keys.attention_dropout, 0);
  d.norm_epsilon = config.maybe_number("layer_norm_epsilon").value_or(1e-5);
  d.initial_deviation = config.maybe_number("initializer_range").value_or(0.02);
  config.require_divides(keys.heads, d.heads, keys.hidden, d.hidden);
  if (config.sound(keys.heads)) d.head_dim = d.hidden / d.heads;
  d.ffn = inner ? *inner : config.times(4, d.hidden);
  return d;
}

bool is_turn(const Value& item, std::int64_t layers) {
  return item.is(Value::Kind::Array) && item.items.size() == 2 && item.items[0].is(Value::Kind::Array) &&
         item.items[1].is(Value::Kind::Integer) && item.items[1].integer <= layers;
}

// Which layers have a window: [[["global", "local"], 12]] is both in turn, twelve times.
std::vector<bool> read_windows(ConfigReader& config, std::int64_t layers) {
  std::vector<bool> windows;
  const Value* types = config.find("attention_types");
  const auto wrong = [&](const Value& at) {
    config.fault(at, "\"attention_types\" lists pairs of kinds (global, local) and how often they come");
    return std::vector<bool>(static_cast<std::size_t>(layers), false);
  };
  if (types == nullptr) {
    for (std::int64_t i = 0; i < 24; ++i) windows.push_back(i % 2 == 1);
  } else {
    if (!types->is(Value::Kind::Array)) return wrong(*types);
    for (const Value& item : types->items) {
      if (!is_turn(item, layers)) return wrong(item);
      for (std::int64_t i = 0; i < item.items[1].integer; ++i) {
        for (const Value& kind : item.items[0].items) {
          if (kind.string != "global" && kind.string != "local") return wrong(kind);
          windows.push_back(kind.string == "local");
        }
      }
    }
  }
  if (windows.size() == static_cast<std::size_t>(layers)) return windows;
  config.fault("num_layers", formatted("\"attention_types\" is of {} layers, the model of {}", windows.size(), layers));
  return std::vector<bool>(static_cast<std::size_t>(layers), false);
}

}  // namespace

ModelSpec build_gptj(ConfigReader& config) {
  const bool tied = config.flag("tie_word_embeddings", false);
  Dimensions d = read_dimensions(config, kGptj, "hidden_size", {.layers = 28, .hidden = 4096, .vocab = 50400});
  d.max_positions = config.size("n_positions", 2048, "max_position_embeddings");
  const std::int64_t turned = config.size("rotary_dim", 64);
  if (config.sound("n_head") && (turned >= d.head_dim || turned % 2 != 0)) {
    config.fault("rotary_dim",
                 formatted("\"rotary_dim\" must be even and less than the width of a head, {}", d.head_dim));
  }
  config.throw_if_any();
  d.rotary_fraction = static_cast<double>(turned) / static_cast<double>(d.head_dim);
  DecoderParts parts;
  read_text_head(config, "GPTJ", {.tokens = false}, parts, d);
  config.throw_if_any();
  ModelBuilder b(config, class_with_head("GPTJ", parts.head));
  const std::string forward = formatted("ln_1 attn({}) mlp(fc_in act fc_out dropout)", kAttention);
  ParameterId words = kNone;
  {
    const auto model = b.module("transformer", "GPTJModel");
    words = b.embedding("wte", d.vocab, d.hidden, Split::Vocabulary);
    b.leaf("drop", "Dropout");
    {
      const auto list = b.module("h", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const auto block = b.layer(i, "GPTJBlock", forward);
        b.layer_norm("ln_1", d.hidden);
        {
          const auto attention = b.module("attn", "GPTJAttention");
          register_projections(b, d, false);
          b.buffer("embed_positions", {d.max_positions, turned}, DType::Float32, false);
        }
        register_mlp(b, d, "GPTJMLP", "fc_in", "fc_out");
      }
    }
    b.layer_norm("ln_f", d.hidden);
  }
  const WordsHead head{.table = tied ? words : ParameterId(kNone), .bias = true};
  return finish_with_text_head(b, parts, d, head, "transformer(wte drop h* ln_f)");
}

ModelSpec build_gpt_neo(ConfigReader& config) {
  const bool tied = config.flag("tie_word_embeddings", true);
  Dimensions d = read_dimensions(config, kGptNeo, {}, {.layers = 24, .hidden = 2048, .vocab = 50257});
  d.max_positions = config.size("max_position_embeddings", 2048);
  const std::int64_t window = config.size("window_size", 256);
  const std::vector<bool> windows = read_windows(config, d.layers);
  DecoderParts parts;
  parts.token_classes = "classifier";
  read_text_head(config, "GPTNeo", {}, parts, d);
  config.throw_if_any();
  ModelBuilder b(config, class_with_head("GPTNeo", parts.head));
  const std::string forward = formatted("ln_1 attn(attention({})) ln_2 mlp(c_fc act c_proj dropout)", kAttention);
  ParameterId words = kNone;
  {
    const auto model = b.module("transformer", "GPTNeoModel");
    words = b.embedding("wte", d.vocab, d.hidden, Split::Vocabulary);
    b.embedding("wpe", d.max_positions, d.hidden, Split::Replicated);
    b.leaf("drop", "Dropout");
    {
      const auto list = b.module("h", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const auto block = b.layer(i, "GPTNeoBlock", forward);
        b.layer_norm("ln_1", d.hidden);
        {
          const auto outer = b.module("attn", "GPTNeoAttention");
          const auto attention = b.module("attention", "GPTNeoSelfAttention");
          register_projections(b, d, true);
          b.buffer("bias", {1, 1, d.max_positions, d.max_positions}, DType::Bool, false);
          if (windows[static_cast<std::size_t>(i)]) b.so_far().buffers.back().window = window;
        }
        b.layer_norm("ln_2", d.hidden);
        register_mlp(b, d, "GPTNeoMLP", "c_fc", "c_proj");
      }
    }
    b.layer_norm("ln_f", d.hidden);
  }
  const WordsHead head{.table = tied ? words : ParameterId(kNone)};
  return finish_with_text_head(b, parts, d, head, "transformer(wte wpe drop h* ln_f)");
}

}  // namespace dsplan
