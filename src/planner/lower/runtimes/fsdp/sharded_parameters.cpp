#include "planner/lower/runtimes/fsdp/sharded_parameters.h"

#include <utility>

#include "core/error.h"

namespace dsplan {
namespace {

constexpr What kRows{Role::Parameters, "shard", "_fully_shard/_fsdp_param.py, _init_sharded_param"};
constexpr What kPaddedRows{Role::Parameters, "shard", "_fully_shard/_fsdp_param.py, reset_sharded_param"};
constexpr What kRowsOnHost{Role::Parameters, "shard on the host", "_fully_shard/_fsdp_param.py, _init_sharded_param"};
constexpr What kRowsSent{Role::Parameters, "shard on the host",
                         "accelerate: utils/fsdp_utils.py, fsdp2_load_full_state_dict"};
// tensor.pin_memory(): a copy.
Variable pinned(Eager& eager, const Variable& pageable, ParameterId id) {
  return eager.clone(pageable, kRowsOnHost, "pin memory", id, Space::Pinned);
}

constexpr What kGatheredRows{Role::RuntimeBuffers, "gathered parameter", "_fully_shard/_fsdp_param.py, alloc_storage"};

ShardRanks mesh_of(const Job& job, std::int64_t rank) {
  const std::int64_t ranks = sharding_ranks(job);
  return {ranks, rank % ranks, ranks < job.parallelism.dp ? Group::DataParallelInside : Group::DataParallel};
}

}  // namespace

ShardedParameters::ShardedParameters(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
    : training_(job.training),
      model_(model),
      eager_(emitter),
      space_(job.training.fsdp.cpu_offload ? Space::Pageable : Space::Device),
      mesh_(mesh_of(job, rank)),
      own_(model.parameters.size()),
      made_(model.parameters.size(), false),
      whole_(model.parameters.size()) {
  for (const Parameter& p : model.parameters) shards_.push_back(shard_on_dim0(p.shape, mesh_.ranks, mesh_.rank));
}

void ShardedParameters::cut(ParameterId id, const Variable& whole, std::vector<Variable>* sent, bool rows_alone) {
  const FsdpShard& shard = of(id);
  Variable made = eager_.empty(kept(id, shard.padded), kept(id), kRows, id);
  Work copy = eager_.work();
  copy.read(Part(whole.id(), kept(id, shard.from), kept(id, shard.real))).write(made);
  copy.run(shard.real > Elements(0) ? Body::Copy : Body::Clear, "cut shard");
  if (sent != nullptr) let_go(*sent, Reason::PythonFrame);
  Variable& own = own_[static_cast<std::size_t>(id)];
  const bool shorter = rows_alone && shard.real != shard.padded;
  if (shorter) made.mark_scratch();  // Nobody reads the padding.
  if (shorter && shard.real > Elements(0)) {
    made = eager_.clone(Part(made.id(), Bytes(0), kept(id, shard.real)), kRows, "copy rows", id);
  }
  if (space_ == Space::Device && shorter) {
    made_[static_cast<std::size_t>(id)] = true;
    if (shard.real == Elements(0)) return own.reset();
    own = std::move(made);
  } else if (space_ == Space::Device) {
    own = std::move(made);
  } else if (sent == nullptr) {
    const Variable there = eager_.clone(made, kRowsOnHost, "copy to host", id, Space::Pageable);
    made.reset(Reason::PythonFrame);
    own = pinned(eager_, there, id);
  } else {
    made_[static_cast<std::size_t>(id)] = true;
    if (shard.real == Elements(0)) return;
    const Part rows(made.id(), Bytes(0), kept(id, shard.real));
    own = eager_.clone(rows, kRowsSent, "copy to host", id, Space::Pageable);
  }
}

void ShardedParameters::make_empty(ParameterId id) {
  const FsdpShard& shard = of(id);
  made_[static_cast<std::size_t>(id)] = true;
  if (shard.real == Elements(0)) return own_[static_cast<std::size_t>(id)].reset();
  Variable made = eager_.empty(kept(id, shard.real), kept(id), kRows, id, space_);
  eager_.work()
      .write(made)
      .really_reads({{kNoBuffer, kept(id, shard.from), kept(id, shard.real)}})
      .run(Body::LoadParameter, "load shard");
  Variable& own = own_[static_cast<std::size_t>(id)];
  if (own) own.mark_scratch();  // A tied weight is made under each of its names.
  if (own && eager_.bytes_of(own) != eager_.bytes_of(made)) replaced_ = std::move(own);
  own = std::move(made);
}

Variable ShardedParameters::pad(ParameterId id, bool again) {
  Variable& own = own_[static_cast<std::size_t>(id)];
  const bool empty = made_[static_cast<std::size_t>(id)];
  if (!own && !empty) return {};
  if (!again && own && empty && eager_.bytes_of(own) == kept(id, of(id).padded)) {
    if (eager_.emitter().space(own.id()) != Space::Pageable) return {};
    Variable made = pinned(eager_, own, id);
    return std::exchange(own, std::move(made));
  }
  Variable made = eager_.empty(kept(id, of(id).padded), kept(id), kPaddedRows, id, space_);
  Work copy = eager_.work();
  if (own) copy.read(own);
  copy.write(made);
  copy.run(own ? Body::Copy : Body::Clear, "pad shard");
  if (space_ != Space::Device) made = pinned(eager_, made, id);
  replaced_.reset();
  return std::exchange(own, std::move(made));
}

Part ShardedParameters::real(ParameterId id) const {
  return {own_[static_cast<std::size_t>(id)].id(), Bytes(0), kept(id, of(id).real)};
}

ParameterPlace ShardedParameters::place(ParameterId id) const {
  DSPLAN_CHECK(whole(id), "a parameter is used while it is sharded: " + parameter(id).name);
  return {whole(id).id(), Bytes(0), storage(parameter(id).shape.elements(), gathered(id))};
}

void ShardedParameters::make_whole(ParameterId id, Variable there) {
  if (there) {
    whole_[static_cast<std::size_t>(id)] = std::move(there);
    return;
  }
  whole_[static_cast<std::size_t>(id)] =
      eager_.empty(storage(of(id).padded * mesh_.ranks, gathered(id)), gathered(id), kGatheredRows, id);
}

}  // namespace dsplan
