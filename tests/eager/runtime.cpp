#include "eager/runtime.h"

#include <algorithm>

namespace eager {

Block block(const char* what, std::int64_t bytes) {
  const Doing doing(what);
  return std::make_shared<Storage>(bytes);
}

void passing(const char* what, std::int64_t bytes) {
  const Doing doing(what);
  const Storage storage(bytes);
}

Runtime::Runtime(const Plan& plan, Net& net) : plan_(plan), net_(net) {
  for (std::size_t at = 0; at < net.parameters.size(); ++at) {
    const Tensor& parameter = net.parameters[at];
    if (parameter->parameter != static_cast<int>(at)) continue;
    if (!plan.ignored.empty() && plan.ignored[at]) continue;
    leaves_.push_back(parameter);
    elements_ += parameter->elements();
  }
}

void Runtime::load() {
  for (const Tensor& leaf : leaves_) {
    if (leaf->storage == nullptr) leaf->storage = block("parameter", bytes(leaf->elements()));
  }
}

void Runtime::make_overflow_buffer() {
  if (plan_.fused) overflow_ = block("overflow buffer", 4);
}

// torch.stack(norms).pow(2).sum() and its root, in another width.
void Runtime::combine_norms(std::int64_t each, std::int64_t root) {
  const auto count = static_cast<std::int64_t>(of_gradients_.size());
  Block sum;
  if (count > 0) {
    Block stacked = block("norms of gradients", each * count);
    const Block squares = block("squares of norms", each * count);
    stacked.reset();
    sum = block("sum of squares", each);
  }
  const Block norm = block("norm", root);
  sum.reset();
}

void Runtime::hold_norms(std::int64_t each, std::size_t groups) {
  for (std::size_t one = 0; one < groups + 1; ++one) norms_.push_back(block("norm of the step", each));
  if (norm_) norms_.push_back(norm_);
  norm_ = block("global norm", each);
}

void Runtime::make_state(std::int64_t size) {
  state_.push_back(block("exp_avg", size));
  state_.push_back(block("exp_avg_sq", size));
}

namespace {

// One tensor per parameter and per gradient; torch.optim.AdamW.
class Plain : public Runtime {
 public:
  using Runtime::Runtime;

  void initialise() override {
    load();
    if (plan_.world > 1) broadcast(leaves_);
    // Before anything is known about the order of gradients there is one bucket for everything.
    if (plan_.world > 1) buckets_.push_back(block("bucket", bytes(elements_)));
    copies_outputs = plan_.ddp_static;
    if (plan_.ddp_static) used_ = block("which parameters were used", 4 * static_cast<std::int64_t>(leaves_.size()));
    for (const Tensor& leaf : leaves_) bucket_of_[leaf.get()] = 0;
  }

  void forward_begins() override {
    if (plan_.world == 1) return;
    rebuild_buckets();
    if (boundary_ && plan_.ddp_buffers) broadcast({});
  }

  void rebuild_buckets() {
    if (rebuilt_ || order_.empty()) return;
    rebuilt_ = true;
    buckets_.clear();
    std::int64_t filled = 0;
    for (const Tensor& leaf : order_) {
      bucket_of_[leaf.get()] = buckets_.size();
      filled += bytes(leaf->elements());
      const std::int64_t own = buckets_.empty() ? 1 << 20 : 25 << 20;
      const std::int64_t limit = plan_.ddp_cap > 0 ? plan_.ddp_cap << 20 : own;
      if (filled < limit) continue;
      buckets_.push_back(block("bucket", filled));
      filled = 0;
    }
    if (filled > 0) buckets_.push_back(block("bucket", filled));
  }

  void backward_begins(bool boundary) override { boundary_ = boundary; }
  // What was copied into the bucket is a view of it from there on.
  // The first backward of a static graph notes nothing: its hooks do not run.
  void ready(const Tensor& leaf) override {
    if (delayed()) return;
    if (boundary_ && !rebuilt_) order_.push_back(leaf);
    if (boundary_ && plan_.ddp_views && plan_.world > 1) put_in_bucket(leaf);
  }
  // Then all gradients are reduced, in a callback at backward's end.
  void autograd_ends() override {
    if (!delayed()) return;
    copies_outputs = false;
    if (!plan_.ddp_views) return;
    for (const Tensor& leaf : leaves_) put_in_bucket(leaf);
  }

  void step() override {
    const Tensors own = plan_.ddp_shares ? share() : leaves_;
    if (state_.empty()) {
      for (const Tensor& leaf : own) {
        if (plan_.fused) state_.push_back(block("step counter", 4));
        make_state(bytes(leaf->elements()));
      }
    }
    std::vector<Block> roots;
    if (!plan_.fused) {
      for (const Tensor& leaf : own) roots.push_back(block("square root", bytes(leaf->elements())));
    }
    roots.clear();
    for (const Tensor& leaf : leaves_) leaf->grad.reset();
  }

 private:
  [[nodiscard]] bool delayed() const { return copies_outputs; }

  // `.grad` becomes another tensor: what the first was a view of goes with it.
  void put_in_bucket(const Tensor& leaf) {
    const Tensor view = detached(leaf->grad);
    view->storage = buckets_[bucket_of_.at(leaf.get())];
    view->base.reset();
    leaf->grad = view;
  }

  // ZeroRedundancyOptimizer deals out parameters, the largest first, each to whoever has been dealt the least.
  [[nodiscard]] Tensors share() const {
    Tensors all = leaves_;
    std::stable_sort(all.begin(), all.end(),
                     [](const Tensor& a, const Tensor& b) { return a->elements() > b->elements(); });
    std::vector<std::int64_t> dealt(static_cast<std::size_t>(plan_.world), 0);
    Tensors own;
    for (const Tensor& leaf : all) {
      const auto least = std::min_element(dealt.begin(), dealt.end());
      *least += leaf->elements();
      if (least - dealt.begin() == plan_.rank) own.push_back(leaf);
    }
    return own;
  }

  // Rank 0 sends `states` and the model's buffers, flattened by dtype; a single one goes as it is. What was sent before
  // is there until the next is on its way.
  void broadcast(Tensors states) {
    if (plan_.ddp_buffers) states.insert(states.end(), net_.buffers.begin(), net_.buffers.end());
    std::map<dsplan::DType, std::pair<int, std::int64_t>> of_type;
    std::vector<dsplan::DType> order;
    for (const Tensor& state : states) {
      auto& [count, sum] = of_type[state->dtype];
      if (count++ == 0) order.push_back(state->dtype);
      sum += state->elements() * dsplan::bytes_per_element(state->dtype);
    }
    Block before;
    for (const dsplan::DType type : order) {
      const auto [count, sum] = of_type[type];
      Block flat;
      if (count > 1) flat = block("flat states", sum);
      before = std::move(flat);
    }
  }

  std::vector<Block> buckets_;
  std::map<const TensorImpl*, std::size_t> bucket_of_;
  Tensors order_;
  bool boundary_ = true;
  bool rebuilt_ = false;
  Block used_;
};

// FP16_Optimizer in 16 bit (fp16/fused_optimizer.py), the base optimizer in fp32.
class Stage0 : public Runtime {
 public:
  using Runtime::Runtime;

  void initialise() override {
    load();
    make_overflow_buffer();
    if (!plan_.mixed()) return;
    std::vector<Block> clones;
    for (const Tensor& leaf : leaves_) clones.push_back(block("clone", bytes(leaf->elements())));
    const Block flat = block("flat parameters", bytes(elements_));
    clones.clear();
    for (const Tensor& leaf : leaves_) leaf->storage = flat;
    Block clone = block("clone of all", bytes(elements_));
    master_ = block("master", 4 * elements_);
    clone.reset();
    const Block zeros = block("zero gradients", 4 * elements_);
    make_state(4 * elements_);
  }

  void ready(const Tensor&) override {}

  // Concatenations of more than 5e8 elements, in the order of parameters, on one rank as well. One gradient alone is a
  // view.
  void backward_ends(bool boundary) override {
    if (!boundary) return;
    std::int64_t filled = 0;
    int count = 0;
    const auto join = [&] {
      if (count > 1) passing("joined gradients", bytes(filled));
      filled = count = 0;
    };
    for (const Tensor& leaf : leaves_) {
      filled += leaf->elements();
      ++count;
      if (filled > 500'000'000) join();
    }
    join();
  }

  void step() override {
    if (plan_.mixed()) {
      step_flat();
      return;
    }
    const bool first = state_.empty();
    for (const Tensor& leaf : leaves_) {
      if (first) make_state(bytes(leaf->elements()));
    }
    for (const Tensor& leaf : leaves_) leaf->grad.reset();
  }

 private:
  void step_flat() {
    const bool cut = net_.is_cut();
    if (cut) passing("overflow flag", 1);
    std::vector<Block> casts;
    for (const Tensor& leaf : leaves_) casts.push_back(block("gradient in fp32", 4 * leaf->elements()));
    const Block flat = block("flat gradient in fp32", 4 * elements_);
    casts.clear();
    for (const Tensor& leaf : leaves_) leaf->grad.reset();
    const Block norm = block("norm of the flat gradient", 4);  // It becomes Python's,
    passing("norm for other ranks", 4);                        // and goes back and forth.
  }

  Block master_;
};

std::unique_ptr<Runtime> make_runtime(const Plan& plan, Net& net) {
  if (plan.flat.on) return make_fsdp1(plan, net);
  if (!plan.units.empty()) return make_fsdp(plan, net);
  if (!plan.deepspeed) return make_plain(plan, net);
  if (plan.stage == 0) return make_stage0(plan, net);
  return plan.stage == 3 ? make_stage3(plan, net) : make_stage12(plan, net);
}

struct Batch {
  Tensor ids;
  Tensor labels;
};

Batch make_batch(const Settings& settings) {
  const Doing doing("batch");
  Batch batch;
  batch.ids = empty({settings.batch, settings.seq}, DType::Int64);
  batch.labels = empty({settings.batch, settings.seq}, DType::Int64);
  return batch;
}

}  // namespace

std::unique_ptr<Runtime> make_plain(const Plan& plan, Net& net) { return std::make_unique<Plain>(plan, net); }
std::unique_ptr<Runtime> make_stage0(const Plan& plan, Net& net) { return std::make_unique<Stage0>(plan, net); }

namespace {

// One module's constructor: its parameters, then its buffers. What will be tied is made as well. Under zero.Init the
// runtime makes the parameters, and what comes in floating point is converted to the model's dtype.
void construct(Net& net, const dsplan::ModelSpec& spec, std::size_t module, const Plan& plan, bool cut,
               std::vector<Block>& tied) {
  const DType dtype = plan.flat.on ? plan.flat.made : plan.dtype;
  for (std::size_t at = 0; at < spec.parameters.size(); ++at) {
    const dsplan::Parameter& parameter = spec.parameters[at];
    if (cut || static_cast<std::size_t>(parameter.module) != module) continue;
    Block made = block("parameter", storage(parameter.shape.elements(), dtype).value());
    if (parameter.tied_to == dsplan::kNone) {
      net.parameters[at]->storage = std::move(made);
    } else {
      tied.push_back(std::move(made));
    }
  }
  for (std::size_t at = 0; at < spec.buffers.size(); ++at) {
    const dsplan::ModelBuffer& buffer = spec.buffers[at];
    if (static_cast<std::size_t>(buffer.module) != module) continue;
    const Doing doing("buffer");
    const bool narrow = cut && buffer.dtype == dsplan::DType::Float32 && !buffer.converted;
    const bool follows = buffer.follows_model_dtype || narrow;
    net.buffers[at] = empty({buffer.shape.elements().value()}, follows ? dtype : buffer.dtype);
  }
}

}  // namespace

std::vector<Entry> train(const dsplan::ModelSpec& spec, Settings settings, const Plan& plan) {
  Memory memory;
  settings.stage3_linear = plan.deepspeed && plan.stage == 3;
  Net net(spec, settings);
  net.buffers.resize(spec.buffers.size());
  const std::unique_ptr<Runtime> runtime = make_runtime(plan, net);
  if (plan.units.empty() || (plan.flat.on && !plan.flat.on_host)) {
    std::vector<Block> tied;
    for (std::size_t module = 0; module < spec.modules.size(); ++module) {
      if (settings.stage3_linear) runtime->construct(static_cast<int>(module));
      construct(net, spec, module, plan, settings.stage3_linear, tied);
    }
  }
  runtime->initialise();
  net.hooks = runtime.get();
  const ReadyHook ready = [&](const Tensor& leaf) { runtime->ready(leaf); };
  Batch batch;
  for (std::int64_t at = 0; at < (plan.ddp_static ? 3 : 2) * plan.micro_batches; ++at) {
    const bool boundary = (at + 1) % plan.micro_batches == 0;
    batch = make_batch(settings);
    runtime->forward_begins();
    Tensor loss = net.loss(batch.ids, batch.labels, runtime->copies_outputs);
    Block divided;
    Block scaled;  // engine.backward.
    if (plan.deepspeed) divided = block("loss by micro-batches", 4);
    if (plan.deepspeed && plan.stage > 0) scaled = block("scaled loss", 4);
    runtime->backward_begins(boundary);
    run_backward(loss, ready, [&] { runtime->autograd_ends(); });
    runtime->backward_ends(boundary);
    divided.reset();
    scaled.reset();
    loss.reset();
    if (boundary) runtime->step();
  }
  return memory.log;
}

}  // namespace eager
