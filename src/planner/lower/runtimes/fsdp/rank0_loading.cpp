#include "planner/lower/runtimes/fsdp/rank0_loading.h"

#include <utility>

namespace dsplan {
namespace {

constexpr What kSent{Role::Temporaries, "whole parameter",
                     "accelerate: utils/fsdp_utils.py, fsdp2_load_full_state_dict"};
constexpr What kPaddedChunk{Role::Temporaries, "rows of a rank, padded",
                            "tensor/placement_types.py, Shard._shard_tensor"};
constexpr What kTiedRows{Role::Parameters, "shard under a tied name", "modeling_utils.py, tie_weights"};
constexpr What kTiedRowsOnHost{Role::Parameters, "shard of the host under a tied name",
                               "accelerate: utils/fsdp_utils.py, fsdp2_load_full_state_dict"};

}  // namespace

// Name by name, tied ones twice.
void Rank0Loading::run(const std::function<void(ModuleId)>& move_buffers) {
  host_ = loading_.take_from_host();
  for (std::size_t at = 0; at < model_.parameters.size(); ++at) {
    const auto id = static_cast<ParameterId>(at);
    const ParameterId tied_to = model_.parameters[at].tied_to;
    const ParameterId weight = tied_to != kNone ? tied_to : id;
    send(id, weight);
    cut(id, weight);
  }
  pad_again();
  whole_.reset(Reason::PythonFrame);
  for (std::size_t module = 0; module < model_.modules.size(); ++module) move_buffers(static_cast<ModuleId>(module));
  let_go(again_, Reason::PythonFrame);
  let_go(host_, Reason::PythonFrame);
}

// The whole one before stays until Python's name is given the next one; rank 0 gives the name away sooner.
void Rank0Loading::send(ParameterId id, ParameterId weight) {
  const std::int64_t elements = model_.parameter_at(id).shape.elements().value();
  const DType kept = parameters_.kept(weight);
  if (rank_ == 0) whole_.reset(Reason::PythonFrame);
  Variable next = host_.empty()
                      ? loading_.load({weight, elements, true, kept}, kSent)
                      : eager_.clone(host_[static_cast<std::size_t>(weight)], kSent, "move to device", weight);
  next.mark_scratch();  // The rows of other ranks are theirs.
  whole_.reset(Reason::PythonFrame);
  whole_ = std::move(next);
  if (!prepared_by_axolotl(fsdp_.wrap)) loading_.broadcast(whole_.id(), kept);
}

// distribute_tensor sends the whole to the replicas of a mesh, then scatters: what is short is padded first, on every
// rank. Each has the whole by then, and its rows are read off that.
void Rank0Loading::cut(ParameterId id, ParameterId weight) {
  const DType kept = parameters_.kept(weight);
  if (fsdp_.replicate > 1) eager_.broadcast(whole_, 0, fsdp_.replicate, Group::Replicas);
  const Shape& shape = model_.parameter_at(id).shape;
  const std::int64_t ranks = parameters_.mesh().ranks;
  std::vector<Variable> padded;
  const Bytes chunk = storage(shard_on_dim0(shape, ranks, 0).padded, kept);
  for (std::int64_t rank = full_shards(shape, ranks); rank < ranks; ++rank) {
    padded.push_back(eager_.scratch(chunk, kept, kPaddedChunk));
    eager_.work().write(padded.back()).run(Body::Clear, "pad chunk");
  }
  if (id == weight) {
    parameters_.cut(id, whole_, &padded, prepared_by_axolotl(fsdp_.wrap));
  } else {
    again_.push_back(eager_.scratch(storage(parameters_.of(weight).padded, kept), kept, kTiedRows));
    eager_.work().write(again_.back()).run(Body::Clear, "cut shard");
    let_go(padded, Reason::PythonFrame);
    if (prepared_by_axolotl(fsdp_.wrap)) unpad_again(parameters_.of(weight), kept);
    if (fsdp_.cpu_offload && again_.back()) {
      const Part rows(again_.back().id(), Bytes(0), storage(parameters_.of(weight).real, kept));
      Variable there;
      if (rows.bytes > Bytes(0)) there = eager_.clone(rows, kTiedRowsOnHost, "copy to host", kNone, Space::Pageable);
      if (there) there.mark_scratch();
      again_.back() = std::move(there);
    }
  }
  if (prepared_by_axolotl(fsdp_.wrap)) whole_.reset(Reason::PythonFrame);
}

// axolotl's clone of a tied name's rows.
void Rank0Loading::unpad_again(const FsdpShard& shard, DType kept) {
  if (shard.real == shard.padded) return;
  if (shard.real == Elements(0)) return again_.back().reset(Reason::PythonFrame);
  Variable rows = eager_.clone(Part(again_.back().id(), Bytes(0), storage(shard.real, kept)), kTiedRows, "copy rows");
  rows.mark_scratch();
  again_.back() = std::move(rows);
}

// Each parameter's hook when its module has loaded (_fsdp_param.py); the dictionary keeps what came until all have.
void Rank0Loading::pad_again() {
  std::vector<std::vector<ParameterId>> own(model_.modules.size());
  for (std::size_t at = 0; at < model_.parameters.size(); ++at) {
    const Parameter& parameter = model_.parameters[at];
    if (parameter.tied_to != kNone) continue;
    own[static_cast<std::size_t>(parameter.module)].push_back(static_cast<ParameterId>(at));
  }
  std::vector<Variable> came(model_.parameters.size());
  children_first(model_, [&](ModuleId module) {
    for (const ParameterId id : own[static_cast<std::size_t>(module)]) {
      const FsdpShard& shard = parameters_.of(id);
      if (shard.real != shard.padded || fsdp_.cpu_offload) came[static_cast<std::size_t>(id)] = parameters_.pad(id);
    }
  });
  let_go(came, Reason::PythonFrame);
}

}  // namespace dsplan
