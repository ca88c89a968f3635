#include "planner/lower/workspaces.h"

namespace dsplan {

void Workspaces::before_product(const Node& node) {
  const Pass pass = emitter_.pass();
  Thread& thread = threads_[pass == Pass::Backward || pass == Pass::Recompute ? 1 : 0];
  if (!thread.cublas) {
    thread.cublas = true;
    (void)make(sizes_->cublas, "cuBLAS workspace");
  }
  // Only addmm with a bias goes through cuBLASLt, and backward multiplies without one. DeepSpeed's own linear function
  // adds the bias in a kernel of its own.
  const bool biased = node.op == Op::Linear && node.input_count == 3 && node.product != Product::Function;
  if (!biased || pass == Pass::Backward || sizes_->cublaslt == Bytes(0) || thread.cublaslt) return;
  const BufferId buffer = make(sizes_->cublaslt, "cuBLASLt workspace");
  if (sizes_->lt_per_call) {
    emitter_.release(buffer, Reason::LastUse);
  } else {
    thread.cublaslt = true;
  }
}

// It belongs to no module, whichever happens to multiply first.
BufferId Workspaces::make(Bytes bytes, Label label) {
  const Pass pass = emitter_.pass();
  const ModuleId module = emitter_.module();
  emitter_.at(pass, kNone);
  const BufferId buffer = emitter_.allocate(bytes, DType::UInt8, Role::Workspace, label);
  emitter_.at(pass, module);
  emitter_.mark_scratch(buffer);
  emitter_.begin();
  emitter_.write(buffer);
  emitter_.compute("set workspace");
  return buffer;
}

}  // namespace dsplan
