#include "planner/lower/torchtitan_step.h"

#include <utility>

#include "planner/fsdp/fsdp_facts.h"

namespace dsplan {
namespace {

constexpr What kOfTable{Role::Temporaries, "what computes the rotary table", "torchtitan: precompute_freqs_cis"};

class Tables {
 public:
  Tables(const ModelSpec& model, const Job& job, Emitter& emitter)
      : eager_(emitter),
        half_(model.dims.head_dim / 2),
        seq_(job.training.seq),
        scales_(job.training.torchtitan >= Version{0, 2, 0}),
        qwen_(model.family == "qwen3") {}

  Variable make() { return qwen_ ? waves() : numbers(); }

 private:
  Variable temporary(std::int64_t elements, DType dtype = DType::Float32) {
    Variable made = eager_.scratch(storage(Elements(elements), dtype), dtype, kOfTable);
    eager_.work().write(made).run(Body::Clear, kOfTable.label);
    return made;
  }
  Variable table(std::int64_t elements) {
    Variable made =
        eager_.empty(storage(Elements(elements), DType::Float32), DType::Float32, {Role::ModuleBuffers, "buffer"});
    eager_.work().write(made).run(Body::LoadBuffer, "load buffer");
    return made;
  }

  // The scaled frequencies' own steps are smaller than what comes behind: wave lengths, smoothing and flags stay, by
  // the names of variables.
  Variable numbers() {
    std::vector<Variable> scaling;
    if (scales_) {
      for (int named = 0; named < 3; ++named) scaling.push_back(temporary(half_));
      scaling.push_back(temporary(half_, DType::Bool));
    }
    const Variable places = temporary(seq_, DType::Int64);
    Variable frequencies = temporary(half_);
    frequencies = temporary(seq_ * half_);  // outer(t, freqs).
    const Variable ones = temporary(seq_ * half_);
    return table(seq_ * half_ * 2);  // polar.
  }

  Variable waves() {
    Variable frequencies = temporary(half_);
    const Variable places = temporary(seq_);
    const Variable angles = temporary(seq_ * half_);
    frequencies = temporary(seq_ * half_ * 2);  // cat([idx_theta, idx_theta]).
    const Variable cosines = temporary(seq_ * half_ * 2);
    const Variable sines = temporary(seq_ * half_ * 2);
    return table(seq_ * half_ * 4);
  }

  Eager eager_;
  std::int64_t half_;
  std::int64_t seq_;
  bool scales_;
  bool qwen_;
};

// Of each weight that is no norm's the rank's own rows; of a DTensor the generator's state goes to the device first
// (torch/distributed/tensor/_random.py, _distribute_region).
void draw_weights(const ModelSpec& model, const Job& job, std::int64_t rank, Eager eager) {
  const Training& t = job.training;
  const bool cut = is_fsdp(t.runtime);
  const std::int64_t ranks = cut ? sharding_ranks(job) : 1;
  for (const Parameter& p : model.parameters) {
    const std::string& type = model.module_at(p.module).type;
    if (type == "RMSNorm") continue;
    const Elements own = cut ? shard_on_dim0(p.shape, ranks, rank % ranks).real : p.shape.elements();
    const bool widens = type == "Linear" && t.torchtitan >= kWitnessTorchtitan && own > Elements(0) &&
                        t.made_dtype(p) != DType::Float32;
    Variable wide;
    if (widens) {
      wide = eager.scratch(storage(own, DType::Float32), DType::Float32, {Role::Temporaries, "weight as it is drawn"});
    }
    const Variable state =
        cut ? eager.scratch(Bytes(16), DType::UInt8, {Role::Temporaries, "state of the generator"}) : Variable();
    if (wide) eager.work().write(wide).run(Body::Clear, "draw weight");
    if (state) eager.work().write(state).run(Body::Clear, "copy the generator's state");
  }
}

}  // namespace

void init_weights(const ModelSpec& model, const Job& job, std::int64_t rank, Emitter& emitter,
                  std::vector<BufferId>& buffers) {
  for (std::size_t at = 0; at < buffers.size(); ++at) {
    if (!model.buffers[at].by_length) continue;
    Variable made = Tables(model, job, emitter).make();
    if (buffers[at] != kNoBuffer) {
      emitter.mark_scratch(buffers[at]);
      emitter.release(buffers[at], Reason::PythonFrame);
    }
    buffers[at] = made.hand_over();
  }
  if (!job.training.fsdp.cpu_offload) draw_weights(model, job, rank, Eager(emitter));
}

void TorchtitanStep::begin() {
  constexpr What kCount{Role::Inputs, "tokens that count", "torchtitan: train.py, train_step"};
  tokens_.reset(Reason::Loop);
  if (!counts_tokens(job_.training)) return;
  Variable count = eager_.scratch(Bytes(8), DType::Int64, kCount);
  eager_.work().write(count).run(Body::Clear, "copy count to device");
  if (job_.parallelism.dp > 1) {
    const Variable sum = eager_.scratch(Bytes(8), DType::Int64, kCount);
    eager_.work().read(count).write(sum).control(Collective::AllReduce, DType::Int64, Bytes(8));
  }
  tokens_ = std::move(count);
}

void TorchtitanStep::keep_ids(std::vector<BufferId> batch) {
  for (std::size_t at = 0; at < batch.size(); ++at) {
    Variable one(eager_.emitter(), batch[at], Reason::Loop);
    if (at == 0) ids_.append(std::move(one));
  }
}

void TorchtitanStep::forward_returns(Variables outputs) {
  const std::vector<BufferId> all = outputs.hand_over();
  loss_ = Variable(eager_.emitter(), all[0], Reason::Loop);
  if (all.size() > 1) sum_ = Variable(eager_.emitter(), all[1], Reason::Loop);
}

void TorchtitanStep::backward_returns() {
  sum_.reset(Reason::Loop);
  losses_.append(std::move(loss_));
}

void TorchtitanStep::end(bool first) {
  losses_.reset(Reason::Loop);
  ids_.reset(Reason::Loop);
  if (!first) return;
  barrier_ = eager_.scratch(
      Bytes(1), DType::UInt8,
      {Role::Temporaries, "tensor of a barrier", "torch/csrc/distributed/c10d/ProcessGroup.hpp, barrier"});
  eager_.zero(barrier_, "barrier");
}

}  // namespace dsplan
