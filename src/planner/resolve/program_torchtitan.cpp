#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "core/format.h"
#include "planner/resolve/fsdp_plugin.h"
#include "planner/resolve/program_parts.h"

namespace dsplan {
namespace {

class Torchtitan {
 public:
  Torchtitan(const ForeignInput& foreign, const ModelSpec& base, Request& request, Diagnostics& faults)
      : foreign_(foreign), base_(base), request_(request), faults_(faults) {}

  void complete() {
    defaults();
    mesh();
    precision();
    accumulation();
    checkpoints();
    if (shards_together_ && !said_) {
      request_.notices.push_back(
          {Notice::Kind::Warning,
           foreign_.program.place,
           "groups are those of torchtitan since July 2025 (0.2); before, layers and the model alone had one, and the "
           "last layer did not reshard (--torchtitan-version 0.1.0)",
           {}});
    }
    if (*request_.model_code == "transformers") {
      request_.notices.push_back(
          {Notice::Kind::Warning,
           foreign_.program.place,
           "transformers' model code in the place of torchtitan's own: parameters, gradients and "
           "optimizer states are torchtitan's, activations and loss are not",
           {}});
    }
  }

 private:
  template <class T>
  void usually(Setting<T>& setting, T value) const {
    if (!setting.mentioned()) setting = {std::move(value), option("torchtitan's default")};
  }

  void defaults() {
    usually<std::int64_t>(request_.micro_batch, 8);
    usually<std::int64_t>(request_.seq, 2048);
    usually(request_.optimizer, std::string("AdamW"));
    if (*request_.optimizer == "AdamW" || *request_.optimizer == "Adam") {
      request_.optimizer.value = *request_.optimizer == "Adam" ? "adam" : "adamw";
    }
    usually(request_.implementation, std::string("fused"));
    usually(request_.weight_decay, 0.1);
    usually(request_.max_grad_norm, 1.0);
    usually(request_.torch_dtype, std::string("float32"));
    older_ = version() < Version{0, 2, 0};
    usually(request_.model_code, std::string("torchtitan"));
    usually(request_.loop, std::string(*request_.model_code == "torchtitan" ? "torchtitan" : "minimal"));
  }

  // No key of the file says it: --torchtitan-version 0.1.0, or --set torchtitan=0.1.0.
  Version version() {
    constexpr std::string_view kSays = "torchtitan=";
    Setting<std::string>& wished = request_.torchtitan_version;
    if (request_.set.given()) {
      std::erase_if(*request_.set.value, [&](const std::string& pair) {
        if (!pair.starts_with(kSays)) return false;
        wished = {pair.substr(kSays.size()), request_.set.place};
        return true;
      });
    }
    said_ = wished.given();
    return Version::parse(wished.value_or(kTorchtitanVersion)).value_or(kWitnessTorchtitan);
  }

  // ParallelDims: the degrees' product is the number of ranks.
  void mesh() {
    replicas_ = foreign_.replicas.value_or(1);
    shards_ = foreign_.shards.value_or(-1);
    const Place& place = foreign_.shards.given() ? foreign_.shards.place : foreign_.program.place;
    if (shards_ == 0) return faults_.add(place.says("data_parallel_shard_degree is a number of ranks, or -1"));
    if (!request_.gpus.given() && shards_ < 0 && !request_.cluster.given()) {
      return faults_.add(place.says("data_parallel_shard_degree takes all ranks, and nothing says how many there are",
                                    "--gpus 8, or a launch line"));
    }
    if (!request_.gpus.given() && shards_ > 0) request_.gpus = {checked_mul(shards_, replicas_), place};
    if (request_.gpus.given()) {
      const std::int64_t gpus = *request_.gpus;
      if (shards_ < 0 && gpus % replicas_ == 0) shards_ = gpus / replicas_;
      if (shards_ < 0 || checked_mul(shards_, replicas_) != gpus) {
        return faults_.add(place.says(formatted("{} replicas of {} shards are not {} ranks", replicas_,
                                                shards_ < 0 ? "any number of" : std::to_string(shards_), gpus)));
      }
    }
    shards_together_ = shards_ != 1;
    const std::string_view runtime = !shards_together_ ? "pytorch" : replicas_ > 1 ? "hsdp" : "fsdp2";
    usually(request_.runtime, std::string(runtime));
    if (!shards_together_) return;
    if (shards_ > 0) request_.fsdp.shard = {std::to_string(shards_), place};
    if (replicas_ > 1) request_.fsdp.replicate = {std::to_string(replicas_), foreign_.replicas.place};
  }

  // MixedPrecisionPolicy where fully_shard runs, else autocast.
  void precision() {
    FsdpInput& fsdp = request_.fsdp;
    usually(fsdp.param_dtype, std::string("bfloat16"));
    fsdp.param_dtype.value = short_name(*fsdp.param_dtype);
    if (!shards_together_) {
      if (!request_.autocast.given() && *fsdp.param_dtype == "bf16") {
        request_.autocast = {"bf16", fsdp.param_dtype.place};
      }
      fsdp = {};
      usually<std::int64_t>(request_.ddp.bucket_cap_mb, 100);  // apply_ddp
      usually(request_.ddp.broadcast_buffers, false);          // replicate hands it parameters alone.
      return;
    }
    usually(fsdp.reduce_dtype, std::string("fp32"));
    usually(fsdp.wrap, std::string(older_ ? "layers" : "ends"));
    usually(fsdp.gradient_sync, std::string("every"));
    usually(fsdp.reshard_after_forward, std::string("default"));
    if (foreign_.offload.value_or(false)) fsdp.cpu_offload = {"true", foreign_.offload.place};
    Setting<std::string>& reshards = fsdp.reshard_after_forward;
    // apply_fsdp (models/llama3/infra/parallelize.py): norm and head reshard under "always" alone; "default" is the
    // others' true, since pipelines are refused. Before 0.2 the model's group always did, the last layer's by default
    // not.
    if (older_) {
      usually(fsdp.reshard_root, std::string("true"));
      if (*reshards == "default") usually(fsdp.reshard_last, std::string("false"));
    } else if (*reshards == "always" && !fsdp.reshard_tail.given()) {
      fsdp.reshard_tail = {"true", reshards.place};
    }
    reshards.value = *reshards == "default" || *reshards == "always" ? "true"
                     : *reshards == "never"                          ? "false"
                                                                     : *reshards;
  }
  void accumulation() {
    if (!foreign_.all_rows.given() || *foreign_.all_rows < 0 || request_.grad_accum.given()) return;
    const Place& place = foreign_.all_rows.place;
    if (!request_.gpus.given()) {
      return faults_.add(place.says("global_batch_size, and nothing says how many ranks there are", "--gpus 8"));
    }
    const std::int64_t rows = checked_mul(*request_.micro_batch, *request_.gpus);
    if (*foreign_.all_rows == 0 || *foreign_.all_rows % rows != 0) {
      return faults_.add(place.says(formatted("global_batch_size {} is no multiple of {} rows in {} ranks",
                                              *foreign_.all_rows, *request_.micro_batch, *request_.gpus)));
    }
    request_.grad_accum = {*foreign_.all_rows / rows, place};
    if (!shards_together_ && *request_.gpus > 1 && *request_.grad_accum > 1) {
      request_.not_modelled.push_back({place, When::Always, "training.global_batch_size",
                                       "accumulation under torchtitan's DDP, which reduces each micro-batch"});
    }
  }

  void checkpoints() {
    usually(request_.checkpoint, std::string("selective"));
    if (*request_.checkpoint != "none") usually(request_.checkpoint_impl, std::string("non_reentrant"));
    if (*request_.checkpoint == "memory_budget") {
      request_.not_modelled.push_back({request_.checkpoint.place, When::Always, "activation_checkpoint.mode",
                                       "a memory budget, which needs torch.compile,"});
      request_.checkpoint.value = "none";
    }
    if (*request_.checkpoint != "selective") return;
    const Place place = foreign_.every_nth.given() ? foreign_.every_nth.place : request_.checkpoint.place;
    const std::string every = foreign_.every_nth.value_or("2");
    std::int64_t step = 0;
    const auto [end, error] = std::from_chars(every.data(), every.data() + every.size(), step);
    request_.checkpoint = {"none", place};
    if (every == "op") {
      request_.checkpoint.value = "keep:linear/2+scaled_dot_product_attention";
    } else if (error != std::errc() || end != every.data() + every.size() || step < 0) {
      faults_.add(place.says(formatted("selective_ac_option \"{}\" is neither a number of layers nor \"op\"", every)));
    } else {
      request_.checkpoint.value = every_layer(step);
    }
  }

  // The n-th layer, the 2 n-th, ...; 0 is each of them.
  [[nodiscard]] std::string every_layer(std::int64_t step) const {
    if (step <= 1) return "full";
    std::vector<std::string> layers;
    for (std::int64_t layer = step - 1; layer < base_.dims.layers; layer += step)
      layers.push_back(std::to_string(layer));
    return layers.empty() ? "none" : formatted("groups:{}", joined(layers, ","));
  }

  const ForeignInput& foreign_;
  const ModelSpec& base_;
  Request& request_;
  Diagnostics& faults_;
  std::int64_t replicas_ = 1;
  std::int64_t shards_ = 1;
  bool shards_together_ = false;
  bool older_ = false;  // Than 0.2.
  bool said_ = false;   // Its version.
};

}  // namespace

void complete_torchtitan(const ForeignInput& foreign, const ModelSpec& base, Request& request, Diagnostics& faults) {
  Torchtitan(foreign, base, request, faults).complete();
}

}  // namespace dsplan
