// The words of --lora, and what peft adapts where they name no modules.
#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/format.h"
#include "core/text/real_numbers.h"
#include "core/text/split.h"
#include "core/text/whole_numbers.h"
#include "model/lora.h"

namespace dsplan {
namespace {

std::vector<std::string> names_in(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, '+');
  return {parts.begin(), parts.end()};
}

// What is wrong with a value, if anything is.
using Wrong = std::optional<std::string>;

Wrong read_dtype(const std::string& key, const std::string& value, std::optional<DType>& into) {
  constexpr std::array<std::pair<std::string_view, DType>, 3> kTypes{
      {{"fp32", DType::Float32}, {"bf16", DType::BFloat16}, {"fp16", DType::Float16}}};
  for (const auto& [name, dtype] : kTypes) {
    if (value != name) continue;
    into = dtype;
    return std::nullopt;
  }
  if (value != "model") return formatted("{} \"{}\" is none of fp32, bf16, fp16, model", key, value);
  into = std::nullopt;
  return std::nullopt;
}

Wrong read_switch(const std::string& key, const std::string& value, bool& into) {
  if (value != "true" && value != "false") return formatted("{} is true or false, not \"{}\"", key, value);
  into = value == "true";
  return std::nullopt;
}

Wrong read_bias(const std::string& value, TrainedBiases& into) {
  constexpr std::array<std::pair<std::string_view, TrainedBiases>, 3> kWords{
      {{"none", TrainedBiases::None}, {"all", TrainedBiases::All}, {"lora_only", TrainedBiases::OfTargets}}};
  for (const auto& [name, biases] : kWords) {
    if (value != name) continue;
    into = biases;
    return std::nullopt;
  }
  return formatted("bias \"{}\" is none of none, all, lora_only", value);
}

Wrong read_names(const std::string& key, const std::string& value, std::vector<std::string>& into) {
  if (value.empty()) return formatted("{} names {}", key, key == "parameters" ? "no parameter" : "no module");
  into = names_in(value);
  return std::nullopt;
}

// One key=value.
Wrong read_pair(const std::string& key, const std::string& value, Lora& lora) {
  if (key == "targets") return read_names(key, value, lora.targets);
  if (key == "parameters") return read_names(key, value, lora.parameters);
  if (key == "save") return read_names(key, value, lora.saved);
  if (key == "dtype") return read_dtype(key, value, lora.dtype);
  if (key == "save_dtype") return read_dtype(key, value, lora.saved_dtype);
  if (key == "rslora") return read_switch(key, value, lora.rank_stabilized);
  if (key == "dora") return read_switch(key, value, lora.dora);
  if (key == "bias") return read_bias(value, lora.bias);
  if (key == "r") {
    lora.r = whole_number(value).value_or(0);
    if (lora.r < 1) return formatted("r must be a number from 1 on, not \"{}\"", value);
  } else if (key == "dropout") {
    lora.dropout = real_number(value).value_or(-1);
    if (!(lora.dropout >= 0 && lora.dropout < 1)) return formatted("dropout must lie in [0, 1), not \"{}\"", value);
  } else if (key == "alpha") {
    const std::optional<double> alpha = real_number(value);
    if (!alpha) return formatted("alpha is a number, not \"{}\"", value);
    lora.alpha = *alpha;
  } else {
    return formatted(
        "\"{}\" is none of r, targets, parameters, dtype, dropout, alpha, rslora, bias, dora, save, save_dtype", key);
  }
  return std::nullopt;
}

struct UsualTargets {
  std::string_view family;
  std::string_view targets;
};
constexpr UsualTargets kUsualTargets[] = {
    {"t5", "q+v"},
    {"mt5", "q+v"},
    {"bart", "q_proj+v_proj"},
    {"gpt2", "c_attn"},
    {"gpt_bigcode", "c_attn"},
    {"gptj", "q_proj+v_proj"},
    {"gpt_neo", "q_proj+v_proj"},
    {"bloom", "query_key_value"},
    {"opt", "q_proj+v_proj"},
    {"bert", "query+value"},
    {"electra", "query+value"},
    {"roberta", "query+value"},
    {"xlm-roberta", "query+value"},
    {"deberta-v2", "query_proj+value_proj"},
    {"llama", "q_proj+v_proj"},
    {"llama4", "q_proj+v_proj"},
    {"mistral", "q_proj+v_proj"},
    {"nemotron_h", "q_proj+k_proj+v_proj+o_proj"},
    {"gemma", "q_proj+v_proj"},
    {"gemma2", "q_proj+v_proj"},
    {"gemma3_text", "q_proj+v_proj"},
    {"qwen2", "q_proj+v_proj"},
    {"qwen3", "q_proj+v_proj"},
    {"mixtral", "q_proj+v_proj"},
    {"falcon", "query_key_value"},
    {"gpt_neox", "query_key_value"},
    {"phi", "q_proj+v_proj+fc1+fc2"},
    {"stablelm", "q_proj+v_proj"},
};

}  // namespace

std::vector<std::string> usual_targets(std::string_view family) {
  for (const UsualTargets& usual : kUsualTargets) {
    if (usual.family == family) return names_in(usual.targets);
  }
  return {};
}

Lora parse_lora(const Setting<std::string>& text) {
  Lora lora;
  Diagnostics diagnostics;
  bool ranked = false;
  for (const std::string_view part : split(*text, ',')) {
    const std::size_t equals = part.find('=');
    const std::string key(part.substr(0, equals));
    ranked = ranked || key == "r";
    const Wrong wrong = equals == std::string_view::npos ? formatted("\"{}\" is not KEY=VALUE", part)
                                                         : read_pair(key, std::string(part.substr(equals + 1)), lora);
    if (wrong) diagnostics.add(text.place.says("LoRA: " + *wrong, "write it as r=8,targets=q_proj+v_proj"));
  }
  if (!ranked) diagnostics.add(text.place.says("LoRA: r is missing", "write it as r=8,targets=q_proj+v_proj"));
  if (lora.saved_dtype && lora.saved.empty()) {
    diagnostics.add(text.place.says("LoRA: save_dtype without save, of which it says the dtype", "save=lm_head"));
  }
  diagnostics.throw_if_any();
  return lora;
}

}  // namespace dsplan
