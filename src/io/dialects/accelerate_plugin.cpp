// accelerate's DeepSpeedPlugin (accelerate 1.15.0, utils/dataclasses.py): what it makes of a few keys.
#include "core/format.h"
#include "io/deepspeed_keys.h"
#include "io/dialects/dialect_reader.h"

namespace dsplan::detail {
namespace {

// "none" may be YAML's own null or false.
void take_device(const Spoken& said, OffloadInput& block, Diagnostics& faults) {
  const std::string text = said.value.is(Value::Kind::Bool) ? "none" : text_of(said.value);
  if (!one_of(text, said.key.values)) return wrong(said, "one of none, cpu, nvme", faults);
  for (const OffloadDevice one : {OffloadDevice::None, OffloadDevice::Cpu, OffloadDevice::Nvme}) {
    if (text == name(one)) block.device = {one, said.place};
  }
  block.present = true;
  block.place = said.place;
}

void take_stage(const Spoken& said, const Setting<std::int64_t>& stage, DeepSpeedInput& plugin, Request& request,
                Diagnostics& faults) {
  if (stage.given() && *stage > 3) {
    return faults.add(
        said.place.says(formatted("ZeRO stage \"{}\" does not exist", *stage), "DeepSpeed has stages 0 to 3"));
  }
  request.zero_stage = plugin.zero.stage = stage;
}

}  // namespace

void take_plugin_key(const Spoken& said, DeepSpeedInput& plugin, Request& request, Diagnostics& faults) {
  const std::string_view key = said.written.substr(said.written.rfind('.') + 1);
  if (key == "offload_optimizer_device") return take_device(said, plugin.zero.offload_optimizer, faults);
  if (key == "offload_param_device") return take_device(said, plugin.zero.offload_param, faults);
  static const Document kNowhere;
  Diagnostics own;
  ReadContext context{said.file != nullptr ? *said.file : kNowhere, own};
  const auto at = [&said](auto setting) {
    setting.place = said.place;
    return setting;
  };
  if (key == "zero_stage") {
    take_stage(said, at(integer_setting(context, said.written, said.value, 0)), plugin, request, faults);
  } else if (key == "gradient_accumulation_steps") {
    plugin.grad_accum = at(integer_setting(context, said.written, said.value, 1));
  } else if (key == "gradient_clipping") {
    plugin.gradient_clipping = at(number_setting(context, said.written, said.value));
  } else if (key == "offload_optimizer_nvme_path") {
    plugin.zero.offload_optimizer.nvme_path = at(string_setting(context, said.written, said.value));
  } else if (key == "offload_param_nvme_path") {
    plugin.zero.offload_param.nvme_path = at(string_setting(context, said.written, said.value));
  } else if (key == "zero3_save_16bit_model") {
    plugin.zero.gather_16bit_weights_on_model_save = at(boolean_setting(context, said.written, said.value));
  } else if (boolean_setting(context, said.written, said.value).value_or(false)) {  // zero3_init_flag
    request.model_init = {"zero_init", said.place};
  }
  for (const Diagnostic& fault : own.list()) faults.add(said.place.says(fault.message, fault.hint));
}

// A model is built under zero.Init only by stage 3. Its stage is 2 where nobody says one.
void finish_plugin(DeepSpeedInput plugin, Request& request) {
  if (request.deepspeed.given()) {
    request.zero_stage = {};
    return;
  }
  plugin.place = plugin.zero.stage.given() ? plugin.zero.stage.place : request.runtime.place;
  plugin.path = plugin.place.path;
  plugin.zero.present = true;
  plugin.zero.place = plugin.place;
  if (!plugin.zero.stage.given()) plugin.zero.stage = {2, plugin.place};
  plugin.train_batch_size.is_auto = plugin.micro_batch.is_auto = true;
  if (!plugin.grad_accum.given()) plugin.grad_accum.is_auto = true;
  if (!plugin.gradient_clipping.given()) plugin.gradient_clipping.is_auto = true;
  plugin.allow_untested_optimizer = {true, plugin.place};
  if (*plugin.zero.stage != 3) request.model_init = {};
  if (plugin.grad_accum.given()) request.grad_accum = plugin.grad_accum;
  request.inline_deepspeed = std::move(plugin);
}

}  // namespace dsplan::detail
