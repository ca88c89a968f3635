// ZeRO-3's parameters on NVMe: one file for each partition that is large enough, and the pool of locked buffers that
// they are read into (DeepSpeed runtime/swap_tensor/partitioned_param_swapper.py, as of 0.19.8).
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lower/optimizer_swapper.h"

namespace dsplan {

class ParameterSwapper {
 public:
  // `parameters`: how many the model has; they are known by their id.
  ParameterSwapper(const Zero& zero, DType type, std::size_t parameters, Emitter& emitter);

  [[nodiscard]] bool swaps(Bytes partition) const { return rules_.swaps(partition); }
  [[nodiscard]] std::int64_t buffers() const { return count_; }

  void make_pool();
  // A buffer for a partition of `bytes`. Refuses where DeepSpeed's assertions do: none is free, or it has one already.
  BufferRange take(ParameterId parameter, Bytes bytes);
  void give_back(ParameterId parameter);
  [[nodiscard]] bool has_buffer(ParameterId parameter) const { return slot(parameter) >= 0; }
  [[nodiscard]] BufferRange buffer(ParameterId parameter) const;

  void write(ParameterId parameter);  // The buffer to its file, which the first time is made.
  void read(ParameterId parameter);   // The file to a buffer, which is taken.
  // The file to somewhere in memory; through a buffer unless what is there is pinned and aligned.
  void read_into(ParameterId parameter, const BufferRange& to, bool pinned);

  // For what a step makes.
  void reserve_for_updates(Bytes bytes);
  [[nodiscard]] Bytes aligned(Bytes bytes) const { return rules_.aligned(bytes); }
  // Copies of new partitions pass through that buffer, one after another, and are written together.
  template <class Copy>
  void write_updates(const std::vector<ParameterId>& parameters, const std::vector<BufferRange>& from, Copy copy);

  [[nodiscard]] BufferId file(ParameterId parameter) const {
    return files_[static_cast<std::size_t>(parameter)].buffer;
  }

 private:
  struct File {
    BufferId buffer = kNoBuffer;
    Bytes bytes;  // Of the partition.
    std::int64_t slot = -1;
  };

  [[nodiscard]] std::int64_t slot(ParameterId parameter) const {
    return files_[static_cast<std::size_t>(parameter)].slot;
  }
  void copy_from_file(const File& of, const BufferRange& to);
  void copy_to_file(const File& of, BufferId from, Bytes offset);

  SwapRules rules_;
  DType type_;
  std::int64_t count_;
  Bytes buffer_bytes_;
  Emitter& emitter_;
  BufferId pool_ = kNoBuffer;
  BufferId updates_ = kNoBuffer;
  std::vector<std::int64_t> free_;
  std::vector<File> files_;
};

template <class Copy>
void ParameterSwapper::write_updates(const std::vector<ParameterId>& parameters, const std::vector<BufferRange>& from,
                                     Copy copy) {
  Bytes offset;
  for (std::size_t at = 0; at < parameters.size(); ++at) {
    const File& of = files_[static_cast<std::size_t>(parameters[at])];
    copy(from[at], BufferRange{updates_, offset, of.bytes, type_});
    offset += rules_.aligned(of.bytes);
  }
  offset = Bytes(0);
  for (const ParameterId parameter : parameters) {
    const File& of = files_[static_cast<std::size_t>(parameter)];
    copy_to_file(of, updates_, offset);
    offset += rules_.aligned(of.bytes);
  }
}

}  // namespace dsplan
