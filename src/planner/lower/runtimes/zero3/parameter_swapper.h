// ZeRO-3's parameters on NVMe: one file for each partition that is large enough, and the pool of locked buffers that
// they are read into (DeepSpeed runtime/swap_tensor/partitioned_param_swapper.py, as of 0.19.8).
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lower/runtimes/zero3/swap_buffers.h"

namespace dsplan {

class ParameterSwapper {
 public:
  // `parameters`: how many the model has; they are known by their id.
  ParameterSwapper(const Zero& zero, DType type, std::size_t parameters, Emitter& emitter);

  [[nodiscard]] bool swaps(Bytes partition) const { return rules_.swaps(partition); }

  void make_pool();
  // A buffer for a partition of `bytes`. Refuses where DeepSpeed's assertions do: none is free, or it has one already.
  Part take(ParameterId parameter, Bytes bytes);
  void give_back(ParameterId parameter);
  [[nodiscard]] bool has_buffer(ParameterId parameter) const { return at(parameter).slot >= 0; }
  [[nodiscard]] Part buffer(ParameterId parameter) const;

  void write(ParameterId parameter);  // The buffer to its file, which the first time is made.
  void read(ParameterId parameter);   // The file to a buffer, which is taken.
  // The file to somewhere in memory; through a buffer unless what is there is pinned and aligned.
  void read_into(ParameterId parameter, const Part& to, bool pinned);

  // For what a step makes.
  void reserve_for_updates(Bytes bytes);
  [[nodiscard]] Bytes aligned(Bytes bytes) const { return rules_.aligned(bytes); }
  // New partitions, cast, pass through that buffer, one after another, and are written together.
  void write_updates(const std::vector<ParameterId>& parameters, const std::vector<Part>& from);

  [[nodiscard]] const Variable& file(ParameterId parameter) const { return at(parameter).file; }

 private:
  struct File {
    Variable file;
    Bytes bytes;  // Of the partition.
    std::int64_t slot = -1;
  };

  [[nodiscard]] File& at(ParameterId parameter) { return files_[static_cast<std::size_t>(parameter)]; }
  [[nodiscard]] const File& at(ParameterId parameter) const { return files_[static_cast<std::size_t>(parameter)]; }

  SwapRules rules_;
  DType type_;
  std::int64_t count_;
  Bytes buffer_bytes_;
  Eager eager_;
  Variable pool_;
  Variable updates_;
  std::vector<std::int64_t> free_;
  std::vector<File> files_;
};

}  // namespace dsplan
