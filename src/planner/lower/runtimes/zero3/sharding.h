// How ZeRO-3 cuts a model (DeepSpeed runtime/zero/partition_parameters.py, parameter_offload.py, stage3.py): every
// parameter on its own, P = ceil(n / W) elements for each of W ranks and A = W * P gathered. Trained partitions follow
// one another, in sub-groups that the optimizer updates one at a time. Sizes in elements; nothing here is memory.
#pragma once

#include <cstdint>
#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "planner/lower/runtimes/runtime_base.h"

namespace dsplan {

// A parameter, as a rank has it.
struct Shard {
  std::int64_t elements = 0;
  std::int64_t part = 0;    // P.
  std::int64_t offset = 0;  // Among the trained partitions; trained parameters only.
  DType dtype = DType::BFloat16;
  bool trained = false;
  bool persistent = false;  // Gathered again right after each step.
  bool in_flat = false;     // Its partition lies in one buffer with others.
  bool in_file = false;     // Its partition is on NVMe, and in memory only while it is needed.
  bool replicated = false;  // All tensor-parallel ranks have it alike.

  [[nodiscard]] Bytes bytes(std::int64_t count) const { return storage(Elements(count), dtype); }
};

struct SubGroup {
  std::size_t number = 0;
  std::size_t begin = 0;  // Indices into trained().
  std::size_t end = 0;
  std::int64_t offset = 0;  // Among the trained partitions.
  std::int64_t elements = 0;
  DType dtype = DType::BFloat16;
  bool in_flat = true;  // Its partitions are in the flat buffer; else each lies where it was made.
  bool away = false;    // The optimizer on the host or in files updates it.
};

// How a tensor of so many elements is cut for so many ranks.
[[nodiscard]] Shard cut_tensor(std::int64_t elements, DType dtype, std::int64_t ranks);

// A range of elements.
struct ElementRange {
  std::int64_t from = 0;
  std::int64_t elements = 0;
};

class Sharding {
 public:
  Sharding(const Job& job, const ModelSpec& model, std::int64_t rank);

  [[nodiscard]] std::int64_t world() const { return world_; }
  [[nodiscard]] std::int64_t rank() const { return rank_; }
  [[nodiscard]] std::int64_t inside() const { return inside_; }  // Ranks that share secondary shards (hpZ); 1: none.

  [[nodiscard]] const std::vector<NamedParameter>& named() const { return named_; }
  [[nodiscard]] const std::vector<NamedParameter>& trained() const { return trained_; }
  [[nodiscard]] std::size_t parameters() const { return shards_.size(); }
  [[nodiscard]] const Shard& of(ParameterId id) const { return shards_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] const Shard& of_trained(std::size_t index) const { return of(trained_[index].id); }
  [[nodiscard]] std::int64_t aligned(const Shard& of) const { return checked_mul(of.part, world_); }  // A.
  // What of the parameter is this rank's; less than P, or nothing, where padding begins.
  [[nodiscard]] ElementRange real(const Shard& of) const { return real(of, rank_); }
  [[nodiscard]] static ElementRange real(const Shard& of, std::int64_t rank);

  [[nodiscard]] const std::vector<SubGroup>& groups() const { return groups_; }
  [[nodiscard]] std::int64_t partition() const { return partition_; }  // Of all that is trained.
  // Of the trained partitions, which lie in one buffer: the first one's (stage3.py, self.dtype).
  [[nodiscard]] DType trained_dtype() const { return trained_dtype_; }
  [[nodiscard]] std::int64_t in_flat() const { return in_flat_; }  // Room for it in one buffer.
  [[nodiscard]] const std::vector<ParameterId>& persistent() const { return persistent_; }

 private:
  void group(const Zero& zero);
  void divide(const Training& training);
  void place(const Training& training);

  std::int64_t world_;
  std::int64_t rank_;
  std::int64_t inside_;
  std::vector<NamedParameter> named_;
  std::vector<NamedParameter> trained_;
  std::vector<Shard> shards_;  // By ParameterId.
  std::vector<SubGroup> groups_;
  std::vector<ParameterId> persistent_;
  std::int64_t partition_ = 0;
  DType trained_dtype_;
  std::int64_t in_flat_ = 0;
};

}  // namespace dsplan
