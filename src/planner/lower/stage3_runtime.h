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
#include "planner/lower/eager.h"
#include "planner/lower/optimizer_swapper.h"
#include "planner/lower/parameter_swapper.h"
#include "planner/lower/runtime_base.h"

namespace dsplan {

class Stage3Runtime final : public RuntimeBase {
 public:
  Stage3Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter);
  ~Stage3Runtime() noexcept override;

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
    bool in_flat = false;       // Its partition is part of the flat buffer.
    bool in_file = false;       // Its partition is on NVMe, and in memory only while it is needed.
    bool aliased = false;       // Available where it lies: a single rank has nothing to gather.
    Variable own;               // Frozen: the partition's own tensor.
    Variable full;              // Gathered,
    Bytes full_offset;          // from here on.
    Variable secondary;         // hpZ.
    BufferId held = kNoBuffer;  // A leaf module's gradient, until the module's backward is over.
    std::int32_t call = -1;     // The gather under way that brings it.
  };
  // A gather that was launched: what its handle holds.
  struct Call {
    std::vector<ParameterId> parameters;
    std::size_t left = 0;  // Of these, how many have not been asked for.
    bool waited = false;
    bool copies = false;              // They are copied out of `flat`.
    bool secondary = false;           // Gathered from secondary shards, of the ranks inside.
    std::vector<Variable> held;       // Until the last one has been asked for; flat first.
    std::vector<Variable> sent;       // Until the collective is over.
    std::vector<BufferId> quantized;  // qwZ: what each parameter, or all of them, arrives in,
    std::vector<BufferId> scales;     // with its scales.
  };
  struct SubGroup {
    std::size_t begin = 0;  // Indices into trained_.
    std::size_t end = 0;
    std::int64_t offset = 0;
    std::int64_t elements = 0;
    bool in_flat = true;  // Its parameters are in the flat buffer; else each lies where it was made.
    bool away = false;    // The optimizer on the host or in files updates it.
    Variable master;      // None: in a file.
    std::vector<Variable> state;
    Variable gradient;  // In master dtype, where it is updated; None without offload.
  };
  struct Entry {
    std::size_t parameter;
    std::int64_t offset;
    Variable own;
  };

  [[nodiscard]] Piece& piece(ParameterId id) { return pieces_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] const Piece& piece(ParameterId id) const { return pieces_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] std::int64_t aligned(const Piece& of) const { return checked_mul(of.part, world()); }
  [[nodiscard]] std::int64_t inside() const { return zero().hpz_partition_size; }

  // Elements of the partition that are real on this rank, from where on in the parameter.
  struct Real {
    std::int64_t from = 0;
    std::int64_t elements = 0;
  };
  [[nodiscard]] Real real(const Piece& of) const;

  // stage3_runtime.cpp
  void lay_out();
  void gather_partitions_in_one_buffer();
  void create_masters();
  void create_master(SubGroup& group, Variable& cast);
  void make_overflow_tracker();
  void zero_gradients();
  void create_hooks();

  // stage3_construct.cpp
  void construct();
  void build_in_pieces();
  void begin_wrapper();
  void cut_whole_model();
  void cut(const Leaf& leaf, Piece& of, Variable whole);
  void cut_into(const Part& partition, const Piece& of, const Variable& whole);
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
  void make_full(ParameterId id, std::int64_t elements);
  Variable gather_alone(ParameterId id, bool secondary);
  void launch_coalesced(bool secondary, Call& call);
  void launch_all_reduce(Call& call);
  void wait(ParameterId id);
  void forget(ParameterId id);
  void release(ParameterId id);
  void make_secondary(Piece& of, const Part& whole);
  void drop_secondary();
  void gather_whole(ParameterId id);
  void gather_in_place(const std::vector<ParameterId>& list);
  void all_gather(const Part& to, std::span<const Part> from, bool secondary);
  void all_gather(const Part& to, const Part& from, bool secondary) { all_gather(to, {&from, 1}, secondary); }
  // What a rank sends: its partition, or its secondary shard; where it was brought to the device that copy.
  [[nodiscard]] Part sent(const Piece& of, bool secondary) const;
  void compare_trace();
  void synchronize();

  // stage3_quantized.cpp
  void quantize(const std::vector<ParameterId>& list, bool secondary, Call& call);
  void launch_quantized(const std::vector<ParameterId>& list, bool secondary, Call& call);
  void take_half(ParameterId id, Variable half);
  void dequantize_single(ParameterId id, std::size_t index, Call& call);
  void dequantize_coalesced(Call& call);

  // stage3_offload.cpp
  [[nodiscard]] bool optimizer_away() const { return zero().offload_optimizer.device != OffloadDevice::None; }
  [[nodiscard]] bool parameters_away() const { return zero().offload_param.device != OffloadDevice::None; }
  Variable make_on_host(Bytes bytes, DType type, const What& what, bool pinned, ParameterId parameter = kNone);
  void gather_partitions_on_host();
  void create_master_elsewhere(SubGroup& group, Variable& cast);
  void create_host_gradient(SubGroup& group, Variable& passing);
  Variable make_gradient_partitions();
  Variable bring(const Piece& of, bool secondary = false);
  void bring_whole(ParameterId id);
  void offload_gradients(const std::vector<Part>& sources);
  Variable accumulate_on_host(const Entry& entry, const Part& source);
  void pass_boundary(const Entry& entry, const Variable& gradient);
  void measure_at_boundary(const Entry& entry, const Variable& gradient);
  void measure_on_host();
  void update_on_host(SubGroup& group, bool first);
  void create_state(SubGroup& group, Space space);
  void update_master(const SubGroup& group, const Part& gradient, Label work);
  void copy_to_partitions(const SubGroup& group);

  // stage3_partial.cpp
  [[nodiscard]] bool partial() const { return optimizer_away() && zero().offload_optimizer.ratio < 1; }
  void divide_groups();
  void make_backup();
  void create_device_gradient(SubGroup& group, Variable& passing);
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
  void partition_into_file(Piece& of, Variable whole);
  void move_to_flat(Piece& of);
  void reserve_for_updates();
  Variable master_from_pieces(const SubGroup& group);
  void initialise_swapped_masters();
  [[nodiscard]] Part in_flat(const SubGroup& group) const {
    return {flat_.id(), in_model_dtype(group.offset), in_model_dtype(group.elements)};
  }
  [[nodiscard]] Part master_of(const SubGroup& group) const;
  [[nodiscard]] Part partition(const Piece& of) const;
  void read_missing(const std::vector<ParameterId>& list);
  void drop_read(ParameterId id);
  void write_partitions(const SubGroup& group);
  void swap_out_gradients();
  void promise_updates();

  // stage3_gradients.cpp
  void reduce_ready(std::size_t index, Variable gradient);
  void reduce_leaf(ModuleId module);
  void flush();
  void reduce_in_bucket();
  void reduce_scattered();
  std::vector<Variable> cast_own_gradients();
  [[nodiscard]] const Piece& piece_of(const Entry& entry) const;
  [[nodiscard]] Part in_gradients(const Piece& of) const;
  [[nodiscard]] Part in_bucket(const Entry& entry) const;
  void interleave(const Variable& tensor);
  // For an executor: which bytes go where.
  [[nodiscard]] std::vector<ByteRange> interleaved() const;
  [[nodiscard]] std::vector<ByteRange> padded(const std::vector<Part>& sources) const;
  [[nodiscard]] std::vector<ByteRange> coalesced(const Call& call, const Variable& flat,
                                                 ParameterId wanted = kNone) const;
  [[nodiscard]] std::vector<ByteRange> among_zeros(const Call& call) const;
  [[nodiscard]] std::int64_t ranks_of(const Call& call) const { return call.secondary ? inside() : world(); }
  void take_scattered(Part mine, Variable interleaved);
  void add_to_partition(const std::vector<Part>& sources);
  void clear_entries();

  // stage3_step.cpp
  void measure_gradients();
  void measure_norm(const SubGroup& group);
  void scan_overflow();
  void update(SubGroup& group, bool first);
  void gather_persistent();
  void cut_again(Piece& of);
  void save_module(const std::vector<ParameterId>& list, std::vector<Variable>& host, std::vector<bool>& saved);

  Eager eager_;
  std::vector<Piece> pieces_;  // By ParameterId.
  std::vector<Piece> tied_;    // Partitions of tensors that were tied to others since.
  Variable barrier_;
  Variable backup_;  // What the device's own optimizer was made with, until it is given something else.
  Coordinator coordinator_;
  std::vector<ModuleId> wraps_;      // By module.
  std::vector<bool> carries_hooks_;  // By module.
  std::vector<ModuleId> leaf_of_;    // By parameter: the leaf module that it lies in; kNone outside.
  std::vector<ParameterId> persistent_;
  std::vector<Call> calls_;
  std::vector<SubGroup> groups_;
  std::int64_t partition_ = 0;  // S.
  Variable flat_;
  Variable gradients_;
  Variable bucket_;
  std::vector<Entry> entries_;
  std::int64_t filled_ = 0;
  std::deque<std::optional<ContentId>> reductions_;  // Signals behind those under way, oldest first.
  std::optional<ParameterSwapper> files_;            // Parameters on NVMe.
  std::optional<OptimizerSwapper> optimizer_;        // The optimizer there.
  // Gradients that this reduction hands to it, by sub-group in the order of the first.
  std::vector<std::pair<std::size_t, std::vector<OptimizerSwapper::Gradient>>> swapped_gradients_;
  bool boundary_ = false;        // This is the last micro-batch before the step.
  std::vector<Variable> norms_;  // Offloaded optimizer: one of each gradient, from the boundary to the step's end.
  bool accumulating_ = false;    // A later micro-batch adds to the partitions; the first overwrites them.
};

}  // namespace dsplan
