#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "io/deepspeed.h"
#include "io/deepspeed_keys.h"
#include "io/dialects/dialect_reader.h"
#include "io/own_file.h"
#include "io/text.h"

namespace dsplan::detail {

bool one_of(std::string_view text, std::string_view choices) {
  while (!choices.empty()) {
    const std::size_t end = std::min(choices.find('|'), choices.size());
    if (choices.substr(0, end) == text) return true;
    choices.remove_prefix(std::min(end + 1, choices.size()));
  }
  return false;
}

std::string text_of(const Value& value) {
  if (value.is(Value::Kind::String)) return value.string;
  if (value.is(Value::Kind::Integer)) return std::to_string(value.integer);
  if (value.is(Value::Kind::Real)) return formatted("{}", value.real);
  if (value.is(Value::Kind::Bool)) return value.boolean ? "true" : "false";
  return {};
}

void wrong(const Spoken& said, std::string_view wanted, Diagnostics& faults) {
  const bool text = said.value.is(Value::Kind::String);
  const std::string got =
      text ? formatted("\"{}\"", said.value.string.substr(0, 80)) : std::string(describe(said.value.kind));
  faults.add(said.place.says(formatted("\"{}\" must be {}, not {}", said.written, wanted, got)));
}

std::vector<std::string_view> listed(std::string_view choices) {
  std::vector<std::string_view> all;
  while (!choices.empty()) {
    const std::size_t end = std::min(choices.find('|'), choices.size());
    all.push_back(choices.substr(0, end));
    choices.remove_prefix(std::min(end + 1, choices.size()));
  }
  return all;
}

namespace {

bool is_text(const Value& value) { return value.is(Value::Kind::String); }

std::optional<double> number_in(const Spoken& said) {
  const bool number = said.value.is(Value::Kind::Integer) || said.value.is(Value::Kind::Real);
  if (!number && !(said.text && is_text(said.value))) return std::nullopt;
  return lax_number(said.value);
}

// "q_proj,v_proj", "q_proj v_proj" or a list of names.
std::optional<std::vector<std::string>> names_in(const Value& value) {
  std::vector<std::string> names;
  if (value.is(Value::Kind::Array)) {
    for (const Value& item : value.items) {
      if (!is_text(item)) return std::nullopt;
      names.push_back(item.string);
    }
    return names;
  }
  if (!is_text(value)) return std::nullopt;
  std::string name;
  for (const char c : value.string + ",") {
    if (c != ',' && c != ' ') {
      name += c;
    } else if (!name.empty()) {
      names.push_back(std::move(name));
      name.clear();
    }
  }
  return names;
}

bool asks_for_nothing(const DialectKey& key, const Value& value) {
  const std::string text = text_of(value);
  const bool empty = (is_text(value) && value.string.empty()) ||
                     (value.is(Value::Kind::Array) && value.items.empty()) ||
                     (value.is(Value::Kind::Object) && value.members.empty());
  if (empty || value.is(Value::Kind::Null) || one_of(text, key.values)) return true;
  if (value.is(Value::Kind::Array)) {
    return std::all_of(value.items.begin(), value.items.end(),
                       [&key](const Value& item) { return one_of(text_of(item), key.values); });
  }
  const std::optional<double> number = lax_number(value);
  return (number && *number == 0) || !lax_boolean(value).value_or(true);
}

std::optional<bool> flag(const Spoken& said, Diagnostics& faults) {
  const bool boolean = said.value.is(Value::Kind::Bool) || (said.text && is_text(said.value));
  const std::optional<bool> read = boolean ? lax_boolean(said.value) : std::nullopt;
  if (!read) wrong(said, "true or false", faults);
  return read;
}

// Puts a value where it belongs, by the type of the field.
struct Putter {
  const Spoken& said;
  Diagnostics& faults;

  void operator()(Setting<std::int64_t>* into) const {
    const std::optional<double> number = number_in(said);
    if (!number || std::floor(*number) != *number || std::abs(*number) > 9e15) {
      return wrong(said, "an integer", faults);
    }
    if (*number < static_cast<double>(said.key.least)) {
      return faults.add(
          said.place.says(formatted("\"{}\" must be at least {}, not {}", said.written, said.key.least, *number)));
    }
    *into = {static_cast<std::int64_t>(*number), said.place};
  }
  // A rate such as 2e-5 is a text to PyYAML, and the frameworks make a number of it; of "1.0" in quotes they do not.
  void operator()(Setting<double>* into) const {
    const bool quoted = is_text(said.value) && !said.text && said.value.string.find_first_of("eE") == std::string::npos;
    const std::optional<double> number = quoted ? std::nullopt : lax_number(said.value);
    if (!number || *number < 0 || said.value.is(Value::Kind::Bool)) {
      return wrong(said, "a number of at least 0", faults);
    }
    *into = {*number, said.place};
  }
  void operator()(Setting<bool>* into) const {
    if (const std::optional<bool> read = flag(said, faults)) *into = {*read, said.place};
  }
  void operator()(Setting<std::string>* into) const {
    if (!is_text(said.value)) return wrong(said, "a string", faults);
    const std::vector<std::string_view> choices = listed(said.key.values);
    if (!choices.empty() && !one_of(said.value.string, said.key.values)) {
      return faults.add(said.place.says(
          formatted("\"{}\" must be one of {}, not \"{}\"", said.written, joined(choices, ", "), said.value.string),
          did_you_mean(nearest(said.value.string, choices))));
    }
    *into = {said.value.string, said.place};
  }
  void operator()(Setting<std::vector<std::string>>* into) const {
    std::optional<std::vector<std::string>> names = names_in(said.value);
    if (!names) return wrong(said, "a name or a list of names", faults);
    *into = {*std::move(names), said.place};
  }
  // The few types that no key of a dialect has.
  template <class Other>
  void operator()(Other*) const {}
};

void take_kernels(const Spoken& said, Said& into, Diagnostics& faults) {
  const std::optional<bool> on = flag(said, faults);
  if (!on) return;
  into.foreign.lora_kernels = {*on, said.place};
  if (!*on) return;
  // That of embeddings is for tables that have adapters, which none has here.
  const std::string_view word = said.written == "lora_qkv_kernel"   ? "qkv"
                                : said.written == "lora_o_kernel"   ? "o"
                                : said.written == "lora_mlp_kernel" ? "mlp"
                                                                    : "none";
  Setting<std::string>& kernels = into.request.lora_kernels;
  const std::string before = kernels.value_or("none");
  if (word == "none" && kernels.given()) return;
  kernels = {before == "none" ? std::string(word) : formatted("{},{}", before, word), said.place};
}

// Both programs then take Liger's loss as well.
void take_liger(const Spoken& said, Request& request, Diagnostics& faults) {
  const std::optional<bool> on = flag(said, faults);
  if (!on || !*on) return;
  request.liger_kernels = {"all", said.place};
  if (!request.loss.given()) request.loss = {"liger", said.place};
}

void take_reentrant(const Spoken& said, Request& request, Diagnostics& faults) {
  const std::optional<bool> on = flag(said, faults);
  if (on) request.checkpoint_impl = {*on ? "reentrant" : "non_reentrant", said.place};
}

// Both forms keep autograd's hooks; the others of axolotl are checkpoints of its own.
void take_offloading(const Spoken& said, Request& request, Diagnostics& faults) {
  if (said.value.is(Value::Kind::Null)) return;
  const bool named = said.value.is(Value::Kind::String) && one_of(said.value.string, said.key.values);
  if (named && said.value.string == "legacy") {
    request.activation_offloading = {"single-stream", said.place};
  } else if (named) {
    request.not_modelled.push_back({said.place, When::Always, std::string(said.written),
                                    formatted("activation offloading of the form {}", said.value.string)});
  } else if (const std::optional<bool> on = flag(said, faults)) {
    request.activation_offloading = {*on ? "streams" : "none", said.place};
  }
}

// "no" to YAML is false.
void take_mixed_precision(const Spoken& said, Request& request, Diagnostics& faults) {
  const std::string text = said.value.is(Value::Kind::Bool) ? (said.value.boolean ? "yes" : "no") : text_of(said.value);
  if (!one_of(text, said.key.values)) return wrong(said, "one of no, fp16, bf16, fp8", faults);
  if (text == "bf16" || text == "fp16") {
    request.mixed_precision = {text, said.place};
  } else if (text != "no") {
    request.not_modelled.push_back({said.place, When::Always, std::string(said.written), text + " mixed precision"});
  }
}

void take_preference(const Spoken& said, Said& into, Diagnostics& faults) {
  ForeignInput& foreign = into.foreign;
  if (said.value.is(Value::Kind::Null)) return;
  const std::optional<double> number = lax_number(said.value);
  if (!number || said.value.is(Value::Kind::Bool)) return wrong(said, "a number", faults);
  const bool of_rows = said.written.ends_with("desirable_weight");  // KTO's alone.
  if (!of_rows && foreign.trainer.given()) return;
  foreign.trainer = {of_rows ? "kto" : "dpo", said.place};
  if (of_rows) return;
  into.request.notices.push_back(
      {Notice::Kind::Announcement,
       said.place,
       formatted(
           "\"{}\" is taken for DPO's; KTO, ORPO, CPO and others have it, too: a launch line says which, as `trl kto`",
           said.written),
       {}});
}

// RewardConfig alone has it (trl 1.16.0, trainer/reward_config.py).
void take_rewards(const Spoken& said, ForeignInput& foreign, Diagnostics& faults) {
  if (!foreign.trainer.given()) foreign.trainer = {"reward", said.place};
  if (!said.value.is(Value::Kind::Null)) Putter{said, faults}(&foreign.centered);
}

void take_words(const Spoken& said, ForeignInput& foreign, Diagnostics& faults) {
  const bool scalar = is_text(said.value) || said.value.is(Value::Kind::Bool) || said.value.is(Value::Kind::Integer);
  if (!scalar) return wrong(said, "a word", faults);
  *std::get<Setting<std::string>*>(said.key.foreign.of(foreign)) = {text_of(said.value), said.place};
}

// A picture padded to a square, or its width and height (axolotl, MultiModalConfig).
void take_sides(const Spoken& said, ForeignInput& foreign, Diagnostics& faults) {
  const auto side = [](const Value& value) { return value.is(Value::Kind::Integer) && value.integer > 0; };
  const Value& value = said.value;
  const bool both =
      value.is(Value::Kind::Array) && value.items.size() == 2 && side(value.items[0]) && side(value.items[1]);
  if (!side(value) && !both) return wrong(said, "a number of pixels, or width and height", faults);
  const std::int64_t width = both ? value.items[0].integer : value.integer;
  const std::int64_t height = both ? value.items[1].integer : value.integer;
  *std::get<Setting<std::string>*>(said.key.foreign.of(foreign)) = {formatted("{}x{}", height, width), said.place};
}

// transformers' FSDPOption. What fsdp_config says of the same goes first, wherever it stands.
void take_sharding(const Spoken& said, ForeignInput& foreign, Diagnostics& faults) {
  ShardingInput& into = foreign.trainers;
  const bool words = is_text(said.value) && !lax_boolean(said.value);
  if (!words && !said.value.is(Value::Kind::Array)) {
    if (const std::optional<bool> on = flag(said, faults)) into.on = {*on, said.place};
    return;
  }
  const std::optional<std::vector<std::string>> options = names_in(said.value);
  if (!options) return wrong(said, "true, false or words", faults);
  into.on = {!options->empty(), said.place};
  const std::vector<std::string_view> strategies = {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard",
                                                    "hybrid_shard_zero2"};
  for (const std::string& option : *options) {
    const bool strategy = std::find(strategies.begin(), strategies.end(), option) != strategies.end();
    if (strategy) {
      into.strategy = {option, said.place};
    } else if (option == "offload" && !into.offload.given()) {
      into.offload = {true, said.place};
    } else if (!strategy && option != "offload" && option != "auto_wrap") {
      std::vector<std::string_view> known = strategies;
      known.insert(known.end(), {"offload", "auto_wrap"});
      faults.add(
          said.place.says(formatted("\"{}\" is no option of fsdp", option), did_you_mean(nearest(option, known))));
    }
  }
}

// One process is started for NO, whatever num_processes says.
void distribute(ForeignInput& foreign, Request& request) {
  const std::string& text = *foreign.distribution;
  const Place& place = foreign.distribution.place;
  if (text == "FSDP") {
    foreign.launched.on = {true, place};
  } else if (text == "NO") {
    request.gpus = {1, place};
  } else if (text == "DEEPSPEED") {
    request.runtime = {"deepspeed", place};
    request.has_training_file = true;  // It fills "auto" in, as transformers does (accelerator.py, _prepare_deepspeed).
  } else if (text != "MULTI_GPU") {
    request.not_modelled.push_back({place, When::Always, "distributed_type", formatted("accelerate's {}", text)});
  }
}

// What is said of DeepSpeed, without DEEPSPEED.
void drop_plugin(Request& request, const Place& first_key) {
  const Place place = request.deepspeed.given() ? request.deepspeed.place : first_key;
  request.deepspeed = {};
  request.zero_stage = {};
  request.model_init = {};
  request.notices.push_back(
      {Notice::Kind::Inert,
       place,
       "\"deepspeed_config\" has no effect here: it needs distributed_type: DEEPSPEED, or --use_deepspeed",
       {}});
}

// transformers 4's words beside fsdp.
void say_older(const Spoken& said, Said& into, std::optional<Place>& older) {
  Setting<std::string>& version = into.foreign.trainers.version;
  if (lax_number(said.value).value_or(1) == 0 || version.given()) return;
  version = {"1", said.place};
  older = said.place;
  into.request.notices.push_back(
      {Notice::Kind::Announcement,
       said.place,
       formatted(
           "\"{}\" is a key of transformers 4, whose FSDP is version 1, and which loads in fp32 unless it is told",
           said.written),
       {}});
}

}  // namespace

void DialectValues::not_modelled(const Spoken& said, std::string feature) {
  request_.not_modelled.push_back({said.place, When::Always, std::string(said.written), std::move(feature)});
}

void DialectValues::plain(const Spoken& said) {
  // A configuration that leaves it to the launch line (accelerate, commands/launch.py): it is not said then.
  if (said.key.path == "num_processes" && lax_number(said.value).value_or(0) == -1) return;
  if (said.key.path == "max_length") length_ = said.place;
  if (said.key.path == "max_seq_length") older_length_ = said.place;
  const Putter putter{said, faults_};
  const std::size_t before = faults_.count();
  if (said.key.field) std::visit(putter, said.key.field.of(request_));
  if (faults_.count() != before) return;  // Once is enough.
  if (said.key.also) std::visit(putter, said.key.also.of(request_));
  if (said.key.foreign) std::visit(putter, said.key.foreign.of(foreign_));
}

void DialectValues::switch_on(const Spoken& said) {
  const bool automatic = said.key.reading == Reading::OnOrAuto && text_of(said.value) == "auto";
  const std::optional<bool> on = automatic ? true : flag(said, faults_);
  Setting<bool>& field = *std::get<Setting<bool>*>(said.key.field.of(request_));
  if (on && !field.value_or(false)) field = {*on, said.place};
}

void DialectValues::checkpointing(const Spoken& said, bool on) {
  if (is_text(said.value) && one_of(said.value.string, said.key.values)) {
    request_.not_modelled.push_back(
        {said.place, When::Always, std::string(said.written), formatted("checkpointing by \"{}\"", said.value.string)});
    return;
  }
  const std::optional<bool> read = flag(said, faults_);
  if (!read) return;
  const bool checkpoints = *read == on;
  *std::get<Setting<bool>*>(said.key.field.of(request_)) = {checkpoints, said.place};
  if (checkpoints) request_.checkpoint = {"full", said.place};
}

// On a command line the name alone is DeepSpeed's own switch; a path comes with it or in deepspeed_config.
void DialectValues::deepspeed(const Spoken& said) {
  if (said.value.is(Value::Kind::Object)) {
    if (said.file != nullptr) request_.inline_deepspeed = read_deepspeed(*said.file, said.value);
  } else if (is_text(said.value)) {
    request_.deepspeed = {said.value.string, said.place};
    if (said.key.trainers && !request_.training_arguments) request_.training_arguments.emplace().place = said.place;
  } else if (!said.value.is(Value::Kind::Bool)) {
    wrong(said, "a path or a configuration", faults_);
  }
}

void DialectValues::targets(const Spoken& said) {
  std::optional<std::vector<std::string>> names = names_in(said.value);
  if (!names) return wrong(said, "a name or a list of names", faults_);
  auto* into = std::get<Setting<std::vector<std::string>>*>(said.key.foreign.of(foreign_));
  for (std::string& name : *names) {
    if (name == "all" && into == &foreign_.lora_targets) name = "all-linear";
  }
  *into = {*std::move(names), said.place};
}

// "lora", "qlora" (which wants load_in_4bit besides) and "full" are modelled; the others are programs of their own.
void DialectValues::method(const Spoken& said) {
  if (!is_text(said.value)) return wrong(said, "a string", faults_);
  const std::string& text = said.value.string;
  Setting<bool>& adapters = foreign_.adapters;
  const bool whole = text == "full" && said.written != "peft_config.name";  // Which nobody says to train all.
  if (text == "lora" || whole || (text == "qlora" && one_of(text, said.key.values))) {
    adapters = {text != "full", said.place};
    packs_ = text == "qlora" ? std::optional<Place>(said.place) : std::nullopt;
  } else if (one_of(text, said.key.values)) {
    not_modelled(said, formatted("\"{}\"", text));
  } else {
    std::vector<std::string_view> choices = listed(said.key.values);
    choices.emplace_back("lora");
    faults_.add(
        said.place.says(formatted("\"{}\" is no {}", text, said.written), did_you_mean(nearest(text, choices))));
  }
}

void DialectValues::environment(const Spoken& said) {
  if (!said.value.is(Value::Kind::Object)) return wrong(said, "an object of environment variables", faults_);
  for (const Member& member : said.value.members) {
    const std::string text = text_of(member.value);
    if (member.key == "PYTORCH_CUDA_ALLOC_CONF" || member.key == "PYTORCH_ALLOC_CONF") {
      request_.alloc_conf = {formatted("{}={}", member.key, text), said.place};
    } else {
      request_.notices.push_back(
          {Notice::Kind::Inert, said.place, formatted("environment variable \"{}\" is not read", member.key), {}});
    }
  }
}

// What transformers calls it.
void DialectValues::attention(const Spoken& said) {
  const std::string_view name = said.written;
  if (!said.key.values.empty()) {
    const std::string text = text_of(said.value);
    if (!one_of(text, said.key.values)) return Putter{said, faults_}(&request_.attention);
    if (text == "auto") return;
    const std::string_view meant = text == "disabled" ? "eager"
                                   : text == "fa2"    ? "flash_attention_2"
                                                      : "flash_attention_3";
    request_.attention = {text == "sdpa" ? text : std::string(meant), said.place};
    return;
  }
  const std::optional<bool> on = flag(said, faults_);
  if (!on || !*on) return;
  const std::string_view meant = name == "flash_attention" ? "flash_attention_2"
                                 : name == "sdp_attention" ? "sdpa"
                                                           : "eager";
  request_.attention = {std::string(meant), said.place};
}

// Of the launcher's switches and its file's distributed_type the switch goes first (commands/launch.py).
void DialectValues::distribution(const Spoken& said) {
  if (said.key.values.empty()) {
    if (!flag(said, faults_).value_or(false)) return;
    foreign_.distribution = {said.written == "use_deepspeed" ? "DEEPSPEED"
                             : said.written == "use_fsdp"    ? "FSDP"
                                                             : "MULTI_GPU",
                             said.place};
    return;
  }
  const std::string text = said.value.is(Value::Kind::Bool) && !said.value.boolean ? "NO" : text_of(said.value);
  if (!one_of(text, said.key.values)) {
    const std::vector<std::string_view> choices = listed(said.key.values);
    return faults_.add(
        said.place.says(formatted("\"{}\" is no {}", text, said.written), did_you_mean(nearest(text, choices))));
  }
  foreign_.distribution = {text, said.place};
}

// A flag that is off packs nothing, whatever another one says.
void DialectValues::bits(const Spoken& said, std::int64_t count) {
  const std::optional<bool> on = flag(said, faults_);
  if (!on || (!*on && foreign_.bits.given())) return;
  if (*on && foreign_.bits.value_or(count) != 0 && foreign_.bits.value_or(count) != count) {
    faults_.add(said.place.says("weights of 4 bits and of 8 bits at once"));
  }
  foreign_.bits = {*on ? count : 0, said.place};
}

namespace {

// axolotl 0.19.0 packs 4 bits beside qlora alone and 8 beside lora alone (loaders/model.py, _set_quantization_config).
// lora with load_in_4bit packs nothing, and prepare_model_for_kbit_training then casts every weight to fp32.
void judge_axolotl_bits(const std::optional<Place>& qlora, const ForeignInput& foreign, Diagnostics& faults) {
  const std::int64_t count = foreign.bits.value_or(0);
  if (qlora && count != 4) {
    return faults.add(qlora->says("adapter: qlora without load_in_4bit", "axolotl wants load_in_4bit: true"));
  }
  if (qlora || count != 4 || foreign.program.value_or("") != "axolotl" || !foreign.adapters.value_or(false)) return;
  faults.add(foreign.bits.place.says(
      "load_in_4bit with adapter: lora packs no weight in axolotl, which then casts all of them to fp32: not modelled",
      "adapter: qlora packs them; load_in_4bit: false leaves them in 16 bits"));
}

}  // namespace

void DialectValues::finish() {
  if (foreign_.program.value_or("") == "torchtitan") name_torchtitan_model(foreign_, request_);
  judge_axolotl_bits(packs_, foreign_, faults_);
  if (length_ && older_length_ && foreign_.program.value_or("") == "trl") {
    faults_.add(
        older_length_->says("max_seq_length beside max_length: TRL 1.16.0 has no max_seq_length, which is what "
                            "releases before 0.20 called max_length",
                            "leave it out"));
  }
  if (older_ && !request_.torch_dtype.given()) request_.torch_dtype = {"float32", *older_};
  if (foreign_.distribution.given()) distribute(foreign_, request_);
  const bool runs = foreign_.distribution.value_or("") == "DEEPSPEED";
  if (launcher_ && !runs && (plugin_ || request_.deepspeed.given())) {
    drop_plugin(request_, plugin_place_);
    plugin_.reset();
  }
  if (runs && !plugin_) plugin_.emplace();
  if (plugin_) finish_plugin(*std::move(plugin_), request_);
}

void DialectValues::honour(const Spoken& said) {
  switch (said.key.reading) {
    case Reading::Plain: return plain(said);
    case Reading::On: return switch_on(said);
    case Reading::Checkpointing: return checkpointing(said, true);
    case Reading::NoCheckpointing: return checkpointing(said, false);
    case Reading::Reentrant: return take_reentrant(said, request_, faults_);
    case Reading::DeepSpeed: return deepspeed(said);
    case Reading::Targets: return targets(said);
    case Reading::Method: return method(said);
    case Reading::FourBits: return bits(said, 4);
    case Reading::EightBits: return bits(said, 8);
    case Reading::Environment: return environment(said);
    case Reading::MixedPrecision: return take_mixed_precision(said, request_, faults_);
    case Reading::Distribution: return distribution(said);
    case Reading::OnOrAuto: return switch_on(said);
    case Reading::Attention: return attention(said);
    case Reading::Kernels: return take_kernels(said, said_, faults_);
    case Reading::Liger: return take_liger(said, request_, faults_);
    case Reading::Preference: return take_preference(said, said_, faults_);
    case Reading::Rewards: return take_rewards(said, foreign_, faults_);
    case Reading::Scalar: return take_words(said, foreign_, faults_);
    case Reading::Offloading: return take_offloading(said, request_, faults_);
    case Reading::Sides: return take_sides(said, foreign_, faults_);
    case Reading::Sharding: return take_sharding(said, foreign_, faults_);
    case Reading::OlderSharding: return plain(said), say_older(said, said_, older_);
    case Reading::Plugin:
      if (!plugin_) plugin_.emplace();
      if (plugin_place_.path.empty()) plugin_place_ = said.place;
      return take_plugin_key(said, *plugin_, request_, faults_);
  }
}

void DialectValues::refuse(const Spoken& said) {
  if (asks_for_nothing(said.key, said.value)) return;
  request_.not_modelled.push_back({said.place, said.key.when, std::string(said.written), std::string(said.key.note)});
}

void DialectValues::inert(const Spoken& said) {
  const std::size_t before = faults_.count();
  judge_type(said, faults_);
  if (faults_.count() != before) return;
  request_.notices.push_back(
      {Notice::Kind::Inert, said.place, formatted("\"{}\" has no effect here: {}", said.written, said.key.note), {}});
}

}  // namespace dsplan::detail
