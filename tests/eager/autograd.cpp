#include "eager/autograd.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <stdexcept>
#include <unordered_map>

namespace eager {
namespace {

constexpr std::uint64_t kFirst = std::numeric_limits<std::uint64_t>::max();  // AccumulateGrad before all others.

bool grad_mode = true;
std::uint64_t next_sequence = 0;
std::vector<std::shared_ptr<SavedHooks>> hook_stack;

std::shared_ptr<Node> accumulator_of(const Tensor& leaf) {
  std::shared_ptr<Node> node = leaf->accumulator.lock();
  if (node) return node;
  node = std::make_shared<Node>();
  node->name = "AccumulateGrad";
  node->sequence = kFirst;
  leaf->accumulator = node;
  return node;
}

// Nobody else may see the first gradient's memory: neither another tensor nor a base below it.
bool may_add_in_place(const Tensor& held) {
  return held.use_count() == 1 && held->storage.use_count() == 1 && !held->base && is_dense(*held);
}

void add_to_buffer(Tensor& held, Tensor arrived) {
  if (!held) {
    held = std::move(arrived);
    return;
  }
  if (may_add_in_place(held)) return;
  const Doing doing("sum of gradients");
  held = empty_like(held);
}

}  // namespace

bool grad_enabled() { return grad_mode; }
GradMode::GradMode(bool enabled) : before_(grad_mode) { grad_mode = enabled; }
GradMode::~GradMode() { grad_mode = before_; }

WithHooks::WithHooks(std::shared_ptr<SavedHooks> hooks) { hook_stack.push_back(std::move(hooks)); }
WithHooks::~WithHooks() { hook_stack.pop_back(); }

Saved::Saved(const Tensor& x) {
  if (!hook_stack.empty()) {
    hooks_ = hook_stack.back();
    packed_ = hooks_->pack(x);
  } else {
    data_ = x->parameter >= 0 ? x : detached(x);
  }
}

Tensor Saved::unpack() const { return hooks_ ? hooks_->unpack(packed_) : data_; }

std::shared_ptr<Node> make_node(const char* name, const Tensors& inputs) {
  if (!grad_mode) return nullptr;
  if (std::none_of(inputs.begin(), inputs.end(), [](const Tensor& x) { return x && x->requires_grad; })) return nullptr;
  auto node = std::make_shared<Node>();
  node->name = name;
  node->sequence = next_sequence++;
  for (const Tensor& x : inputs) {
    Edge edge;
    TensorImpl shape;
    if (x) {
      shape.sizes = x->sizes;
      shape.dtype = x->dtype;
      if (x->requires_grad && x->grad_fn) edge = {x->grad_fn, x->output};
      if (x->requires_grad && !x->grad_fn) {
        edge = {accumulator_of(x), 0};
        edge.node->backward = [x](Tensors&, Tensors&) -> Tensors { return {x}; };
      }
    }
    node->next.push_back(edge);
    node->inputs.push_back(std::move(shape));
  }
  return node;
}

void set_history(const Tensor& out, const std::shared_ptr<Node>& node, std::uint32_t output) {
  if (!node) return;
  out->requires_grad = true;
  out->grad_fn = node;
  out->output = output;
}

bool wants(const Node& node, std::size_t input) { return node.next[input].node != nullptr; }

namespace {

struct ByTurn {
  bool operator()(const std::shared_ptr<Node>& a, const std::shared_ptr<Node>& b) const {
    return a->sequence < b->sequence;
  }
};

class Engine {
 public:
  explicit Engine(const ReadyHook& ready) : ready_(ready) {}

  void run(const Tensor& root, Tensor gradient) {
    count(root->grad_fn);
    buffers_[root->grad_fn.get()].assign(root->grad_fn->outputs, nullptr);
    buffers_[root->grad_fn.get()][root->output] = std::move(gradient);
    turns_.push(root->grad_fn);
    while (!turns_.empty()) {
      const std::shared_ptr<Node> node = turns_.top();
      turns_.pop();
      evaluate(*node);
    }
  }

 private:
  void count(const std::shared_ptr<Node>& root) {
    std::vector<Node*> pending{root.get()};
    std::set<Node*> seen{root.get()};
    while (!pending.empty()) {
      Node* node = pending.back();
      pending.pop_back();
      for (const Edge& edge : node->next) {
        if (!edge.node) continue;
        ++dependencies_[edge.node.get()];
        if (seen.insert(edge.node.get()).second) pending.push_back(edge.node.get());
      }
    }
  }

  void evaluate(Node& node) {
    const Doing doing(std::string("backward of ") + node.name);
    Tensors made = call(node);
    node.saved.assign(node.saved.size(), Saved());  // release_variables
    for (std::size_t at = 0; at < node.next.size(); ++at) {
      const Edge& edge = node.next[at];
      if (!edge.node) continue;
      Tensors& buffer = buffers_[edge.node.get()];
      buffer.resize(std::max<std::size_t>(buffer.size(), edge.node->outputs));
      if (made[at]) add_to_buffer(buffer[edge.input], std::move(made[at]));
      made[at].reset();
      if (--dependencies_[edge.node.get()] == 0) turns_.push(edge.node);
    }
  }

  // call_function: the incoming gradients are its own and die with it; what broadcasting added is summed before that.
  Tensors call(Node& node) {
    Tensors gradients = std::move(buffers_[&node]);
    buffers_.erase(&node);
    if (node.sequence == kFirst) {
      accumulate(node, gradients);
      return {};
    }
    Tensors made = apply(node, gradients);
    for (std::size_t at = 0; at < made.size(); ++at) {
      if (!made[at] || !wants(node, at)) {
        made[at].reset();
      } else if (made[at]->elements() != node.inputs[at].elements()) {
        made[at] = empty(node.inputs[at].sizes, node.inputs[at].dtype);
      }
    }
    return made;
  }

  static Tensors apply(Node& node, Tensors& gradients) {
    Tensors unpacked;
    for (const Saved& saved : node.saved) unpacked.push_back(saved.unpack());
    return node.backward(gradients, unpacked);
  }

  void accumulate(Node& node, Tensors& gradients) {
    Tensors none;
    const Tensor leaf = node.backward(none, none)[0];
    if (!leaf->grad) {
      // Stolen if nobody else has this tensor; being a view does not matter, but its strides must be the leaf's.
      const bool alone = gradients[0].use_count() == 1;
      const bool fits = is_contiguous(*gradients[0]) && is_dense(*gradients[0]);
      leaf->grad = alone && fits ? std::move(gradients[0]) : empty(leaf->sizes, leaf->dtype);
    }
    if (!leaf->hooked) gradients.clear();
    if (leaf->parameter >= 0) ready_(leaf);
    gradients.clear();
  }

  const ReadyHook& ready_;
  std::priority_queue<std::shared_ptr<Node>, std::vector<std::shared_ptr<Node>>, ByTurn> turns_;
  std::unordered_map<const Node*, Tensors> buffers_;
  std::unordered_map<const Node*, int> dependencies_;
};

}  // namespace

namespace {

const ReadyHook* outer_hook = nullptr;

Tensor ones_like(const Tensor& x) {
  const Doing doing("ones_like");
  return empty(x->sizes, x->dtype);
}

}  // namespace

void run_backward(const Tensor& root, const ReadyHook& ready, const std::function<void()>& done) {
  const GradMode off(false);
  outer_hook = &ready;
  const Tensor seed = ones_like(root);  // The caller's, until backward returns.
  Engine(ready).run(root, seed);
  outer_hook = nullptr;
  done();
}

void run_nested_backward(const Tensor& root, const Tensor& gradient) {
  const GradMode off(false);
  Engine(*outer_hook).run(root, gradient);
}

}  // namespace eager
