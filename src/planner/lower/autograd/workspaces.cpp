#include "planner/lower/autograd/workspaces.h"

#include <utility>

#include "model/catalogue/catalogue.h"

namespace dsplan {

void Workspaces::before_product(const Graph& graph, const Node& node) {
  const Pass pass = emitter_.pass();
  if (is_int8_product(node) && pass != Pass::Backward) return;
  Thread& thread = threads_[pass == Pass::Backward || pass == Pass::Recompute ? 1 : 0];
  // Only addmm with a bias goes through cuBLASLt, and backward multiplies without one. DeepSpeed's own linear function
  // calls it for two dimensions alone, and adds the bias in a kernel of its own for more.
  const bool biased = node.op == Op::Linear && node.input_count == 3 &&
                      (node.product != Product::Function || graph.tensor(graph.input(node, 0)).shape.rank == 2);
  // Nor does one of a single column (ATen/native/cuda/Blas.cpp, addmm).
  const Shape& made = graph.tensor(graph.output(node)).shape;
  const bool column = made.rank > 0 && made.dims[made.rank - 1U] == 1;
  const bool lt = biased && !column && pass != Pass::Backward && sizes_->cublaslt > Bytes(0) && !thread.cublaslt;
  if (lt && sizes_->lt_per_call) {  // It is there before the handle is asked for.
    Variable workspace = make(sizes_->cublaslt, "cuBLASLt workspace");
    handle_of(thread);
    return workspace.reset(Reason::PythonFrame);  // The call's own variable.
  }
  handle_of(thread);
  if (!lt) return;
  thread.cublaslt = true;
  (void)make(sizes_->cublaslt, "cuBLASLt workspace").hand_over();
}

// The pool keeps it for good.
void Workspaces::handle_of(Thread& thread) {
  if (std::exchange(thread.cublas, true)) return;
  (void)make(sizes_->cublas, "cuBLAS workspace").hand_over();
}

// It belongs to no module, whichever happens to multiply first.
Variable Workspaces::make(Bytes bytes, Label label) {
  const Pass pass = emitter_.pass();
  const ModuleId module = emitter_.module();
  emitter_.at(pass, kNone);
  Variable workspace = Eager(emitter_).empty(
      bytes, DType::UInt8, {Role::Workspace, label, "torch: aten/src/ATen/cuda/CublasHandlePool.cpp"});
  emitter_.at(pass, module);
  emitter_.mark_scratch(workspace.id());
  Work(emitter_).write(workspace).run(Body::Nothing, "set workspace");
  return workspace;
}

}  // namespace dsplan
