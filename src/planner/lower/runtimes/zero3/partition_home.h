// Where a rank keeps its partitions of parameters: on the device, on the host, or in files on NVMe (DeepSpeed
// runtime/zero/partition_parameters.py, stage3.py). Trained partitions move into one flat buffer once all are there.
#pragma once

#include <memory>
#include <vector>

#include "planner/lower/eager.h"
#include "planner/lower/runtimes/zero3/parameter_swapper.h"
#include "planner/lower/runtimes/zero3/sharding.h"

namespace dsplan {

class PartitionHome {
 public:
  PartitionHome(const Training& training, const Sharding& sharding, Emitter& emitter);
  virtual ~PartitionHome() noexcept(false) = default;

  // Before the model is there.
  virtual void prepare() {}
  // A tensor of a rank's own among the partitions.
  [[nodiscard]] virtual Variable empty(Bytes bytes, DType dtype, const What& what, ParameterId parameter) = 0;
  // _partition_param: this rank's part of `whole`, which goes.
  virtual void cut(ParameterId id, Variable whole);
  // The same of a tensor that is tied to another afterwards. The parameter that was tied away holds functions that hold
  // it, so that its partition ends when Python collects garbage: as the engine makes its table of names.
  virtual void cut_tied(const Shard& of, ParameterId id, Variable whole);
  void set_aside(Variable tied) { tied_.push_back(std::move(tied)); }
  void drop_tied();
  // Into the flat buffer.
  virtual void join() = 0;

  // Where the partition lies in memory.
  [[nodiscard]] virtual Part partition(ParameterId id) const;
  [[nodiscard]] Part in_flat(const SubGroup& group) const;
  // ds_tensor.to(device), before a gather; None where it is there already.
  [[nodiscard]] virtual bool away() const { return true; }
  [[nodiscard]] Variable bring(const Part& partition);

  // Partitions that are in files are read into memory; of a list those that are not there yet. And the memory goes.
  virtual void read(ParameterId) {}
  virtual void read_missing(const std::vector<ParameterId>&) {}
  virtual void drop(ParameterId) {}
  // The partition in memory was written.
  virtual void wrote(ParameterId) {}
  // The new weights of a sub-group, cast.
  virtual void write(const SubGroup& group, const Part& master);
  // Each step writes them all.
  virtual void promise_updates();

 protected:
  void cut_into(const Part& partition, const Shard& of, const Variable& whole);
  [[nodiscard]] Part in_flat(const Shard& of) const;
  // Of elements that are trained.
  [[nodiscard]] Bytes trained_bytes(std::int64_t elements) const {
    return storage(Elements(elements), sharding_.trained_dtype());
  }

  const Training& training_;
  const Sharding& sharding_;
  Eager eager_;
  std::vector<Variable> own_;  // By parameter: tensors of their own.
  Variable flat_;

 private:
  std::vector<Variable> tied_;
};

[[nodiscard]] std::unique_ptr<PartitionHome> make_partition_home(const Training& training, const Sharding& sharding,
                                                                 Emitter& emitter);

}  // namespace dsplan
