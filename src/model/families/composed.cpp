#include "model/families/composed.h"

#include <algorithm>

#include "core/error.h"
#include "core/format.h"
#include "model/config/config_keys.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

const Family& family_of_part(ConfigReader& inner, std::string_view key, std::string_view usual,
                             const std::vector<std::string_view>& known) {
  const Value* type = inner.find("model_type");
  const std::string_view named = type != nullptr && type->is(Value::Kind::String) ? type->string : usual;
  if (std::find(known.begin(), known.end(), named) == known.end()) {
    inner.refuse("model_type", formatted("\"{}\" of model_type \"{}\" is not modelled yet", key, named),
                 formatted("here it is one of {}", joined(known, ", ")));
  }
  const auto at = std::find_if(families().begin(), families().end(),
                               [&](const Family& family) { return family.model_type == named; });
  DSPLAN_CHECK(at != families().end(), std::string(named));
  return *at;
}

}  // namespace

const Document& part_of(ConfigReader& config, std::string_view key) {
  const Value* inside = config.object.object(key);
  Value empty;
  empty.kind = Value::Kind::Object;
  empty.offset = config.root().offset;
  config.throw_if_any();
  const Document& whole = config.config();
  return config.parts.emplace_back(Document{whole.path, whole.text, inside == nullptr ? empty : *inside});
}

ModelSpec build_part(ConfigReader& config, std::string_view key, std::string_view usual,
                     const std::vector<std::string_view>& known) {
  ConfigReader inner(part_of(config, key));
  const Family& family = family_of_part(inner, key, usual, known);
  (void)inner.dtype();
  check_rotary(inner);
  ModelSpec spec = family.build(inner);
  spec.family = family.model_type;
  take_remarks(config, inner, family.model_type);
  return spec;
}

void take_remarks(ConfigReader& config, ConfigReader& inner, std::string_view family) {
  const bool unsound = take_faults(inner, config);
  const std::vector<UnknownKey> unknown = judge_other_keys(inner, family);
  take_faults(inner, config);
  if (unsound) config.throw_if_any();
  config.unknown_inside.insert(config.unknown_inside.end(), unknown.begin(), unknown.end());
  config.gaps.insert(config.gaps.end(), inner.gaps.begin(), inner.gaps.end());
}

Composition::Composition(std::string_view root_type) {
  spec_.modules.push_back({"", std::string(root_type), kNone, kNone});
  spec_.graph_class = root_type;
}

std::string Composition::path_of(ModuleId parent, std::string_view name) const {
  const std::string& outer = spec_.module_at(parent).path;
  return outer.empty() ? std::string(name) : formatted("{}.{}", outer, name);
}

ModuleId Composition::module(ModuleId parent, std::string_view name, std::string_view type) {
  spec_.modules.push_back({path_of(parent, name), std::string(type), parent, kNone});
  return static_cast<ModuleId>(spec_.modules.size() - 1);
}

ParameterId Composition::parameter(ModuleId module, std::string_view leaf, const Shape& shape) {
  spec_.parameters.push_back({path_of(module, leaf), shape, module, kNone, true, Split::Unknown, 0});
  return static_cast<ParameterId>(spec_.parameters.size() - 1);
}

void Composition::tie(ModuleId module, ModuleId source) {
  Parameter& tied = spec_.parameter_at(spec_.parameter(module, "weight"));
  const ParameterId first = spec_.parameter(source, "weight");
  DSPLAN_CHECK(tied.shape == spec_.parameter_at(first).shape, tied.name);
  tied.tied_to = first;
}

ModuleId Composition::linear(ModuleId parent, std::string_view name, std::int64_t out, std::int64_t in, bool bias) {
  const ModuleId id = module(parent, name, "Linear");
  parameter(id, "weight", {out, in});
  if (bias) parameter(id, "bias", {out});
  return id;
}

std::size_t Composition::take(const ModelSpec& part, ModuleId from, ModuleId parent, std::string_view name) {
  Taken taken{&part, from, std::vector<ModuleId>(part.modules.size(), kNone)};
  if (numbered_ != &part) {
    numbered_ = &part;
    before_ = layers_;
    parameters_.emplace_back(&part, std::vector<ParameterId>(part.parameters.size(), kNone));
  }
  const std::string before = part.module_at(from).path;
  const std::string now = path_of(parent, name);
  const auto renamed = [&](const std::string& path) {
    return before.empty() ? formatted("{}.{}", now, path) : now + path.substr(before.size());
  };
  for (std::size_t at = 0; at < part.modules.size(); ++at) {
    const Module& module = part.modules[at];
    const bool root = static_cast<ModuleId>(at) == from;
    const ModuleId outer =
        root || module.parent == kNone ? kNone : taken.modules[static_cast<std::size_t>(module.parent)];
    if (!root && outer == kNone) continue;
    const std::int32_t layer = module.layer == kNone ? kNone : module.layer + before_;
    layers_ = std::max(layers_, layer + 1);
    taken.modules[at] = static_cast<ModuleId>(spec_.modules.size());
    spec_.modules.push_back({root ? now : renamed(module.path), module.type, root ? parent : outer, layer});
  }
  std::vector<ParameterId>& moved = parameters_.back().second;
  for (std::size_t at = 0; at < part.parameters.size(); ++at) {
    Parameter parameter = part.parameters[at];
    if (taken.modules[static_cast<std::size_t>(parameter.module)] == kNone) continue;
    parameter.module = taken.modules[static_cast<std::size_t>(parameter.module)];
    parameter.name = renamed(parameter.name);
    parameter.split = Split::Unknown;
    if (parameter.tied_to != kNone) parameter.tied_to = moved[static_cast<std::size_t>(parameter.tied_to)];
    moved[at] = static_cast<ParameterId>(spec_.parameters.size());
    spec_.parameters.push_back(std::move(parameter));
  }
  for (ModelBuffer buffer : part.buffers) {
    if (taken.modules[static_cast<std::size_t>(buffer.module)] == kNone) continue;
    buffer.module = taken.modules[static_cast<std::size_t>(buffer.module)];
    buffer.name = renamed(buffer.name);
    spec_.buffers.push_back(std::move(buffer));
  }
  taken_.push_back(std::move(taken));
  return taken_.size() - 1;
}

void Composition::call(std::size_t taken, const std::vector<ModuleId>& ones, Calls which) {
  const Taken& from = taken_[taken];
  for (const ModuleCall& call : from.part->calls) {
    const bool named = std::find(ones.begin(), ones.end(), call.module) != ones.end();
    if (which != Calls::All && named != (which == Calls::Only)) continue;
    const ModuleId now = from.modules[static_cast<std::size_t>(call.module)];
    if (now != kNone) spec_.calls.push_back({now, call.enter});
  }
}

void describe_shown(ModelSpec& spec, const ModelSpec& text, TowerParts tower) {
  spec.dims = text.dims;
  spec.dims.layers += tower.dims.layers;
  DecoderParts parts = *text.parts;
  parts.tower = std::make_shared<const TowerParts>(std::move(tower));
  spec.parts = std::make_shared<const DecoderParts>(std::move(parts));
}

ModelSpec compose(const ShownModel& shown, const ModelSpec& vision, const ModelSpec& text, TowerParts tower,
                  const Projector& projector) {
  Composition whole(shown.root);
  const ModuleId model = whole.module(0, "model", shown.body);
  if (!shown.newline.empty()) whole.parameter(model, shown.newline, {text.dims.hidden});
  const std::size_t seen = whole.take(vision, 0, model, tower.module);
  const bool apart = !shown.projector.empty();
  const ModuleId between = apart ? whole.module(model, tower.projector, shown.projector) : kNone;
  const std::vector<ModuleId> called = apart ? projector(whole, between) : std::vector<ModuleId>{};
  const ModuleId body = text.child(0, "model");
  const ModuleId embedding = text.child(body, "embed_tokens");
  const ModuleId output = text.child(0, "lm_head");
  const std::size_t language = whole.take(text, body, model, tower.language);
  const std::size_t head = whole.take(text, output, 0, "lm_head");
  if (shown.tied) whole.tie(whole.moved(head, output), whole.moved(language, embedding));

  whole.enter(0);
  whole.enter(model);
  whole.call(language, {embedding}, Composition::Calls::Only);
  whole.call(seen);
  if (apart) whole.enter(between);
  for (std::size_t at = 0; at < called.size(); ++at) {
    const ModuleId one = called[at];
    whole.enter(one);
    while (at + 1 < called.size() && whole.spec().modules[static_cast<std::size_t>(called[at + 1])].parent == one) {
      whole.enter(called[++at]);
      whole.leave(called[at]);
    }
    whole.leave(one);
  }
  if (apart) whole.leave(between);
  whole.call(language, {embedding}, Composition::Calls::AllBut);
  whole.leave(model);
  whole.call(head);
  whole.leave(0);
  ModelSpec spec = std::move(whole.spec());
  for (Parameter& parameter : spec.parameters) {
    if (!shown.tied) parameter.tied_to = kNone;  // Whatever the text's own config says.
  }
  describe_shown(spec, text, std::move(tower));
  return spec;
}

}  // namespace dsplan
