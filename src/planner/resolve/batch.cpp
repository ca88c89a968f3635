// Ranks, nodes, and the batch triple.
#include <algorithm>

#include "planner/resolve/resolver.h"

#include "core/format.h"

namespace dsplan {
namespace {

struct Batch {
  Setting<std::int64_t> train;
  Setting<std::int64_t> micro;
  Setting<std::int64_t> accum;
};

Setting<std::int64_t> prefer(Resolver& resolver, const Setting<std::int64_t>& wished,
                             const Setting<std::int64_t>& written, std::string_view key) {
  if (!wished.given()) return written;
  if (written.given() && *written != *wished) {
    resolver.announce(written.place,
                      formatted("\"{}\" {} gives way to {} of {}", key, *written, *wished, wished.place.text()));
  }
  return wished;
}

Batch said(Resolver& resolver) {
  const Request& request = resolver.request;
  if (resolver.ds == nullptr) return {{}, request.micro_batch, request.grad_accum};
  const DeepSpeedInput& ds = *resolver.ds;
  return {ds.train_batch_size, prefer(resolver, request.micro_batch, ds.micro_batch, "train_micro_batch_size_per_gpu"),
          prefer(resolver, request.grad_accum, ds.grad_accum, "gradient_accumulation_steps")};
}

// Degrees of parallelism beside data parallelism; kept at 1 where they are refused.
void resolve_degrees(Resolver& resolver) {
  Parallelism& parallelism = resolver.job.parallelism;
  const Setting<std::int64_t>& tp = resolver.request.tp;
  parallelism.tp = tp.value_or(1);
  if (tp.given()) resolver.given("tp", std::to_string(*tp), tp.place, "--tp");
  const Dimensions& dims = resolver.model.dims;
  const auto refuse = [&](std::string_view what, std::int64_t count) {
    resolver.fault(tp.place, formatted("{} {} of {} cannot be cut into tp = {} equal parts", count, what,
                                       resolver.model.name, parallelism.tp));
  };
  if (parallelism.tp == 1) return;
  if (dims.heads % parallelism.tp != 0) refuse("heads", dims.heads);
  const bool cut = dims.kv_heads % parallelism.tp == 0;
  const bool replicated = dims.kv_heads > 0 && parallelism.tp % dims.kv_heads == 0;
  if (!cut && !replicated) refuse("key-value heads", dims.kv_heads);
  if (dims.ffn % parallelism.tp != 0) refuse("feed-forward columns", dims.ffn);
}

// From the batch triple: train / (micro x accum) data-parallel ranks. 0 where it is not complete or does not divide.
std::int64_t ranks_of_triple(Resolver& resolver, const Batch& batch) {
  if (!batch.train.given() || !batch.micro.given() || !batch.accum.given()) return 0;
  const std::int64_t rows = checked_mul(*batch.micro, *batch.accum);
  if (*batch.train % rows != 0) {
    resolver.fault(batch.train.place,
                   formatted("\"train_batch_size\" {} is no multiple of micro-batch {} x accumulation {}", *batch.train,
                             *batch.micro, *batch.accum),
                   "DeepSpeed wants train_batch_size = micro-batch x accumulation x ranks");
    return 1;
  }
  return *batch.train / rows;
}

// Nothing of these runtimes is of use on one GPU.
bool wants_ranks(const Resolver& resolver) {
  const std::string runtime = resolver.request.runtime.value_or("");
  return resolver.stage() >= 1 || runtime.starts_with("fsdp") || runtime == "hsdp" || runtime == "ddp";
}

void resolve_world(Resolver& resolver, const Batch& batch) {
  const Request& request = resolver.request;
  Parallelism& p = resolver.job.parallelism;
  const std::int64_t model_ranks = checked_mul(p.tp, p.sp);
  const Cluster* cluster = resolver.cluster;
  const std::int64_t nodes = request.nodes.value_or(cluster != nullptr ? cluster->nodes : 0);
  const std::int64_t per_node = request.gpus_per_node.value_or(cluster != nullptr ? cluster->gpus_per_node : 0);
  if (request.gpus.given()) {
    p.world = *request.gpus;
    resolver.given("GPUs", std::to_string(p.world), request.gpus.place, "--gpus");
  } else if (nodes > 0 && per_node > 0) {
    p.world = checked_mul(nodes, per_node);
    resolver.derived("GPUs", std::to_string(p.world), formatted("{} nodes of {}", nodes, per_node), "--gpus");
  } else if (const std::int64_t dp = ranks_of_triple(resolver, batch); dp > 0) {
    p.world = checked_mul(dp, model_ranks);
    resolver.derived("GPUs", std::to_string(p.world), "train_batch_size / (micro-batch x accumulation)", "--gpus");
  } else if (per_node > 1 && wants_ranks(resolver)) {
    p.world = checked_mul(nodes > 0 ? nodes : 1, per_node);
    resolver.assumed("GPUs", std::to_string(p.world), formatted("one node of {}", per_node), "--gpus");
  } else if (resolver.stage() >= 1) {
    p.world = model_ranks;
    resolver.fault(option("--gpus"), formatted("ZeRO stage {} needs the number of GPUs", resolver.stage()),
                   "give --gpus, a cluster, or train_batch_size, micro-batch and accumulation as numbers");
  } else {
    p.world = model_ranks;
    resolver.assumed("GPUs", std::to_string(p.world), "nothing names them", "--gpus");
  }
  if (p.world % model_ranks != 0) {
    resolver.fault(request.gpus.given() ? request.gpus.place : request.tp.place,
                   formatted("{} GPUs cannot be cut into groups of tp x sp = {}", p.world, model_ranks));
    p.world = model_ranks;
  }
  p.dp = p.world / model_ranks;
  p.gpus_per_node = std::min(p.world, per_node > 0 ? per_node : std::int64_t{8});
  p.nodes = 1 + (p.world - 1) / p.gpus_per_node;
  if (request.gpus_per_node.given()) {
    resolver.given("GPUs per node", std::to_string(p.gpus_per_node), request.gpus_per_node.place, "--gpus-per-node");
  } else if (cluster != nullptr || p.world <= 8) {
    resolver.derived("GPUs per node", std::to_string(p.gpus_per_node),
                     cluster != nullptr ? "the cluster's" : "all of them in one node", "--gpus-per-node");
  } else {
    resolver.assumed("GPUs per node", std::to_string(p.gpus_per_node), "the usual node", "--gpus-per-node");
  }
}

bool decided_by_trainer(const Resolver& resolver) {
  const std::optional<TrainingArguments>& arguments = resolver.request.training_arguments;
  return arguments && resolver.job.training.micro_batch == arguments->per_device_train_batch_size.value_or(8) &&
         resolver.job.training.grad_accum == arguments->gradient_accumulation_steps.value_or(1);
}

// What DeepSpeed's `_set_batch_related_parameters` computes from two of three, or from one.
void complete(Resolver& resolver, const Batch& batch) {
  Training& training = resolver.training();
  const std::int64_t dp = resolver.job.parallelism.dp;
  const bool trainer = resolver.request.training_arguments.has_value();
  const auto tell = [&resolver](const Setting<std::int64_t>& setting, std::int64_t value, std::string_view what,
                                std::string reason, bool assumed, std::string option) {
    if (setting.given()) {
      resolver.given(std::string(what), std::to_string(value), setting.place, std::move(option));
    } else if (assumed) {
      resolver.assumed(std::string(what), std::to_string(value), std::move(reason), std::move(option));
    } else {
      resolver.derived(std::string(what), std::to_string(value), std::move(reason), std::move(option));
    }
  };
  std::int64_t micro = batch.micro.value_or(trainer ? 8 : 1);
  std::int64_t accum = batch.accum.value_or(1);
  bool micro_assumed = !trainer;
  bool accum_assumed = !trainer && !batch.micro.given();
  std::string micro_reason = trainer ? "TrainingArguments' default" : "nothing names it";
  std::string accum_reason = trainer ? "TrainingArguments' default"
                                     : (batch.micro.given() ? "the default beside a micro-batch" : "nothing names it");
  if (batch.train.given() && !trainer) {
    if (!batch.micro.given()) {
      micro = *batch.train / dp / accum;
      micro_assumed = accum_assumed = false;
      micro_reason = "train_batch_size / (accumulation x data-parallel ranks)";
      accum_reason = "DeepSpeed's default beside train_batch_size";
    } else if (!batch.accum.given()) {
      accum = *batch.train / micro / dp;
      accum_assumed = false;
      accum_reason = "train_batch_size / (micro-batch x data-parallel ranks)";
    }
  }
  training.micro_batch = micro;
  training.grad_accum = accum;
  tell(batch.micro, micro, "micro-batch", std::move(micro_reason), micro_assumed, "--micro-batch");
  tell(batch.accum, accum, "accumulation", std::move(accum_reason), accum_assumed, "--grad-accum");
  // Where TrainingArguments decide, check_training_arguments compares train_batch_size with them.
  if (!batch.train.given() || decided_by_trainer(resolver)) return;
  if (const std::int64_t product = checked_mul(checked_mul(micro, accum), dp); product != *batch.train) {
    resolver.fault(
        batch.train.place,
        formatted("\"train_batch_size\" is {}, but micro-batch {} x accumulation {} x {} data-parallel "
                  "ranks is {}",
                  *batch.train, micro, accum, dp, product),
        product != 0 ? "DeepSpeed wants them equal" : "DeepSpeed divides, and nothing is left for each rank");
    training.micro_batch = std::max<std::int64_t>(micro, 1);
    training.grad_accum = std::max<std::int64_t>(accum, 1);
  }
}

void announce_automatic(Resolver& resolver) {
  if (resolver.ds == nullptr || resolver.request.hugging_face_rules()) return;
  const DeepSpeedInput& ds = *resolver.ds;
  const auto announce = [&resolver](const Setting<std::int64_t>& setting, std::string_view key) {
    // accelerate's plugin says it of keys that nobody wrote, and fills them in before DeepSpeed starts.
    if (!setting.is_auto || setting.place.path.empty()) return;
    resolver.notice(Notice::Kind::Warning, setting.place,
                    formatted("\"{}\" is \"auto\" without a training file or launch line: DeepSpeed itself does not "
                              "start with it",
                              key));
  };
  announce(ds.train_batch_size, "train_batch_size");
  announce(ds.micro_batch, "train_micro_batch_size_per_gpu");
  announce(ds.grad_accum, "gradient_accumulation_steps");
}

bool positive(Resolver& resolver, const Setting<std::int64_t>& setting, std::string_view what) {
  if (setting.value_or(1) >= 1) return true;
  resolver.fault(setting.place, formatted("{} must be at least 1, not {}", what, *setting));
  return false;
}

}  // namespace

void resolve_ranks_and_batch(Resolver& resolver) {
  const Request& request = resolver.request;
  const Batch batch = said(resolver);
  bool sound = positive(resolver, request.gpus, "the number of GPUs");
  sound &= positive(resolver, request.gpus_per_node, "the number of GPUs per node");
  sound &= positive(resolver, request.nodes, "the number of nodes");
  sound &= positive(resolver, request.tp, "tp");
  sound &= positive(resolver, batch.train, "the batch");
  sound &= positive(resolver, batch.micro, "the micro-batch");
  sound &= positive(resolver, batch.accum, "the accumulation");
  if (!sound) return;
  resolve_degrees(resolver);
  resolve_world(resolver, batch);
  complete(resolver, batch);
  announce_automatic(resolver);
}

}  // namespace dsplan
