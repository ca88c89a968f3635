// What exec's operators make, against the catalogue's rows: two derivations of the same figures, node by node, over the
// graphs of GPT-2 and the Llama shape.
#include <doctest/doctest.h>
#include <set>

#include "core/format.h"
#include "exec_walk.h"
#include "io/text.h"
#include "model/families.h"
#include "model/graphs/graphs.h"
#include "model/lora.h"

using namespace dsplan;

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
          Variant variant{dsplan::formatted("batch {}, {}, {} attention, loss {}", batch, name(dtype), attention,
                                            static_cast<int>(loss)),
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
  return build_model(parse_json(type, dsplan::formatted(R"({{"model_type": "{}", {}}})", type, more)), type);
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
  all.push_back(tiny("mistral", dsplan::formatted(R"({}, "sliding_window": 16)", llama).c_str()));
  return all;
}

// One slot of one row says something else.
struct Tampering {
  Op op = Op::Input;
  std::size_t slot = 0;
};
Tampering tampering;  // A row is a plain function, and so is what changes it.

void tamper(Recipe& recipe, const Node& node) {
  if (node.op != tampering.op || tampering.slot >= recipe.slots.size()) return;
  recipe.slots[tampering.slot].bytes += Bytes(1);
}

// Of which rows a change of one slot is not noticed.
std::string unnoticed(const Graph& graph, std::size_t& changed) {
  std::vector<std::string> missed;
  std::set<std::pair<Op, std::size_t>> tried;
  for (const Node& node : graph.nodes) {
    if (node.op == Op::Input) continue;  // Made by the loop.
    Recipe recipe;
    recipe_of(graph, node, recipe);
    for (std::size_t slot = 0; slot < recipe.slots.size(); ++slot) {
      if (!tried.insert({node.op, slot}).second) continue;
      tampering = {node.op, slot};
      walking::Walk walk(graph);
      walk.tamper = tamper;
      walk.forward();
      walk.backward();
      ++changed;
      if (walk.faults().empty()) missed.push_back(dsplan::formatted("{}, slot {}", name(node.op), slot));
    }
  }
  return dsplan::formatted("{}", dsplan::joined(missed, "; "));
}

}  // namespace

TEST_CASE("a change of any row of the catalogue is noticed") {
  std::size_t changed = 0;
  const std::vector<ModelSpec> all = models();
  for (const std::size_t which : {std::size_t{0}, std::size_t{2}}) {  // gpt2 with dropout, llama with grouped heads.
    for (const char* attention : {"flash", "math", "eager"}) {
      GraphOptions options;
      options.micro_batch = 2;
      options.seq = 24;
      options.eager_attention = attention == std::string("eager");
      options.math_attention = attention == std::string("math");
      options.loss = attention == std::string("flash") ? Loss::HuggingFace : Loss::Chunked;
      options.loss_chunks = options.loss == Loss::Chunked ? 3 : 0;
      INFO(all[which].name << ", " << attention);
      CHECK(unnoticed(build_graph(all[which], options), changed) == "");
    }
  }
  GraphOptions efficient;
  efficient.seq = 24;
  efficient.attention = AttentionKernel::MemoryEfficient;
  CHECK(unnoticed(build_graph(all[0], efficient), changed) == "");
  for (const std::size_t which : {std::size_t{0}, std::size_t{2}}) {
    for (const DType dtype : {DType::BFloat16, DType::Float32}) {  // Logits in fp32 are overwritten by the loss.
      GraphOptions shared;
      shared.seq = 24;
      shared.dtype = dtype;
      shared.math_attention = dtype == DType::Float32;
      shared.tp = 2;
      shared.tp_rank = 1;
      INFO(all[which].name << ", shared layers, " << name(dtype));
      CHECK(unnoticed(build_graph(all[which], shared), changed) == "");
    }
  }
  MESSAGE(changed << " changes");
  CHECK(changed > 350);
}

TEST_CASE("adapters, DeepSpeed's linear, autocast and many tokens make what the catalogue says") {
  std::size_t compared = 0;
  for (const ModelSpec& model : models()) {
    if (model.family == "mistral") continue;
    for (const bool adapted : {false, true}) {
      Lora lora;
      lora.targets = {"all-linear"};
      lora.dropout = 0.1;
      const ModelSpec used = adapted ? with_adapters(model, lora, {}) : model;
      for (const int form : {0, 1, 2, 3}) {
        GraphOptions options;
        options.micro_batch = 2;
        options.seq = form == 3 ? 1600 : 24;  // So many indices are sorted before they are summed.
        options.stage3_linear = form == 1;
        options.inputs_require_grad = adapted;
        if (form == 2) {
          options.dtype = DType::Float32;
          options.autocast = DType::BFloat16;
          options.outputs_to_fp32 = true;
        }
        INFO(model.name << ", adapted " << adapted << ", form " << form);
        CHECK(faults_of(used, options, compared) == std::vector<std::string>{});
      }
    }
  }
  CHECK(compared > 10'000);
}

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

TEST_CASE("heads that flash pads, and operands that lie head by head") {
  const ModelSpec odd[] = {
      tiny("gpt2", R"("n_embd": 40, "n_layer": 2, "n_head": 4, "vocab_size": 97, "n_positions": 64)"),
      tiny("llama", R"("hidden_size": 40, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 97)"),
      tiny("llama", R"("hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 97)")};
  std::size_t compared = 0;
  for (const ModelSpec& model : odd) {
    for (const Version transformers : {kWitnessTransformers, Version{4, 53, 3}}) {
      if (transformers < Version{5, 0, 0} && model.family == "gpt2") continue;
      GraphOptions options;
      options.micro_batch = 2;
      options.seq = 24;
      options.transformers = transformers;
      INFO(model.name << ", heads of " << model.dims.head_dim << ", transformers " << transformers.text());
      CHECK(faults_of(model, options, compared) == std::vector<std::string>{});
      const Graph graph = build_graph(model, options);
      for (const Node& node : graph.nodes) {
        if (node.op != Op::Attention) continue;
        CHECK(node.padding == (model.dims.head_dim == 10 ? 6 : 0));
        CHECK(node.by_head == (model.dims.head_dim == 10 || transformers < Version{5, 0, 0}));
      }
    }
  }
  CHECK(compared > 1'000);
}
