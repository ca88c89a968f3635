// Of a forward whose layers are all given one container and put tensors into it (Instruction::Kind::Share): a
// checkpoint's function holds it from its forward to its backward, and with it whatever it has.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lower/autograd/tape_context.h"

namespace dsplan {

class SharedContainer {
 public:
  // `checkpoint_of`: by node, the checkpoint that it runs in.
  SharedContainer(TapeContext& on, const Indexed<NodeId, std::int16_t>& checkpoint_of)
      : on_(on), checkpoint_of_(checkpoint_of) {}

  // A checkpoint's function takes it, and lets go of it.
  void take() { ++holders_; }
  void release();
  // The container has the tensor in the place of what it had of it. `recomputing`: in a recomputation with hooks, whose
  // graph nobody goes through, and the tensor holds with what its nodes have saved.
  void put(TensorId tensor, bool recomputing);
  // The forward's own variable for it is gone.
  void let_go(TensorId tensor);

 private:
  struct Item {
    TensorId tensor = kNone;
    std::vector<BufferId> buffers;  // Its own, and what the graph behind it has saved.
    bool named = true;              // By the forward's variable.
  };
  void empty();
  void hold_graph(TensorId tensor, std::vector<BufferId>& held) const;

  TapeContext& on_;
  const Indexed<NodeId, std::int16_t>& checkpoint_of_;
  std::vector<Item> items_;
  std::int64_t holders_ = 0;
};

}  // namespace dsplan
