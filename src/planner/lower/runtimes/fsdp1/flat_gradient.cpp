#include "planner/lower/runtimes/fsdp1/flat_gradient.h"

#include <algorithm>
#include <utility>

#include "planner/fsdp/fsdp_facts.h"

namespace dsplan {
namespace {

constexpr What kHostGradient{Role::Gradients, "sharded gradient on the host",
                             "fsdp/_flat_param.py, init_flat_param_attributes"};
constexpr What kFlatGradient{Role::Gradients, "flat gradient", "torch/csrc/autograd, split_with_sizes_backward"};
constexpr What kReduceInput{Role::RuntimeBuffers, "flat gradient in the dtype that is reduced",
                            "fsdp/_runtime_utils.py, _post_backward_hook"};
constexpr What kPaddedGradient{Role::RuntimeBuffers, "padded flat gradient",
                               "fsdp/_runtime_utils.py, _get_reduce_scatter_tensors"};
constexpr What kShardGradient{Role::Gradients, "sharded gradient",
                              "fsdp/_runtime_utils.py, _get_reduce_scatter_tensors"};
constexpr What kCastShard{Role::Gradients, "sharded gradient", "fsdp/_runtime_utils.py, _cast_grad_to_param_dtype"};
constexpr What kCastGradient{Role::Gradients, "flat gradient", "fsdp/_runtime_utils.py, _cast_grad_to_param_dtype"};
constexpr What kViewGradient{Role::Temporaries, "gradient of a view, replaced at once",
                             "fsdp/_flat_param.py, _use_unsharded_grad_views"};

}  // namespace

FlatShare::FlatShare(const FlatUnit& of, const Job& job, std::int64_t of_all)
    : unit(of),
      training(job.training),
      kept(of.kept),
      ranks(sharding_ranks(job)),
      rank(of_all % ranks),
      group(ranks < job.parallelism.dp ? Group::DataParallelInside : Group::DataParallel),
      whole(keeps_whole(job)),
      copies(job.parallelism.dp) {}

void FlatGradient::make_on_host() {
  on_host_ = eager_.empty_on_host(storage(share_.unit.shard, share_.kept), share_.kept, kHostGradient, true);
}

void FlatGradient::take(std::size_t piece, BufferId gradient) {
  parts_[piece] = Variable(eager_.emitter(), gradient, Reason::AutogradGraph);
}

// split_with_sizes_backward: what has no gradient gets zeros, and all are concatenated; then AccumulateGrad. Both nodes
// run on the stream on which torch.split ran, which is the one that gathers (_runtime_utils.py, _unshard).
bool FlatGradient::join() {
  if (std::none_of(parts_.begin(), parts_.end(), [](const Variable& part) { return static_cast<bool>(part); })) {
    return false;
  }
  eager_.emitter().wait_stream(kGatherStream, kComputeStream);
  const OnStream on(eager_.emitter(), kGatherStream);
  const DType type = share_.unit.gathered;
  Variable flat;
  {
    std::vector<Variable> zeros;
    std::vector<Part> all;
    for (std::size_t at = 0; at < parts_.size(); ++at) {
      if (!parts_[at]) {
        zeros.push_back(eager_.zeros(storage(share_.unit.pieces[at].elements, type), type, kFlatGradient, "zeros"));
      }
      all.emplace_back(parts_[at] ? parts_[at].id() : zeros.back().id());
    }
    flat = eager_.empty(storage(share_.unit.total, type), type, kFlatGradient);
    eager_.work().read(all).write(flat).run(Body::Copy, "concatenate gradients");
    let_go(zeros);
  }
  for (Variable& part : parts_) part.reset(Reason::AutogradGraph);
  if (!whole_) {
    whole_ = std::move(flat);
    return true;
  }
  eager_.add(whole_, flat, "accumulate gradient");
  added_ = std::move(flat);
  return true;
}

// `.grad` must have a parameter's own shape and dtype, so that an empty one is made where there is none, and given
// other memory.
void FlatGradient::use_whole_views() {
  if (std::exchange(views_have_, true)) return;
  const OnStream on(eager_.emitter(), kGatherStream);
  for (const FlatSlice& slice : slices_of(share_.unit, share_.rank)) {
    const Parameter& parameter = model_.parameter_at(slice.id);
    const bool shaped = share_.whole || parameter.shape.rank == 1;  // Views of NO_SHARD have their own shapes.
    const bool same = shaped && parameter.shape.elements() == slice.elements && share_.kept == share_.unit.gathered &&
                      !share_.training.fsdp.cpu_offload;
    if (same) continue;
    const Space space = share_.training.fsdp.cpu_offload ? Space::Pageable : Space::Device;
    const Variable made = eager_.scratch(storage(slice.elements, share_.kept), share_.kept, kViewGradient, space);
    eager_.work().write(made).run(Body::Nothing, "replace storage");
  }
}

void FlatGradient::drop() {
  sharded_.reset();
  if (share_.whole) whole_.reset();
  views_have_ = false;
}

void FlatGradient::drop_unseen() {
  const std::vector<FlatSlice> slices = slices_of(share_.unit, share_.rank);
  if (std::none_of(slices.begin(), slices.end(), [](const FlatSlice& slice) { return slice.trained; })) {
    sharded_.reset();
  }
}

// _reduce_grad_no_shard: what is reduced stays `.grad`, to which the next backward adds.
void FlatGradient::reduce_whole() {
  eager_.emitter().wait_stream(kReduceStream, kGatherStream);
  const OnStream on(eager_.emitter(), kReduceStream);
  const Variable computed = whole_.share();
  if (eager_.emitter().dtype(whole_.id()) != share_.unit.reduced) {
    const What& what = share_.unit.reduced == share_.kept ? kCastGradient : kReduceInput;
    whole_ = eager_.cast(computed, share_.unit.reduced, what, "cast flat gradient");
  }
  eager_.all_reduce(whole_, share_.copies, Group::DataParallel);
  if (share_.unit.reduced != share_.kept) {
    const Variable narrow = whole_.share();
    whole_ = eager_.cast(narrow, share_.kept, kCastGradient, "cast flat gradient");
  }
  if (share_.training.fsdp.cpu_offload) return eager_.copy(on_host_, whole_, "copy gradient to host");
  tell_uses(eager_.emitter(), whole_.id(), false);  // The step reads it on another stream.
}

// _post_backward_hook behind its reshard, and _reduce_grad.
void FlatGradient::reduce() {
  if (share_.whole) return reduce_whole();
  Emitter& emitter = eager_.emitter();
  emitter.wait_stream(kReduceStream, kGatherStream);
  const OnStream on(emitter, kReduceStream);
  const DType type = share_.unit.reduced;
  Variable computed = std::move(whole_);
  Variable cast;
  if (type != share_.unit.gathered) cast = eager_.cast(computed, type, kReduceInput, "cast flat gradient");
  Variable padded;
  if (share_.unit.shard * share_.ranks != share_.unit.total) {
    padded = eager_.empty(storage(share_.unit.shard * share_.ranks, type), type, kPaddedGradient);
    eager_.copy(padded, cast ? Part(cast) : Part(computed), "pad flat gradient");
  }
  Variable shard = eager_.empty(storage(share_.unit.shard, type), type, kShardGradient);
  eager_.reduce_scatter(shard, padded ? Part(padded) : cast ? Part(cast) : Part(computed), share_.ranks, share_.group);
  if (share_.training.fsdp.replicate > 1) {
    emitter.wait_stream(kReplicaStream, kReduceStream);
    const OnStream last(emitter, kReplicaStream);
    eager_.all_reduce(shard, share_.training.fsdp.replicate, Group::Replicas);
    accumulate(std::move(shard));
  } else {
    accumulate(std::move(shard));
  }
  cast.reset(Reason::PythonFrame);
  padded.reset(Reason::PythonFrame);
  computed.reset(Reason::PythonFrame);
}

// _accumulate_sharded_grad.
void FlatGradient::accumulate(Variable shard) {
  if (share_.unit.reduced != share_.kept) {
    shard = eager_.cast(shard, share_.kept, kCastShard, "cast sharded gradient");
  }
  if (sharded_) {
    eager_.add(sharded_, shard, "accumulate gradient");
    return shard.reset(Reason::PythonFrame);
  }
  sharded_ = std::move(shard);
  if (share_.training.fsdp.cpu_offload) return eager_.copy(on_host_, sharded_, "copy gradient to host");
  tell_uses(eager_.emitter(), sharded_.id(), false);  // The step reads it on another stream.
}

}  // namespace dsplan
