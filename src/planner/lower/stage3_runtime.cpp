// ZeRO-3: how parameters are cut, and what initialisation makes.
#include "planner/lower/stage3_runtime.h"

#include <algorithm>
#include <utility>

#include "planner/lower/stage3_modules.h"

namespace dsplan {
namespace {

Coordinator coordinator_for(const Zero& zero, const ModelSpec& model, std::vector<CoordinatedParameter> parameters,
                            const std::vector<bool>& leaf) {
  CoordinatorSettings settings;
  // The engine sets it to one element for sequential gathers.
  settings.prefetch_bucket = zero.allgather_sequential ? 1 : zero.prefetch_bucket_size.value();
  settings.max_reuse_distance = zero.max_reuse_distance.value();
  settings.max_live = zero.max_live_parameters.value();
  settings.secondary_shards = zero.hpz_partition_size > 1;
  if (zero.offload_param.device == OffloadDevice::Nvme) settings.swap_buffers = zero.offload_param.buffer_count;
  return {settings, std::move(parameters), coordinated_modules(model, leaf)};
}

}  // namespace

Stage3Runtime::Stage3Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
    : RuntimeBase(job, model, rank, emitter),
      eager_(emitter),
      pieces_(model.parameters.size()),
      coordinator_({}, {}, {}),
      wraps_(model.modules.size(), kNone),
      leaf_of_(model.parameters.size(), kNone) {
  lay_out();
  lay_out_files();
  const std::vector<bool> leaf = leaf_modules(model, zero());
  carries_hooks_ = hooked_modules(model, leaf);
  std::vector<CoordinatedParameter> parameters(model.parameters.size());
  for (std::size_t at = 0; at < parameters.size(); ++at) {
    const Piece& of = pieces_[at];
    parameters[at] = {of.elements, of.part, of.persistent, of.trained, of.in_file};
  }
  coordinator_ = coordinator_for(zero(), model, std::move(parameters), leaf);
  for (std::size_t at = 0; at < model.parameters.size(); ++at) {
    ModuleId module = model.parameters[at].module;
    while (!carries_hooks_[static_cast<std::size_t>(module)])
      module = model.modules[static_cast<std::size_t>(module)].parent;
    if (leaf[static_cast<std::size_t>(module)]) leaf_of_[at] = module;
    wraps_[static_cast<std::size_t>(module)] = module;
  }
  // Parents come before children: what lies below a leaf is wrapped as the leaf is.
  for (std::size_t at = 1; at < wraps_.size(); ++at) {
    if (!carries_hooks_[at]) wraps_[at] = wraps_[static_cast<std::size_t>(model.modules[at].parent)];
  }
}

Stage3Runtime::~Stage3Runtime() noexcept = default;

// Partitions, persistence (parameter_offload.py, mark_persistent_parameters) and sub-groups.
void Stage3Runtime::lay_out() {
  std::int64_t persistent = 0;
  for (const Leaf& leaf : leaves_) {
    Piece& piece = pieces_[static_cast<std::size_t>(leaf.id)];
    piece.elements = leaf.elements;
    piece.part = div_ceil(Elements(leaf.elements), world()).value();
    piece.trained = leaf.trainable;
    if (leaf.trainable) {
      piece.offset = partition_;
      partition_ = checked_add(partition_, piece.part);
    }
    if (checked_add(leaf.elements, persistent) > zero().model_persistence_threshold.value()) continue;
    if (leaf.elements > zero().param_persistence_threshold.value()) continue;
    piece.persistent = true;
    persistent_.push_back(leaf.id);
    persistent += leaf.elements;
  }
  SubGroup group;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    group.elements += pieces_[static_cast<std::size_t>(trained_[i].id)].part;
    group.end = i + 1;
    if (group.elements < zero().sub_group_size.value() && i + 1 < trained_.size()) continue;
    const std::int64_t next = group.offset + group.elements;
    groups_.push_back(std::exchange(group, SubGroup()));
    group.begin = group.end = i + 1;
    group.offset = next;
  }
  divide_groups();
}

void Stage3Runtime::initialise() {
  if (zero().overlap_comm) emitter_.use_streams();
  if (files_) files_->make_pool();
  construct();
  if (trained_.empty()) return;
  make_backup();
  make_overflow_tracker();
  print("Before creating fp16 partitions");
  pass_barrier();
  gather_partitions_in_one_buffer();
  print("After creating fp16 partitions: " + std::to_string(groups_.size()));
  print("Before creating fp32 partitions");
  make_optimizer_buffers();
  create_masters();
  print("After creating fp32 partitions");
  pass_barrier();
  print("Before initializing optimizer states");
  zero_gradients();
  print("After initializing optimizer states");
  pass_barrier();
  const DType sent = training().communication_dtype;
  if (zero().contiguous_gradients) {
    bucket_ = eager_.empty(
        storage(zero().reduce_bucket_size, sent), sent,
        {Role::RuntimeBuffers, "gradient bucket", "zero/stage3.py, _setup_for_real_optimizer", /*capacity=*/true});
  }
  gradients_ = make_gradient_partitions();
  print("After Set Grad positions");
  create_hooks();
  promise_updates();
  print("After initializing ZeRO optimizer");
}

// inf_or_nan_tracker, of the constructor: where the optimizer is.
void Stage3Runtime::make_overflow_tracker() {
  Variable flag =
      eager_.empty(Bytes(1), DType::Bool,
                   {Role::Temporaries, "overflow tracker", "zero/stage3.py, DeepSpeedZeroOptimizer_Stage3.__init__"},
                   kNone, optimizer_away() ? Space::Pageable : Space::Device);
  flag.mark_scratch();
  eager_.zero(flag, "zero overflow tracker");
  (void)flag.hand_over();  // It stays.
}

// initialize_optimizer_states: a gradient of the largest sub-group, dropped at the end.
void Stage3Runtime::zero_gradients() {
  std::int64_t largest = 0;
  for (const SubGroup& group : groups_) largest = std::max(largest, group.elements);
  const Variable zeros = eager_.empty(in_master_dtype(largest), training().master_dtype,
                                      {Role::Temporaries, "zero gradients of initialize_optimizer_states",
                                       "zero/stage3.py, initialize_optimizer_states"},
                                      kNone, optimizer_away() ? Space::Pageable : Space::Device);
  zeros.mark_scratch();
  eager_.zero(zeros, "zero gradients");
  Variable passing;  // The host's copy of the gradient of a sub-group of the device.
  for (SubGroup& group : groups_) {
    if (swapped(group)) {
      optimizer_->swap_in(index_of(group));
    } else if (optimizer_away()) {
      create_host_gradient(group, passing);
    }
    if (!group.in_flat) write_partitions(group);
    if (swapped(group)) optimizer_->swap_out(index_of(group));
  }
}

// create_reduce_and_remove_grad_hooks: a hook can only be put on a parameter that is whole.
void Stage3Runtime::create_hooks() {
  for (const Leaf& leaf : trained_) {
    gather_whole(leaf.id);
    piece(leaf.id).full.mark_scratch();
    piece(leaf.id).full.reset();
    drop_read(leaf.id);
  }
}

// zero/utils.py, defragment: through the host, so that old and new never coexist on the device.
void Stage3Runtime::gather_partitions_in_one_buffer() {
  if (parameters_away()) {
    gather_partitions_on_host();
    return drop_tied();
  }
  std::vector<Variable> parts;
  for (const Leaf& leaf : trained_) {
    parts.push_back(std::move(piece(leaf.id).own));
    piece(leaf.id).in_flat = true;
  }
  const Variable staging = eager_.empty(
      in_model_dtype(partition_), dtype(),
      {Role::Parameters, "staging of parameter partitions", "zero/utils.py, defragment"}, kNone, Space::Pageable);
  eager_.work().read(parts).write(staging).run(Body::Copy, "copy partitions to host");
  let_go(parts);
  drop_tied();
  flat_ = eager_.empty(
      in_model_dtype(partition_), dtype(),
      {Role::Parameters, "parameter partitions", "zero/stage3.py, _create_fp16_partitions_with_defragmentation"});
  eager_.copy(flat_, staging, "copy partitions to device");
}

// _create_fp32_partitions.
void Stage3Runtime::create_masters() {
  Variable cast;  // Of the sub-group before.
  for (SubGroup& group : groups_) {
    if (group.in_flat && !swapped(group)) create_master(group, cast);
  }
  initialise_swapped_masters();
}

// to(fp32), where that changes the dtype, and then a clone; the cast before is let go of by the next. The branch that
// would take fp32 partitions as they are asks whether a torch.device equals a string, which it never does.
void Stage3Runtime::create_master(SubGroup& group, Variable& cast) {
  if (optimizer_away() || parameters_away()) return create_master_elsewhere(group, cast);
  const DType type = training().master_dtype;
  Part weights = in_flat(group);
  if (type != dtype()) {
    cast =
        eager_.cast(weights, type,
                    {Role::Temporaries, "master weights before the clone", "zero/stage3.py, _create_fp32_partitions"},
                    "cast to master");
    weights = cast;
  }
  group.master = eager_.clone(weights, {Role::Optimizer, "master weights", "zero/stage3.py, _create_fp32_partitions"},
                              "clone master");
}

std::unique_ptr<TrainingRuntime> make_stage3_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                     Emitter& emitter) {
  return std::make_unique<Stage3Runtime>(job, model, rank, emitter);
}

}  // namespace dsplan
