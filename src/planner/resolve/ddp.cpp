// What DistributedDataParallel is given: by its caller, or by transformers' Trainer, which has a rule of its own.
#include <algorithm>
#include <optional>

#include "core/format.h"
#include "core/text/whole_numbers.h"
#include "planner/resolve/resolver.h"

namespace dsplan {
namespace {

constexpr std::string_view kUnused = "ddp.find_unused_parameters";
constexpr std::string_view kBuffers = "ddp.broadcast_buffers";
constexpr std::string_view kCap = "ddp.bucket_cap_mb";
constexpr std::string_view kViews = "ddp.gradient_as_bucket_view";
constexpr std::string_view kStatic = "ddp.static_graph";
constexpr std::string_view kHook = "ddp.comm_hook";
constexpr std::string_view kRedundancy = "ddp.zero_redundancy";

// What --set says wins.
Setting<std::int64_t> mebibytes(Resolver& resolver, const Setting<std::int64_t>& in_file, std::string_view key) {
  const Setting<std::string> set = set_of(resolver, key);
  if (!set.given()) return in_file;
  const std::optional<std::int64_t> value = whole_number(*set);
  if (value && *value > 0) return {*value, set.place};
  resolver.fault(set.place, formatted("\"{}={}\" is no number of MiB", key, *set));
  return {};
}

// Trainer._build_accelerator_args (transformers 5.17.0, trainer.py): unless it is said, unused parameters are looked
// for where the model is a PreTrainedModel without gradient checkpointing, and in every other: a PeftModel is none.
bool trainer_finds_unused(const Resolver& resolver) {
  const std::vector<Parameter>& all = resolver.model.parameters;
  const bool adapted = std::any_of(all.begin(), all.end(), [](const Parameter& p) {
    return p.name.find("lora_") != std::string::npos || p.name.find("modules_to_save") != std::string::npos;
  });
  const Checkpointing& checkpoint = resolver.job.training.checkpoint;
  return adapted || (checkpoint.groups.empty() && checkpoint.modules.empty());
}

void resolve_unused(Resolver& resolver) {
  bool& finds = resolver.training().ddp.find_unused_parameters;
  const Setting<bool> said = truth_of(resolver, resolver.request.ddp.find_unused_parameters, kUnused);
  if (said.given()) {
    finds = *said;
    resolver.given(std::string(kUnused), finds ? "true" : "false", said.place, "--set");
  } else if (resolver.request.training_arguments) {
    finds = trainer_finds_unused(resolver);
    resolver.derived(std::string(kUnused), finds ? "true" : "false",
                     finds ? "the Trainer's, without gradient checkpointing or with adapters: outputs are copied"
                           : "the Trainer's with gradient checkpointing",
                     "--set");
  }
}

// register_comm_hook. accelerate's words (utils/dataclasses.py, DDPCommunicationHookType).
void resolve_hook(Resolver& resolver) {
  const Setting<std::string> set = set_of(resolver, kHook);
  const Setting<std::string>& said = set.given() ? set : resolver.request.ddp.comm_hook;
  if (!said.given()) return;
  if (*said == "power_sgd" || *said == "batched_power_sgd") {
    return resolver.not_modelled(said.place, formatted("\"{}\": PowerSGD", kHook));
  }
  std::optional<DType>& hook = resolver.training().ddp.comm_hook;
  if (*said == "bf16") {
    hook = DType::BFloat16;
  } else if (*said == "fp16") {
    hook = DType::Float16;
  } else if (*said != "none" && *said != "no") {
    return resolver.fault(said.place, formatted("\"{}\" is \"{}\", none of none, fp16 and bf16", kHook, *said));
  }
  resolver.given(std::string(kHook), *said, said.place, "--set");
  if (!hook || resolver.training().torch < Version{2, 8, 0}) return;
  resolver.announce(
      said.place,
      formatted("\"{}\": what it sends is counted until the next step's first all-reduce, as on a device that is a "
                "backward behind its host; where NCCL's watchdog, which looks every 100 ms, sees each arrive before "
                "the next is sent, all but the last bucket's goes earlier",
                kHook));
}

// ZeroRedundancyOptimizer around the script's own optimizer.
void resolve_redundancy(Resolver& resolver) {
  const Setting<bool> said = truth_of(resolver, resolver.request.ddp.zero_redundancy, kRedundancy);
  if (!said.given()) return;
  Training& training = resolver.training();
  resolver.given(std::string(kRedundancy), *said ? "true" : "false", said.place, "--set");
  if (!*said) return;
  const bool torchs =
      training.optimizer.kind == OptimizerKind::Adam || training.optimizer.kind == OptimizerKind::AdamW ||
      training.optimizer.kind == OptimizerKind::Sgd || training.optimizer.kind == OptimizerKind::Adagrad ||
      training.optimizer.kind == OptimizerKind::RmsProp;
  if (!torchs) {
    return resolver.not_modelled(said.place, formatted("\"{}\" around {}", kRedundancy, name(training.optimizer.kind)));
  }
  if (training.param_groups != ParamGroups::Single || training.grad_scaler) {
    return resolver.not_modelled(said.place,
                                 formatted("\"{}\" with several parameter groups or a GradScaler", kRedundancy));
  }
  training.ddp.zero_redundancy = true;
}

// In the micro-batches before the first reduction there is none to wait for: its assertion fails in the first backward
// under no_sync() (reducer.cpp, delay_all_reduce).
void resolve_static_graph(Resolver& resolver) {
  const Setting<bool> said = truth_of(resolver, resolver.request.ddp.static_graph, kStatic);
  if (!said.given()) return;
  if (*said && resolver.training().grad_accum > 1) {
    return resolver.fault(said.place,
                          formatted("\"{}\" with accumulated gradients: PyTorch's own assertion fails in "
                                    "the first backward under no_sync()",
                                    kStatic),
                          "leave one of the two out");
  }
  resolver.training().ddp.static_graph = *said;
  resolver.given(std::string(kStatic), *said ? "true" : "false", said.place, "--set");
}

}  // namespace

void resolve_ddp(Resolver& resolver) {
  Training& training = resolver.training();
  const DdpInput& in = resolver.request.ddp;
  if (training.runtime != Runtime::PyTorch || resolver.job.parallelism.dp == 1) {
    for (const std::string_view key : {kUnused, kBuffers, kCap, kViews, kStatic, kHook, kRedundancy}) {
      if (const Setting<std::string> set = set_of(resolver, key); set.given()) {
        resolver.fault(set.place, formatted("\"{}\" without DistributedDataParallel", key), "it needs --runtime ddp");
      }
    }
    return;
  }
  resolve_unused(resolver);
  if (const Setting<bool> said = truth_of(resolver, in.broadcast_buffers, kBuffers); said.given()) {
    training.ddp.broadcast_buffers = *said;
    resolver.given(std::string(kBuffers), *said ? "true" : "false", said.place, "--set");
  }
  if (const Setting<bool> said = truth_of(resolver, in.gradient_as_bucket_view, kViews); said.given()) {
    training.ddp.gradient_as_bucket_view = *said;
    resolver.given(std::string(kViews), *said ? "true" : "false", said.place, "--set");
  }
  resolve_static_graph(resolver);
  resolve_hook(resolver);
  resolve_redundancy(resolver);
  const Setting<std::int64_t> cap = mebibytes(resolver, in.bucket_cap_mb, kCap);
  if (!cap.given()) return;
  resolver.given(std::string(kCap), formatted("{}", *cap), cap.place, "--set");
  // accelerate hands on what is not its own default alone (utils/dataclasses.py, KwargsHandler.to_kwargs).
  constexpr std::int64_t kOwn = 25;
  if (resolver.request.training_arguments && *cap == kOwn) return;
  training.ddp.bucket_cap_mb = *cap;
}

}  // namespace dsplan
