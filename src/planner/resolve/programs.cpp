#include "planner/resolve/programs.h"

#include <algorithm>
#include <array>

#include "core/format.h"
#include "planner/resolve/sharding_plugin.h"

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

class Program {
 public:
  Program(const Said& said, const ModelSpec& base, const DeepSpeedInput* deepspeed)
      : foreign_(said.foreign), request_(said.request), base_(base), deepspeed_(deepspeed) {
    name_ = foreign_.program.value_or({});
    if (deepspeed_ == nullptr && request_.inline_deepspeed) deepspeed_ = &*request_.inline_deepspeed;
  }

  Request complete() {
    apply_sharding_plugin(foreign_, base_, request_, faults_);
    if (name_ == "trl") trl();
    if (name_ == "llama-factory") llama_factory();
    if (name_ == "axolotl") axolotl();
    adapters();
    faults_.throw_if_any();
    return std::move(request_);
  }

 private:
  // Where a value stands that the program chooses.
  [[nodiscard]] Place own() const {
    const std::string_view shown = name_ == "trl" ? "TRL" : name_ == "llama-factory" ? "LLaMA-Factory" : name_;
    return option(formatted("{}'s default", shown));
  }
  [[nodiscard]] bool stage3() const {
    return request_.zero_stage.value_or(0) == 3 || (deepspeed_ != nullptr && deepspeed_->zero.stage.value_or(0) == 3);
  }
  [[nodiscard]] bool runs_deepspeed() const {
    return deepspeed_ != nullptr || request_.deepspeed.given() || request_.zero_stage.given();
  }
  TrainingArguments& trainer() {
    if (!request_.training_arguments) request_.training_arguments.emplace().place = own();
    return *request_.training_arguments;
  }
  template <class T>
  void usually(Setting<T>& setting, T value) const {
    if (!setting.mentioned()) setting = {std::move(value), own()};
  }
  void checkpoints_usually() {
    const bool said = trainer().gradient_checkpointing.given() || request_.checkpoint.given();
    if (!said) request_.checkpoint = {"full", own()};
  }

  void trl() {
    TrainingArguments& arguments = trainer();
    checkpoints_usually();
    if (!arguments.fp16.value_or(false)) usually(arguments.bf16, true);
    usually(arguments.learning_rate, 2e-5);
    usually(request_.torch_dtype, std::string("float32"));
    usually<std::int64_t>(request_.seq, 1024);
    if (foreign_.adapters.value_or(false) && stage3() && request_.checkpoint.given()) {
      usually(request_.checkpoint_impl, std::string("reentrant"));
    }
    request_.notices.push_back({Notice::Kind::Warning,
                                foreign_.program.place,
                                "TRL's own loss is not modelled: transformers' loss over whole logits is predicted, "
                                "without the metrics that TRL computes beside it",
                                {}});
  }

  // The layers' forward is checkpointed unless it is turned off. What is trained is kept in fp32, but for pure bf16 and
  // ZeRO-3.
  void llama_factory() {
    TrainingArguments& arguments = trainer();
    checkpoints_usually();
    if (request_.checkpoint.given()) usually(request_.checkpoint_impl, std::string("reentrant"));
    usually<std::int64_t>(request_.seq, 2048);
    if (!foreign_.adapters.given()) foreign_.adapters = {true, own()};
    if (runs_deepspeed()) return;
    const bool pure = foreign_.pure_bf16.value_or(false);
    const bool half = arguments.fp16.value_or(false);
    const std::string computed = half && !pure ? "float16" : "bfloat16";
    const bool whole = !*foreign_.adapters && !pure;
    request_.torch_dtype = {whole ? "float32" : computed, own()};
  }

  // Weights are loaded in the dtype of autocast. Norms and embeddings of what has no adapters stay in fp32, unless
  // flash attention, which wants 16 bits, brings them back.
  void axolotl() {
    TrainingArguments& arguments = trainer();
    usually<std::int64_t>(arguments.per_device_train_batch_size, 1);
    usually<std::int64_t>(request_.micro_batch, 1);
    usually<std::int64_t>(request_.seq, 512);
    const bool pure = foreign_.pure_bf16.value_or(false);
    if (!arguments.fp16.value_or(false) && !pure) usually(arguments.bf16, true);
    if (request_.checkpoint.given()) usually(request_.checkpoint_impl, std::string("reentrant"));
    const bool adapted = foreign_.adapters.value_or(false);
    if (adapted && !foreign_.lora_kernels.given()) {
      faults_.add(foreign_.adapters.place.says(
          "axolotl's kernels for adapters, which it turns on by itself, are not modelled yet",
          "say lora_mlp_kernel: false, which turns all of them off"));
    }
    if (runs_deepspeed()) return;
    const bool half = arguments.fp16.value_or(false);
    const bool bf16 = arguments.bf16.value_or(false) || pure;
    request_.torch_dtype = {bf16 ? "bfloat16" : (half ? "float16" : "float32"), own()};
    const std::string attention = request_.attention.value_or("sdpa");
    if (adapted || (!bf16 && !half) || (attention != "sdpa" && attention != "eager")) return;
    faults_.add(foreign_.program.place.says(
        "norms and embeddings in fp32 over 16-bit weights, as axolotl trains without adapters, are not modelled yet",
        "DeepSpeed casts them; flash attention does too"));
  }

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
    const auto* const usual = std::find_if(std::begin(kUsualTargets), std::end(kUsualTargets),
                                           [this](const UsualTargets& one) { return one.family == base_.family; });
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

  void adapters() {
    if (request_.lora.given()) return;
    if (!foreign_.adapters.value_or(false)) return refuse_adapters_without_a_switch();
    const Place& place = foreign_.adapters.place;
    std::string rank = foreign_.lora_r.given() ? std::to_string(*foreign_.lora_r) : usual_rank();
    if (rank.empty()) {
      faults_.add(place.says("adapters without a rank", "say lora_r"));
      rank = "8";
    }
    const bool trained_in_fp32 = foreign_.lora_in_fp32.value_or(!foreign_.pure_bf16.value_or(false));
    const bool as_model = !trained_in_fp32 || (name_ == "trl" && stage3());
    const std::string dropout =
        foreign_.lora_dropout.given() ? formatted("{}", *foreign_.lora_dropout) : (name_ == "trl" ? "0.05" : "0");
    request_.lora = {formatted("r={},targets={},dtype={},dropout={},alpha={}", rank, targets(place),
                               as_model ? "model" : "fp32", dropout, alpha(std::stoll(rank))),
                     place};
  }

  ForeignInput foreign_;
  Request request_;
  const ModelSpec& base_;
  const DeepSpeedInput* deepspeed_;
  std::string name_;
  Diagnostics faults_;
};

}  // namespace

Request with_program(const Said& said, const ModelSpec& base, const DeepSpeedInput* deepspeed) {
  return Program(said, base, deepspeed).complete();
}

}  // namespace dsplan
