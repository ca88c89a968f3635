#include "planner/lower/runtimes/ddp_reducer.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

namespace dsplan {
namespace {

// The first bucket closes at 1 MiB, the others at 25 MiB.
constexpr Bytes kFirstBucket{1LL << 20};
constexpr Bytes kBucketCap{25LL << 20};
constexpr Bytes kBroadcast{250LL << 20};  // broadcast_bucket_size
constexpr std::size_t kInFlight = 2;

// compute_bucket_assignment_by_size: closed once they reach the size, in the order of their first tensors.
std::vector<std::vector<BufferId>> assigned_by_size(const Emitter& emitter, std::span<const BufferId> tensors) {
  struct Open {
    std::size_t first = 0;
    Bytes bytes;
    std::vector<BufferId> tensors;
  };
  std::map<DType, Open> open;
  std::map<std::size_t, std::vector<BufferId>> closed;
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    Open& bucket = open[emitter.dtype(tensors[index])];
    if (bucket.tensors.empty()) bucket.first = index;
    bucket.tensors.push_back(tensors[index]);
    bucket.bytes += emitter.size(tensors[index]);
    if (bucket.bytes < kBroadcast) continue;
    closed[bucket.first] = std::move(bucket.tensors);
    bucket = {};
  }
  for (auto& [type, bucket] : open) {
    if (!bucket.tensors.empty()) closed[bucket.first] = std::move(bucket.tensors);
  }
  std::vector<std::vector<BufferId>> buckets;
  for (auto& [first, bucket] : closed) buckets.push_back(std::move(bucket));
  return buckets;
}

}  // namespace

void broadcast_coalesced(Eager& eager, std::span<const BufferId> tensors, std::int64_t ranks, Group group) {
  struct Sent {
    std::vector<BufferId> tensors;
    Variable flat;
  };
  std::deque<Sent> in_flight;
  const auto finish = [&] {
    if (in_flight.front().flat) eager.split(in_flight.front().tensors, in_flight.front().flat, "copy out of flat copy");
    in_flight.pop_front();
  };
  for (std::vector<BufferId>& bucket : assigned_by_size(eager.emitter(), tensors)) {
    Variable flat;
    if (bucket.size() > 1) {
      Bytes bytes;
      for (const BufferId tensor : bucket) bytes += eager.emitter().size(tensor);
      flat = eager.empty(bytes, eager.emitter().dtype(bucket.front()),
                         {Role::RuntimeBuffers, "flat copy to broadcast",
                          "torch/csrc/distributed/c10d/comm.cpp, broadcast_coalesced"});
      eager.concatenate(flat, bucket, "copy into flat copy");
    }
    eager.broadcast(flat ? flat : Part(bucket.front()), 0, ranks, group);
    in_flight.push_back({std::move(bucket), std::move(flat)});
    if (in_flight.size() >= kInFlight) finish();
  }
  while (!in_flight.empty()) finish();
}

void DdpReducer::add(Bucket& bucket, ParameterId parameter) const {
  bucket.parameters.push_back(parameter);
  bucket.bytes += bytes_[at(parameter)];
}

void DdpReducer::open(Bucket bucket) {
  bucket.buffer = eager_.empty(
      bucket.bytes, bucket.dtype,
      {Role::RuntimeBuffers, "gradient bucket", "torch/csrc/distributed/c10d/reducer.cpp, initialize_buckets"});
  Bytes offset;
  for (const ParameterId parameter : bucket.parameters) {
    const Part own(bucket.buffer.id(), offset, bytes_[at(parameter)]);
    if (views_.is_view(parameter)) eager_.copy(own, views_.part(parameter), "copy gradient to new bucket");
    views_.place(parameter, buckets_.size(), own);
    offset += own.bytes;
  }
  buckets_.push_back(std::move(bucket));
}

// A bucket closes when it has reached its limit, and may exceed it by one parameter. Given one limit, all have it.
Bytes DdpReducer::cap(std::size_t bucket) const {
  if (facts_.given.bucket_cap_mb > 0) return Bytes(checked_mul(facts_.given.bucket_cap_mb, std::int64_t{1} << 20));
  return bucket == 0 ? kFirstBucket : kBucketCap;
}

// compute_bucket_assignment_by_size: each dtype has buckets and limits of its own. What is left at the end comes from
// an unordered_map, in which the dtype that was met last lies first.
std::vector<DdpReducer::Bucket> DdpReducer::assigned_by_size(const std::vector<ParameterId>& parameters,
                                                             Limits limits) const {
  struct Open {
    Bucket bucket;
    std::size_t closed = 0;
  };
  std::vector<Bucket> buckets;
  std::map<DType, Open> open;
  std::vector<DType> met;
  for (const ParameterId parameter : parameters) {
    const DType dtype = dtypes_[at(parameter)];
    if (open.find(dtype) == open.end()) met.push_back(dtype);
    Open& own = open[dtype];
    own.bucket.dtype = dtype;
    add(own.bucket, parameter);
    if (limits == Limits::None || own.bucket.bytes < cap(own.closed)) continue;
    buckets.push_back(std::exchange(own.bucket, {}));
    ++own.closed;
  }
  for (auto dtype = met.rbegin(); dtype != met.rend(); ++dtype) {
    Bucket& left = open[*dtype].bucket;
    if (!left.parameters.empty()) buckets.push_back(std::move(left));
  }
  return buckets;
}

void DdpReducer::initialize_buckets() {
  std::vector<ParameterId> all;
  for (const NamedParameter& p : trained_) all.push_back(p.id);
  if (all.empty()) return;
  delays_ = facts_.given.static_graph;
  const bool looks = facts_.given.find_unused_parameters && !facts_.given.static_graph;
  std::vector<Bucket> buckets = assigned_by_size(all, looks ? Limits::Said : Limits::None);
  std::sort(buckets.begin(), buckets.end(),
            [](const Bucket& a, const Bucket& b) { return a.parameters.front() > b.parameters.front(); });
  for (Bucket& bucket : buckets) open(std::move(bucket));
  const Bytes bytes = storage(Elements(static_cast<std::int64_t>(all.size())), DType::Int32);
  const auto used = [&] {
    return eager_.empty(bytes, DType::Int32,
                        {Role::RuntimeBuffers, "which parameters were used",
                         "torch/csrc/distributed/c10d/reducer.cpp, initialize_local_used_map"});
  };
  if (facts_.given.find_unused_parameters) used_ = used();
  if (!facts_.given.static_graph) return;
  Variable own = used();
  if (used_) {  // A static graph's takes its place before anybody has read it.
    used_.mark_scratch();
    eager_.work().write(used_).run(Body::Nothing, "leave map of used parameters");
    used_.reset(Reason::RuntimeBucket);
  }
  used_ = std::move(own);
}

// The memory of the buckets before stays as long as a gradient is a view of it.
void DdpReducer::rebuild_buckets() {
  const bool looks = facts_.given.find_unused_parameters && !facts_.given.static_graph;
  if (rebuilt_ || ready_order_.empty() || looks) return;
  unstash();  // sync_bucket_indices broadcasts.
  const bool viewed = views_.is_view(ready_order_.front());
  std::vector<Bucket> before = std::exchange(buckets_, {});
  const auto let_go_of_them = [&before] {
    for (Bucket& bucket : before) bucket.buffer.reset(Reason::RuntimeBucket);
    before.clear();
  };
  if (!viewed) let_go_of_them();
  for (Bucket& bucket : assigned_by_size(ready_order_, Limits::Said)) open(std::move(bucket));
  let_go_of_them();
  rebuilt_ = true;
}

void DdpReducer::prepare_for_backward(bool sync) {
  sync_ = sync;
  if (!sent_.empty()) sent_before_ = std::move(sent_);
  next_bucket_ = 0;
  for (Bucket& bucket : buckets_) bucket.pending = bucket.parameters.size();
}

void DdpReducer::mark_variable_ready(ParameterId parameter) {
  if (!sync_ || delays_) return;
  if (!rebuilt_) ready_order_.push_back(parameter);
  if (facts_.given.gradient_as_bucket_view) put_in_view(parameter);
  --buckets_[views_.bucket(parameter)].pending;
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0) {
    mark_bucket_ready(buckets_[next_bucket_++]);
    if (next_bucket_ == buckets_.size() && used_ && !facts_.given.static_graph) all_reduce_used();
  }
}

// delay_all_reduce: parameter by parameter, then bucket by bucket.
void DdpReducer::end_backward() {
  if (!sync_ || !std::exchange(delays_, false)) return;
  all_reduce_used();
  if (facts_.given.gradient_as_bucket_view) {
    for (const NamedParameter& p : trained_) put_in_view(p.id);
  }
  for (const Bucket& bucket : buckets_) mark_bucket_ready(bucket);
}

// mark_variable_ready_dense: what has no view yet is copied, and the gradient itself goes.
void DdpReducer::put_in_view(ParameterId parameter) {
  if (views_.is_view(parameter)) return;
  views_.make_view(parameter);
  Variable gradient = gradients_.take(parameter);
  eager_.copy(views_.part(parameter), gradient, "copy gradient to bucket");
  gradient.reset(Reason::GradientHeld);
}

// The host counts, and what it counted is summed.
void DdpReducer::all_reduce_used() {
  eager_.zero(used_, "copy which parameters were used");
  eager_.work().read(used_).write(used_).control(Collective::AllReduce, DType::Int32, eager_.bytes_of(used_));
}

void DdpReducer::mark_bucket_ready(const Bucket& bucket) {
  if (facts_.given.gradient_as_bucket_view) return run_comm_hook(bucket);
  std::vector<BufferId> gradients;
  for (const ParameterId parameter : bucket.parameters) gradients.push_back(gradients_[parameter]);
  eager_.concatenate(bucket.buffer, gradients, "copy gradients to bucket");
  run_comm_hook(bucket);
  eager_.split(gradients, bucket.buffer, "copy gradients back");
}

// torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py, _compress_hook: decompressed into the bucket itself.
void DdpReducer::run_comm_hook(const Bucket& bucket) {
  const DType sent = facts_.given.comm_hook.value_or(bucket.dtype);
  if (sent == bucket.dtype) return eager_.all_reduce(bucket.buffer, facts_.ranks);
  Variable compressed =
      eager_.cast(bucket.buffer, sent, {Role::Temporaries, "compressed bucket", "default_hooks.py, _compress_hook"},
                  "compress bucket");
  sent_before_.reset(Reason::RuntimeBucket);
  eager_.all_reduce(compressed, facts_.ranks);
  eager_.copy(bucket.buffer, compressed, "decompress bucket");
  if (facts_.torch >= Version{2, 8, 0}) sent_.append(std::move(compressed));  // Before, it is recorded on a stream.
}

void DdpReducer::unstash() {
  sent_before_.reset(Reason::RuntimeBucket);
  sent_.reset(Reason::RuntimeBucket);
}

}  // namespace dsplan
