// ZeRO-1 and ZeRO-2: how parameters are laid out, and what initialisation makes.
#include "planner/lower/stage12_runtime.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "planner/lower/stage12_offload.h"

namespace dsplan {

Stage12Runtime::Stage12Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
    : RuntimeBase(job, model, rank, emitter),
      whole_(model.parameters.size(), kNoBuffer),
      held_(model.parameters.size(), kNoBuffer) {
  sums_partition_ = sums_partition(training());
  widens_ = sums_partition_ && zero().stage == 1;
  own_.resize(trained_.size(), kNoBuffer);
  staged_ = bucket_dtype(training());
  lay_out();
}

// Order in the flat buffer (round-robin re-orders it) and offsets.
void Stage12Runtime::lay_out() {
  if (zero().round_robin_gradients) {
    std::vector<Leaf> order;
    for (std::int64_t r = 0; r < world(); ++r) {
      for (std::size_t i = static_cast<std::size_t>(r); i < trained_.size(); i += static_cast<std::size_t>(world())) {
        order.push_back(trained_[i]);
      }
    }
    trained_ = std::move(order);
    for (std::size_t i = 0; i < trained_.size(); ++i) trained_index_[at(trained_[i].id)] = static_cast<std::int32_t>(i);
  }
  std::int64_t sum = 0;
  for (const Leaf& leaf : trained_) {
    offset_.push_back(sum);
    sum = checked_add(sum, leaf.elements);
  }
  const FlatPartition cut = flat_partition(Elements(sum), world());
  padded_ = cut.padded.value();
  partition_ = cut.own.value();
  const std::int64_t first = rank() * partition_;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    const bool mine = offset_[i] < first + partition_ && offset_[i] + trained_[i].elements > first;
    kept_offset_.push_back(mine ? kept_ : -1);
    if (!mine) continue;
    const std::int64_t from = std::max(offset_[i], first);
    const std::int64_t to = std::min(offset_[i] + trained_[i].elements, first + partition_);
    fragments_.push_back(to - from);
    kept_ += trained_[i].elements;
  }
}

std::int64_t Stage12Runtime::padding() const {
  return partition_ - std::accumulate(fragments_.begin(), fragments_.end(), std::int64_t{0});
}

void Stage12Runtime::initialise() {
  if (zero().overlap_comm) emitter_.use_streams();
  whole_ = load_model("parameter");
  if (trained_.empty()) return;
  if (zero().offload_optimizer.device == OffloadDevice::None) make_overflow_buffer();
  flatten_parameters();
  create_master();
  emitter_.promise_update(flat_, in_model_dtype(checked_mul(rank(), partition_)), in_model_dtype(partition_));
  emitter_.promise_update(master_, Bytes(0), emitter_.size(master_));
  print("Before initializing optimizer states");
  create_gradients();
  print("After initializing optimizer states");
  print("After initializing ZeRO optimizer");
}

// Zero gradients for every group at once, dropped at the end.
void Stage12Runtime::create_gradients() {
  const BufferId gradients = emitter_.allocate(in_master_dtype(partition_), training().master_dtype, Role::Temporaries,
                                               "zero gradients of initialize_optimizer_states");
  emitter_.mark_scratch(gradients);
  emitter_.begin();
  emitter_.write(gradients);
  emitter_.compute("zero gradients");
  emitter_.release(gradients, Reason::PythonFrame);
}

// The slice is cloned before it is cast; where there is nothing to cast the clone itself is the master.
void Stage12Runtime::create_master() {
  const Bytes begin = in_model_dtype(checked_mul(rank(), partition_));
  const bool cast = training().master_dtype != dtype();
  const BufferId clone =
      emitter_.allocate(in_model_dtype(partition_), dtype(), cast ? Role::Temporaries : Role::Optimizer,
                        cast ? "clone of the partition" : "master weights");
  emitter_.begin();
  emitter_.read(flat_, begin, in_model_dtype(partition_));
  emitter_.write(clone);
  emitter_.compute("clone partition");
  if (!cast) {
    master_ = clone;
    return;
  }
  master_ = emitter_.allocate(in_master_dtype(partition_), training().master_dtype, Role::Optimizer, "master weights");
  emitter_.begin();
  emitter_.read(clone);
  emitter_.write(master_);
  emitter_.compute("cast to master");
  emitter_.release(clone, Reason::LastUse);
}

ParameterPlace Stage12Runtime::place(ParameterId parameter) const {
  const std::int32_t index = trained_index_[at(parameter)];
  if (index < 0 || whole_[at(parameter)] != kNoBuffer) {
    return {whole_[at(parameter)], Bytes(0), emitter_.size(whole_[at(parameter)])};
  }
  const auto i = static_cast<std::size_t>(index);
  return {flat_, in_model_dtype(offset_[i]), in_model_dtype(trained_[i].elements)};
}

std::unique_ptr<TrainingRuntime> make_stage12_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                      Emitter& emitter) {
  if (job.training.zero.offload_optimizer.device != OffloadDevice::None) {
    return std::make_unique<Stage12Offload>(job, model, rank, emitter);
  }
  return std::make_unique<Stage12Runtime>(job, model, rank, emitter);
}

}  // namespace dsplan
