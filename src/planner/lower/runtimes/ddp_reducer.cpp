#include "planner/lower/runtimes/ddp_reducer.h"

#include <utility>

namespace dsplan {
namespace {

// The first bucket closes at 1 MiB, the others at 25 MiB; a bucket may exceed its limit by one parameter.
constexpr Bytes kFirstBucket{1LL << 20};
constexpr Bytes kBucketCap{25LL << 20};

}  // namespace

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

void DdpReducer::initialize_buckets() {
  Bucket all;
  for (const NamedParameter& p : trained_) add(all, p.id);
  if (!all.parameters.empty()) open(std::move(all));
}

void DdpReducer::rebuild_buckets() {
  if (rebuilt_ || ready_order_.empty()) return;
  for (Bucket& bucket : buckets_) bucket.buffer.reset(Reason::RuntimeBucket);
  buckets_.clear();
  Bucket bucket;
  for (const ParameterId parameter : ready_order_) {
    add(bucket, parameter);
    if (bucket.bytes >= (buckets_.empty() ? kFirstBucket : kBucketCap)) open(std::exchange(bucket, {}));
  }
  if (!bucket.parameters.empty()) open(std::move(bucket));
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
  }
}

void DdpReducer::mark_bucket_ready(const Bucket& bucket) {
  std::vector<BufferId> gradients;
  for (const ParameterId parameter : bucket.parameters) gradients.push_back(gradients_[parameter]);
  eager_.concatenate(bucket.buffer, gradients, "copy gradients to bucket");
  eager_.all_reduce(bucket.buffer, ranks_);
  eager_.split(gradients, bucket.buffer, "copy gradients back");
}

}  // namespace dsplan
