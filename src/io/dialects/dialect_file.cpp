#include "io/dialects/dialect_file.h"

#include <algorithm>
#include <array>
#include <set>

#include "core/format.h"
#include "io/deepspeed.h"
#include "io/dialects/dialect_reader.h"
#include "io/dialects/program_line.h"
#include "io/dialects/slots.h"
#include "io/own_file.h"
#include "io/text.h"
#include "io/training_file.h"

namespace dsplan {
namespace {

using Treatment = DialectKey::Treatment;

// A key of dsplan's own training file, whose head is missing. Empty: it is none.
std::string own_key_hint(std::string_view key) {
  const std::span<const SettingRow> all = settings();
  const bool own = std::any_of(all.begin(), all.end(), [key](const SettingRow& row) {
    const std::string_view known = row.request.key;
    return known == key || (known.starts_with(key) && known.substr(key.size()).starts_with('.'));
  });
  return own && !key.empty()
             ? "dsplan's own training file has it, and begins with \"dsplan\": 1, \"kind\": \"training\""
             : "";
}

// Walks a file and arguments over one table.
class DialectReader {
 public:
  explicit DialectReader(const DialectTable& table)
      : table_(table), values_(said_, table.dialect == Dialect::Accelerate, faults_) {}

  Said read(const DialectWords& words) {
    if (!table_.program.empty()) {
      const Place place = words.file != nullptr ? place_at(*words.file, words.file->root.offset) : Place{};
      said_.foreign.program = {std::string(table_.program), place};
    }
    if (words.file != nullptr) file(*words.file, words.arguments);
    for (const DialectArgument& argument : words.arguments) take_argument(argument);
    values_.finish();
    faults_.throw_if_any();
    return std::move(said_);
  }

 private:
  void file(const Document& written, const std::vector<DialectArgument>& arguments) {
    Document document = written;
    detail::take_environment(document, faults_);
    overridden_.clear();
    for (const DialectArgument& argument : arguments) overridden_.insert(argument.path);
    if (table_.dialect == Dialect::TrainingArguments) {
      said_.request.training_arguments.emplace().place = place_at(document, document.root.offset);
    }
    members(document, document.root, {});
  }

  void members(const Document& document, const Value& object, const std::string& prefix) {
    for (const Member& member : object.members) {
      if (faults_.full()) return;
      const std::string path = prefix + member.key;
      const DialectKey* const key = find_key(table_, path);
      if (key == nullptr) {
        unknown(place_at(document, member.key_offset), path, formatted("unknown key \"{}\" in {}", path, table_.what));
      } else if ((!member.value.is(Value::Kind::Null) || key->reading == Reading::Rewards) &&
                 !overridden_.contains(path)) {
        take(document, *key, path, member.value);
      }
    }
  }

  void take(const Document& document, const DialectKey& key, const std::string& path, const Value& value) {
    const Place place = place_at(document, value.offset);
    if (key.treatment != Treatment::Block) {
      return judge({key, path, value, place, table_.numbers_in_quotes, &document});
    }
    if (value.is(Value::Kind::Object)) return members(document, value, path + ".");
    // Some are written as the JSON text that a command line would have.
    if (value.is(Value::Kind::String) && value.string.starts_with("{")) return nested(value.string, path, place);
    faults_.add(place.says(formatted("\"{}\" must be an object, not {}", path, describe(value.kind))));
  }

  void nested(const std::string& text, const std::string& path, const Place& place) {
    Document inside;
    try {
      inside = parse_json(place.text(), text);
    } catch (const Refusal& refusal) {
      return faults_.add(place.says(formatted("\"{}\" is not JSON: {}", path, refusal.diagnostics().front().message)));
    }
    for (const Member& member : inside.root.members) {
      const std::string whole = path + "." + member.key;
      const DialectKey* const key = find_key(table_, whole);
      if (key == nullptr) {
        unknown(place, whole, formatted("unknown key \"{}\" in {}", whole, table_.what));
      } else if (!member.value.is(Value::Kind::Null)) {
        judge({*key, whole, member.value, place, true, nullptr});
      }
    }
  }

  void take_argument(const DialectArgument& argument) {
    const DialectKey* const key = find_key(table_, argument.path);
    if (key == nullptr) {
      return unknown(argument.place, argument.path,
                     formatted("unknown argument \"{}\": {} has no such key", argument.path, table_.name));
    }
    if (argument.value.is(Value::Kind::Null)) return;
    // The bare switch --deepspeed is DeepSpeed's own, whoever's script it is.
    const bool bare = key->reading == Reading::DeepSpeed && argument.value.is(Value::Kind::Bool);
    if (key->trainers && !bare && !said_.request.training_arguments) {
      said_.request.training_arguments.emplace().place = argument.place;
    }
    if (key->treatment != Treatment::Block) {
      return judge({*key, argument.path, argument.value, argument.place, true, nullptr});
    }
    if (argument.value.is(Value::Kind::String)) return nested(argument.value.string, argument.path, argument.place);
    faults_.add(argument.place.says(formatted("\"{}\" must be an object in JSON", argument.path)));
  }

  void judge(const detail::Spoken& said) {
    switch (said.key.treatment) {
      case Treatment::Honoured: return values_.honour(said);
      case Treatment::Refused: return values_.refuse(said);
      case Treatment::Inert: return values_.inert(said);
      case Treatment::Block: return;
    }
  }

  // What people write, by what other programs call it.
  [[nodiscard]] std::string_view called_otherwise(std::string_view path) const {
    constexpr std::pair<std::string_view, std::string_view> kSame[] = {
        {"batch_size", "per_device_train_batch_size"},
        {"batch_size", "micro_batch_size"},
        {"micro_batch", "micro_batch_size"},
        {"grad_accum", "gradient_accumulation_steps"},
        {"gradient_accumulation", "gradient_accumulation_steps"},
        {"gradient_checkpoint", "gradient_checkpointing"},
        {"max_seq_len", "max_length"},
        {"max_seq_length", "max_length"},
        {"max_seq_len", "cutoff_len"},
        {"cutoff_length", "cutoff_len"},
        {"max_seq_length", "cutoff_len"},
        {"seq_len", "sequence_len"},
        {"max_seq_len", "sequence_len"},
        {"sequence_length", "sequence_len"},
        {"lora_rank", "lora_r"},
        {"lora_r", "lora_rank"},
        {"r", "lora_r"},
        {"target_modules", "lora_target_modules"},
        {"target_modules", "lora_target"},
        {"lora_target_modules", "lora_target"},
        {"lr", "learning_rate"},
        {"epochs", "num_train_epochs"},
        {"epochs", "num_epochs"},
        {"optimizer", "optim"},
        {"optim", "optimizer"}};
    for (const auto& [written, meant] : kSame) {
      if (written == path && find_key(table_, meant) != nullptr) return meant;
    }
    return {};
  }

  void unknown(const Place& place, const std::string& path, std::string message) {
    std::string hint = did_you_mean(called_otherwise(path));
    if (hint.empty()) hint = own_key_hint(path);
    if (hint.empty()) hint = did_you_mean(nearest_key(table_, path));
    if (path.find("ALLOC_CONF") != std::string::npos || path == "allocator_conf" || path == "alloc_conf") {
      hint = "the allocator is told by --alloc-conf, or by PYTORCH_CUDA_ALLOC_CONF=... before the command after --";
    }
    for (const DialectTable& other : dialects()) {
      if (hint.empty() && find_key(other, path) != nullptr) hint = formatted("{} has such a key", other.name);
    }
    faults_.add(place.says(std::move(message), std::move(hint)));
  }

  const DialectTable& table_;
  Said said_;
  Diagnostics faults_;
  detail::DialectValues values_;
  std::set<std::string, std::less<>> overridden_;  // By an argument.
};

// Which tables know a key.
std::vector<const DialectTable*> knowing(std::string_view key) {
  std::vector<const DialectTable*> tables;
  for (const DialectTable& table : dialects()) {
    if (find_key(table, key) != nullptr) tables.push_back(&table);
  }
  return tables;
}

// Of one table among the keys of a file.
struct Vote {
  const DialectTable* table;
  std::size_t known = 0;
  std::size_t own = 0;  // That no other table knows.
  const Member* first_own = nullptr;
  std::size_t turn = 0;  // Of the first key that is its own.
};

std::vector<Vote> no_votes() {
  std::vector<Vote> votes;
  for (const DialectTable& table : dialects()) votes.push_back({&table});
  return votes;
}

void count_key(std::vector<Vote>& votes, std::string_view key, const Member* member, std::size_t turn) {
  const std::vector<const DialectTable*> tables = knowing(key);
  for (const DialectTable* table : tables) {
    Vote& vote = votes[static_cast<std::size_t>(table - dialects().data())];
    ++vote.known;
    if (tables.size() != 1 || ++vote.own != 1) continue;
    vote.first_own = member;
    vote.turn = turn;
  }
}

// Who knows the most keys: one that scripts add to a dialect makes no other of it. Of two that know as many it is who
// has more of their own, then who has the first.
const Vote& winner_of(const std::vector<Vote>& votes) {
  return *std::max_element(votes.begin(), votes.end(), [](const Vote& a, const Vote& b) {
    if (a.known != b.known) return a.known < b.known;
    return a.own != b.own ? a.own < b.own : a.turn > b.turn;
  });
}

[[noreturn]] void refuse_unknown_file(const Document& document) {
  Diagnostics faults;
  for (const Member& member : document.root.members) {
    std::string hint = own_key_hint(member.key);
    for (const DialectTable& table : dialects()) {
      const std::string_view near = nearest_key(table, member.key);
      if (hint.empty() && !near.empty()) hint = formatted("{} has \"{}\"", table.name, near);
    }
    faults.add(document.at(member.key_offset, formatted("no kind of training file has a key \"{}\"", member.key),
                           std::move(hint)));
    if (faults.full()) break;
  }
  if (!faults.any()) faults.add(document.at(document.root.offset, "an empty file says nothing of a training"));
  faults.throw_if_any();
  throw InternalError("unreachable");
}

bool is_deepspeed_json(const Document& document) {
  return std::any_of(document.root.members.begin(), document.root.members.end(), [](const Member& member) {
    return find_deepspeed_key(member.key) != nullptr && knowing(member.key).empty();
  });
}

// Files of programs that no table knows, by a key that nobody else has.
struct StrangeKey {
  std::string_view key;
  std::string_view name;
};
constexpr std::array<StrangeKey, 4> kStrangeKeys{{{"actor_rollout_ref", "verl"},
                                                  {"exp_manager", "NeMo"},
                                                  {"device_train_microbatch_size", "llm-foundry"},
                                                  {"swift_version", "ms-swift"}}};

// torchtune instantiates what its `_component_`s name.
bool names_component(const Member& member) {
  return member.value.is(Value::Kind::Object) && member.value.find("_component_") != nullptr;
}

void refuse_strangers(const Document& document) {
  for (const Member& member : document.root.members) {
    const auto known = std::find_if(kStrangeKeys.begin(), kStrangeKeys.end(),
                                    [&](const StrangeKey& one) { return one.key == member.key; });
    const bool tune = names_component(member);
    if (!tune && known == kStrangeKeys.end()) continue;
    throw Refusal({document.at(
        member.key_offset,
        formatted("this is a file of {}, whose files are not read", tune ? std::string_view("torchtune") : known->name),
        tune ? "say what it says with options, its loss as --loss chunked:8, enable_activation_checkpointing as "
               "--checkpoint "
               "full, lora_rank as --lora r=8"
             : "say what it says with options")});
  }
}

}  // namespace

const DialectTable& recognise(const Document& document) {
  expect_object(document, "a training file");
  refuse_strangers(document);
  std::vector<Vote> votes = no_votes();
  std::size_t turn = 0;
  for (const Member& member : document.root.members) count_key(votes, member.key, &member, ++turn);
  const Vote& winner = winner_of(votes);
  if (winner.known == 0) refuse_unknown_file(document);
  for (const Vote& other : votes) {
    // Without a key of its own on the other side it is a key that this dialect does not know, and is reported so.
    if (other.table == winner.table || other.own == 0 || winner.own == 0) continue;
    throw Refusal({document.at(other.first_own->key_offset,
                               formatted("\"{}\" is a key of {}, and \"{}\" one of {}", other.first_own->key,
                                         other.table->name, winner.first_own->key, winner.table->name),
                               "a file has one dialect")});
  }
  return *winner.table;
}

// axolotl, accelerate and LLaMA-Factory v1 are told by their own programs, never by a script's arguments.
const DialectTable& recognise(const std::vector<DialectArgument>& arguments) {
  std::vector<Vote> votes = no_votes();
  std::size_t turn = 0;
  for (const DialectArgument& argument : arguments) count_key(votes, argument.path, nullptr, ++turn);
  std::erase_if(votes, [](const Vote& vote) {
    const Dialect dialect = vote.table->dialect;
    return dialect == Dialect::Axolotl || dialect == Dialect::Accelerate || dialect == Dialect::LlamaFactoryV1;
  });
  return *winner_of(votes).table;
}

Said read_dialect(const DialectTable& table, const DialectWords& words) { return DialectReader(table).read(words); }

Request read_training_arguments(const Document& document) {
  expect_object(document, "TrainingArguments");
  return read_dialect(dialect(Dialect::TrainingArguments), {&document, {}}).request;
}

namespace {

// Arguments of a script around transformers' Trainer, or of TRL's: nothing in such a file says of which.
void tell_of_trl(const Document& document, Said& said) {
  const auto named = std::find_if(document.root.members.begin(), document.root.members.end(),
                                  [](const Member& member) { return member.key == "model_name_or_path"; });
  const DialectTable& trl = dialect(Dialect::Trl);
  const bool both = std::all_of(document.root.members.begin(), document.root.members.end(),
                                [&](const Member& member) { return find_key(trl, member.key) != nullptr; });
  if (named == document.root.members.end() || !both) return;
  said.request.notices.push_back(
      {Notice::Kind::Announcement,
       place_at(document, named->key_offset),
       "read as arguments of a script around transformers' Trainer; TRL's trainers have these keys, too, and other "
       "defaults: `-- trl sft --config FILE` is theirs",
       {}});
}

// TRL's accelerate_config without a launch line: one that TRL brings, since no other file is opened here.
Said with_launch_file(Said said) {
  const Setting<std::string> named = said.foreign.launch_file;
  if (!named.given()) return said;
  const std::optional<Document> file = launch_file_of_trl(*named);
  if (!file) {
    if (named->find('.') == std::string::npos) throw Refusal({no_launch_file(named)});
    throw Refusal({named.place.says("a training file alone opens no file of accelerate's",
                                    "say it on a launch line: `-- trl sft --config FILE`")});
  }
  return overlay(read_dialect(dialect(Dialect::Accelerate), {&*file, {}}), said);
}

}  // namespace

Said read_training_document(const Document& document) {
  expect_object(document, "a training file");
  refuse_other_slot(document, FileSlot::Training);
  if (document.root.find("dsplan") != nullptr) return {read_training_file(document), {}};
  if (!is_deepspeed_json(document)) {
    const DialectTable& table = recognise(document);
    Said said = read_dialect(table, {&document, {}});
    if (table.dialect == Dialect::TrainingArguments) tell_of_trl(document, said);
    return table.dialect == Dialect::Trl ? with_launch_file(std::move(said)) : said;
  }
  for (const Member& member : document.root.members) {
    const std::vector<const DialectTable*> tables = knowing(member.key);
    if (tables.empty() || find_deepspeed_key(member.key) != nullptr) continue;
    throw Refusal({document.at(
        member.key_offset,
        formatted("\"{}\" is a key of {}, and the file is a DeepSpeed JSON", member.key, tables.front()->name),
        "a file has one dialect")});
  }
  Said said;
  said.request.inline_deepspeed = read_deepspeed(document, document.root);
  return said;
}

}  // namespace dsplan
