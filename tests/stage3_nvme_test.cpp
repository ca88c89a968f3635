// ZeRO-3 with partitions or the optimizer on NVMe: against real DeepSpeed around stand-ins for what it compiles, the
// auditor, the formulas, and figures worked out by hand.
#include "offload_log.h"

#include <array>

#include "audited.h"
#include "core/error.h"
#include "lowered.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/footprint.h"
#include "planner/predict/predict.h"
#include "sim/host_memory.h"
#include "sim/memory.h"

using namespace deepspeed_log;

namespace {

Lines files_of(const Lines& all) {
  Lines lines;
  std::copy_if(all.begin(), all.end(), std::back_inserter(lines), moves_file);
  return lines;
}

// Bytes of all files that a rank wrote, each at its last size.
std::int64_t written_files(const Lines& log) {
  std::map<std::string, std::int64_t> sizes;
  for (const std::string& line : log) {
    const std::vector<std::string> word = words(line);
    if (word[0] == "write") sizes[word[2]] = std::stoll(word[1]);
  }
  std::int64_t sum = 0;
  for (const auto& [name, size] : sizes) sum += size;
  return sum;
}

constexpr std::array<const char*, 15> kWitnesses{"z3-nvme-optimizer",
                                                 "z3-nvme-optimizer-groups",
                                                 "z3-nvme-optimizer-read",
                                                 "z3-nvme-optimizer-write",
                                                 "z3-nvme-optimizer-pipelined",
                                                 "z3-nvme-optimizer-sums-fp32",
                                                 "z3-nvme-optimizer-fp32",
                                                 "z3-nvme-param",
                                                 "z3-nvme-param-in-cpu",
                                                 "z3-nvme-param-alone",
                                                 "z3-nvme-param-ahead",
                                                 "z3-nvme-param-persist",
                                                 "z3-nvme-param-frozen",
                                                 "z3-nvme-param-one-rank",
                                                 "z3-nvme-both"};

}  // namespace

TEST_CASE("ZeRO-3 on NVMe: what DeepSpeed makes, reads, writes, gathers and reduces, event for event") {
  for (const char* name : kWitnesses) {
    CAPTURE(name);
    const Run witness = read_run(name);
    const ModelSpec model = model_of_witness(witness);
    const Job job = job_of_witness(witness, model);
    REQUIRE(!unsupported(model, job));
    const Graph graph = build_graph(model, graph_options(model, job));
    const std::vector<int> numbers = numbers_of(witness, model);
    for (std::size_t rank = 0; rank < witness.ranks.size(); ++rank) {
      const Schedule whole = lower(model, job, graph, RecipeBook(graph), static_cast<std::int64_t>(rank));
      CHECK(host_of(whole).nvme_peak() == Bytes(written_files(witness.ranks[rank])));
      CHECK(nvme_footprint(model, job, static_cast<std::int64_t>(rank)).files == host_of(whole).nvme_peak());
      const Schedule schedule = on_one_device(whole);
      const Lines theirs = moves_of(witness.ranks[rank], 2);
      const Lines ours = Ours(schedule, numbers).take();
      const std::string files = first_difference(files_of(theirs), files_of(ours));
      CHECK(files_of(ours).size() > 5);
      CHECK_MESSAGE(files.empty(), files);
      if (job.parallelism.dp == 1) continue;  // There a gathered parameter is its partition.
      check_same(theirs, ours, 300);
    }
  }
}

namespace {

// Large enough that partitions of up to three ranks are swapped; the sub-groups of 1.2e6 elements come in several
// sizes.
ModelSpec swappable_llama() {
  return lowered::inlined("swappable-llama", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "vocab_size": 6750, "hidden_size": 504, "intermediate_size": 3125, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": false})");
}

struct Way {
  bool optimizer = false;  // On NVMe; else on the host.
  bool parameters = false;
  std::int64_t max_in_cpu = 0;
  bool read = false;
  bool write = false;
  std::int64_t sub_group = 1'200'000;
};

Job on_nvme(Job job, const Way& way) {
  Zero& zero = job.training.zero;
  zero.reduce_bucket_size = Elements(4'000'000);
  zero.prefetch_bucket_size = Elements(100);
  zero.max_reuse_distance = Elements(0);
  zero.sub_group_size = Elements(way.sub_group);
  zero.offload_optimizer.device = way.optimizer ? OffloadDevice::Nvme : OffloadDevice::Cpu;
  zero.offload_optimizer.buffer_count = 12;
  zero.offload_optimizer.pipeline_read = way.read;
  zero.offload_optimizer.pipeline_write = way.write;
  if (!way.parameters) return job;
  zero.offload_param.device = OffloadDevice::Nvme;
  zero.offload_param.buffer_count = 5;
  zero.offload_param.buffer_size = Elements(3'500'000);
  zero.offload_param.max_in_cpu = Elements(way.max_in_cpu);
  return job;
}

constexpr std::array<Way, 8> kWays{{
    {true},
    {true, false, 0, true, false},
    {true, false, 0, false, true},
    {true, false, 0, true, true},
    {false, true},
    {false, true, 3'000'000},
    {true, true, 3'000'000, true, true},
    {true, true, 1'000'000'000, false, false, 1'000'000'000},
}};

Schedule first_rank(const ModelSpec& model, const Job& job) {
  const Graph graph = build_graph(model, graph_options(model, job));
  return lower(model, job, graph, RecipeBook(graph), 0);
}

}  // namespace

TEST_CASE("ZeRO-3 on NVMe: schedules are legal, and device, files and locked memory are what the formulas say") {
  std::size_t audited = 0;
  std::size_t swapped = 0;
  const ModelSpec model = swappable_llama();
  for (const std::int64_t ranks : {1, 2, 3}) {
    std::vector<lowered::Case> cases = lowered::variants(3, ranks, static_cast<std::int32_t>(model.dims.layers));
    cases.push_back({"saved", lowered::job(3, ranks)});
    cases.back().job.training.zero.gather_16bit_weights_on_model_save = true;
    cases.push_back({"lion", lowered::job(3, ranks)});
    cases.back().job.training.optimizer.kind = OptimizerKind::Lion;
    for (std::size_t at = 0; at < cases.size(); ++at) {
      const lowered::Case& c = cases[at];
      const OptimizerKind kind = c.job.training.optimizer.kind;
      if (kind != OptimizerKind::AdamW && kind != OptimizerKind::Lion) continue;
      const Way& way = kWays[at % kWays.size()];
      const Job job = on_nvme(c.job, way);
      if (unsupported(model, job)) continue;
      CAPTURE(c.name);
      CAPTURE(at % kWays.size());
      const std::vector<Schedule> schedules = audited::ranks(model, job, audited::kStates);
      for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
        const Schedule& schedule = schedules[rank];
        HostMeter host(schedule);
        replay(schedule, host);
        if (rank > 0 && !job.training.zero.reduce_scatter) continue;  // Padded gradients are passed on whole.
        const NvmeFootprint files = nvme_footprint(model, job, static_cast<std::int64_t>(rank));
        CHECK(host.nvme_peak() == files.files);
        swapped += files.files > Bytes(0) ? 1U : 0U;
        CHECK(host.pinned() >= files.locked);
        if (way.parameters) continue;
        CHECK(host.nvme_read() == files.optimizer_step);
        CHECK(host.nvme_written() == files.optimizer_step);
      }
      ++audited;
    }
  }
  CHECK(audited > 60);
  CHECK(swapped > 120);
}

TEST_CASE("Llama-3-8B over eight ranks: what NVMe takes of each rank's host and disk") {
  constexpr std::int64_t kPart = 1'003'782'656;            // S, a multiple of 256.
  constexpr std::int64_t kNorms = 65 * 512;                // Partitions of norms: 512 elements each.
  constexpr std::int64_t kPinnedNorms = 65 * (1LL << 10);  // Of zero.Init, until they move.
  struct Row {
    const char* what;
    bool optimizer;
    bool parameters;
    std::int64_t max_in_cpu;
    std::int64_t files;
    std::int64_t pinned;
    std::int64_t read;
    std::int64_t written;
  };
  // Master, both states and the gradients but for the norms', four bytes each.
  constexpr std::int64_t kStates = 12 * kPart + 4 * (kPart - kNorms);
  constexpr std::int64_t kFiles = 2 * (kPart - kNorms);  // Norms have 1,024 bytes each, and stay.
  // Four buffers of a sub-group, which is everything; 16-bit sums pinned beside them.
  constexpr std::int64_t kBuffers = 4 * 4 * kPart;
  const std::array<Row, 4> rows{{
      {"optimizer", true, false, 0, kStates, kBuffers + (1LL << 31), kStates, kStates},
      // Five buffers of 1e8 elements, and one for the sub-group that is as large as on all ranks together. In a step
      // each partition is read twice, for forward and for backward, and written once.
      {"parameters", false, true, 0, kFiles, 5 * 200'000'512 + 16 * kPart + kPinnedNorms + (1LL << 32) + (1LL << 31),
       2 * kFiles, kFiles},
      // The default: room for 1e9 elements, which the one sub-group of S does not fit into. It is pinned all the same.
      {"parameters, room that nothing fits into", false, true, 1'000'000'000, kFiles,
       5 * 200'000'512 + 16 * kPart + kPinnedNorms + (1LL << 32) + 2 * (1LL << 31), 2 * kFiles, kFiles},
      // All of it: what was read once stays in memory. Files remain.
      {"parameters, all in memory", false, true, 2'000'000'000, kFiles,
       5 * 200'000'512 + kPinnedNorms + (1LL << 32) + 2 * (1LL << 31), 0, 0},
  }};
  const ModelSpec model = lowered::bundled("llama-3-8b");
  for (const Row& row : rows) {
    CAPTURE(row.what);
    Job job = lowered::job(3, 8);
    job.parallelism.gpus_per_node = 8;
    job.training.micro_batch = 1;
    Zero& zero = job.training.zero;
    zero.reduce_bucket_size = Elements(500'000'000);
    zero.max_reuse_distance = Elements(0);
    zero.prefetch_bucket_size = Elements(0);
    zero.offload_optimizer.device = row.optimizer ? OffloadDevice::Nvme : OffloadDevice::Cpu;
    if (row.parameters) zero.offload_param.device = OffloadDevice::Nvme;
    zero.offload_param.buffer_count = 5;
    zero.offload_param.max_in_cpu = Elements(row.max_in_cpu);
    const HostMeter host = host_of(first_rank(model, job));
    CHECK(host.nvme_peak() == Bytes(row.files));
    CHECK(host.pinned() == Bytes(row.pinned));
    CHECK(host.nvme_read() == Bytes(row.read));
    CHECK(host.nvme_written() == Bytes(row.written));
    const Prediction p = predict(model, job, 0);
    CHECK(*p.host.nvme == Bytes(row.files));
    CHECK(*p.host.nvme_per_node == Bytes(row.files) * 8);
    CHECK(*p.host.nvme_read == Bytes(row.read));
    CHECK(*p.host.nvme_written == Bytes(row.written));
  }
}

TEST_CASE("ZeRO-3 on NVMe: pipelining keeps the first step's states in memory until the second reads them") {
  const ModelSpec model = swappable_llama();
  const auto most = [&](bool pipelined) {
    Way way{true};
    way.write = pipelined;
    return host_of(first_rank(model, on_nvme(lowered::job(3, 2), way))).pageable_peak();
  };
  std::int64_t trained = 0;
  for (const Parameter& parameter : model.parameters) trained += (parameter.shape.elements().value() + 1) / 2;
  CHECK(most(true) >= Bytes(8 * trained));
  CHECK(most(false) < Bytes(8 * trained));
}

TEST_CASE("ZeRO-3 on NVMe: where DeepSpeed stops at an assertion, and what has no schedule") {
  const auto refusal = [](const ModelSpec& model, const Job& job) -> std::string {
    try {
      (void)first_rank(model, job);
      return "accepted";
    } catch (const Refusal& refused) {
      return refused.what();
    }
  };
  const ModelSpec model = swappable_llama();
  Job job = on_nvme(lowered::job(3, 2), {false, true});
  CHECK(refusal(model, job) == "accepted");
  job.training.zero.param_persistence_threshold = Elements(4'000'000);  // All come back with the step at once.
  CHECK(refusal(model, job).find("5 swap buffers are too few") != std::string::npos);
  job.training.zero.offload_param.buffer_count = 8;
  CHECK(refusal(model, job) == "accepted");
  // The witnesses' model with a smaller vocabulary: real DeepSpeed stops with "param 20 already assigned swap buffer".
  const ModelSpec twice =
      lowered::inlined("twice", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 2090,
    "hidden_size": 504, "intermediate_size": 2081, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "tie_word_embeddings": false})");
  job = on_nvme(lowered::job(3, 2), {false, true});
  job.training.zero.param_persistence_threshold = Elements(20);
  CHECK(refusal(twice, job).find("one partition ahead for two of its uses") != std::string::npos);

  job = on_nvme(lowered::job(3, 4), {false, true});
  job.training.zero.hpz_partition_size = 2;
  CHECK(unsupported(model, job) ==
        "parameter offload to NVMe with secondary shards (hpZ), which DeepSpeed cannot make either");
  for (const bool parameters : {false, true}) {
    job = on_nvme(lowered::job(3, 4), {!parameters, parameters});
    CHECK(!unsupported(model, job));
    job.training.deepspeed = Version{0, 19, 4};
    CHECK(!unsupported(model, job));
    job.training.deepspeed = Version{0, 19, 3};
    CHECK(unsupported(model, job) == "offload to NVMe before DeepSpeed 0.19.4");
  }
}
