// ZeRO-3 (DeepSpeed runtime/zero/stage3.py, partition_parameters.py, partitioned_param_coordinator.py), without
// offload, at the level of gather, use, release, reduce and step: each module gathers its own parameters when it is
// entered and lets go of them when it is left; prefetching and the reuse window are not modelled yet.
//
// Each parameter is cut on its own: P = ceil(n / W) elements per rank, A = W * P gathered. Trained partitions lie in
// one flat buffer, their gradients in another that is never freed.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lowering/runtime_base.h"

namespace dsplan {

class Stage3Runtime final : public RuntimeBase {
 public:
  Stage3Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter);

  void initialise() override;
  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override;
  // PostBackwardFunctionModule (parameter_offload.py), on the tensors that a module is called with.
  [[nodiscard]] bool wraps_input(ModuleId module) const override {
    return !own_[static_cast<std::size_t>(module)].empty();
  }
  void forward_begins() override { complete_ = forwards_++ > 0; }
  void backward_begins(bool) override {}
  void enter(ModuleId module, Pass) override;
  void exit(ModuleId module, Pass) override;
  void gradient_ready(ParameterId parameter, BufferId gradient) override;
  void backward_ends(bool boundary) override;
  void step(bool first) override;

 private:
  struct Piece {
    std::int64_t elements = 0;
    std::int64_t part = 0;    // P.
    std::int64_t offset = 0;  // In the flat partition; trained parameters only.
    bool persistent = false;
    bool trained = false;
    BufferId own = kNoBuffer;   // Frozen: the partition's own tensor.
    BufferId full = kNoBuffer;  // Gathered.
    std::int32_t users = 0;     // Modules that have entered and not left.
  };
  struct SubGroup {
    std::size_t begin = 0;  // Indices into trained_.
    std::size_t end = 0;
    std::int64_t offset = 0;
    std::int64_t elements = 0;
    BufferId master = kNoBuffer;  // kNoBuffer: the parameters themselves.
    std::vector<BufferId> state;
  };
  struct Entry {
    std::size_t parameter;
    std::int64_t offset;
    BufferId own;
  };

  // stage3_runtime.cpp
  void lay_out();
  void partition(const Leaf& leaf);
  void gather_partitions_in_one_buffer();
  void create_masters();
  BufferId create_master(SubGroup& group);

  // stage3_parameters.cpp
  void gather(const std::vector<ParameterId>& parameters);
  void read_partition(const Piece& piece);
  void release_full(Piece& piece);

  // stage3_gradients.cpp
  void flush();
  BufferId cast_own_gradient();
  [[nodiscard]] const Piece& piece_of(const Entry& entry) const;
  void join(BufferId tensor);
  void reduce(BufferId tensor, Bytes start, Bytes whole, Bytes mine, Bytes share);
  void add_to_partition(BufferId tensor, Bytes mine);

  // stage3_step.cpp
  void measure_gradients();
  void scratch(Bytes bytes, DType type, Label label);
  void update(SubGroup& group, bool first);
  BufferId cast_gradient(const SubGroup& group, BufferId flat, Bytes from, Bytes bytes);

  std::vector<Piece> pieces_;                  // By ParameterId.
  std::vector<std::vector<ParameterId>> own_;  // By module: its own parameters, ties resolved.
  std::vector<bool> active_module_;
  std::vector<SubGroup> groups_;
  std::int64_t partition_ = 0;  // S.
  std::int64_t largest_part_ = 0;
  BufferId flat_ = kNoBuffer;
  BufferId gradients_ = kNoBuffer;
  BufferId bucket_ = kNoBuffer;
  std::vector<Entry> entries_;
  std::int64_t filled_ = 0;
  std::int32_t forwards_ = 0;
  bool complete_ = false;      // The trace: recorded during the first forward, complete from the second on.
  bool accumulating_ = false;  // A later micro-batch adds to the partitions; the first overwrites them.
};

}  // namespace dsplan
