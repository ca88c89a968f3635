#include "planner/resolve/program_parts.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/format.h"

namespace dsplan {
namespace {

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
    const std::string named = targets(place);
    request_.lora = {formatted("r={}{},dtype={},dropout={},alpha={}{}", rank, named.empty() ? "" : ",targets=" + named,
                               dtype, dropout, alpha(std::stoll(rank)), more(packs)),
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
    if (all || (name_ == "llama-factory" && !named.given())) return "all-linear";
    if (named.given()) {
      for (const std::string& one : *named) {
        if (one.find_first_of("*^$|()[]\\+") == std::string::npos) continue;
        faults_.add(named.place.says(formatted("adapters by the pattern \"{}\" are not modelled yet", one),
                                     "name the modules, as q_proj"));
      }
      return formatted("{}", joined(*named, "+"));
    }
    if (name_ == "trl") return {};
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
