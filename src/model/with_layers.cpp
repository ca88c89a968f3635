#include "model/with_layers.h"

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "model/families.h"

namespace dsplan {
namespace {

// As config classes of transformers call it.
constexpr std::array<std::string_view, 4> kNames = {"num_hidden_layers", "n_layer", "n_layers", "num_layers"};

bool counts_layers(const Member& member) {
  for (const std::string_view name : kNames) {
    if (member.key == name && member.value.is(Value::Kind::Integer)) return true;
  }
  return false;
}

}  // namespace

Document with_layers(Document config, std::int64_t layers) {
  std::int64_t before = 0;
  for (Member& member : config.root.members) {
    if (!counts_layers(member)) continue;
    before = member.value.integer;
    member.value.integer = layers;
    member.value.real = static_cast<double>(layers);
  }
  if (before < 1 || layers < 1) {
    throw Refusal(config.path, "does not say how many layers it has", "give num_hidden_layers");
  }
  for (Member& member : config.root.members) {
    if ((member.key != "layer_types" && member.key != "no_rope_layers") || !member.value.is(Value::Kind::Array))
      continue;
    const std::vector<Value> pattern = member.value.items;
    if (static_cast<std::int64_t>(pattern.size()) != before) continue;
    member.value.items.clear();
    for (std::size_t i = 0; i < static_cast<std::size_t>(layers); ++i) {
      member.value.items.push_back(pattern[i % pattern.size()]);
    }
  }
  return config;
}

Document with_reward_head(Document config) {
  constexpr std::string_view kTexts = "ForSequenceClassification";
  std::vector<Member>& members = config.root.members;
  const auto is_label = [](const Member& member) {
    return member.key == "num_labels" || member.key == "id2label" || member.key == "label2id";
  };
  std::erase_if(members, is_label);
  bool pads = false;
  for (Member& member : members) {
    pads = pads || (member.key == "pad_token_id" && member.value.is(Value::Kind::Integer));
    if (member.key != "architectures" || member.value.items.empty()) continue;
    std::string& name = member.value.items.front().string;
    for (const std::string_view words : {"ForCausalLM", "LMHeadModel"}) {
      if (name.ends_with(words)) name.replace(name.size() - words.size(), words.size(), kTexts);
    }
    // Of the text's part of a family that sees pictures the class has another name (modeling_auto.py).
    const Value* type = config.root.find("model_type");
    const bool part = type != nullptr && type->string.ends_with("_text") && name.ends_with(kTexts);
    if (part) name.insert(name.size() - kTexts.size(), "Text");
  }
  const auto put = [&](const char* key, std::int64_t number) {
    std::erase_if(members, [key](const Member& member) { return member.key == key; });
    Member member;
    member.key = key;
    member.value.kind = Value::Kind::Integer;
    member.value.integer = number;
    member.value.real = static_cast<double>(number);
    members.push_back(std::move(member));
  };
  put("num_labels", 1);
  if (!pads) put("pad_token_id", 0);
  return config;
}

}  // namespace dsplan
