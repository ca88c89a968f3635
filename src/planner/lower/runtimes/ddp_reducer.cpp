#include "planner/lower/runtimes/ddp_reducer.h"

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

void broadcast_coalesced(Eager& eager, std::span<const BufferId> tensors, std::int64_t ranks) {
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
    eager.broadcast(flat ? flat : Part(bucket.front()), 0, ranks);
    in_flight.push_back({std::move(bucket), std::move(flat)});
    if (in_flight.size() >= kInFlight) finish();
  }
  while (!in_flight.empty()) finish();
}

void DdpReducer::add(Bucket& bucket, ParameterId parameter) const {
  bucket.parameters.push_back(parameter);
  bucket.bytes += storage(Elements(elements_[at(parameter)]), dtype_);
}

void DdpReducer::open(Bucket bucket) {
  bucket.buffer = eager_.empty(
      bucket.bytes, dtype_,
      {Role::RuntimeBuffers, "gradient bucket", "torch/csrc/distributed/c10d/reducer.cpp, initialize_buckets"});
  for (const ParameterId parameter : bucket.parameters) bucket_of_[at(parameter)] = buckets_.size();
  buckets_.push_back(std::move(bucket));
}

// A bucket closes when it has reached its limit, and may exceed it by one parameter. Given one limit, all have it.
Bytes DdpReducer::cap(std::size_t bucket) const {
  if (facts_.given.bucket_cap_mb > 0) return Bytes(checked_mul(facts_.given.bucket_cap_mb, std::int64_t{1} << 20));
  return bucket == 0 ? kFirstBucket : kBucketCap;
}

// compute_bucket_assignment_by_size, of one dtype.
std::vector<DdpReducer::Bucket> DdpReducer::assigned_by_size(const std::vector<ParameterId>& parameters) const {
  std::vector<Bucket> buckets;
  Bucket bucket;
  for (const ParameterId parameter : parameters) {
    add(bucket, parameter);
    if (bucket.bytes >= cap(buckets.size())) buckets.push_back(std::exchange(bucket, {}));
  }
  if (!bucket.parameters.empty()) buckets.push_back(std::move(bucket));
  return buckets;
}

void DdpReducer::initialize_buckets() {
  std::vector<ParameterId> all;
  for (const NamedParameter& p : trained_) all.push_back(p.id);
  if (all.empty()) return;
  if (facts_.given.find_unused_parameters) {
    std::vector<Bucket> buckets = assigned_by_size(all);
    for (auto bucket = buckets.rbegin(); bucket != buckets.rend(); ++bucket) open(std::move(*bucket));
    used_ = eager_.empty(storage(Elements(static_cast<std::int64_t>(all.size())), DType::Int32), DType::Int32,
                         {Role::RuntimeBuffers, "which parameters were used",
                          "torch/csrc/distributed/c10d/reducer.cpp, initialize_local_used_map"});
    return;
  }
  Bucket whole;
  for (const ParameterId parameter : all) add(whole, parameter);
  open(std::move(whole));
}

void DdpReducer::rebuild_buckets() {
  if (rebuilt_ || ready_order_.empty() || facts_.given.find_unused_parameters) return;
  for (Bucket& bucket : buckets_) bucket.buffer.reset(Reason::RuntimeBucket);
  buckets_.clear();
  for (Bucket& bucket : assigned_by_size(ready_order_)) open(std::move(bucket));
  rebuilt_ = true;
}

void DdpReducer::prepare_for_backward(bool sync) {
  sync_ = sync;
  next_bucket_ = 0;
  for (Bucket& bucket : buckets_) bucket.pending = bucket.parameters.size();
}

void DdpReducer::mark_variable_ready(ParameterId parameter) {
  if (!sync_) return;
  if (!rebuilt_) ready_order_.push_back(parameter);
  --buckets_[bucket_of_[at(parameter)]].pending;
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0) {
    mark_bucket_ready(buckets_[next_bucket_++]);
    if (next_bucket_ == buckets_.size() && used_) all_reduce_used();
  }
}

// The host counts, and what it counted is summed.
void DdpReducer::all_reduce_used() {
  eager_.zero(used_, "copy which parameters were used");
  eager_.work().read(used_).write(used_).control(Collective::AllReduce, DType::Int32, eager_.bytes_of(used_));
}

void DdpReducer::mark_bucket_ready(const Bucket& bucket) {
  std::vector<BufferId> gradients;
  for (const ParameterId parameter : bucket.parameters) gradients.push_back(gradients_[parameter]);
  eager_.concatenate(bucket.buffer, gradients, "copy gradients to bucket");
  eager_.all_reduce(bucket.buffer, facts_.ranks);
  eager_.split(gradients, bucket.buffer, "copy gradients back");
}

}  // namespace dsplan
