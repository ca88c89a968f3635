#include "planner/lower/runtimes/fsdp/group_gather.h"

#include <algorithm>
#include <utility>

#include "core/kernel_scratch.h"

namespace dsplan {
namespace {

constexpr What kGatherInput{Role::RuntimeBuffers, "shards in the dtype that is gathered",
                            "_fully_shard/_fsdp_collectives.py, _get_param_all_gather_inputs"};
constexpr What kGatherOutput{Role::RuntimeBuffers, "all-gather output",
                             "_fully_shard/_fsdp_collectives.py, foreach_all_gather"};
constexpr What kFromHost{Role::RuntimeBuffers, "shard on the device", "_fully_shard/_fsdp_param.py, all_gather_inputs"};
constexpr What kOfFewer{Role::RuntimeBuffers, "shard among fewer ranks",
                        "_fully_shard/_fsdp_param.py, to_sharded_post_forward"};
constexpr What kGatherTable{Role::Temporaries, "table of tensors",
                            "aten/src/ATen/native/cuda/TensorShape.cu, pack_vecs"};

}  // namespace

GroupGather::GroupGather(const FsdpGroup& group, const Job& job, ShardedParameters& parameters, CommContext& context,
                         Emitter& emitter)
    : group_(group), job_(job), parameters_(parameters), context_(context), eager_(emitter) {}

// Shards lie among all ranks of the mesh, or after forward among fewer of them, neighbours.
ShardRanks GroupGather::ranks() const {
  const ShardRanks& mesh = parameters_.mesh();
  if (of_fewer_.empty()) return mesh;
  return {group_.reshards, mesh.rank % group_.reshards, Group::DataParallelInside};
}

// By each rank.
Bytes GroupGather::sent() const {
  Bytes sum;
  for (const ParameterId id : group_.parameters) {
    sum += storage(parameters_.of(id).padded, parameters_.gathered(id));
  }
  return sum * (parameters_.mesh().ranks / ranks().ranks);
}

// As bytes where parameters differ.
DType GroupGather::gathered_type() const {
  const DType type = parameters_.gathered(group_.parameters.front());
  const bool alike = std::all_of(group_.parameters.begin(), group_.parameters.end(),
                                 [&](ParameterId id) { return parameters_.gathered(id) == type; });
  return alike ? type : DType::UInt8;
}

// What is sent of each parameter: its shard, or where it is gathered in another dtype its part of one tensor for all of
// those (_get_param_all_gather_inputs).
std::vector<Part> GroupGather::cast_shards(Variable& into) const {
  std::vector<Part> parts;
  if (!of_fewer_.empty()) {
    for (const Variable& shard : of_fewer_) parts.push_back(shard);
  } else {
    for (const ParameterId id : group_.parameters) parts.push_back(parameters_.padded(id));
  }
  std::vector<Part> cast;
  std::vector<std::size_t> which;
  Bytes bytes;
  for (std::size_t at = 0; at < parts.size(); ++at) {
    const ParameterId id = group_.parameters[at];
    if (parameters_.kept(id) == parameters_.gathered(id)) continue;
    cast.push_back(parts[at]);
    which.push_back(at);
    const Emitter& emitter = eager_.emitter();
    const std::int64_t elements =
        eager_.bytes_of(parts[at]).value() / bytes_per_element(emitter.dtype(parts[at].buffer));
    parts[at] = {kNoBuffer, bytes, storage(Elements(elements), job_.training.dtype)};
    bytes += parts[at].bytes;
  }
  if (cast.empty()) return parts;
  into = Eager(eager_.emitter()).empty(bytes, job_.training.dtype, kGatherInput);
  Work(eager_.emitter()).read(cast).write(into).run(Body::Copy, "cast shards");
  for (const std::size_t at : which) parts[at].buffer = into.id();
  return parts;
}

// Under CPUOffloadPolicy one by one to the device, and there into the dtype that is gathered.
std::vector<Part> GroupGather::shards_from_host(std::vector<Variable>& there) const {
  std::vector<Part> parts;
  Eager eager(eager_.emitter());
  for (std::size_t at = 0; at < group_.parameters.size(); ++at) {
    const ParameterId id = group_.parameters[at];
    if (!of_fewer_.empty()) {
      parts.push_back(of_fewer_[at]);
      continue;
    }
    Variable shard = eager.clone(parameters_.padded(id), kFromHost, "copy shard to device");
    if (parameters_.kept(id) != parameters_.gathered(id)) {
      shard = eager.cast(shard, parameters_.gathered(id), kGatherInput, "cast shard");
    }
    parts.push_back(shard);
    there.push_back(std::move(shard));
  }
  return parts;
}

void GroupGather::let_gathers_wait(std::optional<ContentId> event) {
  eager_.emitter().wait_event(kCopyInStream, event);
  eager_.emitter().wait_event(kGatherStream, event);
}

// foreach_all_gather: shards are copied to their place in the output, through a tensor of their own where the dtype is
// another one, and gathered in place.
void GroupGather::unshard(bool by_hand) {
  if (gathered_.tensor || unsharded_) return;
  Emitter& emitter = eager_.emitter();
  let_gathers_wait(std::exchange(resharded_, std::nullopt));
  const ShardRanks over = ranks();
  const Bytes share = sent();
  const Bytes offset = share * over.rank;
  const StreamId copies = by_hand ? kComputeStream : kCopyInStream;
  const StreamId gathers = by_hand ? kComputeStream : kGatherStream;
  Variable input;
  std::vector<Variable> inputs;
  {
    const OnStream on(emitter, copies);
    const std::vector<Part> parts = job_.training.fsdp.cpu_offload ? shards_from_host(inputs) : cast_shards(input);
    gathered_.tensor = eager_.empty(share * over.ranks, gathered_type(), kGatherOutput);
    Work copy = eager_.work();
    copy.read(parts).write(Part(gathered_.tensor.id(), offset, share)).run(Body::Copy, "copy shards in");
  }
  if (!by_hand) emitter.wait_stream(gathers, copies);
  {
    const OnStream on(emitter, gathers);
    eager_.all_gather(gathered_.tensor, Part(gathered_.tensor.id(), offset, share), over.ranks, over.group);
    gathered_.event = emitter.record_event(gathers);
  }
  input.reset(Reason::PythonFrame);
  let_go(inputs, Reason::PythonFrame);
}

// The output has all parameters of one rank after another; whole parameters have all ranks of one after another.
void GroupGather::copy_out() {
  for (const ParameterId id : group_.parameters) parameters_.make_whole(id);
  const ShardRanks over = ranks();
  std::vector<Bytes> pieces;
  for (const ParameterId id : group_.parameters) {
    pieces.push_back(Bytes(eager_.bytes_of(parameters_.whole(id)).value() / over.ranks));
  }
  Variable written;  // By the host, which sends it.
  Variable table;
  if (job_.training.level == Level::Kernel && job_.hardware) {
    const Bytes bytes = split_copy_scratch(pieces, over.ranks, device_threads(*job_.hardware));
    if (bytes > Bytes(0)) {  // Of a device that is known.
      written = eager_.scratch(bytes, DType::Int64, kGatherTable, Space::Pinned);
      table = eager_.scratch(bytes, DType::Int64, kGatherTable);
    }
  }
  Work copy = eager_.work();
  copy.read(gathered_.tensor);
  std::vector<ByteRange> writes;
  for (const ParameterId id : group_.parameters) {
    copy.write(parameters_.whole(id));
    writes.push_back({parameters_.whole(id).id(), Bytes(0), eager_.bytes_of(parameters_.whole(id))});
  }
  if (table) copy.write(written).write(table);
  if (eager_.emitter().recording() != nullptr) {
    std::vector<ByteRange> reads;
    Bytes offset;
    for (const Bytes piece : pieces) {
      for (std::int64_t rank = 0; rank < over.ranks; ++rank) {
        reads.push_back({gathered_.tensor.id(), sent() * rank + offset, piece});
      }
      offset += piece;
    }
    copy.really_reads(std::move(reads)).really_writes(std::move(writes));
  }
  copy.run(Body::Copy, "copy gathered parameters out");
}

// In forward what was gathered stays until the next group's has been copied out, so that the next gather need not wait
// for this copy; in backward it goes at once.
void GroupGather::wait_for_unshard(bool forward) {
  if (!gathered_.tensor) return;
  Emitter& emitter = eager_.emitter();
  Variable before;  // A variable of this function's until it returns.
  if (forward && context_.gathered.tensor) {
    let_gathers_wait(context_.gathered.event);
    before = std::move(context_.gathered.tensor);
  }
  emitter.wait_event(kComputeStream, gathered_.event);
  copy_out();
  let_go(of_fewer_, Reason::PythonFrame);
  unsharded_ = true;
  gathered_.event = emitter.record_event(kComputeStream);
  if (forward) {
    context_.gathered = std::exchange(gathered_, {});
  } else {
    let_gathers_wait(gathered_.event);
    gathered_.tensor.reset(Reason::RuntimeBucket);
  }
  before.reset(Reason::RuntimeBucket);
}

void GroupGather::reshard() {
  if (!unsharded_) return;
  unsharded_ = false;
  for (const ParameterId id : group_.parameters) parameters_.drop_whole(id);
}

void GroupGather::reshard_to_fewer() {
  const ShardRanks& mesh = parameters_.mesh();
  for (const ParameterId id : group_.parameters) {
    const Variable& whole = parameters_.whole(id);
    const Bytes part(eager_.bytes_of(whole).value() / group_.reshards);
    of_fewer_.push_back(
        eager_.clone(Part(whole.id(), part * (mesh.rank % group_.reshards), part), kOfFewer, "reshard", id));
    parameters_.drop_whole(id);
  }
  unsharded_ = false;
  resharded_ = eager_.emitter().record_event(kComputeStream);
}

void GroupGather::forget() {
  if (!gathered_.tensor) return;
  eager_.emitter().wait_event(kComputeStream, gathered_.event);
  gathered_.tensor.reset(Reason::RuntimeBucket);
}

}  // namespace dsplan
