#include "planner/lower/runtimes/stage12_partition.h"

#include <algorithm>
#include <utility>

namespace dsplan {
namespace {

constexpr Source kConstructor = "zero/stage_1_and_2.py, DeepSpeedZeroOptimizer.__init__";
constexpr Source kZeroStep = "zero/stage_1_and_2.py, step";

std::vector<BufferId> ids_of(const std::vector<Variable>& parts) {
  std::vector<BufferId> ids;
  for (const Variable& part : parts) ids.push_back(part.id());
  return ids;
}

// get_all_grad_tensors: zeros in the place of the partition's gradients that have not come, because no loss reaches the
// parameter.
class MissingGradients {
 public:
  MissingGradients(Emitter& emitter, const Stage12Facts& facts)
      : zeros(facts.layout.order.size()), eager_(emitter), facts_(facts), came_(facts.layout.order.size(), false) {}

  void came(std::size_t parameter) { came_[parameter] = true; }

  // At the end of a backward. Those of a later one are added to the first. Where gradients are apart these are given
  // back, to be kept among them.
  std::vector<std::pair<std::size_t, Variable>> fill() {
    constexpr What kZeros{Role::Gradients, "zero gradient", "zero/stage_1_and_2.py, get_all_grad_tensors"};
    const DType type = facts_.training.grad_accum_dtype;
    std::vector<std::pair<std::size_t, Variable>> apart;
    for (std::size_t at = 0; at < came_.size(); ++at) {
      if (came_[at] || !facts_.layout.is_mine(at)) continue;
      const Bytes bytes = storage(Elements(facts_.layout.order[at].elements), type);
      Variable made = eager_.zeros(bytes, type, kZeros, "zero gradient");
      if (!facts_.zero().contiguous_gradients) {
        apart.emplace_back(at, std::move(made));
      } else if (!zeros[at]) {
        zeros[at] = std::move(made);
      } else {
        eager_.add(zeros[at], made, "add gradients in partition");
        added.append(std::move(made));
      }
    }
    came_.assign(came_.size(), false);
    return apart;
  }

  void append_to(std::vector<BufferId>& parts) const {
    for (const Variable& one : zeros) {
      if (one) parts.push_back(one.id());
    }
  }

  std::vector<Variable> zeros;  // By index into the layout, to the step.
  Variables added;              // What a later backward has added to them, to its end.

 private:
  Eager eager_;
  const Stage12Facts& facts_;
  std::vector<bool> came_;  // In this backward.
};

class PartitionOnDevice final : public OwnPartition {
 public:
  explicit PartitionOnDevice(const PartitionInputs& inputs)
      : eager_(inputs.emitter),
        facts_(inputs.facts),
        layout_(inputs.facts.layout),
        sums_(inputs.sums),
        control_(inputs.control),
        norms_(inputs.norms),
        gradient_norms_(inputs.gradient_norms),
        optimizer_(inputs.emitter, inputs.facts.training, kConstructor),
        missing_(inputs.emitter, inputs.facts),
        apart_(inputs.facts.layout.order.size()) {}

  void create_master(const Part& parameters) override {
    if (facts_.training.master_dtype == facts_.training.dtype) {
      return optimizer_.clone_master(parameters, "clone partition");
    }
    optimizer_.create_master(parameters, {Role::Temporaries, "clone of the partition", kConstructor},
                             "clone partition");
  }

  // Zero gradients for every group at once, dropped at the end.
  void initialize_optimizer_states() override {
    const Variable gradients = eager_.scratch(facts_.in_master_dtype(layout_.partition), facts_.training.master_dtype,
                                              {Role::Temporaries, "zero gradients of initialize_optimizer_states",
                                               "zero/stage_1_and_2.py, initialize_optimizer_states"});
    eager_.zero(gradients, "zero gradients");
  }

  [[nodiscard]] BufferId master() const override { return optimizer_.master(); }

  void backward_begins(bool /*boundary*/) override {
    if (facts_.zero().stage == 2) filling_ = kNoBuffer;
  }

  // A parameter that touches this rank's partition leaves its whole gradient in grads_in_partition.
  void keep(std::size_t parameter, BufferId from, std::int64_t offset) override {
    if (!layout_.is_mine(parameter) || facts_.sums_partition) return;
    missing_.came(parameter);
    if (filling_ == kNoBuffer) {
      Variable made(
          eager_.empty(facts_.in_model_dtype(layout_.kept), facts_.training.dtype,
                       {Role::Gradients, "gradients in partition", "zero/stage_1_and_2.py, copy_grads_in_partition"}));
      tell_uses(eager_.emitter(), made.id(), false);  // The step reads it on another stream.
      filling_ = made.id();
      (grads_in_partition_ ? later_ : grads_in_partition_) = std::move(made);
    }
    const Bytes bytes = facts_.in_model_dtype(layout_.order[parameter].elements);
    eager_.copy({filling_, facts_.in_model_dtype(layout_.kept_offset[parameter]), bytes},
                {from, facts_.in_model_dtype(offset), bytes}, "keep gradient in partition");
  }

  void keep_apart(std::size_t parameter, Variable gradient) override {
    missing_.came(parameter);
    arrived_.emplace_back(parameter, std::move(gradient));
  }

  void fill_missing() override {
    if (facts_.sums_partition) return;
    for (auto& [parameter, zeros] : missing_.fill()) arrived_.emplace_back(parameter, std::move(zeros));
  }

  void pad() override {
    if (facts_.sums_partition) {
      if (layout_.partition > 0) sums_.open();
    } else if (layout_.padding() > 0) {
      const DType type = facts_.training.grad_accum_dtype;
      padding_ = eager_.zeros(storage(Elements(layout_.padding()), type), type,
                              {Role::Gradients, "padding of the partition"}, "zero padding");
    }
  }

  // ZeRO-2, later micro-batches: what has come is added to what is there, and freed.
  void add_up() override {
    for (auto& [parameter, gradient] : arrived_) {
      Variable& there = apart_[parameter];
      if (!there) {
        there = std::move(gradient);
        continue;
      }
      eager_.add(there, gradient, "add gradients in partition");
      gradient.reset();
    }
    arrived_.clear();
    missing_.added.reset(Reason::GradientHeld);
    if (!later_) return;
    eager_.add(grads_in_partition_, later_, "add gradients in partition");
    later_.reset();
    filling_ = kNoBuffer;
  }

  // Since 0.19.6 it looks at the largest and the smallest value (runtime/utils.py, has_inf_or_nan); before, each
  // fragment in turn had an fp32 copy, two masks, their union and its fp32 form, and what stands here is the turn of
  // the largest one.
  void check_overflow() override {
    if (!facts_.scans()) return;
    if (facts_.training.deepspeed < kScanWithoutCopies && !layout_.fragments.empty()) {
      std::int64_t largest = 0;
      for (const FlatLayout::Fragment& fragment : layout_.fragments) largest = std::max(largest, fragment.count);
      const std::int64_t each = bytes_per_element(facts_.kept_dtype()) == 4 ? 7 : 11;
      const Variable masks =
          eager_.scratch(Bytes(checked_mul(largest, each)), DType::UInt8,
                         {Role::Temporaries, "overflow scan", "zero/stage_1_and_2.py, has_overflow"});
      Work scan = eager_.work();
      if (const BufferId flat = kept(); flat != kNoBuffer) scan.read(flat);
      scan.write(masks).run(Body::OverflowScan, "overflow scan");
    }
    control_.all_reduce(Bytes(1), {Role::Temporaries, "overflow flag", "zero/stage_1_and_2.py, has_overflow"},
                        {ranges_in(sources())});
  }

  // get_grad_norm_direct: each fragment in turn, padding left out.
  void measure() override {
    constexpr What kNorm{Role::Temporaries, "gradient norm", "zero/stage_1_and_2.py, get_grad_norm_direct"};
    const std::vector<ByteRange> ranges = ranges_in(sources());
    Variables all_norms;
    for (std::size_t n = 0; n < layout_.fragments.size(); ++n) {
      const FlatLayout::Fragment& fragment = layout_.fragments[n];
      const Variable wide =
          eager_.empty(storage(Elements(fragment.count), DType::Float64), DType::Float64,
                       {Role::Temporaries, "gradient in fp64", "zero/stage_1_and_2.py, get_grad_norm_direct"});
      Work work = eager_.work();
      const BufferId zeros = missing_.zeros[fragment.parameter].id();
      if (const BufferId flat = zeros != kNoBuffer ? zeros : kept(); flat != kNoBuffer) work.read(flat);
      work.write(wide);
      if (n < ranges.size()) work.really_reads({ranges[n]});
      work.run(Body::Copy, "gradient in fp64");
      std::optional<std::vector<ByteRange>> squares;
      if (n >= ranges.size() || !control_.counts_in_norm(layout_.order[fragment.parameter].id)) squares.emplace();
      all_norms.append(gradient_norms_.norm_of(wide, kNorm, std::move(squares)));
    }
    Variable sum;
    if (!all_norms.empty()) sum = gradient_norms_.sum_of_squares(all_norms, kNorm);
    control_.all_reduce(Bytes(4), kNorm, {}, std::move(sum));
    all_norms.reset();
    norms_.in_step(DType::Float32, 0);
  }

  void update(bool first, const Part& parameters) override {
    Variable single_grad_partition = take_gradient();
    if (first) optimizer_.create_states();
    optimizer_.step(single_grad_partition, ranges_of_update(single_grad_partition.id()));
    single_grad_partition.reset();
    optimizer_.copy_master_to(parameters);
  }

 private:
  // What is kept in one tensor, if anything has come.
  [[nodiscard]] BufferId kept() const { return facts_.sums_partition ? sums_.buffer().id() : grads_in_partition_.id(); }

  // This rank's gradient in master dtype: sums are taken as they are; fragments and padding are flattened, which for a
  // single one is a view, and then cast.
  [[nodiscard]] Variable take_gradient() {
    std::vector<Variable> parts;
    const auto take = [&](Variable part) {
      if (part) parts.push_back(std::move(part));
    };
    take(facts_.sums_partition ? sums_.take() : std::move(grads_in_partition_));
    take(std::move(padding_));
    for (Variable& gradient : apart_) take(std::move(gradient));
    filling_ = kNoBuffer;
    const bool view = facts_.sums_partition || layout_.fragments.size() + (layout_.padding() > 0 ? 1U : 0U) == 1;
    for (Variable& zeros : missing_.zeros) {
      if (view) take(std::move(zeros));
    }
    std::vector<BufferId> ids = ids_of(parts);
    missing_.append_to(ids);
    if (ids.empty()) parts.push_back(flatten({}));  // The partition is of no parameter: zeros.
    Variable flat = view ? std::move(parts.front()) : flatten(ids);
    if (facts_.training.master_dtype != eager_.emitter().dtype(flat.id())) flat = cast_to_master(flat);
    for (Variable& part : parts) part.reset(Reason::GradientHeld);
    for (Variable& zeros : missing_.zeros) zeros.reset(Reason::GradientHeld);
    return flat;
  }

  // Padding in fp32 makes fp32 of all that it is joined to (torch.cat).
  [[nodiscard]] Variable flatten(const std::vector<BufferId>& parts) {
    const bool wide = std::any_of(parts.begin(), parts.end(),
                                  [this](BufferId part) { return eager_.emitter().dtype(part) == DType::Float32; });
    const DType type = wide ? DType::Float32 : facts_.training.dtype;
    Variable flat =
        eager_.empty(storage(Elements(layout_.partition), type), type, {Role::Temporaries, "flat gradient", kZeroStep});
    eager_.work().read(parts).write(flat).really_reads(ranges_in(parts)).run(Body::Copy, "flatten gradient");
    return flat;
  }

  [[nodiscard]] Variable cast_to_master(const Variable& flat) {
    Variable cast = eager_.empty(facts_.in_master_dtype(layout_.partition), facts_.training.master_dtype,
                                 {Role::Temporaries, "gradient in master dtype", kZeroStep});
    Work work = eager_.work();
    work.read(flat).write(cast);
    if (eager_.emitter().size(flat.id()) != facts_.in_model_dtype(layout_.partition)) {
      work.really_reads(ranges_in({flat.id()}));
    }
    work.run(Body::Copy, "cast gradient");
    return cast;
  }

  [[nodiscard]] std::vector<BufferId> sources() const {
    std::vector<BufferId> parts;
    if (kept() != kNoBuffer) parts.push_back(kept());
    for (const Variable& gradient : apart_) {
      if (gradient) parts.push_back(gradient.id());
    }
    missing_.append_to(parts);
    return parts;
  }

  // For an executor: where the own partition's gradient lies in `parts`, without what belongs to other ranks, piece by
  // piece. Sums lie as the partition does, then its padding; grads_in_partition and gradients apart hold whole
  // parameters.
  [[nodiscard]] std::vector<ByteRange> ranges_in(const std::vector<BufferId>& parts) const {
    std::vector<ByteRange> ranges;
    if (parts.empty() || eager_.emitter().recording() == nullptr) return ranges;
    const DType type = facts_.kept_dtype();
    const bool apart = !facts_.zero().contiguous_gradients;
    const std::size_t count = layout_.fragments.size();
    for (std::size_t n = 0; n < count; ++n) {
      const FlatLayout::Fragment& fragment = layout_.fragments[n];
      if (const BufferId zeros = missing_.zeros[fragment.parameter].id(); zeros != kNoBuffer) {
        ranges.push_back({zeros, storage(Elements(fragment.source), type), storage(Elements(fragment.count), type)});
        continue;
      }
      const std::int64_t begin = facts_.sums_partition ? fragment.target
                                 : apart               ? fragment.source
                                                       : layout_.kept_offset[fragment.parameter] + fragment.source;
      // Those of parameters apart come last.
      const std::size_t part = apart ? parts.size() - std::min(parts.size(), count) + n : 0;
      if (part >= parts.size()) continue;
      ranges.push_back({parts[part], storage(Elements(begin), type), storage(Elements(fragment.count), type)});
    }
    return ranges;
  }

  // The gradient in the size of the partition: grads_in_partition itself may be larger. Empty: as it lies.
  [[nodiscard]] std::vector<ByteRange> ranges_of_update(BufferId gradient) const {
    const Emitter& emitter = eager_.emitter();
    if (emitter.recording() == nullptr || emitter.size(gradient) == facts_.in_master_dtype(layout_.partition))
      return {};
    std::vector<ByteRange> reads{{master(), Bytes(0), emitter.size(master())}};
    for (const ByteRange& range : ranges_in({gradient})) reads.push_back(range);
    for (const BufferId state : optimizer_.states().ids()) reads.push_back({state, Bytes(0), emitter.size(state)});
    return reads;
  }

  Eager eager_;
  const Stage12Facts& facts_;
  const FlatLayout& layout_;
  GradientSums& sums_;
  ControlValues& control_;
  HeldNorms& norms_;
  GradientNorms& gradient_norms_;
  FlatOptimizer optimizer_;
  Variable grads_in_partition_;   // That the step will take.
  Variable later_;                // That a later backward fills.
  BufferId filling_ = kNoBuffer;  // The one of the two that this backward fills.
  MissingGradients missing_;
  Variable padding_;             // Zeros behind the last fragment, from the boundary to the step.
  std::vector<Variable> apart_;  // contiguous_gradients off, by index into the layout: that the step will take;
  std::vector<std::pair<std::size_t, Variable>> arrived_;  // and those of this backward.
};

}  // namespace

std::unique_ptr<OwnPartition> make_partition_on_device(const PartitionInputs& inputs) {
  return std::make_unique<PartitionOnDevice>(inputs);
}

}  // namespace dsplan
