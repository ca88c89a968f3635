// DistributedDataParallel's reducer (torch/csrc/distributed/c10d/reducer.cpp): gradients are copied into buckets, which
// are all-reduced in order, each when all its gradients have come, and copied back. And what rank 0 sends to the
// others: all states at the beginning, the model's buffers again before forwards.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lower/runtimes/named_parameters.h"
#include "planner/lower/runtimes/separate_gradients.h"

namespace dsplan {

// torch.distributed._broadcast_coalesced (torch/csrc/distributed/c10d/comm.cpp): by dtype, flat copies of some 250 MiB,
// of which two are under way. A tensor that goes by itself is not copied.
void broadcast_coalesced(Eager& eager, std::span<const BufferId> tensors, std::int64_t ranks);

struct DdpFacts {
  Ddp given;
  std::int64_t ranks = 1;
};

class DdpReducer {
 public:
  // `trained` and `gradients` must outlive this. All that is trained is of `dtype`.
  DdpReducer(Emitter& emitter, const std::vector<NamedParameter>& trained, const SeparateGradients& gradients,
             std::size_t parameters, DType dtype, const DdpFacts& facts)
      : eager_(emitter),
        trained_(trained),
        gradients_(gradients),
        bucket_of_(parameters, 0),
        dtype_(dtype),
        facts_(facts),
        elements_(parameters, 0) {
    for (const NamedParameter& p : trained) elements_[at(p.id)] = p.elements;
  }

  // One bucket for everything until they are rebuilt; where unused parameters are looked for they never are, and
  // buckets are of consecutive parameters, the last of them first.
  void initialize_buckets();
  // At the first forward after a backward, in gradient-ready order.
  void rebuild_buckets();
  // `sync`: outside of no_sync().
  void prepare_for_backward(bool sync);
  // AccumulateGrad has run.
  void mark_variable_ready(ParameterId parameter);

 private:
  struct Bucket {
    Variable buffer;
    Bytes bytes;
    std::vector<ParameterId> parameters;
    std::size_t pending = 0;
  };

  [[nodiscard]] Bytes cap(std::size_t bucket) const;
  [[nodiscard]] std::vector<Bucket> assigned_by_size(const std::vector<ParameterId>& parameters) const;
  void all_reduce_used();
  void add(Bucket& bucket, ParameterId parameter) const;
  void open(Bucket bucket);
  void mark_bucket_ready(const Bucket& bucket);

  Eager eager_;
  const std::vector<NamedParameter>& trained_;
  const SeparateGradients& gradients_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;  // By ParameterId.
  std::vector<ParameterId> ready_order_;
  Variable used_;  // Which parameters got a gradient, of whoever looks for unused ones.
  DType dtype_;
  DdpFacts facts_;
  std::vector<std::int64_t> elements_;  // By ParameterId.
  std::size_t next_bucket_ = 0;
  bool sync_ = true;
  bool rebuilt_ = false;
};

}  // namespace dsplan
