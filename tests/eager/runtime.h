// The frameworks around the model, each written from its own documentation of what it holds and when: plain PyTorch
// with DistributedDataParallel, both forms of FSDP, and DeepSpeed at stages 0 to 3.
#pragma once

#include <memory>

#include "eager/model.h"

namespace eager {

struct Plan {
  bool deepspeed = false;
  int stage = 0;
  std::int64_t world = 1;
  std::int64_t rank = 0;
  std::int64_t micro_batches = 1;
  DType dtype = DType::BFloat16;
  bool fused = true;  // Plain PyTorch's optimizer keeps its step counters on the device.
  bool scans_overflow = false;
  bool overlap = false;
  bool reduce_scatter = true;
  std::int64_t bucket = 500'000'000;  // Elements.
  std::int64_t ddp_cap = 0;           // DistributedDataParallel's bucket_cap_mb; 0: its own.
  bool ddp_buffers = true;            // broadcast_buffers
  bool ddp_views = false;             // gradient_as_bucket_view
  bool ddp_static = false;            // static_graph
  bool ddp_shares = false;            // ZeroRedundancyOptimizer
  std::int64_t sub_group = 1'000'000'000;
  std::int64_t persistence = 100'000;
  std::int64_t prefetch = 50'000'000;
  std::int64_t reuse = 1'000'000'000;
  std::int64_t max_live = 1'000'000'000;
  bool sequential = false;
  bool all_reduce_fetch = false;
  // fully_shard, where there are units: the modules of each call, how it reshards, and by module its unit and the order
  // in which children come before their parents.
  std::vector<std::vector<int>> units;
  std::vector<std::int64_t> reshards;
  std::vector<int> unit_of;
  std::vector<int> order;
  std::int64_t reshard_root = 0;
  std::vector<std::size_t> layers;    // Units of whole layers, in their order.
  std::size_t forward_prefetch = 0;   // set_modules_to_forward_prefetch: of each layer that has so many after it,
  std::size_t backward_prefetch = 0;  // and of each that has so many before it.
  std::vector<bool> ignored = {};     // ignored_params, by parameter; empty: none. They are frozen.
  std::int64_t replicate = 1;
  std::int64_t kept = 2;     // Bytes of an element of a shard,
  std::int64_t reduced = 2;  // and of a gradient on its way.
  bool sync_every = false;
  bool clips = false;
  bool keeps_norm = false;  // Until the next step: who trains writes it to a log.
  std::function<void(Net&, int)> make_buffers;
  // FullyShardedDataParallel, whose units and dtypes are those above.
  struct Flat {
    bool on = false;
    DType made = DType::BFloat16;  // As it is loaded; `kept` is what it is cast to.
    bool views = false;            // use_orig_params
    bool reshards = true;          // After forward.
    bool offloads = false;
    bool on_host = true;  // Where the model is made.
    bool sends = false;   // sync_module_states
    bool casts_buffers = false;
    bool prefetches_forward = false;
    std::int64_t prefetches_backward = 0;  // 0: before, 1: after a unit's own backward; 2: never.
    std::vector<bool> frozen = {};         // By parameter; empty: none.
    std::vector<int> parents = {};         // By module.
    std::vector<int> buffer_modules = {};
  } flat;

  [[nodiscard]] std::int64_t width() const { return dsplan::bytes_per_element(dtype); }
  [[nodiscard]] bool mixed() const { return dtype != DType::Float32; }
};

using Block = std::shared_ptr<Storage>;
[[nodiscard]] Block block(const char* what, std::int64_t bytes);
// Made and gone again.
void passing(const char* what, std::int64_t bytes);

class Runtime : public ModuleHooks {
 public:
  Runtime(const Plan& plan, Net& net);
  // Under zero.Init: a module's parameters are made and cut.
  virtual void construct(int /*module*/) {}
  virtual void initialise() = 0;
  virtual void forward_begins() {}
  virtual void backward_begins(bool /*boundary*/) {}
  virtual void ready(const Tensor& leaf) = 0;
  virtual void autograd_ends() {}
  virtual void backward_ends(bool /*boundary*/) {}
  virtual void step() = 0;

  bool copies_outputs = false;  // Those of the next forward.

 protected:
  [[nodiscard]] std::int64_t bytes(std::int64_t elements) const { return elements * plan_.width(); }
  void load();
  void make_state(std::int64_t bytes);
  void make_overflow_buffer();
  void combine_norms(std::int64_t each, std::int64_t root);
  // ZeRO: the scaled norm, those of groups in a variable of step(), and the engine's of the step before.
  void hold_norms(std::int64_t each, std::size_t groups);
  void let_go_of_norms() { norms_.clear(); }

  Plan plan_;
  Net& net_;
  Tensors leaves_;  // In registration order, ties once.
  std::int64_t elements_ = 0;
  std::vector<Block> state_;
  Block overflow_;
  Block norm_;
  std::vector<Block> of_gradients_;  // Norms in a list, until they are added up.
  std::vector<Block> norms_;
};

[[nodiscard]] std::unique_ptr<Runtime> make_plain(const Plan& plan, Net& net);
[[nodiscard]] std::unique_ptr<Runtime> make_stage0(const Plan& plan, Net& net);
[[nodiscard]] std::unique_ptr<Runtime> make_stage12(const Plan& plan, Net& net);
[[nodiscard]] std::unique_ptr<Runtime> make_fsdp(const Plan& plan, Net& net);
[[nodiscard]] std::unique_ptr<Runtime> make_fsdp1(const Plan& plan, Net& net);
[[nodiscard]] std::unique_ptr<Runtime> make_stage3(const Plan& plan, Net& net);

// Init and two optimizer steps, of a static graph three; what was logged.
[[nodiscard]] std::vector<Entry> train(const dsplan::ModelSpec& spec, Settings settings, const Plan& plan);

}  // namespace eager
