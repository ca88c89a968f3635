#include "planner/lower/runtimes/zero3/gradient_partitions.h"

#include <algorithm>
#include <map>
#include <utility>

#include "planner/lower/runtimes/zero3/partitioned_optimizer.h"

namespace dsplan {
namespace {

// stage3.py, _constant_buffered_norm2.
constexpr std::int64_t kNormElements = 250'000'000;
constexpr Source kNorm = "zero/stage3.py, get_grad_norm_direct";
constexpr What kGradients{Role::Gradients, "gradient partitions",
                          "zero/stage3.py, initialize_gradient_partitioning_data_structures"};

class DeviceGradients final : public GradientPartitions {
 public:
  using GradientPartitions::GradientPartitions;
  void make() override {
    What what = kGradients;
    what.capacity = true;
    gradients_ = eager_.empty(bytes(sharding_.partition()), kept(), what);
  }
  void take(std::vector<ReducedGradient> reduced) override;
  [[nodiscard]] Variable measure_norm(const SubGroup& group, Variables& norms) override;

 private:
  [[nodiscard]] std::vector<ByteRange> padded(const std::vector<ReducedGradient>& reduced);
};

// Sums are in place.
void DeviceGradients::take(std::vector<ReducedGradient> reduced) {
  Work add = eager_.work();
  for (const ReducedGradient& one : reduced) {
    if (one.part.buffer != kNoBuffer) add.read(one.part);
  }
  for (const ReducedGradient& one : reduced) {
    if (accumulating_) add.read(of(sharding_.of_trained(one.index)));
  }
  for (const ReducedGradient& one : reduced) add.write(of(sharding_.of_trained(one.index)));
  add.really_reads(padded(reduced));
  if (accumulating_) {
    add.run(Body::Add, "add to gradient partitions");
  } else {
    add.run(Body::Copy, "copy to gradient partitions");
  }
}

// For an executor: each gradient fills the real part of its partition.
std::vector<ByteRange> DeviceGradients::padded(const std::vector<ReducedGradient>& reduced) {
  std::vector<ByteRange> reads;
  if (eager_.emitter().recording() == nullptr) return reads;
  for (const ReducedGradient& one : reduced) {
    const Shard& shard = sharding_.of_trained(one.index);
    const bool any = sharding_.real(shard).elements > 0;
    const Bytes all = bytes(shard.part);
    const Bytes filled = any ? std::min(eager_.bytes_of(one.part), all) : Bytes(0);
    if (any) reads.push_back({one.part.buffer, one.part.offset, filled});
    if (filled < all) reads.push_back({kNoBuffer, Bytes(0), all - filled});
  }
  return reads;
}

// get_grad_norm_direct: one partition at a time in fp64, then all the norms and their squares.
Variable DeviceGradients::measure_norm(const SubGroup& group, Variables& norms) {
  constexpr What kOne{Role::Temporaries, "gradient norm", kNorm};
  for (std::size_t index = group.begin; index < group.end; ++index) {
    const Shard& shard = sharding_.of_trained(index);
    norms.append(norm_of(of(shard), shard, {Role::Temporaries, "gradient in fp64", kNorm}, kOne));
  }
  return norms_of_gradients_.sum_of_squares(norms, kOne);
}

// With the optimizer on the host, whichever part of it: each gradient goes to the host and is looked at on the device.
class HostGradients final : public GradientPartitions {
 public:
  HostGradients(const Training& training, const Sharding& sharding, GradientNorms& norms,
                PartitionedOptimizer& optimizer, Emitter& emitter)
      : GradientPartitions(training, sharding, norms, emitter), optimizer_(optimizer) {}
  void make() override;
  void take(std::vector<ReducedGradient> reduced) override;
  [[nodiscard]] Variable measure_norm(const SubGroup& group, Variables& norms) override;
  void end_step() override {
    let_go(norms_);
    norm_of_.clear();
  }

 private:
  [[nodiscard]] Variable accumulate(const Shard& shard, const Part& gradient);
  void measure_at_boundary(std::size_t index, const Variable& gradient);

  PartitionedOptimizer& optimizer_;
  std::vector<Variable> norms_;                 // One of each gradient, from the boundary to the step's end.
  std::map<std::size_t, std::size_t> norm_of_;  // Where the norm of a trained parameter stands among them.
};

void HostGradients::make() {
  gradients_ = eager_.empty_on_host(bytes(sharding_.partition()), kept(), kGradients,
                                    training_.zero.offload_optimizer.pin_memory);
  gradients_.mark_scratch();  // Sums are sent to the host even where the step takes them from the device.
  eager_.zero(gradients_, "zero gradient partitions");
}

// A rank that has nothing but padding of a parameter passes it over. What was padded is passed on whole.
void HostGradients::take(std::vector<ReducedGradient> reduced) {
  for (ReducedGradient& one : reduced) {
    const Variable own = std::move(one.own);
    const Shard& shard = sharding_.of_trained(one.index);
    const std::int64_t real = sharding_.real(shard).elements;
    if (real == 0) continue;
    const bool whole = eager_.bytes_of(one.part.buffer) == bytes(shard.part);
    const Variable gradient =
        accumulate(shard, Part(one.part.buffer, one.part.offset, bytes(whole ? shard.part : real)));
    if (!boundary_) continue;
    measure_at_boundary(one.index, gradient);
    optimizer_.take_gradient(one.index, gradient);
  }
  optimizer_.end_reduction();
}

// Returns the sum on the device: in the first micro-batch a copy of what went to the host, later what goes there.
Variable HostGradients::accumulate(const Shard& shard, const Part& gradient) {
  const Part sum(gradients_.id(), of(shard).offset, gradient.bytes);
  if (!accumulating_) eager_.copy(sum, gradient, "copy gradient to host");
  Variable made =
      eager_.empty(gradient.bytes, kept(),
                   {Role::RuntimeBuffers, "gradient partition back on the device", "zero/stage3.py, partition_grads"});
  if (!boundary_ && !accumulating_) made.mark_scratch();
  eager_.copy(made, sum, "copy gradient to device");
  if (!accumulating_) return made;
  eager_.add(made, gradient, "add to gradient partition");
  eager_.copy(sum, made, "copy gradient to host");
  return made;
}

// _constant_buffered_norm2: squares of the norms of pieces are added up, and their root is kept.
void HostGradients::measure_at_boundary(std::size_t index, const Variable& gradient) {
  const Shard& shard = sharding_.of_trained(index);
  constexpr What kOne{Role::Temporaries, "gradient norm", "zero/stage3.py, _constant_buffered_norm2"};
  const std::int64_t elements = eager_.bytes_of(gradient).value() / bytes_per_element(kept());
  Variable squares;
  for (std::int64_t from = 0; from < elements; from += kNormElements) {
    const std::int64_t count = std::min(kNormElements, elements - from);
    const Variable norm = norm_of(Part(gradient.id(), bytes(from), bytes(count)), shard,
                                  {Role::RuntimeBuffers, "gradient in fp64", kOne.source}, kOne);
    Variable square = norms_of_gradients_.root_or_square(norm, kOne);
    if (squares) eager_.add(squares, square, "add squares of norms");
    if (!squares) squares = std::move(square);
  }
  norm_of_[index] = norms_.size();
  norms_.push_back(norms_of_gradients_.root_or_square(squares, kOne));
  norms_.back().mark_scratch();
}

// complete_grad_norm_calculation_for_cpu_offload, up to where ranks add up. A rank without a part of any has no sum.
Variable HostGradients::measure_norm(const SubGroup& group, Variables&) {
  std::vector<const Variable*> norms;
  for (std::size_t index = group.begin; index < group.end; ++index) {
    if (const auto at = norm_of_.find(index); at != norm_of_.end()) norms.push_back(&norms_[at->second]);
  }
  return norms_of_gradients_.added_squares(
      norms, {Role::Temporaries, "gradient norm", "zero/stage3.py, complete_grad_norm_calculation_for_cpu_offload"});
}

}  // namespace

GradientPartitions::GradientPartitions(const Training& training, const Sharding& sharding, GradientNorms& norms,
                                       Emitter& emitter)
    : training_(training), sharding_(sharding), norms_of_gradients_(norms), eager_(emitter) {}

// For an executor: what all tensor-parallel ranks have alike counts on the first of them alone.
Variable GradientPartitions::norm_of(const Part& gradient, const Shard& shard, const What& wide, const What& what) {
  const Variable copy = eager_.cast(gradient, DType::Float64, wide, "cast gradient");
  std::optional<std::vector<ByteRange>> squares;
  const Recording* recording = eager_.emitter().recording();
  if (shard.replicated && recording != nullptr && recording->tensor_rank() != 0) squares.emplace();
  return norms_of_gradients_.norm_of(copy, what, std::move(squares));
}

// has_overflow, fp16 only: isinf of the whole gradient buffer, which compares absolute values, then isnan, where
// that buffer is.
void GradientPartitions::scan_overflow() {
  const StreamId reduce = training_.zero.overlap_comm ? kReduceStream : kComputeStream;
  const Space there = eager_.emitter().space(gradients_.id());
  const auto make = [&](DType type, const Variable& from, Body body, const What& what) {
    Variable made = eager_.empty(storage(Elements(sharding_.partition()), type), type, what, kNone,
                                 there == Space::Device ? Space::Device : Space::Pageable);
    made.mark_scratch();
    eager_.work().read(from).write(made).run(body, what.label);
    return made;
  };
  const auto any = [&](const Variable& scan) {
    Variable found;
    if (there != Space::Device) return found;
    found =
        eager_.scratch(Bytes(1), DType::Bool, {Role::Temporaries, "overflow found", "zero/stage3.py, has_overflow"});
    eager_.work().read(scan).write(found).run(Body::Nothing, "any of overflow scan");
    return found;
  };
  {
    const OnStream stream(eager_.emitter(), reduce);
    const What what{Role::Temporaries, "overflow scan", "zero/stage3.py, has_overflow"};
    Variable absolute = make(kept(), gradients_, Body::Copy,
                             {Role::Temporaries, "absolute gradients", "zero/stage3.py, _has_inf_or_nan"});
    Variable scan = make(DType::Bool, absolute, Body::OverflowScan, what);
    absolute.reset();
    Variable found = any(scan);
    scan.reset();
    found.reset();
    scan = make(DType::Bool, gradients_, Body::OverflowScan, what);
    found = any(scan);
  }
  eager_.emitter().wait_stream(kComputeStream, reduce);
}

std::unique_ptr<GradientPartitions> make_gradient_partitions(const Training& training, const Sharding& sharding,
                                                             GradientNorms& norms, PartitionedOptimizer& optimizer,
                                                             Emitter& emitter) {
  if (training.zero.offload_optimizer.device == OffloadDevice::None) {
    return std::make_unique<DeviceGradients>(training, sharding, norms, emitter);
  }
  return std::make_unique<HostGradients>(training, sharding, norms, optimizer, emitter);
}

}  // namespace dsplan
