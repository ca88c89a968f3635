// The tables of core/dialects against the fields of the projects' own sources (tests/witnesses/dialects/fields.json, by
// tools/oracles/dialect_fields.py), the example files of tests/data/dialects against their readings and against what
// the projects' own parsers make of them (values.json beside the fields), and properties of every table.
#include "core/dialects/dialects.h"

#include <doctest/doctest.h>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/format.h"
#include "dialect_reading.h"
#include "io/dialects/model_name.h"
#include "io/launch_line.h"
#include "io/text.h"
#include "model/families.h"
#include "paths.h"

using namespace dsplan;

namespace {

namespace fs = std::filesystem;
using Treatment = DialectKey::Treatment;
using dialect_reading::completed;

const fs::path kRoot = test_paths::source_dir();
const fs::path kExamples = kRoot / "tests" / "data" / "dialects";

template <class Read>
std::string refusal(Read read) {
  try {
    (void)read();
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "accepted";
}

Said read_yaml(const std::string& text) { return read_training_document(parse_yaml("f.yaml", text)); }
std::string refused(const std::string& text) {
  return refusal([&] { return read_yaml(text); });
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The dialect of each dumped class.
const std::map<std::string, Dialect> kDumped = {
    {"transformers-5", Dialect::TrainingArguments},
    {"transformers-4", Dialect::TrainingArguments},
    {"trl-sft", Dialect::Trl},
    {"trl-dpo", Dialect::Trl},
    {"trl-kto", Dialect::Trl},
    {"trl-reward", Dialect::Trl},
    {"llama-factory", Dialect::LlamaFactory},
    {"llama-factory-v1", Dialect::LlamaFactoryV1},
    {"axolotl", Dialect::Axolotl},
    {"accelerate", Dialect::Accelerate},
    {"torchtitan", Dialect::Torchtitan},
    {"torchtitan-1", Dialect::Torchtitan},
};

// The beginning of a file that is of this dialect, so that a key can stand in it.
std::string opening(Dialect dialect) {
  switch (dialect) {
    case Dialect::TrainingArguments: return "per_device_eval_batch_size: 1\n";
    case Dialect::Trl: return "dataset_train_split: train\nuse_peft: true\n";
    case Dialect::LlamaFactory: return "template: llama3\nfinetuning_type: lora\n";
    case Dialect::LlamaFactoryV1: return "train_dataset: a\npeft_config: {name: lora}\ndist_config: {name: fsdp2}\n";
    case Dialect::Axolotl:
      return "val_set_size: 0.1\nadapter: lora\nlora_r: 4\nlora_target_modules: [q_proj]\nlora_mlp_kernel: false\n"
             "gradient_checkpointing: true\n";
    case Dialect::Accelerate: return "machine_rank: 0\ndistributed_type: DEEPSPEED\n";
    case Dialect::Torchtitan: return "job: {description: a}\nmodel: {flavor: 8B}\nlr_scheduler: {warmup_steps: 2}\n";
  }
  return {};
}

// What a key of fsdp_config needs beside it: its version, and its policy.
std::string beside_sharding(Dialect dialect, std::string_view path) {
  const bool sized = path.ends_with("min_num_params");
  bool of_version_1 = sized;
  for (const char* word : {"prefetch", "use_orig_params", "limit_all_gathers", "sharding_strategy", "sync_module"}) {
    of_version_1 = of_version_1 || path.find(word) != std::string_view::npos;
  }
  const std::string policy = sized ? "auto_wrap_policy: SIZE_BASED_WRAP\n" : "";
  if (dialect == Dialect::Axolotl) {
    const bool version = path.ends_with("version");
    const std::string other = version ? "  offload_params: true\n" : of_version_1 ? "" : "  fsdp_version: 2\n";
    return other + (sized ? "  " + policy : "");
  }
  if (dialect != Dialect::Accelerate) {
    return (of_version_1 ? "  version: 1\n" : "") + (sized ? "  " + policy : "") + "fsdp: true\n";
  }
  std::string text;
  if (path != "fsdp_config.fsdp_version") text += of_version_1 ? "  fsdp_version: 1\n" : "  fsdp_version: 2\n";
  if (sized) return text + "  fsdp_" + policy;
  if (path != "fsdp_config.fsdp_auto_wrap_policy") text += "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n";
  return text;
}

std::string beside_v1(std::string_view path) {
  if (path.starts_with("peft_config.") && path != "peft_config.name") return "  name: lora\n";
  if (path == "dist_config.reshard_after_forward") return "  name: fsdp2\ndp_size: 4\n";
  for (const char* one : {"bf16", "dist_config.name", "init_config.name", "mp_replicate_size"}) {
    if (path == one) return "dp_size: 4\n";
  }
  return {};
}

std::string beside_packing(Dialect dialect, std::string_view path) {
  if (path == "packing_strategy") return "packing: true\n";
  if (path == "packing" && dialect == Dialect::LlamaFactory) return "stage: pt\n";
  return path == "sample_packing" ? "flash_attention: true\nmicro_batch_size: 2\n" : "";
}

// What a key needs beside it to mean anything.
std::string beside(Dialect dialect, std::string_view path) {
  const bool bits = path.starts_with("bnb_") || path.starts_with("use_bnb");
  if (path == "deepspeed_config.zero3_init_flag") return "  zero_stage: 3\n";
  if (path == "fsdp_version") return "fsdp_config:\n  offload_params: true\n";
  if (path == "dp_replicate_size" || path == "dp_shard_size") return "fsdp_config:\n  fsdp_version: 2\n";
  if (path == "fsdp_transformer_layer_cls_to_wrap") return "fsdp: full_shard\n";
  if (path == "fsdp_min_num_params") return "fsdp: full_shard\nfsdp_config:\n  auto_wrap_policy: SIZE_BASED_WRAP\n";
  if (path.starts_with("fsdp_config.")) return beside_sharding(dialect, path);
  if (path.starts_with("parallelism_config.parallelism_config_dp")) {
    const bool replicas = path.ends_with("dp_replicate_size");
    return std::string(replicas ? "  parallelism_config_dp_shard_size: 2\n" : "") + "fsdp_config:\n  fsdp_version: 2\n";
  }
  if ((dialect == Dialect::Trl || dialect == Dialect::Axolotl) && bits) return "load_in_4bit: true\n";
  if (path == "bfloat16") return "bf16: false\n";
  if (dialect == Dialect::LlamaFactoryV1) return beside_v1(path);
  if (path.find("packing") != std::string_view::npos) return beside_packing(dialect, path);
  if (path == "pref_loss") return "stage: dpo\n";
  if (path == "cpo_alpha") return "rl: simpo\n";
  if (path == "cut_cross_entropy") return "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n";
  if (path.starts_with("liger_")) return "plugins: [axolotl.integrations.liger.LigerPlugin]\n";
  if (path == "center_rewards_coefficient" && dialect == Dialect::Axolotl) return "reward_model: true\n";
  if (path == "quantization_type" || path == "double_quantization") return "quantization_bit: 4\n";
  return {};
}

// `opening` without the key or the block that it stands in, and the key with this value.
std::string with_key(Dialect dialect, std::string_view path, const std::string& value) {
  std::string text;
  const std::string own = std::string(path) + ":";
  const std::string block = std::string(path.substr(0, path.find('.'))) + ":";
  std::string rest = path == "use_deepspeed" ? "machine_rank: 0\n"
                     : (block == "fsdp_config:" || block == "parallelism_config:") && dialect == Dialect::Accelerate
                         ? "distributed_type: FSDP\n"
                         : opening(dialect);
  while (!rest.empty()) {
    const std::string line = rest.substr(0, rest.find('\n') + 1);
    if (!line.starts_with(own) && !line.starts_with(block)) text += line;
    rest.erase(0, line.size());
  }
  std::string indent;
  while (true) {
    const std::size_t dot = path.find('.');
    text += indent + std::string(path.substr(0, dot)) + ":";
    if (dot == std::string_view::npos) return text + " " + value + "\n";
    text += "\n";
    indent += "  ";
    path.remove_prefix(dot + 1);
  }
}

// Whether a setting has the value that a project's own parser made.
struct SameAs {
  const Value& value;

  bool operator()(const Setting<std::int64_t>* setting) const { return setting->value == value.integer; }
  // PyYAML makes a text of 2e-5, and transformers hands it on as such.
  bool operator()(const Setting<double>* setting) const {
    return setting->value == (value.is(Value::Kind::String) ? std::stod(value.string) : value.real);
  }
  bool operator()(const Setting<bool>* setting) const { return setting->value == value.boolean; }
  bool operator()(const Setting<std::string>* setting) const { return setting->value == value.string; }
  bool operator()(const Setting<std::vector<std::string>>* setting) const {
    std::vector<std::string> names;
    for (const Value& item : value.items) names.push_back(item.string);
    if (value.is(Value::Kind::String)) names = {value.string};
    return setting->value == names;
  }
  template <class Other>
  bool operator()(const Other*) const {
    return false;
  }
};

// A launch line as scripts have it, on several lines and with quotes.
std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  bool begun = false;
  char quote = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    const bool space = c == ' ' || c == '\n' || (c == '\\' && text[at + 1] == '\n');
    if (quote == 0 && space) {
      if (begun) words.push_back(std::exchange(word, {}));
      begun = false;
    } else if (c == quote || (quote == 0 && (c == '"' || c == '\''))) {
      quote = quote == 0 ? c : '\0';
      begun = true;
    } else {
      word += c;
      begun = true;
    }
  }
  return words;
}

Document example(const std::string& path) { return read_document((kExamples / path).string()); }

std::string reading_of(const fs::path& file) {
  try {
    if (file.parent_path().filename() == "lines") {
      return completed(read_launch(words_of(read_file(file.string())), example));
    }
    return completed(read_training_document(read_document(file.string())));
  } catch (const Refusal& refusal) {
    std::string text;
    for (const Diagnostic& fault : refusal.diagnostics()) text += formatted("  refused: {}\n", fault.message);
    return text;
  }
}

std::string kind_of(const fs::path& file) {
  const std::string folder = file.parent_path().filename().string();
  if (folder == "lines") return "a launch line";
  if (folder == "deepspeed") return "DeepSpeed";
  return std::string(recognise(read_document(file.string())).name);
}

struct Examples {
  std::vector<std::string> texts;
  std::vector<std::string> lines;
};

Examples examples_in_yaml() {
  Examples all;
  for (const auto& entry : fs::recursive_directory_iterator(kExamples)) {
    if (entry.path().extension() != ".yaml" && entry.path().extension() != ".yml") continue;
    all.texts.push_back(read_file(entry.path().string()));
    std::istringstream text(all.texts.back());
    for (std::string line; std::getline(text, line);) all.lines.push_back(line + "\n");
  }
  return all;
}

// One of the examples with up to four changes: a byte, some left out, another's line, a character that means something.
std::string damaged(const Examples& examples, std::mt19937& random) {
  const auto below = [&random](std::size_t limit) { return random() % limit; };
  std::string text = examples.texts[below(examples.texts.size())];
  for (std::size_t change = below(4) + 1; change > 0 && !text.empty(); --change) {
    const std::size_t at = below(text.size());
    switch (below(4)) {
      case 0: text[at] = static_cast<char>(random()); break;
      case 1: text.erase(at, below(20)); break;
      case 2: text.insert(text.find('\n', at) + 1, examples.lines[below(examples.lines.size())]); break;
      default: text.insert(at, std::string(1, ":{}[]-$\"' \n0e"[below(13)])); break;
    }
  }
  return text;
}

}  // namespace

TEST_CASE("dialects: every field of the projects' own sources has a row") {
  const fs::path file = kRoot / "tests" / "witnesses" / "dialects" / "fields.json";
  const Document dump = parse_json(file.string(), read_file(file.string()));
  int fields = 0;
  for (const Member& member : dump.root.members) {
    const auto known = kDumped.find(member.key);
    if (known == kDumped.end()) continue;
    const DialectTable& table = dialect(known->second);
    for (const Member& field : member.value.find("fields")->members) {
      INFO((member.key + ": " + field.key));
      CHECK(find_key(table, field.key) != nullptr);
      ++fields;
    }
    INFO(table.sources);
    CHECK(has(std::string(table.sources), member.value.find("version")->string));
  }
  CHECK(fields > 1000);
  // What `accelerate launch` has as options is read by the same table, some under a block.
  for (const Member& option : dump.root.find("accelerate-launch")->find("fields")->members) {
    const std::string said = refusal([&] {
      return read_launch({"accelerate", "launch", "--" + option.key, "1", "train.py"},
                         [](const std::string&) { return parse_yaml("a.yaml", "distributed_type: MULTI_GPU\n"); });
    });
    INFO(option.key);
    CHECK(!has(said, "unknown argument"));
  }
}

TEST_CASE("dialects: each key has one row, and each row says something") {
  for (const DialectTable& table : dialects()) {
    std::set<std::string_view> seen;
    for (const DialectKey& key : table.keys) {
      INFO((std::string(table.name) + ": " + std::string(key.path)));
      CHECK(seen.insert(key.path).second);
      CHECK(key.note.empty() == (key.treatment == Treatment::Block));
      const std::size_t dot = key.path.rfind('.');
      if (dot == std::string_view::npos) continue;
      const DialectKey* const around = find_key(table, key.path.substr(0, dot));
      REQUIRE(around != nullptr);
      CHECK(around->treatment == Treatment::Block);
    }
  }
}

TEST_CASE("dialects: the examples have their readings") {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(kExamples)) {
    if (entry.is_regular_file() && entry.path().filename() != "readings.txt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  CHECK(files.size() >= 260);
  std::string text;
  for (const fs::path& file : files) {
    text += formatted("{}: {}\n", fs::relative(file, kExamples).generic_string(), kind_of(file));
    text += reading_of(file);
  }
  const fs::path golden = kExamples / "readings.txt";
  if (std::getenv("DSPLAN_UPDATE_GOLDEN") != nullptr) std::ofstream(golden, std::ios::binary) << text;
  CHECK(read_file(golden.string()) == text);
}

namespace {

// Keys whose value is no setting by itself.
bool read_together(const DialectTable& table, std::string_view example, std::string_view key) {
  // With the flavor it becomes MODEL.
  if (table.dialect == Dialect::Torchtitan && key == "model.name") return true;
  // One process is started for NO.
  if (example == "accelerate/no_of_eight.yaml" && key == "num_processes") return true;
  // LLaMA-Factory takes one token off where it packs, and fills supervised rows up to as many as were said.
  return example == "llama_factory/packing.yaml" && key == "cutoff_len";
}

}  // namespace

TEST_CASE("dialects: the projects' own parsers read the examples alike") {
  const fs::path file = kRoot / "tests" / "witnesses" / "dialects" / "values.json";
  const Document dump = parse_json(file.string(), read_file(file.string()));
  int compared = 0;
  for (const Member& example : dump.root.members) {
    const Document document = read_document((kExamples / example.key).string());
    const DialectTable& table = recognise(document);
    const Said said = read_training_document(document);
    for (const Member& value : example.value.members) {
      const DialectKey* const key = find_key(table, value.key);
      INFO((example.key + ": " + value.key));
      REQUIRE(key != nullptr);
      const bool plain = key->treatment == Treatment::Honoured && key->reading == Reading::Plain;
      if (!plain || value.value.is(Value::Kind::Null) || value.value.is(Value::Kind::Object)) continue;
      if (read_together(table, example.key, value.key)) continue;
      if (key->field) CHECK(std::visit(SameAs{value.value}, key->field.of(said.request)));
      if (key->foreign) CHECK(std::visit(SameAs{value.value}, key->foreign.of(said.foreign)));
      ++compared;
    }
  }
  CHECK(dump.root.members.size() >= 200);
  CHECK(compared > 500);
}

namespace {

// Values of keys that take not any.
const std::map<std::string_view, std::pair<std::string, std::string>>& own_values() {
  static const std::map<std::string_view, std::pair<std::string, std::string>> kOwn = {
      {"gradient_checkpointing", {"true", "false"}},
      {"bf16", {"true", "false"}},
      {"env", {"{PYTORCH_CUDA_ALLOC_CONF: a}", "{PYTORCH_CUDA_ALLOC_CONF: b}"}},
      {"finetuning_type", {"lora", "full"}},
      {"init_config.name", {"init_on_default", "init_on_meta"}},
      {"peft_config.name", {"lora", "freeze"}},
      {"dist_config.name", {"fsdp2", "deepspeed"}},
      {"mp_replicate_size", {"1", "2"}},
      {"mp_shard_size", {"4", "8"}},
      {"adapter", {"lora", "llama-adapter"}},
      {"center_rewards_coefficient", {"0.01", "0"}},
      {"loss_type", {"sigmoid", "nll"}},
      {"packing_strategy", {"wrapped", "bfd"}},
      {"lora_task_type", {"CAUSAL_LM", "SEQ_CLS"}},
      {"stage", {"sft", "dpo"}},
      {"rl", {"dpo", "null"}},
      {"pref_loss", {"sigmoid", "orpo"}},
      {"cpo_alpha", {"1.0", "0.0"}},
      {"model_type", {"AutoModelForCausalLM", "AutoModelForSequenceClassification"}},
      {"quantization_bit", {"4", "8"}},
      {"quantization_type", {"nf4", "fp4"}},
      {"bnb_4bit_quant_type", {"nf4", "fp4"}},
      {"bnb_config_kwargs.bnb_4bit_quant_type", {"nf4", "fp4"}},
      {"optimizer.name", {"Adam", "AdamW"}},
      {"optimizer.implementation", {"fused", "foreach"}},
      {"training.dtype", {"bfloat16", "float32"}},
      {"training.mixed_precision_param", {"bfloat16", "float32"}},
      {"parallelism.data_parallel_replicate_degree", {"2", "4"}},
      {"parallelism.data_parallel_shard_degree", {"4", "8"}},
      {"parallelism.fsdp_reshard_after_forward", {"never", "always"}},
      {"activation_checkpoint.mode", {"full", "none"}},
      {"activation_checkpoint.selective_ac_option", {"'2'", "'4'"}},
      {"flash_attn", {"sdpa", "eager"}},
      {"mixed_precision", {"fp16", "bf16"}},
      {"distributed_type", {"DEEPSPEED", "MULTI_GPU"}},
      {"use_deepspeed", {"true", "false"}},
      {"fsdp_transformer_layer_cls_to_wrap", {"LlamaDecoderLayer", "LlamaMLP"}},
      {"deepspeed_config.offload_optimizer_device", {"cpu", "none"}},
      {"deepspeed_config.offload_param_device", {"cpu", "none"}},
      {"deepspeed_config.zero_stage", {"1", "3"}},
      {"deepspeed_config.zero3_save_16bit_model", {"true", "false"}},
      {"lora_mlp_kernel", {"false", "true"}},
      {"fsdp_config.fsdp_auto_wrap_policy", {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP"}},
      {"fsdp_config.auto_wrap_policy", {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP"}},
      {"parallelism_config.parallelism_config_dp_replicate_size", {"2", "3"}},
      {"parallelism_config.parallelism_config_dp_shard_size", {"2", "3"}},
      {"fsdp_config.backward_prefetch", {"BACKWARD_PRE", "BACKWARD_POST"}},
      {"fsdp_config.fsdp_backward_prefetch", {"BACKWARD_PRE", "BACKWARD_POST"}},
      {"fsdp_config.fsdp_sharding_strategy", {"FULL_SHARD", "SHARD_GRAD_OP"}},
      {"fsdp_config.fsdp_sync_module_states", {"true", "false"}},
      {"fsdp_config.state_dict_type", {"LOCAL_STATE_DICT", "FULL_STATE_DICT"}},
      {"fsdp_config.fsdp_state_dict_type", {"LOCAL_STATE_DICT", "FULL_STATE_DICT"}},
  };
  return kOwn;
}

// accelerate_config names a file; in the model that is read here no module is a LayerNorm, and no parameter has a name
// that axolotl asks for (a test of their own has those).
bool moves(const DialectKey& key) {
  constexpr std::string_view kElsewhere[] = {"accelerate_config", "liger_layer_norm", "unfrozen_parameters",
                                             "freeze_mm_modules"};
  return key.treatment == Treatment::Honoured && std::ranges::find(kElsewhere, key.path) == std::end(kElsewhere);
}

// A file in which a key with this value means something.
std::string file_with(Dialect dialect, std::string_view key, const std::string& value, bool shown) {
  std::string text = with_key(dialect, key, value) + beside(dialect, key);
  if (shown && dialect == Dialect::LlamaFactory) {
    text.replace(text.find("finetuning_type: lora"), 21, "finetuning_type: full");
  }
  if (dialect == Dialect::Axolotl && text.find("load_in_4bit: true") != std::string::npos) {
    text.replace(text.find("adapter: lora"), 13, "adapter: qlora");  // Which alone packs 4 bits.
  }
  return text;
}

}  // namespace

TEST_CASE("dialects: an honoured key moves what is read") {
  const auto& own = own_values();
  for (const DialectTable& table : dialects()) {
    for (const DialectKey& key : table.keys) {
      if (!moves(key)) continue;
      INFO((std::string(table.name) + ": " + std::string(key.path)));
      std::set<std::string> readings;
      const auto found = own.find(key.path);
      std::vector<std::string> values = {"3", "5", "true", "false", "aa", "bb"};
      if (key.reading == Reading::Preference) values = {"0.1", "null"};
      if (found != own.end()) values = {found->second.first, found->second.second, "disabled"};
      for (const std::string& value : values) {
        const bool shown = key.path.starts_with("freeze_") || key.path.starts_with("image_");
        const std::string text = file_with(table.dialect, key.path, value, shown);
        const Document document = parse_yaml("f.yaml", text);
        try {
          readings.insert(completed(read_dialect(table, {&document, {}}), shown));
        } catch (const Refusal&) {  // Of another type.
        }
      }
      CHECK(readings.size() >= 2);
    }
  }
}

TEST_CASE("dialects: LLaMA-Factory freezes tower and projector unless a key says otherwise, and adapts neither") {
  const auto frozen = [](const std::string& more) {
    const std::string text = "template: llava\nmodel_name_or_path: llava-1.5-7b\n" + more;
    ModelSpec base =
        build_model(parse_json("llava.json", read_file((kRoot / "models" / "llava-1.5-7b.json").string())), "llava");
    const Request request = with_program(read_training_document(parse_yaml("f.yaml", text)), base, nullptr);
    return joined(request.freeze.value_or({}), " ");
  };
  const std::string full = "finetuning_type: full\n";
  CHECK(frozen(full) == "model.vision_tower.* model.multi_modal_projector.*");
  CHECK(frozen(full + "freeze_multi_modal_projector: false\n") == "model.vision_tower.*");
  CHECK(frozen(full + "freeze_vision_tower: false\nfreeze_language_model: true\n") ==
        "model.multi_modal_projector.* model.language_model.* lm_head.*");
  const std::string plain = "disable_gradient_checkpointing: true\nfinetuning_type: lora\n";
  CHECK(frozen("finetuning_type: lora\n").empty());
  CHECK(frozen(plain).empty());  // peft freezes all that it puts nothing on.
  CHECK_THROWS_AS(frozen(plain + "freeze_vision_tower: false\n"), Refusal);
}

TEST_CASE("dialects: LLaMA-Factory checkpoints layers of which something is trained, and axolotl as it chooses") {
  const auto completed = [](const std::string& name, const std::string& text) {
    const ModelSpec base = build_model(read_document((kRoot / "models" / (name + ".json")).string()), name);
    return with_program(read_training_document(parse_yaml("f.yaml", text)), base, nullptr);
  };
  const std::string factory = "template: llava\nmodel_name_or_path: llava-1.5-7b\n";
  const Request adapted = completed("llava-1.5-7b", factory + "finetuning_type: lora\n");
  CHECK(adapted.checkpoint.value_or("").starts_with("groups:24,25,"));
  CHECK(adapted.checkpoint.value_or("").ends_with(",54,55"));
  CHECK(adapted.layers_require_grads.value_or(false));
  const Request whole = completed("llava-1.5-7b", factory + "finetuning_type: full\nfreeze_vision_tower: false\n");
  CHECK(whole.checkpoint.value_or("") == "full");
  const Request seeing = completed(
      "llava-1.5-7b", factory + "finetuning_type: full\nfreeze_vision_tower: false\nfreeze_language_model: true\n");
  CHECK(seeing.checkpoint.value_or("").ends_with(",22,23"));
  CHECK(completed("llama-3-8b", "template: llama3\nfinetuning_type: lora\n").layers_require_grads.value_or(false));
  const std::string axolotl = "base_model: llama-3-8b\nflash_attention: true\ngradient_checkpointing: true\n";
  const auto form = [&](const std::string& more) {
    return completed("llama-3-8b", axolotl + more).checkpoint_impl.value_or("");
  };
  CHECK(form("val_set_size: 0\n") == "reentrant");
  CHECK(form("rl: dpo\n") == "non_reentrant");
  CHECK(form("unfrozen_parameters: [lm_head]\n") == "non_reentrant");
  const Request gemma =
      completed("gemma-4-e2b",
                "base_model: gemma-4-e2b\nflash_attention: true\n"
                "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: true}\n");
  CHECK(gemma.checkpoint_impl.value_or("") == "non_reentrant");
  CHECK(std::ranges::any_of(gemma.notices, [](const Notice& one) { return has(one.message, "whatever it is told"); }));
}

TEST_CASE("dialects: axolotl trains what unfrozen_parameters names, and freezes what is beside the language") {
  const auto frozen = [](const std::string& name, const std::string& more) {
    const ModelSpec base = build_model(read_document((kRoot / "models" / (name + ".json")).string()), name);
    const std::string text = "base_model: " + name + "\nflash_attention: true\nmicro_batch_size: 1\n" + more;
    return joined(with_program(read_training_document(parse_yaml("f.yaml", text)), base, nullptr).freeze.value_or({}),
                  " ");
  };
  CHECK(frozen("llama-3-8b", "unfrozen_parameters: [^lm_head.weight$, model.norm]\n") ==
        "model.embed_tokens.* model.layers.*");
  // A point is a point, so that the star repeats it; the beginning of a name suffices.
  CHECK(frozen("llama-3.2-1b", "unfrozen_parameters: ['model.layers.1[0-5].*']\n") ==
        "model.embed_tokens.* model.layers.0.* model.layers.1.* model.layers.2.* model.layers.3.* model.layers.4.* "
        "model.layers.5.* model.layers.6.* model.layers.7.* model.layers.8.* model.layers.9.* model.norm.*");
  CHECK(frozen("qwen3-vl-2b", "freeze_mm_modules: true\n") == "*visual.*");
  const auto fault = [&](const std::string& text) { return refusal([&] { (void)frozen("llama-3-8b", text); }); };
  CHECK(has(fault("unfrozen_parameters: [embed_tokens]\n"), "no parameter of the model has such a name"));
  CHECK(has(fault("unfrozen_parameters: ['model.embed_tokens.weight$[:32000]']\n"), "rows of a parameter"));
  CHECK(has(fault("unfrozen_parameters: ['(']\n"), "is no regular expression"));
  CHECK(has(fault("unfrozen_parameters: [lm_head]\nadapter: lora\nlora_r: 8\nlora_target_linear: true\n"),
            "freezes the adapters too"));
}

TEST_CASE(
    "dialects: a tower of pictures of all sizes is frozen part by part, and the program says how large they are") {
  const auto completed = [](const std::string& name, const std::string& text) {
    const std::string path = (kRoot / "models" / (name + ".json")).string();
    ModelSpec base = build_model(parse_json("shown.json", read_file(path)), name);
    return with_program(read_training_document(parse_yaml("f.yaml", text)), base, nullptr);
  };
  const std::string factory = "template: qwen3_vl\nfinetuning_type: full\nmodel_name_or_path: qwen3-vl-2b\n";
  const Request usual = completed("qwen3-vl-2b", factory);
  CHECK(
      joined(usual.freeze.value_or({}), " ") ==
      "model.visual.patch_embed.* model.visual.pos_embed.* model.visual.blocks.* model.visual.deepstack_merger_list.* "
      "model.visual.merger.*");
  CHECK(usual.image_size.value_or("") == "768");
  const Request said = completed("qwen3-vl-2b", factory + "image_max_pixels: 262144\nfreeze_vision_tower: false\n");
  CHECK(joined(said.freeze.value_or({}), " ") == "model.visual.merger.*");
  CHECK(said.image_size.value_or("") == "512");
  CHECK(said.image_size.place.path == "f.yaml");
  const std::string axolotl = "base_model: qwen3-vl-2b\nsequence_len: 2048\nflash_attention: true\n";
  CHECK(completed("qwen3-vl-2b", axolotl + "image_size: 512\n").image_size.value_or("") == "512x512");
  CHECK(completed("qwen3-vl-2b", axolotl + "image_size: [640, 480]\n").image_size.value_or("") == "480x640");
  CHECK_FALSE(completed("qwen3-vl-2b", axolotl).image_size.given());
  CHECK_FALSE(completed("llava-1.5-7b", axolotl + "image_size: 512\n").image_size.given());
  CHECK_THROWS_AS(completed("qwen3-vl-2b", axolotl + "image_size: [640]\n"), Refusal);
}

TEST_CASE("dialects: adapters by one pattern, as peft matches it with whole paths; beside a tower, the text's alone") {
  const auto adapters = [](const std::string& name, const std::string& text) {
    const ModelSpec base = build_model(read_document((kRoot / "models" / (name + ".json")).string()), name);
    const Request request = with_program(read_training_document(parse_yaml("f.yaml", text)), base, nullptr);
    const std::string lora = request.lora.value_or("");
    const std::size_t begin = lora.find("targets=");
    return begin == std::string::npos ? lora : lora.substr(begin + 8, lora.find(',', begin) - begin - 8);
  };
  const std::string trl = "model_name_or_path: llama-3-8b\nuse_peft: true\nlora_target_modules: ";
  CHECK(adapters("llama-3-8b", trl + "'.*\\.(q|v)_proj'\n") == "q_proj+v_proj");
  CHECK(adapters("llama-3-8b", trl + "'model\\.layers\\.[01]\\.mlp\\.up_proj'\n") ==
        "model.layers.0.mlp.up_proj+model.layers.1.mlp.up_proj");
  const auto fault = [&](const std::string& text) { return refusal([&] { (void)adapters("llama-3-8b", text); }); };
  CHECK(has(fault(trl + "'(?i).*Q_PROJ'\n"), "adapters by the pattern"));  // Python's own.
  CHECK(has(fault(trl + "'\\A.*q_proj'\n"), "adapters by the pattern"));
  CHECK(has(fault(trl + "'q_proj$'\n"), "adapters by the pattern"));  // It matches no whole path.
  CHECK(has(fault(trl + "'(((.*'\n"), "adapters by the pattern"));
  const std::string factory =
      "model_name_or_path: llava-1.5-7b\nfinetuning_type: lora\ntemplate: llava\n"
      "disable_gradient_checkpointing: true\n";
  const std::string all = adapters("llava-1.5-7b", factory);
  CHECK(has(all, "model.language_model.layers.31.mlp.down_proj"));
  CHECK_FALSE(has(all, "vision_tower"));
  CHECK_FALSE(has(all, "projector"));
  CHECK_FALSE(has(all, "lm_head"));
  CHECK_FALSE(has(adapters("llava-1.5-7b", factory + "lora_target: q_proj\n"), "v_proj"));
}

TEST_CASE("dialects: what is not set is said once; accelerate's -1 leaves the number of processes to the line") {
  const std::string once = refused("base_model: a\nmicro_batch_size: ${DSPLAN_NO_SUCH_VARIABLE}\n");
  CHECK(has(once, "the environment variable DSPLAN_NO_SUCH_VARIABLE is not set"));
  CHECK_FALSE(has(once, "must be an integer"));
  const Said said = read_training_document(parse_yaml("f.yaml", "distributed_type: MULTI_GPU\nnum_processes: -1\n"));
  CHECK_FALSE(said.request.gpus.given());
  CHECK(has(refused("distributed_type: MULTI_GPU\nnum_processes: 0\n"), "must be at least 1"));
}

TEST_CASE("axolotl under FSDP: what its own code makes of fsdp_config, version by version") {
  const ModelSpec base = build_model(read_document((kRoot / "models" / "llama-3-8b.json").string()), "llama-3-8b");
  const auto completed = [&](const std::string& more) {
    return with_program(read_training_document(parse_yaml("f.yaml", "base_model: llama-3-8b\n" + more)), base, nullptr);
  };
  const std::string config = "fsdp_config:\n  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n";
  const Request flat = completed("fsdp: [full_shard, auto_wrap]\n" + config +
                                 "  fsdp_offload_params: true\n  fsdp_use_orig_params: false\n"
                                 "  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_backward_prefetch: BACKWARD_PRE\n");
  CHECK(flat.runtime.value_or("") == "fsdp1");
  CHECK(flat.fsdp.use_orig_params.value_or("") == "false");
  CHECK(flat.fsdp.cpu_offload.value_or("") == "true");
  CHECK(flat.fsdp.reshard_after_forward.value_or("") == "true");  // Its schema drops the strategy,
  CHECK(flat.fsdp.backward_prefetch.value_or("") == "none");      // and the prefetch.
  CHECK(flat.model_init.value_or("") == "device");                // Moved whole before it is wrapped.
  CHECK(completed(config + "  cpu_ram_efficient_loading: true\n").model_init.value_or("") == "host");

  const Request second = completed("fsdp_version: 2\n" + config);
  CHECK(second.runtime.value_or("") == "fsdp2");
  CHECK(second.fsdp.wrap.value_or("") == "layers+axolotl");
  CHECK(second.fsdp.reshard_root.value_or("") == "true");
  CHECK(second.model_init.value_or("") == "device");
  CHECK(second.torch_dtype.value_or("") == "bfloat16");
  CHECK(second.not_modelled.empty());
  const Request kept = completed(config +
                                 "  fsdp_version: 2\n  reshard_after_forward: false\n"
                                 "  cpu_ram_efficient_loading: true\n");
  CHECK(kept.fsdp.reshard_root.value_or("") == "false");
  CHECK(kept.fsdp.reshard_after_forward.value_or("") == "false");
  CHECK(kept.model_init.value_or("") == "rank0");
  const Request mesh = completed("fsdp_version: 2\ndp_replicate_size: 2\n" + config);
  CHECK(mesh.fsdp.replicate.value_or("") == "2");

  const std::string packed = "adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_target_linear: true\n";
  const Request qlora = completed(packed + config);
  CHECK(qlora.fsdp.param_dtype.value_or("") == "bf16");  // update_fsdp_plugin_peft
  CHECK_FALSE(qlora.model_init.given());
  CHECK(qlora.lora_kernels.value_or("none") == "none");  // Not turned on under FSDP1.
  const auto fault = [&](const std::string& more) { return refusal([&] { (void)completed(more); }); };
  CHECK(has(fault("fsdp: [full_shard]\n"), "fsdp without fsdp_config: axolotl stops"));
  CHECK(has(fault("fsdp_version: 2\n" + config + "  version: 1\n"), "version 1 of FSDP, and f.yaml:2:15 says 2"));
  CHECK(has(fault(config + "  cpu_offload_pin_memory: false\n"), "axolotl refuses it"));
  CHECK(has(fault("fsdp_version: 2\noptimizer: adamw_bnb_8bit\n" + config), "adamw_bnb_8bit under FSDP2"));
  CHECK(has(fault(config + "  reshard_after_forward: true\n"), "accelerate finds no such ShardingStrategy"));
  CHECK(has(fault("deepspeed: ds.json\n" + config), "FSDP beside deepspeed"));
  CHECK(has(fault("adapter: lora\nlora_r: 8\nlora_target_linear: true\nlora_mlp_kernel: true\n" + config),
            "axolotl's kernels for adapters under FSDP1"));
  const auto feature = [&](const std::string& more) {
    const Request request = completed(more);
    return request.not_modelled.empty() ? std::string() : request.not_modelled.front().feature;
  };
  const std::string inside = "fsdp_version: 2\n" + config + "  activation_checkpointing: true\n";
  CHECK(completed(inside).checkpoint.value_or("") == "nested");
  CHECK(completed(inside).checkpoint_impl.value_or("") == "non_reentrant");
  CHECK_FALSE(completed(inside).preserve_rng_state.given());
  const Request adapted = completed("fsdp_version: 2\nadapter: lora\nlora_r: 8\nlora_target_linear: true\n" + config);
  CHECK(adapted.not_modelled.empty());
  CHECK(adapted.fsdp.wrap.value_or("").starts_with("adapters+"));
  CHECK(adapted.fsdp.wrap.value_or("").ends_with("+axolotl"));
  CHECK(adapted.input_require_grads.value_or(false));
  CHECK(adapted.lora_kernels.value_or("") == "all");
  CHECK(has(
      feature("fsdp_version: 2\nadapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_target_linear: true\n" + config),
      "QLoRA under FSDP2"));
  CHECK(has(feature("rl: dpo\n" + config), "preference training"));
  CHECK(has(feature("attn_implementation: flash_attention_2\ndp_shard_size: 4\n"), "without fsdp_config"));
}

TEST_CASE("dialects: a refused key is refused by name, and asks for nothing where it is off") {
  for (const DialectTable& table : dialects()) {
    for (const DialectKey& key : table.keys) {
      if (key.treatment != Treatment::Refused) continue;
      INFO((std::string(table.name) + ": " + std::string(key.path)));
      const auto count = [&](const std::string& value) {
        const Document document = parse_yaml("f.yaml", with_key(table.dialect, key.path, value));
        const Request request = read_dialect(table, {&document, {}}).request;
        return std::count_if(request.not_modelled.begin(), request.not_modelled.end(),
                             [&](const NotModelled& one) { return one.key == key.path; });
      };
      CHECK(count("17") == 1);
      CHECK(count("false") == 0);
      CHECK(count("null") == 0);
      if (!key.values.empty()) CHECK(count(std::string(key.values.substr(0, key.values.find('|')))) == 0);
    }
  }
}

TEST_CASE("dialects: a key that no row knows is an error with the nearest name") {
  for (const DialectTable& table : dialects()) {
    const Document document = parse_yaml("f.yaml", opening(table.dialect) + "no_such_key_anywhere: 1\n");
    const std::string said = refusal([&] { return read_dialect(table, {&document, {}}); });
    INFO(said);
    CHECK(has(said, "unknown key \"no_such_key_anywhere\" in " + std::string(table.what)));
  }
  CHECK(refused("template: llama3\ncutof_len: 5\n") ==
        "f.yaml:2:1: error: unknown key \"cutof_len\" in a LLaMA-Factory configuration; did you mean \"cutoff_len\"?\n"
        "    2 | cutof_len: 5\n"
        "      | ^\n");
  CHECK(has(refused("bf16: true\noutput_dirr: x\n"), "did you mean \"output_dir\"?"));
  CHECK(has(refused("sequence_length_x: 1\nwhatever: 2\n"), "no kind of training file has a key \"whatever\""));
}

TEST_CASE("dialects: values of the wrong type are errors") {
  CHECK(has(refused("template: llama3\ncutoff_len: [1]\n"), "\"cutoff_len\" must be an integer, not an array"));
  CHECK(has(refused("template: llama3\ncutoff_len: \"2048\"\n"), "must be an integer, not \"2048\""));
  CHECK(has(refused("template: llama3\nlora_rank: 0\n"), "must be at least 1, not 0"));
  CHECK(has(refused("template: llama3\nlora_dropout: some\n"), "must be a number of at least 0"));
  CHECK(has(refused("template: llama3\nfinetuning_type: 3\n"), "must be a string"));
  CHECK(has(refused("template: llama3\nfinetuning_type: lor\n"), "did you mean \"lora\"?"));
  CHECK(has(refused("template: llama3\nlora_target: {a: 1}\n"), "must be a name or a list of names"));
  CHECK(has(refused("use_peft: 1.5\n"), "must be true or false"));
  CHECK(has(refused("use_peft: true\nmodel_init_kwargs: [1]\n"), "must be an object"));
  // axolotl's pydantic takes digits in quotes.
  CHECK(read_yaml("base_model: a\nmicro_batch_size: \"4\"\n").request.micro_batch.value == 4);
}

TEST_CASE("dialects: two in one file") {
  CHECK(
      has(refused("base_model: a\nfinetuning_type: lora\n"),
          "\"finetuning_type\" is a key of LLaMA-Factory, and \"base_model\" one of axolotl; a file has one dialect"));
  // Whose keys are the most decides, not whose come first.
  CHECK(has(refused("sequence_len: 8\nuse_peft: true\nlora_target_modules: all-linear\nmax_length: 64\n"),
            "f.yaml:1:1: error: \"sequence_len\" is a key of axolotl, and \"use_peft\" one of TRL"));
  // A key of another dialect alone makes no second one.
  CHECK(has(refused("do_train: true\nlogging_dir: o\nlog_level: info\nsequence_len: 5\n"),
            "unknown key \"sequence_len\" in TrainingArguments; axolotl has such a key"));
  CHECK(has(refused("zero_optimization: {stage: 2}\nbase_model: a\n"),
            "\"base_model\" is a key of axolotl, and the file is a DeepSpeed JSON"));
  CHECK(has(refused("model: Qwen/Qwen3-4B\ntemplate: qwen3\nmodel_class: llm\nmicro_batch_size: 1\n"),
            "f.yaml:2:1: error: \"template\" is a key of LLaMA-Factory, and \"model_class\" one of LLaMA-Factory v1"));
  // Names that both generations have make no file of 0.9 one of v1.
  CHECK(recognise(parse_yaml("f.yaml", "cutoff_len: 512\nfinetuning_type: lora\n")).dialect == Dialect::LlamaFactory);
  CHECK(recognise(parse_yaml("f.yaml", "model: a\npeft_config: {name: lora}\n")).dialect == Dialect::LlamaFactoryV1);
}

TEST_CASE("dialects: what LLaMA-Factory v1 reads in blocks") {
  const std::string file = "train_dataset: a\npeft_config:\n  name: lora\n";
  CHECK(has(refused(file + "  lora_rank: 8\n"), "unknown key \"peft_config.lora_rank\" in a LLaMA-Factory v1"));
  CHECK(has(refused(file + "  r: many\n"), "\"peft_config.r\" must be an integer, not \"many\""));
  CHECK(has(refused("train_dataset: a\npeft_config: {name: lore}\n"), "\"lore\" is no peft_config.name"));
  CHECK(has(refused("train_dataset: a\npeft_config: {name: full}\n"), "\"full\" is no peft_config.name"));
  CHECK(has(refused("train_dataset: a\ndist_config: {name: fsdp}\n"), "did you mean \"fsdp2\"?"));
  CHECK(has(refused("train_dataset: a\ndist_config: fsdp2\n"), "\"dist_config\" must be an object, not a string"));
  // A command line has them as JSON, and OmegaConf as paths.
  const Said said = read_yaml(file + "dist_config: '{\"name\": \"fsdp2\"}'\n");
  CHECK(said.foreign.distributed.value == "fsdp2");
  CHECK(said.foreign.adapters.value == true);
}

TEST_CASE("dialects: what LLaMA-Factory v1 makes of ranks") {
  const auto completes = [](const std::string& text) {
    ModelSpec base = build_model(parse_json("m.json", read_file((kRoot / "models" / "qwen3-0.6b.json").string())), "m");
    return with_program(read_yaml("train_dataset: a\n" + text), base, nullptr);
  };
  const auto fails = [&](const std::string& text) { return refusal([&] { return completes(text); }); };
  const std::string fsdp2 = "dist_config: {name: fsdp2}\n";
  // Without a launcher there is no mesh, and nothing is wrapped.
  CHECK(!completes(fsdp2).runtime.given());
  CHECK(completes(fsdp2 + "dp_size: 4\n").runtime.value == "fsdp2");
  CHECK(completes(fsdp2 + "dp_size: 4\n").fsdp.wrap.value == "layers");  // The head is the embedding's.
  CHECK(completes(fsdp2 + "dp_size: 4\nbf16: false\n").fsdp.param_dtype.value == "fp32");
  CHECK(completes("dp_size: 4\nglobal_batch_size: 4\n").grad_accum.value == 1);
  CHECK(completes("global_batch_size: 4\n").grad_accum.value == 4);
  CHECK(has(fails("dp_size: 4\nglobal_batch_size: 6\n"), "global_batch_size 6 is no multiple of 1 rows in 4 ranks"));
  CHECK(has(fails(fsdp2 + "dp_size: 4\nmp_shard_size: 3\n"), "1 replicas of 3 shards are not 4 ranks"));
  CHECK(has(fails("init_config: {name: init_on_meta}\n"), "init_on_meta without FSDP2 over several ranks"));
  for (const char* one : {"dist_config: {name: deepspeed, config_file: z.json}\n", "flash_attn: flash_attention_2\n",
                          "kernel_config: {name: liger_kernel}\n", "quant_config: {name: bnb}\n", "cp_size: 2\n",
                          "optim_config: {name: muon}\n", "batching_strategy: dynamic_batching\n",
                          "peft_config: {name: freeze}\n", "model_class: cls\n"}) {
    INFO(one);
    CHECK(completes(one).not_modelled.size() == 1);
  }
  // Full training is in fp32, adapters are beside the checkpoint's own dtype.
  CHECK(completes("").torch_dtype.value == "fp32");
  CHECK(completes("peft_config: {name: lora}\n").torch_dtype.value == "bf16");
  CHECK(completes("peft_config: {name: lora}\n").lora.value ==
        "r=8,targets=all-linear,dtype=fp32,dropout=0.05,alpha=16");
}

TEST_CASE("TRL: accelerate's configuration by a file, a name, or options of its own line") {
  const auto line = [](const std::vector<std::string>& words) { return read_launch(words, example); };
  const std::vector<std::string> sft = {"trl", "sft", "--config", "transformers/trl_cli_example.yaml"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = sft;
    words.insert(words.end(), more.begin(), more.end());
    return line(words);
  };
  const Said named = with({"--accelerate_config", "zero3", "--num_processes", "4"});
  CHECK(named.request.gpus.value == 4);
  CHECK(named.request.inline_deepspeed->zero.stage.value == 3);
  CHECK(named.foreign.trainer.value == "sft");
  CHECK(with({"--accelerate_config", "zero2"}).request.gpus.value == 8);
  CHECK(with({"--accelerate_config", "accelerate/fsdp2.yaml"}).foreign.launched.version.value == "2");
  CHECK(with({"--num_processes", "2", "--use_deepspeed", "--zero_stage", "2"}).request.zero_stage.value == 2);
  CHECK(has(refusal([&] { return with({"--accelerate_config", "zero4"}); }), "did you mean \"zero1\"?"));
  const std::string text =
      "model_name_or_path: gpt2\ndataset_train_split: train\nnum_processes: 4\naccelerate_config: ";
  CHECK(read_yaml(text + "fsdp2\n").foreign.launched.version.value == "2");
  CHECK(read_yaml(text + "fsdp2\n").request.gpus.value == 4);
  CHECK(has(refused(text + "fsdp3\n"),
            "f.yaml:4:20: error: \"fsdp3\" is no configuration of accelerate that TRL brings"));
  CHECK(has(refused(text + "mine.yaml\n"), "`-- trl sft --config FILE`"));
  // Each is what TRL's own file says.
  const std::map<std::string, std::string> files = {
      {"zero1", "zero1"}, {"zero3", "zero3"}, {"single_gpu", "no_of_eight"}};
  for (const auto& [name, file] : files) {
    const Document ours = *launch_file_of_trl(name);
    const Document theirs = example("accelerate/" + file + ".yaml");
    CHECK(completed(read_dialect(dialect(Dialect::Accelerate), {&ours, {}})) ==
          completed(read_dialect(dialect(Dialect::Accelerate), {&theirs, {}})));
  }
}

TEST_CASE("TRL: a script that is named after a trainer runs that one, or is refused") {
  const auto line = [](const std::string& script, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"python", script, "--model_name_or_path", "gpt2", "--learning_rate", "1e-5"};
    words.insert(words.end(), more.begin(), more.end());
    return read_launch(words, example);
  };
  const auto trainer = [&](const std::string& script) { return line(script).foreign.trainer.value.value_or("none"); };
  const auto refused_line = [&](const std::string& script) { return refusal([&] { return line(script); }); };
  CHECK(trainer("trl/scripts/kto.py") == "kto");
  CHECK(trainer("/opt/trl/scripts/dpo.py") == "dpo");
  CHECK(trainer("trl/scripts/sft.py") == "sft");
  CHECK(trainer("examples/scripts/sft_vlm.py") == "sft");
  CHECK(trainer("examples/scripts/reward_modeling.py") == "reward");
  CHECK(trainer("scripts/run_dpo.py") == "dpo");
  CHECK(line("trl/scripts/kto.py").foreign.program.value == "trl");
  for (const char* other : {"trl/scripts/grpo.py", "examples/scripts/orpo.py", "examples/scripts/grpo_vlm.py",
                            "scripts/orpo.py", "src/open_r1/grpo.py", "examples/scripts/online_dpo.py"}) {
    INFO((std::string(other)));
    CHECK(has(refused_line(other), "trains is not modelled yet; sft, dpo, kto and reward are"));
  }
  // Names that others have, too.
  CHECK(line("sft.py").foreign.program.value.value_or("") != "trl");
  CHECK(line("reward.py").foreign.program.value.value_or("") != "trl");
  CHECK(line("dpo_data.py").foreign.program.value.value_or("") != "trl");
  CHECK(line("train.py").foreign.program.value.value_or("") != "trl");
}

TEST_CASE("LLaMA-Factory: what llamafactory-cli makes of its environment") {
  const auto line = [](const std::vector<std::string>& variables) {
    std::vector<std::string> words = variables;
    words.insert(words.end(), {"llamafactory-cli", "train", "llama_factory/lora_sft.yaml"});
    return read_launch(words, example);
  };
  const Said nodes = line({"FORCE_TORCHRUN=1", "NNODES=2", "NPROC_PER_NODE=4", "NODE_RANK=0"});
  CHECK(nodes.request.gpus.value == 8);
  CHECK(nodes.request.gpus_per_node.value == 4);
  CHECK(line({"CUDA_VISIBLE_DEVICES=0,1"}).request.gpus.value == 2);
  CHECK(has(refusal([&] { return line({"NNODES=two"}); }), "\"two\" is not a positive number of ranks or nodes"));
  CHECK(has(completed(line({"USE_RAY=1"})), "ranks that Ray starts"));
  const auto conf = [&](const std::vector<std::string>& variables) {
    const ModelSpec base =
        build_model(parse_json("m.json", read_file((kRoot / "models" / "llama-3-8b.json").string())), "m");
    return with_program(line(variables), base, nullptr).alloc_conf.value.value_or("");
  };
  CHECK(conf({"CUDA_VISIBLE_DEVICES=0,1"}) == "expandable_segments:True");
  CHECK(conf({"CUDA_VISIBLE_DEVICES=0"}).empty());
  CHECK(conf({"FORCE_TORCHRUN=1", "CUDA_VISIBLE_DEVICES=0"}) == "expandable_segments:True");
  CHECK(conf({"OPTIM_TORCH=0", "CUDA_VISIBLE_DEVICES=0,1"}).empty());
  // Another program's variables are still none that is read.
  const Said other = read_launch({"NNODES=2", "torchrun", "train.py", "--bf16"}, example);
  CHECK(!other.request.nodes.given());
  CHECK(std::any_of(other.request.notices.begin(), other.request.notices.end(),
                    [](const Notice& notice) { return notice.message == "this environment variable is not read"; }));
}

TEST_CASE("dialects: plugins of axolotl's, of which Liger's is modelled") {
  const auto complete = [](const std::string& text) {
    const ModelSpec base =
        build_model(parse_json("m.json", read_file((kRoot / "models" / "llama-3-8b.json").string())), "m");
    return with_program(read_yaml("base_model: llama-3-8b\nflash_attention: true\n" + text), base, nullptr);
  };
  const std::string liger = "plugins: [axolotl.integrations.liger.LigerPlugin]\n";
  const std::string kernels = "liger_rope: true\nliger_rms_norm: true\nliger_swiglu: true\nliger_layer_norm: true\n";
  const Request all = complete(liger + kernels + "liger_fused_linear_cross_entropy: true\n");
  CHECK(all.liger_kernels.value == "rope,rms_norm,swiglu");
  CHECK(all.loss.value == "liger");
  CHECK(complete(liger + "liger_rope: true\nliger_rms_norm: false\n").liger_kernels.value == "rope");
  const Request without = complete(kernels);
  CHECK(!without.liger_kernels.given());
  CHECK(std::count_if(without.notices.begin(), without.notices.end(), [](const Notice& notice) {
          return has(notice.message, "plugins does not name axolotl.integrations.liger.LigerPlugin");
        }) == 4);
  const Request other = complete("plugins: [axolotl.integrations.spectrum.SpectrumPlugin]\n");
  REQUIRE(other.not_modelled.size() == 1);
  CHECK(has(other.not_modelled.front().feature, "axolotl's plugin axolotl.integrations.spectrum"));
}

TEST_CASE("dialects: Liger's LayerNorm has no effect where no LayerNorm runs") {
  const std::string liger = "plugins: [axolotl.integrations.liger.LigerPlugin]\nliger_layer_norm: true\n";
  const auto complete = [&](const std::string& name) {
    const ModelSpec base =
        build_model(parse_json("m.json", read_file((kRoot / "models" / (name + ".json")).string())), "m");
    return with_program(read_yaml("base_model: a\nflash_attention: true\n" + liger), base, nullptr);
  };
  const auto says = [](const Request& request, std::string_view words) {
    return std::any_of(request.notices.begin(), request.notices.end(),
                       [&](const Notice& notice) { return has(notice.message, std::string(words)); });
  };
  CHECK(says(complete("gemma-3-1b"), "the model has no LayerNorm"));
  CHECK(says(complete("gemma-3-4b"), "do not run without pictures"));
  CHECK(complete("gemma-3-4b").not_modelled.empty());
  REQUIRE(complete("phi-2").not_modelled.size() == 1);
  CHECK(complete("phi-2").not_modelled.front().key == "liger_layer_norm");
}

TEST_CASE("dialects: axolotl's plugin for cut cross-entropy turns it on by itself") {
  const ModelSpec base =
      build_model(parse_json("m.json", read_file((kRoot / "models" / "llama-3-8b.json").string())), "m");
  const std::string plugin = "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n";
  const auto complete = [&](const std::string& text) {
    return with_program(read_yaml("base_model: llama-3-8b\nflash_attention: true\n" + text), base, nullptr);
  };
  CHECK(complete(plugin).loss.value == "cut");
  CHECK(complete(plugin).not_modelled.empty());
  CHECK(!complete(plugin + "cut_cross_entropy: false\n").loss.given());
  const Request alone = complete("cut_cross_entropy: true\n");
  CHECK(!alone.loss.given());
  REQUIRE(!alone.notices.empty());
  CHECK(has(alone.notices.front().message, "plugins does not name axolotl.integrations.cut_cross_entropy"));
  CHECK(complete(plugin + "rl: dpo\n").loss.value == "dpo-rows");
  CHECK(has(refusal([&] { return complete(plugin + "bf16: false\n"); }), "without bf16 or fp16: axolotl refuses it"));
}

TEST_CASE("dialects: axolotl's words by 32, and linear modules of a mixture") {
  const auto complete = [](const std::string& model, const std::string& text) {
    const ModelSpec base =
        build_model(parse_json("m.json", read_file((kRoot / "models" / (model + ".json")).string())), "m");
    return with_program(read_yaml("base_model: a\nflash_attention: true\n" + text), base, nullptr);
  };
  const std::string by_32 = "resize_token_embeddings_to_32x: true\n";
  CHECK(complete("llama-3-8b", by_32).not_modelled.empty());
  const Request odd = complete("gpt2", by_32);  // 50,257 words.
  REQUIRE(odd.not_modelled.size() == 1);
  CHECK(odd.not_modelled.front().feature == "a resized vocabulary");
  const std::string all = "adapter: lora\nlora_r: 8\nlora_target_linear: true\n";
  CHECK(has(complete("mixtral-8x7b", all).lora.value.value_or(""), "targets=q_proj+k_proj+v_proj+o_proj,"));
  CHECK(has(complete("llama-3-8b", all).lora.value.value_or(""), "targets=all-linear,"));
}

TEST_CASE("dialects: files and programs that no table knows are told by name, once") {
  CHECK(has(refused("model: {_component_: torchtune.models.llama3.lora_llama3_8b}\nbatch_size: 2\n"),
            "this is a file of torchtune, whose files are not read"));
  CHECK(has(refused("actor_rollout_ref: {a: 1}\n"), "this is a file of verl"));
  const auto line = [](const std::vector<std::string>& words) {
    return refusal([&] { return read_launch(words, example); });
  };
  const std::string tune = line({"tune", "run", "lora_finetune_single_device", "--config", "llama3/8B_lora"});
  CHECK(has(tune, "recipes and arguments of torchtune are not read"));
  CHECK(!has(tune, "a word without a key"));
  CHECK(has(line({"swift", "sft", "--train_type", "lora"}), "recipes and arguments of ms-swift are not read"));
  const std::string rows = line({"python", "train.py", "--batch_size", "4"});
  CHECK(has(rows, "unknown argument \"batch_size\": TrainingArguments has no such key"));
  CHECK(has(rows, "per_device_train_batch_size"));
  CHECK(has(refused("template: llama3\nfinetuning_type: lora\nallocator_conf: a\n"), "--alloc-conf"));
  CHECK(has(refused("template: llama3\nfinetuning_type: lora\ncutoff_length: 8\n"), "did you mean \"cutoff_len\"?"));
}

TEST_CASE("dialects: axolotl's muon is its own") {
  const ModelSpec base =
      build_model(parse_json("m.json", read_file((kRoot / "models" / "llama-3-8b.json").string())), "m");
  const auto made = [&](const std::string& optimizer) {
    return with_program(
        read_yaml("base_model: a\nadapter: lora\nlora_r: 8\nlora_target_linear: true\noptimizer: " + optimizer), base,
        nullptr);
  };
  for (const char* own : {"muon", "dion", "flash_adamw"}) {
    CHECK(has(refusal([&] { return made(own); }), "of axolotl's own is not modelled yet"));
  }
  CHECK(made("adamw_8bit").not_modelled.empty());
}

TEST_CASE("dialects: names of modules that are not there are left out as peft does it, unless none is there") {
  const ModelSpec base =
      build_model(parse_json("m.json", read_file((kRoot / "models" / "llama-3-8b.json").string())), "m");
  const auto lora = [&](const std::string& targets) {
    const Request made = with_program(
        read_yaml("base_model: a\nadapter: lora\nlora_r: 8\nlora_target_modules: " + targets), base, nullptr);
    const bool warned = std::any_of(made.notices.begin(), made.notices.end(), [](const Notice& notice) {
      return has(notice.message, "has no module c_attn: peft puts adapters on the others and says nothing");
    });
    return made.lora.value.value_or("") + (warned ? " warned" : "");
  };
  CHECK(has(lora("[q_proj, c_attn]"), "targets=q_proj,"));
  CHECK(has(lora("[q_proj, c_attn]"), " warned"));
  CHECK(has(lora("[c_attn]"), "targets=c_attn,"));
  CHECK(!has(lora("[q_proj, v_proj]"), " warned"));
}

TEST_CASE("dialects: LLaMA-Factory trains nothing without do_train") {
  const std::string file = "model_name_or_path: a\nfinetuning_type: full\ntemplate: llama3\n";
  const ModelSpec base =
      build_model(parse_json("m.json", read_file((kRoot / "models" / "llama-3-8b.json").string())), "m");
  const auto warned = [&](const std::string& more) {
    const Request made = with_program(read_yaml(file + more), base, nullptr);
    return std::any_of(made.notices.begin(), made.notices.end(), [](const Notice& notice) {
      return notice.kind == Notice::Kind::Warning && has(notice.message, "do_train is not said");
    });
  };
  CHECK(warned(""));
  CHECK(!warned("do_train: true\n"));
  const Request none = with_program(read_yaml(file + "do_train: false\n"), base, nullptr);
  REQUIRE(none.not_modelled.size() == 1);
  CHECK(none.not_modelled.front().feature == "a run that trains nothing");
}

TEST_CASE("dialects: what a file leaves open is told") {
  const auto told = [](const Said& said, const std::string& part) {
    return std::any_of(said.request.notices.begin(), said.request.notices.end(),
                       [&](const Notice& notice) { return has(notice.message, part); });
  };
  const std::string script = "model_name_or_path: gpt2\nlearning_rate: 1e-5\n";
  CHECK(told(read_yaml(script), "`-- trl sft --config FILE` is theirs"));
  CHECK(!told(read_yaml(script + "block_size: 64\n"), "is theirs"));
  CHECK(!told(read_yaml("output_dir: o\nlearning_rate: 1e-5\n"), "is theirs"));
  const Said pairs = read_yaml("use_peft: true\nbeta: 0.1\n");
  CHECK(pairs.foreign.trainer.value == "dpo");
  CHECK(told(pairs, "\"beta\" is taken for DPO's"));
  const auto line = [](const std::vector<std::string>& words) { return read_launch(words, example); };
  CHECK(told(line({"torchrun", "train_lora.py", "--bf16"}), "the script's name speaks of adapters"));
  CHECK(!told(line({"torchrun", "train.py", "--bf16"}), "the script's name"));
  CHECK(!told(line({"trl", "sft", "--config", "trl/sft_lora.yaml"}), "the script's name"));
  // A GRPO file is no DPO file with one fault.
  const std::string grpo = completed(read_yaml("use_peft: true\nbeta: 0.1\nloss_type: dr_grpo\nnum_generations: 8\n"));
  CHECK(has(grpo, "refused: \"num_generations\": not modelled yet: a trainer that generates, as GRPO does"));
}

TEST_CASE("TrainingArguments: what transformers 4 says beside fsdp is FSDP of version 1") {
  const Said said = read_yaml("fsdp: full_shard auto_wrap\nfsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n");
  CHECK(said.foreign.trainers.classes.value == std::vector<std::string>{"LlamaDecoderLayer"});
  CHECK(said.foreign.trainers.version.value == "1");
  CHECK(said.request.torch_dtype.value == "float32");
  const Said newer = read_yaml(
      "fsdp_config: {version: 2}\nfsdp: true\nfsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\ntorch_dtype: "
      "bfloat16\n");
  CHECK(newer.foreign.trainers.version.value == "2");
  CHECK(newer.request.torch_dtype.value == "bfloat16");
  CHECK(!read_yaml("fsdp: true\nfsdp_min_num_params: 0\n").foreign.trainers.version.given());
}

TEST_CASE("dialects: a DeepSpeed JSON and our own file are training files, too") {
  const Said json = read_training_document(
      parse_json("ds.json", R"({"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}})"));
  REQUIRE(json.request.inline_deepspeed.has_value());
  CHECK(json.request.inline_deepspeed->zero.stage.value == 2);
  const Said own =
      read_training_document(parse_json("t.json", R"({"dsplan": 1, "kind": "training", "source": "x", "seq": 7})"));
  CHECK(own.request.seq.value == 7);
}

TEST_CASE("dialects: environment variables") {
  ::setenv("DSPLAN_TEST_ROWS", "4", 1);
  ::setenv("DSPLAN_TEST_MODEL", "gpt2", 1);
  ::unsetenv("DSPLAN_TEST_NOWHERE");
  const Said said = read_yaml(
      "base_model: ${DSPLAN_TEST_MODEL}-xl\nmicro_batch_size: ${DSPLAN_TEST_ROWS}\n"
      "sequence_len: ${DSPLAN_TEST_NOWHERE:-512}\n");
  CHECK(said.foreign.model.value == "gpt2-xl");
  CHECK(said.request.micro_batch.value == 4);
  CHECK(said.request.seq.value == 512);
  CHECK(read_yaml("template: a\ncutoff_len: ${oc.env:DSPLAN_TEST_NOWHERE,64}\n").request.seq.value == 64);
  CHECK(refused("base_model: ${DSPLAN_TEST_NOWHERE}\n") ==
        "f.yaml:1:13: error: the environment variable DSPLAN_TEST_NOWHERE is not set; set it, or write the value\n"
        "    1 | base_model: ${DSPLAN_TEST_NOWHERE}\n"
        "      |             ^\n");
  CHECK(has(refused("base_model: ${a b}\n"), "names no environment variable"));
  CHECK(has(refused("base_model: a${b\n"), "without \"}\""));
}

TEST_CASE("dialects: YAML that is not read") {
  CHECK(has(refused("base_model: *x\nmicro_batch_size: 1\n"), "alias *x names no anchor"));
  CHECK(has(refused("base_model: a\n<<: 3\n"), "merge key"));
  CHECK(has(refused("base_model: a\nbase_model: b\n"), "base_model"));
  std::string large = "base_model: a\n";
  while (large.size() <= kLargestYaml) large += "# nothing to see on this line, and many of them\n";
  CHECK(has(refused(large), "larger than 1 MiB"));
  std::string many = "base_model: a\n";
  for (int i = 0; i < 30'000; ++i) many += formatted("key_{}: 1\n", i);
  CHECK(has(refused(many), "unknown key"));
}

TEST_CASE("dialects: anchors and merge keys are read as the projects' parsers read them") {
  const Said said = read_yaml(
      "base_model: &model a\n<<: {micro_batch_size: 3, sequence_len: 64}\nsequence_len: 32\n"
      "tokenizer_config: *model\n");
  CHECK(said.request.micro_batch.value == 3);
  CHECK(said.request.seq.value == 32);
  CHECK(said.foreign.model.value == "a");
  // A fault in what is merged points to where that stands.
  CHECK(has(refused("base_model: a\n<<: {micro_batch_sizes: 3}\n"),
            "f.yaml:2:6: error: unknown key \"micro_batch_sizes\""));
}

TEST_CASE("dialects: damaged examples are read or refused") {
  const Examples examples = examples_in_yaml();
  const char* const more = std::getenv("DSPLAN_MUTATIONS");
  const int rounds = more != nullptr ? std::atoi(more) : 2'000;
  std::mt19937 random(1);
  int read = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::string text = damaged(examples, random);
    try {
      (void)completed(read_training_document(parse_yaml("f.yaml", text)));
      ++read;
    } catch (const Refusal&) {
    }
  }
  CHECK(read > rounds / 20);
  CHECK(read < rounds);
}

TEST_CASE("accelerate: what it starts is what distributed_type says, or a switch of its line") {
  const auto open = [](const std::string& path) {
    return parse_yaml(path, path == "no.yaml"
                                ? "distributed_type: 'NO'\nnum_processes: 8\n"
                                : "distributed_type: MULTI_GPU\nnum_processes: 2\ndeepspeed_config: {zero_stage: 3}\n");
  };
  const auto line = [&](const std::vector<std::string>& words) { return read_launch(words, open); };
  // One process, whatever num_processes says.
  CHECK(read_yaml("num_processes: 8\ndistributed_type: 'NO'\nmachine_rank: 0\n").request.gpus.value == 1);
  CHECK(read_yaml("distributed_type: 'NO'\nmachine_rank: 0\nnum_processes: 8\n").request.gpus.value == 1);
  CHECK(line({"accelerate", "launch", "--config_file", "no.yaml", "--num_processes", "4", "t.py"}).request.gpus.value ==
        1);
  CHECK(line({"accelerate", "launch", "--config_file", "no.yaml", "--multi_gpu", "t.py"}).request.gpus.value == 8);
  // DeepSpeed's block is read under DEEPSPEED alone.
  const Said other = line({"accelerate", "launch", "--config_file", "multi.yaml", "t.py"});
  CHECK(!other.request.inline_deepspeed);
  CHECK(!other.request.zero_stage.given());
  CHECK(has(other.request.notices.back().message, "it needs distributed_type: DEEPSPEED, or --use_deepspeed"));
  const Said switched = line({"accelerate", "launch", "--config_file", "multi.yaml", "--use_deepspeed", "t.py"});
  REQUIRE(switched.request.inline_deepspeed.has_value());
  CHECK(switched.request.inline_deepspeed->zero.stage.value == 3);
  CHECK(switched.request.runtime.value == "deepspeed");
  const Said named = line({"accelerate", "launch", "--deepspeed_config_file", "ds.json", "t.py"});
  CHECK(!named.request.deepspeed.given());
  CHECK(line({"accelerate", "launch", "--use_deepspeed", "--deepspeed_config_file", "ds.json", "t.py"})
            .request.deepspeed.value == "ds.json");
  // accelerate fills "auto" in from the model, as transformers does.
  CHECK(read_yaml("distributed_type: DEEPSPEED\nmachine_rank: 0\ndeepspeed_config: {deepspeed_config_file: d.json}\n")
            .request.hugging_face_rules());
  const std::string mesh =
      "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_version: 2}\nparallelism_config: "
      "{parallelism_config_dp_shard_size: 2, parallelism_config_tp_size: 4}\n";
  const std::string shown = completed(read_yaml(mesh));
  CHECK(has(shown, "not modelled: parallelism_config.parallelism_config_tp_size: tensor parallelism under accelerate"));
  CHECK(!has(shown, "which are not 8 ranks"));
  ModelSpec base;
  base.family = "llama";
  const Request counted = with_program(read_yaml("distributed_type: MULTI_GPU\nmachine_rank: 0\n"), base, nullptr);
  CHECK(has(counted.notices.back().message,
            "MULTI_GPU without num_processes: accelerate wants it on its line; say --gpus"));
}

TEST_CASE("accelerate: a plugin of version 2 is calls of fully_shard") {
  ModelSpec base;
  base.dims.layers = 2;
  const auto request = [&](const std::string& inside, const std::string& beside_it = "") {
    const std::string text =
        "distributed_type: FSDP\nnum_processes: 8\n" + beside_it + "fsdp_config:\n  fsdp_version: 2\n" + inside;
    return with_program(read_training_document(parse_yaml("a.yaml", text)), base, nullptr);
  };
  const auto refusal_of = [&](const std::string& inside, const std::string& beside_it = "") {
    return refusal([&] { return request(inside, beside_it); });
  };
  const Request usual = request("  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n");
  CHECK(usual.runtime.value == "fsdp2");
  CHECK(usual.gpus.value == 8);
  CHECK(usual.fsdp.wrap.value == "layers+ends");
  CHECK(usual.fsdp.reshard_after_forward.value == "true");
  CHECK(usual.model_init.value == "rank0");  // The launcher's default.
  CHECK(!usual.checkpoint.given());
  CHECK(usual.not_modelled.empty());
  CHECK(request("").fsdp.wrap.value == "root+ends");
  const std::string policy = "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n";
  CHECK(request(policy + "  fsdp_transformer_layer_cls_to_wrap: A,B\n").fsdp.wrap.value == "A+B+ends");
  CHECK(request("  fsdp_cpu_ram_efficient_loading: false\n").model_init.value == "host");
  CHECK(request("  fsdp_cpu_ram_efficient_loading: false\n").fsdp.wrap.value == "root+ends+held");
  CHECK(request("  fsdp_reshard_after_forward: false\n").fsdp.reshard_after_forward.value == "false");
  CHECK(request("  fsdp_offload_params: true\n").fsdp.cpu_offload.value == "true");
  CHECK(!usual.fsdp.cpu_offload.given());
  const Request again = request(policy + "  fsdp_activation_checkpointing: true\n");
  CHECK(again.checkpoint.value == "full");
  CHECK(again.checkpoint_impl.value == "non_reentrant");
  CHECK(again.preserve_rng_state.value == false);
  CHECK(has(refusal_of("  fsdp_activation_checkpointing: true\n"), "without a wrapping policy"));
  CHECK(has(refusal_of("  fsdp_state_dict_type: LOCAL_STATE_DICT\n"), "accelerate has SHARDED_STATE_DICT"));
  CHECK(has(refusal_of("  fsdp_sync_module_states: false\n"), "accelerate refuses it: turn both on"));
  CHECK(has(refusal_of("  fsdp_reshard_after_forward: FULL_SHARD\n"), "FSDP1's word"));
}

TEST_CASE("accelerate: a plugin of version 1 is FullyShardedDataParallel") {
  ModelSpec base;
  base.dims.layers = 2;
  const auto request = [&](const std::string& inside, const std::string& beside_it = "") {
    const std::string text = "distributed_type: FSDP\nnum_processes: 8\n" + beside_it + "fsdp_config:\n" +
                             "  fsdp_offload_params: false\n" + inside;
    return with_program(read_training_document(parse_yaml("a.yaml", text)), base, nullptr);
  };
  const auto refusal_of = [&](const std::string& inside, const std::string& beside_it = "") {
    return refusal([&] { return request(inside, beside_it); });
  };
  const Request usual = request("");  // The launcher's defaults.
  CHECK(usual.runtime.value == "fsdp1");
  CHECK(usual.fsdp.wrap.value == "root");
  CHECK(usual.fsdp.reshard_after_forward.value == "true");
  CHECK(usual.fsdp.use_orig_params.value == "true");
  CHECK(usual.fsdp.sync_module_states.value == "true");
  CHECK(usual.fsdp.backward_prefetch.value == "none");
  CHECK(!usual.fsdp.forward_prefetch.given());
  CHECK(usual.model_init.value == "host");
  CHECK(usual.not_modelled.empty());
  const Request flat = request(
      "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n"
      "  fsdp_backward_prefetch: BACKWARD_POST\n  fsdp_forward_prefetch: true\n  fsdp_use_orig_params: false\n"
      "  fsdp_cpu_ram_efficient_loading: false\n  fsdp_sync_module_states: false\n");
  CHECK(flat.fsdp.wrap.value == "layers");
  CHECK(flat.fsdp.reshard_after_forward.value == "false");
  CHECK(flat.fsdp.backward_prefetch.value == "post");
  CHECK(flat.fsdp.forward_prefetch.value == "true");
  CHECK(flat.fsdp.use_orig_params.value == "false");
  CHECK(flat.fsdp.sync_module_states.value == "false");
  CHECK(request("  fsdp_sharding_strategy: 4\n").fsdp.shard.value == "node");
  const Request unread = request("  fsdp_reshard_after_forward: SHARD_GRAD_OP\n");
  CHECK(unread.fsdp.reshard_after_forward.value == "true");
  REQUIRE(!unread.notices.empty());
  CHECK(has(unread.notices.back().message, "has no effect: under version 1"));
  const std::string policy = "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n";
  const Request again = request(policy + "  fsdp_activation_checkpointing: true\n");
  CHECK(again.checkpoint.value == "full");
  CHECK(again.checkpoint_impl.value == "non_reentrant");
  CHECK(!again.preserve_rng_state.given());
  CHECK(has(refusal_of("  fsdp_activation_checkpointing: true\n"), "without a wrapping policy"));
  CHECK(has(refusal_of("  fsdp_sync_module_states: false\n"), "accelerate refuses it: turn both on"));
  CHECK(has(refusal_of("  fsdp_sharding_strategy: FULL\n"), "no strategy of FSDP1"));
  CHECK(has(refusal_of("  fsdp_backward_prefetch: PRE\n"), "no backward prefetch of FSDP1"));
  CHECK(has(refusal_of("", "parallelism_config:\n  parallelism_config_dp_shard_size: 8\n"), "accelerate's mesh"));
  const Request whole = request("  fsdp_sharding_strategy: NO_SHARD\n");
  CHECK(whole.fsdp.shard.value == "1");
}

TEST_CASE("accelerate: meshes, FSDP1's keys, and what is saved under version 2") {
  const ModelSpec base;
  const auto request = [&](const std::string& inside, const std::string& beside_it) {
    const std::string text =
        "distributed_type: FSDP\nnum_processes: 8\n" + beside_it + "fsdp_config:\n  fsdp_version: 2\n" + inside;
    return with_program(read_training_document(parse_yaml("a.yaml", text)), base, nullptr);
  };
  const auto refusal_of = [&](const std::string& inside, const std::string& beside_it) {
    return refusal([&] { return request(inside, beside_it); });
  };
  const auto mesh = [](std::int64_t replicas, std::int64_t shards) {
    return dsplan::formatted(
        "parallelism_config:\n  parallelism_config_dp_replicate_size: {}\n  parallelism_config_dp_shard_size: {}\n",
        replicas, shards);
  };
  const Request replicated = request("", mesh(2, 4));
  CHECK(replicated.runtime.value == "hsdp");
  CHECK(replicated.fsdp.replicate.value == "2");
  CHECK(replicated.fsdp.shard.value == "4");
  CHECK(request("", mesh(1, 8)).runtime.value == "fsdp2");
  CHECK(has(refusal_of("", mesh(3, 2)), "3 replicas of 2 shards, which are not 8 ranks"));
  CHECK(has(refusal_of("", mesh(8, 1)), "needs a parallelism_config_dp_shard_size above 1"));
  const std::string tensor = "parallelism_config:\n  parallelism_config_tp_size: ";
  CHECK(request("", tensor + "1\n").not_modelled.empty());
  REQUIRE(request("", tensor + "2\n").not_modelled.size() == 1);
  const std::string alone = "distributed_type: MULTI_GPU\nnum_processes: 8\n" + mesh(2, 4);
  CHECK(has(refusal([&] { (void)with_program(read_training_document(parse_yaml("a.yaml", alone)), base, nullptr); }),
            "parallelism_config without FSDP version 2; accelerate refuses it"));
  // Whole dicts are saved by the Trainer, sharded ones by accelerate.
  const auto trainers = [&](const std::string& more) {
    const std::string text = "per_device_train_batch_size: 1\nfsdp: true\n" + more;
    return with_program(read_training_document(parse_yaml("a.yaml", text)), base, nullptr).fsdp.state_dict.value_or("");
  };
  CHECK(request("", "").fsdp.state_dict.value_or("").empty());
  CHECK(trainers("") == "full");
  CHECK(trainers("fsdp_config:\n  state_dict_type: SHARDED_STATE_DICT\n").empty());
  // FSDP1's keys under version 2: what accelerate does not read has no effect, and says why.
  const Request old = request(
      "  fsdp_sharding_strategy: HYBRID_SHARD\n  fsdp_backward_prefetch: BACKWARD_PRE\n"
      "  fsdp_forward_prefetch: true\n  fsdp_use_orig_params: true\n",
      "");
  CHECK(old.runtime.value == "fsdp2");
  CHECK(old.fsdp.reshard_after_forward.value == "true");
  REQUIRE(old.notices.size() == 4);
  for (const Notice& notice : old.notices) CHECK(notice.kind == Notice::Kind::Inert);
  CHECK(has(old.notices[0].message, "fsdp_reshard_after_forward says it"));
  CHECK(has(old.notices[1].message, "accelerate warns"));
}

TEST_CASE("torchtitan: the mesh, the batch and checkpoints") {
  const auto toml = [](const std::string& text) { return read_training_document(parse_toml("t.toml", text)); };
  const auto request = [&](const std::string& text, std::int64_t gpus) {
    Said said = toml("[model]\nflavor = '8B'\n" + text);
    if (gpus > 0) said.request.gpus = {gpus, option("--gpus")};
    ModelSpec base;
    base.dims.layers = 5;
    return with_program(said, base, nullptr);
  };
  const auto refusal_of = [&](const std::string& text, std::int64_t gpus) {
    return refusal([&] { return request(text, gpus); });
  };
  const Request sharded = request("[job]\n", 8);
  CHECK(sharded.runtime.value == "fsdp2");
  CHECK(sharded.fsdp.shard.value == "8");
  CHECK(!sharded.fsdp.cpu_offload.given());
  CHECK(request("[training]\nenable_cpu_offload = true\n", 8).fsdp.cpu_offload.value == "true");
  CHECK(sharded.fsdp.param_dtype.value == "bf16");
  CHECK(sharded.fsdp.reduce_dtype.value == "fp32");
  CHECK(sharded.checkpoint.value == "groups:1,3");  // Every second of five layers.
  CHECK(sharded.optimizer.value == "adamw");
  const Request both = request("[parallelism]\ndata_parallel_replicate_degree = 2\n", 8);
  CHECK(both.runtime.value == "hsdp");
  CHECK(both.fsdp.shard.value == "4");
  CHECK(both.fsdp.replicate.value == "2");
  const Request ddp = request(
      "[parallelism]\ndata_parallel_replicate_degree = 4\ndata_parallel_shard_degree = 1\n"
      "[training]\nglobal_batch_size = 64\nlocal_batch_size = 2\n",
      0);
  CHECK(ddp.runtime.value == "pytorch");
  CHECK(ddp.gpus.value == 4);
  CHECK(ddp.autocast.value == "bf16");
  CHECK(!ddp.fsdp.param_dtype.given());
  CHECK(ddp.grad_accum.value == 8);
  CHECK(ddp.ddp.bucket_cap_mb.value == 100);
  CHECK(
      has(refusal_of("[parallelism]\ndata_parallel_shard_degree = 3\n", 8), "1 replicas of 3 shards are not 8 ranks"));
  CHECK(has(refusal_of("[job]\n", 0), "nothing says how many there are; --gpus 8, or a launch line"));
  CHECK(has(refusal_of("[training]\nglobal_batch_size = 100\n", 8), "100 is no multiple of 8 rows in 8 ranks"));
  const auto resharded = [&](const std::string& word) {
    const FsdpInput fsdp = request("[parallelism]\nfsdp_reshard_after_forward = '" + word + "'\n", 8).fsdp;
    return fsdp.reshard_after_forward.value_or("") + " " + fsdp.reshard_tail.value_or("false");
  };
  CHECK(resharded("default") == "true false");
  CHECK(resharded("always") == "true true");
  CHECK(resharded("never") == "false false");
  CHECK(has(refusal_of("[activation_checkpoint]\nselective_ac_option = 'x'\n", 8), "neither a number of layers"));
  CHECK(has(refusal([&] { return toml("[training]\nseq_len = 1\nseq_len = 2\n"); }), "t.toml:3:"));
  CHECK(has(refusal([&] { return toml("[training]\nseq_lem = 1\n"); }),
            "t.toml:2:1: error: unknown key \"training.seq_lem\" in a torchtitan configuration; did you mean "
            "\"training.seq_len\"?"));
  const Request tensor = request("[parallelism]\ntensor_parallel_degree = 8\n", 8);
  REQUIRE(tensor.not_modelled.size() == 1);
  CHECK(tensor.not_modelled[0].key == "parallelism.tensor_parallel_degree");
}

TEST_CASE("torchtitan: groups of an older release") {
  const auto toml = [](const std::string& text) { return read_training_document(parse_toml("t.toml", text)); };
  // Before 0.2 layers and the model alone had groups, and the last layer stayed whole by default.
  const auto older = [&](const std::string& word, const char* version) {
    Said said = toml("[model]\nflavor = '8B'\n[parallelism]\nfsdp_reshard_after_forward = '" + word + "'\n");
    said.request.gpus = {8, option("--gpus")};
    said.request.set = {std::vector<std::string>{std::string("torchtitan=") + version}, option("--set")};
    ModelSpec base;
    base.dims.layers = 5;
    const Request made = with_program(said, base, nullptr);
    CHECK(made.set->empty());
    CHECK(made.torchtitan_version.value == version);
    CHECK(made.model_code.value == "torchtitan");
    const FsdpInput& fsdp = made.fsdp;
    return *fsdp.wrap + " " + *fsdp.reshard_after_forward + " " + fsdp.reshard_root.value_or("false") + " " +
           fsdp.reshard_tail.value_or("false") + " " + fsdp.reshard_last.value_or("true");
  };
  CHECK(older("default", "0.1.0") == "layers true true false false");
  CHECK(older("always", "0.1.0") == "layers true true false true");
  CHECK(older("never", "0.1.0") == "layers false true false true");
  CHECK(older("always", "0.2.2") == "ends true false true true");
}

TEST_CASE("torchtitan: launch lines") {
  const auto open = [](const std::string& path) {
    return parse_toml(path,
                      "[model]\nname = 'qwen3'\nflavor = '8B'\n[training]\nseq_len = 64\n[compile]\nenable = true\n");
  };
  const Said said = read_launch({"torchrun", "--nproc_per_node=8", "-m", "torchtitan.train", "--job.config-file",
                                 "t.toml", "--training.local-batch-size", "2", "--compile.no-enable"},
                                open);
  CHECK(said.foreign.program.value == "torchtitan");
  CHECK(said.foreign.model.value == "Qwen3-8B");
  CHECK(said.request.gpus.value == 8);
  CHECK(said.request.seq.value == 64);
  CHECK(said.request.micro_batch.value == 2);
  CHECK(said.request.not_modelled.empty());
}

TEST_CASE("packed weights in dialects: as each program hands them to bitsandbytes") {
  const auto request = [](const std::string& text) {
    ModelSpec base;
    base.family = "llama";
    return with_program(read_yaml(text), base, nullptr);
  };
  const Request trl = request("use_peft: true\nload_in_4bit: true\ndtype: bfloat16\n");
  CHECK(trl.quantization.value == "nf4");
  CHECK(trl.double_quant.value == false);
  CHECK(trl.quant_compute_dtype.value == "bfloat16");
  CHECK(trl.quant_storage.value == "uint8");
  CHECK(trl.kbit_prepare.value == false);
  CHECK(has(*trl.lora, "dtype=bf16"));
  const Request factory = request("template: llama3\nquantization_bit: 4\nquantization_type: fp4\nbf16: true\n");
  CHECK(factory.quantization.value == "fp4");
  CHECK(factory.double_quant.value == true);
  CHECK(factory.quant_storage.value == "bfloat16");
  CHECK(has(*factory.lora, "targets=all-linear,dtype=fp32"));
  const Request axolotl = request(
      "base_model: a\nadapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_target_linear: true\nlora_mlp_kernel: false\n"
      "bnb_config_kwargs: {bnb_4bit_use_double_quant: false}\n");
  CHECK(axolotl.quantization.value == "nf4");
  CHECK(axolotl.double_quant.value == false);
  CHECK(axolotl.quant_storage.value == "bfloat16");
  CHECK(has(refused("base_model: a\nadapter: qlora\n"), "adapter: qlora without load_in_4bit"));
  CHECK(has(refused("base_model: a\nadapter: lora\nload_in_4bit: true\n"),
            "load_in_4bit with adapter: lora packs no weight in axolotl"));
  CHECK(refused("base_model: a\nadapter: lora\nload_in_8bit: true\n") == "accepted");
  CHECK(has(refused("use_peft: true\nload_in_4bit: true\nload_in_8bit: true\n"), "weights of 4 bits and of 8 bits"));
  CHECK(has(refusal([&] { return request("template: llama3\nquantization_bit: 3\n"); }), "packs no weights of 3 bits"));
  const auto cut = [](const char* bits) {
    DeepSpeedInput deepspeed;
    deepspeed.zero.stage = {3, {}};
    ModelSpec base;
    base.family = "llama";
    const std::string text = std::string("template: llama3\nbf16: true\nquantization_bit: ") + bits + "\n";
    return with_program(read_yaml(text), base, &deepspeed);
  };
  CHECK(cut("4").quant_storage.value == "bfloat16");
  CHECK(has(refusal([&] { return cut("8"); }), "8 bits under ZeRO-3: LLaMA-Factory takes 4 alone there"));
}

TEST_CASE("launch lines: files that they name are read") {
  const auto open = [](const std::string& path) {
    if (path == "acc.yaml") {
      return parse_yaml(path,
                        "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"
                        "deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu}\n");
    }
    if (path == "lora.yml") {
      return parse_yaml(path,
                        "base_model: NousResearch/Llama-3.2-1B\nadapter: lora\nlora_r: 16\nlora_target_linear: true\n"
                        "lora_mlp_kernel: false\nmicro_batch_size: 2\nsequence_len: 4096\n");
    }
    if (path == "lf.yaml") {
      return parse_yaml(path, "model_name_or_path: gpt2\ntemplate: default\nfinetuning_type: full\ncutoff_len: 64\n");
    }
    if (path == "sft.yaml") return parse_yaml(path, "model_name_or_path: gpt2\nmax_length: 128\nlora_r: 4\n");
    throw Refusal(path, "no such file or folder");
  };
  const auto read = [&](const std::vector<std::string>& words) { return read_launch(words, open); };

  const Said accelerated =
      read({"accelerate", "launch", "--config_file", "acc.yaml", "--num_processes", "4", "train.py"});
  CHECK(accelerated.request.gpus.value == 4);
  REQUIRE(accelerated.request.inline_deepspeed.has_value());
  CHECK(accelerated.request.inline_deepspeed->zero.stage.value == 3);
  CHECK(accelerated.request.inline_deepspeed->zero.offload_optimizer.device.value == OffloadDevice::Cpu);
  CHECK(accelerated.request.mixed_precision.value == "bf16");

  const Said axolotl = read({"axolotl", "train", "lora.yml", "--micro-batch-size", "4", "--launcher", "torchrun", "--",
                             "--nproc_per_node=8"});
  CHECK(axolotl.foreign.program.value == "axolotl");
  CHECK(axolotl.foreign.model.value == "NousResearch/Llama-3.2-1B");
  CHECK(axolotl.foreign.adapters.value == true);
  CHECK(axolotl.request.micro_batch.value == 4);
  CHECK(axolotl.request.seq.value == 4096);
  CHECK(axolotl.request.gpus.value == 8);

  const Said both = read({"accelerate", "launch", "--config_file", "acc.yaml", "-m", "axolotl.cli.train", "lora.yml"});
  CHECK(both.request.gpus.value == 8);
  CHECK(both.request.seq.value == 4096);

  const Said factory = read({"CUDA_VISIBLE_DEVICES=0,1", "llamafactory-cli", "train", "lf.yaml", "cutoff_len=256"});
  CHECK(factory.request.seq.value == 256);
  CHECK(factory.foreign.adapters.value == false);
  CHECK(factory.request.gpus.value == 2);
  CHECK(read({"torchrun", "--nproc_per_node", "2", "src/train.py", "lf.yaml"}).foreign.program.value ==
        "llama-factory");

  const Said trl = read({"trl", "sft", "--config", "sft.yaml", "--use_peft", "--lora_target_modules", "q_proj",
                         "v_proj", "--max_length", "256"});
  CHECK(trl.foreign.lora_r.value == 4);
  CHECK(trl.foreign.lora_targets.value == std::vector<std::string>{"q_proj", "v_proj"});
  CHECK(trl.request.seq.value == 256);

  const auto refused_line = [&](const std::vector<std::string>& words) { return refusal([&] { return read(words); }); };
  CHECK(has(refused_line({"accelerate", "launch", "--config_file", "none.yaml", "train.py"}), "no such file"));
  CHECK(has(refused_line({"accelerate", "launch", "--config_fil", "acc.yaml", "train.py"}),
            "unknown argument \"config_fil\""));
  CHECK(has(refused_line({"trl", "grpo", "--config", "sft.yaml"}), "what \"trl grpo\" does is not modelled yet"));
  CHECK(has(refused_line({"axolotl", "preprocess", "lora.yml"}), "`axolotl train` is"));
  CHECK(has(refused_line({"torchrun", "train.py", "--lora_rnk", "8"}), "did you mean \"lora_rank\"?"));
  CHECK(has(refused_line({"torchrun", "train.py", "lf.yaml", "sft.yaml"}), "a second configuration beside lf.yaml"));
  CHECK(has(refused_line({"torchrun", "train.py", "data"}), "a word without a key"));
}

TEST_CASE("MODEL and what files say of it agree, or the file's is it") {
  const auto named = [](const std::string& argument, const std::string& name, std::vector<Notice>& notices) {
    return agreed_model(argument, name.empty() ? Setting<std::string>() : Setting<std::string>(name, option("f")),
                        notices);
  };
  const auto agreed = [&](const std::string& argument, const std::string& name) {
    std::vector<Notice> notices;
    return refusal([&] { return named(argument, name, notices); });
  };
  std::vector<Notice> notices;
  CHECK(named("", "meta-llama/Llama-3.1-8B", notices) == "llama-3.1-8b");
  CHECK(named("", "NousResearch/Meta-Llama-3-8B-Instruct", notices) == "llama-3-8b");
  CHECK(named("", "gpt2", notices) == "gpt2");
  CHECK(notices.size() == 2);
  CHECK(named("", "somebody/unheard-of", notices) == "somebody/unheard-of");
  CHECK(agreed("llama-3-8b", "meta-llama/Meta-Llama-3-8B") == "accepted");
  CHECK(agreed("llama-3-8b", "") == "accepted");
  CHECK(agreed("somebody/unheard-of", "else/unheard-of") == "accepted");
  CHECK(agreed("llama-3-8b", "meta-llama/Meta-Llama-3-70B") ==
        "f: error: this names meta-llama/Meta-Llama-3-70B, and MODEL is llama-3-8b; leave MODEL out, or name the "
        "same\n");
  CHECK(agreed("llama-3-8b", "mistralai/Mistral-7B-v0.1") != "accepted");
  CHECK(has(agreed("", ""), "MODEL is missing"));
  notices.clear();
  CHECK(named("llama-3-8b", "/mnt/nowhere/checkpoint", notices) == "llama-3-8b");
  REQUIRE(notices.size() == 1);
  CHECK(has(notices.front().message, "is not here and cannot be compared"));
}

TEST_CASE("programs: adapters and defaults") {
  const auto reads = [](const std::string& yaml, const std::string& part) {
    const std::string text = completed(read_yaml(yaml));
    INFO(text);
    CHECK(has(text, part));
  };
  reads("use_peft: true\n", "--lora: r=16,dtype=fp32,dropout=0.05,alpha=32");
  reads("use_peft: true\nuse_dora: true\nuse_rslora: true\nlora_modules_to_save: [lm_head]\n",
        "alpha=32,rslora=true,dora=true,save=lm_head");
  reads("use_peft: true\nload_in_4bit: true\nlora_modules_to_save: [lm_head]\n", "save=lm_head,save_dtype=bf16");
  reads("stage: sft\nfinetuning_type: lora\nadditional_target: lm_head,embed_tokens\n",
        "save=lm_head+embed_tokens,save_dtype=fp32");
  reads("use_peft: true\nlora_target_modules: all-linear\nlora_r: 8\n", "--lora: r=8,targets=all-linear");
  reads("use_peft: false\nlora_target_modules: [q_proj]\nlora_r: 8\n", "--seq: 1024");
  reads("dataset_train_split: a\nlora_target_modules: [q_proj]\n", "nothing turns them on");
  reads("template: a\nlora_rank: 4\n", "--lora: r=4,targets=all-linear,dtype=fp32,dropout=0,alpha=8");
  reads("template: a\nlora_rank: 4\n", "--checkpoint-impl: reentrant");
  reads("template: a\nfinetuning_type: full\nbf16: true\n", "loaded in: float32");
  reads("template: a\nfinetuning_type: full\npure_bf16: true\n", "loaded in: bfloat16");
  reads("base_model: a\nadapter: lora\nlora_r: 4\nlora_target_linear: true\n", "--lora-kernels: all");
  reads(
      "base_model: a\nadapter: lora\nlora_r: 4\nlora_target_linear: true\nlora_o_kernel: true\nlora_mlp_kernel: true\n",
      "--lora-kernels: o,mlp");
  reads("base_model: a\nadapter: lora\nlora_r: 4\nlora_target_linear: true\nload_in_8bit: true\n",
        "--quantization: int8");
  reads("base_model: a\nadapter: qlora\nload_in_4bit: true\nlora_r: 4\nlora_target_linear: true\n",
        "--lora-kernels: all");
  reads("base_model: a\nadapter: lora\nlora_r: 4\nlora_target_linear: true\nload_in_8bit: true\nlora_o_kernel: true\n",
        "over 8-bit weights: axolotl refuses them");
  reads("base_model: a\nadapter: lora\nlora_target_linear: true\nlora_mlp_kernel: false\n", "without a rank");
  reads("base_model: a\nadapter: lora\nlora_r: 1\nlora_mlp_kernel: false\n", "without names of modules");
  reads("base_model: a\nadapter: lora\nlora_r: 1\nlora_target_modules: [\".*q_proj\"]\nlora_mlp_kernel: false\n",
        "by the pattern \".*q_proj\"");
  reads(
      "base_model: a\nadapter: qlora\nload_in_4bit: true\nlora_r: 1\nlora_target_linear: true\nlora_mlp_kernel: false\n"
      "lora_modules_to_save: [embed_tokens, lm_head]\n",
      "alpha=8,save=embed_tokens+lm_head");
  reads("base_model: a\n", "norms and embeddings in fp32");
}

TEST_CASE("dialects: rows that sequences fill") {
  const auto request = [](const std::string& text) {
    ModelSpec base;
    base.family = "llama";
    return with_program(read_yaml(text), base, nullptr);
  };
  const auto told = [](const Request& said, const std::string& text) {
    return std::any_of(said.notices.begin(), said.notices.end(),
                       [&](const Notice& one) { return has(one.message, text); });
  };
  const std::string trl = "dataset_train_split: a\nper_device_train_batch_size: 4\nmax_length: 512\npacking: true\n";
  const Request folded = request(trl + "attn_implementation: flash_attention_2\n");
  CHECK(folded.micro_batch.value == 1);
  CHECK(folded.seq.value == 2048);
  CHECK(folded.training_arguments->per_device_train_batch_size.value == 1);
  CHECK(told(folded, "packing: a micro-batch is one row of 2048 tokens, taken as full"));
  const Request wrapped = request(trl + "packing_strategy: wrapped\n");
  CHECK(wrapped.micro_batch.value == 4);
  CHECK(wrapped.seq.value == 512);
  CHECK(has(refusal([&] { return request(trl); }), "keeps packed sequences apart without flash attention"));
  CHECK(has(refusal([&] { return request(trl + "beta: 0.1\n"); }), "`trl dpo` has no packing"));
  const std::string factory = "template: llama3\ncutoff_len: 512\nper_device_train_batch_size: 4\npacking: true\n";
  CHECK(request(factory).seq.value == 512);
  CHECK(told(request(factory), "packing: a micro-batch is 4 rows of 512 tokens"));
  CHECK(request(factory + "stage: pt\n").seq.value == 511);
  CHECK(told(request(factory + "stage: dpo\n"), "stage dpo packs nothing"));
}

TEST_CASE("dialects: a dump of TRL's RewardConfig says null, and is of that trainer") {
  const std::string dump =
      "per_device_train_batch_size: 8\ndataset_num_proc: null\ncenter_rewards_coefficient: null\n"
      "max_length: 1024\ndisable_dropout: true\n";
  const Said said = read_yaml(dump);
  CHECK(said.foreign.program.value == "trl");
  CHECK(said.foreign.trainer.value == "reward");
  CHECK(!said.foreign.centered.given());
}

TEST_CASE("dialects: inert keys have types, and enumerations words") {
  const std::string trainer = "per_device_eval_batch_size: 1\n";
  CHECK(has(refused(trainer + "logging_steps: x\n"), "\"logging_steps\" must be a number, not \"x\""));
  CHECK(has(refused(trainer + "report_to: 5\n"), "\"report_to\" must be a string or a list, not an integer"));
  CHECK(has(refused(trainer + "lr_scheduler_type: cosin\n"),
            "\"cosin\" is no lr_scheduler_type; did you mean \"cosine\"?"));
  CHECK(has(refused(trainer + "eval_strategy: sometimes\n"),
            "\"sometimes\" is no eval_strategy; it is one of no, steps, epoch"));
  CHECK(has(refused(trainer + "max_grad_norm: '1.0'\n"), "\"max_grad_norm\" must be a number of at least 0"));
  CHECK(has(refused(trainer + "disable_tqdm: 2\n"), "\"disable_tqdm\" must be true or false, not an integer"));
  CHECK(refused(trainer + "logging_steps: 0.5\nsave_strategy: no\neval_strategy: 'no'\nreport_to: [wandb]\n"
                          "load_best_model_at_end: 0\nrun_name: 2024\nmax_grad_norm: 1e0\nwarmup_ratio: "
                          "1e-1\nsave_total_limit: null\n") == "accepted");
  // argparse and pydantic make numbers of texts.
  CHECK(refused("dataset_train_split: train\nlogging_steps: '5'\n") == "accepted");
  CHECK(refused("base_model: a\nlogging_steps: '5'\n") == "accepted");
  CHECK(has(refused("base_model: a\nlogging_steps: often\n"), "\"logging_steps\" must be"));
}

// Of what the projects annotate as one plain type.
TEST_CASE("dialects: the types of inert keys are those of the projects' own sources") {
  const fs::path file = kRoot / "tests" / "witnesses" / "dialects" / "fields.json";
  const Document dump = parse_json(file.string(), read_file(file.string()));
  const std::map<std::string, std::string> plain = {{"bool", "b"}, {"int", "i"}, {"float", "f"}, {"str", "s"}};
  int compared = 0;
  for (const Member& member : dump.root.members) {
    const auto known = kDumped.find(member.key);
    if (known == kDumped.end() || known->second == Dialect::Accelerate) continue;
    for (const Member& field : member.value.find("fields")->members) {
      const DialectKey* const key = find_key(dialect(known->second), field.key);
      if (key == nullptr || key->treatment != Treatment::Inert || key->path != field.key) continue;
      std::string type = field.value.find("type")->string;
      if (type.ends_with(" | None")) type.resize(type.size() - 7);
      const auto letter = plain.find(type);
      if (letter == plain.end()) continue;
      INFO((member.key + ": " + field.key));
      CHECK(has(std::string(key->type), letter->second));
      ++compared;
    }
  }
  CHECK(compared > 300);
}

TEST_CASE("dialects: TRL has one name for the length of rows") {
  CHECK(has(refused("dataset_train_split: train\nmax_length: 512\nmax_seq_length: 1024\n"),
            "max_seq_length beside max_length: TRL 1.16.0 has no max_seq_length"));
  CHECK(read_yaml("dataset_train_split: train\nmax_seq_length: 1024\n").request.seq.value == 1024);
}

TEST_CASE("a training file and a launch line are of one job") {
  const auto said = [](const std::string& text) { return read_yaml("dataset_train_split: train\n" + text); };
  const auto both = [](const Said& file, const Said& line) { return refusal([&] { return of_one_job(file, line); }); };
  const Said dpo = said("model_name_or_path: Qwen/Qwen2-0.5B\nbeta: 0.1\n");
  CHECK(has(both(dpo, said("model_name_or_path: meta-llama/Llama-3.1-8B\nbeta: 0.1\n")),
            "this names the model meta-llama/Llama-3.1-8B, and f.yaml:2:21 Qwen/Qwen2-0.5B"));
  CHECK(has(both(dpo, said("center_rewards_coefficient: 0.1\n")), "this asks for the trainer reward"));
  CHECK(has(both(dpo, read_yaml("base_model: Qwen/Qwen2-0.5B\n")), "this is for the program axolotl"));
  CHECK(both(dpo, said("model_name_or_path: Qwen/Qwen2-0.5B-Instruct\nbeta: 0.1\n")) == "accepted");
  CHECK(both(dpo, said("model_name_or_path: /nowhere/else/model\n")) == "accepted");
}

TEST_CASE("programs: each part of adapters is known where it stands") {
  ModelSpec base;
  base.family = "llama";
  const Request said =
      with_program(read_yaml("dataset_train_split: train\nuse_peft: true\nlora_target_modules: [q_projj]\n"
                             "lora_modules_to_save: [lm_headd]\n"),
                   base, nullptr);
  CHECK(said.lora.place.line == 2);
  REQUIRE(said.lora_places.targets);
  CHECK(said.lora_places.targets->line == 3);
  REQUIRE(said.lora_places.saved);
  CHECK(said.lora_places.saved->line == 4);
  ModelSpec unknown;
  unknown.family = "phi3";
  CHECK(
      has(refusal([&] { return with_program(read_yaml("dataset_train_split: train\nuse_peft: true\n"), unknown, {}); }),
          "peft 0.21 knows none for phi3, and stops"));
}
