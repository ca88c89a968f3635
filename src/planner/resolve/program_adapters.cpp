#include "planner/resolve/program_parts.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "core/format.h"

namespace dsplan {
namespace {

// What peft adapts where nobody names modules (peft 0.21, utils/constants.py,
// TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING), by our families.
struct UsualTargets {
  std::string_view family;
  std::string_view targets;
};
constexpr UsualTargets kUsualTargets[] = {
    {"t5", "q+v"},
    {"gpt2", "c_attn"},
    {"bloom", "query_key_value"},
    {"opt", "q_proj+v_proj"},
    {"bert", "query+value"},
    {"roberta", "query+value"},
    {"llama", "q_proj+v_proj"},
    {"mistral", "q_proj+v_proj"},
    {"gemma", "q_proj+v_proj"},
    {"gemma2", "q_proj+v_proj"},
    {"gemma3_text", "q_proj+v_proj"},
    {"qwen2", "q_proj+v_proj"},
    {"qwen3", "q_proj+v_proj"},
    {"mixtral", "q_proj+v_proj"},
    {"falcon", "query_key_value"},
    {"gpt_neox", "query_key_value"},
    {"phi", "q_proj+v_proj+fc1+fc2"},
};

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
    const std::string dropout =
        foreign_.lora_dropout.given() ? formatted("{}", *foreign_.lora_dropout) : (name_ == "trl" ? "0.05" : "0");
    request_.lora = {formatted("r={},targets={},dtype={},dropout={},alpha={}", rank, targets(place), dtype, dropout,
                               alpha(std::stoll(rank))),
                     place};
  }

 private:
  [[nodiscard]] std::string usual_rank() const {
    if (name_ == "trl") return "16";
    return name_ == "llama-factory" ? "8" : "";
  }
  [[nodiscard]] std::string alpha(std::int64_t rank) const {
    if (foreign_.lora_alpha.given()) return formatted("{}", *foreign_.lora_alpha);
    if (name_ == "trl") return "32";
    return name_ == "llama-factory" ? std::to_string(2 * rank) : "8";
  }

  [[nodiscard]] std::string targets(const Place& on) {
    const Setting<std::vector<std::string>>& named = foreign_.lora_targets;
    const bool all = foreign_.lora_all_linear.value_or(false) ||
                     (named.given() && std::find(named->begin(), named->end(), "all-linear") != named->end());
    if (all || (name_ == "llama-factory" && !named.given())) return "all-linear";
    if (named.given()) {
      for (const std::string& one : *named) {
        if (one.find_first_of("*^$|()[]\\+") == std::string::npos) continue;
        faults_.add(named.place.says(formatted("adapters by the pattern \"{}\" are not modelled yet", one),
                                     "name the modules, as q_proj"));
      }
      return formatted("{}", joined(*named, "+"));
    }
    const auto* const usual =
        std::find_if(std::begin(kUsualTargets), std::end(kUsualTargets),
                     [this](const UsualTargets& one) { return one.family == words_.base.family; });
    if (name_ == "trl" && usual != std::end(kUsualTargets)) return std::string(usual->targets);
    faults_.add(on.says("adapters without names of modules", "say lora_target_modules"));
    return "all-linear";
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
