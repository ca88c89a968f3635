// ZeRO-1 and ZeRO-2 with the optimizer on the host (stage_1_and_2.py, DeepSpeedZeroOptimizer with cpu_offload).
//
// Master weights, their gradient, the optimizer's state and a 16-bit copy that travels back are the host's; the device
// keeps the flat parameters and one scratch as large as the largest parameter. Each gradient that touches the partition
// leaves the bucket right after its reduction: to the host's sums between boundaries, in fp32 to the gradient at one.
//
// What is pinned is made pageable and copied (pin_memory), so that both are there for a moment. Zeros that are replaced
// before anyone reads them are allocated and not written.
#include <algorithm>
#include <utility>

#include "planner/lower/runtimes/stage12_partition.h"

namespace dsplan {
namespace {

// The 16-bit copy on the host through which weights travel back.
constexpr Version kCastsOnHost{0, 17, 0};
// Masters are pinned only if asked for.
constexpr Version kPinsMasterIfAsked{0, 18, 3};
constexpr Source kFile = "zero/stage_1_and_2.py";
constexpr Source kInitOnHost = "zero/stage_1_and_2.py, DeepSpeedZeroOptimizer.__init__";
constexpr What kNormOnHost{Role::Temporaries, "gradient norm", "zero/stage_1_and_2.py, get_grad_norm_direct"};

// Host memory that begins as zeros. Where it is pinned, what was pinned goes at once, or to `source`.
Variable zeros_on_host(Eager& eager, bool pins, Bytes bytes, DType dtype, What what, Variable* source = nullptr) {
  Variable made = eager.empty(bytes, dtype, what, kNone, Space::Pageable);
  if (!pins) return made;
  eager.emitter().mark_scratch(made.id());
  Variable pinned = eager.empty(bytes, dtype, what, kNone, Space::Pinned);
  eager.zero(made, "zeros on the host");
  if (source != nullptr) *source = std::move(made);
  return pinned;
}

class PartitionOnHost final : public OwnPartition {
 public:
  explicit PartitionOnHost(const PartitionInputs& inputs)
      : eager_(inputs.emitter),
        facts_(inputs.facts),
        training_(inputs.facts.training),
        layout_(inputs.facts.layout),
        pins_(inputs.facts.zero().offload_optimizer.pin_memory),
        sums_(inputs.sums),
        control_(inputs.control),
        gradient_norms_(inputs.gradient_norms),
        optimizer_(inputs.emitter, inputs.facts.training, kInitOnHost),
        accumulated_grads_in_cpu_(inputs.facts.layout.order.size()) {}

  // The slice is cloned on the device and cast on the host: a copy that blocks converts where the host is
  // (ATen/native/cuda/Copy.cu, copy_kernel_cuda), through a pageable tensor of the source's dtype.
  void create_master(const Part& parameters) override {
    constexpr What kMaster{Role::Optimizer, "master weights", kInitOnHost};
    Variable clone =
        eager_.clone(parameters, {Role::Temporaries, "clone of the partition", kInitOnHost}, "clone partition");
    const DType wide = training_.master_dtype;
    Variable master = eager_.empty(facts_.in_master_dtype(layout_.partition), wide, kMaster, kNone, Space::Pageable);
    if (wide == training_.dtype) {
      eager_.copy(master, clone, "copy to host");
    } else {
      const Variable narrow =
          eager_.clone(clone, {Role::Temporaries, "copy between devices"}, "copy to host", kNone, Space::Pageable);
      eager_.copy(master, narrow, "cast to master");
    }
    clone.reset();
    if (pins_ || training_.deepspeed < kPinsMasterIfAsked) {
      master = eager_.clone(master, kMaster, "pin memory", kNone, Space::Pinned);
    }
    optimizer_.take_master(std::move(master));
    if (training_.deepspeed >= kCastsOnHost) {
      param_buffer_of_bit16_ =
          zeros_on_host(eager_, pins_, facts_.in_model_dtype(layout_.partition), training_.dtype,
                        {Role::RuntimeBuffers, "16-bit parameters on the host", kFile}, &temp_buffer_bit16_);
    }
    create_scratch();
  }

  // The gradient stays; what no parameter fills of it stays zero.
  void initialize_optimizer_states() override {
    const std::int64_t padding = layout_.padding();
    fp32_grad_ = zeros_on_host(eager_, pins_, facts_.in_master_dtype(layout_.partition), training_.master_dtype,
                               {Role::Gradients, "gradient on the host"});
    if (padding > 0) {
      eager_.zero(
          {fp32_grad_.id(), facts_.in_master_dtype(layout_.partition - padding), facts_.in_master_dtype(padding)},
          "zero padding");
    }
    temp_buffer_bit16_.reset();
  }

  [[nodiscard]] BufferId master() const override { return optimizer_.master(); }

  void backward_begins(bool boundary) override {
    if (facts_.zero().stage == 2) ++micro_step_id_;
    boundary_ = boundary;
  }

  // Since 0.19.8 a gradient larger than the bucket is cloned, so that nothing else uses its storage while it is copied
  // (reduce_independent_p_g_buckets_and_remove_grads).
  [[nodiscard]] Variable storage_of_large(Variable gradient) override {
    if (training_.deepspeed < kSumsOfPartition) return gradient;
    Variable clone = eager_.clone(gradient,
                                  {Role::RuntimeBuffers, "clone of a large gradient",
                                   "zero/stage_1_and_2.py, reduce_independent_p_g_buckets_and_remove_grads"},
                                  "clone gradient");
    gradient.reset(Reason::GradientHeld);
    return clone;
  }

  // Between boundaries `.grad` of this rank's parameters is cleared with all others, when the backward ends.
  [[nodiscard]] bool stays(std::size_t parameter) const override { return layout_.is_mine(parameter) && !boundary_; }

  // Sums in fp32 are the partition's on the device, and travel at the boundary.
  void keep(std::size_t parameter, BufferId from, std::int64_t offset) override {
    if (!layout_.is_mine(parameter)) return;
    const FlatLayout::Fragment& fragment = layout_.fragment_of(parameter);
    Part whole(from, facts_.in_bucket(offset), facts_.in_bucket(layout_.order[parameter].elements));
    Part own(from, facts_.in_bucket(offset + fragment.source), facts_.in_bucket(fragment.count));
    if (facts_.sums_partition) {
      const DType type = training_.grad_accum_dtype;
      own = {sums_.buffer().id(), storage(Elements(fragment.target), type), storage(Elements(fragment.count), type)};
      whole = own;
    } else if (sums_on_host()) {
      async_accumulate_grad_in_cpu_via_gpu(parameter, whole, own);
    }
    if (!boundary_) return;
    set_norm_for_param_grad_in_gpu(parameter, own);
    update_offload_overflow_tracker(whole);
    async_inplace_copy_grad_to_fp32_buffer_from_gpu(fragment, own);
  }

  void check_overflow() override {
    if (!facts_.scans()) return;
    control_.all_reduce(Bytes(1), {Role::Temporaries, "overflow flag", "zero/stage_1_and_2.py, has_overflow"},
                        {{{fp32_grad_.id(), Bytes(0), eager_.emitter().size(fp32_grad_.id())}}});
  }

  // complete_grad_norm_calculation_for_cpu_offload: the sum of squares is made on the host; the norm stays there.
  void measure() override {
    const Variable norm = eager_.scratch(Bytes(4), DType::Float32, kNormOnHost);
    // Squares have been added up already.
    eager_.work().read(norm_for_param_grads_).write(norm).really_reads({}).run(Body::Norm, kNormOnHost.label);
    control_.share(norm.id(), Group::DataParallel);
    control_.share(norm.id(), Group::TensorParallel);
  }

  // On the host; its state is never pinned (ops/adam/cpu_adam.py, ops/lion/cpu_lion.py). Until #7309 the device had the
  // master itself for a moment.
  void update(bool first, const Part& parameters) override {
    if (first) optimizer_.create_states(Space::Pageable);
    optimizer_.step(fp32_grad_);
    if (training_.deepspeed >= kCastsOnHost) {
      eager_.copy(param_buffer_of_bit16_, optimizer_.master(), "copy master to 16 bit");
      return eager_.copy(parameters, param_buffer_of_bit16_, "copy to device");
    }
    const Variable here = eager_.clone(optimizer_.master(),
                                       {Role::RuntimeBuffers, "master weights on the device", kFile}, "copy to device");
    eager_.copy(parameters, here, "copy master to parameters");
  }

  // reset_cpu_buffers
  void drop_gradients() override {
    micro_step_id_ = -1;
    if (Variable sums = sums_.take()) {
      // The zeros behind its last fragment stay unread.
      if (layout_.padding() > 0) eager_.emitter().mark_scratch(sums.id());
      sums.reset(Reason::GradientHeld);
    }
    norm_for_param_grads_.reset();
  }

 private:
  // As large as the largest parameter: one on the host, which nobody uses, and one on the device.
  void create_scratch() {
    std::int64_t largest = 0;
    for (const NamedParameter& p : layout_.order) largest = std::max(largest, p.elements);
    const Bytes bytes = facts_.in_model_dtype(largest);
    temp_grad_buffer_ = zeros_on_host(eager_, pins_, bytes, training_.dtype,
                                      {Role::RuntimeBuffers, "gradient scratch of the host", kFile});
    temp_grad_buffer_for_gpu_offload_ =
        eager_.empty(bytes, training_.dtype, {Role::RuntimeBuffers, "gradient scratch of the device", kInitOnHost});
    for (const Variable* scratch : {&temp_grad_buffer_, &temp_grad_buffer_for_gpu_offload_}) {
      eager_.emitter().mark_scratch(scratch->id());
      eager_.zero(*scratch, "zero scratch");
    }
  }

  // Until #7981 (0.19.0) wherever micro-batches are accumulated, under ZeRO-1 too.
  [[nodiscard]] bool sums_on_host() const {
    if (training_.deepspeed < kSumsWhereNeeded) return training_.grad_accum > 1;
    return facts_.zero().stage == 2 && (micro_step_id_ > 0 || !boundary_);
  }

  // What the host has comes into the scratch and is added, and the sum goes back; at the boundary nobody reads what
  // went back, nor what is not `own`.
  void async_accumulate_grad_in_cpu_via_gpu(std::size_t parameter, const Part& gradient, const Part& own) {
    Variable& sum = accumulated_grads_in_cpu_[parameter];
    const bool is_new = !sum;
    if (is_new) {
      sum = zeros_on_host(eager_, pins_, gradient.bytes, training_.dtype,
                          {Role::Gradients, "sum of a gradient on the host"});
    }
    const bool old = training_.deepspeed < kSumsWhereNeeded;
    const bool added_in_vain = old && !boundary_;
    if (micro_step_id_ > 0 && !is_new && !added_in_vain) {
      const BufferId scratch = temp_grad_buffer_for_gpu_offload_.id();
      eager_.copy({scratch, Bytes(0), gradient.bytes}, sum, "copy to device");
      const Part& added = boundary_ ? own : gradient;
      eager_.add(added, {scratch, added.offset - gradient.offset, added.bytes}, "add gradients");
    }
    // Until #7967 (0.19.0) the sum went back with the first micro-batch alone, and then under ZeRO-1 at the boundary
    // too.
    const bool goes_back = old ? micro_step_id_ <= 0 : !boundary_;
    if (!goes_back) return;
    if (boundary_) eager_.emitter().mark_scratch(sum.id());
    eager_.copy(sum, gradient, "copy to host");
  }

  // The scalar is kept until the step.
  void set_norm_for_param_grad_in_gpu(std::size_t parameter, const Part& own) {
    const Variable wide =
        eager_.cast(own, DType::Float64,
                    {Role::RuntimeBuffers, "gradient in fp64", "zero/stage_1_and_2.py, set_norm_for_param_grad_in_gpu"},
                    "cast gradient");
    std::optional<std::vector<ByteRange>> squares;
    if (!control_.counts_in_norm(layout_.order[parameter].id)) squares.emplace();
    norm_for_param_grads_.append(gradient_norms_.norm_of(wide, kNormOnHost, std::move(squares)));
  }

  // It looks at every gradient, in any dtype; before #8325 through an fp32 copy, two masks, their union and its fp32
  // form.
  void update_offload_overflow_tracker(const Part& gradient) {
    if (training_.deepspeed >= kScanWithoutCopies) return;
    const std::int64_t width = bytes_per_element(eager_.emitter().dtype(gradient.buffer));
    const std::int64_t each = width == 4 ? 7 : 11;
    const Variable masks = eager_.scratch(Bytes(checked_mul(gradient.bytes.value() / width, each)), DType::UInt8,
                                          {Role::Temporaries, "overflow scan", "zero/stage_1_and_2.py, has_overflow"});
    eager_.work().read(gradient).write(masks).run(Body::OverflowScan, "overflow scan");
  }

  // Cast on the device, then copied.
  void async_inplace_copy_grad_to_fp32_buffer_from_gpu(const FlatLayout::Fragment& fragment, const Part& own) {
    const DType wide = training_.master_dtype;
    const Part target(fp32_grad_.id(), facts_.in_master_dtype(fragment.target), facts_.in_master_dtype(fragment.count));
    if (eager_.emitter().dtype(own.buffer) == wide) return eager_.copy(target, own, "copy to host");
    const Variable cast = eager_.cast(own, wide,
                                      {Role::RuntimeBuffers, "gradient on its way to the host",
                                       "zero/stage_1_and_2.py, async_inplace_copy_grad_to_fp32_buffer_from_gpu"},
                                      "cast gradient");
    eager_.copy(target, cast, "copy to host");
  }

  Eager eager_;
  const Stage12Facts& facts_;
  const Training& training_;
  const FlatLayout& layout_;
  bool pins_;
  GradientSums& sums_;
  ControlValues& control_;
  GradientNorms& gradient_norms_;
  FlatOptimizer optimizer_;
  Variable fp32_grad_;              // `.grad` of the master.
  Variable param_buffer_of_bit16_;  // param_buffer_of_bit16_for_cpu_offload_groups.
  Variable temp_buffer_bit16_;      // What it was pinned from: a variable of __init__.
  Variable temp_grad_buffer_;
  Variable temp_grad_buffer_for_gpu_offload_;
  std::vector<Variable> accumulated_grads_in_cpu_;  // By index into the layout.
  Variables norm_for_param_grads_;
  std::int64_t micro_step_id_ = -1;  // ZeRO-1 counts none.
  bool boundary_ = true;
};

}  // namespace

std::unique_ptr<OwnPartition> make_partition_on_host(const PartitionInputs& inputs) {
  return std::make_unique<PartitionOnHost>(inputs);
}

}  // namespace dsplan
