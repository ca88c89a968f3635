// What exec's operators make, against the catalogue's rows: two derivations of the same figures, node by node, over the
// graphs of GPT-2 and the Llama shape.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <set>

#include "exec_walk.h"
#include "io/text.h"
#include "model/families.h"
#include "model/graphs/graphs.h"

namespace dsplan {
namespace {

struct Variant {
  std::string name;
  GraphOptions options;
};

// Every form of attention and of loss, and every dtype that it can have.
std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const std::int64_t batch : {1, 2}) {
    for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
      for (const char* attention : {"flash", "efficient", "math", "eager"}) {
        for (const Loss loss : {Loss::HuggingFace, Loss::Native, Loss::Chunked}) {
          Variant variant{
              fmt::format("batch {}, {}, {} attention, loss {}", batch, name(dtype), attention, static_cast<int>(loss)),
              {}};
          variant.options.micro_batch = batch;
          variant.options.seq = 24;
          variant.options.dtype = dtype;
          variant.options.loss = loss;
          variant.options.loss_chunks = loss == Loss::Chunked ? 3 : 0;
          variant.options.eager_attention = attention == std::string("eager");
          variant.options.math_attention = attention == std::string("math");
          variant.options.attention =
              attention == std::string("flash") ? AttentionKernel::Flash : AttentionKernel::MemoryEfficient;
          all.push_back(variant);
        }
      }
    }
  }
  return all;
}

std::vector<std::string> faults_of(const ModelSpec& model, const GraphOptions& options, std::size_t& compared,
                                   std::set<Op>* seen = nullptr) {
  const Graph graph = build_graph(model, options);
  walking::Walk walk(graph);
  walk.forward();
  walk.backward();
  compared += walk.compared();
  if (seen != nullptr) {
    for (const Node& node : graph.nodes) seen->insert(node.op);
  }
  return walk.faults();
}

ModelSpec tiny(const char* type, const char* more) {
  return build_model(parse_json(type, fmt::format(R"({{"model_type": "{}", {}}})", type, more)), type);
}

std::vector<ModelSpec> models() {
  const char* const llama = R"("hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97)";
  std::vector<ModelSpec> all;
  all.push_back(tiny("gpt2", R"("n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 97, "n_positions": 64)"));
  all.push_back(tiny("gpt2", R"("n_embd": 32, "n_layer": 1, "n_head": 1, "vocab_size": 97, "n_positions": 64,
    "attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0, "activation_function": "gelu")"));
  all.push_back(tiny("llama", llama));
  all.push_back(tiny("llama", R"("hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": 97, "tie_word_embeddings": true)"));
  all.push_back(tiny("llama", R"("hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 2, "vocab_size": 97, "attention_bias": true, "attention_dropout": 0.1)"));
  all.push_back(tiny("qwen2", llama));
  all.push_back(tiny("qwen3", llama));
  all.push_back(tiny("mistral", fmt::format(R"({}, "sliding_window": 16)", llama).c_str()));
  return all;
}

}  // namespace

TEST_CASE("operators of the executor make what the catalogue says") {
  std::size_t compared = 0;
  std::set<Op> seen;
  for (const ModelSpec& model : models()) {
    for (Variant variant : variants()) {
      const bool windowed = model.family == "mistral";
      if (windowed && variant.options.attention == AttentionKernel::Flash) continue;
      if (windowed && variant.options.math_attention) continue;
      const bool grouped = model.dims.kv_heads != model.dims.heads;
      const bool fused = !variant.options.eager_attention && !variant.options.math_attention;
      if (grouped && fused && !windowed && variant.options.attention == AttentionKernel::MemoryEfficient) {
        variant.options.transformers = Version{4, 53, 3};  // Heads are repeated before the kernel.
      }
      if (variant.options.transformers < Version{5, 0, 0} && model.family == "gpt2") continue;
      INFO(model.name << ": " << variant.name);
      CHECK(faults_of(model, variant.options, compared, &seen) == std::vector<std::string>{});
    }
  }
  CHECK(compared > 100'000);
  MESSAGE(compared << " slots of " << seen.size() << " operators compared");
}

}  // namespace dsplan
