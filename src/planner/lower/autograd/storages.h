// Where the tensors of a graph lie now, and who holds them beside Python's variables. Lifetimes follow reference
// counts: a storage is held by each Python variable (until its Drop), by each autograd node that saved it (until that
// node has run), and by each checkpoint that it enters (checkpoints.h).
#pragma once

#include <utility>
#include <vector>

#include "planner/lower/autograd/graph_facts.h"
#include "planner/lower/emitter.h"
#include "planner/lower/runtime.h"

namespace dsplan {

class Storages {
 public:
  // `module_buffers`: the device buffers of ModelSpec::buffers. All references must outlive this.
  Storages(const GraphFacts& facts, Emitter& emitter, TrainingRuntime& runtime,
           const std::vector<BufferId>& module_buffers);

  // Others are in the places of the model's buffers.
  void use(const std::vector<BufferId>& module_buffers);

  // The current instance of what `tensor` lies in, unless that is a parameter: those the runtime places.
  [[nodiscard]] BufferId& of(TensorId tensor) { return buffers_[facts_.graph().tensor(tensor).storage]; }
  // Of the work under way.
  void read(TensorId tensor);
  void write(TensorId tensor);

  // Saved tensors, by the index that the recipes give them. kNoBuffer: nothing is held, as for parameters and the
  // model's own buffers, which are read where they lie then.
  [[nodiscard]] BufferId& saved(std::size_t index) { return saved_[index]; }
  void save(std::size_t index, BufferId buffer) {
    if (buffer != kNoBuffer) emitter_.retain(buffer);
    saved_[index] = buffer;
  }
  void release_saved(NodeId node);
  // What a node has in an attribute (Recipe::holds): until the loss goes, or `within` a checkpoint's recomputation,
  // until the graph that it has made goes.
  void hold_attributes(NodeId node, bool within);
  void release_attributes_within();

  // Graph::leaves: their AccumulateGrad holds them, and they their `.grad`, until the loss goes.
  void hold_leaves(NodeId producer);
  // Takes over the reference.
  void hold_until_loss_goes(BufferId buffer) { leaves_.push_back(buffer); }
  // A leaf has another storage now, and is held by the same.
  void replace_leaf(BufferId before, BufferId with);
  void release_leaves();
  [[nodiscard]] std::vector<BufferId> take_leaves() { return std::exchange(leaves_, {}); }

 private:
  [[nodiscard]] BufferId memory_of(TensorId tensor);

  const GraphFacts& facts_;
  Emitter& emitter_;
  TrainingRuntime& runtime_;
  Indexed<StorageId, BufferId> buffers_;
  std::vector<BufferId> saved_;   // By saved index.
  std::vector<BufferId> leaves_;  // What they and their gradients lie in.
  std::vector<BufferId> within_;  // Attributes of a recomputation's nodes.
};

}  // namespace dsplan
