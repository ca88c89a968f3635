// What a file of a dialect says, as text: every setting that it gives, one per line.
#pragma once

#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/dialects/dialects.h"
#include "core/format.h"
#include "core/settings.h"
#include "io/dialects/dialect_file.h"
#include "model/parts.h"
#include "planner/resolve/programs.h"

namespace dsplan::dialect_reading {

inline std::string shown(const std::string& text) { return text; }
inline std::string shown(bool flag) { return flag ? "true" : "false"; }
inline std::string shown(std::int64_t number) { return std::to_string(number); }
inline std::string shown(double number) { return formatted("{}", number); }
inline std::string shown(const std::vector<std::string>& list) { return formatted("{}", joined(list, " ")); }
inline std::string shown(OffloadDevice device) { return std::string(name(device)); }
template <class Other>
std::string shown(const Other&) {
  return "given";
}

template <class T>
void line(std::string& text, std::string_view name, const Setting<T>& setting) {
  if (setting.given()) text += formatted("  {}: {}\n", name, shown(*setting));
  if (setting.is_auto) text += formatted("  {}: auto\n", name);
}

inline std::string name_of(const SettingRow& row) {
  if (row.request.option != nullptr) return row.request.option;
  if (!row.request.key.empty()) return std::string(row.request.key);
  return "(of files alone)";
}

inline std::string text_of(const Request& request) {
  std::string text;
  for (const SettingRow& row : settings()) {
    if (!row.request.field) continue;
    std::visit(
        [&](const auto* setting) {
          std::string name = name_of(row);
          if (static_cast<const void*>(setting) == &request.nodes) name = "nodes";
          if (static_cast<const void*>(setting) == &request.torch_dtype) name = "loaded in";
          line(text, name, *setting);
        },
        row.request.field.of(request));
  }
  if (request.training_arguments) {
    const TrainingArguments& a = *request.training_arguments;
    text += "  TrainingArguments:\n";
    line(text, "  per_device_train_batch_size", a.per_device_train_batch_size);
    line(text, "  gradient_accumulation_steps", a.gradient_accumulation_steps);
    line(text, "  max_grad_norm", a.max_grad_norm);
    line(text, "  learning_rate", a.learning_rate);
    line(text, "  adam_beta1", a.adam_beta1);
    line(text, "  adam_beta2", a.adam_beta2);
    line(text, "  adam_epsilon", a.adam_epsilon);
    line(text, "  weight_decay", a.weight_decay);
    line(text, "  bf16", a.bf16);
    line(text, "  fp16", a.fp16);
    line(text, "  auto_find_batch_size", a.auto_find_batch_size);
    line(text, "  gradient_checkpointing", a.gradient_checkpointing);
    line(text, "  optim", a.optim);
  }
  if (request.inline_deepspeed) {
    text += "  DeepSpeed:\n";
    for (const SettingRow& row : settings()) {
      if (!row.json.field) continue;
      std::visit([&](const auto* setting) { line(text, "  " + std::string(row.json.path), *setting); },
                 row.json.field.of(*request.inline_deepspeed));
    }
  }
  for (const NotModelled& one : request.not_modelled)
    text += formatted("  not modelled: {}: {}\n", one.key, one.feature);
  return text;
}

// As the resolver gets it for a Llama of 32 layers, or what is refused on the way. torchtitan's degrees that take all
// ranks take eight.
// `shown`: the model reads pictures.
inline std::string completed(Said said, bool shown = false) {
  ModelSpec base;
  base.family = shown ? "llava" : "llama";
  base.dims.layers = 32;
  base.stored_dtype = DType::BFloat16;
  if (shown) {
    TowerParts tower;
    tower.tokens = 4;
    tower.merge = 2;  // Of all sizes.
    DecoderParts parts;
    parts.tower = std::make_shared<const TowerParts>(tower);
    base.parts = std::make_shared<const DecoderParts>(parts);
  }
  const bool all = said.foreign.program.value_or("") == "torchtitan" && said.foreign.shards.value_or(-1) < 0;
  if (all && !said.request.gpus.given()) said.request.gpus = {8, option("--gpus")};
  try {
    std::string text = text_of(with_program(said, base, nullptr));
    if (said.foreign.model.given()) text = formatted("  MODEL: {}\n", *said.foreign.model) + text;
    return text;
  } catch (const Refusal& refusal) {
    std::string text;
    for (const NotModelled& one : said.request.not_modelled) {
      text += formatted("  not modelled: {}: {}\n", one.key, one.feature);
    }
    for (const Diagnostic& fault : refusal.diagnostics()) text += formatted("  refused: {}\n", fault.message);
    return text;
  }
}

}  // namespace dsplan::dialect_reading
