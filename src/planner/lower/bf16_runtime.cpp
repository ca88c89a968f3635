// DeepSpeed's BF16_Optimizer (runtime/bf16_optimizer.py): ZeRO-1 with bf16 parameters and gradients summed in fp32.
//
// One flat bf16 buffer as ZeRO-1 has it, master and state for the own partition, and a sum of all gradients on every
// rank, zeroed and never freed. After each backward every `.grad` is cast and added to it; `.grad` itself is zeroed,
// and let go of only behind the step; with immediate_grad_update it is added and let go of as soon as it is there. At
// the boundary the sum is all-reduced in one piece.
#include <utility>

#include "core/error.h"
#include "planner/lower/runtime_base.h"

namespace dsplan {
namespace {

class Bf16Runtime final : public RuntimeBase {
 public:
  Bf16Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
      : RuntimeBase(job, model, rank, emitter),
        whole_(model.parameters.size(), kNoBuffer),
        held_(model.parameters.size(), kNoBuffer) {
    for (const Leaf& leaf : trained_) {
      offset_.push_back(elements_);
      elements_ = checked_add(elements_, leaf.elements);
    }
    const FlatPartition cut = flat_partition(Elements(elements_), world());
    padded_ = cut.padded.value();
    partition_ = cut.own.value();
  }

  void initialise() override {
    whole_ = load_model("parameter");
    if (trained_.empty()) return;
    make_overflow_buffer();
    print("begin bf16_optimizer");
    print("before initializing group 0");
    flat_ = flatten_trained(whole_, elements_, padded_);
    create_master();
    sums_ = emitter_.allocate(in_sums(padded_), training().grad_accum_dtype, Role::Gradients, "sums of gradients");
    emitter_.begin();
    emitter_.write(sums_);
    emitter_.compute("zero sums of gradients");
    print("after initializing group 0");
    print("end bf16_ optimizer");
    emitter_.promise_update(flat_, in_model_dtype(checked_mul(rank(), partition_)), in_model_dtype(partition_));
    emitter_.promise_update(master_, Bytes(0), emitter_.size(master_));
  }

  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override {
    const BufferId buffer = whole_[at(parameter)];
    if (buffer != kNoBuffer) return {buffer, Bytes(0), emitter_.size(buffer)};
    const auto i = static_cast<std::size_t>(trained_index_[at(parameter)]);
    return {flat_, in_model_dtype(offset_[i]), in_model_dtype(trained_[i].elements)};
  }

  [[nodiscard]] bool holds_gradient(ParameterId parameter) const override { return held_[at(parameter)] != kNoBuffer; }
  // `.grad` was zeroed in place after it had been added to the sums.
  void gradient_ready(ParameterId parameter, BufferId gradient) override {
    if (training().immediate_grad_update) {  // accumulate_hp_grads_and_remove_lp
      add_to_sums(static_cast<std::size_t>(trained_index_[at(parameter)]), gradient);
      return emitter_.release(gradient, Reason::GradientHeld);
    }
    const BufferId held = held_[at(parameter)];
    if (held == kNoBuffer || emitter_.recording() == nullptr) return accumulate(held_[at(parameter)], gradient);
    emitter_.begin();
    emitter_.read(held);
    emitter_.read(gradient);
    emitter_.write(held);
    emitter_.as(Body::Copy);
    emitter_.recording()->reads({{gradient, Bytes(0), emitter_.size(gradient)}});
    emitter_.compute("accumulate gradient");
    emitter_.release(gradient, Reason::LastUse);
  }

  void backward_ends(bool boundary) override {
    for (std::size_t i = 0; i < trained_.size(); ++i) {
      if (held_[at(trained_[i].id)] != kNoBuffer) add_to_sums(i, held_[at(trained_[i].id)]);
    }
    if (boundary && !trained_.empty()) reduce();
  }

  // The norm is taken over views of the sums, and every data-parallel rank has them all.
  void step(bool first) override {
    if (trained_.empty()) return;
    tensor_parallel_control(Bytes(4), "gradient norm", squares_of(sums_));
    hold_norm(DType::Float32, tensor_ranks() == 1 ? sums_ : kNoBuffer);
    if (first) create_flat_state(partition_, state_);
    emitter_.begin();
    emitter_.read(master_);
    emitter_.read(sums_, in_sums(checked_mul(rank(), partition_)), in_sums(partition_));
    read_all(state_);
    emitter_.write(master_);
    write_all(state_);
    emitter_.states_of_update(state_.size());
    emitter_.compute("optimizer update");
    const Bytes begin = in_model_dtype(checked_mul(rank(), partition_));
    emitter_.begin();
    emitter_.read(master_);
    emitter_.write(flat_, begin, in_model_dtype(partition_));
    emitter_.compute("copy master to parameters");
    if (world() > 1) {
      emitter_.begin();
      emitter_.read(flat_, begin, in_model_dtype(partition_));
      emitter_.write(flat_);
      emitter_.communicate(Collective::AllGather, dtype(), in_model_dtype(padded_));
    }
    emitter_.begin();
    emitter_.write(sums_);
    emitter_.compute("zero sums of gradients");
    for (const Leaf& leaf : trained_) {
      BufferId& held = held_[at(leaf.id)];
      if (held != kNoBuffer) emitter_.release(std::exchange(held, kNoBuffer), Reason::GradientHeld);
    }
  }

 private:
  [[nodiscard]] static std::size_t at(ParameterId parameter) { return static_cast<std::size_t>(parameter); }
  [[nodiscard]] Bytes in_sums(std::int64_t elements) const {
    return storage(Elements(elements), training().grad_accum_dtype);
  }

  void create_master() {
    const BufferId clone =
        emitter_.allocate(in_model_dtype(partition_), dtype(), Role::Temporaries, "clone of the partition");
    emitter_.begin();
    emitter_.read(flat_, in_model_dtype(checked_mul(rank(), partition_)), in_model_dtype(partition_));
    emitter_.write(clone);
    emitter_.compute("clone partition");
    master_ =
        emitter_.allocate(in_master_dtype(partition_), training().master_dtype, Role::Optimizer, "master weights");
    emitter_.begin();
    emitter_.read(clone);
    emitter_.write(master_);
    emitter_.compute("cast to master");
    emitter_.release(clone, Reason::LastUse);
  }

  // _update_hp_grad: a cast, added; then `.grad` is zeroed in place.
  void add_to_sums(std::size_t index, BufferId gradient) {
    const Bytes begin = in_sums(offset_[index]);
    const Bytes bytes = in_sums(trained_[index].elements);
    const BufferId cast =
        emitter_.allocate(bytes, training().grad_accum_dtype, Role::RuntimeBuffers, "gradient in accumulation dtype");
    emitter_.begin();
    emitter_.read(gradient);
    emitter_.write(cast);
    emitter_.compute("cast gradient");
    emitter_.begin();
    emitter_.read(cast);
    emitter_.read(sums_, begin, bytes);
    emitter_.write(sums_, begin, bytes);
    emitter_.compute("add to sums of gradients");
    emitter_.release(cast, Reason::LastUse);
  }

  // engine.py, allreduce_bucket over the one flat tensor of the group.
  void reduce() {
    if (world() == 1) return;
    const DType type = training().communication_dtype;
    BufferId sent = sums_;
    if (type != training().grad_accum_dtype) {
      sent = emitter_.allocate(storage(Elements(padded_), type), type, Role::RuntimeBuffers,
                               "gradients in communication dtype");
      emitter_.begin();
      emitter_.read(sums_);
      emitter_.write(sent);
      emitter_.compute("cast gradients");
    }
    emitter_.begin();
    emitter_.read(sent);
    emitter_.write(sent);
    emitter_.communicate(Collective::AllReduce, type, emitter_.size(sent));
    if (sent == sums_) return;
    emitter_.begin();
    emitter_.read(sent);
    emitter_.write(sums_);
    emitter_.compute("copy reduced gradients back");
    emitter_.release(sent, Reason::LastUse);
  }

  std::vector<BufferId> whole_;  // By ParameterId, as is the next.
  std::vector<BufferId> held_;
  std::vector<std::int64_t> offset_;  // By index into trained_.
  std::int64_t elements_ = 0;
  std::int64_t padded_ = 0;
  std::int64_t partition_ = 0;
  BufferId flat_ = kNoBuffer;
  BufferId master_ = kNoBuffer;
  BufferId sums_ = kNoBuffer;
  std::vector<BufferId> state_;
};

}  // namespace

std::unique_ptr<TrainingRuntime> make_bf16_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                   Emitter& emitter) {
  return std::make_unique<Bf16Runtime>(job, model, rank, emitter);
}

}  // namespace dsplan
