#include "planner/resolve/program_parts.h"

#include <algorithm>
#include <optional>
#include <regex>
#include <string_view>
#include <vector>

#include "core/format.h"
#include "model/lora_targets.h"
#include "model/parts.h"

namespace dsplan {
namespace {

constexpr std::string_view kV1 = "llama-factory-v1";

std::string_view end_of(const Module& module) {
  return std::string_view(module.path).substr(module.path.rfind('.') + 1);
}

// The ends of their paths where no other module has one of these, or else the whole paths.
std::string as_targets(const ModelSpec& base, const std::vector<bool>& chosen) {
  std::vector<std::string> ends;
  std::vector<std::string> paths;
  for (std::size_t at = 0; at < chosen.size(); ++at) {
    if (!chosen[at]) continue;
    paths.push_back(base.modules[at].path);
    const std::string end(end_of(base.modules[at]));
    if (std::find(ends.begin(), ends.end(), end) == ends.end()) ends.push_back(end);
  }
  for (std::size_t at = 0; at < chosen.size(); ++at) {
    const bool named = std::find(ends.begin(), ends.end(), end_of(base.modules[at])) != ends.end();
    if (named && !chosen[at]) return formatted("{}", joined(paths, "+"));
  }
  return formatted("{}", joined(ends, "+"));
}

// peft's re.fullmatch of one text with whole paths (utils/other.py, match_target_against_key). nullopt: Python's and
// ECMAScript's words may differ in it, or it finds nothing.
std::optional<std::string> matching(const ModelSpec& base, const std::string& pattern) {
  constexpr std::string_view kSameEscapes = "dDwWsSbB";
  if (pattern.size() > 256 || pattern.find("(?") != std::string::npos) return std::nullopt;
  for (std::size_t at = pattern.find('\\'); at != std::string::npos; at = pattern.find('\\', at + 2)) {
    const char next = at + 1 < pattern.size() ? pattern[at + 1] : '\0';
    const bool letter = (next >= 'a' && next <= 'z') || (next >= 'A' && next <= 'Z') || (next >= '0' && next <= '9');
    if (letter && kSameEscapes.find(next) == std::string_view::npos) return std::nullopt;
  }
  try {
    const std::regex expression(pattern);
    std::vector<bool> chosen(base.modules.size(), false);
    bool any = false;
    for (std::size_t at = 1; at < chosen.size(); ++at) {
      chosen[at] = std::regex_match(base.modules[at].path, expression);
      any = any || chosen[at];
    }
    if (any) return as_targets(base, chosen);
  } catch (const std::regex_error&) {
  }
  return std::nullopt;
}

class AdapterWriter {
 public:
  AdapterWriter(const AdapterWords& words, Request& request, Diagnostics& faults)
      : words_(words), foreign_(words.foreign), name_(words.program), request_(request), faults_(faults) {}

  void write() {
    if (request_.lora.given()) return;
    if (!foreign_.adapters.value_or(false)) return refuse_adapters_without_a_switch();
    const Place& place = foreign_.adapters.place;
    std::string rank = foreign_.lora_r.given() ? std::to_string(*foreign_.lora_r) : usual_rank();
    if (rank.empty()) {
      faults_.add(place.says("adapters without a rank", "say lora_r"));
      rank = "8";
    }
    const bool trained_in_fp32 = foreign_.lora_in_fp32.value_or(!foreign_.pure_bf16.value_or(false));
    // TRL trains adapters of packed weights in bf16, whatever else it is told.
    const bool packs = request_.quantization.value_or(foreign_.bits.value_or(0) != 0 ? "nf4" : "none") != "none";
    const bool as_model = !trained_in_fp32 || (name_ == "trl" && words_.stage3);
    const std::string_view dtype = name_ == "trl" && packs ? "bf16" : as_model ? "model" : "fp32";
    const std::string dropout = foreign_.lora_dropout.given() ? formatted("{}", *foreign_.lora_dropout)
                                                              : (name_ == "trl" || name_ == kV1 ? "0.05" : "0");
    const std::string named = targets(place);
    request_.lora = {formatted("r={}{},dtype={},dropout={},alpha={}{}", rank, named.empty() ? "" : ",targets=" + named,
                               dtype, dropout, alpha(std::stoll(rank)), more(packs)),
                     place};
    const auto at = [](const auto& said) { return said.given() ? std::optional(said.place) : std::nullopt; };
    request_.lora_places = {at(foreign_.lora_targets), at(foreign_.lora_saved)};
  }

 private:
  [[nodiscard]] std::string usual_rank() const {
    if (name_ == "trl") return "16";
    return name_.starts_with("llama-factory") ? "8" : "";
  }
  [[nodiscard]] std::string alpha(std::int64_t rank) const {
    if (foreign_.lora_alpha.given()) return formatted("{}", *foreign_.lora_alpha);
    if (name_ == "trl") return "32";
    if (name_ == kV1) return "16";
    return name_ == "llama-factory" ? std::to_string(2 * rank) : "8";
  }

  // LLaMA-Factory casts whatever is trained to fp32 (model/adapter.py, init_adapter), TRL to bf16 over packed weights.
  [[nodiscard]] std::string more(bool packs) const {
    std::string text;
    if (foreign_.lora_rank_stabilized.value_or(false)) text += ",rslora=true";
    if (foreign_.lora_dora.value_or(false)) text += ",dora=true";
    std::vector<std::string> saved = foreign_.lora_saved.value_or({});
    if (foreign_.lora_task.value_or("") == "SEQ_CLS") saved.emplace_back("score");  // peft adds the head itself.
    if (saved.empty()) return text;
    text += formatted(",save={}", joined(saved, "+"));
    const bool widened = name_ == "llama-factory" && !foreign_.pure_bf16.value_or(false) && (packs || !words_.stage3);
    if (widened) text += ",save_dtype=fp32";
    if (name_ == "trl" && packs) text += ",save_dtype=bf16";
    return text;
  }

  // Empty: peft's own of the family.
  [[nodiscard]] std::string targets(const Place& on) {
    const Setting<std::vector<std::string>>& named = foreign_.lora_targets;
    const bool all = foreign_.lora_all_linear.value_or(false) ||
                     (named.given() && std::find(named->begin(), named->end(), "all-linear") != named->end());
    if (name_ == "llama-factory" && words_.base.parts != nullptr && words_.base.parts->tower != nullptr) {
      return of_language(all || !named.given() ? std::vector<std::string>() : *named);
    }
    const bool factory = name_.starts_with("llama-factory");
    if (all || (factory && !named.given())) return every_linear();
    if (named.given() && named->size() == 1 && !factory) {
      const std::string& text = named->front();
      const bool pattern = text.find_first_of("*^$|()[]\\+") != std::string::npos;
      if (const std::optional<std::string> found = pattern ? matching(words_.base, text) : std::nullopt) return *found;
    }
    if (named.given()) {
      for (const std::string& one : *named) {
        if (one.find_first_of("*^$|()[]\\+") == std::string::npos) continue;
        faults_.add(named.place.says(formatted("adapters by the pattern \"{}\" are not modelled yet", one),
                                     "name the modules, as q_proj"));
      }
      return formatted("{}", joined(in_model(named), "+"));
    }
    if (name_ == "trl") return usual_of_peft(on);
    faults_.add(on.says("adapters without names of modules", "say lora_target_modules"));
    return "all-linear";
  }

  [[nodiscard]] std::string every_linear() const {
    const bool one_by_one = name_ != "trl" && words_.base.dims.experts > 0;
    return one_by_one ? as_targets(words_.base, linear_modules()) : "all-linear";
  }

  // Empty: peft's own.
  [[nodiscard]] std::string usual_of_peft(const Place& on) {
    const std::string& family = words_.base.family;
    if (usual_targets(family).empty()) {
      faults_.add(
          on.says(formatted("adapters without names of modules: peft 0.21 knows none for {}, and stops", family),
                  "say lora_target_modules: all-linear"));
    }
    return {};
  }

  // axolotl's find_all_linear_names (loaders/adapter.py) and LLaMA-Factory's find_all_linear_modules name them one by
  // one, so that peft looks for no experts of its own.
  [[nodiscard]] std::vector<bool> linear_modules() const {
    const std::vector<Module>& modules = words_.base.modules;
    std::vector<bool> chosen(modules.size(), false);
    for (std::size_t at = 0; at < chosen.size(); ++at) {
      chosen[at] = modules[at].type.find("Linear") != std::string::npos && !modules[at].path.ends_with("lm_head");
    }
    return chosen;
  }

  // peft asks that one of them be there (tuners_utils.py, inject_adapter). Where none is, all stay, to be refused.
  [[nodiscard]] std::vector<std::string> in_model(const Setting<std::vector<std::string>>& named) {
    const std::vector<Module>& modules = words_.base.modules;
    std::vector<std::string> there;
    std::vector<std::string> absent;
    for (const std::string& one : *named) {
      bool found = std::any_of(modules.begin(), modules.end(), [&one](const Module& module) {
        return module.path == one || module.path.ends_with("." + one);
      });
      found = found || stands_for_parameter(words_.base, one);
      (found ? there : absent).push_back(one);
    }
    if (there.empty() || absent.empty()) return *named;
    request_.notices.push_back({Notice::Kind::Warning,
                                named.place,
                                formatted("{} has no module {}: peft puts adapters on the others and says nothing",
                                          words_.base.name, joined(absent, ", ")),
                                {}});
    return there;
  }

  // Beside a tower LLaMA-Factory names the language model's modules one by one (model_utils/visual.py,
  // patch_target_modules; misc.py, find_all_linear_modules). Empty: all that are linear.
  [[nodiscard]] std::string of_language(const std::vector<std::string>& named) const {
    const ModelSpec& base = words_.base;
    const TowerParts& tower = *base.parts->tower;
    std::vector<bool> chosen(base.modules.size(), false);
    for (std::size_t at = 0; at < chosen.size(); ++at) {
      const std::string& path = base.modules[at].path;
      const bool beside = path.find(tower.module) != std::string::npos || path.ends_with("lm_head") ||
                          (!tower.projector.empty() && path.find(tower.projector) != std::string::npos);
      if (beside || base.modules[at].type.find("Linear") == std::string::npos) continue;
      chosen[at] = named.empty() || std::any_of(named.begin(), named.end(), [&](const std::string& name) {
                     return path.find(name) != std::string::npos;
                   });
    }
    return as_targets(base, chosen);
  }

  // Sizes of adapters that nothing turns on are a mistake, unless they are turned off by name.
  void refuse_adapters_without_a_switch() {
    if (foreign_.adapters.given()) return;
    const Place* at = nullptr;
    if (foreign_.lora_r.given()) at = &foreign_.lora_r.place;
    if (foreign_.lora_targets.given()) at = &foreign_.lora_targets.place;
    if (at == nullptr) return;
    faults_.add(at->says("this says what adapters look like, and nothing turns them on",
                         name_ == "axolotl" ? "say adapter: lora" : "say use_peft: true"));
  }

  const AdapterWords& words_;
  const ForeignInput& foreign_;
  const std::string& name_;
  Request& request_;
  Diagnostics& faults_;
};

}  // namespace

void complete_adapters(const AdapterWords& words, Request& request, Diagnostics& faults) {
  AdapterWriter(words, request, faults).write();
}

}  // namespace dsplan
