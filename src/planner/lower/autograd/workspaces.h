// Places the libraries' workspaces where PyTorch does: at the first matrix product of each thread. The training loop
// multiplies on two threads, its own (forward) and autograd's (backward, and what is recomputed there).
#pragma once

#include <array>
#include <optional>

#include "core/graph.h"
#include "planner/libraries/library_memory.h"
#include "planner/lower/eager.h"

namespace dsplan {

class Workspaces {
 public:
  // Without sizes nothing is placed. `emitter` must outlive this.
  Workspaces(std::optional<LibraryWorkspaces> sizes, Emitter& emitter) : sizes_(sizes), emitter_(emitter) {}

  // Right before a kernel of `node` in the emitter's pass, with the kernel's outputs made.
  void before_kernel(const Graph& graph, const Node& node) {
    const bool adapted = node.op == Op::AdaptedLinear || node.op == Op::AdaptedGated;
    const bool multiplies = node.op == Op::Linear || node.op == Op::Matmul || node.op == Op::ChunkedLogProb || adapted;
    if (sizes_ && multiplies) before_product(graph, node);
  }
  // The same before a product of the loop's thread that no node stands for, without a bias.
  void before_product() {
    if (sizes_) handle_of(threads_[0]);
  }

 private:
  struct Thread {
    bool cublas = false;
    bool cublaslt = false;
  };

  void before_product(const Graph& graph, const Node& node);
  void handle_of(Thread& thread);
  [[nodiscard]] Variable make(Bytes bytes, Label label);

  std::optional<LibraryWorkspaces> sizes_;
  Emitter& emitter_;
  std::array<Thread, 2> threads_{};  // The loop's, autograd's.
};

}  // namespace dsplan
