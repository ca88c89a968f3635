#include "model/with_layers.h"

#include <array>
#include <cstddef>
#include <string_view>

#include "core/error.h"

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

}  // namespace dsplan
