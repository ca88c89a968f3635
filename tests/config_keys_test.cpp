// Every key of a family's configuration class is honoured, refused or inert: what builders ask for and the rows of
// model/config/config_keys.cpp, against the fields that transformers' classes have (tests/witnesses/config_keys.json,
// by tools/oracles/config_keys.py).
#include <doctest/doctest.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "core/error.h"
#include "core/format.h"
#include "io/text.h"
#include "model/config/config_keys.h"
#include "model/config_remarks.h"
#include "model/families.h"
#include "model/families/family.h"
#include "model/parts.h"
#include "paths.h"
#include "run_binary.h"

using namespace dsplan;
namespace fs = std::filesystem;

namespace {

const fs::path kWitnesses = fs::path(test_paths::source_dir()) / "tests" / "witnesses";

Document document(const fs::path& path) { return parse_json(path.string(), read_file(path.string())); }

// The small configs of a family, one for each branch of its code.
std::vector<Document> configs_of(std::string_view family) {
  std::vector<Document> found;
  for (const auto& entry : fs::directory_iterator(kWitnesses / "parameters")) {
    if (entry.path().extension() != ".json") continue;
    Document one = document(entry.path());
    if (const Value* type = one.root.find("model_type"); type != nullptr && type->string == family) {
      found.push_back(std::move(one));
    }
  }
  REQUIRE_MESSAGE(!found.empty(), family);
  return found;
}

const Family& family_named(std::string_view name) {
  const auto at = std::ranges::find(families(), name, &Family::model_type);
  REQUIRE_MESSAGE(at != families().end(), name);
  return *at;
}

std::set<std::string> asked_with(const Family& family, const Document& config) {
  ConfigReader reader(config);
  (void)reader.dtype();
  (void)family.build(reader);
  return {reader.object.known().begin(), reader.object.known().end()};
}

// By some config of the family.
std::set<std::string> asked_by(const Family& family) {
  std::set<std::string> asked;
  for (const Document& config : configs_of(family.model_type)) asked.merge(asked_with(family, config));
  return asked;
}

// Whatever the config says: a key that is asked for under a condition may need a row besides.
bool always_asks(const Family& family, const std::string& key) {
  const std::vector<Document> configs = configs_of(family.model_type);
  return std::ranges::all_of(configs, [&](const Document& one) { return asked_with(family, one).contains(key); });
}

bool belongs(const ConfigKey& row, std::string_view family) {
  return formatted(" {} ", row.families).find(formatted(" {} ", family)) != std::string::npos;
}

// The config with one key more, or another value of it.
Document with(const Document& config, std::string_view key, std::string_view json) {
  std::string text = "{";
  for (const Member& member : config.root.members) {
    if (member.key == key) continue;
    const std::size_t next =
        &member == &config.root.members.back() ? config.text.rfind('}') : (&member + 1)->key_offset;
    std::string value = config.text.substr(member.value.offset, next - member.value.offset);
    while (!value.empty() && (value.back() == ',' || value.back() == ' ' || value.back() == '\n')) value.pop_back();
    text += formatted("\"{}\": {},\n", member.key, value);
  }
  text += formatted("\"{}\": {}}}", key, json);
  return parse_json("config.json", text);
}

// What is said against it: faults, and gaps.
std::string refusal_of(const Document& config) {
  try {
    ConfigRemarks remarks;
    (void)build_model(config, "m", remarks);
    std::string text;
    for (const ConfigRemarks::Key& gap : remarks.gaps) {
      text += formatted("\"{}\": {} is not modelled yet\n", gap.key, gap.message);
    }
    for (const ConfigRemarks::Key& chance : remarks.chances)
      text += formatted("\"{}\" {}\n", chance.key, chance.message);
    return text;
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
}

// A value that no row calls usual.
std::string_view unusual(const ConfigKey& row) {
  if (row.usual.find("true") != std::string_view::npos) return "false";
  if (row.usual.find("false") != std::string_view::npos) return "true";
  if (row.usual.find('0') != std::string_view::npos) return "0.5";
  if (row.usual == "1") return "2";
  if (row.usual == "full_attention") return R"(["sliding_attention"])";
  if (row.usual.find("{}") != std::string_view::npos) return R"({"0": 1})";
  return R"("another")";
}

// What the file chooses rather than refuses: below, and packed_weights_test.cpp.
bool has_a_test_of_its_own(std::string_view key) {
  return key == "attn_implementation" || key == "_attn_implementation" || key == "quantization_config";
}

}  // namespace

TEST_CASE("config keys: each field of a configuration class is asked for or has a row") {
  const Document witness = document(kWitnesses / "config_keys.json");
  const Value& known = *witness.root.find("families");
  for (const Family& family : families()) {
    CAPTURE(family.model_type);
    const Value* its = known.find(family.model_type);
    if (its == nullptr) {
      FAIL_CHECK("tools/oracles/config_keys.py has not been asked about this family");
      continue;
    }
    const std::set<std::string> asked = asked_by(family);
    std::vector<std::string> missing;
    for (const Member& field : its->find("fields")->members) {
      if (!asked.contains(field.key) && config_key(family.model_type, field.key) == nullptr) {
        missing.push_back(field.key);
      }
    }
    for (const Member& name : its->find("other_names")->members) {
      if (!asked.contains(name.key) && config_key(family.model_type, name.key) == nullptr) missing.push_back(name.key);
    }
    CHECK_MESSAGE(missing.empty(), formatted("{}: ask for them in the builder, or give them a row: {}",
                                             family.model_type, joined(missing, ", ")));
  }
}

TEST_CASE("config keys: rows name families that are there, and what no builder asks for") {
  for (const ConfigKey& row : config_keys()) {
    CAPTURE(row.key);
    CHECK(!row.reason.empty());
    CHECK((row.effect == KeyEffect::Inert) == row.usual.empty());
    std::string_view rest = row.families;
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      const Family& family = family_named(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
      CHECK_MESSAGE(!always_asks(family, std::string(row.key)),
                    formatted("{} asks for {}: its row says nothing any more", family.model_type, row.key));
    }
  }
}

TEST_CASE("config keys: the class's own default is usual") {
  const Document witness = document(kWitnesses / "config_keys.json");
  for (const Family& family : families()) {
    const Document config = configs_of(family.model_type).front();
    const Value* its = witness.root.find("families")->find(family.model_type);
    if (its == nullptr) continue;  // Said above.
    for (const Member& field : its->find("fields")->members) {
      const ConfigKey* row = config_key(family.model_type, field.key);
      const Value& value = field.value;
      if (row == nullptr || row->effect == KeyEffect::Inert || value.is(Value::Kind::Array)) continue;
      const std::string json = value.is(Value::Kind::Bool)     ? (value.boolean ? "true" : "false")
                               : value.is(Value::Kind::String) ? formatted("\"{}\"", value.string)
                               : value.is(Value::Kind::Null)   ? "null"
                                                               : formatted("{}", value.real);
      CAPTURE(family.model_type);
      CAPTURE(field.key);
      CHECK(refusal_of(with(config, field.key, json)).empty());
    }
  }
}

TEST_CASE("config keys: another value is refused by name, where it stands") {
  std::size_t refused = 0;
  for (const ConfigKey& row : config_keys()) {
    if (row.effect == KeyEffect::Inert) continue;
    const bool both = row.usual == "true|false";  // Without effect on the states; graphs will have to ask.
    for (const Family& family : families()) {
      if (!row.families.empty() && !belongs(row, family.model_type)) continue;
      if (asked_by(family).contains(std::string(row.key)) || both) continue;
      if (has_a_test_of_its_own(row.key)) continue;
      const std::string said = refusal_of(with(configs_of(family.model_type).front(), row.key, unusual(row)));
      CAPTURE(family.model_type);
      CAPTURE(row.key);
      const bool wanted = row.effect == KeyEffect::Refused || family.has_graph;
      CHECK((said.find(row.key) != std::string::npos) == wanted);
      const bool told = row.effect == KeyEffect::Chance;  // And predicted.
      if (wanted) CHECK((said.find("not modelled yet") == std::string::npos) == told);
      refused += wanted ? 1 : 0;
    }
  }
  CHECK(refused > 100);
}

TEST_CASE("config keys: the file's attention is read as transformers reads it, but of a part's") {
  const Document gemma = document(kWitnesses / "parameters" / "gemma2.json");
  const auto chosen = [&](const Document& config) {
    ConfigRemarks remarks;
    (void)build_model(config, "m", remarks);
    return remarks.attention ? remarks.attention->message : "none";
  };
  CHECK(chosen(gemma) == "none");
  const Document one = with(gemma, "attn_implementation", "\"eager\"");
  CHECK(chosen(one) == "eager");
  CHECK(chosen(with(one, "_attn_implementation", "\"sdpa\"")) == "sdpa");
  CHECK(chosen(with(one, "_attn_implementation", "null")) == "eager");
  CHECK(refusal_of(with(gemma, "attn_implementation", "7")).find("attn_implementation") != std::string::npos);
  const Document pictures = document(kWitnesses / "parameters" / "llava.json");
  std::string inside = pictures.text;
  inside.insert(inside.find('{', inside.find("\"text_config\"")) + 1, "\"_attn_implementation\": \"eager\",");
  CHECK(refusal_of(parse_json("config.json", inside)).find("\"_attn_implementation\"") != std::string::npos);
}

TEST_CASE("config keys: LongRoPE's tables") {
  Document phi = document(kWitnesses / "parameters" / "phi3.json");
  const auto rows_of = [](const Document& config) {
    const RotaryParts rotary = build_model(config, "m").parts->rotary;
    CHECK(rotary.scaling == RotaryScaling::LongRope);
    return rotary.short_rows;
  };
  const char* both = R"("short_factor": [1, 1.5], "long_factor": [2, 3])";
  for (const char* type : {"longrope", "su", "yarn"}) {
    CAPTURE(type);
    phi = with(phi, "rope_scaling", formatted(R"({{"type": "{}", {}}})", type, both));
    CHECK(rows_of(with(phi, "original_max_position_embeddings", "77")) == 77);
  }
  phi = with(phi, "rope_scaling",
             formatted(R"({{"type": "longrope", "original_max_position_embeddings": 5, {}}})", both));
  CHECK(rows_of(with(phi, "original_max_position_embeddings", "77")) == 77);  // The class's own goes before.
  const auto refused = [&](const char* rope) { return refusal_of(with(phi, "rope_scaling", rope)); };
  CHECK(refused(R"({"type": "longrope", "short_factor": [1]})").find("\"long_factor\" of LongRoPE must be") !=
        std::string::npos);
  CHECK(refused(R"({"type": "longrope", "short_factor": [1], "long_factor": [1, 2]})").find("lists 2 numbers and") !=
        std::string::npos);
  CHECK(refused(R"({"type": "longrope", "short_factor": ["a"], "long_factor": [1]})").find("not of a string") !=
        std::string::npos);
}

TEST_CASE("config keys: RoPE that looks at each batch, other classes, and what nobody knows") {
  const Document llama = document(kWitnesses / "parameters" / "llama-gqa.json");
  CHECK(refusal_of(with(llama, "rope_scaling", R"({"rope_type": "linear", "factor": 2.0})")).empty());
  CHECK(refusal_of(with(llama, "rope_scaling", R"({"type": "dynamic", "factor": 2.0})")).find("dynamic RoPE") !=
        std::string::npos);
  CHECK(refusal_of(with(llama, "rope_parameters", R"({"rope_type": "longrope"})")).find("longrope RoPE") !=
        std::string::npos);
  CHECK(refusal_of(with(llama, "rope_scaling", R"({"rope_type": "lama3"})")).find("llama3") != std::string::npos);
  for (const char* holder : {"rope_scaling", "rope_parameters"}) {
    INFO(holder);
    CHECK(refusal_of(with(llama, holder, "null")).empty());
    CHECK(refusal_of(with(llama, holder, R"("linear")")).find("must be an object or null, not a string") !=
          std::string::npos);
    CHECK(refusal_of(with(llama, holder, R"({"rope_type": 2})")).find("\"rope_type\" must be a string") !=
          std::string::npos);
  }
  const std::string head = refusal_of(with(llama, "architectures", R"(["LlamaForQuestionAnswering"])"));
  CHECK(head.find("\"LlamaForQuestionAnswering\" is not modelled yet; of this family LlamaForCausalLM is") !=
        std::string::npos);
  CHECK(refusal_of(with(llama, "quantization_config", R"({"quant_method": "gptq"})")).find("quantized") !=
        std::string::npos);
}

TEST_CASE("config keys: a key that nobody knows is refused, unless it switches nothing on") {
  const Document llama = document(kWitnesses / "parameters" / "llama-gqa.json");
  const std::string typo = refusal_of(with(llama, "num_key_value_head", "1"));
  CHECK(typo.find("\"num_key_value_head\" is no key that the configuration class of llama knows") != std::string::npos);
  CHECK(typo.find("did you mean \"num_key_value_heads\"?") != std::string::npos);
  for (const char* on : {"true", "1", "0.5", R"("chunked")", "[1]", R"({"a": 1})"}) {
    CAPTURE(on);
    CHECK(refusal_of(with(llama, "attention_chunk_mode", on)).find("attention_chunk_mode") != std::string::npos);
  }
  for (const char* off : {"null", "false", "0", "0.0", R"("")", "[]", "{}"}) {
    CAPTURE(off);
    ConfigRemarks remarks;
    (void)build_model(with(llama, "num_key_value_head", off), "m", remarks);
    REQUIRE(remarks.unknown.size() == 1);
    CHECK(remarks.unknown.front().key == "num_key_value_head");
    CHECK(remarks.unknown.front().message == "num_key_value_heads");
  }
  const Document bert = document(kWitnesses / "parameters" / "bert.json");
  CHECK(refusal_of(with(bert, "directionality", R"("bidi")")).empty());
  CHECK(refusal_of(with(llama, "_attn_implementation_autoset", "true")).empty());
  const Document pictures = document(kWitnesses / "parameters" / "llava.json");
  std::string inside = pictures.text;
  inside.insert(inside.find('{', inside.find("\"text_config\"")) + 1, "\"chunk_mode\": 7,");
  CHECK(refusal_of(parse_json("config.json", inside)).find("\"chunk_mode\" is no key") != std::string::npos);
}

TEST_CASE("config keys: no bundled model has a key that nobody knows") {
  for (const auto& entry : fs::directory_iterator(fs::path(test_paths::source_dir()) / "models")) {
    if (entry.path().extension() != ".json") continue;
    ConfigRemarks remarks;
    (void)build_model(document(entry.path()), "m", remarks);
    for (const ConfigRemarks::Key& key : remarks.unknown) {
      FAIL_CHECK(formatted("{}: {}", entry.path().filename().string(), key.key));
    }
  }
}

TEST_CASE("config keys: the command line refuses what no graph models, and with --strict what nobody knows") {
  const test::Folder folder;
  const std::string text = read_file((kWitnesses / "parameters" / "llama-gqa.json").string());
  const auto written = [&](const std::string& key, const std::string& json) {
    const std::string path = folder / "config.json";
    test::spill(path, "{\"" + key + "\": " + json + "," + text.substr(text.find('{') + 1));
    return path;
  };
  const test::Ran dynamic =
      test::run_binary(folder, {"simulate", written("rope_parameters", R"({"rope_type": "dynamic"})")});
  CHECK(dynamic.code == 2);
  CHECK(dynamic.err.find("\"rope_type\": not modelled yet: dynamic RoPE") != std::string::npos);
  const test::Ran typo = test::run_binary(folder, {"simulate", written("sliding_windw", "4")});
  CHECK(typo.code == 2);
  CHECK(typo.err.find("\"sliding_windw\" is no key that the configuration class of llama knows") != std::string::npos);
  const std::string off = written("sliding_windw", "null");
  CHECK(test::run_binary(folder, {"simulate", off}).err.find("\"sliding_windw\" is no key") != std::string::npos);
  const test::Ran strict = test::run_binary(folder, {"simulate", off, "--strict"});
  CHECK(strict.code == 2);
  CHECK(strict.err.find("\"sliding_windw\" is no key that the model's configuration class knows") != std::string::npos);
}

// A bundled config.json with more fields in front of its own.
Document with_fields(const std::string& name, std::string_view fields) {
  const fs::path path = fs::path(test_paths::source_dir()) / "models" / (name + ".json");
  const std::string own = read_file(path.string());
  return parse_json(name + ".json", formatted("{{{},{}", fields, own.substr(own.find('{') + 1)));
}

TEST_CASE("config keys: fields of published files are read, and make no other model") {
  const Document published = document(fs::path(test_paths::source_dir()) / "tests" / "data" / "published_keys.json");
  std::size_t fields = 0;
  for (const Member& model : published.root.find("models")->members) {
    CAPTURE(model.key);
    const Value& more = model.value;
    fields += more.members.size();
    const std::size_t begin = published.text.find('{', more.offset) + 1;
    // Up to the brace that ends the line of a model.
    const std::size_t end = published.text.rfind('}', published.text.find('\n', begin));
    const ModelSpec plain =
        build_model(document(fs::path(test_paths::source_dir()) / "models" / (model.key + ".json")), model.key);
    const ModelSpec same = build_model(with_fields(model.key, published.text.substr(begin, end - begin)), model.key);
    REQUIRE(same.parameters.size() == plain.parameters.size());
    for (std::size_t at = 0; at < plain.parameters.size(); ++at) {
      CHECK(same.parameters[at].name == plain.parameters[at].name);
      CHECK(same.parameters[at].shape == plain.parameters[at].shape);
    }
    CHECK(same.modules.size() == plain.modules.size());
  }
  CHECK(fields > 200);
}

TEST_CASE("config keys: experts of hunyuan by layer, positions of llama4 that nobody names, and T5's repeated fields") {
  const auto refusal = [](const std::string& name, const std::string& text) {
    try {
      (void)build_model(parse_json("config.json", text), name);
    } catch (const Refusal& refused) {
      return std::string(refused.what());
    }
    return std::string();
  };
  const std::string hunyuan =
      R"({"model_type": "hunyuan_v1_moe", "num_hidden_layers": 2, "num_experts": 8, "moe_topk": )";
  CHECK(refusal("h", hunyuan + "[2, 2]}").empty());
  CHECK(refusal("h", hunyuan + "[2, 4]}").find("layers with other numbers of experts are not modelled") !=
        std::string::npos);
  CHECK(refusal("h", hunyuan + "[2]}").find("an array of 2 numbers, one per layer") != std::string::npos);
  CHECK(refusal("h", hunyuan + "[2, \"2\"]}").find("an array of 2 numbers, one per layer") != std::string::npos);
  const std::string llama4 = R"({"model_type": "llama4_text", "num_hidden_layers": 4, "no_rope_layers": )";
  CHECK(refusal("l", llama4 + "[]}").empty());
  CHECK(refusal("l", llama4 + "[1, 0]}").find("an array of 4 numbers") != std::string::npos);
  const std::string t5 = R"({"model_type": "t5", "feed_forward_proj": "gated-gelu", )";
  CHECK(refusal("t", t5 + R"("dense_act_fn": "gelu_new", "is_gated_act": true})").empty());
  CHECK(refusal("t", t5 + R"("dense_act_fn": "relu"})").find("where \"feed_forward_proj\" says \"gelu_new\"") !=
        std::string::npos);
  CHECK(refusal("t", t5 + R"("is_gated_act": false})").find("contradicts") != std::string::npos);
  const std::string exaone = R"({"model_type": "exaone4", "num_hidden_layers": 2, "sliding_window_pattern": "LG")";
  CHECK(refusal("e", exaone + R"(, "layer_types": ["sliding_attention", "full_attention"]})").empty());
  CHECK(refusal("e", exaone + "}").find("is a word without \"layer_types\"") != std::string::npos);
}
