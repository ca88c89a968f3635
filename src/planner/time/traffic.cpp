#include "planner/time/traffic.h"

#include <algorithm>

#include "planner/zero/zero_facts.h"

namespace dsplan {
namespace {

// torch.nn.parallel.DistributedDataParallel's bucket_cap_mb.
constexpr Bytes kDdpBucket{25LL << 20};
// A step's own collectives of a few bytes (overflow, norm), each with a host that waits for it.
constexpr double kControlCalls = 2;
constexpr Bytes kControlBytes{4};
// Seconds between two kernels of an operation that runs tensor by tensor.
constexpr double kNextTensor = 2e-6;

// What a rank's parameters are, as the formulas need it.
struct Totals {
  Elements trained;          // Each once.
  Elements gathered;         // What modules ask for in one pass; those that persist are not among them.
  std::int64_t modules = 0;  // That ask.
  Elements persistent;       // What stays whole, each once.
  Elements largest;          // Of one part.
  Elements around;           // Of what is in no layer.
  std::int64_t tensors = 0;
};

void take(const PartParameters& part, const Zero& zero, bool region, Totals& totals) {
  Elements own;
  for (const SizeCount& size : part.sizes) {
    const Elements all = size.elements * size.count;
    const bool persists = zero.stage == 3 && may_persist(size.elements, zero.param_persistence_threshold);
    if (!size.again) {
      if (size.trained) totals.trained += all;
      if (persists) totals.persistent += all;
    }
    if (!persists) own += all;
  }
  totals.gathered += own;
  if (region) totals.largest = std::max(totals.largest, own);
  if (!region) totals.around += own;
  totals.modules += part.modules;
  totals.tensors += part.tensors;
}

Totals totals_of(const GraphTimes& times, const Zero& zero) {
  Totals totals;
  take(times.before_parameters, zero, false, totals);
  for (const PartParameters& part : times.region_parameters) take(part, zero, true, totals);
  take(times.after_parameters, zero, false, totals);
  return totals;
}

// State tensors that the optimizer keeps beside the weights, in tenths of them; and passes over everything that it
// makes, in halves.
struct OptimizerShape {
  std::int64_t states10;
  std::int64_t passes2;
};

OptimizerShape shape_of(const Optimizer& optimizer) {
  // Separate kernels read and write their operands each time: about a dozen for Adam.
  const std::int64_t apart = optimizer.implementation == Implementation::Fused ? 2 : 5;
  switch (optimizer.kind) {
    case OptimizerKind::Adam:
    case OptimizerKind::AdamW: return {20, apart};
    case OptimizerKind::Sgd: return {optimizer.momentum > 0 ? 10 : 0, apart};
    case OptimizerKind::Lion:
    case OptimizerKind::Adagrad: return {10, apart};
    case OptimizerKind::RmsProp: return {optimizer.momentum > 0 ? 20 : 10, apart};
    case OptimizerKind::Adam8bit: return {5, 2};
    case OptimizerKind::AdamW32bit: return {20, apart};
    case OptimizerKind::Lion8bit: return {3, 2};
    case OptimizerKind::AdEmaMix: return {30, apart};
    case OptimizerKind::AdEmaMix8bit: return {8, 2};
    case OptimizerKind::AoAdamW8bit:
    case OptimizerKind::AoAdamWFp8: return {5, 3};
    case OptimizerKind::AoAdamW4bit: return {3, 3};
    case OptimizerKind::Adafactor: return {1, 8};
    case OptimizerKind::Muon: return {10, 8};
  }
  return {20, apart};
}

// What a partial offload leaves on the device, sub-groups taken as equal.
Elements on_device(const Training& t, Elements own) {
  if (t.zero.offload_optimizer.ratio == 1) return Elements(0);
  const std::int64_t size = std::max(t.zero.sub_group_size, Elements(1)).value();
  const std::int64_t groups = std::max<std::int64_t>(div_ceil(own, size).value(), 1);
  const GroupRange device = groups_on_device(t, static_cast<std::size_t>(groups));
  return div_floor(own * static_cast<std::int64_t>(device.end - device.begin), groups);
}

// Sizes are whole bytes; they become seconds at the rates alone.
class Traffic {
 public:
  Traffic(const Job& job, const GraphTimes& times, const Rates& rates)
      : t_(job.training),
        zero_(t_.zero),
        rates_(rates),
        totals_(totals_of(times, zero_)),
        ranks_(job.parallelism.dp),
        micro_(static_cast<double>(t_.grad_accum)),
        deepspeed_(t_.runtime == Runtime::DeepSpeed) {}

  DataTraffic run() {
    if (totals_.trained == Elements(0) && zero_.stage < 3) return out_;
    if (is_fsdp(t_.runtime)) {
      fully_sharded();
    } else if (!deepspeed_) {
      data_parallel();
    } else if (zero_.stage == 0) {
      out_.step += calls(Collective::AllReduce, sent(totals_.trained), sent(bucket()));
      out_.accumulate = added(weights(totals_.trained));
    } else if (zero_.stage < 3) {
      sharded_gradients();
    } else {
      sharded_parameters();
    }
    optimizer();
    return out_;
  }

 private:
  // Of parameters or gradients in the model's dtype, and of gradients that travel.
  [[nodiscard]] Bytes weights(Elements elements) const { return storage(elements, t_.dtype); }
  [[nodiscard]] Bytes sent(Elements elements) const { return storage(elements, t_.communication_dtype); }
  // Of a rank, where all ranks share something alike.
  [[nodiscard]] Bytes share(Bytes bytes) const { return div_floor(bytes, ranks_); }
  [[nodiscard]] Elements bucket() const { return std::max(Elements(1), zero_.reduce_bucket_size); }
  [[nodiscard]] double one(Collective collective, Bytes payload, Group group = Group::DataParallel) const {
    return rates_.collective(collective, group, payload);
  }
  // A payload in calls of at most `most` bytes.
  [[nodiscard]] double calls(Collective collective, Bytes payload, Bytes most,
                             Group group = Group::DataParallel) const {
    if (ranks_ == 1 || payload <= Bytes(0)) return 0;
    const std::int64_t count = div_ceil(payload, std::max(most, Bytes(1)).value()).value();
    return static_cast<double>(count) * one(collective, div_floor(payload, count), group);
  }
  // Gradients of the micro-batches after the first: two tensors read and one written.
  [[nodiscard]] double added(Bytes bytes) const {
    const double times = micro_ - 1;
    return times <= 0 ? 0 : times * (rates_.memory(bytes * 3) + static_cast<double>(totals_.tensors) * kNextTensor);
  }

  void data_parallel() {
    const Bytes payload = weights(totals_.trained);
    out_.accumulate = added(payload);
    if (ranks_ == 1) return;
    const DType type = t_.ddp.comm_hook.value_or(t_.dtype);
    const Bytes sent = storage(totals_.trained, type);
    const Bytes most = storage(div_floor(Elements(kDdpBucket.value()), bytes_per_element(t_.dtype)), type);
    out_.beside = true;
    out_.backward = calls(Collective::AllReduce, sent, most);
    out_.backward_last = one(Collective::AllReduce, std::min(sent, most));
    // Into the buckets and back, and where a hook casts, what is cast as well.
    out_.accumulate += rates_.memory(payload * 2) * (t_.ddp.gradient_as_bucket_view ? 1 : 2);
    if (type != t_.dtype) out_.accumulate += rates_.memory(payload + sent) * 2;
    if (!t_.ddp.zero_redundancy || totals_.tensors == 0) return;
    const auto tensors = static_cast<std::int64_t>(totals_.tensors);
    out_.step += static_cast<double>(tensors) * one(Collective::Broadcast, div_floor(payload, tensors));
  }

  // fully_shard: a layer at a time before it runs, in backward again; what is in no layer first and last, beside
  // nothing. Replicas add up what a rank keeps.
  void fully_sharded() {
    const Fsdp& fsdp = t_.fsdp;
    const bool replicates = fsdp.replicate > 1;
    const Group mesh = replicates ? Group::DataParallelInside : Group::DataParallel;
    const Group again = fsdp.reshard_after_forward > 1 ? Group::DataParallelInside : mesh;
    const bool whole = fsdp.wrap.starts_with("root") || totals_.largest == Elements(0);
    const Elements layers = whole ? Elements(0) : totals_.gathered - totals_.around;
    const Elements around = whole ? totals_.gathered : totals_.around;
    const Elements layer = std::max(totals_.largest, Elements(1));
    const double first = one(Collective::AllGather, weights(around), mesh);
    out_.beside = true;
    out_.forward_first = micro_ * first;
    out_.forward = micro_ * (first + calls(Collective::AllGather, weights(layers), weights(layer), mesh));
    const bool again_around = fsdp.reshard_root || fsdp.reshard_tail;
    double gathers = again_around ? first : 0;
    if (fsdp.reshard_after_forward > 0) {
      gathers += calls(Collective::AllGather, weights(layers), weights(layer), again);
    }
    // The last layer is there still where it stays whole.
    if (!fsdp.reshard_last && fsdp.reshard_after_forward > 0)
      gathers -= one(Collective::AllGather, weights(layer), again);
    const std::int64_t ranks = ranks_ / fsdp.replicate;
    const auto reduced = [&](Elements group) {
      if (group == Elements(0)) return 0.0;
      const double scattered = one(Collective::ReduceScatter, sent(group), mesh);
      return replicates ? scattered + one(Collective::AllReduce, sent(div_ceil(group, ranks)), Group::Replicas)
                        : scattered;
    };
    const double last = reduced(around);
    const double rounds = fsdp.sync_every ? micro_ : 1;
    const std::int64_t count = div_ceil(Bytes(layers.value()), layer.value()).value();
    out_.backward = micro_ * gathers + rounds * (last + static_cast<double>(count) * reduced(layer));
    out_.backward_last = rounds * last + (again_around ? micro_ * first : 0);
    if (fsdp.cpu_offload) {  // Of a rank, as it is kept.
      const auto copied = [&](Elements all) {
        return rates_.host_copy(storage(div_floor(all, ranks), t_.master_dtype), true);
      };
      const double fetched = micro_ * copied(totals_.gathered);
      out_.host_beside = true;
      out_.forward_host = fetched;
      out_.backward_host = rounds * copied(totals_.trained);
      if (fsdp.reshard_after_forward > 0) out_.backward_host += fetched;
    }
    // Shards are copied into what is gathered and out of it, gradients into what is reduced.
    out_.accumulate = micro_ * rates_.memory(weights(totals_.gathered) * 4) + added(weights(totals_.trained));
  }

  // ZeRO-1 and 2: buckets of all gradients, reduced in full; a gather of what each rank has updated.
  void sharded_gradients() {
    const Bytes payload = sent(totals_.trained);
    const Bytes most = sent(bucket());
    const Collective how = reduces_to_owners(t_) ? Collective::Reduce : Collective::AllReduce;
    const auto rounds = static_cast<double>(reductions_per_step(t_));
    const Bytes all = weights(totals_.trained);
    out_.beside = zero_.overlap_comm;
    out_.backward = rounds * calls(how, payload, most);
    out_.backward_last = rounds * (ranks_ > 1 ? one(how, std::min(payload, most)) : 0);
    out_.step += calls(Collective::AllGather, all, weights(kGatherBucket));
    out_.accumulate = micro_ * rates_.memory(all * 2) + added(share(all));
    if (!offloads_optimizer(t_)) return;
    out_.backward_host = rounds * copy(share(all));
    out_.host_beside = zero_.overlap_comm;
  }

  // ZeRO-3: every module's parameters before it runs, in forward and again in backward; each gradient to its owner.
  void sharded_parameters() {
    const Elements window = std::min(zero_.max_live_parameters, zero_.max_reuse_distance);
    // What forward used last is still there when backward begins.
    const Elements kept = std::min(totals_.gathered, div_floor(window, 2));
    const Elements ahead = zero_.prefetch_bucket_size;
    const Elements module = div_ceil(totals_.gathered, std::max<std::int64_t>(totals_.modules, 1));
    // Quantized weights travel as bytes.
    const DType type = zero_.quantized_weights ? DType::Int8 : t_.dtype;
    const Bytes most = storage(std::max({module, ahead, Elements(1)}), type);
    const Bytes all = storage(totals_.gathered, type);
    // A recomputed layer's parameters stay for its backward, where the window holds a layer.
    const bool twice = !t_.checkpoint.groups.empty() && window < totals_.largest;
    // Secondary shards (hpZ) bring backward's parameters from the ranks nearby.
    const Group near = zero_.hpz_partition_size > 1 ? Group::DataParallelInside : Group::DataParallel;
    const double first = calls(Collective::AllGather, all, most);
    const double again = calls(Collective::AllGather, all - storage(kept, type), most, near) +
                         (twice ? calls(Collective::AllGather, all, most, near) : 0);
    const double scattered = calls(Collective::ReduceScatter, sent(totals_.trained), sent(bucket()));
    const bool prefetches = zero_.overlap_comm && ahead > Elements(0);
    out_.beside = zero_.overlap_comm;
    out_.forward = micro_ * first;
    out_.forward_first = prefetches ? micro_ * one(Collective::AllGather, std::min(all, most)) : out_.forward;
    const double last = ranks_ > 1 ? one(Collective::ReduceScatter, sent(std::min(totals_.trained, bucket()))) : 0;
    out_.backward = micro_ * (again + scattered);
    out_.backward_last = micro_ * (prefetches ? last : last + again);
    const Bytes whole = weights(totals_.persistent);
    out_.step += calls(Collective::AllGather, whole, whole);
    const Bytes trained = weights(totals_.trained);
    out_.accumulate = micro_ * rates_.memory(trained * 2) + added(share(trained));
    sharded_on_host(twice);
  }

  void sharded_on_host(bool twice) {
    out_.host_beside = zero_.overlap_comm;
    if (offloads_optimizer(t_)) out_.backward_host += micro_ * copy(share(weights(totals_.trained)));
    if (zero_.offload_param.device == OffloadDevice::None) return;
    const Bytes fetch = share(weights(totals_.gathered));
    const bool files = zero_.offload_param.device == OffloadDevice::Nvme;
    const double fetched =
        rates_.host_copy(fetch, zero_.offload_param.pin_memory) + (files ? rates_.nvme(fetch, false) : 0);
    out_.forward_host += micro_ * fetched;
    out_.backward_host += micro_ * fetched * (twice ? 2 : 1);
  }

  [[nodiscard]] double copy(Bytes bytes) const { return rates_.host_copy(bytes, zero_.offload_optimizer.pin_memory); }

  void optimizer() {
    const bool sharded = deepspeed_ && zero_.stage > 0;
    const bool rows = is_fsdp(t_.runtime);
    const std::int64_t parts = rows ? ranks_ / t_.fsdp.replicate : ranks_;
    const bool shares = t_.runtime == Runtime::PyTorch && t_.ddp.zero_redundancy;
    const Elements own = sharded || rows || shares ? div_floor(totals_.trained, parts) : totals_.trained;
    if (sharded && offloads_optimizer(t_)) {
      const Elements device = on_device(t_, own);
      if (device > Elements(0)) device_optimizer(device);
      return host_optimizer(own - device);
    }
    if (rows && t_.fsdp.cpu_offload) {
      out_.step_host = rates_.host_optimizer(own);
      return;
    }
    device_optimizer(own);
    if (deepspeed_ && ranks_ > 1) out_.step += kControlCalls * one(Collective::AllReduce, kControlBytes);
  }

  void device_optimizer(Elements own) {
    const OptimizerShape shape = shape_of(t_.optimizer);
    const bool masters = deepspeed_ && t_.dtype != DType::Float32;
    const bool kept = masters || is_fsdp(t_.runtime);
    const Bytes master = storage(own, kept ? t_.master_dtype : t_.dtype);
    // Weights and states are read and written, the gradient read: 3 + 2 `states` of a master, `passes` times.
    Bytes moved = div_floor(master * (shape.passes2 * (30 + 2 * shape.states10)), 20);
    // The gradient comes in the working type and is made a master's; the weights go back.
    if (masters) moved += (weights(own) + master) * 2;
    if (t_.gradient_clipping > 0 || deepspeed_) moved += master * 2;
    out_.step_device = rates_.memory(moved);
  }

  void host_optimizer(Elements own) {
    out_.step_host = rates_.host_optimizer(own);
    // The new weights go to the device, in their own type.
    out_.step_host += copy(weights(own));
    if (zero_.offload_optimizer.device != OffloadDevice::Nvme) return;
    // Masters, both moments and gradients, read and written.
    const Bytes files = storage(own, DType::Float32) * 4;
    const double read = rates_.nvme(files, false);
    const double written = rates_.nvme(files, true);
    out_.step_host += zero_.offload_optimizer.pipeline_read ? std::max(0.0, read - out_.step_host) : read;
    out_.step_host += zero_.offload_optimizer.pipeline_write ? written / 2 : written;
  }

  const Training& t_;
  const Zero& zero_;
  const Rates& rates_;
  Totals totals_;
  std::int64_t ranks_ = 1;
  double micro_ = 1;
  bool deepspeed_ = false;
  DataTraffic out_;
};

}  // namespace

DataTraffic data_traffic(const Job& job, const GraphTimes& times, const Rates& rates) {
  return Traffic(job, times, rates).run();
}

}  // namespace dsplan
