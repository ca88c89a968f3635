// ZeRO-3's optimizer on NVMe: masters, gradients and states in files, and the locked buffers that they pass through
// (DeepSpeed runtime/swap_tensor/{partitioned_optimizer_swapper,pipelined_optimizer_swapper,optimizer_utils,
// async_swapper,utils}.py, as of 0.19.8).
//
// Each sub-group that is large enough has a file for its master, one for each state once the first step has made them,
// and one for each gradient partition. Tensors are written up to a multiple of the aligned bytes; of a gradient only
// what is aligned goes into a file, and its tail, a view, keeps the whole tensor on the device until the step.
// Reads and writes that overlap with work are stated where they are asked for.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/training.h"
#include "planner/lower/emitter.h"
#include "planner/lower/runtime_base.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {

// Part of a buffer, for copies.
struct BufferRange {
  BufferId buffer = kNoBuffer;
  Bytes offset;
  Bytes bytes;
  DType dtype = DType::Float32;
};

class OptimizerSwapper {
 public:
  // A gradient partition in the dtype of the master, at `offset` of its sub-group.
  struct Gradient {
    Bytes offset;
    Bytes bytes;
    BufferId tensor = kNoBuffer;
  };

  // `groups`: bytes of each sub-group's master.
  OptimizerSwapper(const Training& training, const std::vector<Bytes>& groups, Emitter& emitter);

  [[nodiscard]] bool swaps(std::size_t group) const { return rules_.swaps(groups_[group].bytes); }
  [[nodiscard]] bool swaps_any() const;

  void make_buffers();
  // Copies of `from` become the masters' files; `copy` states one copy into a buffer.
  struct Source {
    std::size_t group = 0;
    BufferRange from;
  };
  template <class Copy>
  void initialise(const std::vector<Source>& sources, Copy copy);

  void swap_in(std::size_t group);
  void swap_out(std::size_t group);
  // In the order of the gradients' reduction; the tensors are retained as long as files do not stand in for them.
  void swap_out_gradients(std::size_t group, const std::vector<Gradient>& gradients);

  // Within a swap-in and a swap-out.
  [[nodiscard]] BufferRange master(std::size_t group) const;
  // The update of the master; the first one makes `states`, which swapping out takes over.
  void update(std::size_t group, const std::vector<StateTensor>& states);
  [[nodiscard]] BufferId master_file(std::size_t group) const { return groups_[group].file; }

 private:
  struct Piece {
    Bytes bytes;
    BufferId file = kNoBuffer;
  };
  struct Kept {
    Bytes bytes;
    Bytes from;  // Of the tensor.
    BufferId tensor = kNoBuffer;
  };
  struct Group {
    Bytes bytes;
    BufferId file = kNoBuffer;
    std::vector<Label> labels;            // Of the states.
    std::vector<BufferId> state_files;    // Once they were written.
    std::vector<BufferId> pageable;       // States as the first step made them.
    std::vector<Bytes> gradient_offsets;  // In the order in which they first came.
    std::map<Bytes, Piece> gradients;     // In files, by offset in the group.
    std::map<Bytes, Kept> kept;           // In memory.
    std::vector<std::size_t> buffers;     // Those that it is in: master, states, gradient.
  };
  // AsyncTensorSwapper: gradients are gathered in a buffer until it is full.
  struct Gathered {
    BufferId file = kNoBuffer;
    Bytes offset;
    Bytes bytes;
  };

  [[nodiscard]] bool pipelines() const { return read_ || write_; }
  [[nodiscard]] std::optional<std::size_t> next(std::size_t group) const;
  BufferId make_file(Bytes bytes, Label label);
  std::vector<std::size_t> take(std::size_t count);
  void give_back(std::vector<std::size_t>& buffers);
  void read_in(std::size_t group);
  void read_gradients(Group& group, BufferId into);
  void write_file(BufferId from, Bytes bytes, BufferId file);
  void record_update(const Group& group);
  void write_states(Group& group);
  void write_new_states(Group& group);
  void complete_write();
  void release_kept(Group& group);
  void keep(Group& group, Bytes offset, const Kept& kept);
  void gather_gradient(Group& group, const Gradient& gradient);
  void submit_gathered();
  void flush_gradients();

  SwapRules rules_;
  DType type_;
  bool read_;
  bool write_;
  bool drops_when_read_;
  Emitter& emitter_;
  std::vector<Group> groups_;
  Bytes largest_;
  std::vector<BufferId> buffers_;
  std::size_t count_ = 0;
  std::vector<std::size_t> free_;
  std::optional<std::size_t> ahead_;    // Being read while another is updated.
  std::vector<std::size_t> written_;    // Buffers that are being written.
  std::vector<std::size_t> gathering_;  // All of the gradients' buffers; empty: none.
  std::vector<std::size_t> empty_;      // Those without gradients.
  std::optional<std::size_t> current_;
  std::vector<Gathered> gathered_;  // In the current one.
  Bytes filled_;
};

template <class Copy>
void OptimizerSwapper::initialise(const std::vector<Source>& sources, Copy copy) {
  std::vector<std::size_t> all = take(free_.size());
  for (std::size_t first = 0; first < sources.size(); first += all.size()) {
    const std::size_t last = std::min(sources.size(), first + all.size());
    for (std::size_t at = first; at < last; ++at) {
      const Source& source = sources[at];
      copy(source.from, BufferRange{buffers_[all[at - first]], Bytes(0), groups_[source.group].bytes, type_});
    }
    for (std::size_t at = first; at < last; ++at) {
      Group& group = groups_[sources[at].group];
      group.file = make_file(group.bytes, "master weights in a file");
      write_file(buffers_[all[at - first]], group.bytes, group.file);
    }
  }
  give_back(all);
}

}  // namespace dsplan
