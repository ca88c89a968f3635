// DistributedDataParallel's reducer (torch/csrc/distributed/c10d/reducer.cpp): gradients are copied into buckets, which
// are all-reduced in order, each when all its gradients have come, and copied back; or `.grad` becomes a view of its
// bucket. With a static graph the first reduction waits for the end of backward. And what rank 0 sends to the others:
// all states at the beginning, the model's buffers again before forwards.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lower/runtimes/bucket_views.h"
#include "planner/lower/runtimes/named_parameters.h"
#include "planner/lower/runtimes/separate_gradients.h"

namespace dsplan {

// torch.distributed._broadcast_coalesced (torch/csrc/distributed/c10d/comm.cpp): by dtype, flat copies of some 250 MiB,
// of which two are under way. A tensor that goes by itself is not copied.
void broadcast_coalesced(Eager& eager, std::span<const BufferId> tensors, std::int64_t ranks,
                         Group group = Group::DataParallel);

struct DdpFacts {
  Ddp given;
  std::int64_t ranks = 1;
  Version torch = kWitnessTorch;
};

// What the reducer works on: what is trained, its gradients, and where they lie in buckets.
struct DdpGradients {
  const std::vector<NamedParameter>& trained;
  SeparateGradients& own;
  BucketViews& views;
};

class DdpReducer {
 public:
  // `parameters`: the number of ParameterIds.
  DdpReducer(Emitter& emitter, const DdpGradients& gradients, std::size_t parameters, const DdpFacts& facts)
      : eager_(emitter),
        trained_(gradients.trained),
        gradients_(gradients.own),
        views_(gradients.views),
        facts_(facts),
        bytes_(parameters),
        dtypes_(parameters, DType::BFloat16) {
    for (const NamedParameter& p : trained_) {
      bytes_[at(p.id)] = storage(Elements(p.elements), p.dtype);
      dtypes_[at(p.id)] = p.dtype;
    }
  }

  // One bucket for all of a dtype until they are rebuilt; where unused parameters are looked for they never are, and
  // buckets are of consecutive parameters, the last of them first.
  void initialize_buckets();
  // At the first forward after a backward, in gradient-ready order.
  void rebuild_buckets();
  // `sync`: outside of no_sync().
  void prepare_for_backward(bool sync);
  // AccumulateGrad has run.
  void mark_variable_ready(ParameterId parameter);
  // What was queued for the end of backward.
  void end_backward();
  // Before another collective: what a hook sent in a backward before is let go of.
  void unstash();

 private:
  struct Bucket {
    Variable buffer;
    DType dtype = DType::BFloat16;
    Bytes bytes;
    std::vector<ParameterId> parameters;
    std::size_t pending = 0;
  };

  enum class Limits : std::uint8_t { None, Said };

  [[nodiscard]] Bytes cap(std::size_t bucket) const;
  [[nodiscard]] std::vector<Bucket> assigned_by_size(const std::vector<ParameterId>& parameters, Limits limits) const;
  void all_reduce_used();
  void add(Bucket& bucket, ParameterId parameter) const;
  void open(Bucket bucket);
  void put_in_view(ParameterId parameter);
  void mark_bucket_ready(const Bucket& bucket);
  void run_comm_hook(const Bucket& bucket);

  Eager eager_;
  const std::vector<NamedParameter>& trained_;
  SeparateGradients& gradients_;
  std::vector<Bucket> buckets_;
  BucketViews& views_;
  std::vector<ParameterId> ready_order_;
  Variable used_;  // Which parameters got a gradient, of whoever looks for unused ones.
  DdpFacts facts_;
  std::vector<Bytes> bytes_;  // By ParameterId.
  std::vector<DType> dtypes_;
  // What a hook sent. Nobody waits for the hook's collective itself: since PyTorch 2.8 the process group keeps what it
  // sent until its watchdog, which looks every 100 ms, has seen it arrive, and then until the next collective
  // (ProcessGroupNCCL.cpp, shelvesToUnstash_). A device that is a backward behind its host has it seen after this
  // backward: that end is here.
  Variables sent_;
  Variables sent_before_;
  std::size_t next_bucket_ = 0;
  bool sync_ = true;
  bool rebuilt_ = false;
  bool delays_ = false;  // The first reduction of a static graph is to come.
};

}  // namespace dsplan
