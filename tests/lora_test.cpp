// LoRA adapters: the words of --lora, and what peft makes of a model. Memory itself is compared with real runs in
// memory_witness_test.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/format.h"
#include "io/text.h"
#include "model/families.h"
#include "model/lora.h"

using namespace dsplan;

namespace {

ModelSpec tiny(const char* more = "") {
  const std::string text =
      std::string(R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 512)") +
      more + "}";
  return build_model(parse_json("tiny.json", text), "tiny");
}

Lora lora(const std::string& text) { return parse_lora({text, Place{"--lora", 0, 0, {}}}); }

ModelSpec adapted(const ModelSpec& model, const std::string& text) {
  return with_adapters(model, lora(text), Place{"--lora", 0, 0, {}});
}

template <class Run>
std::string refusal(Run&& run) {
  try {
    run();
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "accepted";
}

const Parameter* find(const ModelSpec& model, const std::string& name) {
  const auto at = std::find_if(model.parameters.begin(), model.parameters.end(),
                               [&](const Parameter& p) { return p.name == name; });
  return at == model.parameters.end() ? nullptr : &*at;
}

}  // namespace

TEST_CASE("lora: the words of the option") {
  const Lora all = lora("r=16,targets=q_proj+v_proj,dtype=bf16,dropout=0.05,alpha=32");
  CHECK(all.r == 16);
  CHECK(all.targets == std::vector<std::string>{"q_proj", "v_proj"});
  CHECK(all.dtype == DType::BFloat16);
  CHECK(all.dropout == doctest::Approx(0.05));
  CHECK(lora("r=1,targets=q_proj").dtype == DType::Float32);  // peft's autocast_adapter_dtype.
  CHECK(lora("r=1,targets=q_proj,dtype=model").dtype == std::nullopt);
  struct Row {
    const char* text;
    const char* said;
  };
  const Row rows[] = {
      {"targets=q_proj", "LoRA: r is missing"},
      {"r=0,targets=q_proj", "r must be a number from 1 on"},
      {"r=8x,targets=q_proj", "r must be a number from 1 on"},
      {"r=8,targets=", "targets names no module"},
      {"r=8,targets=q_proj,dropout=1", "dropout must lie in [0, 1)"},
      {"r=8,targets=q_proj,dtype=int8", "dtype \"int8\" is none of"},
      {"r=8,targets=q_proj,alpha=much", "alpha is a number"},
      {"r=8,targets=q_proj,rank=3", "\"rank\" is none of r, targets, parameters, dtype, dropout, alpha, rslora, bias"},
      {"r=8,rslora=yes", "rslora is true or false, not \"yes\""},
      {"r=8,bias=some", "bias \"some\" is none of none, all, lora_only"},
      {"r=8,save=", "save names no module"},
      {"r=8,save_dtype=fp32", "save_dtype without save"},
      {"r=8,save=lm_head,save_dtype=int8", "save_dtype \"int8\" is none of"},
      {"8", "\"8\" is not KEY=VALUE"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(refusal([&] { (void)lora(row.text); }).find(row.said) != std::string::npos);
  }
}

TEST_CASE("lora: names, shapes and what is trained are peft's") {
  const ModelSpec base = tiny();
  const ModelSpec model = adapted(base, "r=8,targets=q_proj+v_proj");
  const std::string q = "base_model.model.model.layers.1.self_attn.q_proj";
  const Parameter* weight = find(model, q + ".base_layer.weight");
  REQUIRE(weight != nullptr);
  CHECK(!weight->trainable);
  const Parameter* a = find(model, q + ".lora_A.default.weight");
  const Parameter* b = find(model, q + ".lora_B.default.weight");
  REQUIRE(a != nullptr);
  REQUIRE(b != nullptr);
  CHECK(a->shape == Shape{8, 64});
  CHECK(b->shape == Shape{64, 8});
  CHECK(find(model, "base_model.model.model.layers.0.self_attn.v_proj.lora_B.default.weight")->shape == Shape{32, 8});
  CHECK(a->dtype == DType::Float32);
  CHECK(b < find(model, "base_model.model.model.layers.1.self_attn.k_proj.weight"));  // Registration order.
  CHECK(a == weight + 1);
  std::int64_t trained = 0;
  for (const Parameter& p : model.parameters) trained += p.trainable ? p.shape.elements().value() : 0;
  CHECK(trained == 2 * (8 * (64 + 64) + 8 * (64 + 32)));
  CHECK(total_elements(model) == total_elements(base) + Elements(trained));
  CHECK(find(model, "base_model.model.lm_head.weight") != nullptr);
}

namespace {

ModelSpec tiny_mixture(const std::string& family) {
  const std::string experts = family == "qwen3_moe" ? R"("moe_intermediate_size": 48, "num_experts": 8, "head_dim": 16)"
                              : family == "gpt_oss" ? R"("num_local_experts": 8, "head_dim": 16)"
                                                    : R"("num_local_experts": 8)";
  const std::string text = formatted(
      R"({{"model_type": "{}", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 512, "num_experts_per_tok": 2, "max_position_embeddings": 512, {}}})",
      family, experts);
  return build_model(parse_json("mixture.json", text), "mixture");
}

std::size_t trained_in(const ModelSpec& model) {
  return static_cast<std::size_t>(std::count_if(model.parameters.begin(), model.parameters.end(),
                                                [](const Parameter& one) { return one.trainable; }));
}

}  // namespace

TEST_CASE("lora: experts and routers are found by the names that they had in transformers 4") {
  const ModelSpec model = adapted(tiny_mixture("qwen3_moe"), "r=4,targets=all-linear");
  const std::string mlp = "base_model.model.model.layers.1.mlp.";
  // As peft 0.21.2 nests them, the last parameter's wrapper outermost; two halves have twice the rank.
  REQUIRE(find(model, mlp + "experts.base_layer.base_layer.gate_up_proj") != nullptr);
  CHECK(!find(model, mlp + "experts.base_layer.base_layer.gate_up_proj")->trainable);
  CHECK(find(model, mlp + "experts.base_layer.lora_A.default.weight")->shape == Shape{8 * 8, 64});
  CHECK(find(model, mlp + "experts.base_layer.lora_B.default.weight")->shape == Shape{96, 8 * 8});
  CHECK(find(model, mlp + "experts.lora_A.default.weight")->shape == Shape{8 * 4, 48});
  CHECK(find(model, mlp + "experts.lora_B.default.weight")->shape == Shape{64, 8 * 4});
  CHECK(find(model, mlp + "gate.lora_A.default.weight")->shape == Shape{4, 64});
  CHECK(find(model, mlp + "gate.lora_B.default.weight")->shape == Shape{8, 4});
  CHECK(trained_in(model) == 2 * 2 * (4 + 3));
  // Without the router.
  CHECK(trained_in(adapted(tiny_mixture("qwen3_moe"), "r=4,targets=q_proj+gate_proj+up_proj+down_proj")) == 2 * 2 * 3);
  // mixtral's old names are others; those of other mixtures' experts match nothing there.
  CHECK(trained_in(adapted(tiny_mixture("mixtral"), "r=4,targets=q_proj+w1+w2+w3")) == 2 * 2 * 3);
  CHECK(trained_in(adapted(tiny_mixture("mixtral"), "r=4,targets=q_proj+gate_proj+up_proj+down_proj")) == 2 * 2);
  // gpt_oss is not among the families that peft converts.
  CHECK(trained_in(adapted(tiny_mixture("gpt_oss"), "r=4,targets=all-linear")) == 2 * 2 * 4);
}

TEST_CASE("lora: parameters by their own names, as the experts' class has them") {
  const ModelSpec model =
      adapted(tiny_mixture("gpt_oss"), "r=4,targets=q_proj,parameters=mlp.experts.down_proj+mlp.experts.gate_up_proj");
  const std::string experts = "base_model.model.model.layers.0.mlp.experts.";
  // [experts, in, out].
  CHECK(find(model, experts + "base_layer.lora_A.default.weight")->shape == Shape{8 * 4, 64});
  CHECK(find(model, experts + "base_layer.lora_B.default.weight")->shape == Shape{352, 8 * 4});
  CHECK(find(model, experts + "lora_A.default.weight")->shape == Shape{8 * 4, 176});
  CHECK(find(model, experts + "lora_B.default.weight")->shape == Shape{64, 8 * 4});
}

TEST_CASE("lora: what peft does not adapt of a mixture is refused by name") {
  struct Row {
    const char* family;
    const char* words;
    const char* said;
  };
  const Row rows[] = {
      {"qwen3_moe", "r=4,targets=q_proj+gate_proj", "LoRA on \"gate_proj\" alone, which peft refuses"},
      {"qwen3_moe", "r=4,targets=all-linear,dropout=0.05", "LoRA with dropout on the parameters of"},
      {"qwen3_moe", "r=4,targets=all-linear,dora=true", "LoRA with DoRA on the parameters of"},
      {"qwen3_moe", "r=4,targets=q_proj,parameters=experts.w1", "LoRA parameter \"experts.w1\" matches none of"},
      {"qwen3_moe", "r=4,targets=q_proj,parameters=k_proj.weight", "k_proj.weight is not modelled yet"},
      {"phimoe", "r=4,targets=all-linear", "a PhimoeTopKRouter, to whose results peft cannot add"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.words);
    const ModelSpec base = tiny_mixture(row.family);
    CHECK(refusal([&] { (void)adapted(base, row.words); }).find(row.said) != std::string::npos);
  }
}

TEST_CASE("lora: all-linear leaves the head alone; ties follow their parameter") {
  const ModelSpec model = adapted(tiny(R"(, "tie_word_embeddings": true)"), "r=4,targets=all-linear");
  const auto adapters =
      std::count_if(model.parameters.begin(), model.parameters.end(), [](const Parameter& p) { return p.trainable; });
  CHECK(adapters == 2 * 7 * 2);
  const Parameter* head = find(model, "base_model.model.lm_head.weight");
  REQUIRE(head != nullptr);
  REQUIRE(head->tied_to != kNone);
  CHECK(model.parameter_at(head->tied_to).name == "base_model.model.model.embed_tokens.weight");
}

TEST_CASE("lora: without targets it is peft's own of the family, and every linear module where peft knows none") {
  CHECK(total_elements(adapted(tiny(), "r=8")) == total_elements(adapted(tiny(), "r=8,targets=q_proj+v_proj")));
  ModelSpec other = tiny();
  other.family = "phi3";
  CHECK(total_elements(adapted(other, "r=8")) == total_elements(adapted(tiny(), "r=8,targets=all-linear")));
  other.family = "mamba2";
  CHECK(refusal([&] {
          (void)adapted(other, "r=8");
        }).find("LoRA without targets: peft 0.21 knows none of its own for mamba2; name them, as targets=in_proj") !=
        std::string::npos);
}

TEST_CASE("lora: scales, biases, magnitudes") {
  CHECK(adapted(tiny(), "r=16,alpha=32").dims.adapter_scale == doctest::Approx(2));
  CHECK(adapted(tiny(), "r=16,alpha=32,rslora=true").dims.adapter_scale == doctest::Approx(8));
  const auto trained = [](const ModelSpec& model) {
    return std::count_if(model.parameters.begin(), model.parameters.end(),
                         [](const Parameter& p) { return p.trainable; });
  };
  const ModelSpec biased = tiny(R"(, "attention_bias": true)");
  CHECK(trained(adapted(biased, "r=8,targets=q_proj")) == 4);
  CHECK(trained(adapted(biased, "r=8,targets=q_proj,bias=lora_only")) == 4 + 2);
  CHECK(trained(adapted(biased, "r=8,targets=q_proj,bias=all")) == 4 + 8);
  const ModelSpec dora = adapted(tiny(), "r=8,targets=v_proj,dora=true");
  const Parameter* magnitude =
      find(dora, "base_model.model.model.layers.1.self_attn.v_proj.lora_magnitude_vector.default.weight");
  REQUIRE(magnitude != nullptr);
  CHECK(magnitude->shape == Shape{32});
  CHECK(magnitude->dtype == DType::Float32);
}

TEST_CASE("lora: modules that are trained whole stand beside what they were copied from") {
  const ModelSpec model = adapted(tiny(), "r=8,targets=q_proj,save=lm_head+model.norm,save_dtype=bf16");
  const Parameter* original = find(model, "base_model.model.lm_head.original_module.weight");
  REQUIRE(original != nullptr);
  CHECK(!original->trainable);
  CHECK(!original->dtype);
  const Parameter* copy = original + 1;
  CHECK(copy->name == "base_model.model.lm_head.modules_to_save.default.weight");
  CHECK(copy->trainable);
  CHECK(copy->dtype == DType::BFloat16);
  CHECK(find(model, "base_model.model.model.norm.modules_to_save.default.weight") != nullptr);
  const auto refuses = [](const char* text, const char* said, const char* more = "") {
    const std::string reason = refusal([&] { (void)adapted(tiny(more), text); });
    CHECK_MESSAGE(reason.find(said) != std::string::npos, reason);
  };
  refuses("r=8,targets=q_proj,save=wte", "LoRA save \"wte\" matches no module of tiny");
  refuses("r=8,targets=q_proj,save=q_proj", "it has adapters already");
  refuses("r=8,targets=q_proj,save=mlp", "it is a LlamaMLP");
  refuses("r=8,targets=q_proj,save=lm_head", "its weight is tied", R"(, "tie_word_embeddings": true)");
}

TEST_CASE("lora: targets that are no linear module, or none at all") {
  const ModelSpec model = tiny();
  CHECK(refusal([&] {
          (void)adapted(model, "r=8,targets=c_attn");
        }).find("--lora: error: LoRA target \"c_attn\" matches no module of tiny; a target is the end of") !=
        std::string::npos);
  CHECK(refusal([&] {
          (void)adapted(model, "r=8,targets=embed_tokens");
        }).find("LoRA on model.embed_tokens, a Embedding, is not modelled yet") != std::string::npos);
  CHECK(refusal([&] { (void)adapted(model, "r=8,targets=proj"); }).find("matches no module") != std::string::npos);
  // As peft: one of the names is enough.
  CHECK(adapted(model, "r=8,targets=fc_in+q_proj").parameters.size() ==
        adapted(model, "r=8,targets=q_proj").parameters.size());
}
