#include "planner/lower/runtimes/named_parameters.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "core/text/letters.h"

namespace dsplan {

std::vector<bool> trained_parameters(const ModelSpec& model, const Training& training) {
  // Asked thousands of times, and nearly always all are.
  std::vector<bool> trained(model.parameters.size(), true);
  for (std::size_t at = 0; at < trained.size(); ++at) {
    const Parameter& parameter = model.parameters[at];
    if (parameter.tied_to != kNone || !training.trains(parameter)) trained[at] = false;
  }
  return trained;
}

void children_first(const ModelSpec& model, const std::function<void(ModuleId)>& leave) {
  std::vector<ModuleId> open;
  const auto close = [&] {
    leave(open.back());
    open.pop_back();
  };
  for (std::size_t at = 0; at < model.modules.size(); ++at) {
    while (!open.empty() && open.back() != model.modules[at].parent) close();
    open.push_back(static_cast<ModuleId>(at));
  }
  while (!open.empty()) close();
}

std::vector<NamedParameter> named_parameters(const ModelSpec& model, const Training& training) {
  std::vector<NamedParameter> found;
  found.reserve(model.parameters.size());
  for (std::size_t at = 0; at < model.parameters.size(); ++at) {
    const Parameter& parameter = model.parameters[at];
    if (parameter.tied_to != kNone) continue;
    found.push_back({static_cast<ParameterId>(at), parameter.shape.elements().value(), training.trains(parameter),
                     training.made_dtype(parameter)});
  }
  return found;
}

namespace {

// A part of the path is "norm" or ends in "_norm".
bool has_norm_part(std::string_view name) {
  constexpr std::string_view kNorm = "norm";
  for (std::size_t at = name.find(kNorm); at != std::string_view::npos; at = name.find(kNorm, at + 1)) {
    const std::size_t end = at + kNorm.size();
    const bool begins = at == 0 || name[at - 1] == '.' || name[at - 1] == '_';
    if (begins && (end == name.size() || name[end] == '.')) return true;
  }
  return false;
}

// Patterns over the lower-case name, and everything in an nn.LayerNorm.
bool decays(const ModelSpec& model, const Parameter& parameter) {
  if (model.module_at(parameter.module).type == "LayerNorm") return false;
  const std::string name = in_lower_case(parameter.name);
  for (std::string_view part : {"bias", "layernorm", "rmsnorm"}) {
    if (name.find(part) != std::string::npos) return false;
  }
  return !has_norm_part(name);
}

}  // namespace

std::vector<ParameterGroup> parameter_groups(const ModelSpec& model, const Training& training,
                                             const std::vector<NamedParameter>& trained) {
  ParameterGroup first{{}, training.optimizer.weight_decay};
  ParameterGroup second;
  for (const NamedParameter& parameter : trained) {
    const bool in_first =
        training.param_groups == ParamGroups::Single || decays(model, model.parameter_at(parameter.id));
    (in_first ? first : second).members.push_back(&parameter);
  }
  std::vector<ParameterGroup> groups;
  for (ParameterGroup* group : {&first, &second}) {
    if (!group->members.empty()) groups.push_back(std::move(*group));
  }
  return groups;
}

}  // namespace dsplan
