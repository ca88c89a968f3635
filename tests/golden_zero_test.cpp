// The golden numbers of DeepSpeed's layout rules: a tiny group that fits in the head (a = 10, b = 7, c = 5 elements on
// four ranks) and the shape of Llama-3-8B on eight.
#include <doctest/doctest.h>

#include <algorithm>

#include "core/error.h"
#include "io/text.h"
#include "model/families.h"
#include "model/graphs/graphs.h"
#include "paths.h"
#include "planner/lower/emitter.h"
#include "planner/lower/lower.h"
#include "planner/lower/runtime.h"
#include "planner/predict/footprint.h"
#include "sim/memory.h"
#include "sim/traffic.h"

using namespace dsplan;

namespace {

ModelSpec tiny_model() {
  ModelSpec model;
  model.name = model.family = "tiny";
  model.modules = {{"", "Tiny", kNone, kNone}};
  for (const auto& [name, n] :
       std::initializer_list<std::pair<const char*, std::int64_t>>{{"a", 10}, {"b", 7}, {"c", 5}}) {
    model.parameters.push_back({name, Shape{n}, 0, kNone, true, Split::Replicated, 0, {}});
  }
  return model;
}

Job tiny_job(int stage) {
  Job job;
  job.training.runtime = Runtime::DeepSpeed;
  job.training.deepspeed = *Version::parse(kDeepSpeedVersion);
  job.training.zero.stage = stage;
  job.training.zero.reduce_bucket_size = Elements(12);
  job.training.zero.param_persistence_threshold = Elements(5);
  job.training.optimizer.kind = OptimizerKind::Adam;
  job.parallelism.dp = job.parallelism.world = 4;
  return job;
}

// Drives a runtime as the loop would, with gradients that arrive in reverse order and no graph at all.
Schedule drive(const ModelSpec& model, const Job& job, std::int64_t rank) {
  Emitter emitter(256);
  emitter.mark(Moment::StretchBegins, Stretch::Init);
  const auto runtime = make_runtime(job, model, rank, emitter);
  runtime->build(job.training.model_init, BuffersOf([](ModuleId, std::string_view) {}));
  runtime->initialise({});
  for (Stretch stretch : {Stretch::FirstStep, Stretch::SecondStep}) {
    emitter.mark(Moment::StretchBegins, stretch);
    for (std::int64_t k = 0; k < job.training.grad_accum; ++k) {
      const bool boundary = k + 1 == job.training.grad_accum;
      runtime->forward_begins();
      emitter.at(Pass::Backward);
      runtime->backward_begins(boundary);
      for (auto p = static_cast<ParameterId>(model.parameters.size()) - 1; p >= 0; --p) {
        if (model.parameter_at(p).tied_to != kNone) continue;
        const Elements n = model.parameter_at(p).shape.elements();
        const BufferId gradient =
            emitter.allocate(storage(n, job.training.dtype), job.training.dtype, {Role::Gradients, "gradient"}, p);
        emitter.begin();
        emitter.write(gradient);
        emitter.compute(Body::Nothing, "backward");
        runtime->gradient_ready(p, gradient);
      }
      runtime->backward_ends(boundary);
    }
    emitter.at(Pass::Step);
    emitter.mark(Moment::StepBegins, stretch);
    runtime->step(stretch == Stretch::FirstStep);
  }
  Schedule schedule = emitter.finish();
  schedule.rank = rank;
  schedule.dp = schedule.world = job.parallelism.dp;
  return schedule;
}

// Payloads of one collective in the second step, data only.
std::vector<std::int64_t> payloads(const Schedule& schedule, Collective collective) {
  std::vector<std::int64_t> list;
  bool second = false;
  for (const Event& event : schedule.events) {
    if (const auto* mark = std::get_if<Mark>(&event)) second = mark->stretch == Stretch::SecondStep;
    const auto* sent = std::get_if<Communicate>(&event);
    if (second && sent != nullptr && sent->collective == collective && sent->kind == TrafficKind::Data) {
      list.push_back(sent->payload.value());
    }
  }
  return list;
}

std::vector<std::int64_t> sizes(const Schedule& schedule, std::string_view label) {
  std::vector<std::int64_t> list;
  for (const Buffer& buffer : schedule.buffers) {
    if (label == buffer.label) list.push_back(buffer.size.value());
  }
  return list;
}

Bytes wire_of(const Schedule& schedule) {
  TrafficMeter meter;
  replay(schedule, meter);
  Bytes sum;
  for (const TrafficRow& row : meter.rows(schedule.dp)) {
    if (row.phase != Pass::Setup && row.kind == TrafficKind::Data) sum += row.wire;
  }
  return sum;
}

using List = std::vector<std::int64_t>;

ModelSpec llama3() {
  return build_model(read_document(test_paths::source_dir() + "/models/llama-3-8b.json"), "llama-3-8b");
}

Job llama_job(int stage) {
  Job job;
  job.training.runtime = Runtime::DeepSpeed;
  job.training.deepspeed = *Version::parse(kDeepSpeedVersion);
  job.training.zero.stage = stage;
  job.training.seq = 2048;
  job.parallelism.dp = job.parallelism.world = 8;
  return job;
}

}  // namespace

TEST_CASE("tiny, ZeRO-1 and 2: 22 elements padded to 24, six per rank") {
  const ModelSpec model = tiny_model();
  for (int stage : {1, 2}) {
    const Footprint f = footprint(model, tiny_job(stage));
    CHECK(f.persistent[Role::Parameters] == Bytes(48));
    CHECK(f.persistent[Role::Optimizer] == Bytes(24 + 48));
    CHECK(f.persistent[Role::Gradients] == Bytes(0));
    CHECK(f.persistent[Role::RuntimeBuffers] == Bytes(0));
    const std::vector<Elements> kept = kept_gradients(model, tiny_job(stage));
    CHECK(kept == std::vector<Elements>{Elements(10), Elements(17), Elements(12), Elements(5)});
    List in_partition;
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      in_partition.push_back(sizes(drive(model, tiny_job(stage), rank), "gradients in partition").front());
    }
    CHECK(in_partition == List{20, 34, 24, 10});
  }
}

TEST_CASE("tiny, ZeRO-2: buckets {c, b} and {a}, concatenations and traffic") {
  const ModelSpec model = tiny_model();
  Job job = tiny_job(2);
  const Schedule schedule = drive(model, job, 0);
  CHECK(payloads(schedule, Collective::AllReduce) == List{24, 20});
  CHECK(payloads(schedule, Collective::AllGather) == List{48});
  CHECK(sizes(schedule, "joined gradients").front() == 24);
  CHECK(wire_of(schedule) == Bytes(102));
  job.training.grad_accum = 2;
  CHECK(wire_of(drive(model, job, 0)) == Bytes(168));
  job = tiny_job(2);
  job.training.zero.use_multi_rank_bucket_allreduce = false;
  CHECK(payloads(drive(model, job, 0), Collective::Reduce) == List{12, 8, 4, 12, 8});
}

TEST_CASE("tiny, ZeRO-3: every parameter cut on its own, c persists") {
  const ModelSpec model = tiny_model();
  const Footprint f = footprint(model, tiny_job(3));
  CHECK(f.persistent[Role::Parameters] == Bytes(14));
  CHECK(f.persistent[Role::Gradients] == Bytes(14));
  CHECK(f.persistent[Role::Optimizer] == Bytes(28 + 56));
  CHECK(f.persistent[Role::RuntimeBuffers] == Bytes(24 + 16));
  const Schedule schedule = drive(model, tiny_job(3), 1);
  CHECK(payloads(schedule, Collective::ReduceScatter) == List{32, 24});
  CHECK(payloads(schedule, Collective::AllGather) == List{16});
  MemoryMeter meter(schedule);
  replay(schedule, meter);
  CHECK(meter.by_role() == f.persistent);
}

TEST_CASE(
    "tiny: fp32 accumulation is a full buffer under ZeRO-1 with bf16, transient with fp16, a partition under ZeRO-2") {
  const ModelSpec model = tiny_model();
  Job job = tiny_job(1);
  job.training.grad_accum_dtype = DType::Float32;
  CHECK(footprint(model, job).persistent[Role::Gradients] == Bytes(4 * 24));
  CHECK(footprint(model, job).states.gradients == Bytes(4 * 24));
  job.training.dtype = DType::Float16;
  CHECK(footprint(model, job).persistent[Role::Gradients] == Bytes(0));
  CHECK(footprint(model, job).states.gradients == Bytes(4 * 22));
  job.training.dtype = DType::BFloat16;
  job.training.zero.stage = 2;
  CHECK(footprint(model, job).persistent[Role::Gradients] == Bytes(0));
  CHECK(footprint(model, job).states.gradients == Bytes(4 * 6));
  job.training.deepspeed = Version{0, 19, 7};
  CHECK(footprint(model, job).states.gradients == Bytes(2 * 6));
}

TEST_CASE("Muon under DeepSpeed is refused, not counted as Adam") {
  Job job = tiny_job(2);
  job.training.optimizer.kind = OptimizerKind::Muon;
  CHECK_THROWS_AS((void)footprint(tiny_model(), job), Refusal);
}

TEST_CASE("Llama-3-8B on eight ranks: persistent bytes by role") {
  const ModelSpec model = llama3();
  const Footprint two = footprint(model, llama_job(2));
  CHECK(two.persistent[Role::Parameters] == Bytes(16'060'522'496));
  CHECK(two.persistent[Role::Optimizer] == Bytes(4'015'130'624 + 8'030'261'248));
  CHECK(two.persistent[Role::Gradients] == Bytes(0));
  CHECK(two.persistent[Role::RuntimeBuffers] == Bytes(0));
  const Footprint three = footprint(model, llama_job(3));
  CHECK(three.persistent[Role::Parameters] == Bytes(2'007'565'312));
  CHECK(three.persistent[Role::Gradients] == Bytes(2'007'565'312));
  CHECK(three.persistent[Role::Optimizer] == Bytes(12'045'391'872));
  CHECK(three.persistent[Role::RuntimeBuffers] == Bytes(1'000'532'480));
}

TEST_CASE("Llama-3-8B on eight ranks, stage 2: what each rank keeps") {
  const std::vector<Elements> kept = kept_gradients(llama3(), llama_job(2));
  List bytes;
  for (Elements n : kept) bytes.push_back(storage(n, DType::BFloat16).value());
  CHECK(bytes == List{2'124'447'744, 2'097'217'536, 2'063'679'488, 2'130'788'352, 2'063'663'104, 2'181'120'000,
                      2'097'217'536, 2'040'586'240});
}

// The reference figures are for gradients that arrive in reverse parameter order.
TEST_CASE("Llama-3-8B on eight ranks, stage 2, reverse order: 17 reductions, seven of them through a copy") {
  const ModelSpec model = llama3();
  Job job = llama_job(2);
  const auto joined_per_step = [](const Schedule& schedule) {
    List joined = sizes(schedule, "joined gradients");
    joined.resize(joined.size() / 2);  // Both steps make the same.
    return joined;
  };
  Schedule schedule = drive(model, job, 0);
  CHECK(payloads(schedule, Collective::AllReduce).size() == 17);
  List joined = joined_per_step(schedule);
  CHECK(joined.size() == 7);
  CHECK(*std::max_element(joined.begin(), joined.end()) == 989'913'088);
  CHECK(sizes(schedule, "gradients in partition").front() == 2'124'447'744);
  CHECK(wire_of(schedule) == Bytes(28'105'914'368 + 14'052'957'184));
  job.training.zero.reduce_bucket_size = Elements(4096 * 4096);
  schedule = drive(model, job, 0);
  CHECK(payloads(schedule, Collective::AllReduce).size() == 228);
  joined = joined_per_step(schedule);
  CHECK(joined.size() == 5);
  CHECK(*std::max_element(joined.begin(), joined.end()) == 117'440'512);
}

// In autograd's own order, which is not quite the reverse (norms are registered last in their layer but used first),
// the same bytes travel in as many calls, and more of the buckets straddle a partition's boundary.
TEST_CASE("Llama-3-8B on eight ranks, stage 2, autograd's order") {
  const ModelSpec model = llama3();
  const Job job = llama_job(2);
  const Graph graph = build_graph(model, graph_options(model, job));
  const Schedule schedule = lower(model, job, graph, RecipeBook(graph), 0);
  CHECK(payloads(schedule, Collective::AllReduce).size() == 17);
  CHECK(wire_of(schedule) == Bytes(28'105'914'368 + 14'052'957'184));
  CHECK(sizes(schedule, "joined gradients").size() == 2 * 9);
}

TEST_CASE(
    "Llama-3-8B on eight ranks, stage 3: one sub-group's cast, 65 norms, one pass of gathers and a little ahead") {
  const ModelSpec model = llama3();
  const Job job = llama_job(3);
  const Graph graph = build_graph(model, graph_options(model, job));
  const Schedule schedule = lower(model, job, graph, RecipeBook(graph), 0);
  CHECK(sizes(schedule, "flat gradient").front() + sizes(schedule, "gradient in master dtype").front() ==
        6'022'695'936);
  const auto norms = sizes(schedule, "gradient in fp64");
  CHECK(*std::max_element(norms.begin(), norms.end()) == 525'336'576);
  TrafficMeter meter;
  replay(schedule, meter);
  Bytes gathered;
  std::int64_t persistent_calls = 0;
  for (const TrafficRow& row : meter.rows(8)) {
    if (row.collective != Collective::AllGather) continue;
    if (row.phase == Pass::Step) persistent_calls = row.calls;
    if (row.phase == Pass::Forward || row.phase == Pass::Step) gathered += row.payload;
  }
  CHECK(persistent_calls == 65);
  // One pass of everything, and what the end of forward fetches ahead for backward: one MLP projection of the layer
  // that the reuse window does not keep.
  CHECK(gathered == Bytes(16'060'522'496 + 117'440'512));
}
