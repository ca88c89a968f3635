// mamba2: layers of a norm and a state-space mixer. The mixer reads its convolution's weight and never calls it.
#include "model/families/mixers/mamba.h"

#include "core/format.h"
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

struct Mamba2 {
  Dimensions dims;
  MambaParts parts;
  bool tied = false;
};

Mamba2 read_mamba2(ConfigReader& config) {
  Mamba2 m;
  Dimensions& d = m.dims;
  MambaParts& p = m.parts;
  d.vocab = config.size("vocab_size", 32768);
  d.hidden = config.size("hidden_size", 4096);
  d.layers = config.layer_count("num_hidden_layers", 64);
  d.activation = config.activation("hidden_act", "silu");
  d.norm_epsilon = config.maybe_number("layer_norm_epsilon").value_or(1e-5);
  p.module = "mixer";
  p.heads = config.size("num_heads", 128);
  p.head_dim = config.size("head_dim", 64);
  p.state = config.size("state_size", 128);
  p.groups = config.size("n_groups", 8);
  p.kernel = config.size("conv_kernel", 4);
  p.chunk = config.size("chunk_size", 256);
  p.biases = config.flag("use_bias", false);
  p.conv_bias = config.flag("use_conv_bias", true);
  p.wide_residual = config.flag("residual_in_fp32", true);
  m.tied = config.flag("tie_word_embeddings", false);
  const std::int64_t expand = config.size("expand", 2);
  config.require_divides("n_groups", p.groups, "num_heads", p.heads);
  config.throw_if_any();
  p.inner = config.times(expand, d.hidden);
  if (p.inner != config.times(p.heads, p.head_dim)) {
    config.fault("num_heads", formatted("num_heads * head_dim = {} must be expand * hidden_size = {}",
                                        p.heads * p.head_dim, p.inner));
  }
  config.throw_if_any();
  return m;
}

}  // namespace

std::vector<bool> read_recurrent(ConfigReader& config, std::int64_t layers,
                                 const std::function<bool(std::int64_t)>& fallback) {
  std::vector<bool> kinds;
  for (std::int64_t i = 0; i < layers; ++i) kinds.push_back(fallback(i));
  const Value* given = config.find("layer_types");
  const Value* older = config.find("layers_block_type");
  if (given == nullptr) given = older;
  if (given == nullptr) return kinds;
  if (!given->is(Value::Kind::Array) || given->items.size() != kinds.size()) {
    config.fault(*given, formatted("\"layer_types\" must be an array of {} strings, one per layer", layers));
    return kinds;
  }
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const Value& item = given->items[i];
    kinds[i] = item.string == "linear_attention" || item.string == "mamba";
    if (!kinds[i] && item.string != "full_attention" && item.string != "attention") {
      config.fault(item, "\"layer_types\" may hold full_attention and linear_attention");
    }
  }
  return kinds;
}

void register_mamba(ModelBuilder& b, const MambaParts& parts, std::int64_t hidden, std::string_view activation,
                    std::string_view type, std::string_view norm_type) {
  const auto mixer = b.module(parts.module, type);
  const std::int64_t convolved = b.plus(parts.inner, b.times(2, b.times(parts.groups, parts.state)));
  b.parameter("dt_bias", {parts.heads}, Split::Unknown);
  b.parameter("A_log", {parts.heads}, Split::Unknown);
  b.parameter("D", {parts.heads}, Split::Unknown);
  b.activation("act", activation);
  {
    const auto convolution = b.module("conv1d", "Conv1d");
    b.parameter("weight", {convolved, 1, parts.kernel}, Split::Unknown);
    if (parts.conv_bias) b.parameter("bias", {convolved}, Split::Unknown);
  }
  b.linear("in_proj", b.plus(b.plus(parts.inner, convolved), parts.heads), hidden, parts.biases, Cut::Unknown);
  b.rms_norm("norm", parts.inner, norm_type);
  b.linear("out_proj", hidden, parts.inner, parts.biases, Cut::Unknown);
}

ModelSpec build_mamba2(ConfigReader& config) {
  const Mamba2 m = read_mamba2(config);
  const Dimensions& d = m.dims;
  ModelBuilder b(config, "Mamba2ForCausalLM");
  ParameterId words = kNone;
  {
    const auto body = b.module("backbone", "Mamba2Model");
    words = b.embedding("embeddings", d.vocab, d.hidden, Split::Vocabulary);
    {
      const auto list = b.module("layers", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const auto layer = b.layer(i, "Mamba2Block", "norm mixer(in_proj norm out_proj)");
        b.rms_norm("norm", d.hidden, "Mamba2RMSNorm");
        register_mamba(b, m.parts, d.hidden, d.activation, "Mamba2Mixer", "MambaRMSNormGated");
      }
    }
    b.rms_norm("norm_f", d.hidden, "Mamba2RMSNorm");
  }
  DecoderParts parts;
  parts.body = "backbone";
  parts.embedding = "embeddings";
  parts.final_norm = "norm_f";
  parts.mamba = m.parts;
  return finish_with_head(b, d, m.tied, words, "backbone(embeddings layers* norm_f)", parts);
}

}  // namespace dsplan
