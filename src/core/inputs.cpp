#include "core/inputs.h"

#include "core/field_count.h"
#include "core/settings.h"
#include "core/text/letters.h"

namespace dsplan {

std::string_view name(Notice::Kind kind) {
  switch (kind) {
    case Notice::Kind::Inert: return "inert";
    case Notice::Kind::Unknown: return "unknown";
    case Notice::Kind::Warning: return "warning";
    case Notice::Kind::Announcement: return "announcement";
  }
  return "?";
}

std::string_view describe(When when) {
  switch (when) {
    case When::Always: return "every configuration";
    case When::PyTorch: return "plain PyTorch";
    case When::Zero: return "ZeRO";
    case When::Stage12: return "ZeRO stages 1 and 2";
    case When::Stage3: return "ZeRO stage 3";
    case When::CpuAdam: return "an offloaded optimizer";
    case When::ParamOffload: return "offloaded parameters";
    case When::Nvme: return "NVMe offload";
    case When::Muon: return "the Muon optimizer";
    case When::Bf16: return "bf16";
    case When::Fp16: return "fp16";
    case When::DeepSpeedCheckpointing:
      return "training code that calls deepspeed.checkpointing (--checkpoint-impl deepspeed)";
  }
  return "?";
}

Place option(std::string name) { return {std::move(name), 0, 0, {}}; }

namespace {

TrainingArguments lay(const TrainingArguments& below, const TrainingArguments& above) {
  using All = TrainingArguments;
  TrainingArguments all = laid_over<1>(
      below, above, &All::per_device_train_batch_size, &All::gradient_accumulation_steps, &All::max_grad_norm,
      &All::learning_rate, &All::adam_beta1, &All::adam_beta2, &All::adam_epsilon, &All::weight_decay, &All::bf16,
      &All::fp16, &All::auto_find_batch_size, &All::gradient_checkpointing, &All::optim);
  all.place = above.place;
  return all;
}

struct Unit {
  std::string_view name;
  std::int64_t bytes;
};
// In lower case. A bare letter is a power of two, as schedulers and shells have it.
constexpr Unit kUnits[] = {{"", 1},
                           {"b", 1},
                           {"kb", 1'000},
                           {"mb", 1'000'000},
                           {"gb", 1'000'000'000},
                           {"tb", 1'000'000'000'000},
                           {"kib", 1LL << 10},
                           {"mib", 1LL << 20},
                           {"gib", 1LL << 30},
                           {"tib", 1LL << 40},
                           {"k", 1LL << 10},
                           {"m", 1LL << 20},
                           {"g", 1LL << 30},
                           {"t", 1LL << 40}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::optional<Bytes> parse_bytes(std::string_view text) {
  // Digits and decimals make one integer, which the unit must turn into whole bytes: no floating point on the way.
  std::int64_t digits = 0;
  std::int64_t scale = 1;
  bool any = false;
  bool point = false;
  std::size_t at = 0;
  for (; at < text.size() && (is_digit(text[at]) || (text[at] == '.' && !point)); ++at) {
    if (text[at] == '.') {
      point = true;
      continue;
    }
    any = true;
    if (__builtin_mul_overflow(digits, 10, &digits) || __builtin_add_overflow(digits, text[at] - '0', &digits))
      return {};
    if (point && __builtin_mul_overflow(scale, 10, &scale)) return {};
  }
  while (at < text.size() && text[at] == ' ') ++at;
  const std::string unit = in_lower_case(text.substr(at));
  for (const Unit& known : kUnits) {
    if (known.name != unit || !any) continue;
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(digits, known.bytes, &bytes) || bytes % scale != 0) return {};
    return Bytes(bytes / scale);
  }
  return {};
}

Request overlay(const Request& below, const Request& above) {
  Request all = below;
  if (above.optimizer.mentioned()) {
    all.implementation = {};
    all.momentum = {};
    all.weight_decay = {};
  }
  if (above.checkpoint.mentioned()) all.checkpoint_groups = {};
  if (above.routing.mentioned()) all.token_counts = {};
  if (above.calibration.mentioned()) all.measured = {};
  if (above.lora.mentioned()) all.lora_places = above.lora_places;
  visit_settings(all, above, [](auto& mine, const auto& theirs) { prefer(mine, theirs); });
  if (below.set.given() && above.set.given()) {  // Key by key, the last one counts.
    std::vector<std::string> both = *below.set;
    both.insert(both.end(), above.set->begin(), above.set->end());
    all.set = {std::move(both), above.set.place};
  }
  all.has_training_file = below.has_training_file || above.has_training_file;
  all.has_launch_line = below.has_launch_line || above.has_launch_line;
  if (above.training_arguments) {
    all.training_arguments = below.training_arguments ? lay(*below.training_arguments, *above.training_arguments)
                                                      : *above.training_arguments;
  }
  if (above.deepspeed.mentioned()) all.inline_deepspeed = {};
  if (above.inline_deepspeed) {
    all.inline_deepspeed = above.inline_deepspeed;
    all.deepspeed = {};
  }
  all.not_modelled.insert(all.not_modelled.end(), above.not_modelled.begin(), above.not_modelled.end());
  all.notices.insert(all.notices.end(), above.notices.begin(), above.notices.end());
  return all;
}

}  // namespace dsplan
