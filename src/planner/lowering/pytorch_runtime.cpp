// Plain PyTorch: one tensor per parameter, gradients in `.grad`, an optimizer of torch.optim; with more than one rank
// DistributedDataParallel (torch/csrc/distributed/c10d/reducer.cpp).
#include <algorithm>

#include "core/error.h"
#include "planner/lowering/runtime_base.h"

namespace dsplan {
namespace {

// DDP: the first bucket closes at 1 MiB, the others at 25 MiB; a bucket may exceed its limit by one parameter.
constexpr Bytes kFirstBucket{1LL << 20};
constexpr Bytes kBucket{25LL << 20};

class PyTorchRuntime final : public RuntimeBase {
 public:
  PyTorchRuntime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
      : RuntimeBase(job, model, rank, emitter),
        parameters_(model.parameters.size(), kNoBuffer),
        gradients_(model.parameters.size(), kNoBuffer),
        states_(model.parameters.size()) {}

  void initialise() override {
    for (const Leaf& leaf : leaves_) parameters_[static_cast<std::size_t>(leaf.id)] = load_whole(leaf, "parameter");
    for (const Leaf& leaf : trained_) {
      const BufferId buffer = parameters_[static_cast<std::size_t>(leaf.id)];
      emitter_.promise_update(buffer, Bytes(0), emitter_.size(buffer));
    }
    if (world() > 1) start_ddp();
  }

  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override {
    const BufferId buffer = parameters_[static_cast<std::size_t>(parameter)];
    return {buffer, Bytes(0), emitter_.size(buffer)};
  }

  // Buckets are rebuilt in gradient-ready order at the first forward after a backward.
  void forward_begins() override {
    if (world() == 1 || rebuilt_ || ready_order_.empty()) return;
    for (Bucket& bucket : buckets_) emitter_.release(bucket.buffer, Reason::RuntimeBucket);
    build_buckets(ready_order_);
    rebuilt_ = true;
  }

  void backward_begins(bool boundary) override {
    boundary_ = boundary;
    next_bucket_ = 0;
    for (Bucket& bucket : buckets_) bucket.pending = bucket.parameters.size();
  }

  void gradient_ready(ParameterId parameter, BufferId gradient) override {
    accumulate(gradients_[static_cast<std::size_t>(parameter)], gradient);
    if (world() > 1 && boundary_) reduce_when_full(parameter);  // no_sync() before the boundary.
  }

  void step(bool first) override {
    if (first) create_state();
    std::vector<BufferId> temporaries = step_temporaries();
    for (const Leaf& leaf : trained_) {
      if (loops_over_adam()) divide_by_root(leaf, temporaries);
      update(leaf);
    }
    for (BufferId buffer : temporaries) emitter_.release(buffer, Reason::PythonFrame);
    for (const Leaf& leaf : trained_) {
      BufferId& gradient = gradients_[static_cast<std::size_t>(leaf.id)];
      if (gradient != kNoBuffer) emitter_.release(gradient, Reason::GradientHeld);
      gradient = kNoBuffer;
    }
  }

 private:
  struct Bucket {
    BufferId buffer = kNoBuffer;
    Bytes bytes;
    std::vector<ParameterId> parameters;
    std::vector<Bytes> offsets;
    std::size_t pending = 0;
  };

  // The very first iteration uses one bucket for everything; rank 0 broadcasts the parameters.
  void start_ddp() {
    for (const Leaf& leaf : leaves_) broadcast(parameters_[static_cast<std::size_t>(leaf.id)], leaf.dtype);
    Bucket all;
    for (const Leaf& leaf : trained_) add_to(all, leaf.id);
    if (!all.parameters.empty()) open(std::move(all));
  }

  void add_to(Bucket& bucket, ParameterId parameter) {
    bucket.parameters.push_back(parameter);
    bucket.offsets.push_back(bucket.bytes);
    bucket.bytes += emitter_.size(parameters_[static_cast<std::size_t>(parameter)]);
  }

  void open(Bucket bucket) {
    bucket.buffer = emitter_.allocate(bucket.bytes, trained_dtype(), Role::RuntimeBuffers, "gradient bucket");
    for (ParameterId parameter : bucket.parameters) {
      bucket_of_[static_cast<std::size_t>(parameter)] = static_cast<std::int32_t>(buckets_.size());
    }
    buckets_.push_back(std::move(bucket));
  }

  void build_buckets(const std::vector<ParameterId>& order) {
    buckets_.clear();
    Bucket bucket;
    for (ParameterId parameter : order) {
      add_to(bucket, parameter);
      if (bucket.bytes >= (buckets_.empty() ? kFirstBucket : kBucket)) open(std::exchange(bucket, {}));
    }
    if (!bucket.parameters.empty()) open(std::move(bucket));
  }

  // Buckets are reduced in order, each when all its gradients have come.
  void reduce_when_full(ParameterId parameter) {
    if (!rebuilt_) ready_order_.push_back(parameter);
    --buckets_[static_cast<std::size_t>(bucket_of_[static_cast<std::size_t>(parameter)])].pending;
    while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0) reduce(buckets_[next_bucket_++]);
  }

  void reduce(const Bucket& bucket) {
    emitter_.begin();
    for (ParameterId parameter : bucket.parameters) emitter_.read(gradients_[static_cast<std::size_t>(parameter)]);
    emitter_.write(bucket.buffer);
    emitter_.compute("copy gradients to bucket");
    emitter_.begin();
    emitter_.read(bucket.buffer);
    emitter_.write(bucket.buffer);
    emitter_.communicate(Collective::AllReduce, trained_dtype(), bucket.bytes);
    emitter_.begin();
    emitter_.read(bucket.buffer);
    for (ParameterId parameter : bucket.parameters) emitter_.write(gradients_[static_cast<std::size_t>(parameter)]);
    emitter_.compute("copy gradients back");
  }

  // Either the model is trained or its adapters are: one dtype.
  [[nodiscard]] DType trained_dtype() const { return trained_.empty() ? dtype() : trained_.front().dtype; }

  // In the parameter's dtype. Fused implementations keep their step counter on the device, one fp32 per parameter.
  void create_state() {
    const bool counter =
        training().optimizer.implementation == Implementation::Fused &&
        (training().optimizer.kind == OptimizerKind::Adam || training().optimizer.kind == OptimizerKind::AdamW);
    if (training().optimizer.kind == OptimizerKind::Adam8bit) {
      for (Label label : {"quantisation map of exp_avg", "quantisation map of exp_avg_sq"}) {
        maps_.push_back(emitter_.allocate(Bytes(1024), DType::Float32, Role::Optimizer, label));
      }
      emitter_.begin();
      write_all(maps_);
      emitter_.compute("create optimizer state");
    }
    for (const Leaf& leaf : trained_) {
      std::vector<BufferId>& state = states_[static_cast<std::size_t>(leaf.id)];
      if (counter) {
        state.push_back(emitter_.allocate(Bytes(4), DType::Float32, Role::Optimizer, "step", leaf.id));
      }
      const Parameter& parameter = model_.parameters[static_cast<std::size_t>(leaf.id)];
      for (const StateTensor& tensor :
           optimizer_state(training().optimizer, parameter.shape, leaf.dtype, is_hidden_matrix(parameter))) {
        state.push_back(emitter_.allocate(tensor.bytes, tensor.dtype, Role::Optimizer, tensor.label, leaf.id));
      }
      if (state.empty()) continue;
      emitter_.begin();
      write_all(state);
      emitter_.compute("create optimizer state");
    }
  }

  [[nodiscard]] bool is_hidden_matrix(const Parameter& parameter) const {
    return parameter.shape.rank == 2 && parameter.split != Split::Vocabulary &&
           model_.modules[static_cast<std::size_t>(parameter.module)].layer != kNone;
  }

  [[nodiscard]] bool is_adam() const {
    return training().optimizer.kind == OptimizerKind::Adam || training().optimizer.kind == OptimizerKind::AdamW;
  }
  [[nodiscard]] bool loops_over_adam() const {
    return is_adam() && training().optimizer.implementation == Implementation::ForLoop;
  }

  BufferId make_temporary(const Leaf& leaf) {
    const BufferId made =
        emitter_.allocate(in_model_dtype(leaf.elements), dtype(), Role::Temporaries, "optimizer temporary");
    emitter_.mark_scratch(made);
    return made;
  }

  // The plain loop's `denom = exp_avg_sq.sqrt() / correction`: the variable holds the parameter before this one until
  // the quotient is there (torch/optim/adam.py, _single_tensor_adam).
  void divide_by_root(const Leaf& leaf, std::vector<BufferId>& denominator) {
    const BufferId root = make_temporary(leaf);
    emitter_.begin();
    emitter_.write(root);
    emitter_.compute("square root of exp_avg_sq");
    const BufferId quotient = make_temporary(leaf);
    emitter_.begin();
    emitter_.read(root);
    emitter_.write(quotient);
    emitter_.compute("divide by the bias correction");
    emitter_.release(root, Reason::LastUse);
    for (BufferId before : denominator) emitter_.release(before, Reason::PythonFrame);
    denominator = {quotient};
  }

  // Foreach Adam makes the list of square roots, one tensor per parameter.
  std::vector<BufferId> step_temporaries() {
    std::vector<BufferId> made;
    if (!is_adam() || training().optimizer.implementation != Implementation::Foreach) return made;
    for (const Leaf& leaf : trained_) made.push_back(make_temporary(leaf));
    if (!made.empty()) {
      emitter_.begin();
      write_all(made);
      emitter_.compute("square roots of exp_avg_sq");
    }
    return made;
  }

  void update(const Leaf& leaf) {
    const auto at = static_cast<std::size_t>(leaf.id);
    if (gradients_[at] == kNoBuffer) return;
    emitter_.begin();
    emitter_.read(parameters_[at]);
    emitter_.read(gradients_[at]);
    read_all(states_[at]);
    read_all(maps_);
    emitter_.write(parameters_[at]);
    write_all(states_[at]);
    emitter_.compute("optimizer update");
  }

  std::vector<BufferId> parameters_;  // By ParameterId, as are the next two.
  std::vector<BufferId> gradients_;
  std::vector<std::vector<BufferId>> states_;
  std::vector<BufferId> maps_;
  std::vector<Bucket> buckets_;
  std::vector<std::int32_t> bucket_of_ = std::vector<std::int32_t>(model_.parameters.size(), -1);
  std::vector<ParameterId> ready_order_;
  std::size_t next_bucket_ = 0;
  bool boundary_ = true;
  bool rebuilt_ = false;
};

}  // namespace

std::unique_ptr<TrainingRuntime> make_pytorch_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                      Emitter& emitter) {
  return std::make_unique<PyTorchRuntime>(job, model, rank, emitter);
}

}  // namespace dsplan
