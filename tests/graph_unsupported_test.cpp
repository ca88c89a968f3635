// What keeps a model from having a schedule: which kernel of attention takes what, and where Liger's loss stands.
#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <string>

#include "io/text.h"
#include "model/families.h"
#include "model/families/encoders/translators.h"
#include "model/graphs/graphs.h"
#include "planner/lower/unsupported.h"

using namespace dsplan;

namespace {

// In the words of each family's configuration class.
std::string sizes_of(std::string_view family) {
  const std::string all = R"("hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 512)";
  const std::string heads = R"(, "num_attention_heads": 4)";
  if (family == "mamba2") return all + R"(, "head_dim": 16)";
  if (family == "t5" || family == "bloom" || family == "gptj" || family == "gpt_neo") return all + heads;
  if (family == "falcon") return all + heads + R"(, "max_position_embeddings": 512)";
  if (translator_of(family) != nullptr) return all + heads + R"(, "max_position_embeddings": 512)";
  if (family == "whisper") return all + heads + R"(, "max_target_positions": 512)";
  return all + heads +
         R"(, "intermediate_size": 176, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16)";
}

ModelSpec model_named(const std::string& family, const std::string& more) {
  const std::string config = R"({"model_type": ")" + family + R"(", )" + sizes_of(family) + more + "}";
  return build_model(parse_json("config.json", config), family);
}

Training training_with(const std::function<void(Training&)>& change) {
  Training training;
  training.seq = 128;
  change(training);
  return training;
}

}  // namespace

TEST_CASE("unsupported: only the memory-efficient kernel takes a window's mask, only flash takes grouped heads") {
  struct Row {
    const char* family;
    const char* config;
    std::function<void(Training&)> change;
    std::optional<std::string> reason;
  };
  const char* const kWindow = R"(, "sliding_window": 128)";
  const char* const kNoWindow = R"(, "sliding_window": 129)";
  const char* const kChunk = R"(, "attention_chunk_size": 128, "no_rope_layers": [1, 0])";
  const char* const kAllChunk = R"(, "attention_chunk_size": 128, "no_rope_layers": [1, 1])";
  const auto flash = [](Training&) {};
  const auto efficient = [](Training& t) { t.attention = Attention::MemoryEfficient; };
  const auto math = [](Training& t) { t.attention = Attention::Math; };
  const Row rows[] = {
      {"mistral", kNoWindow, flash, std::nullopt},
      {"mistral", kWindow, flash, "the flash kernel takes no mask, as a window needs one"},
      {"mistral", kWindow, efficient, std::nullopt},
      {"mistral", kNoWindow, efficient, "the memory-efficient kernel takes no grouped heads"},
      {"mistral", kWindow, math, "math attention with a window's mask"},
      {"mistral", kNoWindow, math, std::nullopt},
      {"mistral", kWindow,
       [](Training& t) {
         t.attention = Attention::MemoryEfficient;
         t.seq_list = {64, 128};
       },
       "lengths on both sides of a sliding window"},
      {"mistral", kWindow,
       [](Training& t) {
         t.attention = Attention::MemoryEfficient;
         t.torch = Version{2, 10, 0};
       },
       "a mask inside sdpa before torch 2.11.0"},
      // falcon's mask is there in any case, and its one key-value head is not repeated.
      {"falcon", "", math, std::nullopt},
      {"falcon", "", efficient, "a fused kernel over one key-value head that is not repeated, in the place of math"},
      {"falcon", R"(, "multi_query": false)", efficient, std::nullopt},
      {"falcon", R"(, "multi_query": false)", flash, "the flash kernel takes no mask, as falcon makes one"},
      {"falcon", R"(, "multi_query": false)", [](Training& t) { t.attention = Attention::Eager; },
       "falcon's own eager attention"},
      {"bloom", "", flash, "BloomForCausalLM has eager attention alone"},
      {"gptj", R"(, "rotary_dim": 8)", flash, "GPTJForCausalLM has eager attention alone"},
      {"gpt_neo", R"(, "attention_types": [[["global", "local"], 1]])", flash,
       "GPTNeoForCausalLM has eager attention alone"},
      {"llama4_text", kChunk, flash, std::nullopt},  // Of the two layers one has no positions, and no chunk.
      {"llama4_text", kAllChunk, flash, "the flash kernel takes no mask, as a window needs one"},
      {"llama4_text", kChunk, math, "math attention with a window's mask"},
      {"llama4_text", "", math, std::nullopt},
      {"llama4_text", "",
       [](Training& t) {
         t.transformers = Version{4, 57, 6};
       },
       "the llama4_text family under transformers 4"},
      {"gemma2", kWindow, flash, std::nullopt},  // Every other layer has no mask.
      {"gemma2", kWindow, efficient, "the memory-efficient kernel takes no grouped heads"},
      {"llama", "", [](Training& t) { t.dtype = DType::Float32; }, "the flash kernel takes no fp32"},
      {"llama", "", efficient, "the memory-efficient kernel takes no grouped heads"},
      {"llama", "",
       [](Training& t) {
         t.attention = Attention::Math;
         t.dtype = DType::Float32;
       },
       std::nullopt},
  };
  for (const Row& row : rows) {
    const ModelSpec model = model_named(row.family, row.config);
    INFO(row.family, row.config, row.reason.value_or("none"));
    CHECK(graph_unsupported(model, training_with(row.change), 1) == row.reason);
  }
}

TEST_CASE("unsupported: encoder-decoders") {
  struct Row {
    const char* family;
    const char* config;
    std::function<void(Training&)> change;
    std::optional<std::string> reason;
  };
  const char* const kTwo = R"(, "decoder_attention_heads": 4)";
  const Row rows[] = {
      // Biases of positions are learned.
      {"t5", "", [](Training& t) { t.attention = Attention::MemoryEfficient; }, std::nullopt},
      {"t5", "", [](Training& t) { t.attention = Attention::Eager; }, std::nullopt},
      {"t5", "", [](Training&) {}, "the flash kernel takes no bias, as t5 adds one"},
      {"t5", "", [](Training& t) { t.attention = Attention::Math; }, std::nullopt},
      {"t5", R"(, "d_kv": 12)", [](Training& t) { t.attention = Attention::MathOrCuDnn; },
       "t5 with heads of no multiple of 8"},
      {"t5", "", [](Training& t) { t.attention = Attention::CuDnn; }, "cuDNN's attention with a bias that is learned"},
      {"t5", "",
       [](Training& t) {
         t.attention = Attention::MemoryEfficient;
         t.dtype = DType::Float16;
       },
       "t5 in fp16, of which transformers keeps a part in fp32, and bounds values"},
      {"t5", "",
       [](Training& t) {
         t.attention = Attention::MemoryEfficient;
         t.checkpoint.groups = {{0, 0, CheckpointKind::DeepSpeed}};
       },
       "DeepSpeed's checkpoints of an encoder-decoder, whose layers take several tensors"},
      {"t5", "",
       [](Training& t) {
         t.attention = Attention::MemoryEfficient;
         t.ddp.find_unused_parameters = true;
       },
       "find_unused_parameters of an encoder-decoder, which copies the encoder's states as well"},
      {"bart", kTwo, [](Training&) {}, std::nullopt},
      {"bart", kTwo, [](Training& t) { t.dtype = DType::Float16; }, "bart in fp16, which bounds values"},
      {"pegasus", R"(, "decoder_attention_heads": 4, "tie_word_embeddings": false)", [](Training&) {},
       "tables that are not tied, of which nothing reads the shared one"},
      {"m2m_100", kTwo, [](Training& t) { t.seq = 512; }, std::nullopt},
      {"m2m_100", kTwo, [](Training& t) { t.seq = 513; },
       "more than 512 tokens a row, for which m2m_100 makes its table of positions anew"},
      {"whisper", R"(, "max_source_positions": 128, "decoder_attention_heads": 4)", [](Training&) {}, std::nullopt},
      {"whisper", R"(, "decoder_attention_heads": 4)", [](Training&) {},
       "--seq 128 of sound that is always 1500 positions"},
      {"whisper", R"(, "max_source_positions": 128, "decoder_attention_heads": 4)",
       [](Training& t) { t.dtype = DType::Float16; }, "whisper in fp16, which bounds values"},
  };
  for (const Row& row : rows) {
    const ModelSpec model = model_named(row.family, row.config);
    INFO(row.family, row.config, row.reason.value_or("none"));
    CHECK(graph_unsupported(model, training_with(row.change), 1) == row.reason);
  }
}

TEST_CASE("unsupported: state-space mixers with other losses, and in chunks of one token") {
  const ModelSpec mamba = model_named("mamba2", R"(, "num_heads": 8)");
  const auto reason = [](const ModelSpec& model, const std::function<void(Training&)>& change) {
    Training training = training_with(change);
    training.attention = Attention::Eager;
    return graph_unsupported(model, training, 1).value_or("none");
  };
  CHECK(reason(mamba, [](Training&) {}) == "none");
  CHECK(reason(mamba, [](Training& t) { t.runtime = Runtime::DeepSpeed; }) == "none");
  CHECK(reason(mamba, [](Training& t) {
          t.runtime = Runtime::DeepSpeed;
          t.zero.stage = 3;
        }) == "none");
  CHECK(reason(mamba, [](Training& t) { t.loss = Loss::Native; }) == "another loss than hf of Mamba2ForCausalLM");
  CHECK(reason(model_named("mamba2", R"(, "num_heads": 8, "chunk_size": 1)"), [](Training&) {}) ==
        "a scan in chunks of one token");
}

TEST_CASE("unsupported: the flash kernel takes no window's mask, and flash-attn's needs none") {
  ModelSpec model = model_named("mistral", R"(, "sliding_window": 8)");
  Training training = training_with([](Training& t) { t.attention = Attention::Flash; });
  training.seq = 32;
  CHECK(graph_unsupported(model, training, 1) == "the flash kernel takes no mask, as a window needs one");
  training.windows_in_kernel = true;
  CHECK(graph_unsupported(model, training, 1) == std::nullopt);
  GraphOptions options;
  options.seq = 32;
  const std::size_t masked = build_graph(model, options).nodes.size();
  options.windows_in_kernel = true;
  const std::size_t told = build_graph(model, options).nodes.size();
  options.seq = 7;  // The window reaches over all tokens.
  CHECK(told == build_graph(model, options).nodes.size());
  CHECK(told < masked);
}

TEST_CASE("unsupported: the memory-efficient kernel takes as many heads of keys as of queries") {
  ModelSpec model = model_named("llama", "");
  model.dims.kv_heads = model.dims.heads;
  const Training training = training_with([](Training& t) { t.attention = Attention::MemoryEfficient; });
  CHECK(graph_unsupported(model, training, 1) == std::nullopt);
}

TEST_CASE("unsupported: Liger's kernels are in the families that were compared, in one release") {
  const ModelSpec llama = model_named("llama", "");
  const auto reason = [](const ModelSpec& model, const std::function<void(Training&)>& change) {
    Training training = training_with(change);
    training.liger_kernels.swiglu = true;
    return graph_unsupported(model, training, 1).value_or("none");
  };
  CHECK(reason(llama, [](Training&) {}) == "none");
  CHECK(reason(llama, [](Training& t) { t.liger = Version{0, 8, 4}; }) == "Liger's kernels before 0.8.5");
  CHECK(reason(llama, [](Training& t) {
          t.transformers = Version{4, 57, 6};
        }) == "Liger's kernels under transformers 4");
  ModelSpec relu = llama;
  relu.dims.activation = "relu";
  CHECK(reason(relu, [](Training&) {}) == "Liger's SwiGLU with another activation than silu");
  ModelSpec gemma = llama;
  gemma.family = "gemma";
  CHECK(reason(gemma, [](Training&) {}) ==
        "Liger's kernels in the gemma family (they are in llama, mistral, qwen2 and qwen3)");
}

TEST_CASE("unsupported: axolotl's kernels are for adapters over weights in 16 bits or 4, in the families compared") {
  ModelSpec llama = model_named("llama", "");
  const auto reason = [](const ModelSpec& model, const std::function<void(Training&)>& change) {
    Training training = training_with(change);
    training.lora_kernels.mlp = true;
    return graph_unsupported(model, training, 1).value_or("none");
  };
  llama.causal = 0;
  CHECK(reason(llama, [](Training&) {}) == "none");
  llama.causal = 1;
  CHECK(reason(llama, [](Training& t) { t.zero.stage = 3; }) == "axolotl's kernels over sharded parameters");
  ModelSpec relu = llama;
  relu.dims.activation = "relu";
  CHECK(reason(relu, [](Training&) {}) == "axolotl's kernel of an MLP with relu; it has silu and gelu");
  ModelSpec other = llama;
  other.family = "phi3";
  CHECK(reason(other, [](Training&) {}) == "axolotl's kernels in the phi3 family, not compared with its own yet");
  CHECK(reason(other, [](Training& t) { t.lora_kernels.o = true; }) ==
        "axolotl's kernels in the phi3 family, where its patch does not find the code that it replaces and axolotl "
        "ends (lora_mlp_kernel: false turns all of them off)");
  other.family = "smolvlm";  // Whose class of attention has capitals where axolotl looks for small letters.
  CHECK(
      reason(other, [](Training& t) { t.lora_kernels.qkv = true; }) ==
      "axolotl's kernels in the smolvlm family, where its patch does not find the class of attention and axolotl ends "
      "(lora_mlp_kernel: false turns all of them off)");
  CHECK(reason(llama, [](Training& t) { t.autocast = DType::Float16; }) ==
        "axolotl's kernels over weights in bf16 under autocast in fp16");
}

TEST_CASE("unsupported: Liger's loss is that of 16-bit weights, in the families that it patches") {
  const ModelSpec llama = model_named("llama", "");
  const auto reason = [](const ModelSpec& model, const std::function<void(Training&)>& change) {
    Training training = training_with(change);
    training.loss = Loss::Liger;
    return graph_unsupported(model, training, 1).value_or("none");
  };
  CHECK(reason(llama, [](Training&) {}) == "none");
  CHECK(reason(llama, [](Training& t) { t.autocast = DType::BFloat16; }) == "none");
  CHECK(reason(llama, [](Training& t) {
          t.dtype = DType::Float32;
          t.attention = Attention::Math;
        }) == "Liger's loss with fp32 weights");
  CHECK(reason(llama, [](Training& t) { t.runtime = Runtime::DeepSpeed; }) == "Liger's loss under DeepSpeed");
  CHECK(reason(llama, [](Training& t) { t.transformers = Version{4, 57, 6}; }) == "Liger's loss under transformers 4");
  ModelSpec gpt2 = llama;
  gpt2.family = "gpt2";
  const auto older = [](Training& t) { t.liger = Version{0, 6, 4}; };
  CHECK(reason(llama, older) == "none");
  ModelSpec gemma2 = llama;
  gemma2.family = "gemma2";
  CHECK(reason(gemma2, [](Training& t) { t.liger = Version{0, 6, 5}; }) == "none");
  CHECK(reason(gemma2, older) ==
        "Liger's loss in the gemma2 and gemma3_text families before 0.6.5, which does not load beside transformers 5");
  ModelSpec llama4 = llama;
  llama4.family = "llama4_text";
  CHECK(reason(llama4, [](Training&) {}) == "Liger's loss in the llama4_text family, not compared with its own yet");
  CHECK(reason(gpt2, [](Training&) {}) == "Liger's loss in the gpt2 family, which it does not patch");
}

TEST_CASE("unsupported: layers that share their weights have no checkpoints, and fully_shard does not know them yet") {
  const char* const kConfig =
      R"({"model_type": "albert", "architectures": ["AlbertForMaskedLM"], "hidden_size": 64, "num_attention_heads": 4})";
  const ModelSpec model = build_model(parse_json("config.json", kConfig), "albert");
  const auto reason = [&](const std::function<void(Training&)>& change) {
    Job job;
    job.training = training_with(change);
    return unsupported(model, job).value_or("none");
  };
  const auto engine = [](int stage) {
    return [stage](Training& t) {
      t.runtime = Runtime::DeepSpeed;
      t.zero.stage = stage;
    };
  };
  CHECK(reason([](Training&) {}) == "none");
  CHECK(reason(engine(2)) == "none");
  CHECK(reason(engine(3)) == "none");
  CHECK(reason([&](Training& t) {
          engine(3)(t);
          t.grad_accum = 2;
        }) == "none");
  const char* const kSharded = "albert's shared layers under fully_shard and FSDP1, not compared with PyTorch yet";
  CHECK(reason([](Training& t) { t.runtime = Runtime::Fsdp2; }) == kSharded);
  CHECK(reason([](Training& t) { t.runtime = Runtime::Fsdp1; }) == kSharded);
  CHECK(reason([](Training& t) { t.checkpoint.groups.emplace_back(); }) ==
        "checkpoints of AlbertForMaskedLM, which transformers refuses (supports_gradient_checkpointing is false)");
}
