// ZeRO-3 with the optimizer or the parameters on the host: against real DeepSpeed, the auditor, the formulas, and
// figures worked out by hand.
#include "offload_log.h"

#include <array>

#include "audited.h"
#include "lowered.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/footprint.h"
#include "planner/predict/predict.h"
#include "sim/host_memory.h"
#include "sim/memory.h"

using namespace deepspeed_log;

namespace {

enum class Away { Optimizer, Parameters, Both };

Job offloaded(Job job, Away away, bool pin = true) {
  Zero& zero = job.training.zero;
  if (away != Away::Parameters) zero.offload_optimizer.device = OffloadDevice::Cpu;
  if (away != Away::Optimizer) zero.offload_param.device = OffloadDevice::Cpu;
  zero.offload_optimizer.pin_memory = zero.offload_param.pin_memory = pin;
  return job;
}

// Bytes of the survivors in one space.
Bytes held_in(const Schedule& schedule, Space space) {
  Bytes sum;
  for (const BufferId id : schedule.survivors) {
    if (schedule.buffers[id].space == space) sum += schedule.buffers[id].size;
  }
  return sum;
}

}  // namespace

TEST_CASE("ZeRO-3 offload: what DeepSpeed makes, gathers and reduces, event for event") {
  for (const char* name : {"z3-llama-offload", "z3-llama-offload-param"}) {
    CAPTURE(name);
    const Run witness = read_run(name);
    const ModelSpec model = model_of_witness(witness);
    const Job job = job_of_witness(witness, model);
    REQUIRE(!unsupported(model, job));
    const Graph graph = build_graph(model, graph_options(model, job));
    const std::vector<int> numbers = numbers_of(witness, model);
    for (std::size_t rank = 0; rank < witness.ranks.size(); ++rank) {
      const Schedule schedule =
          on_one_device(lower(model, job, graph, RecipeBook(graph), static_cast<std::int64_t>(rank)));
      const Lines theirs = moves_of(witness.ranks[rank], 2);
      const Lines ours = Ours(schedule, numbers).take();
      check_same(theirs, ours);
    }
  }
}

TEST_CASE("ZeRO-3 offload: schedules are legal, and the device holds what the formulas say") {
  std::size_t audited = 0;
  for (const ModelSpec& model : {lowered::bundled("tiny-gpt2"), lowered::bundled("tiny-llama")}) {
    for (const std::int64_t ranks : {1, 2, 3}) {
      std::vector<lowered::Case> cases = lowered::variants(3, ranks, static_cast<std::int32_t>(model.dims.layers));
      for (bool Zero::*way :
           {&Zero::gather_16bit_weights_on_model_save, &Zero::allgather_sequential, &Zero::all_reduce_for_fetch}) {
        cases.push_back({dsplan::formatted("another way of gathering, ranks {}", ranks), lowered::job(3, ranks)});
        cases.back().job.training.zero.*way = true;
        cases.back().job.training.zero.param_persistence_threshold = Elements(100);
      }
      for (const lowered::Case& c : cases) {
        if (c.job.training.optimizer.kind != OptimizerKind::AdamW) continue;
        for (const Away away : {Away::Optimizer, Away::Parameters, Away::Both}) {
          const Job job = offloaded(c.job, away, audited % 2 == 0);
          CAPTURE(c.name);
          CAPTURE(static_cast<int>(away));
          audited::ranks(model, job, audited::kStates);
          ++audited;
        }
      }
    }
  }
  CHECK(audited > 300);
}

namespace {

Job llama_8b(Away away, bool pin) {
  Job job = lowered::job(3, 8);
  job.parallelism.gpus_per_node = 8;
  job.training.micro_batch = 1;
  job.training.zero.reduce_bucket_size = Elements(500'000'000);
  return offloaded(job, away, pin);
}

Schedule first_rank(const ModelSpec& model, const Job& job) {
  const Graph graph = build_graph(model, graph_options(model, job));
  return lower(model, job, graph, RecipeBook(graph), 0);
}

// The 16-bit partitions that zero.Init pins one by one before they are moved: of each shape that Llama-3-8B has, over
// eight ranks. The pool keeps their blocks.
constexpr std::int64_t kPinnedPieces = 2 * (1LL << 27)      // Embedding and head: 131,334,144 bytes each.
                                       + 64 * (1LL << 22)   // q and o: 4,194,304.
                                       + 64 * (1LL << 20)   // k and v: 1,048,576.
                                       + 96 * (1LL << 24)   // The MLP's three: 14,680,064.
                                       + 65 * (1LL << 10);  // Norms: 1,024.
constexpr std::int64_t kPart = 1'003'782'656;               // S.

}  // namespace

TEST_CASE("Llama-3-8B over eight ranks: what each rank takes of its host") {
  struct Row {
    Away away;
    bool pin;
    std::int64_t pinned;     // As the pool rounds it.
    std::int64_t requested;  // Of it, at the most.
    std::int64_t pageable;   // At the most.
    std::int64_t held;       // At the end, pinned and pageable.
  };
  const std::array<Row, 5> rows{{
      // fp32 gradients (4 S) and sums (2 S) pinned; master, both states and, for each copy to the device, 16 bits.
      {Away::Optimizer, true, (1LL << 32) + (1LL << 31), 6 * kPart, 14 * kPart + 1, 18 * kPart + 1},
      // With pageable gradients the step is the most: 6 S more.
      {Away::Optimizer, false, 0, 0, 20 * kPart + 1, 18 * kPart + 1},
      // 16-bit parameters (2 S) pinned as well. What the step copies stays on the host.
      {Away::Both, true, (1LL << 32) + 2 * (1LL << 31) + kPinnedPieces, 8 * kPart, 12 * kPart + 1, 20 * kPart + 1},
      {Away::Both, false, 1LL << 31, 2 * kPart, 18 * kPart + 1, 20 * kPart + 1},
      // The optimizer stays on the device: what its step writes crosses in fp32.
      {Away::Parameters, true, (1LL << 31) + kPinnedPieces, 4 * kPart, 4 * kPart, 2 * kPart},
  }};
  const ModelSpec model = lowered::bundled("llama-3-8b");
  for (const Row& row : rows) {
    const Job job = llama_8b(row.away, row.pin);
    const Schedule schedule = first_rank(model, job);
    const HostMeter host = host_of(schedule);
    CAPTURE(static_cast<int>(row.away));
    CAPTURE(row.pin);
    CHECK(host.pinned() == Bytes(row.pinned));
    CHECK(host.pinned_requested_peak() == Bytes(row.requested));
    CHECK(host.pageable_peak() == Bytes(row.pageable));
    CHECK(held_in(schedule, Space::Pinned) + held_in(schedule, Space::Pageable) == Bytes(row.held));
    CHECK(host.nvme_peak() == Bytes(0));
  }
}

TEST_CASE("Llama-3-8B over eight ranks: the node's figure, and what is left on the device") {
  const ModelSpec model = lowered::bundled("llama-3-8b");
  const Prediction optimizer = predict(model, llama_8b(Away::Optimizer, true), 0);
  CHECK(*optimizer.host.peak == Bytes(6'442'450'944 + 14'052'957'185));
  CHECK(*optimizer.host.per_node == *optimizer.host.peak * 8);
  CHECK(optimizer.states.parameters == Bytes(2'007'565'312));
  CHECK(optimizer.persistent.by_role[Role::Optimizer] == Bytes(0));
  CHECK(optimizer.persistent.by_role[Role::Gradients] == Bytes(0));
  CHECK(optimizer.persistent.by_role[Role::RuntimeBuffers] == Bytes(1'000'000'000 + 532'480));
  const Prediction both = predict(model, llama_8b(Away::Both, true), 0);
  CHECK(*both.host.pinned == Bytes(10'804'593'664));
  CHECK(both.persistent.by_role[Role::Parameters] == Bytes(0));
  CHECK(both.persistent.by_role[Role::RuntimeBuffers] == Bytes(1'000'000'000 + 532'480));
}

TEST_CASE("ZeRO-3 offload: gradients go to the host in every micro-batch, norms and casts come at the boundary") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const auto count = [&](const Job& job, std::string_view label) {
    const Schedule schedule = lowered::all_ranks(model, job).front();
    return std::count_if(schedule.buffers.begin(), schedule.buffers.end(),
                         [&](const Buffer& buffer) { return label == buffer.label && buffer.space == Space::Device; });
  };
  Job job = offloaded(lowered::job(3, 2), Away::Optimizer);
  const auto trained =
      static_cast<std::ptrdiff_t>(std::count_if(model.parameters.begin(), model.parameters.end(),
                                                [](const Parameter& parameter) { return parameter.tied_to == kNone; }));
  job.training.grad_accum = 3;
  CHECK(count(job, "gradient partition back on the device") == 2 * 3 * trained);
  CHECK(count(job, "gradient in master dtype") == 2 * trained);
  // Of each the copy, what it is summed into, the kept result, and its square in the step; there also the first sum.
  CHECK(count(job, "gradient norm") == 2 * (4 * trained + 1));
  job.training.grad_accum_dtype = DType::Float32;
  CHECK(count(job, "gradient in master dtype") == 0);
}

TEST_CASE("ZeRO-3 offload: secondary shards lie on the host, and partitions are quantized on the device") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  for (const bool pin : {false, true}) {
    Job job = offloaded(lowered::job(3, 4), Away::Both, pin);
    job.training.zero.hpz_partition_size = 2;
    CHECK(!unsupported(model, job));
    const Schedule schedule = lowered::all_ranks(model, job).front();
    CHECK(audit(schedule).empty());
    std::size_t shards = 0;
    for (const Buffer& buffer : schedule.buffers) {
      if (std::string_view(buffer.label) != "secondary shard") continue;
      CHECK(buffer.space == (pin ? Space::Pinned : Space::Pageable));
      ++shards;
    }
    CHECK(shards > 20);
  }
  for (const DType dtype : {DType::BFloat16, DType::Float16}) {
    Job job = offloaded(lowered::job(3, 2), Away::Parameters);
    lowered::set_dtype(job, dtype);
    job.training.zero.quantized_weights = true;
    const Schedule schedule = lowered::all_ranks(model, job).front();
    CHECK(audit(schedule).empty());
    // A partition becomes fp16 on its way; several are brought as they are.
    const auto made = [&](std::string_view label, DType type, Space space) {
      return std::any_of(schedule.buffers.begin(), schedule.buffers.end(), [&](const Buffer& buffer) {
        return label == buffer.label && buffer.dtype == type && buffer.space == space;
      });
    };
    CHECK(made("partitions in fp16", DType::Float16, Space::Device));
    CHECK(made("partition on the device", dtype, Space::Device));
    CHECK(made("staging of a copy", DType::Float16, Space::Pageable) == (dtype == DType::BFloat16));
  }
}
