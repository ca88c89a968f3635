// What the tape tells an executor (core/program.h): tensors as values, made once; operators as tasks on them. Bodies
// are said where the work ends, in the words of Emitter::compute.
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "model/catalogue/catalogue.h"
#include "planner/lower/autograd/storages.h"

namespace dsplan {

struct Gradient;

class TapeRecording {
 public:
  // All references must outlive this.
  TapeRecording(const GraphFacts& facts, Storages& storages, const TrainingRuntime& runtime, Emitter& emitter,
                Recording& recording);

  // What the tensor is now: parameters and the model's own buffers wherever they lie, all else as it was made last.
  [[nodiscard]] ValueId value_of(TensorId tensor);
  // It lies contiguously in `buffer` from here on.
  void place(TensorId tensor, BufferId buffer);
  // Of Graph::batch: which one, and where.
  void batch(std::size_t at, TensorId input, BufferId buffer);

  // The slots of the operator under way, which a selective checkpoint keeps and brings back.
  void begin_operator(std::size_t slots) { slots_.assign(slots, kNoValue); }
  void slot(std::size_t slot, BufferId buffer) { slots_[slot] = recording_.made_in(buffer); }
  [[nodiscard]] const std::vector<ValueId>& slots() const { return slots_; }
  void bring_back(NodeId node, const std::vector<ValueId>& slots);

  // Forward: the kernel under way is part `part` of `node`, of whose slots `end` are made; or it is but a view.
  void forward(NodeId node, std::size_t end, std::uint8_t part);
  void view(NodeId node);
  void save(const Saved& item, NodeId node, std::size_t index, BufferId buffer);
  [[nodiscard]] ValueId saved(std::size_t index) const { return saved_[index]; }
  // Backward: the same. `inside`: the node's function reads what was saved, where a sum behind it does not.
  void backward(NodeId node, std::span<const Gradient> incoming, std::size_t end, std::uint8_t part, bool inside);
  // The gradient itself, or a view of it, is that of input `input`.
  [[nodiscard]] ValueId passed(NodeId node, std::size_t input, ValueId gradient);
  // The work under way makes a gradient of `from`, which fills `buffer`.
  [[nodiscard]] ValueId gradient(std::initializer_list<ValueId> from, BufferId buffer);
  // The runtime takes it over.
  void ready(ParameterId parameter, ValueId gradient);
  void loss();

 private:
  void outputs(NodeId node);
  [[nodiscard]] std::vector<MadeValue> made(NodeId node, std::size_t end, bool backward) const;
  void inputs(const Node& node);  // Into scratch_.

  const GraphFacts& facts_;
  const Graph& graph_;
  Storages& storages_;
  const TrainingRuntime& runtime_;
  Emitter& emitter_;
  Recording& recording_;
  Indexed<TensorId, ValueId> values_;
  std::vector<ValueId> saved_;  // By saved index.
  std::vector<ValueId> slots_;
  std::vector<ValueId> scratch_;
};

}  // namespace dsplan
