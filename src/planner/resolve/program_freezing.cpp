// Which parameters axolotl trains (utils/freeze.py; train.py, setup_model_and_tokenizer).
#include <algorithm>
#include <array>
#include <cstddef>
#include <regex>
#include <string>
#include <vector>

#include "core/format.h"
#include "planner/resolve/program_parts.h"

namespace dsplan {
namespace {

// _MM_MODULE_PREFIXES: components of names in what sees and hears.
constexpr std::array<std::string_view, 9> kBesideLanguage{"vision_tower", "vision_model",          "vision_encoder",
                                                          "embed_vision", "multi_modal_projector", "visual",
                                                          "audio_tower",  "audio_model",           "embed_audio"};

// LayerNamePattern: a point is a point, unless a plus follows; re.match looks at the beginning of a name.
std::string as_regex(std::string_view pattern) {
  std::string text;
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    const bool point = pattern[at] == '.' && (at + 1 == pattern.size() || pattern[at + 1] != '+');
    if (point) text += '\\';
    text += pattern[at];
  }
  return text;
}

bool names_rows(const std::string& pattern) {
  static const std::regex rows(R"(^.+\[[0-9]*(:[0-9]*)?\]$)");
  return std::regex_match(pattern, rows);
}

// By parameter: whether a pattern names it. A fault for what is no pattern, and for rows of a parameter.
std::vector<bool> named_by(const Setting<std::vector<std::string>>& patterns, const ModelSpec& base,
                           Diagnostics& faults) {
  std::vector<bool> named(base.parameters.size());
  for (const std::string& pattern : *patterns) {
    if (names_rows(pattern)) {
      faults.add(
          patterns.place.says(formatted("\"{}\": rows of a parameter that are trained are not modelled yet", pattern)));
      continue;
    }
    try {
      const std::regex expression(as_regex(pattern));
      for (std::size_t id = 0; id < named.size(); ++id) {
        const std::string& name = base.parameters[id].name;
        named[id] = named[id] || std::regex_search(name, expression, std::regex_constants::match_continuous);
      }
    } catch (const std::regex_error&) {
      faults.add(patterns.place.says(formatted("\"{}\" is no regular expression", pattern)));
    }
  }
  return named;
}

// What is left, as globs: of the longest beginnings under which nothing is named.
std::vector<std::string> globs_without(const std::vector<bool>& named, const ModelSpec& base) {
  const auto all_left = [&](const std::string& beginning) {
    for (std::size_t id = 0; id < named.size(); ++id) {
      if (named[id] && base.parameters[id].name.starts_with(beginning)) return false;
    }
    return true;
  };
  std::vector<std::string> globs;
  for (std::size_t id = 0; id < named.size(); ++id) {
    const std::string& name = base.parameters[id].name;
    if (named[id] || base.parameters[id].tied_to != kNone) continue;
    std::string glob = name;
    for (std::size_t point = name.find('.'); point != std::string::npos; point = name.find('.', point + 1)) {
      if (!all_left(name.substr(0, point + 1))) continue;
      glob = name.substr(0, point + 1) + "*";
      break;
    }
    if (std::find(globs.begin(), globs.end(), glob) == globs.end()) globs.push_back(std::move(glob));
  }
  return globs;
}

}  // namespace

void freeze_unnamed(const ForeignInput& foreign, const ModelSpec& base, Request& request, Diagnostics& faults) {
  const Setting<std::vector<std::string>>& patterns = foreign.trained_names;
  if (!patterns.given() || patterns->empty()) return;
  if (foreign.adapters.value_or(false)) {
    return faults.add(patterns.place.says(
        "\"unfrozen_parameters\" beside adapters: axolotl freezes the adapters too, whose names begin with base_model",
        "without it the adapters are what is trained"));
  }
  const std::vector<bool> named = named_by(patterns, base, faults);
  if (std::find(named.begin(), named.end(), true) == named.end()) {
    return faults.add(patterns.place.says("no parameter of the model has such a name: nothing would be trained"));
  }
  std::vector<std::string> globs = globs_without(named, base);
  if (!globs.empty()) request.freeze = {std::move(globs), patterns.place};
  const auto ends = [](const std::string& pattern) {
    return pattern.find("lm_head") != std::string::npos || pattern.find("embed_tokens") != std::string::npos;
  };
  const bool hooks = std::any_of(patterns->begin(), patterns->end(), ends);
  if (hooks && !request.input_require_grads.given()) request.input_require_grads = {true, patterns.place};
}

void freeze_beside_language(const ForeignInput& foreign, const ModelSpec& base, Request& request) {
  if (!foreign.freeze_shown.value_or(false)) return;
  std::vector<std::string> globs = request.freeze.value_or({});
  for (const std::string_view part : kBesideLanguage) {
    const auto inside = [&](const Parameter& one) {
      return ("." + one.name).find(formatted(".{}.", part)) != std::string::npos;
    };
    if (std::any_of(base.parameters.begin(), base.parameters.end(), inside)) globs.push_back(formatted("*{}.*", part));
  }
  if (!globs.empty()) request.freeze = {std::move(globs), foreign.freeze_shown.place};
}

}  // namespace dsplan
