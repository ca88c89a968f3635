// Megatron's tensor parallelism: the graph of one rank, what the ranks send each other, and what DeepSpeed's
// checkpoints keep. Closed forms are written out here once more: a is one hidden state, b * s * h elements.
#include <doctest/doctest.h>
#include <algorithm>

#include "core/audit.h"
#include "core/format.h"
#include "lowered.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/footprint.h"
#include "planner/predict/predict.h"
#include "sim/memory.h"
#include "sim/traffic.h"

using namespace dsplan;

namespace {

ModelSpec family(const char* name, const char* more = "") {
  return lowered::inlined(name, dsplan::formatted(R"({{"model_type": "{}", "num_hidden_layers": 3, "hidden_size": 32,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 48, "vocab_size": 97,
    "max_position_embeddings": 64, "sliding_window": null{}}})",
                                                  name, more));
}

ModelSpec gpt2(double dropout) {
  return lowered::inlined("gpt2", dsplan::formatted(R"({{"model_type": "gpt2", "n_layer": 3, "n_embd": 32, "n_head": 4,
    "vocab_size": 97, "n_positions": 64, "resid_pdrop": {0}, "embd_pdrop": {0}, "attn_pdrop": {0}}})",
                                                    dropout));
}

std::vector<ModelSpec> families() {
  std::vector<ModelSpec> models{gpt2(0), gpt2(0.1)};
  for (const char* name : {"llama", "mistral", "qwen2", "qwen3", "gemma2"}) models.push_back(family(name));
  return models;
}

Job job_of(int stage, std::int64_t tp, std::int64_t dp = 1) {
  Job job = lowered::job(stage, dp);
  job.parallelism.tp = tp;
  job.parallelism.world = tp * dp;
  return job;
}

Schedule scheduled(const ModelSpec& model, const Job& job) {
  REQUIRE_FALSE(unsupported(model, job).has_value());
  return lower(model, job, build_shapes(model, job), 0);
}

std::vector<TrafficRow> rows_of(const Schedule& schedule) {
  TrafficMeter meter;
  replay(schedule, meter);
  return meter.rows(schedule.dp, schedule.dp_inside, schedule.tp);
}

struct Sent {
  std::int64_t calls = 0;
  std::int64_t payload = 0;
  std::int64_t wire = 0;
};

Sent sent(const std::vector<TrafficRow>& rows, Pass phase, DType dtype, TrafficKind kind = TrafficKind::Data,
          Collective collective = Collective::AllReduce) {
  Sent sum;
  for (const TrafficRow& row : rows) {
    if (row.group != Group::TensorParallel || row.phase != phase || row.dtype != dtype || row.kind != kind ||
        row.collective != collective) {
      continue;
    }
    sum.calls += row.calls;
    sum.payload += row.payload.value();
    sum.wire += row.wire.value();
  }
  return sum;
}

void checkpoint_full(Job& job, CheckpointKind kind) {
  for (std::int32_t at = 0; at < 3; ++at) job.training.checkpoint.groups.push_back({at, at, kind});
}

constexpr std::int64_t kHidden = 2 * 16 * 32 * 2;  // a, in bytes: two rows of 16 tokens, bf16.
constexpr std::int64_t kTokens = 2 * 16;
constexpr std::int64_t kLayers = 3;

}  // namespace

TEST_CASE(
    "tensor parallelism: four all-reduces of a hidden state for each layer, the embedding's, the head's, the loss's") {
  for (const ModelSpec& model : families()) {
    for (std::int64_t tp : {2, 4}) {
      CAPTURE(model.family);
      CAPTURE(tp);
      const Schedule schedule = scheduled(model, job_of(-1, tp));
      CHECK(audit(schedule).empty());
      const std::vector<TrafficRow> rows = rows_of(schedule);
      const Sent forward = sent(rows, Pass::Forward, DType::BFloat16);
      CHECK(forward.calls == 2 * kLayers + 1);
      CHECK(forward.payload == (2 * kLayers + 1) * kHidden);
      CHECK(forward.wire == 2 * (tp - 1) * forward.payload / tp);
      const Sent backward = sent(rows, Pass::Backward, DType::BFloat16);
      CHECK(backward.calls == 2 * kLayers + 1);
      CHECK(backward.payload == (2 * kLayers + 1) * kHidden);
      CHECK(backward.wire == 2 * (tp - 1) * backward.payload / tp);
      const Sent loss = sent(rows, Pass::Forward, DType::Float32);
      CHECK(loss.calls == 3);
      CHECK(loss.payload == 3 * kTokens * 4);
      CHECK(loss.wire == 2 * (tp - 1) * loss.payload / tp);
      CHECK(sent(rows, Pass::Backward, DType::Float32).calls == 0);
    }
  }
}

TEST_CASE("tensor parallelism: recomputation repeats the forward's sums, but for the last where it stops early") {
  for (const ModelSpec& model : families()) {
    const bool behind = model.dims.residual_dropout > 0 || model.family == "gemma2";
    for (const CheckpointKind kind : {CheckpointKind::NonReentrant, CheckpointKind::Reentrant}) {
      CAPTURE(model.family);
      Job job = job_of(0, 2, 2);
      checkpoint_full(job, kind);
      job.training.grad_accum = 2;
      const Schedule schedule = scheduled(model, job);
      CHECK(audit(schedule).empty());
      const std::int64_t each = kind == CheckpointKind::Reentrant || behind ? 6 : 5;
      CHECK(sent(rows_of(schedule), Pass::Backward, DType::BFloat16).calls == 2 * (kLayers * (each - 2) + 1));
      CHECK(sent(rows_of(schedule), Pass::Forward, DType::BFloat16).calls == 2 * (2 * kLayers + 1));
    }
  }
}

TEST_CASE("tensor parallelism: in fp32 the loss works in place of the logits") {
  const ModelSpec model = family("llama");
  const auto softmax_bytes = [&](DType dtype) {
    Job job = job_of(-1, 2);
    lowered::set_dtype(job, dtype);
    if (dtype == DType::Float32) job.training.attention = Attention::MemoryEfficient;
    const Schedule schedule = scheduled(model, job);
    CHECK(audit(schedule).empty());
    Bytes made;
    for (const Buffer& buffer : schedule.buffers) {
      if (std::string_view(buffer.label) == name(Op::ParallelCrossEntropy) && buffer.size > made) made = buffer.size;
    }
    return made.value();
  };
  CHECK(softmax_bytes(DType::BFloat16) == kTokens * 128 * 4);  // 97 words, padded to 256, on two ranks.
  CHECK(softmax_bytes(DType::Float32) == kTokens * 8);         // Nothing but targets.
}

TEST_CASE("tensor parallelism: every runtime on every rank, with the states that formulas give") {
  for (const ModelSpec& model : families()) {
    for (int stage = -1; stage <= 3; ++stage) {
      for (std::int64_t dp : {1, 2, 3}) {
        CAPTURE(model.family);
        CAPTURE(stage);
        CAPTURE(dp);
        Job job = job_of(stage, 2, dp);
        job.training.grad_accum = 2;
        const Shapes shapes = build_shapes(model, job);
        std::vector<Schedule> ranks;
        for (std::int64_t rank = 0; rank < dp; ++rank) {
          ranks.push_back(lower(model, job, shapes, rank));
          CHECK(audit(ranks.back()).empty());
        }
        CHECK(audit_ranks(ranks).empty());
        MemoryMeter meter(ranks[0]);
        replay(ranks[0], meter);
        CHECK(meter.by_role() == footprint(model, job).persistent);
      }
    }
  }
}

TEST_CASE("tensor parallelism: DeepSpeed shares overflow and norm over the group") {
  struct Row {
    int stage;
    DType dtype;
    std::int64_t flags;
    std::int64_t norms;
    DType norm;
  };
  // stage_1_and_2.py and stage3.py: _model_parallel_all_reduce; fused_optimizer.py: CheckOverflow, without a scan for
  // its own; fp32 without ZeRO measures nothing unless it clips.
  for (const Row& row : {Row{0, DType::BFloat16, 1, 1, DType::Float32}, Row{0, DType::Float32, 0, 0, DType::Float32},
                         Row{1, DType::Float16, 1, 1, DType::Float32}, Row{2, DType::BFloat16, 0, 1, DType::Float32},
                         Row{3, DType::Float16, 1, 1, DType::Float64}}) {
    CAPTURE(row.stage);
    const ModelSpec model = gpt2(0);
    Job job = job_of(row.stage, 2, 2);
    lowered::set_dtype(job, row.dtype);
    if (row.dtype == DType::Float32) job.training.attention = Attention::MemoryEfficient;
    const std::vector<TrafficRow> rows = rows_of(scheduled(model, job));
    CHECK(sent(rows, Pass::Step, DType::UInt8, TrafficKind::Control).calls == row.flags);
    CHECK(sent(rows, Pass::Step, row.norm, TrafficKind::Control).calls == row.norms);
  }
  Job clipped = job_of(-1, 2);
  clipped.training.gradient_clipping = 1;
  CHECK(sent(rows_of(scheduled(gpt2(0), clipped)), Pass::Step, DType::BFloat16, TrafficKind::Control).calls == 1);
  clipped.parallelism.tp = clipped.parallelism.world = 1;
  CHECK(sent(rows_of(scheduled(gpt2(0), clipped)), Pass::Step, DType::BFloat16, TrafficKind::Control).calls == 0);
}

namespace {

// A job with DeepSpeed's checkpoints around every layer.
Job partitioned(std::int64_t tp, bool contiguous, bool cpu) {
  Job job = job_of(2, tp);
  checkpoint_full(job, CheckpointKind::DeepSpeed);
  DeepSpeedCheckpointing& config = job.training.checkpoint.deepspeed;
  config.partition = true;
  config.contiguous = contiguous;
  config.cpu = cpu;
  if (contiguous) config.number_checkpoints = kLayers;
  return job;
}

// Bytes that buffers of `label` and `space` hold when the forward of the last step ends.
struct Held : Ignores<Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit> {
  using Ignores::on;
  Held(const Schedule& of, std::string_view label, Space space) : schedule(of), wanted(label), where(space) {
    replay(of, *this);
  }
  void on(std::size_t, const Allocate& event) { count(event.buffer, 1); }
  void on(std::size_t, const Release& event) { count(event.buffer, -1); }
  void on(std::size_t, const Mark& event) {
    if (event.moment == Moment::ForwardEnds) at_end = now;
  }
  void count(BufferId id, std::int64_t sign) {
    const Buffer& buffer = schedule.buffers[id];
    if (wanted == buffer.label && buffer.space == where) now += sign * buffer.size.value();
  }
  const Schedule& schedule;
  std::string_view wanted;
  Space where;
  std::int64_t now = 0;
  std::int64_t at_end = 0;
};

}  // namespace

TEST_CASE("tensor parallelism: partition_activations keeps a slice and gathers it in backward") {
  const ModelSpec model = family("llama");
  for (std::int64_t tp : {1, 2, 4}) {
    for (bool contiguous : {false, true}) {
      for (bool cpu : {false, true}) {
        CAPTURE(tp);
        CAPTURE(contiguous);
        CAPTURE(cpu);
        const Schedule schedule = scheduled(model, partitioned(tp, contiguous, cpu));
        const std::vector<Finding> findings = audit(schedule);
        CHECK_MESSAGE(findings.empty(), (findings.empty() ? "" : findings[0].text));
        const char* label = contiguous ? "contiguous checkpoint"
                            : cpu      ? "argument on the host"
                                       : "partition of an argument";
        const Space space = cpu ? Space::Pageable : Space::Device;
        CHECK(Held(schedule, label, space).at_end == kLayers * kHidden / tp);
        const Sent gathered =
            sent(rows_of(schedule), Pass::Backward, DType::BFloat16, TrafficKind::Data, Collective::AllGather);
        CHECK(gathered.calls == (tp > 1 ? kLayers : 0));
        CHECK(gathered.payload == (tp > 1 ? kLayers * kHidden : 0));
        CHECK(gathered.wire == (tp - 1) * gathered.payload / tp);
        // Its backward runs each layer again to the end.
        if (tp > 1) CHECK(sent(rows_of(schedule), Pass::Backward, DType::BFloat16).calls == 4 * kLayers + 1);
      }
    }
  }
}

TEST_CASE("tensor parallelism: terms of the traffic add up to its rows") {
  for (const ModelSpec& model : families()) {
    for (std::int64_t dp : {1, 2}) {
      CAPTURE(model.family);
      Job job = job_of(1, 4, dp);
      checkpoint_full(job, CheckpointKind::NonReentrant);
      const Prediction p = predict(model, job, 0);
      REQUIRE(p.communication.has_value());
      Bytes rows;
      for (const TrafficRow& row : *p.communication) {
        const bool step = row.phase != Pass::Setup && row.phase != Pass::Save;
        if (row.kind == TrafficKind::Data && step) rows += row.wire;
      }
      Bytes terms;
      for (const TrafficTerm& term : p.traffic_terms) terms += term.wire;
      CHECK(terms == rows);
      CHECK(std::none_of(p.traffic_terms.begin(), p.traffic_terms.end(),
                         [](const TrafficTerm& term) { return term.what == "beside these" && term.wire > Bytes(8); }));
    }
  }
}

TEST_CASE("tensor parallelism: ranks that share a layer are alike, and neighbours") {
  Job job = job_of(2, 2, 3);
  job.rank = "all";
  const std::vector<Prediction> all = predict_asked(gpt2(0), job);
  REQUIRE(all.size() == 6);
  for (std::size_t at = 0; at < all.size(); ++at) {
    CHECK(all[at].rank == static_cast<std::int64_t>(at));
    CHECK(all[at].peak->requested == all[at / 2 * 2].peak->requested);
  }
  job.rank = "5";
  CHECK(predict_asked(gpt2(0), job)[0].peak->requested == all[5].peak->requested);
  job.rank = "worst";
  CHECK(predict_asked(gpt2(0), job)[0].rank % 2 == 0);
}

TEST_CASE("tensor parallelism: what is not modelled is refused by name") {
  struct Row {
    const char* reason;
    ModelSpec model;
    void (*change)(Job&);
  };
  const Row rows[] = {
      {"a mixture of experts under tensor parallelism", lowered::tiny_mixtral(), [](Job&) {}},
      {"another loss than hf under tensor parallelism", gpt2(0), [](Job& j) { j.training.loss = Loss::Native; }},
      {"autocast under tensor parallelism", gpt2(0),
       [](Job& j) {
         lowered::set_dtype(j, DType::Float32);
         j.training.autocast = DType::BFloat16;
       }},
      {"selective checkpoints under tensor parallelism, which sums in place what they keep", gpt2(0),
       [](Job& j) {
         checkpoint_full(j, CheckpointKind::NonReentrant);
         j.training.checkpoint.groups[0].kept = {Op::Linear};
       }},
      {"zero_hpz_partition_size under tensor parallelism", gpt2(0),
       [](Job& j) {
         j.training.runtime = Runtime::DeepSpeed;
         j.training.zero.stage = 3;
         j.training.zero.hpz_partition_size = 2;
       }},
  };
  for (const Row& row : rows) {
    Job job = job_of(-1, 2);
    row.change(job);
    CHECK(unsupported(row.model, job).value_or("none") == row.reason);
    job.parallelism.tp = job.parallelism.world = 1;
    CHECK(unsupported(row.model, job).value_or("none") != row.reason);
  }
}
