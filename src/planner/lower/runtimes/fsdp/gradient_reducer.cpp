#include "planner/lower/runtimes/fsdp/gradient_reducer.h"

#include <algorithm>

#include "core/kernel_scratch.h"

namespace dsplan {
namespace {

constexpr What kScatterInput{Role::RuntimeBuffers, "reduce-scatter input",
                             "_fully_shard/_fsdp_collectives.py, foreach_reduce"};
constexpr What kScatterOutput{Role::Gradients, "reduce-scatter output",
                              "_fully_shard/_fsdp_collectives.py, foreach_reduce"};
constexpr What kCastGradients{Role::Gradients, "sharded gradients",
                              "_fully_shard/_fsdp_common.py, _to_dtype_if_needed"};
constexpr What kOnHost{Role::Gradients, "gradient on the host", "_fully_shard/_fsdp_collectives.py, foreach_reduce"};
constexpr What kScatterTable{Role::Temporaries, "table of tensors",
                             "aten/src/ATen/native/cuda/TensorShape.cu, pack_vecs"};

}  // namespace

ShardGradients::ShardGradients(const Job& job, const ModelSpec& model, const ShardedParameters& parameters,
                               CommContext& context, Emitter& emitter)
    : training_(job.training),
      model_(model),
      parameters_(parameters),
      context_(context),
      eager_(emitter),
      held_(model.parameters.size()) {}

Elements ShardGradients::padded(const Unsharded& gradients) const {
  Elements sum;
  for (const auto& [id, gradient] : gradients) sum += parameters_.of(id).padded;
  return sum;
}

DType ShardGradients::reduced(const Unsharded& gradients) const {
  const bool given = training_.communication_dtype != training_.dtype;
  return given ? training_.communication_dtype : parameters_.gathered(gradients.front().first);
}

// For an executor: each rank's rows of each gradient, and zeros behind the last ones.
std::vector<ByteRange> ShardGradients::interleaved(const Unsharded& gradients) const {
  std::vector<ByteRange> ranges;
  const ShardRanks& mesh = parameters_.mesh();
  for (std::int64_t rank = 0; rank < mesh.ranks; ++rank) {
    for (const auto& [id, gradient] : gradients) {
      const DType type = eager_.emitter().dtype(gradient.id());
      const auto bytes = [type](Elements elements) { return storage(elements, type); };
      const Shape& shape = model_.parameter_at(id).shape;
      const FsdpShard shard = shard_on_dim0(shape, mesh.ranks, rank);
      if (shard.real > Elements(0)) ranges.push_back({gradient.id(), bytes(shard.from), bytes(shard.real)});
      if (shard.padded > shard.real) ranges.push_back({kNoBuffer, Bytes(0), bytes(shard.padded - shard.real)});
    }
  }
  return ranges;
}

// The list of gradients is cleared from its end; the loop's variable holds the last of them until foreach_reduce
// returns.
Variable ShardGradients::copy_in(Unsharded& gradients) {
  const DType type = reduced(gradients);
  const std::int64_t ranks = parameters_.mesh().ranks;
  Variable input = eager_.empty(storage(padded(gradients) * ranks, type), type, kScatterInput);
  std::vector<Bytes> pieces;
  for (const auto& [id, gradient] : gradients) pieces.push_back(storage(parameters_.of(id).padded, type));
  Variable written;  // By the host, which sends it.
  Variable table;
  if (training_.level == Level::Kernel) {
    written = eager_.scratch(chunk_cat_scratch(pieces), DType::Int64, kScatterTable, Space::Pinned);
    table = eager_.scratch(chunk_cat_scratch(pieces), DType::Int64, kScatterTable);
  }
  Work copy = eager_.work();
  for (const auto& [id, gradient] : gradients) copy.read(gradient);
  copy.write(input);
  if (table) copy.write(written).write(table);
  if (eager_.emitter().recording() != nullptr) {
    copy.really_reads(interleaved(gradients));
    copy.really_writes({{input.id(), Bytes(0), eager_.bytes_of(input)}});
  }
  copy.run(Body::Copy, "copy gradients in");
  table.reset();
  written.reset();
  for (std::size_t at = gradients.size() - 1; at-- > 0;) gradients[at].second.reset(Reason::GradientHeld);
  return input;
}

ShardGradients::Pending ShardGradients::reduce(Unsharded gradients) {
  Emitter& emitter = eager_.emitter();
  emitter.wait_event(kComputeStream, context_.reduced.event);
  context_.reduced.tensor.reset(Reason::RuntimeBucket);
  Variable input = copy_in(gradients);
  emitter.wait_stream(kReduceStream, kComputeStream);
  const bool replicates = training_.fsdp.replicate > 1;
  const DType type = reduced(gradients);
  const DType kept = parameters_.kept(gradients.front().first);
  Variable sums;
  std::optional<ContentId> scattered;
  {
    const OnStream on(emitter, kReduceStream);
    sums = eager_.empty(storage(padded(gradients), type), type, kScatterOutput);
    const ShardRanks& mesh = parameters_.mesh();
    eager_.reduce_scatter(sums, input, mesh.ranks, mesh.group);
    scattered = emitter.record_event(kReduceStream);
  }
  const StreamId last = replicates ? kReplicaStream : kReduceStream;
  Pending pending;
  {
    const OnStream on(emitter, last);
    if (replicates) {
      emitter.wait_stream(kReplicaStream, kReduceStream);
      eager_.all_reduce(sums, training_.fsdp.replicate, Group::Replicas);
      pending.tensor = sums.share();
    }
    if (kept != type) sums = eager_.cast(sums, kept, kCastGradients, "cast gradients");
    take(gradients, std::move(sums));
    pending.event = emitter.record_event(last);
  }
  gradients.clear();
  context_.reduced = {std::move(input), scattered};
  return pending;
}

void ShardGradients::take(const Unsharded& gradients, Variable sums) {
  Bytes offset;
  for (const auto& [id, gradient] : gradients) {
    const FsdpShard& shard = parameters_.of(id);
    Held& held = held_[static_cast<std::size_t>(id)];
    if (training_.fsdp.cpu_offload) {
      if (shard.real > Elements(0)) {
        take_to_host(id, Part(sums.id(), offset, storage(shard.real, parameters_.kept(id))));
      }
    } else if (!held.storage) {
      held = {sums.share(), offset};
    } else if (shard.real > Elements(0)) {
      eager_.add(of(id), Part(sums.id(), offset, storage(shard.real, parameters_.kept(id))), "accumulate gradient");
    }
    offset += storage(shard.padded, parameters_.kept(id));
  }
  sums.reset(Reason::PythonFrame);
}

// Into pinned memory, without waiting; what is added to a gradient goes through pageable memory, and the host waits.
void ShardGradients::take_to_host(ParameterId id, const Part& sums) {
  Held& held = held_[static_cast<std::size_t>(id)];
  if (!held.storage) {
    held = {eager_.clone(sums, kOnHost, "copy gradient to host", id, Space::Pinned), Bytes(0)};
    return;
  }
  const Variable more = eager_.clone(sums, kOnHost, "copy gradient to host", kNone, Space::Pageable);
  const StreamId last = training_.fsdp.replicate > 1 ? kReplicaStream : kReduceStream;
  eager_.emitter().wait_stream(kHostSync, last);
  eager_.add(of(id), more, "accumulate gradient");
}

Part ShardGradients::of(ParameterId id) const {
  const Held& held = held_[static_cast<std::size_t>(id)];
  if (!held.storage) return {};
  return {held.storage.id(), held.offset, storage(parameters_.of(id).real, parameters_.kept(id))};
}

}  // namespace dsplan
