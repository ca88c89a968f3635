// ZeRO-3's optimizer on NVMe: masters, gradients and states in files, and the locked buffers that they pass through
// (DeepSpeed runtime/swap_tensor/{partitioned_optimizer_swapper,pipelined_optimizer_swapper,optimizer_utils}.py, as of
// 0.19.8).
//
// Each sub-group that is large enough has a file for its master, one for each state once the first step has made them,
// and those of its gradients. Reads and writes that overlap with work are stated where they are asked for.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "planner/lower/runtimes/runtime_base.h"
#include "planner/lower/runtimes/zero3/gradient_swapper.h"
#include "planner/lower/runtimes/zero3/swap_buffers.h"

namespace dsplan {

// Who makes the optimizer's states.
[[nodiscard]] Source maker_of_states(const Training& training);

class OptimizerSwapper {
 public:
  // `groups`: bytes of each sub-group's master.
  OptimizerSwapper(const Training& training, const std::vector<Bytes>& groups, Emitter& emitter);

  [[nodiscard]] bool swaps(std::size_t group) const { return rules_.swaps(groups_[group].bytes); }

  void make_buffers() { buffers_.make(); }
  // Copies of `weights`, cast, become the masters' files.
  struct Weights {
    std::size_t group = 0;
    Part weights;
  };
  void initialise(const std::vector<Weights>& groups);
  [[nodiscard]] GradientSwapper& gradients() { return gradients_; }

  void swap_in(std::size_t group);
  void swap_out(std::size_t group);
  // Within a swap-in and a swap-out.
  [[nodiscard]] Part master(std::size_t group) const;
  // The update of the master; the first one makes `states`, which swapping out takes over.
  void update(std::size_t group, const std::vector<StateTensor>& states);
  [[nodiscard]] const Variable& master_file(std::size_t group) const { return groups_[group].file; }

 private:
  struct Group {
    Bytes bytes;
    Variable file;
    std::size_t states = 0;             // How many the first step made.
    std::vector<Variable> state_files;  // Once they were written.
    std::vector<Variable> pageable;     // States as the first step made them.
    std::vector<std::size_t> buffers;   // Those that it is in: master, states, gradient.
  };

  [[nodiscard]] bool pipelines() const { return read_ || write_; }
  [[nodiscard]] std::optional<std::size_t> next(std::size_t group) const;
  [[nodiscard]] Variable make_file(Bytes bytes, const What& what);
  void make_state_file(Group& group, std::size_t buffer);
  void read_in(std::size_t group);
  void create_states(Group& group, const std::vector<StateTensor>& states);
  [[nodiscard]] static std::vector<ByteRange> in_order(std::vector<Part> gradients, Bytes bytes);
  void write_back(Group& group);
  void write_states(Group& group);
  void write_new_states(Group& group);

  SwapRules rules_;
  DType type_;
  Source maker_of_states_;
  bool read_;
  bool write_;
  Eager eager_;
  std::vector<Group> groups_;
  SwapBuffers buffers_;
  GradientSwapper gradients_;
  std::optional<std::size_t> ahead_;  // Being read while another is updated.
  std::vector<std::size_t> written_;  // Buffers that are being written.
};

}  // namespace dsplan
