#include "model/tensor_plan.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/format.h"
#include "model/parts.h"

namespace dsplan {
namespace {

struct Plan {
  std::string_view family;
  bool head_norms = false;  // Those of queries and keys.
  bool tower = false;       // The layers of the decoder alone are named,
  bool embedding = false;   // and its table of words.
};

// Families without a row have no plan.
constexpr std::array kPlans = {
    Plan{"apertus", true},
    Plan{"arcee"},
    Plan{"cohere"},
    Plan{"cohere2"},
    Plan{"cwm"},
    Plan{"ernie4_5"},
    Plan{"exaone4", true},
    Plan{"gemma"},
    Plan{"gemma2"},
    Plan{"gemma3", true, true, true},
    Plan{"gemma3_text", true},
    Plan{"gemma3n_text", true},
    Plan{"glm"},
    Plan{"glm4"},
    Plan{"glm4v", false, true},
    Plan{"gpt_neox"},
    Plan{"granite"},
    Plan{"helium"},
    Plan{"hyperclovax"},
    Plan{"idefics3", false, true},
    Plan{"jais2"},
    Plan{"llama"},
    Plan{"llava", false, true},
    Plan{"llava_next", false, true},
    Plan{"minicpm3"},
    Plan{"mistral"},
    Plan{"nanochat"},
    Plan{"olmo"},
    Plan{"olmo2"},
    Plan{"paligemma", false, true, true},
    Plan{"phi"},
    Plan{"phi3"},
    Plan{"qwen2"},
    Plan{"qwen2_5_vl", false, true},
    Plan{"qwen2_vl", false, true},
    Plan{"qwen3", true},
    Plan{"seed_oss"},
    Plan{"smollm3"},
    Plan{"smolvlm", false, true},
    Plan{"starcoder2"},
    Plan{"vaultgemma"},
};

}  // namespace

bool in_tensor_plan(const ModelSpec& model, const Parameter& parameter) {
  const auto* plan =
      std::find_if(kPlans.begin(), kPlans.end(), [&](const Plan& p) { return p.family == model.family; });
  if (plan == kPlans.end()) return false;
  const std::string_view name = parameter.name;
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (plan->tower && !has(formatted("{}.", model.parts->tower->language))) return false;
  if (has("norm")) return plan->head_norms && (has(".q_norm.") || has(".k_norm."));
  if (has("embed_tokens.") || has("embed_in.")) {  // Named beside the head where it is the head's own (tp_plan).
    const auto id = static_cast<ParameterId>(&parameter - model.parameters.data());
    const bool tied = std::any_of(model.parameters.begin(), model.parameters.end(),
                                  [id](const Parameter& other) { return other.tied_to == id; });
    return plan->tower ? plan->embedding : tied;
  }
  constexpr std::array<std::string_view, 5> kBeside{".q_a_proj.", ".act_fn.", "altup", ".laurel.", "per_layer"};
  return std::none_of(kBeside.begin(), kBeside.end(), has);
}

}  // namespace dsplan
