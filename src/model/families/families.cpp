#include "model/families.h"

#include <algorithm>

#include "core/error.h"
#include "core/format.h"
#include "model/config/config_keys.h"
#include "model/config/packed_weights.h"
#include "model/config_remarks.h"
#include "model/families/family.h"

namespace dsplan {

namespace {

std::vector<Family> text_decoders() {
  return {
      {"gpt2", build_gpt2, true},
      {"gpt_bigcode", build_gpt_bigcode, true},
      {"gptj", build_gptj, true},
      {"gpt_neo", build_gpt_neo, true},
      {"opt", build_opt, true},
      {"bloom", build_bloom, true},
      {"gpt_neox", build_gpt_neox, true},
      {"falcon", build_falcon, true},
      {"llama", build_llama, true},
      {"mistral", build_mistral, true},
      {"mixtral", build_mixtral, true},
      {"qwen2", build_qwen2, true},
      {"qwen2_moe", build_qwen2_moe, true},
      {"qwen3", build_qwen3, true},
      {"qwen3_moe", build_qwen3_moe, true},
      {"gemma", build_gemma, true},
      {"gemma2", build_gemma2, true},
      {"vaultgemma", build_vaultgemma, true},
      {"gemma3_text", build_gemma3_text, true},
      {"gemma3n_text", build_gemma3n_text, true},
      {"gemma4_text", build_gemma4_text, true},
      {"phi", build_phi, true},
      {"phi3", build_phi3, true},
      {"phimoe", build_phimoe, true, {"PhiMoEForCausalLM"}},  // Its name in the publisher's own code.
      {"deepseek_v2", build_deepseek_v2, true},
      {"deepseek_v3", build_deepseek_v3, true},
      {"glm4_moe_lite", build_glm4_moe_lite, true},
      {"smollm3", build_smollm3, true},
      {"olmo2", build_olmo2, true},
      {"olmo3", build_olmo3, true},
      {"granite", build_granite, true},
      {"granitemoe", build_granitemoe, true},
      {"granitemoeshared", build_granitemoeshared, true},
      {"glm4", build_glm4, true},
      {"glm4_moe", build_glm4_moe, true},
      {"gpt_oss", build_gpt_oss, true},
  };
}

std::vector<Family> later_text_decoders() {
  return {
      {"cohere", build_cohere, true},
      {"cohere2", build_cohere2, true},
      {"starcoder2", build_starcoder2, true},
      {"stablelm", build_stablelm, true},
      {"exaone4", build_exaone4, true},
      {"nemotron", build_nemotron, true},
      {"ernie4_5", build_ernie4_5, true},
      {"hunyuan_v1_dense", build_hunyuan_v1_dense, true},
      {"arcee", build_arcee, true},
      {"jais2", build_jais2, true},
      {"hyperclovax", build_hyperclovax, true},
      {"flex_olmo", build_flex_olmo, true},
      {"apertus", build_apertus, true},
      {"nanochat", build_nanochat, true},
      {"seed_oss", build_seed_oss, true},
      {"olmo", build_olmo, true},
      {"olmoe", build_olmoe, true},
      {"ministral", build_ministral, true},
      {"ministral3", build_ministral3, true},
      {"cwm", build_cwm, true},
      {"glm", build_glm, true},
      {"helium", build_helium, true},
      {"dots1", build_dots1, true},
      {"solar_open", build_solar_open, true},
      {"hunyuan_v1_moe", build_hunyuan_v1_moe, true},
      {"ernie4_5_moe", build_ernie4_5_moe, true},
      {"minicpm3", build_minicpm3, true},
      {"minimax_m2", build_minimax_m2, true},
      {"llama4_text", build_llama4_text, true},
      {"mamba2", build_mamba2, true},
      {"granitemoehybrid", build_granitemoehybrid, true},
      {"nemotron_h", build_nemotron_h, true},
      {"lfm2", build_lfm2, true},
      {"lfm2_moe", build_lfm2_moe, true},
      {"qwen3_next", build_qwen3_next, true},
      {"qwen3_5_text", build_qwen3_5_text, true},
      {"qwen3_5_moe_text", build_qwen3_5_moe_text, true},
  };
}

std::vector<Family> encoders_and_towers() {
  return {
      {"bert", build_bert, true, {"BertForPreTraining"}},  // Of that class the body with its pooler is built.
      {"roberta", build_roberta, true},
      {"xlm-roberta", build_xlm_roberta, true},
      {"camembert", build_camembert, true},
      {"deberta-v2", build_deberta_v2, true},
      {"distilbert", build_distilbert, true},
      {"electra", build_electra, true, {"ElectraForPreTraining"}},  // Likewise.
      {"albert", build_albert, true, {"AlbertForPreTraining"}},     // Likewise.
      {"modernbert", build_modernbert, true},
      {"t5", build_t5, true, {"T5WithLMHeadModel"}},  // Its name in transformers 2.
      {"mt5", build_mt5, true},
      {"umt5", build_umt5, true},
      {"whisper", build_whisper, true},
      {"bart", build_bart, true},
      {"mbart", build_mbart, true},
      {"marian", build_marian, true},
      {"m2m_100", build_m2m_100, true},
      {"pegasus", build_pegasus, true},
      {"vit", build_vit, true},
      {"dinov2", build_dinov2, true},
      {"clip_vision_model", build_clip_vision_model, false},
      {"siglip_vision_model", build_siglip_vision_model, false},
      {"clip_text_model", build_clip_text_model, false},
      {"siglip_text_model", build_siglip_text_model, false},
      {"glm46v", build_glm46v, true},
      {"exaone_moe", build_exaone_moe, true},
      {"youtu", build_youtu, true},
      {"mistral4", build_mistral4, true},
      {"hy_v3", build_hy_v3, true},
      {"granite_swa", build_granite_swa, true},
      {"granitemoe_swa", build_granitemoe_swa, true},
      {"cohere2_moe", build_cohere2_moe, true},
      {"mellum", build_mellum, true},
      {"ernie", build_ernie, true, {"ErnieForPreTraining"}},  // As of bert.
      {"data2vec-text", build_data2vec_text, true},
      {"plbart", build_plbart, true},
      {"blenderbot", build_blenderbot, true},
      {"mllama", build_mllama, true},
      {"clip", build_clip, true},
      {"siglip", build_siglip, true},
      {"llava", build_llava, true},
      {"llava_next", build_llava_next, true},
      {"gemma3", build_gemma3, true},
      {"paligemma", build_paligemma, true},
      {"idefics3", build_idefics3, true},
      {"smolvlm", build_smolvlm, true},
      {"internvl", build_internvl, true},
      {"llama4", build_llama4, true},
      {"mistral3", build_mistral3, true},
      {"gemma4", build_gemma4, true},
      {"glm4v", build_glm4v, true},
      {"glm4v_moe", build_glm4v_moe, true},
      {"qwen2_vl", build_qwen2_vl, true},
      {"qwen2_5_vl", build_qwen2_5_vl, true},
      {"qwen3_vl", build_qwen3_vl, true},
      {"qwen3_vl_moe", build_qwen3_vl_moe, true},
      {"qwen3_5", build_qwen3_5, true},
      {"qwen3_5_moe", build_qwen3_5_moe, true},
  };
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> kTable = [] {
    std::vector<Family> all = text_decoders();
    for (const Family& one : later_text_decoders()) all.push_back(one);
    for (const Family& one : encoders_and_towers()) all.push_back(one);
    return all;
  }();
  return kTable;
}

std::vector<std::string_view> family_names() {
  std::vector<std::string_view> names;
  for (const Family& family : families()) names.push_back(family.model_type);
  return names;
}

namespace {

constexpr const char* kRecord =
    "record it: tools/export_graph.py writes a file that dsplan takes as MODEL (docs/exporting.md)";

// A multimodal config holds the language model's config inside; that part alone is a model of a known family.
void refuse_multimodal(const ConfigReader& config, std::string_view model_type) {
  const Value* text = config.root().find("text_config");
  if (text == nullptr || !text->is(Value::Kind::Object)) return;
  const Value* inner = text->find("model_type");
  const std::string_view part =
      inner != nullptr && inner->is(Value::Kind::String) ? std::string_view(inner->string) : "";
  config.refuse("model_type", formatted("multimodal models are not modelled yet: model_type \"{}\"", model_type),
                part.empty() ? std::string("write its text_config, with a model_type, to a file of its own")
                             : formatted("write its text_config (model_type \"{}\") to a file of its own", part));
}

const Family& family_of(ConfigReader& config) {
  const Value* type = config.root().find("model_type");
  if (type == nullptr) {
    config.refuse("model_type", "\"model_type\" is missing: it names the family",
                  formatted("known families: {}", joined(family_names(), ", ")));
  }
  if (!type->is(Value::Kind::String)) {
    config.refuse("model_type", formatted("\"model_type\" must be a string, not {}", describe(type->kind)));
  }
  // A config of remote code, whose `architectures` names deepseek_v3's class.
  const std::string_view named = type->string == "kimi_k2" ? std::string_view("deepseek_v3") : type->string;
  for (const Family& family : families()) {
    if (family.model_type == named) return family;
  }
  if (config.root().find("auto_map") != nullptr) {
    config.refuse("model_type",
                  formatted("model_type \"{}\" is remote code (\"auto_map\"), which dsplan does not run", type->string),
                  kRecord);
  }
  refuse_multimodal(config, type->string);
  const std::string_view meant = nearest(type->string, family_names());
  config.refuse("model_type", formatted("unknown model family \"{}\"", type->string),
                meant.empty() ? formatted("known families: {}; {}", joined(family_names(), ", "), kRecord)
                              : formatted("did you mean \"{}\"?", meant));
}

// The class's own pad_token_id, where the config has no such key.
std::int64_t usual_padding(std::string_view family) {
  struct Own {
    std::string_view families;
    std::int64_t padding;
  };
  constexpr Own kOwn[] = {{" bert ernie blenderbot distilbert electra albert gemma gemma2 vaultgemma gemma3_text "
                           "gemma3n_text gemma4_text cohere cohere2 "
                           "cohere2_moe "
                           "ernie4_5 "
                           "hunyuan_v1_dense hunyuan_v1_moe lfm2 t5 umt5 pegasus ",
                           0},
                          {" roberta xlm-roberta camembert data2vec-text bart plbart mbart m2m_100 opt olmo olmo2 "
                           "olmo3 olmoe seed_oss nanochat ",
                           1},
                          {" helium apertus ", 3},
                          {" mistral4 ", 11},
                          {" phi3 ", 32000},
                          {" modernbert ", 50283},
                          {" whisper ", 50256},
                          {" marian ", 58100},
                          {" flex_olmo ", 100277},
                          {" smollm3 ", 128004},
                          {" glm glm4 ", 151329}};
  for (const Own& own : kOwn) {
    if (own.families.find(formatted(" {} ", family)) != std::string_view::npos) return own.padding;
  }
  return -1;
}

// -1: none. A negative id counts from the last word.
std::int64_t padding_of(const ConfigReader& config, const ModelSpec& spec) {
  constexpr std::string_view kUnpadded =
      " gpt2 gpt_bigcode gptj gpt_neo bloom gpt_neox falcon mamba2 qwen3_next qwen3_5_text qwen3_5_moe_text ";
  if (kUnpadded.find(formatted(" {} ", spec.family)) != std::string_view::npos) return -1;
  const Value* given = config.root().find("pad_token_id");
  if (given == nullptr) return usual_padding(spec.family);
  if (!given->is(Value::Kind::Integer)) return -1;
  return given->integer < 0 ? std::max<std::int64_t>(given->integer + spec.dims.vocab, -1) : given->integer;
}

std::int64_t first_target_of(const ConfigReader& config, const ModelSpec& spec) {
  const Value* given = config.root().find("decoder_start_token_id");
  if (given != nullptr && given->is(Value::Kind::Integer)) return std::max<std::int64_t>(given->integer, 0);
  if (spec.family == "bart" || spec.family == "m2m_100") return 2;
  if (spec.family == "blenderbot") return 1;
  if (spec.family == "marian") return 58100;
  return spec.family == "whisper" ? 50257 : 0;
}

// PreTrainedConfig.__init__ takes the one, then the other over it (configuration_utils.py).
std::optional<ConfigRemarks::Key> chosen_attention(ConfigReader& config) {
  std::optional<ConfigRemarks::Key> chosen;
  for (const std::string_view key : {"attn_implementation", "_attn_implementation"}) {
    const std::optional<std::string> name = config.maybe_string(key);
    if (name) chosen = {std::string(key), config.find(key)->offset, *name};
  }
  return chosen;
}

}  // namespace

ModelSpec build_model(const Document& config, std::string name, ConfigRemarks& remarks) {
  if (!config.root.is(Value::Kind::Object)) {
    throw Refusal({config.at(config.root.offset,
                             formatted("a model's config must be an object, not {}", describe(config.root.kind)))});
  }
  ConfigReader reader(config);
  const Family& family = family_of(reader);
  const std::optional<DType> stored = reader.dtype();
  check_rotary(reader);
  remarks.attention = chosen_attention(reader);
  remarks.packing = read_packing(reader);
  ModelSpec spec = family.build(reader);
  if (remarks.packing && !remarks.packing->kind.empty()) check_unpacked(reader, spec);
  check_architectures(reader, spec.graph_class, family.other_classes);
  const std::vector<UnknownKey> unknown = judge_other_keys(reader, family.model_type);
  reader.throw_if_any();
  for (const UnknownKey& key : unknown) {
    remarks.unknown.push_back({key.member->key, key.member->key_offset, std::string(key.nearest)});
  }
  for (const ConfigGap& gap : reader.gaps) {
    if (!family.has_graph) break;
    (gap.by_chance ? remarks.chances : remarks.gaps).push_back({gap.key, gap.value->offset, gap.what});
  }
  spec.name = std::move(name);
  spec.family = family.model_type;
  spec.dims.padding = padding_of(reader, spec);
  spec.dims.first_target = first_target_of(reader, spec);
  spec.stored_dtype = stored;
  spec.has_graph = family.has_graph;
  return spec;
}

ModelSpec build_model(const Document& config, std::string name) {
  ConfigRemarks unheard;
  return build_model(config, std::move(name), unheard);
}

}  // namespace dsplan
