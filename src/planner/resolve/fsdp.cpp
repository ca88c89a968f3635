// What fully_shard is given: groups, resharding, the mesh, and the dtypes of its MixedPrecisionPolicy.
#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "core/document.h"
#include "core/format.h"
#include "core/text/whole_numbers.h"
#include "model/quantized.h"
#include "model/traits.h"
#include "planner/fsdp/fsdp_facts.h"
#include "planner/resolve/resolver.h"

namespace dsplan {
namespace {

// The setting and what --set says of the same key, which wins.
Setting<std::string> said(const Resolver& resolver, const Setting<std::string>& in_file, std::string_view key) {
  const Setting<std::string> set = set_of(resolver, key);
  return set.given() ? set : in_file;
}

std::optional<bool> truth(Resolver& resolver, const Setting<std::string>& wished, std::string_view key) {
  if (!wished.given()) return std::nullopt;
  if (*wished == "true" || *wished == "True") return true;
  if (*wished == "false" || *wished == "False") return false;
  resolver.fault(wished.place, formatted("\"{}\" is \"{}\", which is neither true nor false", key, *wished));
  return std::nullopt;
}

void keep(Resolver& resolver, const Setting<std::string>& wished, std::string_view key) {
  resolver.given(std::string(key), *wished, wished.place, "--set");
}

std::optional<DType> dtype_of(Resolver& resolver, const Setting<std::string>& wished, std::string_view key) {
  if (!wished.given() || *wished == "none") return std::nullopt;
  for (const DType one : {DType::BFloat16, DType::Float16, DType::Float32}) {
    if (*wished != name(one)) continue;
    keep(resolver, wished, key);
    return one;
  }
  resolver.fault(wished.place, formatted("\"{}\" is \"{}\", none of bf16, fp16 and fp32", key, *wished));
  return std::nullopt;
}

bool is_word(std::string_view type) {
  return type == "layers" || type == "ends" || type == "root" || type == kHeldEnds || type == kAxolotl ||
         type == kAdapters || type.starts_with("size:");
}

// Classes of modules, each of which the model has, beside the words.
void check_classes(Resolver& resolver, const Setting<std::string>& wished) {
  std::string_view rest = *wished;
  while (true) {
    const std::size_t plus = rest.find('+');
    const std::string_view type = rest.substr(0, plus);
    const auto& modules = resolver.model.modules;
    if (!is_word(type) &&
        std::none_of(modules.begin(), modules.end(), [&](const Module& module) { return module.type == type; })) {
      std::vector<std::string_view> names;
      for (const Module& module : modules) {
        if (std::find(names.begin(), names.end(), module.type) == names.end()) names.push_back(module.type);
      }
      const std::string_view near = nearest(type, names);
      resolver.fault(wished.place,
                     formatted("\"fsdp.wrap\": {} has no module of class \"{}\"", resolver.model.name, type),
                     near.empty() ? formatted("\"layers\", \"ends\", \"root\", or of {}", joined(names, ", "))
                                  : did_you_mean(near));
    }
    if (plus == std::string_view::npos) return;
    rest.remove_prefix(plus + 1);
  }
}

void resolve_wrap(Resolver& resolver) {
  const Setting<std::string> wished = said(resolver, resolver.request.fsdp.wrap, "fsdp.wrap");
  Fsdp& fsdp = resolver.training().fsdp;
  if (!wished.given()) {
    return resolver.assumed("fsdp.wrap", fsdp.wrap, "each layer has a group, and what is left the model's", "--set");
  }
  keep(resolver, wished, "fsdp.wrap");
  fsdp.wrap = *wished;
  check_classes(resolver, wished);
  const std::string words = "+" + fsdp.wrap + "+";
  if (words.find("+held+") != std::string::npos && words.find("+ends+") == std::string::npos) {
    resolver.fault(wished.place, "\"fsdp.wrap\": nobody holds weights of ends that have no groups",
                   "\"ends\" among the words of fsdp.wrap");
  }
}

// Of norm and head, where they have a group: torchtitan's fsdp_reshard_after_forward "always".
void resolve_tail(Resolver& resolver) {
  constexpr std::string_view kKey = "fsdp.reshard_tail";
  const Setting<std::string> wished = said(resolver, resolver.request.fsdp.reshard_tail, kKey);
  const std::optional<bool> tail = truth(resolver, wished, kKey);
  if (!tail) return;
  Fsdp& fsdp = resolver.training().fsdp;
  if (*tail && ("+" + fsdp.wrap + "+").find("+ends+") == std::string::npos) {
    return resolver.fault(wished.place,
                          formatted("\"{}\" without a group of norm and head (fsdp.wrap is \"{}\")", kKey, fsdp.wrap),
                          "\"ends\" among the words of fsdp.wrap");
  }
  fsdp.reshard_tail = *tail;
  keep(resolver, wished, kKey);
}

// Of the last layer: before 0.2 torchtitan left it whole, as backward would gather it at once.
void resolve_last(Resolver& resolver) {
  constexpr std::string_view kKey = "fsdp.reshard_last";
  const Setting<std::string> wished = said(resolver, resolver.request.fsdp.reshard_last, kKey);
  const std::optional<bool> last = truth(resolver, wished, kKey);
  if (!last) return;
  Fsdp& fsdp = resolver.training().fsdp;
  const std::string words = "+" + fsdp.wrap + "+";
  if (!*last && fsdp.wrap != "ends" && words.find("+layers+") == std::string::npos) {
    return resolver.fault(wished.place,
                          formatted("\"{}\" without groups of layers (fsdp.wrap is \"{}\")", kKey, fsdp.wrap),
                          "\"layers\" among the words of fsdp.wrap");
  }
  fsdp.reshard_last = *last;
  keep(resolver, wished, kKey);
}

// _get_post_forward_mesh_info: as an integer it is a factor of the ranks that shard; 1 of them keeps all, and all of
// them reshard.
void resolve_resharding(Resolver& resolver, std::int64_t ranks) {
  constexpr std::string_view kKey = "fsdp.reshard_after_forward";
  Fsdp& fsdp = resolver.training().fsdp;
  const Setting<std::string> wished = said(resolver, resolver.request.fsdp.reshard_after_forward, kKey);
  const Setting<std::string> root = said(resolver, resolver.request.fsdp.reshard_root, "fsdp.reshard_root");
  if (const std::optional<bool> also = truth(resolver, root, "fsdp.reshard_root")) {
    fsdp.reshard_root = *also;
    keep(resolver, root, "fsdp.reshard_root");
    if (*also && resolver.training().torch < Version{2, 8, 0}) {  // FSDPState._lazy_init
      fsdp.reshard_root = false;
      resolver.announce(root.place, "before PyTorch 2.8 the model's own group is never resharded, whatever is said");
    }
  }
  resolve_tail(resolver);
  resolve_last(resolver);
  if (!wished.given()) {
    return resolver.assumed(std::string(kKey), "true", "fully_shard's default but for the model itself", "--set");
  }
  keep(resolver, wished, kKey);
  const std::optional<std::int64_t> to = whole_number(*wished);
  if (!to) {
    fsdp.reshard_after_forward = truth(resolver, wished, kKey).value_or(true) ? 1 : 0;
  } else if (*to < 1 || *to > ranks || ranks % *to != 0) {
    resolver.fault(wished.place, formatted("\"{}\" {} is no factor of the {} ranks that shard", kKey, *to, ranks),
                   "PyTorch takes true, false or a factor");
  } else {
    fsdp.reshard_after_forward = *to == 1 ? 0 : *to == ranks ? 1 : *to;
  }
}

// The mesh: (replicate, shard), or one of the two with the ranks that are there.
std::int64_t resolve_mesh(Resolver& resolver) {
  const FsdpInput& in = resolver.request.fsdp;
  const Parallelism& p = resolver.job.parallelism;
  const auto degree = [&](const Setting<std::string>& in_file, std::string_view key) -> std::int64_t {
    const Setting<std::string> wished = said(resolver, in_file, key);
    if (!wished.given() || *wished == "-1") return 0;
    if (*wished == "node" && p.dp % p.gpus_per_node == 0) return p.gpus_per_node;  // HYBRID_SHARD by itself.
    const std::int64_t value = whole_number(*wished).value_or(0);
    if (value < 1) resolver.fault(wished.place, formatted("\"{}\" is \"{}\", no number of ranks", key, *wished));
    if (value >= 1 && p.dp % value != 0) {
      resolver.fault(wished.place, formatted("\"{}\" {} does not divide {} ranks", key, value, p.dp));
    }
    if (value < 1 || p.dp % value != 0) return 0;
    keep(resolver, wished, key);
    return value;
  };
  std::int64_t shard = degree(in.shard, "fsdp.shard");
  std::int64_t replicate = degree(in.replicate, "fsdp.replicate");
  if (shard > 0 && replicate > 0 && shard * replicate != p.dp) {
    resolver.fault(said(resolver, in.shard, "fsdp.shard").place,
                   formatted("a mesh of {} x {} is not {} ranks", replicate, shard, p.dp));
  }
  const bool hybrid = resolver.request.runtime.value_or("") == "hsdp";
  if (hybrid && shard == 0 && replicate == 0) {
    shard = std::min(p.dp, p.gpus_per_node);
    if (p.dp % shard != 0) shard = p.dp;
    resolver.assumed("fsdp.shard", std::to_string(shard), "within a node", "--set");
  }
  if (replicate == 0) replicate = shard > 0 ? p.dp / shard : 1;
  if (hybrid && replicate == 1) {
    const bool splits = p.dp > p.gpus_per_node;
    resolver.fault(resolver.request.runtime.place,
                   splits ? formatted("hsdp over {} ranks, which are no whole nodes of {}", p.dp, p.gpus_per_node)
                          : formatted("hsdp over {} ranks has no replicas", p.dp),
                   "say fsdp.replicate, or --runtime fsdp2");
  }
  resolver.training().fsdp.replicate = replicate;
  return p.dp / replicate;
}

// CPUOffloadPolicy, with pinned memory as is its default. On the host torch.optim loops over the parameters unless it
// is told how (torch/optim/optimizer.py, _default_to_fused_or_foreach).
void resolve_offload(Resolver& resolver) {
  constexpr std::string_view kKey = "fsdp.cpu_offload";
  const Setting<std::string> wished = said(resolver, resolver.request.fsdp.cpu_offload, kKey);
  const std::optional<bool> offload = truth(resolver, wished, kKey);
  if (!offload) return;
  keep(resolver, wished, kKey);
  resolver.training().fsdp.cpu_offload = *offload;
}

// set_modules_to_forward_prefetch over layers.
void resolve_prefetch(Resolver& resolver) {
  Fsdp& fsdp = resolver.training().fsdp;
  const auto count = [&](const Setting<std::string>& in_file, std::string_view key, std::int64_t& into) {
    const Setting<std::string> wished = said(resolver, in_file, key);
    if (!wished.given()) return;
    const std::optional<std::int64_t> number = whole_number(*wished);
    if (!number || *number < 0) {
      return resolver.fault(wished.place, formatted("\"{}\" is \"{}\", no number of layers", key, *wished));
    }
    if (*number > 0 && layer_groups(resolver.model, fsdp_groups(resolver.model, fsdp)).empty()) {
      return resolver.fault(wished.place,
                            formatted("\"{}\" without groups of layers (fsdp.wrap is \"{}\")", key, fsdp.wrap),
                            "it is how many layers are gathered ahead");
    }
    keep(resolver, wished, key);
    into = *number;
  };
  count(resolver.request.fsdp.forward_prefetch, "fsdp.forward_prefetch", fsdp.forward_prefetch);
  count(resolver.request.fsdp.backward_prefetch, "fsdp.backward_prefetch", fsdp.backward_prefetch);
}

// ignored_params. What is trained there is no DTensor beside those that are.
void resolve_ignored(Resolver& resolver) {
  constexpr std::string_view kKey = "fsdp.ignored";
  const Setting<std::string> wished = said(resolver, resolver.request.fsdp.ignored, kKey);
  if (!wished.given() || wished->empty()) return;
  keep(resolver, wished, kKey);
  Fsdp& fsdp = resolver.training().fsdp;
  fsdp.ignored = *wished;
  if (resolver.training().torch < Version{2, 7, 0}) {
    return resolver.fault(wished.place,
                          formatted("\"{}\" before PyTorch 2.7, whose fully_shard has no such argument", kKey));
  }
  const auto& parameters = resolver.model.parameters;
  for (const std::string_view word : ignored_words(*wished)) {
    if (std::any_of(parameters.begin(), parameters.end(), [&](const Parameter& p) { return means(word, p); })) continue;
    resolver.fault(wished.place, formatted("\"{}\": {} has no parameter \"{}\"", kKey, resolver.model.name, word),
                   formatted("such as {}", parameters.front().name));
  }
}

// StateDictOptions of torch.distributed.checkpoint.state_dict: full_state_dict with cpu_offload, or without.
void resolve_state_dict(Resolver& resolver) {
  constexpr std::string_view kKey = "fsdp.state_dict";
  const Setting<std::string> wished = said(resolver, resolver.request.fsdp.state_dict, kKey);
  if (!wished.given()) return;
  if (*wished != "sharded" && *wished != "full" && *wished != "full-device") {
    return resolver.fault(wished.place,
                          formatted("\"{}\" is \"{}\", none of sharded, full and full-device", kKey, *wished));
  }
  Fsdp& fsdp = resolver.training().fsdp;
  fsdp.state_dict = *wished;
  keep(resolver, wished, kKey);
  if (fsdp.saves_whole() && fsdp.cpu_offload) {
    resolver.not_modelled(wished.place, "whole state dicts of shards that the host holds");
  }
}

void resolve_gradient_sync(Resolver& resolver, std::string_view usual) {
  constexpr std::string_view kKey = "fsdp.gradient_sync";
  const Setting<std::string> sync = said(resolver, resolver.request.fsdp.gradient_sync, kKey);
  if (sync.given()) {
    if (*sync != "last" && *sync != "every") {
      resolver.fault(sync.place, formatted("\"{}\" is \"{}\", neither last nor every", kKey, *sync));
    }
    resolver.training().fsdp.sync_every = *sync == "every";
    keep(resolver, sync, kKey);
  } else if (resolver.training().grad_accum > 1) {
    resolver.assumed(std::string(kKey), "last", std::string(usual), "--set");
  }
}

// Keys of the other version of FSDP.
void refuse_keys(Resolver& resolver, const std::vector<std::string_view>& keys, std::string_view why,
                 std::string_view hint) {
  for (const SettingRow& row : settings()) {
    const std::string_view key = row.request.key;
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) continue;
    const auto* field = std::get<const Setting<std::string>*>(row.request.field.of(resolver.request));
    const Setting<std::string> wished = said(resolver, *field, key);
    if (wished.given()) resolver.fault(wished.place, formatted("\"{}\" {}", key, why), std::string(hint));
  }
}

// transformers has peft choose the units instead, whatever policy a file names: each adapter is one by itself, beside
// the layers or the classes named (transformers 5.17, distributed/fsdp.py, update_fsdp_plugin_peft).
void wrap_adapters(Resolver& resolver) {
  Fsdp& fsdp = resolver.training().fsdp;
  const Request& request = resolver.request;
  if (!request.lora.given() || !request.training_arguments || wraps_adapters(fsdp)) return;
  if (set_of(resolver, "fsdp.wrap").given()) return;
  fsdp.wrap =
      formatted("{}+{}", kAdapters, fsdp.wrap == "root" || fsdp.wrap.starts_with("size:") ? "layers" : fsdp.wrap);
  resolver.derived("fsdp.wrap", fsdp.wrap, "the Trainer has peft wrap each adapter by itself", "--set");
}

void check_adapters(Resolver& resolver, const Place& place) {
  if (!wraps_adapters(resolver.training().fsdp) || resolver.request.lora.given()) return;
  resolver.fault(place, "\"fsdp.wrap\": adapters of a model that has none", "say lora, or leave \"adapters\" out");
}

// Both FSDPs refuse a parameter without a dimension (_fsdp_param.py; _flat_param.py, _validate_tensors_to_flatten).
void check_scalars(Resolver& resolver, const Place& place) {
  const Parameter* const scalar = first_scalar(resolver.model);
  if (scalar == nullptr) return;
  resolver.fault(place, formatted("{} has no dimension to shard", scalar->name),
                 "PyTorch's FSDP refuses scalar parameters");
}

// FullyShardedDataParallel: which of its strategies, and when units are gathered ahead.
void resolve_flattened(Resolver& resolver) {
  refuse_keys(resolver,
              {"fsdp.reshard_root", "fsdp.reshard_tail", "fsdp.reshard_last", "fsdp.output_dtype", "fsdp.ignored",
               "fsdp.state_dict"},
              "is fully_shard's word, which FSDP1 does not take", "it needs --runtime fsdp2");
  const Setting<std::string> shard = said(resolver, resolver.request.fsdp.shard, "fsdp.shard");
  if (resolve_mesh(resolver) == 1 && resolver.job.parallelism.dp > 1 && shard.value_or("") == "node") {
    resolver.not_modelled(shard.place,
                          "HYBRID_SHARD on nodes of one device, whose gradients PyTorch does not average,");
  }
  resolve_wrap(resolver);
  wrap_adapters(resolver);
  const FsdpInput& in = resolver.request.fsdp;
  Fsdp& fsdp = resolver.training().fsdp;
  if (("+" + fsdp.wrap + "+").find("+ends+") != std::string::npos) {
    resolver.fault(said(resolver, in.wrap, "fsdp.wrap").place, "\"fsdp.wrap\": FSDP1 wraps no modules together",
                   "layers, root, or classes");
  }
  if (fsdp.wrap.find("size:") != std::string::npos && !least_wrapped(fsdp.wrap)) {
    resolver.fault(said(resolver, in.wrap, "fsdp.wrap").place,
                   "\"fsdp.wrap\": a size is the only policy where there is one, and a number of parameters",
                   "such as size:100000000");
  }
  check_adapters(resolver, said(resolver, in.wrap, "fsdp.wrap").place);
  const auto flag = [&](const Setting<std::string>& in_file, std::string_view key, bool usual) {
    const Setting<std::string> wished = said(resolver, in_file, key);
    const std::optional<bool> value = truth(resolver, wished, key);
    if (value) keep(resolver, wished, key);
    return value.value_or(usual);
  };
  fsdp.reshard_after_forward = flag(in.reshard_after_forward, "fsdp.reshard_after_forward", true) ? 1 : 0;
  fsdp.use_orig_params = flag(in.use_orig_params, "fsdp.use_orig_params", false);
  fsdp.limit_all_gathers = flag(in.limit_all_gathers, "fsdp.limit_all_gathers", true);
  fsdp.sync_module_states = flag(in.sync_module_states, "fsdp.sync_module_states", false);
  fsdp.forward_prefetch = flag(in.forward_prefetch, "fsdp.forward_prefetch", false) ? 1 : 0;
  const Setting<std::string> backward = said(resolver, in.backward_prefetch, "fsdp.backward_prefetch");
  if (backward.given()) {
    const std::array<std::string_view, 3> words{"pre", "post", "none"};
    const auto found = std::find(words.begin(), words.end(), *backward);
    if (found == words.end()) {
      resolver.fault(backward.place,
                     formatted("\"fsdp.backward_prefetch\" is \"{}\", none of pre, post and none", *backward));
    } else {
      fsdp.backward_prefetch = found - words.begin();
      keep(resolver, backward, "fsdp.backward_prefetch");
    }
  }
  resolve_gradient_sync(resolver, "no_sync() but for the last micro-batch");
  resolve_offload(resolver);
}

// Adapters have a dtype of their own, and what they are put on keeps the one that it was loaded in.
void widen_trained(Resolver& resolver, const Setting<DType>& precision) {
  const Setting<std::vector<std::string>>& freeze = resolver.request.freeze;
  bool trains = false;
  bool freezes = false;
  for (const Parameter& parameter : resolver.model.parameters) {
    if (parameter.tied_to != kNone) continue;
    const bool frozen = !parameter.trainable ||
                        (freeze.given() && std::any_of(freeze->begin(), freeze->end(), [&](const std::string& glob) {
                           return glob_matches(glob, parameter.name);
                         }));
    const DType kept = parameter.dtype.value_or(resolver.training().dtype);
    if (parameter.dtype && !frozen && kept != DType::Float32) {
      return resolver.not_modelled(precision.place,
                                   "adapters in 16 bits under accelerate's mixed precision, which keeps them in fp32,");
    }
    if (!parameter.dtype) (frozen ? freezes : trains) = true;
  }
  if (trains && freezes && resolver.training().dtype != DType::Float32) {
    return resolver.not_modelled(precision.place, "frozen weights in 16 bits beside trained ones in fp32");
  }
  if (!trains || resolver.training().dtype == DType::Float32) return;
  resolver.training().dtype = DType::Float32;
  resolver.derived("dtype of shards", "fp32", "accelerate keeps what is trained in fp32", "--dtype");
}

bool shards_several_dtypes(const ModelSpec& model) {
  return std::any_of(model.parameters.begin(), model.parameters.end(),
                     [&](const Parameter& parameter) { return parameter.dtype != model.parameters.front().dtype; });
}

// accelerate's MixedPrecision has all three dtypes; behind its wrapping shards that are trained become fp32 (accelerate
// 1.15, utils/dataclasses.py, set_mixed_precision; accelerator.py, prepare_model).
void resolve_flat_dtypes(Resolver& resolver, const Setting<DType>& precision) {
  Training& training = resolver.training();
  const FsdpInput& in = resolver.request.fsdp;
  auto param = dtype_of(resolver, said(resolver, in.param_dtype, "fsdp.param_dtype"), "fsdp.param_dtype");
  auto reduce = dtype_of(resolver, said(resolver, in.reduce_dtype, "fsdp.reduce_dtype"), "fsdp.reduce_dtype");
  const Setting<std::string> buffers = said(resolver, in.buffer_dtype, "fsdp.buffer_dtype");
  auto buffer = dtype_of(resolver, buffers, "fsdp.buffer_dtype");
  if (precision.given()) {
    if (param && *param != *precision) {
      return resolver.not_modelled(precision.place, "accelerate's autocast over parameters in another dtype");
    }
    const DType loaded = training.dtype;
    training.fsdp.widens_shards = loaded != DType::Float32;
    if (loaded != DType::Float32 && loaded != *precision) {
      return resolver.not_modelled(precision.place, formatted("mixed precision in {} of a model that is loaded in {}",
                                                              name(*precision), name(loaded)));
    }
    if (training.fsdp.widens_shards) {
      resolver.derived("dtype of shards", "fp32", "accelerate casts what it has wrapped", "--dtype");
    }
    if (!param) resolver.given("fsdp.param_dtype", std::string(name(*precision)), precision.place, "--set");
    param = param.value_or(*precision);
    reduce = reduce.value_or(*precision);
    buffer = buffer.value_or(*precision);
  }
  if (reduce && !param && shards_several_dtypes(resolver.model)) {
    return resolver.not_modelled(said(resolver, in.reduce_dtype, "fsdp.reduce_dtype").place,
                                 "\"fsdp.reduce_dtype\" of parameters in several dtypes without fsdp.param_dtype");
  }
  training.fsdp.casts_parameters = param.has_value();
  training.master_dtype = training.fsdp.widens_shards ? DType::Float32 : training.dtype;
  training.dtype = param.value_or(training.dtype);
  training.communication_dtype = reduce.value_or(training.dtype);
  training.grad_accum_dtype = training.communication_dtype;
  if (buffer && *buffer != training.dtype && *buffer != DType::Float32) {
    return resolver.not_modelled(buffers.place, "\"fsdp.buffer_dtype\" other than fp32 and the dtype of parameters");
  }
  training.fsdp.casts_buffers = buffer && *buffer != DType::Float32;
}

}  // namespace

// accelerate's MixedPrecisionPolicy has all three dtypes (utils/dataclasses.py, set_mixed_precision), and what is
// trained is kept in fp32 (utils/fsdp_utils.py, fsdp2_prepare_model).
void resolve_fsdp_dtypes(Resolver& resolver, const Setting<DType>& precision) {
  Training& training = resolver.training();
  if (training.runtime == Runtime::Fsdp1) return resolve_flat_dtypes(resolver, precision);
  const FsdpInput& in = resolver.request.fsdp;
  auto param = dtype_of(resolver, said(resolver, in.param_dtype, "fsdp.param_dtype"), "fsdp.param_dtype");
  auto reduce = dtype_of(resolver, said(resolver, in.reduce_dtype, "fsdp.reduce_dtype"), "fsdp.reduce_dtype");
  const Setting<std::string> output = said(resolver, in.output_dtype, "fsdp.output_dtype");
  auto out = dtype_of(resolver, output, "fsdp.output_dtype");
  if (precision.given()) {
    const std::string wrap = said(resolver, in.wrap, "fsdp.wrap").value_or("");  // Resolved later.
    if (!packing_of(resolver.model) && !prepared_by_axolotl(wrap)) widen_trained(resolver, precision);
    const std::string policy(name(*precision));
    if (!param) resolver.given("fsdp.param_dtype", policy, precision.place, "--set");
    param = param.value_or(*precision);
    reduce = reduce.value_or(*precision);
    out = out.value_or(*precision);
  }
  training.fsdp.casts_parameters = param.has_value();
  training.master_dtype = training.dtype;
  training.dtype = param.value_or(training.dtype);
  training.communication_dtype = reduce.value_or(training.dtype);
  training.grad_accum_dtype = training.communication_dtype;
  if (out && *out != training.dtype) {
    return resolver.not_modelled(output.place, "\"fsdp.output_dtype\" other than the dtype that modules compute in");
  }
  training.fsdp.casts_outputs = out && *out != DType::Float32;
}

void resolve_fsdp(Resolver& resolver) {
  const Setting<std::string>& runtime = resolver.request.runtime;
  if (runtime.value_or({}) == "ddp" && resolver.job.parallelism.dp == 1) {
    resolver.not_modelled(runtime.place, "DistributedDataParallel over one rank (say pytorch)");
  }
  if (!is_fsdp(resolver.training().runtime)) {
    const std::string said_runtime = runtime.value_or({});
    if (said_runtime == "fsdp1" || said_runtime == "fsdp2" || said_runtime == "hsdp")
      return;  // Beside DeepSpeed, which is refused.
    for (const SettingRow& row : settings()) {
      const std::string_view key = row.request.key;
      if (!key.starts_with("fsdp.")) continue;
      const auto* field = std::get<const Setting<std::string>*>(row.request.field.of(resolver.request));
      const Setting<std::string> wished = said(resolver, *field, key);
      if (!wished.given()) continue;
      resolver.fault(wished.place, formatted("\"{}\" without fully_shard", key),
                     "it needs --runtime fsdp2 or hsdp, or fsdp1");
    }
    return;
  }
  check_scalars(resolver, runtime.place);
  if (resolver.training().runtime == Runtime::Fsdp1) return resolve_flattened(resolver);
  refuse_keys(resolver,
              {"fsdp.use_orig_params", "fsdp.limit_all_gathers", "fsdp.sync_module_states", "fsdp.buffer_dtype"},
              "is FSDP1's word, which fully_shard does not take", "it needs --runtime fsdp1");
  const std::int64_t ranks = resolve_mesh(resolver);
  resolve_wrap(resolver);
  const Setting<std::string> wrap = said(resolver, resolver.request.fsdp.wrap, "fsdp.wrap");
  if (least_wrapped(resolver.training().fsdp.wrap)) {
    resolver.fault(wrap.place, "\"fsdp.wrap\": sizes are FSDP1's words, which fully_shard does not take",
                   "it needs --runtime fsdp1");
  }
  check_adapters(resolver, wrap.place);
  resolve_resharding(resolver, ranks);
  resolve_gradient_sync(resolver, "set_requires_gradient_sync in the last micro-batch alone");
  resolve_offload(resolver);
  resolve_prefetch(resolver);
  resolve_ignored(resolver);
  resolve_state_dict(resolver);
}

}  // namespace dsplan
