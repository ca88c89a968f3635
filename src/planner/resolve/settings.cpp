// What is refused because dsplan does not do it yet, keys that --set takes, and TrainingArguments against the DeepSpeed
// JSON.

#include <algorithm>

#include "core/document.h"
#include "core/format.h"
#include "model/quantized.h"
#include "planner/resolve/resolver.h"

namespace dsplan {

Setting<std::string> set_of(const Resolver& resolver, std::string_view key) {
  Setting<std::string> value;
  if (!resolver.request.set.given()) return value;
  for (const std::string& pair : *resolver.request.set) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos || std::string_view(pair).substr(0, equals) != key) continue;
    value = {pair.substr(equals + 1), resolver.request.set.place};
  }
  return value;
}

Setting<bool> truth_of(Resolver& resolver, const Setting<bool>& in_file, std::string_view key) {
  const Setting<std::string> set = set_of(resolver, key);
  if (!set.given()) return in_file;
  if (*set == "true" || *set == "false") return {*set == "true", set.place};
  resolver.fault(set.place, formatted("\"{}={}\" is neither true nor false", key, *set));
  return {};
}

namespace {

// What --set takes: keys of a training file that have no option.
std::vector<std::string_view> keys_of_set() {
  std::vector<std::string_view> keys{"zero_grad_set_to_none", "model_init", "use_cache", "labels_are_ids",
                                     "cast_model"};
  for (const SettingRow& row : settings()) {
    const std::string_view key = row.request.key;
    if (key.starts_with("fsdp.") || key.starts_with("ddp.")) keys.push_back(key);
  }
  return keys;
}

// The option of a setting that a training file calls so; empty: none.
std::string_view option_of(std::string_view key) {
  for (const SettingRow& row : settings()) {
    if (row.request.key == key && !key.empty() && row.request.option != nullptr) return row.request.option;
  }
  return {};
}

void refuse_other_keys(Resolver& resolver) {
  if (!resolver.request.set.given()) return;
  const std::vector<std::string_view> keys = keys_of_set();
  const Place& place = resolver.request.set.place;
  for (const std::string& pair : *resolver.request.set) {
    const std::string_view key = std::string_view(pair).substr(0, pair.find('='));
    const bool known = std::find(keys.begin(), keys.end(), key) != keys.end();
    if (known && pair.find('=') != std::string::npos) continue;
    if (known) {
      resolver.fault(place, formatted("\"{}\" is not KEY=VALUE", pair), formatted("as {}=VALUE", key));
      continue;
    }
    const std::string_view option = option_of(key);
    const std::string_view meant = nearest(key, keys);
    resolver.fault(
        place, formatted("there is no setting \"{}\"", key),
        !option.empty() ? formatted("it has an option of its own: {}", option)
        : !meant.empty()
            ? did_you_mean(meant)
            : "it takes model_init, zero_grad_set_to_none, use_cache, labels_are_ids, cast_model, and fsdp and ddp as "
              "in a training file; beside torchtitan's TOML torchtitan=VERSION");
  }
}

// zero_grad(set_to_none).
void resolve_zero_grad(Resolver& resolver) {
  const Setting<bool> wished = truth_of(resolver, resolver.request.zero_grad_set_to_none, "zero_grad_set_to_none");
  if (!wished.given()) return;
  if (resolver.deepspeed() && !*wished) {
    return resolver.not_modelled(wished.place, "zero_grad(set_to_none=False) under DeepSpeed");
  }
  resolver.training().zero_grad_to_none = *wished;
  resolver.given("zero_grad_set_to_none", *wished ? "true" : "false", wished.place, "--training");
}

// from_pretrained packs weights where they will be, and fully_shard or DeepSpeed cuts them there: transformers makes no
// model that is packed under zero.Init (modeling_utils.py, get_init_context).
void packed_on_device(Resolver& resolver, const Setting<std::string>& wished) {
  resolver.training().model_init = ModelInit::Device;
  if (wished.given() && *wished != "device") {
    return resolver.fault(wished.place, formatted("model_init \"{}\" with packed weights", *wished),
                          formatted("from_pretrained packs them on the device, and {} cuts them there",
                                    resolver.deepspeed() ? "DeepSpeed" : "fully_shard"));
  }
  resolver.derived("model_init", "device", "from_pretrained packs weights on the device", "--training");
}

ModelInit usual_init(Runtime runtime, bool cuts) {
  if (cuts) return ModelInit::ZeroInit;
  if (runtime == Runtime::Fsdp1) return ModelInit::Host;
  return runtime == Runtime::Fsdp2 ? ModelInit::Meta : ModelInit::Device;
}

// Where the model is made. Which of them a script does no file says; under plain PyTorch, and below ZeRO-3, only the
// host's memory depends on it.
void resolve_model_init(Resolver& resolver) {
  const Setting<std::string> said = set_of(resolver, "model_init");
  const Setting<std::string>& wished = said.given() ? said : resolver.request.model_init;
  const bool cuts = resolver.deepspeed() && resolver.stage() == 3;
  Training& training = resolver.training();
  const bool shards = is_fsdp(training.runtime);
  const bool flattens = training.runtime == Runtime::Fsdp1;
  training.model_init = usual_init(training.runtime, cuts);
  if ((shards || cuts) && packing_of(resolver.model)) return packed_on_device(resolver, wished);
  if (!wished.given()) {
    if (shards) {
      return resolver.assumed("model_init", std::string(name(training.model_init)),
                              flattens ? "device_id is given: each unit is moved as it is wrapped"
                                       : "made on no device, and empty in shards; else it is whole first",
                              "--training");
    }
    if (!resolver.deepspeed()) return;
    resolver.assumed("model_init", std::string(name(training.model_init)),
                     cuts ? "built under zero.Init; else it is whole on each rank first"
                          : "made on the device; else it is in the host's memory first",
                     "--training");
    return;
  }
  for (const ModelInit one :
       {ModelInit::ZeroInit, ModelInit::Device, ModelInit::Host, ModelInit::Meta, ModelInit::Rank0}) {
    if (*wished != name(one)) continue;
    if ((one == ModelInit::Meta || one == ModelInit::Rank0) && !shards) {
      return resolver.fault(wished.place, formatted("model_init \"{}\" without fully_shard", *wished),
                            "it needs --runtime fsdp2 or hsdp");
    }
    if (one == ModelInit::ZeroInit && !cuts) {
      return resolver.fault(wished.place, "model_init \"zero_init\" without ZeRO stage 3",
                            "zero.Init cuts parameters as stage 3 does; below it there is nothing to cut");
    }
    training.model_init = one;
    return resolver.given("model_init", *wished, wished.place, "--training");
  }
  resolver.fault(wished.place,
                 formatted("model_init \"{}\" is none of zero_init, device, host, meta and rank0", *wished));
}

// model.to(dtype) after the model was made. On a device it would be there in fp32 first, tensor after tensor.
void resolve_cast(Resolver& resolver) {
  const Setting<bool> cast = truth_of(resolver, resolver.request.cast_model, "cast_model");
  if (!cast.given()) return;
  Training& training = resolver.training();
  training.cast_model = *cast;
  resolver.given("cast_model", *cast ? "true" : "false", cast.place, "--set cast_model");
  if (!*cast) return;
  if (packing_of(resolver.model)) {
    return resolver.fault(cast.place, "\"cast_model\" of packed weights", "bitsandbytes refuses to cast them");
  }
  if (training.model_init == ModelInit::Device || training.model_init == ModelInit::ZeroInit) {
    resolver.not_modelled(cast.place,
                          formatted("\"cast_model\" of a model whose model_init is \"{}\"", name(training.model_init)));
  }
}

}  // namespace

void resolve_settings(Resolver& resolver) {
  refuse_other_keys(resolver);
  resolve_zero_grad(resolver);
  resolve_model_init(resolver);
  resolve_cast(resolver);
}

// Options that name something dsplan does not do yet. They are refused, never ignored.
void refuse_unmodelled_options(Resolver& resolver) {
  const Request& request = resolver.request;
  const auto refuse = [&resolver](const auto& setting, std::string_view what) {
    if (setting.given()) resolver.not_modelled(setting.place, what);
  };
  const auto refuse_degree = [&resolver](const Setting<std::int64_t>& degree, std::string_view what) {
    if (degree.value_or(1) > 1) resolver.not_modelled(degree.place, formatted("{} = {}", what, *degree));
  };
  refuse(request.env, "an environment file");
  refuse_degree(request.sp, "sequence parallelism, sp");
  refuse_degree(request.ep, "expert parallelism, ep");
  if (resolver.deepspeed() && request.param_groups.value_or("single") != "single") {
    resolver.not_modelled(request.param_groups.place,
                          formatted("param_groups \"{}\" under DeepSpeed", *request.param_groups));
  }
}

// TrainingArguments against the DeepSpeed JSON, as transformers compares them: a key that is written as a value, not
// "auto", must equal what TrainingArguments say, their defaults included (integrations/deepspeed.py, fill_match).

namespace {

template <class T>
void must_match(Resolver& resolver, const Setting<T>& written, std::string_view key, const T& trainer,
                std::string_view argument) {
  if (!written.given() || *written == trainer) return;
  resolver.fault(written.place,
                 formatted("\"{}\" is {} here, but TrainingArguments have {} = {}", key, *written, argument, trainer),
                 "transformers refuses the mismatch; \"auto\" takes TrainingArguments' value");
}

void match_batch(Resolver& resolver, const TrainingArguments& arguments) {
  const DeepSpeedInput& ds = *resolver.ds;
  const std::int64_t micro = arguments.per_device_train_batch_size.value_or(8);
  const std::int64_t accum = arguments.gradient_accumulation_steps.value_or(1);
  must_match(resolver, ds.grad_accum, "gradient_accumulation_steps", accum, "gradient_accumulation_steps");
  if (arguments.auto_find_batch_size.value_or(false)) return;
  must_match(resolver, ds.micro_batch, "train_micro_batch_size_per_gpu", micro, "per_device_train_batch_size");
  const std::int64_t train = checked_mul(checked_mul(micro, accum), resolver.job.parallelism.dp);
  must_match(resolver, ds.train_batch_size, "train_batch_size", train, "ranks x micro-batch x accumulation");
}

void match_optimizer(Resolver& resolver, const TrainingArguments& arguments) {
  const OptimizerInput& optimizer = resolver.ds->optimizer;
  must_match(resolver, optimizer.learning_rate, "optimizer.params.lr", arguments.learning_rate.value_or(5e-5),
             "learning_rate");
  must_match(resolver, optimizer.epsilon, "optimizer.params.eps", arguments.adam_epsilon.value_or(1e-8),
             "adam_epsilon");
  must_match(resolver, optimizer.weight_decay, "optimizer.params.weight_decay", arguments.weight_decay.value_or(0.0),
             "weight_decay");
  const std::vector<double> betas = {arguments.adam_beta1.value_or(0.9), arguments.adam_beta2.value_or(0.999)};
  if (!optimizer.betas.given() || *optimizer.betas == betas) return;
  resolver.fault(optimizer.betas.place,
                 formatted("\"optimizer.params.betas\" is [{}] here, but TrainingArguments have [{}]",
                           joined(*optimizer.betas, ", "), joined(betas, ", ")),
                 "transformers refuses the mismatch; \"auto\" takes TrainingArguments' value");
}

}  // namespace

void check_training_arguments(Resolver& resolver) {
  if (resolver.ds == nullptr || !resolver.request.training_arguments) return;
  const TrainingArguments& arguments = *resolver.request.training_arguments;
  match_batch(resolver, arguments);
  must_match(resolver, resolver.ds->gradient_clipping, "gradient_clipping", arguments.max_grad_norm.value_or(1.0),
             "max_grad_norm");
  match_optimizer(resolver, arguments);
  must_match(resolver, resolver.ds->fp16_enabled, "fp16.enabled", arguments.fp16.value_or(false), "fp16");
  must_match(resolver, resolver.ds->bf16_enabled, "bf16.enabled", arguments.bf16.value_or(false), "bf16");
}

}  // namespace dsplan
