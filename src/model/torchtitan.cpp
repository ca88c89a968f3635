#include "model/torchtitan.h"

#include <utility>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "model/parts.h"

namespace dsplan {
namespace {

// Registers what a constructor registers; a forward is written down while the modules that it calls are open.
class Writer {
 public:
  Writer(const ModelSpec& from, std::string type) : dims_(from.dims), qwen_(from.family == "qwen3") {
    made_.name = from.name;
    made_.family = from.family;
    made_.source = from.source;
    made_.graph_class = type;
    made_.dims = from.dims;
    made_.parts = from.parts;
    made_.stored_dtype = from.stored_dtype;
    made_.has_graph = true;
    made_.code = ModelCode::Torchtitan;
    made_.modules.push_back({"", std::move(type), kNone, kNone});
  }

  // `ties`: the head's weight is the embedding's.
  ModelSpec write(bool ties) {
    const ParameterId table = weight(add("tok_embeddings", "Embedding", 0), {dims_.vocab, dims_.hidden});
    add_table();
    const ModuleId list = add("layers", "ModuleDict", 0);
    for (std::int64_t i = 0; i < dims_.layers; ++i) layer(list, i);
    const ModuleId last = norm("norm", 0, dims_.hidden);
    const ModuleId head = linear("output", 0, dims_.vocab, dims_.hidden);
    if (ties) made_.parameters.back().tied_to = table;
    call_all(last, head);
    return std::move(made_);
  }

 private:
  ModuleId add(std::string_view leaf, std::string_view type, ModuleId parent) {
    const Module& outer = made_.modules[static_cast<std::size_t>(parent)];
    std::string path = outer.path.empty() ? std::string(leaf) : formatted("{}.{}", outer.path, leaf);
    Module module{std::move(path), std::string(type), parent, outer.layer};
    made_.modules.push_back(std::move(module));
    return static_cast<ModuleId>(made_.modules.size() - 1);
  }
  ParameterId weight(ModuleId module, const Shape& shape) {
    Parameter made;
    made.name = made_.modules[static_cast<std::size_t>(module)].path + ".weight";
    made.shape = shape;
    made.module = module;
    made_.parameters.push_back(std::move(made));
    return static_cast<ParameterId>(made_.parameters.size() - 1);
  }
  ModuleId linear(std::string_view leaf, ModuleId parent, std::int64_t out, std::int64_t in) {
    const ModuleId module = add(leaf, "Linear", parent);
    weight(module, {out, in});
    return module;
  }
  ModuleId norm(std::string_view leaf, ModuleId parent, std::int64_t size) {
    const ModuleId module = add(leaf, "RMSNorm", parent);
    weight(module, {size});
    return module;
  }

  // freqs_cis, complex numbers, of which each counts as a pair here; rope_cache, cosines beside sines.
  void add_table() {
    ModelBuffer table;
    table.name = qwen_ ? "rope_cache" : "freqs_cis";
    table.shape = qwen_ ? Shape{1, 2 * dims_.head_dim} : Shape{1, dims_.head_dim / 2, 2};
    table.by_length = true;
    made_.buffers.push_back(std::move(table));
  }

  void attention(ModuleId layer) {
    const ModuleId module = add("attention", "Attention", layer);
    const std::int64_t query = checked_mul(dims_.heads, dims_.head_dim);
    const std::int64_t key = checked_mul(dims_.kv_heads, dims_.head_dim);
    if (qwen_) {
      norm("q_norm", module, dims_.head_dim);
      norm("k_norm", module, dims_.head_dim);
    }
    linear("wq", module, query, dims_.hidden);
    linear("wk", module, key, dims_.hidden);
    linear("wv", module, key, dims_.hidden);
    linear("wo", module, dims_.hidden, query);
    add("inner_attention", "ScaledDotProductAttentionWrapper", module);
  }

  void layer(ModuleId list, std::int64_t index) {
    const ModuleId module = add(std::to_string(index), "TransformerBlock", list);
    made_.modules.back().layer = static_cast<std::int32_t>(index);
    attention(module);
    const ModuleId feed = add("feed_forward", "FeedForward", module);
    linear("w1", feed, dims_.ffn, dims_.hidden);
    linear("w2", feed, dims_.hidden, dims_.ffn);
    linear("w3", feed, dims_.ffn, dims_.hidden);
    norm("attention_norm", module, dims_.hidden);
    norm("ffn_norm", module, dims_.hidden);
    layers_.push_back(module);
  }

  void call(ModuleId module) {
    made_.calls.push_back({module, true});
    made_.calls.push_back({module, false});
  }
  void call_children(ModuleId module, std::initializer_list<std::string_view> names) {
    made_.calls.push_back({module, true});
    for (const std::string_view name : names) call(made_.child(module, name));
    made_.calls.push_back({module, false});
  }
  void call_all(ModuleId last, ModuleId head) {
    made_.calls.push_back({0, true});
    call(made_.child(0, "tok_embeddings"));
    for (const ModuleId layer : layers_) {
      made_.calls.push_back({layer, true});
      call(made_.child(layer, "attention_norm"));
      const ModuleId attention = made_.child(layer, "attention");
      if (qwen_) {
        call_children(attention, {"wq", "wk", "wv", "q_norm", "k_norm", "inner_attention", "wo"});
      } else {
        call_children(attention, {"wq", "wk", "wv", "inner_attention", "wo"});
      }
      call(made_.child(layer, "ffn_norm"));
      call_children(made_.child(layer, "feed_forward"), {"w1", "w3", "w2"});
      made_.calls.push_back({layer, false});
    }
    call(last);
    call(head);
    made_.calls.push_back({0, false});
  }

  const Dimensions& dims_;
  bool qwen_;
  ModelSpec made_;
  std::vector<ModuleId> layers_;
};

bool has_biases(const ModelSpec& model) {
  for (const Parameter& parameter : model.parameters) {
    if (parameter.name.ends_with(".bias")) return true;
  }
  return false;
}

bool ties(const ModelSpec& model) {
  for (const Parameter& parameter : model.parameters) {
    if (parameter.tied_to != kNone) return true;
  }
  return false;
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
  if (model.parts == nullptr || model.parts->head != TextHead::Words) return formatted("{}", model.graph_class);
  if (d.sliding_window > 0) return "a sliding window";
  return std::nullopt;
}

ModelSpec as_torchtitan(const ModelSpec& model) {
  DSPLAN_CHECK(!torchtitan_lacks(model), "a model that torchtitan has not");
  return Writer(model, model.family == "qwen3" ? "Qwen3Model" : "Transformer").write(ties(model));
}

}  // namespace dsplan
