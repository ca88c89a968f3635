#include "planner/lower/runtimes/loading/constructed_weights.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "planner/lower/runtimes/loading/construction.h"
#include "planner/lower/runtimes/model_loading.h"
#include "planner/lower/runtimes/named_parameters.h"

namespace dsplan {
namespace {

// The model inside of the root that ties it, as each does when it is made (modeling_utils.py, post_init), where both
// are its own; else the root.
ModuleId tied_by(const ModelSpec& model, const Parameter& parameter) {
  const Parameter& first = model.parameter_at(parameter.tied_to);
  for (ModuleId at = parameter.module; at > 0; at = model.module_at(at).parent) {
    if (model.module_at(at).type.ends_with("Model") && model.lies_in(first.module, at)) {
      return at;
    }
  }
  return 0;
}

// The first module that does not lie in this one.
std::size_t end_of(const ModelSpec& model, std::size_t module) {
  std::size_t end = module + 1;
  while (end < model.modules.size() && model.lies_in(static_cast<ModuleId>(end), static_cast<ModuleId>(module))) ++end;
  return end;
}

// By the module before whose constructor they are made, the last entry behind all: of what others inside wait for
// first.
std::vector<std::vector<ParameterId>> by_maker(const ModelSpec& model) {
  std::vector<std::vector<ParameterId>> order(model.modules.size() + 1);
  const std::vector<ModuleId> before = made_before(model);
  for (std::size_t id = 0; id < model.parameters.size(); ++id) {
    const Parameter& parameter = model.parameters[id];
    if (is_adapter(parameter)) continue;
    std::size_t due = at(before[id] == kNone ? parameter.module : before[id]);
    if (before[id] == parameter.module) due = end_of(model, due);
    order[due].push_back(static_cast<ParameterId>(id));
  }
  for (std::vector<ParameterId>& due : order) {
    std::stable_sort(due.begin(), due.end(), [&](ParameterId a, ParameterId b) {
      return model.parameter_at(a).module > model.parameter_at(b).module;
    });
  }
  return order;
}

// Made of another tensor as large, times a number (modeling_dinov2.py, Dinov2LayerScale; modeling_mllama.py).
bool is_scaled(const ModelSpec& model, const Parameter& parameter) {
  const std::string_view type = model.module_at(parameter.module).type;
  const std::string_view leaf = std::string_view(parameter.name).substr(parameter.name.rfind('.') + 1);
  if (leaf.starts_with("lambda")) return true;
  if (type == "MllamaVisionModel") return leaf == "class_embedding";
  if (type == "MllamaPrecomputedPositionEmbedding") return leaf == "embedding";
  return type == "MllamaVisionEncoderLayer" && leaf.starts_with("gate_");
}

}  // namespace

ConstructedWeights::ConstructedWeights(const ModelSpec& model, const Version& transformers, std::vector<Variable>& made,
                                       Make make)
    : model_(model),
      pads_(transformers >= Version{5, 0, 0}),
      made_(made),
      make_(std::move(make)),
      order_(by_maker(model)) {}

void ConstructedWeights::construct_waiting(std::size_t next) {
  for (const ParameterId id : order_[next]) {
    const ModuleId module = model_.parameter_at(id).module;
    const bool of_root = module == 0 && next + 1 == order_.size();
    if (module != static_cast<ModuleId>(next) && !of_root) construct(id);
  }
}

void ConstructedWeights::construct_root() {
  for (const ParameterId id : order_.back()) {
    if (model_.parameter_at(id).module == 0) construct(id);
  }
}

void ConstructedWeights::construct_own(std::size_t next) {
  for (const ParameterId id : order_[next]) {
    if (model_.parameter_at(id).module == static_cast<ModuleId>(next)) construct(id);
  }
}

void ConstructedWeights::tie_outside(ModuleId next) {
  for (auto& [scope, weights] : tied_) {
    if (next == kNone || !model_.lies_in(next, scope)) tie(weights);
  }
}

void ConstructedWeights::construct(ParameterId id) {
  constexpr What kTied{Role::Parameters, "weight of its own, until it is tied", "modeling_utils.py, tie_weights"};
  constexpr What kOnes{Role::Temporaries, "what a parameter is a multiple of", "its class's constructor"};
  const Parameter& parameter = model_.parameter_at(id);
  Variable ones;
  if (is_scaled(model_, parameter)) {
    ones = make_(id, kOnes);
    ones.mark_scratch();
  }
  if (parameter.tied_to == kNone) {
    made_[at(id)] = make_(id, {Role::Parameters, "parameter"});
    return;
  }
  std::vector<Own>& own = tied_[tied_by(model_, parameter)];
  own.push_back({id, make_(id, kTied)});
  own.back().variable.mark_scratch();
}

// Each goes when the other takes its place, and the bias beside it is padded to as many as there are words, by none or
// more: into another tensor (modeling_utils.py, tie_weights, _adjust_bias; the order is _tied_weights_keys'). A table
// of words stays, though its head was there before it.
void ConstructedWeights::tie(std::vector<Own>& weights) {
  const auto is_bias = [&](const Own& one) { return model_.parameter_at(one.id).name.ends_with(".bias"); };
  const bool biases_first = model_.family == "deberta-v2";
  std::stable_partition(weights.begin(), weights.end(), [&](const Own& one) { return is_bias(one) == biases_first; });
  for (Own& each : weights) {
    const Parameter& tied = model_.parameter_at(each.id);
    const Parameter& first = model_.parameter_at(tied.tied_to);
    const auto holds_words = [&](ModuleId module) { return model_.module_at(module).type == "Embedding"; };
    const bool stays = holds_words(tied.module) && !holds_words(first.module) && first.module < tied.module;
    if (stays) std::swap(each.variable, made_[at(tied.tied_to)]);
    each.variable.mark_scratch();
    each.variable.reset();
    pad_bias(stays ? first.module : tied.module, weights);
  }
  weights.clear();
}

void ConstructedWeights::pad_bias(ModuleId module, std::vector<Own>& weights) {
  const ParameterId bias = model_.parameter(module, "bias");
  if (!pads_ || bias == kNone || model_.parameter(module, "weight") == kNone) return;
  const auto own =
      std::find_if(weights.begin(), weights.end(), [&](const Own& one) { return one.id == bias && one.variable; });
  const bool is_own = own != weights.end();
  const Parameter& named = model_.parameter_at(bias);
  const ParameterId id = is_own || named.tied_to == kNone ? bias : named.tied_to;
  Variable& padded = is_own ? own->variable : made_[at(id)];
  if (!padded) return;
  padded.mark_scratch();
  padded = make_(id, {Role::Parameters, "parameter"});
  if (is_own) padded.mark_scratch();
}

}  // namespace dsplan
