// Plain PyTorch: one tensor per parameter, gradients in `.grad`, an optimizer of torch.optim; with more than one rank
// DistributedDataParallel (torch/csrc/distributed/c10d/reducer.cpp).
#include <algorithm>

#include "core/error.h"
#include "planner/lower/gradient_scaling.h"
#include "planner/lower/optimizer_step.h"
#include "planner/lower/runtime_base.h"

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
        optimizer_(job.training.optimizer, emitter, model.parameters.size()),
        clip_(emitter, job.training.level, job.parallelism.tp),
        scaler_(emitter) {}

  void initialise() override {
    for (const Leaf& leaf : leaves_) parameters_[static_cast<std::size_t>(leaf.id)] = load_whole(leaf, "parameter");
    for (const Leaf& leaf : trained_) {
      const BufferId buffer = parameters_[static_cast<std::size_t>(leaf.id)];
      emitter_.promise_update(buffer, Bytes(0), emitter_.size(buffer));
    }
    if (world() > 1) start_ddp();
    optimizer_.construct(all_parameters());
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
    if (training().grad_scaler) scaler_.scale();
  }

  void backward_ends(bool /*boundary*/) override {
    if (training().grad_scaler) scaler_.backward_done();
  }

  [[nodiscard]] bool holds_gradient(ParameterId parameter) const override {
    return gradients_[static_cast<std::size_t>(parameter)] != kNoBuffer;
  }

  void gradient_ready(ParameterId parameter, BufferId gradient) override {
    accumulate(gradients_[static_cast<std::size_t>(parameter)], gradient);
    if (world() > 1 && boundary_) reduce_when_full(parameter);  // no_sync() before the boundary.
  }

  void step(bool /*first*/) override {
    const std::vector<StepParameter> all = all_parameters();
    clip_and_unscale(all);
    step_optimizer();
    if (training().grad_scaler) scaler_.after_step();
    zero_grad();
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

  // `.grad` of everything that is trained, by parameter group: one, or as transformers' Trainer makes them.
  [[nodiscard]] std::vector<StepParameter> step_parameters(const std::vector<const Leaf*>& group) const {
    std::vector<StepParameter> made;
    for (const Leaf* leaf : group) {
      const auto at = static_cast<std::size_t>(leaf->id);
      const Parameter& parameter = model_.parameters[at];
      const Module& module = model_.modules[static_cast<std::size_t>(parameter.module)];
      const bool hidden = parameter.shape.rank == 2 && parameter.split != Split::Vocabulary && module.layer != kNone;
      made.push_back({leaf->id, parameters_[at], gradients_[at], parameter.shape, leaf->dtype, hidden,
                      module.type == "Embedding", parameter.split == Split::Replicated});
    }
    return made;
  }

  [[nodiscard]] std::vector<StepParameter> all_parameters() const {
    std::vector<const Leaf*> all;
    for (const Leaf& leaf : trained_) all.push_back(&leaf);
    return step_parameters(all);
  }

  void clip_and_unscale(const std::vector<StepParameter>& all) {
    if (training().gradient_clipping > 0) {
      clip_.forget();
      if (training().grad_scaler) scaler_.unscale(all);
      clip_.run(all, training().loop == LoopKind::Trainer);
    }
    if (training().grad_scaler) {
      const OptimizerKind kind = training().optimizer.kind;
      const bool torch_fused = training().optimizer.implementation == Implementation::Fused &&
                               kind != OptimizerKind::Lion && kind != OptimizerKind::Adam8bit;
      scaler_.before_step(all, torch_fused);
    }
  }

  void step_optimizer() {
    const std::vector<ParameterGroup> groups = parameter_groups(model_, training(), trained_);
    for (const ParameterGroup& group : groups) optimizer_.step(step_parameters(group.leaves), group.weight_decay);
  }

  // To None, or to zeros by one multi-tensor launch.
  void zero_grad() {
    if (training().zero_grad_to_none) {
      for (const Leaf& leaf : trained_) {
        BufferId& gradient = gradients_[static_cast<std::size_t>(leaf.id)];
        if (gradient != kNoBuffer) emitter_.release(gradient, Reason::GradientHeld);
        gradient = kNoBuffer;
      }
      return;
    }
    emitter_.begin();
    bool any = false;
    for (const Leaf& leaf : trained_) {
      const BufferId gradient = gradients_[static_cast<std::size_t>(leaf.id)];
      if (gradient == kNoBuffer) continue;
      emitter_.write(gradient);
      emitter_.set_role(gradient, Role::Gradients, "gradient");  // A tied weight's was made as a sum.
      any = true;
    }
    if (any) emitter_.compute("zero gradients");
  }

  std::vector<BufferId> parameters_;  // By ParameterId, as are the next.
  std::vector<BufferId> gradients_;
  OptimizerStep optimizer_;
  GradientClip clip_;
  LossScaler scaler_;
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
