// A config.json's "quantization_config": what is trained unpacked, what stays packed, and what is refused.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "core/format.h"
#include "run_binary.h"

using namespace dsplan;
using namespace dsplan::test;

namespace {

std::string config_with(const std::string& packing) {
  return formatted(
      R"({{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
 "num_attention_heads": 4, "vocab_size": 256{}}})",
      packing.empty() ? "" : formatted(",\n \"quantization_config\": {}", packing));
}

Ran simulate(const Folder& folder, const std::string& packing, const std::vector<std::string>& more = {}) {
  spill(folder / "config.json", config_with(packing));
  std::vector<std::string> words{"simulate", folder / "config.json", "--seq", "600", "--hardware", "h100-sxm"};
  words.insert(words.end(), more.begin(), more.end());
  return run_binary(folder, words);
}

constexpr const char* kBits = R"({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4",
 "bnb_4bit_use_double_quant": true, "bnb_4bit_compute_dtype": "bfloat16"%})";

std::string bits(const std::string& more = {}) {
  std::string text = kBits;
  return text.replace(text.find('%'), 1, more);
}

const std::vector<std::string> kAdapters{"--lora", "r=4,targets=all-linear", "--format", "json"};

}  // namespace

TEST_CASE("packed checkpoints: those that transformers trains unpacked alone are predicted so, and it is said") {
  const Folder folder;
  const std::string plain = simulate(folder, "", {"--format", "json"}).out;
  for (const char* method : {"fp8", "mxfp8", "mxfp4", "compressed-tensors"}) {
    CAPTURE(method);
    const Ran ran = simulate(folder, formatted(R"({{"quant_method": "{}", "weight_block_size": [128, 128]}})", method));
    CHECK(ran.code == 0);
    CHECK(ran.err.find(formatted("weights quantized by {}: transformers trains them unpacked alone", method)) !=
          std::string::npos);
    const Ran json = simulate(folder, formatted(R"({{"quant_method": "{}"}})", method), {"--format", "json"});
    const auto peak = [](const std::string& text) {
      const std::size_t at = text.find("\"requested\"");
      return text.substr(at, text.find('}', at) - at);
    };
    CHECK(peak(json.out) == peak(plain));
  }
}

TEST_CASE("packed checkpoints: bitsandbytes' are those of --quantization") {
  const Folder folder;
  const Ran ran = simulate(folder, bits(), kAdapters);
  CHECK(ran.code == 0);
  std::vector<std::string> said{"--quantization", "nf4", "--double-quant", "true", "--quant-compute-dtype", "bf16"};
  said.insert(said.end(), kAdapters.begin(), kAdapters.end());
  const Ran asked = simulate(folder, "", said);
  CHECK(asked.code == 0);
  const auto fingerprint = [](const std::string& text) {
    const std::size_t at = text.find("\"fingerprint\"");
    REQUIRE(at != std::string::npos);
    return text.substr(at, text.find('\n', at) - at);
  };
  CHECK(fingerprint(ran.out) == fingerprint(asked.out));
  CHECK(simulate(folder, bits(R"(, "llm_int8_skip_modules": ["lm_head", "vision_tower"])"), kAdapters).code == 0);
  CHECK(simulate(folder, R"({"load_in_8bit": true, "quant_method": "bitsandbytes"})", kAdapters).code == 0);
}

TEST_CASE("packed checkpoints: what is refused") {
  const Folder folder;
  struct Row {
    std::string packing;
    std::vector<std::string> more;
    const char* said;
  };
  std::vector<std::string> other{"--quantization", "fp4"};
  other.insert(other.end(), kAdapters.begin(), kAdapters.end());
  const Row rows[] = {
      {R"({"quant_method": "gptq", "bits": 4})", {}, "weights quantized by gptq are not modelled yet"},
      {R"({"quant_method": "modelopt"})", {}, "is none that transformers knows"},
      {R"({"bits": 4})", {}, "names no quant_method"},
      {"7", {}, "must be an object"},
      {bits(), {}, "packed weights are not trained: adapters are"},
      {bits(R"(, "llm_int8_skip_modules": ["lm_head", "q_proj"])"), kAdapters,
       "modules that are not packed besides the head are not modelled yet: \"q_proj\""},
      {bits(R"(, "llm_int8_skip_modules": ["vision_tower"])"), kAdapters, "a packed head is not modelled yet"},
      {bits(), other, "another than that of the model's file"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.said);
    const Ran ran = simulate(folder, row.packing, row.more);
    CHECK(ran.code == 2);
    CHECK_MESSAGE(ran.err.find(row.said) != std::string::npos, ran.err);
  }
}
