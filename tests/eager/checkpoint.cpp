// torch/utils/checkpoint.py. The non-reentrant form: every tensor that would be saved is replaced by an empty holder.
// The first one that is asked for runs the region again, up to the tensor that was saved last; what is re-packed waits
// in the frame until its own node asks for it, and is handed over then, so that it dies with that node's function.
#include "eager/autograd.h"

namespace eager {
namespace {

struct StopRecomputation {};

struct Holder {
  std::size_t index = 0;
};

struct Frame {
  std::function<Tensor(const Tensor&)> function;  // With its keyword arguments.
  Tensor argument;
  std::size_t holders = 0;
  bool recomputed = false;
  std::vector<Tensor> tensors;
};

// While the region runs again.
struct Recomputing final : SavedHooks {
  explicit Recomputing(Frame& frame) : frame_(frame) {}
  std::shared_ptr<void> pack(const Tensor& x) override {
    frame_.tensors.push_back(x->requires_grad ? detached(x) : x);  // A parameter's memory is kept past its release.
    if (frame_.tensors.size() == frame_.holders) throw StopRecomputation();
    return nullptr;
  }
  Tensor unpack(const std::shared_ptr<void>&) override { return nullptr; }

 private:
  Frame& frame_;
};

void recompute(Frame& frame) {
  frame.recomputed = true;
  const Doing doing("recomputation");
  const GradMode on(true);
  const WithHooks hooks(std::make_shared<Recomputing>(frame));
  try {
    const Tensor argument = frame.argument;
    const Tensor unused = frame.function(argument);
  } catch (const StopRecomputation&) {
    // Early stop: the frames are unwound.
  }
}

struct Checkpointing final : SavedHooks {
  explicit Checkpointing(std::shared_ptr<Frame> frame) : frame_(std::move(frame)) {}
  std::shared_ptr<void> pack(const Tensor&) override {
    auto holder = std::make_shared<Holder>();
    holder->index = frame_->holders++;
    return holder;
  }
  Tensor unpack(const std::shared_ptr<void>& packed) override {
    if (!frame_->recomputed) recompute(*frame_);
    return std::move(frame_->tensors[static_cast<const Holder*>(packed.get())->index]);
  }

 private:
  std::shared_ptr<Frame> frame_;
};

}  // namespace

Tensor checkpoint(const std::function<Tensor(const Tensor&)>& function, const Tensor& argument) {
  auto frame = std::make_shared<Frame>();
  frame->function = function;
  frame->argument = argument;
  const WithHooks hooks(std::make_shared<Checkpointing>(std::move(frame)));
  return function(argument);
}

// One node around the region. Its backward owns a frame: the gradients that it was called with, the detached input and
// the output made again live until the engine that it calls has come back.
Tensor reentrant_checkpoint(const std::function<Tensor(const Tensor&)>& function, const Tensor& argument) {
  const std::shared_ptr<Node> node = make_node("CheckpointFunction", {argument});
  if (node) node->saved.emplace_back(argument);
  Tensor out;
  {
    const GradMode off(false);
    out = function(argument);
  }
  if (!node) return out;
  node->backward = [function](Tensors& gradients, Tensors& saved) -> Tensors {
    const Tensor input = detached(saved[0]);
    input->requires_grad = true;
    Tensor again;
    {
      const Doing doing("recomputation");
      const GradMode on(true);
      again = function(input);
    }
    run_nested_backward(again, gradients[0]);
    return {input->grad};
  };
  set_history(out, node);
  return out;
}

}  // namespace eager
