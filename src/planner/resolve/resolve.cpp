#include "planner/resolve/resolve.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "core/format.h"
#include "model/lora.h"
#include "model/quantized.h"
#include "model/reference.h"
#include "model/torchtitan.h"
#include "planner/resolve/nvme.h"
#include "planner/resolve/resolver.h"

namespace dsplan {

namespace {

// Loaded in the dtype that is asked for, else in the checkpoint's own (from_pretrained, `dtype`).
DType loaded_dtype(const ModelSpec& model, const Request& request) {
  for (const Setting<std::string>* said : {&request.dtype, &request.torch_dtype}) {
    if (const std::optional<DType> dtype = said->given() ? floating_type(**said) : std::nullopt) return *dtype;
  }
  return model.stored_dtype.value_or(DType::BFloat16);
}

// bitsandbytes' weights are of one class, and their biases change dtype when they are called.
void refuse_over_packed_weights(const Lora& lora, const Place& place) {
  if (lora.bias == TrainedBiases::None) return;
  throw Refusal({place.says("biases that are trained beside packed weights are not modelled yet", "bias=none")});
}

// What is trained decides what backward makes, and a recording has seen one choice.
void refuse_over_recording(const Request& request) {
  const auto refuse = [](const Place& place, std::string_view what) {
    throw Refusal({place.says(formatted("{} a recorded module is not modelled yet", what),
                              "let the script that tools/export_graph.py runs make it so")});
  };
  if (request.lora.given()) refuse(request.lora.place, "adapters in");
  if (request.quantization.given()) refuse(request.quantization.place, "packing the weights of");
  if (request.freeze.given()) refuse(request.freeze.place, "freezing parameters of");
}

ModelSpec as_torchtitan_has_it(const ModelSpec& model, const Request& request) {
  const auto refuse = [](const Place& place, std::string_view what) {
    throw Refusal({place.says(formatted("{} torchtitan's own code are not modelled yet", what),
                              "--model-code transformers has them")});
  };
  if (request.lora.given()) refuse(request.lora.place, "adapters in");
  if (request.quantization.given()) refuse(request.quantization.place, "packed weights in");
  if (request.freeze.given()) refuse(request.freeze.place, "frozen parameters of");
  if (const auto lacks = torchtitan_lacks(model)) {
    throw Refusal(
        {request.model_code.place.says(formatted("torchtitan's llama3 and qwen3 are not written for {}", *lacks),
                                       "--model-code transformers predicts another program's code")});
  }
  return as_torchtitan(model);
}

// Trainers of preferences turn dropout off; some load a second model where there are no adapters to turn off.
// LLaMA-Factory keeps that one in the dtype of its file, whatever it casts the first to; its rewards are of a value
// head, with dropout everywhere.
ModelSpec as_preferred(ModelSpec model, const Request& request) {
  const std::optional<Loss> loss = trainers_loss(request.loss.value_or(""));
  if (!loss || *loss == Loss::Trl) return model;
  if (*loss == Loss::RewardValues) return with_value_head(std::move(model));
  model = without_dropout(std::move(model));
  if (!asks_reference(*loss) || model.causal != 0) return model;
  const bool kept = *loss == Loss::DpoLogits || *loss == Loss::KtoLogits;
  return with_reference(model, kept ? model.stored_dtype : std::nullopt);
}

// prepare_model_for_kbit_training leaves biases in fp32, and Linear4bit's first forward brings them to the products'
// dtype; axolotl's functions call none, where each of their projections has adapters.
void keep_biases_of_functions(ModelSpec& model, const std::string& kernels) {
  constexpr std::pair<std::string_view, std::string_view> kFunctions[] = {
      {"qkv", "q_proj k_proj v_proj"}, {"o", "o_proj"}, {"mlp", "gate_proj up_proj down_proj"}};
  const std::string words = kernels == "all" ? ",qkv,o,mlp," : "," + kernels + ",";
  const auto named = [](std::string_view path, std::string_view names) {
    const std::string_view name = path.substr(path.rfind('.') + 1);
    return name.ends_with("_proj") && names.find(name) != std::string_view::npos;
  };
  for (const auto& [function, names] : kFunctions) {
    if (words.find("," + std::string(function) + ",") == std::string::npos) continue;
    const bool bare = std::any_of(model.modules.begin(), model.modules.end(), [&, list = names](const Module& one) {
      return packing_of(one) && named(one.path, list);
    });
    if (bare) continue;
    for (Parameter& bias : model.parameters) {
      const Module& module = model.module_at(bias.module);
      const std::string_view path = module.path;
      if (!bias.name.ends_with(".bias") || !path.ends_with(".base_layer") || !packing_of(module)) continue;
      if (named(path.substr(0, path.rfind('.')), names)) bias.dtype = DType::Float32;
    }
  }
}

}  // namespace

ModelSpec model_of(ModelSpec model, const Request& request) {
  if (model.recording) {
    refuse_over_recording(request);
    return model;
  }
  if (request.model_code.value_or("") == "torchtitan") return as_torchtitan_has_it(model, request);
  const std::optional<Quantization> quantization = quantization_of(request, loaded_dtype(model, request));
  if (request.lora.given()) {
    const Lora lora = parse_lora(request.lora);
    if (quantization) refuse_over_packed_weights(lora, request.lora.place);
    model = with_adapters(model, lora, request.lora.place, request.lora_places);
  }
  if (quantization) model = with_packed_weights(model, *quantization, request.quantization.place);
  const std::string kernels = request.lora_kernels.value_or("none");
  if (quantization && !quantization->eight_bits()) keep_biases_of_functions(model, kernels);
  return as_preferred(std::move(model), request);
}

Job resolve(const ModelSpec& model, const Request& request, const DeepSpeedInput* deepspeed, const Hardware* hardware,
            const Cluster* cluster) {
  const DeepSpeedInput* ds = deepspeed;
  if (ds == nullptr && request.inline_deepspeed) ds = &*request.inline_deepspeed;
  Resolver resolver{model, request, ds, hardware, cluster, {}, {}};
  refuse_unmodelled_options(resolver);
  resolve_runtime(resolver);
  resolve_precision(resolver);
  resolve_ranks_and_batch(resolver);
  resolve_zero(resolver);
  resolve_fsdp(resolver);
  resolve_optimizer(resolver);
  resolve_execution(resolver);
  resolve_ddp(resolver);
  resolve_settings(resolver);
  resolve_machine(resolver);
  check_nvme_buffers(resolver);
  resolve_allocator(resolver);
  check_loss_scaling(resolver);
  check_training_arguments(resolver);
  judge_conditional_keys(resolver);
  resolver.diagnostics.throw_if_any();
  if (request.strict.value_or(false)) judge_strict(resolver);
  resolver.job.notices.insert(resolver.job.notices.begin(), request.notices.begin(), request.notices.end());
  if (ds != nullptr) {
    resolver.job.notices.insert(resolver.job.notices.begin(), ds->notices.begin(), ds->notices.end());
  }
  return std::move(resolver.job);
}

void Resolver::given(std::string name, std::string value, const Place& place, std::string option) {
  job.inputs.push_back({std::move(name), std::move(value), Origin::Given, place.text(), std::move(option)});
}

void Resolver::derived(std::string name, std::string value, std::string reason, std::string option) {
  job.inputs.push_back({std::move(name), std::move(value), Origin::Derived, std::move(reason), std::move(option)});
}

void Resolver::assumed(std::string name, std::string value, std::string reason, std::string option) {
  job.inputs.push_back({std::move(name), std::move(value), Origin::Assumed, std::move(reason), std::move(option)});
}

void Resolver::fault(const Place& place, std::string message, std::string hint) {
  diagnostics.add(place.says(std::move(message), std::move(hint)));
}

void Resolver::not_modelled(const Place& place, std::string_view what) {
  fault(place, formatted("{} is not modelled yet", what));
}

void Resolver::notice(Notice::Kind kind, const Place& place, std::string message, std::optional<Bytes> bytes) {
  job.notices.push_back({kind, place, std::move(message), bytes});
}

bool Resolver::applies(When when) const {
  const Zero& zero = job.training.zero;
  const bool zero_runs = deepspeed() && zero.stage >= 1;
  switch (when) {
    case When::Always: return true;
    case When::PyTorch: return !deepspeed();
    case When::Zero: return zero_runs;
    case When::Stage12: return zero_runs && zero.stage <= 2;
    case When::Stage3: return zero_runs && zero.stage == 3;
    case When::CpuAdam: return zero_runs && zero.offload_optimizer.device != OffloadDevice::None;
    case When::ParamOffload: return zero_runs && zero.offload_param.device != OffloadDevice::None;
    case When::Nvme:
      return zero_runs &&
             (zero.offload_optimizer.device == OffloadDevice::Nvme || zero.offload_param.device == OffloadDevice::Nvme);
    case When::Muon: return job.training.optimizer.kind == OptimizerKind::Muon;
    case When::Bf16: return job.training.dtype == DType::BFloat16;
    case When::Fp16: return job.training.dtype == DType::Float16;
    case When::DeepSpeedCheckpointing: return job.training.checkpoint.by_deepspeed();
  }
  return true;
}

void judge_conditional_keys(Resolver& resolver) {
  const auto inert = [&resolver](const Place& place, const std::string& key, When when) {
    resolver.job.notices.push_back({Notice::Kind::Inert,
                                    place,
                                    formatted("\"{}\" has no effect here: it needs {}", key, describe(when)),
                                    {},
                                    "inert_key",
                                    key});
  };
  // What this version refuses anyway (resolve/zero.cpp) is not refused twice.
  const auto removed = [&resolver](const std::string& key) {
    if (resolver.ds == nullptr || resolver.job.training.deepspeed < kRulesOfKeys) return false;
    const std::vector<ConditionalKey>& gone = resolver.ds->removed;
    return std::any_of(gone.begin(), gone.end(), [&key](const ConditionalKey& one) { return one.key == key; });
  };
  const auto judge = [&](const NotModelled& item) {
    if (removed(item.key)) return;
    if (resolver.applies(item.when)) {
      resolver.fault(item.place, formatted("\"{}\": not modelled yet: {}", item.key, item.feature));
    } else {
      inert(item.place, item.key, item.when);
    }
  };
  for (const NotModelled& item : resolver.request.not_modelled) judge(item);
  if (resolver.ds == nullptr) return;
  for (const NotModelled& item : resolver.ds->not_modelled) judge(item);
  for (const ConditionalKey& key : resolver.ds->conditional) {
    if (!resolver.applies(key.when)) inert(key.place, key.key, key.when);
  }
}

void judge_strict(const Resolver& resolver) {
  Diagnostics diagnostics;
  for (const ResolvedInput& input : resolver.job.assumptions()) {
    diagnostics.add(
        {input.option,
         0,
         0,
         {},
         formatted("{} is assumed to be {} ({}), which --strict does not allow", input.name, input.value, input.reason),
         formatted("give {}", input.option)});
  }
  for (const Notice& notice : resolver.request.notices) {
    if (notice.kind != Notice::Kind::Unknown) continue;
    diagnostics.add(notice.place.says(notice.message + ", which --strict does not allow"));
  }
  diagnostics.throw_if_any();
}

}  // namespace dsplan
