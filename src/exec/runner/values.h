// Which tensor each value of a program is, while it runs: where it lies and how. Shapes come from the executor's own
// operators (exec/operators/operators.h) alone; of the program only names and order are taken.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/graph.h"
#include "core/program.h"
#include "exec/operators/layout.h"
#include "exec/operators/operators.h"

namespace dsplan::exec {

// A value that has been made: `offset` bytes into its buffer.
struct TensorAt {
  BufferId buffer = kNoBuffer;
  Bytes offset;
  Described what;
};

// Which task makes what lies in a buffer.
class BufferMakers {
 public:
  explicit BufferMakers(const Program& program);
  // nullptr: a runtime's own buffer.
  [[nodiscard]] const Task* of(BufferId buffer) const { return makers_.has(buffer) ? makers_[buffer] : nullptr; }

 private:
  Indexed<BufferId, const Task*> makers_;
};

class Values {
 public:
  // Both must outlive this. Throws Refusal where a node of the graphs cannot be run (cannot_run), naming all of them.
  Values(std::span<const Graph> graphs, const Program& program);

  // How many bytes `task`'s operator wants for the buffer, as it stands; nullopt: it makes no such thing.
  [[nodiscard]] std::optional<Bytes> bytes_wanted(const Task& task, BufferId buffer);

  // A view, or a gradient that is handed over: nothing runs. `gradient_ready` says how what the runtime takes must lie.
  void apply(const Task& task);
  // The tensors of a task on values, in its order; absent where there is none. Everything it makes becomes known.
  struct Operands {
    std::vector<std::optional<TensorAt>> in;
    std::vector<std::optional<TensorAt>> made;  // By MadeValue.
  };
  [[nodiscard]] Operands operands(const Task& task);

  [[nodiscard]] const TensorAt& at(ValueId value) const;

 private:
  // What the last call of a node in forward was given: a node of autograd remembers it.
  using Inputs = std::vector<Described>;

  [[nodiscard]] const std::vector<Made>& made_by(const Task& task);
  [[nodiscard]] std::vector<Made> forward(const Task& task);
  [[nodiscard]] std::vector<Made> backward(const Task& task);
  [[nodiscard]] Made gradient(const Task& task) const;
  [[nodiscard]] const Described* wanted(const Task& task, const MadeValue& made);
  void define(const Task& task);
  void view_forward(const Task& task);
  void view_backward(const Task& task);
  [[nodiscard]] const Graph& graph(const Task& task) const { return graphs_[task.graph]; }
  [[nodiscard]] const Node& node(const Task& task) const { return graph(task).node(task.node); }
  [[nodiscard]] Inputs& inputs_of(const Task& task) { return inputs_[task.graph][task.node]; }

  std::span<const Graph> graphs_;
  const Program& program_;
  std::vector<std::optional<TensorAt>> tensors_;  // By value.
  std::vector<Indexed<NodeId, Inputs>> inputs_;   // By graph.
  const Task* cached_ = nullptr;                  // Whose answer `makes_` is.
  std::vector<Made> makes_;
};

}  // namespace dsplan::exec
