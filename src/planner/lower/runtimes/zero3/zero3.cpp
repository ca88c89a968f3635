// ZeRO-3 (DeepSpeed runtime/zero/stage3.py, partition_parameters.py): parameters, gradients and the optimizer's states
// are each in partitions, on the device, on the host or on NVMe. The order of things is here; how each is done is the
// parameter store's, the gradient reducer's and the partitioned optimizer's. When parameters are gathered and let go of
// is the coordinator's (module_hooks.h).
#include "planner/lower/runtimes/zero3/zero3.h"

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "model/quantized.h"
#include "planner/lower/runtimes/loading/construction.h"
#include "planner/lower/runtimes/runtime_base.h"
#include "planner/lower/runtimes/zero3/gradient_partitions.h"
#include "planner/lower/runtimes/zero3/gradient_reducer.h"
#include "planner/lower/runtimes/zero3/module_hooks.h"
#include "planner/lower/runtimes/zero3/parameter_store.h"
#include "planner/lower/runtimes/zero3/partition_home.h"
#include "planner/lower/runtimes/zero3/partitioned_optimizer.h"
#include "planner/lower/runtimes/zero3/sharding.h"

namespace dsplan {
namespace {

constexpr What kWhole{Role::Parameters, "whole parameter", "zero/partition_parameters.py, Init._post_init_method"};
constexpr What kGradientNorm{Role::Temporaries, "gradient norm", "zero/stage3.py, get_grad_norm_direct"};
constexpr What kOverflow{Role::Temporaries, "overflow flag", "zero/stage3.py, has_overflow"};
constexpr What kNormOfSubGroup{Role::Temporaries, "gradient norm of a sub-group",
                               "zero/stage3.py, complete_grad_norm_calculation_for_cpu_offload"};

class Zero3Runtime final : public RuntimeBase {
 public:
  Zero3Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter);
  ~Zero3Runtime() noexcept override = default;

  void build(ModelInit where, const BuffersOf& buffers_of) override;
  void initialise(const std::vector<BufferId>& buffers) override;
  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override { return store_.place(parameter); }
  [[nodiscard]] ModuleId wraps_input(ModuleId module) const override { return hooks_.wraps_input(module); }
  [[nodiscard]] bool moves_parameters() const override { return true; }
  void forward_begins() override { hooks_.begin_forward(); }
  void backward_begins(bool boundary) override { gradients_->begin_backward(boundary); }
  void enter(ModuleId module, Pass pass) override { hooks_.enter(module, pass); }
  void exit(ModuleId module, Pass pass) override;
  void gradient_ready(ParameterId parameter, BufferId gradient) override;
  void backward_ends(bool boundary) override;
  void step(bool first) override;
  [[nodiscard]] bool saves() const override { return zero().gather_16bit_weights_on_model_save; }
  void save() override;
  [[nodiscard]] std::vector<FrameworkCount> counts() const override { return hooks_.counts(); }

 private:
  [[nodiscard]] bool optimizer_away() const { return zero().offload_optimizer.device != OffloadDevice::None; }
  void construct();
  void begin_wrapper();
  void cut_whole_model();
  void cut(const NamedParameter& p, Variable whole);
  void create_hooks();
  void pass_barrier();
  void reduce_leaf(ModuleId module);
  void measure_gradients();
  void update_sub_groups(bool first);
  void save_module(const std::vector<ParameterId>& list, std::vector<Variable>& host, std::vector<bool>& saved);

  Eager eager_;
  Sharding sharding_;
  std::unique_ptr<PartitionHome> home_;
  ParameterStore store_;
  ModuleHooks hooks_;
  std::unique_ptr<GradientPartitions> gradients_;
  PartitionedOptimizer optimizer_;
  GradientReducer reducer_;
  std::vector<Variable> held_;  // By parameter: gradients of leaf modules, until the module's backward is over.
  Variable barrier_;
  bool keeps_codes_ = false;  // Weights are LLM.int8's.
};

Zero3Runtime::Zero3Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
    : RuntimeBase(job, model, rank, emitter),
      eager_(emitter),
      sharding_(job, model, rank),
      home_(make_partition_home(job.training, sharding_, emitter)),
      store_(job.training, model, sharding_, *home_, emitter),
      hooks_(job.training, model, sharding_, *home_, store_, emitter),
      gradients_(make_gradient_partitions(job.training, sharding_, gradient_norms_, optimizer_, emitter)),
      optimizer_(job.training, sharding_, *home_, *gradients_, emitter),
      reducer_(job.training, sharding_, *gradients_, emitter),
      held_(model.parameters.size()) {
  ask = [this](ParameterId parameter) { hooks_.ask(parameter); };
  if (zero().overlap_comm) emitter_.use_streams();
  const std::optional<Quantization> packing = packing_of(model);
  keeps_codes_ = packing && packing->eight_bits();
}

// DeepSpeedZeroOptimizer_Stage3.__init__.
void Zero3Runtime::initialise(const std::vector<BufferId>& /*buffers*/) {
  if (!training().under_zero_init()) home_->prepare();
  construct();
  if (trained_.empty()) return;
  optimizer_.construct();
  print("Before creating fp16 partitions");
  pass_barrier();
  home_->join();
  print("After creating fp16 partitions: " + std::to_string(sharding_.groups().size()));
  print("Before creating fp32 partitions");
  optimizer_.make_swap_buffers();
  optimizer_.create_masters();
  print("After creating fp32 partitions");
  pass_barrier();
  print("Before initializing optimizer states");
  optimizer_.initialise_states();
  print("After initializing optimizer states");
  pass_barrier();
  reducer_.make_bucket();
  gradients_->make();
  print("After Set Grad positions");
  create_hooks();
  optimizer_.promise_updates();
  home_->promise_updates();
  print("After initializing ZeRO optimizer");
}

// Built without zero.Init a model is given to the engine whole (engine.py, _configure_distributed_model), and the
// optimizer's wrapper cuts it (parameter_offload.py, _convert_to_zero_parameters).
void Zero3Runtime::construct() {
  if (training().under_zero_init()) {
    home_->drop_tied();  // deepspeed/utils/debug.py, debug_extract_module_and_param_names, makes enough objects.
    const std::vector<std::pair<NamedParameter, BufferId>> adapters = loading_.give_adapters_to_engine(kWhole);
    begin_wrapper();
    for (const auto& [p, whole] : adapters) cut(p, Variable(emitter_, whole));
  } else {
    cut_whole_model();
  }
  print("DeepSpeedZeRoOffload initialize [end]");
}

// Under zero.Init a model is cut as it is made (partition_parameters.py, _post_init_method): a module's own parameters
// are whole until its constructor returns, then each is broadcast and cut in its turn. A tied tensor is made, and cut,
// before it is tied. peft's adapters come to a model that is there: whole until the wrapper cuts them.
void Zero3Runtime::build(ModelInit where, const BuffersOf& buffers_of) {
  if (!training().under_zero_init()) return RuntimeBase::build(where, buffers_of);
  home_->prepare();
  // By module, what is made ahead of it, and what in it.
  std::vector<std::vector<ParameterId>> ahead(model_.modules.size());
  std::vector<std::vector<ParameterId>> own(model_.modules.size());
  std::vector<std::vector<ParameterId>> behind(model_.modules.size());
  const std::vector<ModuleId> before = made_before(model_);
  for (std::size_t at = 0; at < model_.parameters.size(); ++at) {
    const Parameter& parameter = model_.parameters[at];
    if (is_adapter(parameter)) continue;
    auto& list = before[at] == kNone ? own : before[at] == parameter.module ? behind : ahead;
    list[static_cast<std::size_t>(before[at] == kNone ? parameter.module : before[at])].push_back(
        static_cast<ParameterId>(at));
  }
  struct Open {
    ModuleId module;
    std::vector<std::pair<NamedParameter, Variable>> whole;
  };
  std::vector<Open> open;
  const auto make = [&](const std::vector<ParameterId>& list) {
    for (const ParameterId id : list) {
      const Parameter& parameter = model_.parameter_at(id);
      const NamedParameter p{id, parameter.shape.elements().value(), true, training().dtype_of(parameter)};
      open.back().whole.emplace_back(p, loading_.load(p, kWhole));
    }
  };
  const auto close = [&] {
    make(behind[static_cast<std::size_t>(open.back().module)]);
    for (auto& [p, whole] : open.back().whole) cut(p, std::move(whole));
    open.pop_back();
  };
  Eager eager(emitter_);
  const LateBuffers late = late_buffers(model_);
  for (std::size_t at = 0; at < own.size(); ++at) {
    const auto module = static_cast<ModuleId>(at);
    const ModuleId parent = model_.modules[at].parent;
    while (!open.empty() && open.back().module != parent) close();
    if (late.with == module) make_late(eager, late.triangle, [&] { buffers_of(late.of); });
    make(ahead[at]);
    open.push_back({module, {}});
    make(own[at]);
    if (late.with == kNone || late.of != module) buffers_of(module);
  }
  while (!open.empty()) close();
  loading_.build_adapters(model_);
}

void Zero3Runtime::begin_wrapper() {
  if (!trained_.empty() && !optimizer_away()) make_overflow_buffer();
  if (!trained_.empty()) print("Stage 3 initialize beginning");
  print("DeepSpeedZeRoOffload initialize [begin]");
}

// The engine broadcasts the model as it does below ZeRO-3, and the wrapper each parameter once more.
void Zero3Runtime::cut_whole_model() {
  const std::vector<BufferId> whole = loading_.give_to_engine(kWhole);
  begin_wrapper();
  for (const NamedParameter& p : named_) cut(p, Variable(emitter_, whole[static_cast<std::size_t>(p.id)]));
}

void Zero3Runtime::cut(const NamedParameter& p, Variable whole) {
  loading_.broadcast(whole.id(), p.dtype);
  store_.cut(p, std::move(whole), model_.parameter_at(p.id).tied_to != kNone);
}

// create_reduce_and_remove_grad_hooks: a hook can only be put on a parameter that is whole.
void Zero3Runtime::create_hooks() {
  for (const NamedParameter& p : trained_) {
    store_.gather_whole(p.id);
    emitter_.mark_scratch(store_.place(p.id).buffer);
    store_.drop_full(p.id);
    home_->drop(p.id);
  }
}

// torch.distributed.barrier on a communicator of GPUs makes one byte on the device and holds it, in a static variable,
// until the next barrier (torch/csrc/distributed/c10d/ProcessGroup.hpp).
void Zero3Runtime::pass_barrier() {
  Variable tensor =
      eager_.empty(Bytes(1), DType::UInt8,
                   {Role::Temporaries, "tensor of a barrier", "torch/csrc/distributed/c10d/ProcessGroup.hpp, barrier"});
  tensor.mark_scratch();
  eager_.zero(tensor, "barrier");
  barrier_ = std::move(tensor);
}

void Zero3Runtime::exit(ModuleId module, Pass pass) {
  if (module == kNone) return;
  if (pass == Pass::Backward && hooks_.is_leaf(module)) reduce_leaf(module);
  if (pass != Pass::Backward && keeps_codes_) {
    // Linear8bitLt.forward ends with the codes that it keeps in place of what was gathered. A bias is read as it is.
    for (const ParameterId id : hooks_.own(module)) {
      if (sharding_.of(id).dtype == DType::Int8) store_.drop_full(id);
    }
  }
  hooks_.exit(module, pass);
}

// A leaf module's gradients wait until all of its backward is over.
void Zero3Runtime::gradient_ready(ParameterId parameter, BufferId gradient) {
  const auto at = static_cast<std::size_t>(parameter);
  if (hooks_.leaf_of(parameter) != kNone)
    return accumulate_gradient(held_[at], Variable(emitter_, gradient, Reason::GradientHeld));
  reducer_.reduce(static_cast<std::size_t>(trained_index_[at]), gradient);
}

// reduce_leaf_module_grads, in the optimizer's order.
void Zero3Runtime::reduce_leaf(ModuleId module) {
  for (std::size_t index = 0; index < trained_.size(); ++index) {
    const ParameterId id = trained_[index].id;
    Variable& held = held_[static_cast<std::size_t>(id)];
    if (hooks_.leaf_of(id) == module && held) reducer_.reduce(index, held.hand_over());
  }
}

void Zero3Runtime::backward_ends(bool) {
  for (std::size_t module = 0; module < model_.modules.size(); ++module) {
    if (hooks_.is_leaf(static_cast<ModuleId>(module))) reduce_leaf(static_cast<ModuleId>(module));
  }
  reducer_.finish();
  hooks_.end_backward();
  gradients_->end_backward();
}

// Overflow scan, norm and the update, one sub-group at a time.
void Zero3Runtime::step(bool first) {
  print("In step before checking overflow");
  hooks_.release_all();
  if (!trained_.empty()) {
    measure_gradients();
    update_sub_groups(first);
  }
  gradients_->end_step();
  hooks_.gather_persistent();
  hooks_.drop_secondary();
  print("After zero_optimizer step");
  norms_.step_returns();
}

// With the optimizer on the host norms were taken at the boundary, and are added up for each sub-group
// (complete_grad_norm_calculation_for_cpu_offload).
void Zero3Runtime::measure_gradients() {
  if (sharding_.trained_dtype() == DType::Float16) {
    gradients_->scan_overflow();
    control_.all_reduce(Bytes(1), kOverflow);
  }
  for (const SubGroup& group : sharding_.groups()) {
    Variables norms;
    Variable sum = gradients_->measure_norm(group, norms);
    if (optimizer_away()) {
      control_.sub_group_norm(kNormOfSubGroup, std::move(sum));
    } else {
      control_.all_reduce(Bytes(8), kGradientNorm, {}, std::move(sum));
    }
  }
  if (!optimizer_away()) norms_.in_step(DType::Float64, sharding_.groups().size());
}

void Zero3Runtime::update_sub_groups(bool first) {
  std::size_t number = 0;
  for (const auto& group : optimizer_.groups()) {
    const std::string which = " optimizer sub group " + std::to_string(number++);
    print("Before prepare" + which);
    group->prepare();
    print("After prepare" + which);
    group->step(first);
    print("Before release" + which);
    group->release();
    print("After release" + which);
  }
}

// stage3_gather_16bit_weights_on_model_save (engine.py, _zero3_consolidated_16bit_state_dict): every rank gathers one
// module's own parameters at a time, rank 0 copies them to the host and sends them out again, and all cut them anew.
void Zero3Runtime::save() {
  hooks_.release_all();
  std::vector<Variable> host;
  std::vector<bool> saved(model_.parameters.size(), false);
  for (std::size_t module = 0; module < model_.modules.size(); ++module) {
    const std::vector<ParameterId> own = hooks_.own(static_cast<ModuleId>(module));
    if (!own.empty()) save_module(own, host, saved);
  }
  hooks_.drop_secondary();
  hooks_.gather_persistent();
  let_go(host);
}

void Zero3Runtime::save_module(const std::vector<ParameterId>& list, std::vector<Variable>& host,
                               std::vector<bool>& saved) {
  store_.gather_in_place(list);
  const auto whole = [&](ParameterId id) {
    const ParameterPlace at = store_.place(id);
    return Part(at.buffer, at.offset, at.bytes);
  };
  for (ParameterId id : list) {
    if (rank() != 0 || saved[static_cast<std::size_t>(id)]) continue;
    saved[static_cast<std::size_t>(id)] = true;  // A tied weight is there under its other name.
    host.push_back(eager_.empty(whole(id).bytes, sharding_.of(id).dtype, {Role::Parameters, "weight to save", ""}, id,
                                Space::Pageable));
    host.back().mark_scratch();
    eager_.copy(host.back(), whole(id), "copy weight to host");
  }
  for (ParameterId id : list) eager_.broadcast(whole(id), 0, world());
  for (ParameterId id : list) {
    store_.partition_again(id);
    store_.release(id, Reason::PythonFrame);
    home_->drop(id);
  }
}

}  // namespace

std::unique_ptr<TrainingRuntime> make_stage3_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                     Emitter& emitter) {
  return std::make_unique<Zero3Runtime>(job, model, rank, emitter);
}

std::optional<std::string> stage3_offload_unsupported(const Training& training) {
  const Zero& zero = training.zero;
  const bool nvme =
      zero.offload_optimizer.device == OffloadDevice::Nvme || zero.offload_param.device == OffloadDevice::Nvme;
  // The shard is made on a device that PyTorch does not know.
  if (zero.offload_param.device == OffloadDevice::Nvme && zero.hpz_partition_size > 1) {
    return "parameter offload to NVMe with secondary shards (hpZ), which DeepSpeed cannot make either";
  }
  // Before, its buffers came from PyTorch's pool.
  if (nvme && training.deepspeed < Version{0, 19, 4}) return "offload to NVMe before DeepSpeed 0.19.4";
  return std::nullopt;
}

}  // namespace dsplan
