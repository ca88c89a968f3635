#include "io/dialects/program_line.h"

#include <algorithm>
#include <optional>

#include "core/format.h"
#include "io/dialects/dialect_file.h"
#include "io/own_file.h"

namespace dsplan {
namespace {

using Words = std::vector<std::string>;

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool is_configuration(const std::string& word) {
  return word.ends_with(".yaml") || word.ends_with(".yml") || word.ends_with(".toml") || word.ends_with(".json");
}

Value truth(bool is) {
  Value value;
  value.kind = Value::Kind::Bool;
  value.boolean = is;
  return value;
}

// Programs that say their dialect by their name.
struct Known {
  std::string_view word;    // The program, or the module behind "-m".
  std::string_view action;  // The word behind it; empty: none.
  Dialect dialect;
  bool all_devices;
  std::string_view trainer = {};
};
constexpr Known kPrograms[] = {
    {"axolotl", "train", Dialect::Axolotl, true},
    {"axolotl.cli.train", "", Dialect::Axolotl, false},
    {"llamafactory-cli", "train", Dialect::LlamaFactory, true},
    {"lmf", "train", Dialect::LlamaFactory, true},
    {"llamafactory.cli", "train", Dialect::LlamaFactory, true},
    {"llamafactory-cli", "sft", Dialect::LlamaFactoryV1, true},
    {"lmf", "sft", Dialect::LlamaFactoryV1, true},
    {"llamafactory.cli", "sft", Dialect::LlamaFactoryV1, true},
    {"trl", "sft", Dialect::Trl, true, "sft"},
    {"trl", "dpo", Dialect::Trl, true, "dpo"},
    {"trl", "kto", Dialect::Trl, true, "kto"},
    {"trl", "reward", Dialect::Trl, true, "reward"},
    {"trl.scripts.sft", "", Dialect::Trl, false, "sft"},
    {"trl.scripts.dpo", "", Dialect::Trl, false, "dpo"},
    {"trl.scripts.kto", "", Dialect::Trl, false, "kto"},
    {"trl.scripts.reward", "", Dialect::Trl, false, "reward"},
    {"torchtitan.train", "", Dialect::Torchtitan, false},
};
constexpr std::string_view kOnlyTrained[] = {"axolotl", "llamafactory-cli", "lmf", "llamafactory.cli", "trl"};

// Programs whose recipes and arguments no table knows.
struct Stranger {
  std::string_view word;  // The program, or the beginning of the module behind "-m".
  std::string_view name;
};
constexpr Stranger kStrangers[] = {
    {"tune", "torchtune"},    {"swift", "ms-swift"},         {"litgpt", "LitGPT"},     {"xtuner", "XTuner"},
    {"unsloth", "unsloth"},   {"lightning", "Lightning"},    {"fabric", "Lightning"},  {"mlx_lm", "MLX"},
    {"composer", "Composer"}, {"colossalai", "Colossal-AI"}, {"openrlhf", "OpenRLHF"}, {"verl", "verl"},
    {"nemo", "NeMo"},         {"megatron", "Megatron-LM"}};

// False: it is a script, or nobody knows it.
bool is_strange(const std::string& name, Diagnostics& faults, std::vector<Notice>& notices) {
  if (name.ends_with(".py")) {
    if (name.find("unsloth") == std::string::npos) return false;
    notices.push_back({Notice::Kind::Warning,
                       word_place(name),
                       "the script's name speaks of unsloth, whose kernels and checkpoints are its own: what is "
                       "predicted is transformers' model without them",
                       {}});
    return false;
  }
  const std::string first = name.substr(0, name.find('.'));
  for (const Stranger& one : kStrangers) {
    if (one.word != first) continue;
    faults.add(word_place(name).says(formatted("recipes and arguments of {} are not read", one.name),
                                     "say what they say with options: dsplan simulate MODEL --gpus N --micro-batch "
                                     "ROWS --seq TOKENS --checkpoint full --lora r=8"));
    return true;
  }
  return false;
}

// Scripts that are named after one of TRL's trainers: its own, and those of recipes (alignment-handbook, open-r1).
struct TrlScript {
  std::string_view name;
  std::string_view trainer;  // Empty: it is not modelled.
};
constexpr TrlScript kTrlScripts[] = {{"sft", "sft"},       {"dpo_online", ""},   {"dpo", "dpo"},
                                     {"kto", "kto"},       {"reward", "reward"}, {"reward_modeling", "reward"},
                                     {"async_grpo", ""},   {"bco", ""},          {"cpo", ""},
                                     {"distillation", ""}, {"gkd", ""},          {"gold", ""},
                                     {"grpo", ""},         {"gspo", ""},         {"minillm", ""},
                                     {"mpo", ""},          {"nash_md", ""},      {"online_dpo", ""},
                                     {"orpo", ""},         {"ppo", ""},          {"prm", ""},
                                     {"rloo", ""},         {"sdft", ""},         {"sdpo", ""},
                                     {"ssd", ""},          {"tpo", ""},          {"xpo", ""}};

// "examples/scripts/sft_vlm.py" is sft's. Where a folder does not say that it is TRL's, names that others have, too,
// say nothing.
const TrlScript* trl_script(const std::string& path) {
  std::string name = base_name(path);
  if (!name.ends_with(".py")) return nullptr;
  name.resize(name.size() - 3);
  if (name.starts_with("run_")) name.erase(0, 4);
  const auto inside = [&path](const char* folder) { return path.find(folder) != std::string::npos; };
  const bool of_trl = inside("trl/scripts/") || inside("trl/experimental/") || inside("examples/scripts/");
  for (const TrlScript& script : kTrlScripts) {
    const bool begins = name.starts_with(script.name) && name.substr(script.name.size()).starts_with('_');
    if (name != script.name && !(of_trl && begins)) continue;
    const bool common = script.trainer == "sft" || script.trainer == "reward";
    return of_trl || !common ? &script : nullptr;
  }
  return nullptr;
}

bool has_table(Dialect dialect) {
  const std::span<const DialectTable> all = dialects();
  return std::any_of(all.begin(), all.end(), [dialect](const DialectTable& one) { return one.dialect == dialect; });
}

// Whether more words than one may follow a key: what some table reads as a list, or does not read.
bool takes_a_list(const std::string& key) {
  const std::span<const DialectTable> all = dialects();
  return std::any_of(all.begin(), all.end(), [&key](const DialectTable& table) {
    const DialectKey* const row = find_key(table, key);
    return row != nullptr && (row->treatment != DialectKey::Treatment::Honoured || row->reading == Reading::Targets);
  });
}

// Whose arguments OmegaConf reads.
bool is_factory(const std::optional<Dialect>& dialect) {
  return dialect == Dialect::LlamaFactory || dialect == Dialect::LlamaFactoryV1;
}

// axolotl's and TRL's own programs start `accelerate launch` where no other launcher is named.
void launch_usually(const std::optional<Dialect>& expected, ProgramLine& made) {
  const bool theirs = expected == Dialect::Axolotl || expected == Dialect::Trl;
  const bool named = !made.launcher.empty() && !made.launcher.front().starts_with("-");
  if (theirs && made.takes_all_devices && !named) {
    made.launcher.insert(made.launcher.begin(), {"accelerate", "launch"});
  }
}

class ProgramReader {
 public:
  ProgramReader(const Words& words, const ReadNamed& read) : words_(words), read_(read) {}

  ProgramLine read_line() {
    program();
    while (at_ < words_.size()) argument();
    if (file_path_) attempt([&] { file_ = read_(*file_path_); });
    const bool factory_alone = is_factory(expected_) && arguments_.empty();
    if (!file_path_ && (expected_ == Dialect::Axolotl || factory_alone)) {
      faults_.add(word_place(base_name(words_.front())).says("its configuration is missing", "name the YAML"));
    }
    faults_.throw_if_any();
    if (file_) expect_object(*file_, "a training file");
    const DialectTable& table = which();
    const std::vector<Notice> told = std::move(made_.said.request.notices);
    made_.said = read_dialect(table, {file_ ? &*file_ : nullptr, arguments_});
    std::vector<Notice>& notices = made_.said.request.notices;
    notices.insert(notices.begin(), told.begin(), told.end());
    if (trainer_.given()) made_.said.foreign.trainer = trainer_;
    launch_file();
    launch_usually(expected_, made_);
    if (script_of_adapters_) tell_of_adapters();
    return std::move(made_);
  }

 private:
  // TRL's accelerate_config, with what the same file says of ranks above it.
  void launch_file() {
    const Setting<std::string>& named = made_.said.foreign.launch_file;
    if (!named.given()) return;
    if (!launch_file_of_trl(*named) && !is_configuration(*named)) throw Refusal({no_launch_file(named)});
    Words words = {"--config_file", *named};
    Setting<std::int64_t>& ranks = made_.said.request.gpus;
    if (ranks.given()) words.insert(words.end(), {"--num_processes", std::to_string(*ranks)});
    ranks = {};
    words.insert(words.end(), made_.launcher.begin() + (made_.launcher.empty() ? 0 : 2), made_.launcher.end());
    made_.launcher.clear();
    launcher_words(words);
  }

  void tell_of_adapters() {
    Said& said = made_.said;
    if (said.foreign.adapters.given() || !said.foreign.program.value_or({}).empty()) return;
    said.request.notices.push_back(
        {Notice::Kind::Announcement,
         word_place(*script_of_adapters_),
         "the script's name speaks of adapters, and its arguments turn none on: without --lora every weight is trained",
         {}});
  }

  template <class Do>
  void attempt(Do&& act) {
    try {
      act();
    } catch (const Refusal& refusal) {
      for (const Diagnostic& one : refusal.diagnostics()) faults_.add(one);
    }
  }

  void program() {
    if (words_.empty() || words_.front().starts_with("--")) return;
    const std::string& path = words_[at_++];
    std::string name = base_name(path);
    if (name == "-m" && at_ < words_.size()) name = words_[at_++];
    if (const TrlScript* const script = trl_script(path)) {
      expected_ = Dialect::Trl;
      if (!script->trainer.empty()) {
        trainer_ = {std::string(script->trainer), word_place(path)};
        return;
      }
      return faults_.add(word_place(path).says(formatted("what TRL's script \"{}\" trains is not modelled yet", name),
                                               "sft, dpo, kto and reward are"));
    }
    for (const Known& known : kPrograms) {
      const bool action = known.action.empty() || (at_ < words_.size() && words_[at_] == known.action);
      if (known.word != name || !action) continue;
      if (!known.action.empty()) ++at_;
      expected_ = known.dialect;
      made_.takes_all_devices = known.all_devices;
      if (!known.trainer.empty()) trainer_ = {std::string(known.trainer), word_place(name)};
      if (!has_table(known.dialect)) {
        faults_.add(word_place(name).says(formatted("the files of {} are not modelled yet", name)));
      }
      return;
    }
    if (is_strange(name, faults_, made_.said.request.notices)) {
      at_ = words_.size();  // Each word behind it would be one more fault.
      return;
    }
    if (std::find(std::begin(kOnlyTrained), std::end(kOnlyTrained), name) == std::end(kOnlyTrained)) {
      if (name.find("lora") != std::string::npos) script_of_adapters_ = name;
      return;
    }
    const std::string action = at_ < words_.size() ? words_[at_++] : std::string();
    faults_.add(word_place(formatted("{} {}", name, action))
                    .says(formatted("what \"{} {}\" does is not modelled yet", name, action),
                          name == "trl" ? "`trl sft`, `trl dpo`, `trl kto` and `trl reward` are"
                                        : formatted("`{} train` is", name)));
  }

  void argument() {
    const std::string& word = words_[at_++];
    if (word == "--") {
      if (expected_ == Dialect::Axolotl) {
        made_.launcher.insert(made_.launcher.end(), words_.begin() + static_cast<std::ptrdiff_t>(at_), words_.end());
        at_ = words_.size();
      }
      return;
    }
    if (!word.starts_with("--")) return positional(word);
    const std::size_t equals = word.find('=');
    const std::string written = word.substr(0, equals);
    const std::string key = argument_name(written);
    if (equals != std::string::npos) return take(key, written, word_value(word.substr(equals + 1)));
    if (at_ == words_.size() || words_[at_].starts_with("--")) return take_switch(key, written);
    Value value = word_value(words_[at_++]);
    if (takes_a_list(key)) more_values(value);
    take(key, written, std::move(value));
  }

  // "--lora_target_modules q_proj v_proj".
  void more_values(Value& value) {
    while (at_ < words_.size() && !words_[at_].starts_with("-") && !is_configuration(words_[at_])) {
      if (!value.is(Value::Kind::Array)) {
        Value list;
        list.kind = Value::Kind::Array;
        list.items.push_back(std::move(value));
        value = std::move(list);
      }
      value.items.push_back(word_value(words_[at_++]));
    }
  }

  // transformers' parser has --no_NAME for a flag that is on by default, torchtitan's --section.no-name.
  void take_switch(const std::string& key, const std::string& written) {
    std::string positive = key;
    const std::size_t name = key.rfind('.') + 1;  // 0 without a dot.
    if (std::string_view(key).substr(name).starts_with("no_")) positive.erase(name, 3);
    const bool negated = positive != key && !known(key) && known(positive);
    take(negated ? positive : key, written, truth(!negated));
  }

  [[nodiscard]] static bool known(const std::string& key) {
    const std::span<const DialectTable> all = dialects();
    return std::any_of(all.begin(), all.end(),
                       [&key](const DialectTable& table) { return find_key(table, key) != nullptr; });
  }

  void take(const std::string& key, const std::string& written, Value value) {
    const bool names_file = key == "config" || key == "job.config_file";
    if (names_file && value.is(Value::Kind::String)) return configuration(value.string);
    if (expected_ == Dialect::Axolotl && key == "launcher") {
      made_.launcher.insert(made_.launcher.begin(), value.string);
      return;
    }
    if (expected_ == Dialect::Trl && launchers(key)) {
      const bool bare = value.is(Value::Kind::Bool);
      return launcher_words(bare ? Words{written} : Words{written, value.string});
    }
    arguments_.push_back({key, std::move(value), word_place(written)});
  }

  // What TRL's parser does not know goes to `accelerate launch` (trl 1.16.0, cli/commands/training.py).
  [[nodiscard]] static bool launchers(const std::string& key) {
    if (key == "num_processes") return true;
    if (find_key(dialect(Dialect::Trl), key) != nullptr) return false;
    const DialectTable& table = dialect(Dialect::Accelerate);
    return find_key(table, key) != nullptr || find_key(table, "deepspeed_config." + key) != nullptr;
  }
  void launcher_words(const Words& words) {
    if (made_.launcher.empty()) made_.launcher = {"accelerate", "launch"};
    made_.launcher.insert(made_.launcher.end(), words.begin(), words.end());
  }

  // A configuration, or as OmegaConf reads it "key=value".
  void positional(const std::string& word) {
    const std::size_t equals = word.find('=');
    if (is_configuration(word) && (!is_factory(expected_) || equals == std::string::npos)) {
      return configuration(word);
    }
    if (is_factory(expected_) && equals != std::string::npos) {
      const std::string key = word.substr(0, equals);
      return take(key, key, word_value(word.substr(equals + 1)));
    }
    faults_.add(word_place(word).says("a word without a key, which no row knows",
                                      "leave it out if it changes no size, and say what does with an option"));
  }

  void configuration(const std::string& path) {
    if (file_path_) {
      faults_.add(word_place(path).says(formatted("a second configuration beside {}", *file_path_)));
    }
    file_path_ = path;
  }

  [[nodiscard]] const DialectTable& which() const {
    if (expected_) return dialect(*expected_);
    return file_ ? recognise(*file_) : recognise(arguments_);
  }

  const Words& words_;
  const ReadNamed& read_;
  std::size_t at_ = 0;
  ProgramLine made_;
  Diagnostics faults_;
  std::optional<Dialect> expected_;
  Setting<std::string> trainer_;
  std::optional<std::string> script_of_adapters_;
  std::optional<std::string> file_path_;
  std::optional<Document> file_;
  std::vector<DialectArgument> arguments_;
};

}  // namespace

Value word_value(const std::string& text) {
  Value value;
  value.kind = Value::Kind::String;
  value.string = text;
  if (text == "None" || text == "null") value.kind = Value::Kind::Null;
  return value;
}

Place word_place(const std::string& word) { return option(formatted("launch line: {}", word)); }

std::string argument_name(const std::string& word) {
  std::string name = word.substr(std::min(word.find_first_not_of('-'), word.size()));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

ProgramLine read_program_line(const Words& words, const ReadNamed& read) {
  return ProgramReader(words, read).read_line();
}

}  // namespace dsplan
