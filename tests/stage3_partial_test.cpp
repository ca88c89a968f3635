// ZeRO-3 with a part of the optimizer on the host (offload_optimizer's ratio): against real DeepSpeed, the auditor, the
// formulas, figures worked out by hand, and what an executor computes.
#include "offload_log.h"

#include <array>

#include "audited.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/footprint.h"
#include "planner/predict/predict.h"
#include "running.h"
#include "sim/host_memory.h"
#include "sim/memory.h"

using namespace deepspeed_log;

namespace {

constexpr const char* kGradient = "gradient for the device's optimizer";

// Ten parameters are trained, and with sub-groups of one element each is a group of its own.
ModelSpec one_layer() {
  return lowered::inlined("one-layer", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "tie_word_embeddings": false})");
}

Job partial(double ratio, std::int64_t ranks, std::int64_t sub_group) {
  Job job = lowered::job(3, ranks);
  Zero& zero = job.training.zero;
  zero.offload_optimizer.device = OffloadDevice::Cpu;
  zero.offload_optimizer.ratio = ratio;
  zero.sub_group_size = Elements(sub_group);
  return job;
}

std::ptrdiff_t made(const Schedule& schedule, std::string_view label, Space space) {
  return std::count_if(schedule.buffers.begin(), schedule.buffers.end(),
                       [&](const Buffer& buffer) { return label == buffer.label && buffer.space == space; });
}

}  // namespace

TEST_CASE("partial offload: which sub-groups the device has, by ratio and version") {
  struct Row {
    double ratio;
    std::int64_t sub_group;  // 1: ten groups.
    std::ptrdiff_t since;    // Of the device, since 0.18.0: int((1 - ratio) * k), in Python's floating point.
    std::ptrdiff_t before;   // k - int(ratio * k).
  };
  const std::array<Row, 8> rows{{{0.0, 1, 10, 10},
                                 {0.3, 1, 7, 7},
                                 {0.5, 1, 5, 5},
                                 {0.75, 1, 2, 3},
                                 {0.9, 1, 0, 1},  // (1 - 0.9) * 10 is 0.9999999999999998.
                                 {1.0, 1, 0, 0},
                                 {0.5, 1'000'000, 0, 1},  // One group: all of it, or nothing.
                                 {0.0, 1'000'000, 1, 1}}};
  const ModelSpec model = one_layer();
  for (const Row& row : rows) {
    for (const bool old : {false, true}) {
      Job job = partial(row.ratio, 1, row.sub_group);
      job.training.freeze = {"model.norm*", "lm_head*"};
      if (old) job.training.deepspeed = Version{0, 17, 6};
      CAPTURE(row.ratio);
      CAPTURE(row.sub_group);
      CAPTURE(old);
      const Schedule schedule = lowered::all_ranks(model, job).front();
      const std::ptrdiff_t groups = row.sub_group == 1 ? 10 : 1;
      const std::ptrdiff_t here = old ? row.before : row.since;
      CHECK(made(schedule, kGradient, Space::Device) == here);
      CHECK(made(schedule, "master weights", Space::Device) == here);
      CHECK(made(schedule, "master weights", Space::Pageable) == groups - here);
      CHECK(made(schedule, "exp_avg", Space::Device) == here);
      CHECK(made(schedule, "square root of exp_avg_sq", Space::Device) == 2 * here);  // In both steps.
    }
  }
  // Which ones: the first, since 0.18.0; before, the last.
  Job job = partial(0.5, 1, 1);
  const std::int64_t embedding = 50 * 16;  // The first group, the head is the last of 12.
  const auto largest = [&] {
    const Schedule schedule = lowered::all_ranks(model, job).front();
    Bytes most;
    for (const Buffer& buffer : schedule.buffers) {
      if (std::string_view(buffer.label) == kGradient) most = std::max(most, buffer.size);
    }
    return most;
  };
  job.training.freeze = {"lm_head*"};
  CHECK(largest() == Bytes(4 * embedding));
  job.training.deepspeed = Version{0, 17, 6};
  CHECK(largest() < Bytes(4 * embedding));
}

TEST_CASE("partial offload: schedules are legal, and the device holds what the formulas say") {
  std::size_t audited = 0;
  for (const ModelSpec& model : {lowered::bundled("tiny-gpt2"), lowered::bundled("tiny-llama")}) {
    for (const std::int64_t ranks : {1, 2, 3}) {
      for (const double ratio : {0.0, 0.4, 0.9}) {
        for (const std::int64_t sub_group : {5'000, 40'000, 1'000'000'000}) {
          for (const Version version : {Version{0, 19, 8}, Version{0, 17, 6}, Version{0, 13, 2}}) {
            Job job = partial(ratio, ranks, sub_group);
            job.training.deepspeed = version;
            job.training.grad_accum = 1 + static_cast<std::int64_t>(audited % 2);
            job.training.zero.offload_optimizer.pin_memory = audited % 3 != 0;
            if (audited % 4 == 1) job.training.zero.offload_param.device = OffloadDevice::Cpu;
            if (audited % 5 == 2) lowered::set_dtype(job, DType::Float32);
            if (audited % 5 == 3) lowered::set_dtype(job, DType::Float16);
            CAPTURE(ranks);
            CAPTURE(ratio);
            CAPTURE(sub_group);
            CAPTURE(version.text());
            audited::ranks(model, job);
            ++audited;
          }
        }
      }
    }
  }
  CHECK(audited == 162);
}

TEST_CASE("partial offload of Llama-3-8B over eight ranks, by hand") {
  const ModelSpec model = lowered::bundled("llama-3-8b");
  constexpr std::int64_t kPart = 1'003'782'656;  // S.
  Job job = partial(1.0, 8, 100'000'000);
  job.training.micro_batch = 1;
  job.parallelism.gpus_per_node = 8;
  const auto one = [&] { return predict(model, job, 0); };
  const Prediction all = one();
  CHECK(all.persistent.by_role[Role::Optimizer] == Bytes(0));
  // The embedding's 65,667,072 elements and layer after layer (27,264,512, of which the sixth matrix goes over) until
  // 1e8: ten groups. Three of them stay with ratio 0.7, which is int(3.0000000000000004).
  job.training.zero.offload_optimizer.ratio = 0.7;
  const Prediction some = one();
  const Bytes masters = some.persistent.by_role[Role::Gradients];
  CHECK(masters > Bytes(3 * 4 * 100'000'000LL));
  CHECK(masters < Bytes(3 * 4 * 115'000'000LL));
  CHECK(some.persistent.by_role[Role::Optimizer] == masters * 3);  // Master and two moments.
  CHECK(some.states.gradients == masters);
  // The host has that much less of masters and states, and as large sums of gradients as ever.
  CHECK(*some.host.pageable < *all.host.pageable);
  CHECK(*some.host.pinned <= *all.host.pinned);
  // With everything on the device only the sums (2 S, rounded) and one pinned block that all zeros passed through.
  job.training.zero.offload_optimizer.ratio = 0;
  const Prediction none = one();
  CHECK(none.persistent.by_role[Role::Gradients] == Bytes(4 * kPart));
  CHECK(none.persistent.by_role[Role::Optimizer] == Bytes(12 * kPart));
  CHECK(*none.host.pinned == Bytes((1LL << 31) + (1LL << 29)));
  CHECK(none.fingerprint != some.fingerprint);
}

TEST_CASE("partial offload: the zeros of a sub-group of the device go when the next ones are there") {
  const ModelSpec model = one_layer();
  Job job = partial(0.0, 1, 1);
  job.training.freeze = {"model.norm*", "lm_head*"};
  // Pageable: two at a time, and only while the wrapper is made. The largest of all is there besides.
  job.training.zero.offload_optimizer.pin_memory = false;
  const Schedule pageable = lowered::all_ranks(model, job).front();
  CHECK(made(pageable, "gradient in master dtype", Space::Pageable) == 10);
  for (const BufferId id : pageable.survivors) {
    CHECK(std::string_view(pageable.buffers[id].label) != "gradient in master dtype");
  }
  // Pinned: blocks of the pool serve again; of the ten there are five sizes, and powers of two of them four.
  job.training.zero.offload_optimizer.pin_memory = true;
  const HostMeter pinned = host_of(lowered::all_ranks(model, job).front());
  std::set<std::int64_t> blocks;
  for (const Parameter& parameter : model.parameters) {
    const std::int64_t bytes = 4 * parameter.shape.elements().value();
    if (parameter.name.starts_with("model.norm") || parameter.name.starts_with("lm_head")) continue;
    std::int64_t block = 1;
    while (block < bytes) block *= 2;
    blocks.insert(block);
  }
  std::int64_t sum = 0;
  for (const std::int64_t block : blocks) sum += block;
  std::int64_t sums = 0;
  for (const Parameter& parameter : model.parameters) {
    if (!parameter.name.starts_with("model.norm") && !parameter.name.starts_with("lm_head")) {
      sums += 2 * parameter.shape.elements().value();
    }
  }
  std::int64_t flat = 1;
  while (flat < sums) flat *= 2;
  CHECK(pinned.pinned() == Bytes(sum + flat));
}

TEST_CASE("partial offload: what DeepSpeed makes, gathers and reduces, event for event") {
  for (const char* name : {"z3-partial-half", "z3-partial-fp16", "z3-partial-none", "z3-partial-param"}) {
    CAPTURE(name);
    const Run witness = read_run(name);
    const ModelSpec model = model_of_witness(witness);
    const Job job = job_of_witness(witness, model);
    REQUIRE(job.training.zero.offload_optimizer.ratio < 1);
    REQUIRE(!unsupported(model, job));
    const Graph graph = build_graph(model, graph_options(model, job));
    const std::vector<int> numbers = numbers_of(witness, model);
    for (std::size_t rank = 0; rank < witness.ranks.size(); ++rank) {
      const Schedule schedule =
          on_one_device(lower(model, job, graph, RecipeBook(graph), static_cast<std::int64_t>(rank)));
      CHECK(made(schedule, kGradient, Space::Device) > 0);
      const Lines theirs = moves_of(witness.ranks[rank], 2);
      const Lines ours = Ours(schedule, numbers).take();
      check_same(theirs, ours);
    }
  }
}

TEST_CASE("partial offload computes what an optimizer on the device does") {
  const ModelSpec model = running::model(running::kLlama);
  for (const std::int64_t accumulation : {1, 2}) {
    Job job = lowered::job(3, 2);
    job.training.grad_accum = accumulation;
    job.training.gradient_clipping = accumulation == 2 ? 1 : 0;
    job.training.zero.sub_group_size = Elements(4'000);
    running::Options options;
    const auto losses = [&](const Job& of) {
      std::int64_t rows = 0;
      const std::string differs = running::differences(model, of, false, running::run(model, of, options), rows);
      CHECK_MESSAGE(differs == "", differs);
      CHECK(rows > 100);
      running::Options longer = options;
      longer.steps = 4;
      const exec::RunResult result = running::run(model, of, longer);
      CHECK_MESSAGE(result.message == "", result.message);
      return running::losses_by_step(result, accumulation);
    };
    const std::vector<double> here = losses(job);
    job.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
    for (const double ratio : {0.0, 0.4, 1.0}) {
      CAPTURE(ratio);
      job.training.zero.offload_optimizer.ratio = ratio;
      CHECK(losses(job) == here);
    }
  }
}
