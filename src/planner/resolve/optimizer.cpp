// The optimizer and gradient clipping.
#include <algorithm>

#include "core/document.h"
#include "core/format.h"
#include "core/text/letters.h"
#include "planner/resolve/resolver.h"

namespace dsplan {
namespace {

struct Named {
  std::string_view text;
  OptimizerKind kind;
  Implementation implementation;
  bool paged = false;
  bool trainers_8bit = false;  // transformers' Trainer registers embeddings as 32-bit.
};

// Our own names, then transformers' `optim`, each with the implementation that it means when none is said.
constexpr Named kNames[] = {
    {"adam", OptimizerKind::Adam, Implementation::Fused},
    {"adamw", OptimizerKind::AdamW, Implementation::Fused},
    {"sgd", OptimizerKind::Sgd, Implementation::Foreach},
    {"adafactor", OptimizerKind::Adafactor, Implementation::ForLoop},
    {"lion", OptimizerKind::Lion, Implementation::Fused},
    {"adam8bit", OptimizerKind::Adam8bit, Implementation::Fused},
    {"muon", OptimizerKind::Muon, Implementation::ForLoop},
    {"adagrad", OptimizerKind::Adagrad, Implementation::Foreach},
    {"rmsprop", OptimizerKind::RmsProp, Implementation::Foreach},
    {"adamw32bit", OptimizerKind::AdamW32bit, Implementation::Fused},
    {"lion8bit", OptimizerKind::Lion8bit, Implementation::Fused},
    {"ademamix", OptimizerKind::AdEmaMix, Implementation::Fused},
    {"ademamix8bit", OptimizerKind::AdEmaMix8bit, Implementation::Fused},
    {"ao_adamw_8bit", OptimizerKind::AoAdamW8bit, Implementation::Fused},
    {"ao_adamw_4bit", OptimizerKind::AoAdamW4bit, Implementation::Fused},
    {"ao_adamw_fp8", OptimizerKind::AoAdamWFp8, Implementation::Fused},
    {"adamw_torch_8bit", OptimizerKind::AoAdamW8bit, Implementation::Fused},
    {"adamw_torch_4bit", OptimizerKind::AoAdamW4bit, Implementation::Fused},
    {"adamw_torch", OptimizerKind::AdamW, Implementation::Foreach},
    {"adamw_torch_fused", OptimizerKind::AdamW, Implementation::Fused},
    {"adamw_bnb_8bit", OptimizerKind::Adam8bit, Implementation::Fused, false, true},
    {"adamw_8bit", OptimizerKind::Adam8bit, Implementation::Fused, false, true},
    {"lion_32bit", OptimizerKind::Lion, Implementation::Fused},
    {"lion_8bit", OptimizerKind::Lion8bit, Implementation::Fused, false, true},
    {"ademamix_8bit", OptimizerKind::AdEmaMix8bit, Implementation::Fused, false, true},
    {"paged_adamw_32bit", OptimizerKind::AdamW32bit, Implementation::Fused, true},
    {"paged_adamw_8bit", OptimizerKind::Adam8bit, Implementation::Fused, true, true},
    {"paged_lion_32bit", OptimizerKind::Lion, Implementation::Fused, true},
    {"paged_lion_8bit", OptimizerKind::Lion8bit, Implementation::Fused, true, true},
    {"paged_ademamix_32bit", OptimizerKind::AdEmaMix, Implementation::Fused, true},
    {"paged_ademamix_8bit", OptimizerKind::AdEmaMix8bit, Implementation::Fused, true, true},
};

// Optimizers that exist elsewhere: refused as not modelled rather than as unknown, and what is nearest to them among
// those that are. transformers' names are those of its OptimizerNames in 5.17.0.
struct Elsewhere {
  std::string_view text;
  std::string_view what = {};
  std::string_view instead = {};
};
constexpr std::string_view kGalore = "GaLore, whose gradients are projected";
constexpr std::string_view kApollo = "APOLLO, whose gradients are projected";
constexpr std::string_view kScheduleFree = "a schedule-free optimizer";
constexpr std::string_view kOtherDevice = "of another device than CUDA's";
constexpr Elsewhere kElsewhere[] = {
    {"lamb"},
    {"onebitadam"},
    {"zerooneadam"},
    {"onebitlamb"},
    {"muadam"},
    {"muadamw"},
    {"musgd"},
    {"nadam"},
    {"radam"},
    {"adamax"},
    {"galore_adamw", kGalore, "adamw_torch"},
    {"galore_adamw_8bit", kGalore, "adamw_8bit"},
    {"galore_adafactor", kGalore, "adafactor"},
    {"galore_adamw_layerwise", kGalore, "adamw_torch"},
    {"galore_adamw_8bit_layerwise", kGalore, "adamw_8bit"},
    {"galore_adafactor_layerwise", kGalore, "adafactor"},
    {"apollo_adamw", kApollo, "adamw_8bit"},
    {"apollo_adamw_layerwise", kApollo, "adamw_8bit"},
    {"lomo", "LOMO, which steps inside of backward", "sgd"},
    {"adalomo", "AdaLOMO, which steps inside of backward", "adafactor"},
    {"grokadamw", "GrokAdamW", "adamw_torch"},
    {"stable_adamw", "StableAdamW", "adamw_torch"},
    {"adamw_anyprecision", "torchdistx' AdamW", "adamw_torch"},
    {"adamw_torch_xla", kOtherDevice, "adamw_torch"},
    {"adamw_torch_npu_fused", kOtherDevice, "adamw_torch_fused"},
    {"adamw_apex_fused", "apex' AdamW", "adamw_torch_fused"},
    {"schedule_free_adamw", kScheduleFree, "adamw_torch"},
    {"schedule_free_radam", kScheduleFree, "adamw_torch"},
    {"schedule_free_sgd", kScheduleFree, "sgd"},
    {"rmsprop_bnb", "bitsandbytes' RMSprop", "rmsprop"},
    {"rmsprop_bnb_8bit", "bitsandbytes' RMSprop", "rmsprop"},
    {"rmsprop_bnb_32bit", "bitsandbytes' RMSprop", "rmsprop"},
};

std::optional<Implementation> implementation_named(std::string_view text) {
  if (text == "fused") return Implementation::Fused;
  if (text == "foreach") return Implementation::Foreach;
  if (text == "for-loop") return Implementation::ForLoop;
  return std::nullopt;
}

void unknown_name(Resolver& resolver, const Place& place, const std::string& text) {
  if (in_lower_case(text) == "adamw_hf") {
    return resolver.fault(place, formatted("optimizer \"{}\": transformers 5 has its own AdamW no longer", text),
                          "write \"adamw_torch\", or \"adamw_torch_fused\", its default");
  }
  for (const Elsewhere& one : kElsewhere) {
    if (one.text != in_lower_case(text)) continue;
    const std::string what = one.what.empty() ? std::string() : formatted(" ({})", one.what);
    return resolver.fault(place, formatted("optimizer \"{}\"{} is not modelled yet", text, what),
                          one.instead.empty() ? "" : formatted("\"{}\" is", one.instead));
  }
  std::vector<std::string_view> names;
  for (const Named& named : kNames) names.push_back(named.text);
  std::string_view meant = nearest(text, names);
  for (const std::string_view name : names) {  // "paged_adamw", of which transformers names the forms.
    if (meant.empty() && text.size() > 3 && name.starts_with(in_lower_case(text))) meant = name;
  }
  resolver.fault(
      place, formatted("optimizer \"{}\" is not known", text),
      meant.empty() ? formatted("known are {}", joined(names, ", ")) : formatted("did you mean \"{}\"?", meant));
}

// Torch offers every form for Adam, AdamW and SGD, all but the fused one for Adagrad and RMSprop; the others have one.
void check_implementation(Resolver& resolver, const Place& place, const Optimizer& optimizer, Implementation usual) {
  const bool free = optimizer.kind == OptimizerKind::Adam || optimizer.kind == OptimizerKind::AdamW ||
                    optimizer.kind == OptimizerKind::Sgd;
  const bool unfused = optimizer.kind == OptimizerKind::Adagrad || optimizer.kind == OptimizerKind::RmsProp;
  if (free || optimizer.implementation == usual) return;
  if (unfused && optimizer.implementation != Implementation::Fused) return;
  resolver.fault(place, formatted("{} has no {} implementation", name(optimizer.kind), name(optimizer.implementation)),
                 formatted("it is {}", name(usual)));
}

// "adamw", "adamw:foreach", "adamw_torch_fused".
void by_request(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.optimizer;
  const std::size_t colon = wished->find(':');
  const std::string text = wished->substr(0, colon);
  const auto at = std::find_if(std::begin(kNames), std::end(kNames),
                               [&](const Named& named) { return named.text == in_lower_case(text); });
  if (at == std::end(kNames)) return unknown_name(resolver, wished.place, text);
  Optimizer& optimizer = resolver.training().optimizer;
  optimizer = {at->kind, at->implementation, resolver.request.momentum.value_or(0), 0, false};
  optimizer.embeddings_32bit = !resolver.deepspeed() && at->trainers_8bit;
  optimizer.paged = at->paged;
  if (at->paged) {
    resolver.announce(
        wished.place,
        "paged states of 100,000 elements and more lie in managed memory, counted on the host: the driver "
        "keeps them on the device while nothing else wants the room");
  }
  const Setting<std::string>& form = resolver.request.implementation;
  std::string said = colon == std::string::npos ? std::string() : wished->substr(colon + 1);
  if (said.empty() && form.given()) said = *form;
  if (!said.empty()) {
    const std::optional<Implementation> implementation = implementation_named(said);
    const Place& place = form.given() ? form.place : wished.place;
    if (!implementation) {
      return resolver.fault(place, formatted("\"{}\" is none of fused, foreach, for-loop", said));
    }
    optimizer.implementation = *implementation;
    check_implementation(resolver, place, optimizer, at->implementation);
  }
  if (resolver.request.momentum.given() && optimizer.kind != OptimizerKind::Sgd &&
      optimizer.kind != OptimizerKind::RmsProp) {
    resolver.fault(resolver.request.momentum.place,
                   formatted("momentum belongs to sgd and rmsprop, not to {}", name(at->kind)));
  }
  // On the host torch.optim loops over the parameters unless it is told how (optimizer.py,
  // _default_to_fused_or_foreach).
  const bool on_host = resolver.training().fsdp.cpu_offload;
  if (said.empty() && on_host && optimizer.implementation == Implementation::Foreach) {
    optimizer.implementation = Implementation::ForLoop;
  }
  resolver.given("optimizer", optimizer_text(resolver.training()), wished.place, "--optimizer");
}

// The JSON's optimizer (deepspeed/runtime/engine.py, _configure_basic_optimizer): DeepSpeed's own names in any case,
// then torch.optim's exact ones.
void by_json(Resolver& resolver, const OptimizerInput& in) {
  Optimizer& optimizer = resolver.training().optimizer;
  const std::string type = in_lower_case(*in.type);
  const bool torch_adam = in.torch_adam.value_or(false);
  if (type == "adam" || type == "adamw") {
    const bool decoupled = type == "adamw" || in.adam_w_mode.value_or(true);
    optimizer = {decoupled ? OptimizerKind::AdamW : OptimizerKind::Adam,
                 torch_adam ? Implementation::Foreach : Implementation::Fused, 0, 0, false};
  } else if (type == "lion") {
    optimizer = {OptimizerKind::Lion, Implementation::Fused, 0, 0, false};
  } else if (type == "muon") {
    optimizer = {OptimizerKind::Muon, Implementation::ForLoop, 0, 0, false};
  } else if (*in.type == "SGD") {
    optimizer = {OptimizerKind::Sgd, Implementation::Foreach, in.momentum.value_or(0), 0, false};
  } else {
    return resolver.not_modelled(in.type.place, formatted("optimizer \"{}\"", *in.type));
  }
  optimizer.weight_decay = in.weight_decay.value_or(0);
  resolver.given("optimizer", optimizer_text(resolver.training()), in.type.place, "--optimizer");
}

// Which of the two wins: an option or the training file over the JSON, the JSON over TrainingArguments.
bool request_wins(Resolver& resolver, const OptimizerInput* json) {
  const Request& request = resolver.request;
  if (!request.optimizer.given()) return false;
  if (json == nullptr) return true;
  const bool from_trainer =
      request.training_arguments && same_place(request.optimizer, request.training_arguments->optim);
  if (!from_trainer) {
    resolver.announce(json->type.place, formatted("optimizer {} of the DeepSpeed JSON gives way to {}", *json->type,
                                                  request.optimizer.place.text()));
    return true;
  }
  if (*request.optimizer == "adafactor") {
    resolver.fault(json->type.place, "an optimizer stands here and TrainingArguments ask for adafactor",
                   "transformers allows one of the two");
  } else {
    resolver.announce(request.optimizer.place,
                      formatted("\"optim\" gives way to {} of the DeepSpeed JSON", *json->type));
  }
  return false;
}

// `_do_optimizer_sanity_check`: with ZeRO only Adam, AdamW, Adagrad, Lion and Muon without an explicit permission.
// Hugging Face gives that permission for optimizers that it makes itself.
void check_tested(Resolver& resolver, const Place& place, bool from_json) {
  const OptimizerKind kind = resolver.training().optimizer.kind;
  const bool tested = kind == OptimizerKind::Adam || kind == OptimizerKind::AdamW || kind == OptimizerKind::Lion ||
                      kind == OptimizerKind::Muon;
  if (tested || resolver.stage() == 0) return;
  const bool allowed = resolver.ds != nullptr && resolver.ds->allow_untested_optimizer.value_or(false);
  if (allowed || (!from_json && resolver.request.hugging_face_rules())) return;
  if (resolver.ds == nullptr) {
    return resolver.announce(place, formatted("{} with ZeRO needs \"zero_allow_untested_optimizer\": true in the "
                                              "DeepSpeed JSON",
                                              name(kind)));
  }
  resolver.fault(place, formatted("{} is an untested optimizer for ZeRO", name(kind)),
                 "DeepSpeed wants \"zero_allow_untested_optimizer\": true");
}

void check_combination(Resolver& resolver, const Place& place) {
  const Training& training = resolver.training();
  const OptimizerKind kind = training.optimizer.kind;
  if (kind == OptimizerKind::Muon && training.zero.stage == 3 && training.zero.reduce_scatter) {
    resolver.fault(place, "Muon with ZeRO stage 3 and reduce_scatter",
                   "DeepSpeed refuses the combination; set \"reduce_scatter\" to false");
  }
  if (training.zero.offload_optimizer.device == OffloadDevice::None) return;
  if (resolver.ds != nullptr && resolver.ds->optimizer.torch_adam.value_or(false)) {
    return resolver.not_modelled(resolver.ds->optimizer.torch_adam.place, "torch's Adam on the host");
  }
  if (kind != OptimizerKind::Adam && kind != OptimizerKind::AdamW && kind != OptimizerKind::Lion) {
    resolver.fault(place, formatted("{} with an offloaded optimizer", name(kind)),
                   "DeepSpeed offloads its own CPU Adam and CPU Lion only");
  }
  // stage3.py, DeepSpeedZeroOptimizer_Stage3.__init__.
  if (kind == OptimizerKind::Lion && training.zero.offload_optimizer.ratio < 1) {
    resolver.fault(resolver.ds->offload_optimizer_ratio.place, formatted("{} with a partial offload", name(kind)),
                   "DeepSpeed asserts its own CPU Adam");
  }
}

bool is_bitsandbytes(OptimizerKind kind) {
  return kind == OptimizerKind::AdamW32bit || kind == OptimizerKind::Lion8bit || kind == OptimizerKind::AdEmaMix ||
         kind == OptimizerKind::AdEmaMix8bit;
}

// bitsandbytes' kernels are operators of PyTorch's dispatcher that have no rule for DTensors: the first step raises
// (bitsandbytes 0.50.2: functional.py, optimizer_update_8bit_blockwise, optimizer_update_32bit).
void check_sharded(Resolver& resolver, const Place& place) {
  const Optimizer& optimizer = resolver.training().optimizer;
  if (is_torchao(optimizer.kind) && is_fsdp(resolver.training().runtime)) {
    return resolver.not_modelled(place, formatted("{} under FSDP", optimizer_text(resolver.training())));
  }
  if (resolver.training().runtime != Runtime::Fsdp2) return;
  const bool plain = optimizer.kind != OptimizerKind::Adam8bit && optimizer.kind != OptimizerKind::Lion;
  if (plain && !optimizer.paged && !is_bitsandbytes(optimizer.kind)) return;
  resolver.fault(
      place, formatted("{} under fully_shard", optimizer_text(resolver.training())),
      "bitsandbytes takes plain tensors, and PyTorch stops in its first step over DTensors; adamw, sgd, adagrad and "
      "rmsprop are taken");
}

// The first step of torchao's is compiled and tuned.
void check_torchao(Resolver& resolver, const Place& place) {
  if (!is_torchao(resolver.training().optimizer.kind)) return;
  if (resolver.hardware != nullptr && resolver.hardware->l2) return;
  resolver.announce(place,
                    "in its first step torch.compile tries kernels beside a tensor as large as the device's L2 "
                    "cache, which is not known here and not counted (l2_bytes of a hardware file's \"device\")");
}

// Their states under a flat partition are not worked out: Adagrad makes its sums before DeepSpeed sees it, and paged
// ones go by the size of what DeepSpeed hands over.
void check_unsplit(Resolver& resolver, const Place& place) {
  const OptimizerKind kind = resolver.training().optimizer.kind;
  if (kind == OptimizerKind::Adagrad || kind == OptimizerKind::RmsProp || is_bitsandbytes(kind) || is_torchao(kind) ||
      resolver.training().optimizer.paged) {
    resolver.not_modelled(place, formatted("{} under DeepSpeed", optimizer_text(resolver.training())));
  }
}

// adamw_torch_fused with transformers 5 and torch 2.8 or later, before that adamw_torch, which is foreach on a GPU
// (transformers, training_args.py, default_optim).
void trainers_default(Resolver& resolver) {
  Training& training = resolver.training();
  training.optimizer = {};
  const bool fused = training.transformers >= Version{5, 0, 0} && training.torch >= Version{2, 8, 0};
  if (!fused) {
    training.optimizer.implementation = training.fsdp.cpu_offload ? Implementation::ForLoop : Implementation::Foreach;
  }
  resolver.derived("optimizer", optimizer_text(training), "TrainingArguments' default", "--optimizer");
}

// Weight decay and the parameter groups that it makes. transformers' Trainer keeps biases and norms apart, whatever the
// decay; everybody else hands over one group.
void resolve_groups(Resolver& resolver) {
  const Request& request = resolver.request;
  Training& training = resolver.training();
  const bool trainer = request.training_arguments.has_value();
  if (request.weight_decay.given()) {
    training.optimizer.weight_decay = *request.weight_decay;
  } else if (trainer) {
    training.optimizer.weight_decay = request.training_arguments->weight_decay.value_or(0.0);
  }
  if (resolver.deepspeed()) return;
  if (request.param_groups.given()) {
    training.param_groups = *request.param_groups == "decay" ? ParamGroups::Decay : ParamGroups::Single;
    resolver.given("param_groups", *request.param_groups, request.param_groups.place, "--training");
  } else if (trainer && training.optimizer.kind != OptimizerKind::Muon) {
    training.param_groups = ParamGroups::Decay;
    resolver.derived("param_groups", "decay", "the Trainer keeps biases and norms apart", "--training");
  }
}

// Default 1.0 since 0.19.3, before that off (deepspeed-zero.md, section 1). Plain PyTorch clips nothing by itself.
void resolve_clipping(Resolver& resolver) {
  const Request& request = resolver.request;
  Training& training = resolver.training();
  const Setting<double> written = resolver.ds != nullptr ? resolver.ds->gradient_clipping : Setting<double>();
  if (request.max_grad_norm.given()) {
    training.gradient_clipping = *request.max_grad_norm;
  } else if (written.given()) {
    training.gradient_clipping = *written;
  } else if (request.training_arguments) {
    training.gradient_clipping = 1.0;  // TrainingArguments' default.
  } else if (resolver.deepspeed()) {
    training.gradient_clipping = training.deepspeed >= Version{0, 19, 3} ? 1.0 : 0.0;
  }
  if (written.is_auto && !written.place.path.empty() && !request.hugging_face_rules()) {
    resolver.notice(Notice::Kind::Warning, written.place,
                    "\"gradient_clipping\" is \"auto\" without a training file or launch line: DeepSpeed itself cannot "
                    "compare it with a number");
  }
}

}  // namespace

void resolve_optimizer(Resolver& resolver) {
  const OptimizerInput* json =
      resolver.ds != nullptr && resolver.ds->optimizer.type.given() ? &resolver.ds->optimizer : nullptr;
  Place place = option("--optimizer");
  if (request_wins(resolver, json)) {
    place = resolver.request.optimizer.place;
    by_request(resolver);
    json = nullptr;
  } else if (json != nullptr) {
    place = json->type.place;
    by_json(resolver, *json);
  } else if (resolver.request.training_arguments) {
    trainers_default(resolver);
  } else {
    resolver.training().optimizer = {};
    resolver.assumed("optimizer", optimizer_text(resolver.training()), "nothing names it", "--optimizer");
  }
  resolve_groups(resolver);
  check_sharded(resolver, place);
  check_torchao(resolver, place);
  if (resolver.deepspeed()) {
    check_unsplit(resolver, place);
    check_tested(resolver, place, json != nullptr);
    check_combination(resolver, place);
  }
  resolve_clipping(resolver);
}

}  // namespace dsplan
