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
#include "planner/lower/eager.h"
#include "planner/lower/runtime_base.h"

namespace dsplan {

// What may be swapped, and in which pieces (swap_tensor/utils.py: MIN_AIO_BYTES, AIO_ALIGNED_BYTES).
struct SwapRules {
  explicit SwapRules(const Zero& zero);
  Bytes least;  // What is smaller stays in memory.
  Bytes unit;   // Files and buffers are multiples of it.
  [[nodiscard]] bool swaps(Bytes bytes) const { return bytes >= least; }
  [[nodiscard]] Bytes aligned(Bytes bytes) const { return round_up(bytes, unit.value()); }
};

// Who makes the optimizer's states.
[[nodiscard]] Source maker_of_states(const Training& training);

class OptimizerSwapper {
 public:
  // A gradient partition in the dtype of the master, at `offset` of its sub-group.
  struct Gradient {
    Bytes offset;
    Bytes bytes;
    Variable tensor;
  };

  // `groups`: bytes of each sub-group's master.
  OptimizerSwapper(const Training& training, const std::vector<Bytes>& groups, Emitter& emitter);

  [[nodiscard]] bool swaps(std::size_t group) const { return rules_.swaps(groups_[group].bytes); }
  [[nodiscard]] bool swaps_any() const;

  void make_buffers();
  // Copies of `weights`, cast, become the masters' files.
  struct Weights {
    std::size_t group = 0;
    Part weights;
  };
  void initialise(const std::vector<Weights>& groups);

  void swap_in(std::size_t group);
  void swap_out(std::size_t group);
  // In the order of the gradients' reduction; the tensors are shared as long as files do not stand in for them.
  void swap_out_gradients(std::size_t group, const std::vector<Gradient>& gradients);

  // Within a swap-in and a swap-out.
  [[nodiscard]] Part master(std::size_t group) const;
  // The update of the master; the first one makes `states`, which swapping out takes over.
  void update(std::size_t group, const std::vector<StateTensor>& states);
  [[nodiscard]] const Variable& master_file(std::size_t group) const { return groups_[group].file; }

 private:
  struct Piece {
    Bytes bytes;
    Variable file;
  };
  struct Kept {
    Bytes bytes;
    Bytes from;  // Of the tensor.
    Variable tensor;
  };
  struct Group {
    Bytes bytes;
    Variable file;
    std::size_t states = 0;               // How many the first step made.
    std::vector<Variable> state_files;    // Once they were written.
    std::vector<Variable> pageable;       // States as the first step made them.
    std::vector<Bytes> gradient_offsets;  // In the order in which they first came.
    std::map<Bytes, Piece> gradients;     // In files, by offset in the group.
    std::map<Bytes, Kept> kept;           // In memory.
    std::vector<std::size_t> buffers;     // Those that it is in: master, states, gradient.
  };
  // AsyncTensorSwapper: gradients are gathered in a buffer until it is full.
  struct Gathered {
    Part file;
    Bytes offset;
    Bytes bytes;
  };

  [[nodiscard]] bool pipelines() const { return read_ || write_; }
  [[nodiscard]] std::optional<std::size_t> next(std::size_t group) const;
  [[nodiscard]] Variable make_file(Bytes bytes, Label label, Source source);
  void make_state_file(Group& group, std::size_t buffer);
  std::vector<std::size_t> take(std::size_t count);
  void give_back(std::vector<std::size_t>& buffers);
  void read_in(std::size_t group);
  void read_gradients(Group& group, std::size_t into);
  void create_states(Group& group, const std::vector<StateTensor>& states);
  [[nodiscard]] std::vector<ByteRange> gradients_in_order(const Group& group) const;
  void write_states(Group& group);
  void write_new_states(Group& group);
  void complete_write();
  void release_kept(Group& group);
  void keep(Group& group, Bytes offset, Kept kept);
  void gather_gradient(Group& group, Bytes offset, const Part& gradient);
  void submit_gathered();
  void flush_gradients();

  // The beginning of a swap buffer.
  [[nodiscard]] Part part(std::size_t buffer, Bytes bytes) const { return {buffers_[buffer].id(), Bytes(0), bytes}; }
  void read_file(const Part& to, const Variable& file);
  void write_file(const Part& file, const Part& from);

  SwapRules rules_;
  DType type_;
  Source maker_of_states_;
  bool read_;
  bool write_;
  bool drops_when_read_;
  Eager eager_;
  std::vector<Group> groups_;
  Bytes largest_;
  std::vector<Variable> buffers_;
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

}  // namespace dsplan
