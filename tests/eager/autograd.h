// The other half: nodes that save tensors, the engine, and both forms of checkpointing.
//
// Sources: torch/csrc/autograd/{engine,input_buffer,saved_variable}.cpp, functions/accumulate_grad.h,
// torch/utils/checkpoint.py.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>

#include "eager/tensor.h"

namespace eager {

[[nodiscard]] bool grad_enabled();
class GradMode {
 public:
  explicit GradMode(bool enabled);
  ~GradMode();
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  bool before_;
};

// torch.autograd.graph.saved_tensors_hooks: what packs returns is kept instead of the tensor.
struct SavedHooks {
  virtual ~SavedHooks() = default;
  virtual std::shared_ptr<void> pack(const Tensor& x) = 0;
  virtual Tensor unpack(const std::shared_ptr<void>& packed) = 0;
};
class WithHooks {
 public:
  explicit WithHooks(std::shared_ptr<SavedHooks> hooks);
  ~WithHooks();
  WithHooks(const WithHooks&) = delete;
  WithHooks& operator=(const WithHooks&) = delete;
};

// A leaf is kept by reference, so that a runtime may swap the memory below it; anything else keeps its memory.
class Saved {
 public:
  Saved() = default;
  explicit Saved(const Tensor& x);
  [[nodiscard]] Tensor unpack() const;

 private:
  Tensor data_;
  std::shared_ptr<SavedHooks> hooks_;
  std::shared_ptr<void> packed_;
};

struct Edge {
  std::shared_ptr<Node> node;
  std::uint32_t input = 0;
};
using Tensors = std::vector<Tensor>;

struct Node {
  const char* name = "";
  std::uint64_t sequence = 0;
  std::vector<Edge> next;          // One per input of the forward; empty edge: needs no gradient.
  std::vector<TensorImpl> inputs;  // Their sizes and dtypes, for sum_to_size.
  std::uint32_t outputs = 1;
  std::vector<Saved> saved;
  // From the gradients of the outputs and the unpacked saved tensors to those of the inputs.
  std::function<Tensors(Tensors& gradients, Tensors& saved)> backward;
};

// Makes the node of an operator over `inputs`, or nothing if no gradient is wanted. Saving what the kernel reads comes
// before the kernel runs: see op.h.
[[nodiscard]] std::shared_ptr<Node> make_node(const char* name, const Tensors& inputs);
void set_history(const Tensor& out, const std::shared_ptr<Node>& node, std::uint32_t output = 0);
[[nodiscard]] bool wants(const Node& node, std::size_t input);

// Called with a leaf when AccumulateGrad has run on it.
using ReadyHook = std::function<void(const Tensor& leaf)>;
// `done`: what was queued for the end of the pass.
void run_backward(const Tensor& root, const ReadyHook& ready, const std::function<void()>& done);
// The engine called by a node's own backward: leaves that are parameters go to the outer call's hook.
void run_nested_backward(const Tensor& root, const Tensor& gradient);

// torch.utils.checkpoint.checkpoint(use_reentrant=False): `function` owns the keyword arguments.
[[nodiscard]] Tensor checkpoint(const std::function<Tensor(const Tensor&)>& function, const Tensor& argument);
// The same with use_reentrant=True.
[[nodiscard]] Tensor reentrant_checkpoint(const std::function<Tensor(const Tensor&)>& function, const Tensor& argument);

}  // namespace eager
