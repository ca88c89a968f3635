// Gradients on their way from autograd to their partitions: through a bucket, or by themselves, and a reduction among
// the ranks (DeepSpeed runtime/zero/stage3.py, runtime/comm/coalesced_collectives.py).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "planner/lower/eager.h"
#include "planner/lower/runtimes/zero3/gradient_partitions.h"
#include "planner/lower/runtimes/zero3/sharding.h"

namespace dsplan {

class GradientReducer {
 public:
  GradientReducer(const Training& training, const Sharding& sharding, GradientPartitions& partitions, Emitter& emitter);

  void make_bucket();
  // Takes over the gradient of a trained parameter, by its index.
  void reduce(std::size_t index, BufferId gradient);
  // Backward is over: what is left is reduced, and all reductions are waited for.
  void finish();

 private:
  struct Entry {
    std::size_t index;    // Of the trained parameter.
    std::int64_t offset;  // In the bucket.
    Variable own;         // None: in the bucket.
  };
  void flush();
  void reduce_in_bucket();
  void reduce_scattered();
  void take_scattered(Part mine, Variable interleaved);
  std::vector<Variable> cast_own_gradients();
  [[nodiscard]] Variables make_padding();
  void pad(const std::vector<Bytes>& sizes, std::int64_t ranks, Variables& padding);
  void interleave(const Variable& tensor, const Variables& padding);
  [[nodiscard]] std::vector<ByteRange> interleaved();
  [[nodiscard]] const Shard& shard(const Entry& entry) const { return sharding_.of_trained(entry.index); }
  [[nodiscard]] Part in_bucket(const Entry& entry) const;
  void clear_entries();

  const Training& training_;
  const Sharding& sharding_;
  GradientPartitions& partitions_;
  Eager eager_;
  StreamId stream_;
  Variable bucket_;
  std::vector<Entry> entries_;
  std::int64_t filled_ = 0;
  std::deque<std::optional<ContentId>> reductions_;  // Signals behind those under way, oldest first.
};

}  // namespace dsplan
