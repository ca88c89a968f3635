// Gradients of an optimizer on NVMe (DeepSpeed runtime/swap_tensor/{optimizer_utils,async_swapper}.py, as of 0.19.8):
// each partition has a file. Only what is aligned goes into it: the tail, a view, keeps the whole tensor on the device
// until the step, as do partitions that are too small.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "planner/lower/runtimes/zero3/swap_buffers.h"

namespace dsplan {

class GradientSwapper {
 public:
  // A gradient partition in the dtype of the master, at `offset` of its sub-group.
  struct Gradient {
    Bytes offset;
    Bytes bytes;
    Variable tensor;
  };

  GradientSwapper(const Training& training, std::size_t groups, SwapBuffers& buffers, Emitter& emitter);

  // Gradients come one by one; those of one reduction are swapped out together, by sub-group in the order of the first.
  void collect(std::size_t group, Gradient gradient);
  void swap_out_collected();
  // All are in their files.
  void flush();

  [[nodiscard]] bool has(std::size_t group) const;
  // Into a buffer that holds the sub-group's gradient; and what that is made of.
  void read(std::size_t group, std::size_t buffer);
  [[nodiscard]] std::vector<Part> parts(std::size_t group, std::size_t buffer) const;
  // What was kept in memory goes.
  void release_kept(std::size_t group);

 private:
  struct File {
    Bytes bytes;
    Variable file;
  };
  struct Kept {
    Bytes bytes;
    Bytes from;  // Of the tensor.
    Variable tensor;
  };
  struct Group {
    std::vector<Gradient> collected;
    std::vector<Bytes> offsets;   // In the order in which they first came.
    std::map<Bytes, File> files;  // By offset in the group.
    std::map<Bytes, Kept> kept;   // In memory.
  };
  struct Gathered {
    Part file;
    Part from;
  };

  void swap_out(Group& group);
  void keep(Group& group, Bytes offset, Kept kept);
  void gather(Group& group, Bytes offset, const Part& gradient);
  void submit();

  SwapRules rules_;
  DType type_;
  bool drops_when_read_;
  SwapBuffers& buffers_;
  Eager eager_;
  std::vector<Group> groups_;
  std::vector<std::size_t> collected_;  // Sub-groups.
  // AsyncTensorSwapper: gradients are gathered in a buffer until it is full.
  std::vector<std::size_t> taken_;  // All of its buffers; empty: none.
  std::vector<std::size_t> empty_;  // Those without gradients.
  std::optional<std::size_t> current_;
  std::vector<Gathered> gathered_;  // In the current one.
  Bytes filled_;
};

}  // namespace dsplan
