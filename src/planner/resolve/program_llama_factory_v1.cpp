#include <algorithm>
#include <string>
#include <string_view>

#include "core/format.h"
#include "planner/resolve/fsdp_plugin.h"
#include "planner/resolve/program_parts.h"

namespace dsplan {
namespace {

class LlamaFactoryV1 {
 public:
  LlamaFactoryV1(const ForeignInput& foreign, const ModelSpec& base, Request& request, Diagnostics& faults)
      : foreign_(foreign), base_(base), request_(request), faults_(faults) {}

  void complete() {
    say_which();
    adapted_ = foreign_.adapters.value_or(false);
    defaults();
    ranks();
    shard();
    load();
    accumulate();
    judge_attention();
  }

 private:
  template <class T>
  void usually(Setting<T>& setting, T value) const {
    if (!setting.mentioned()) setting = {std::move(value), option("LLaMA-Factory v1's default")};
  }
  void refuse(const Place& place, std::string_view key, std::string_view feature) {
    request_.not_modelled.push_back({place, When::Always, std::string(key), std::string(feature)});
  }

  // Nothing in a file says by which command it is read.
  void say_which() {
    if (request_.has_launch_line) return;
    request_.notices.push_back({Notice::Kind::Announcement,
                                foreign_.program.place,
                                "read as `llamafactory-cli sft` reads it; `dpo` and `rm`, which are not modelled, take "
                                "the same keys",
                                {}});
  }

  // torch.optim.AdamW(parameters, lr), whose other arguments are PyTorch's.
  void defaults() {
    usually<std::int64_t>(request_.micro_batch, 1);
    usually<std::int64_t>(request_.seq, 2048);
    usually(request_.optimizer, std::string("adamw"));
    usually(request_.implementation, std::string("foreach"));
    usually(request_.weight_decay, 0.01);
    usually(request_.max_grad_norm, 1.0);
    usually(request_.loss, std::string("weighted"));
    usually(request_.loop, std::string("llama-factory-v1"));
    if (foreign_.checkpoints.value_or(true)) {
      usually(request_.checkpoint, std::string("full"));
      if (*request_.checkpoint != "none") usually(request_.checkpoint_impl, std::string("non_reentrant"));
    }
  }

  // DistributedStrategy (accelerator/interface.py): both meshes take all ranks.
  void ranks() {
    if (!request_.gpus.given() && !foreign_.data_ranks.given() && foreign_.shards.given()) {
      request_.gpus = {checked_mul(*foreign_.shards, foreign_.replicas.value_or(1)), foreign_.shards.place};
    }
    if (!foreign_.data_ranks.given()) return;
    const std::int64_t wanted = *foreign_.data_ranks;
    if (!request_.gpus.given()) request_.gpus = {wanted, foreign_.data_ranks.place};
    if (*request_.gpus == wanted) return;
    faults_.add(foreign_.data_ranks.place.says(formatted("dp_size {} of {} ranks", wanted, *request_.gpus),
                                               "v1 wants dp_size times cp_size to be the number of ranks"));
  }
  [[nodiscard]] bool several() const { return request_.gpus.value_or(1) > 1; }

  // One process that no launcher has started has no mesh, and FSDP2Engine wraps nothing. The mesh has two dimensions
  // even where there is one replica.
  void shard() {
    const std::string by = foreign_.distributed.value_or({});
    if (by == "deepspeed") refuse(foreign_.distributed.place, "dist_config.name", "DeepSpeed in v1's own loop");
    if (by == "fsdpturbo") refuse(foreign_.distributed.place, "dist_config.name", "fsdpturbo");
    if (by != "fsdp2" || !several()) return;
    usually(request_.runtime, std::string("fsdp2"));
    mesh();
    FsdpInput& fsdp = request_.fsdp;
    // Leaves that are trained, before what lies around them; then by name.
    const bool tied = std::any_of(base_.parameters.begin(), base_.parameters.end(),
                                  [](const Parameter& one) { return one.tied_to != kNone; });
    const std::string ends = tied ? "layers" : "Embedding+layers";
    usually(fsdp.wrap, adapted_ ? "adapters+" + ends : ends);
    usually(fsdp.param_dtype, std::string(foreign_.in_bf16.value_or(true) ? "bf16" : "fp32"));
    usually(fsdp.reduce_dtype, std::string("fp32"));
    usually(fsdp.gradient_sync, std::string("every"));
    const Setting<std::string>& reshards = foreign_.trainers.reshard_after_forward;
    const std::string text = reshards.value_or("true");
    if (text != "true" && text != "false") {
      return faults_.add(reshards.place.says(formatted("reshard_after_forward is true or false, not {}", text)));
    }
    usually(fsdp.reshard_after_forward, text);
    usually(fsdp.reshard_root, text);
    usually(fsdp.state_dict, std::string("full"));
  }

  void mesh() {
    const std::int64_t replicas = foreign_.replicas.value_or(1);
    const std::int64_t shards = foreign_.shards.value_or(*request_.gpus / std::max<std::int64_t>(replicas, 1));
    const Place& place = foreign_.shards.given() ? foreign_.shards.place : foreign_.replicas.place;
    if (checked_mul(replicas, shards) != *request_.gpus) {
      return faults_.add(
          place.says(formatted("{} replicas of {} shards are not {} ranks", replicas, shards, *request_.gpus),
                     "v1 wants mp_replicate_size times mp_shard_size to be the number of ranks"));
    }
    if (replicas > 1) refuse(place, "mp_replicate_size", "replicas of shards under v1");
  }

  // from_pretrained(dtype="auto", device_map=...), and where all is trained `.to(torch.float32)`.
  void load() {
    const std::string on = foreign_.init_on.value_or("init_on_default");
    const bool sharded = request_.runtime.value_or({}) == "fsdp2";
    if (on != "init_on_default" && !sharded && foreign_.distributed.value_or({}) != "fsdpturbo") {
      faults_.add(foreign_.init_on.place.says(
          formatted("{} without FSDP2 over several ranks: v1 trains on the host, or nothing", on)));
    } else if (on != "init_on_default") {
      refuse(foreign_.init_on.place, "init_config.name", "weights that v1 sends or copies to shards itself");
    }
    usually(request_.model_init, std::string("device"));
    const DType stored = base_.stored_dtype.value_or(DType::Float32);
    usually(request_.torch_dtype, std::string(adapted_ ? name(stored) : name(DType::Float32)));
    if (!adapted_ || base_.stored_dtype) return;
    faults_.add(
        foreign_.program.place.says("dtype=\"auto\", and the model's config.json names no dtype", "say --dtype"));
  }

  // DDP is not told to leave out a reduction, and neither is FSDP2.
  void accumulate() {
    if (!foreign_.all_rows.given() || request_.grad_accum.given()) return;
    const Place& place = foreign_.all_rows.place;
    const std::int64_t rows = checked_mul(*request_.micro_batch, request_.gpus.value_or(1));
    if (*foreign_.all_rows % rows != 0) {
      return faults_.add(place.says(formatted("global_batch_size {} is no multiple of {} rows in {} ranks",
                                              *foreign_.all_rows, *request_.micro_batch, request_.gpus.value_or(1))));
    }
    request_.grad_accum = {*foreign_.all_rows / rows, place};
    if (*request_.grad_accum == 1 || !several() || request_.runtime.given()) return;
    refuse(place, "global_batch_size", "accumulation under v1's DDP, which reduces each micro-batch");
  }

  // Positions come with the batch, and flash attention looks whether rows are packed.
  void judge_attention() {
    if (request_.attention.value_or("sdpa") != "flash_attention_2") return;
    refuse(request_.attention.place, "flash_attn", "flash attention of rows that bring positions");
  }

  const ForeignInput& foreign_;
  const ModelSpec& base_;
  Request& request_;
  Diagnostics& faults_;
  bool adapted_ = false;
};

}  // namespace

void complete_llama_factory_v1(const ForeignInput& foreign, const ModelSpec& base, Request& request,
                               Diagnostics& faults) {
  LlamaFactoryV1(foreign, base, request, faults).complete();
}

}  // namespace dsplan
