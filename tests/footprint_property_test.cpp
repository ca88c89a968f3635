// Two derivations of the same bytes: the schedule, event by event, and closed formulas that share no code with it.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "io/text.h"
#include "model/families.h"
#include "model/graphs/graphs.h"
#include "planner/footprint.h"
#include "planner/lowering/lower.h"
#include "planner/report_details.h"
#include "sim/memory.h"
#include "sim/placement.h"
#include "sim/traffic.h"

using namespace dsplan;

namespace {

class Dice {
 public:
  explicit Dice(std::uint32_t seed) : engine_(seed) {}
  std::int64_t from(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(engine_);
  }
  bool coin() { return from(0, 1) == 1; }
  template <class T>
  T one_of(std::initializer_list<T> choices) {
    return *(choices.begin() + from(0, static_cast<std::int64_t>(choices.size()) - 1));
  }

 private:
  std::mt19937 engine_;
};

std::string random_config(Dice& dice) {
  const auto family = dice.one_of<const char*>({"llama", "mistral", "qwen2", "qwen3", "gemma2", "mixtral", "gpt2"});
  const std::int64_t kv = dice.one_of<std::int64_t>({1, 2});
  const std::int64_t heads = kv * dice.from(1, 3);
  const std::int64_t head_dim = 2 * dice.from(1, 12);
  const std::int64_t layers = dice.from(1, 6);
  const std::int64_t vocab = dice.from(11, 999);
  const bool tied = dice.coin();
  if (std::string_view(family) == "gpt2") {
    return fmt::format(
        R"({{"model_type": "gpt2", "n_layer": {}, "n_embd": {}, "n_head": {}, "vocab_size": {}, "n_positions": 64,
            "resid_pdrop": {}, "embd_pdrop": {}, "attn_pdrop": 0.1, "tie_word_embeddings": {}}})",
        layers, heads * head_dim, heads, vocab, dice.coin() ? 0.1 : 0.0, dice.coin() ? 0.1 : 0.0, tied);
  }
  return fmt::format(
      R"({{"model_type": "{}", "num_hidden_layers": {}, "hidden_size": {}, "num_attention_heads": {},
          "num_key_value_heads": {}, "head_dim": {}, "intermediate_size": {}, "vocab_size": {},
          "max_position_embeddings": 64, "sliding_window": null, "num_local_experts": {}, "num_experts_per_tok": 2,
          "tie_word_embeddings": {}, "attention_bias": {}}})",
      family, layers, heads * head_dim, heads, kv, head_dim, dice.from(3, 80), vocab, dice.from(2, 5), tied, false);
}

Checkpointing random_checkpointing(Dice& dice, std::int64_t layers) {
  Checkpointing c;
  const std::int64_t group = dice.one_of<std::int64_t>({0, 1, 2, 3});
  if (group == 0) return c;
  for (std::int64_t first = 0; first < layers; first += group) {
    c.groups.push_back(
        {static_cast<std::int32_t>(first), static_cast<std::int32_t>(std::min(first + group, layers) - 1)});
  }
  if (dice.coin() && c.groups.size() > 1) c.groups.pop_back();  // checkpoint_sequential stores the last segment.
  return c;
}

Job random_job(Dice& dice, const ModelSpec& model) {
  Job job;
  Training& t = job.training;
  t.runtime = dice.from(0, 4) == 0 ? Runtime::PyTorch : Runtime::DeepSpeed;
  Zero& z = t.zero;
  z.stage = static_cast<int>(dice.from(0, 3));
  t.dtype = model.dims.kv_heads == model.dims.heads ? dice.one_of({DType::BFloat16, DType::Float16, DType::Float32})
                                                    : dice.one_of({DType::BFloat16, DType::Float16});
  t.attention = t.dtype == DType::Float32 ? Attention::MemoryEfficient : Attention::Flash;
  t.communication_dtype = dice.coin() ? t.dtype : DType::Float32;
  t.grad_accum_dtype = z.stage >= 1 && dice.coin() ? DType::Float32 : t.dtype;
  t.deepspeed = *Version::parse(kDeepSpeedVersion);
  t.optimizer.kind = dice.one_of({OptimizerKind::AdamW, OptimizerKind::Sgd, OptimizerKind::Lion,
                                  OptimizerKind::Adam8bit, OptimizerKind::Adafactor});
  t.optimizer.implementation = dice.one_of({Implementation::Fused, Implementation::Foreach, Implementation::ForLoop});
  t.optimizer.momentum = dice.coin() ? 0.9 : 0;
  if (t.runtime == Runtime::PyTorch) {
    t.optimizer.kind = dice.one_of({OptimizerKind::Adam, OptimizerKind::AdamW, OptimizerKind::Sgd, OptimizerKind::Lion,
                                    OptimizerKind::Adam8bit, OptimizerKind::Adafactor, OptimizerKind::Muon,
                                    OptimizerKind::Adagrad, OptimizerKind::RmsProp});
    t.optimizer.weight_decay = dice.coin() ? 0.1 : 0;
    t.optimizer.embeddings_32bit = dice.coin();
    t.param_groups = dice.one_of({ParamGroups::Single, ParamGroups::Decay});
    t.zero_grad_to_none = dice.coin();
    t.grad_scaler = dice.coin();
    t.loop = dice.one_of({LoopKind::Trainer, LoopKind::Minimal});
    t.gradient_clipping = dice.coin() ? 1.0 : 0;
  }
  t.micro_batch = dice.from(1, 3);
  t.grad_accum = dice.from(1, 4);
  t.seq = dice.from(2, 40);
  t.check_grad_overflow = dice.coin();
  t.checkpoint = random_checkpointing(dice, model.dims.layers);
  if (dice.from(0, 3) == 0) t.freeze = {dice.one_of<std::string>({"*embed*", "*wte*", "*norm*", "*ln_*", "*mlp*"})};
  z.contiguous_gradients = dice.from(0, 4) > 0;
  if (z.stage < 3 && t.grad_accum_dtype != t.dtype) z.contiguous_gradients = true;
  z.reduce_scatter = dice.from(0, 4) > 0;
  z.use_multi_rank_bucket_allreduce = dice.from(0, 4) > 0;
  z.overlap_comm = dice.coin();
  z.round_robin_gradients = dice.coin();
  z.reduce_bucket_size = Elements(dice.one_of<std::int64_t>({200, 3000, 50'000, 500'000'000}));
  z.sub_group_size = Elements(dice.one_of<std::int64_t>({100, 5000, 1'000'000'000}));
  z.param_persistence_threshold = Elements(dice.one_of<std::int64_t>({0, 30, 1000, 100'000}));
  z.model_persistence_threshold = Elements(dice.one_of<std::int64_t>({100, INT64_MAX}));
  z.prefetch_bucket_size = Elements(dice.one_of<std::int64_t>({0, 0, 1, 2000, 50'000'000}));
  z.max_reuse_distance = Elements(dice.one_of<std::int64_t>({0, 0, 3000, 1'000'000'000}));
  z.max_live_parameters = Elements(dice.one_of<std::int64_t>({0, 10'000, 1'000'000'000}));
  if ((z.stage == 1 || z.stage == 2) && t.runtime == Runtime::DeepSpeed && dice.from(0, 3) == 0) {
    z.offload_optimizer.device = OffloadDevice::Cpu;
    z.offload_optimizer.pin_memory = dice.coin();
    z.contiguous_gradients = true;
  }
  job.parallelism.dp = job.parallelism.world = dice.from(0, 2) == 0 ? dice.from(1, 64) : dice.from(1, 4);
  // Of the heads that this model has, and of its columns.
  std::vector<std::int64_t> degrees{1};
  for (std::int64_t tp : {2, 3, 4, 6}) {
    const Dimensions& d = model.dims;
    const bool shared = d.kv_heads % tp == 0 || tp % d.kv_heads == 0;
    if (d.heads % tp == 0 && d.ffn % tp == 0 && shared) degrees.push_back(tp);
  }
  if (dice.coin()) {
    job.parallelism.tp = degrees[static_cast<std::size_t>(dice.from(0, static_cast<std::int64_t>(degrees.size()) - 1))];
  }
  job.parallelism.world *= job.parallelism.tp;
  return job;
}

std::string tell(const ModelSpec& model, const Job& job) {
  const Training& t = job.training;
  return fmt::format("{} runtime {} stage {} W {} tp {} g {} dtype {} groups {} bucket {} layers {}", model.family,
                     name(t.runtime), t.zero.stage, job.parallelism.dp, job.parallelism.tp, t.grad_accum, name(t.dtype),
                     t.checkpoint.groups.size(), t.zero.reduce_bucket_size.value(), model.dims.layers);
}

Bytes payload_of(const std::vector<TrafficRow>& rows, Collective collective, Pass phase, DType dtype,
                 Group group = Group::DataParallel) {
  Bytes sum;
  for (const TrafficRow& row : rows) {
    if (row.group == group && row.collective == collective && row.phase == phase && row.dtype == dtype &&
        row.kind == TrafficKind::Data) {
      sum += row.payload;
    }
  }
  return sum;
}

// No parameter is gathered more often than it is asked for, and each that goes between micro-batches once or more.
void check_bounds(const ModelSpec& model, const Job& job, const std::vector<TrafficRow>& measured,
                  const std::vector<TrafficRow>& derived) {
  const auto gathered = [&](const std::vector<TrafficRow>& rows) {
    return payload_of(rows, Collective::AllGather, Pass::Forward, job.training.dtype) +
           payload_of(rows, Collective::AllGather, Pass::Backward, job.training.dtype);
  };
  CHECK(gathered(measured) <= gathered(derived));
  const Zero& zero = job.training.zero;
  if (zero.model_persistence_threshold != Elements(INT64_MAX)) return;
  Bytes once;
  for (const Parameter& parameter : model.parameters) {
    const Elements size = local_shape(model, parameter, job.parallelism.tp).elements();
    if (parameter.tied_to != kNone || size <= zero.param_persistence_threshold) continue;
    once += storage(round_up(size, job.parallelism.dp), job.training.dtype);
  }
  if (job.parallelism.dp > 1) CHECK(gathered(measured) >= once * job.training.grad_accum);
}

void check_traffic(const ModelSpec& model, const Job& job, const std::vector<TrafficRow>& measured) {
  const std::vector<TrafficRow> derived = traffic_formulas(model, job);
  // Which modules a backward pass enters depends on where gradients flow; the formula for ZeRO-3's gathers is stated
  // for models without frozen parameters.
  const bool frozen_gathers = job.training.zero.stage == 3 && !job.training.freeze.empty();
  // What is fetched ahead or kept has no closed form, only bounds.
  const Zero& zero = job.training.zero;
  const bool traced = job.training.runtime == Runtime::DeepSpeed && zero.stage == 3 &&
                      (zero.prefetch_bucket_size > Elements(0) || zero.max_reuse_distance > Elements(0));
  if (traced) check_bounds(model, job, measured, derived);
  for (const TrafficRow& row : derived) {
    if (frozen_gathers && row.collective == Collective::AllGather && row.phase == Pass::Backward) continue;
    if (traced && row.collective == Collective::AllGather && row.phase != Pass::Step) continue;
    INFO(name(row.collective), " ", name(row.phase), " ", name(row.dtype));
    CHECK(payload_of(measured, row.collective, row.phase, row.dtype, row.group).value() ==
          payload_of(derived, row.collective, row.phase, row.dtype, row.group).value());
  }
  for (const TrafficRow& row : measured) {
    if (row.phase == Pass::Setup || row.kind == TrafficKind::Control) continue;
    INFO(name(row.collective), " ", name(row.phase), " ", name(row.dtype));
    CHECK(payload_of(derived, row.collective, row.phase, row.dtype, row.group) > Bytes(0));
    const bool tensor = row.group == Group::TensorParallel;
    CHECK(row.wire == wire_bytes(row.collective, row.payload, tensor ? job.parallelism.tp : job.parallelism.dp));
  }
}

void check_invariants(const Schedule& schedule, const ModelSpec& model, const MemoryMeter& meter,
                      const Footprint& formulas) {
  CHECK(meter.peak_requested() >= formulas.persistent.total());
  CHECK(meter.peak_by_role().total() == meter.peak_requested());
  CHECK(meter.peak_allocated() >= meter.peak_requested());
  Bytes survivors;
  for (BufferId id : schedule.survivors) {
    if (schedule.buffers[id].space == Space::Device) survivors += schedule.buffers[id].size;
  }
  CHECK(survivors == formulas.persistent.total());
  // The second step ends as it began, and what it holds for backward is what it adds.
  const Phase& steady = meter.phases().back();
  CHECK(steady.marks.front().requested == steady.marks.back().requested);
  const auto before = std::find_if(steady.marks.begin(), steady.marks.end(),
                                   [](const PhaseMark& mark) { return mark.name == "before backward"; });
  if (std::count_if(schedule.events.begin(), schedule.events.end(), [](const Event& e) {
        const auto* mark = std::get_if<Mark>(&e);
        return mark != nullptr && mark->moment == Moment::MicroBatchBegins;
      }) == 2) {
    CHECK(held_for_backward(schedule, model).by_role.total() == before->requested - formulas.persistent.total());
  }
  const Placement placement = place(schedule, {});
  CHECK(placement.peak.reserved >= placement.peak.allocated);
  CHECK(placement.peak.allocated >= meter.peak_allocated());
}

}  // namespace

TEST_CASE("schedule and formulas agree over random models, stages, worlds, accumulation and segmentations") {
  for (std::uint32_t seed = 1; seed <= 400; ++seed) {
    Dice dice(seed);
    const ModelSpec model = build_model(parse_json("config.json", random_config(dice)), "random");
    const Job job = random_job(dice, model);
    if (schedule_obstacle(model, job)) continue;
    INFO("seed ", seed, ": ", tell(model, job));
    const Graph graph = build_graph(model, graph_options(model, job));
    const RecipeBook recipes(graph);
    const std::int64_t rank = dice.from(0, job.parallelism.dp - 1);
    const Schedule schedule = lower(model, job, graph, recipes, rank);
    MemoryMeter meter(schedule);
    TrafficMeter traffic;
    replay(schedule, meter, traffic);
    const Footprint formulas = footprint(model, job);
    for (std::size_t role = 0; role < kRoles; ++role) {
      INFO(name(static_cast<Role>(role)));
      CHECK(meter.by_role().bytes[role].value() == formulas.persistent.bytes[role].value());
    }
    check_traffic(model, job, traffic.rows(job.parallelism.dp, 1, job.parallelism.tp));
    check_invariants(schedule, model, meter, formulas);
  }
}

TEST_CASE("wire bytes are the ring's, floored per row") {
  CHECK(wire_bytes(Collective::AllReduce, Bytes(16'060'522'496), 8) == Bytes(28'105'914'368));
  CHECK(wire_bytes(Collective::AllGather, Bytes(16'060'522'496), 8) == Bytes(14'052'957'184));
  CHECK(wire_bytes(Collective::AllReduce, Bytes(44), 4) == Bytes(66));  // The tiny example: 24 + 20.
  CHECK(wire_bytes(Collective::AllGather, Bytes(48), 4) == Bytes(36));
  CHECK(wire_bytes(Collective::ReduceScatter, Bytes(10), 3) == Bytes(6));
  CHECK(wire_bytes(Collective::Broadcast, Bytes(10), 3) == Bytes(10));
  CHECK(wire_bytes(Collective::AllReduce, Bytes(10), 1) == Bytes(0));
}
