// ZeRO-3 (DeepSpeed runtime/zero/stage3.py, partition_parameters.py, partitioned_param_coordinator.py), with the
// optimizer or the parameters on the host if asked (stage3_offload.cpp). When parameters are gathered and let go of is
// the Coordinator's; here is what that takes in memory and what the ranks send each other.
//
// Each parameter is cut on its own: P = ceil(n / W) elements per rank, A = W * P gathered. Trained partitions lie in
// one flat buffer, their gradients in another that is never freed. With hpZ a parameter that is let go of leaves a
// second shard of A / h elements, from which it is gathered among h ranks until the next step.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "planner/lower/coordinator.h"
#include "planner/lower/optimizer_swapper.h"
#include "planner/lower/parameter_swapper.h"
#include "planner/lower/runtime_base.h"

namespace dsplan {

class Stage3Runtime final : public RuntimeBase {
 public:
  Stage3Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter);

  void initialise() override;
  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override;
  // PostBackwardFunctionModule (parameter_offload.py), on the tensors that a module is called with.
  [[nodiscard]] ModuleId wraps_input(ModuleId module) const override {
    return wraps_[static_cast<std::size_t>(module)];
  }
  [[nodiscard]] bool moves_parameters() const override { return true; }
  void forward_begins() override;
  void backward_begins(bool boundary) override { boundary_ = boundary; }
  void enter(ModuleId module, Pass) override;
  void exit(ModuleId module, Pass) override;
  void gradient_ready(ParameterId parameter, BufferId gradient) override;
  void backward_ends(bool boundary) override;
  void step(bool first) override;
  [[nodiscard]] bool saves() const override;
  void save() override;
  [[nodiscard]] std::vector<FrameworkCount> counts() const override;

 private:
  struct Piece {
    std::int64_t elements = 0;
    std::int64_t part = 0;    // P.
    std::int64_t offset = 0;  // In the flat partition; trained parameters only.
    bool persistent = false;
    bool trained = false;
    bool in_flat = false;            // Its partition is part of the flat buffer.
    bool in_file = false;            // Its partition is on NVMe, and in memory only while it is needed.
    bool aliased = false;            // Available where it lies: a single rank has nothing to gather.
    BufferId own = kNoBuffer;        // Frozen: the partition's own tensor.
    BufferId full = kNoBuffer;       // Gathered,
    Bytes full_offset;               // from here on.
    BufferId secondary = kNoBuffer;  // hpZ.
    BufferId held = kNoBuffer;       // A leaf module's gradient, until the module's backward is over.
    std::int32_t call = -1;          // The gather under way that brings it.
  };
  // A gather that was launched: what its handle holds.
  struct Call {
    std::vector<ParameterId> parameters;
    std::size_t left = 0;  // Of these, how many have not been asked for.
    bool waited = false;
    bool copies = false;              // They are copied out of `flat`.
    bool secondary = false;           // Gathered from secondary shards, of the ranks inside.
    std::vector<BufferId> held;       // Until the last one has been asked for; flat first.
    std::vector<BufferId> sent;       // Until the collective is over.
    std::vector<BufferId> quantized;  // qwZ: what each parameter, or all of them, arrives in,
    std::vector<BufferId> scales;     // with its scales.
  };
  struct SubGroup {
    std::size_t begin = 0;  // Indices into trained_.
    std::size_t end = 0;
    std::int64_t offset = 0;
    std::int64_t elements = 0;
    bool in_flat = true;          // Its parameters are in the flat buffer; else each lies where it was made.
    bool away = false;            // The optimizer on the host or in files updates it.
    BufferId master = kNoBuffer;  // kNoBuffer: the parameters themselves, or in a file.
    std::vector<BufferId> state;
    BufferId gradient = kNoBuffer;  // In master dtype, where it is updated; kNoBuffer without offload.
  };
  using Range = BufferRange;
  struct Entry {
    std::size_t parameter;
    std::int64_t offset;
    BufferId own;
  };

  [[nodiscard]] Piece& piece(ParameterId id) { return pieces_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] const Piece& piece(ParameterId id) const { return pieces_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] std::int64_t aligned(const Piece& of) const { return checked_mul(of.part, world()); }
  [[nodiscard]] std::int64_t inside() const { return zero().hpz_partition_size; }

  struct Source {
    BufferId buffer = kNoBuffer;
    Bytes offset;
    Bytes bytes;
  };

  // stage3_runtime.cpp
  void lay_out();
  void gather_partitions_in_one_buffer();
  void create_masters();
  BufferId create_master(SubGroup& group);
  void make_overflow_tracker();
  void zero_gradients();
  void create_hooks();

  // stage3_construct.cpp
  void construct();
  void build_in_pieces();
  void begin_wrapper();
  void cut_whole_model();
  void cut(const Leaf& leaf, Piece& of, BufferId whole);
  [[nodiscard]] bool is_tied(const Leaf& leaf) const {
    return model_.parameters[static_cast<std::size_t>(leaf.id)].tied_to != kNone;
  }
  void drop_tied();
  void pass_barrier();

  // stage3_parameters.cpp
  enum class From : std::uint8_t { Fetch, Elsewhere };
  void apply(From from = From::Elsewhere);
  void act(const Coordinator::Action& action);
  void launch(const Coordinator::Action& action);
  BufferId gather_alone(ParameterId id, bool secondary);
  void launch_single(ParameterId id, bool secondary, Call& call);
  void launch_coalesced(bool secondary, Call& call);
  void launch_all_reduce(Call& call);
  void wait(ParameterId id);
  void forget(ParameterId id);
  void release(ParameterId id);
  void make_secondary(Piece& of);
  void drop_secondary();
  void gather_whole(ParameterId id);
  void gather_in_place(const std::vector<ParameterId>& list);
  void gather(bool secondary, DType type, Bytes payload);
  void read_partition(const Piece& of, bool secondary, BufferId brought = kNoBuffer);
  void release_full(Piece& of, Reason reason);
  void compare_trace();
  void synchronize();

  // stage3_quantized.cpp
  BufferId quantize(const std::vector<ParameterId>& list, bool secondary, Call& call);
  void launch_quantized(const std::vector<ParameterId>& list, bool secondary, Call& call);
  BufferId gathered(ParameterId id, DType type);
  void take_half(ParameterId id, BufferId half);
  void dequantize_single(ParameterId id, std::size_t index, Call& call);
  void dequantize_coalesced(Call& call);

  // stage3_offload.cpp
  [[nodiscard]] bool optimizer_away() const { return zero().offload_optimizer.device != OffloadDevice::None; }
  [[nodiscard]] bool parameters_away() const { return zero().offload_param.device != OffloadDevice::None; }
  BufferId make_on_host(Bytes bytes, DType type, Role role, Label label, bool pinned, ParameterId parameter = kNone,
                        bool capacity = false);
  void copy(const Range& from, const Range& to, Label work);
  void copy_across(const Range& from, const Range& to, bool to_host, Label work);
  void gather_partitions_on_host();
  BufferId create_master_elsewhere(SubGroup& group);
  void create_host_gradient(SubGroup& group);
  BufferId make_gradient_partitions();
  BufferId bring(const Piece& of, bool secondary = false);
  void bring_whole(ParameterId id);
  void offload_gradients(const std::vector<Source>& sources);
  BufferId accumulate_on_host(const Entry& entry, BufferId source, Bytes offset, std::int64_t elements);
  void pass_boundary(const Entry& entry, BufferId gradient, std::int64_t elements);
  void measure_on_host();
  void update_on_host(SubGroup& group, bool first);
  void update_master(const SubGroup& group, Label work);
  void copy_to_partitions(const SubGroup& group);

  // stage3_partial.cpp
  [[nodiscard]] bool partial() const { return optimizer_away() && zero().offload_optimizer.ratio < 1; }
  void divide_groups();
  void make_backup();
  void create_device_gradient(SubGroup& group);
  void drop_passing();
  void update_here(SubGroup& group, bool first);

  // stage3_nvme.cpp
  [[nodiscard]] bool parameters_in_files() const { return zero().offload_param.device == OffloadDevice::Nvme; }
  [[nodiscard]] std::size_t index_of(const SubGroup& group) const {
    return static_cast<std::size_t>(&group - groups_.data());
  }
  [[nodiscard]] ParameterId id_of(const Piece& of) const { return static_cast<ParameterId>(&of - pieces_.data()); }
  [[nodiscard]] bool swapped(const SubGroup& group) const { return optimizer_ && optimizer_->swaps(index_of(group)); }
  [[nodiscard]] std::int64_t flat_elements() const;
  void lay_out_files();
  void make_optimizer_buffers();
  void partition_into_file(Piece& of, BufferId whole);
  void move_to_flat(Piece& of);
  void reserve_for_updates();
  BufferId master_from_pieces(const SubGroup& group);
  void initialise_swapped_masters();
  [[nodiscard]] Range master_of(const SubGroup& group) const;
  [[nodiscard]] Range partition_range(const Piece& of) const;
  void read_missing(const std::vector<ParameterId>& list);
  void drop_read(ParameterId id);
  void write_partitions(const SubGroup& group);
  void swap_out_gradients();
  void promise_updates();

  // stage3_gradients.cpp
  void reduce_ready(std::size_t index, BufferId gradient);
  void reduce_leaf(ModuleId module);
  void flush();
  void reduce_in_bucket();
  void reduce_scattered();
  std::vector<BufferId> cast_own_gradients();
  [[nodiscard]] const Piece& piece_of(const Entry& entry) const;
  // Elements of `entry`'s partition that are real on this rank.
  [[nodiscard]] std::int64_t real_part(const Entry& entry) const;
  void join(BufferId tensor);
  // For an executor: which bytes go where.
  void record_interleaved();
  void record_partitions(const std::vector<Source>& sources);
  void record_coalesced(const Call& call, BufferId flat, ParameterId wanted = kNone);
  void record_among_zeros(const Call& call);
  [[nodiscard]] std::int64_t ranks_of(const Call& call) const { return call.secondary ? inside() : world(); }
  void take_scattered(BufferId tensor, Bytes mine, bool drop);
  void add_to_partition(const std::vector<Source>& sources);
  void clear_entries();

  // stage3_step.cpp
  void measure_gradients();
  void measure_norm(const SubGroup& group);
  void scan_overflow();
  void update(SubGroup& group, bool first);
  void apply_update(SubGroup& group, BufferId gradient, Bytes from, Bytes bytes);
  BufferId cast_gradient(const SubGroup& group, BufferId flat, Bytes from, Bytes bytes);
  void gather_persistent();
  void cut_again(Piece& of);
  void save_module(const std::vector<ParameterId>& list, std::vector<BufferId>& host, std::vector<bool>& saved);

  std::vector<Piece> pieces_;  // By ParameterId.
  std::vector<Piece> tied_;    // Partitions of tensors that were tied to others since.
  BufferId barrier_ = kNoBuffer;
  BufferId cast_ = kNoBuffer;     // Of the sub-group before, while masters are made.
  BufferId backup_ = kNoBuffer;   // What the device's own optimizer was made with, until it is given something else.
  BufferId passing_ = kNoBuffer;  // The host's copy of the gradient of a sub-group of the device, at initialisation.
  Coordinator coordinator_;
  std::vector<ModuleId> wraps_;      // By module.
  std::vector<bool> carries_hooks_;  // By module.
  std::vector<ModuleId> leaf_of_;    // By parameter: the leaf module that it lies in; kNone outside.
  std::vector<ParameterId> persistent_;
  std::vector<Call> calls_;
  std::vector<SubGroup> groups_;
  std::int64_t partition_ = 0;  // S.
  BufferId flat_ = kNoBuffer;
  BufferId gradients_ = kNoBuffer;
  BufferId bucket_ = kNoBuffer;
  std::vector<Entry> entries_;
  std::int64_t filled_ = 0;
  std::deque<std::optional<ContentId>> reductions_;  // Signals behind those under way, oldest first.
  std::optional<ParameterSwapper> files_;            // Parameters on NVMe.
  std::optional<OptimizerSwapper> optimizer_;        // The optimizer there.
  // Gradients that this reduction hands to it, by sub-group in the order of the first.
  std::vector<std::pair<std::size_t, std::vector<OptimizerSwapper::Gradient>>> swapped_gradients_;
  bool boundary_ = false;        // This is the last micro-batch before the step.
  std::vector<BufferId> norms_;  // Offloaded optimizer: one of each gradient, from the boundary to the step's end.
  bool accumulating_ = false;    // A later micro-batch adds to the partitions; the first overwrites them.
};

}  // namespace dsplan
