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
  bool embedding = false;   // Is named beside the products.
  bool head_norms = false;  // Those of queries and keys.
  bool tower = false;       // The layers of the decoder alone are named, and of gemma3 and paligemma the embedding.
};

// Families without a row have no plan.
constexpr std::array kPlans = {
    Plan{"apertus", false, true},
    Plan{"arcee"},
    Plan{"cohere", true},
    Plan{"cohere2", true},
    Plan{"cwm"},
    Plan{"ernie4_5", true},
    Plan{"exaone4", true, true},
    Plan{"gemma", true},
    Plan{"gemma2", true},
    Plan{"gemma3", true, true, true},
    Plan{"gemma3_text", true, true},
    Plan{"gemma3n_text", true, true},
    Plan{"glm"},
    Plan{"glm4"},
    Plan{"glm4v", false, false, true},
    Plan{"gpt_neox"},
    Plan{"granite", true},
    Plan{"helium"},
    Plan{"hyperclovax"},
    Plan{"idefics3", false, false, true},
    Plan{"jais2"},
    Plan{"llama"},
    Plan{"llava", false, false, true},
    Plan{"llava_next", false, false, true},
    Plan{"minicpm3", true},
    Plan{"mistral"},
    Plan{"nanochat"},
    Plan{"olmo", true},
    Plan{"olmo2"},
    Plan{"paligemma", true, false, true},
    Plan{"phi"},
    Plan{"phi3"},
    Plan{"qwen2"},
    Plan{"qwen2_5_vl", false, false, true},
    Plan{"qwen2_vl", false, false, true},
    Plan{"qwen3", true, true},
    Plan{"seed_oss"},
    Plan{"smollm3", true},
    Plan{"smolvlm", false, false, true},
    Plan{"starcoder2"},
    Plan{"vaultgemma", true},
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
  if (has("embed_tokens.") || has("embed_in.")) return plan->embedding;
  constexpr std::array<std::string_view, 5> kBeside{".q_a_proj.", ".act_fn.", "altup", ".laurel.", "per_layer"};
  return std::none_of(kBeside.begin(), kBeside.end(), has);
}

}  // namespace dsplan
