// ZeRO-3 in every way of fetching: schedules are legal, and say what travels inside a node, between nodes and as int8.
#include <doctest/doctest.h>
#include <functional>

#include "core/audit.h"
#include "core/error.h"
#include "core/format.h"
#include "io/text.h"
#include "model/families.h"
#include "model/graphs/graphs.h"
#include "planner/lower/lower.h"
#include "planner/predict/footprint.h"
#include "sim/memory.h"
#include "sim/traffic.h"

using namespace dsplan;

namespace {

constexpr const char* kLlama = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64,
  "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 64, "tie_word_embeddings": true})";
constexpr const char* kMixtral = R"({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"],
  "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 64, "num_local_experts": 4,
  "num_experts_per_tok": 2, "tie_word_embeddings": false})";

ModelSpec model_of(const char* config) { return build_model(parse_json("config.json", config), "test"); }

Job job_of(std::int64_t world, const std::function<void(Training&)>& change) {
  Job job;
  Training& t = job.training;
  t.runtime = Runtime::DeepSpeed;
  t.zero.stage = 3;
  t.micro_batch = 2;
  t.seq = 8;
  t.grad_accum = 2;
  t.zero.reduce_bucket_size = Elements(3000);
  t.zero.param_persistence_threshold = Elements(40);
  t.zero.prefetch_bucket_size = Elements(4000);
  t.zero.max_reuse_distance = Elements(0);
  change(t);
  job.parallelism.dp = job.parallelism.world = world;
  return job;
}

Schedule schedule_of(const ModelSpec& model, const Job& job, std::int64_t rank = 0) {
  const Graph graph = build_graph(model, graph_options(model, job));
  return lower(model, job, graph, RecipeBook(graph), rank);
}

std::vector<TrafficRow> traffic_of(const Schedule& schedule) {
  TrafficMeter meter;
  replay(schedule, meter);
  return meter.rows(schedule.dp, schedule.dp_inside);
}

Bytes payload(const std::vector<TrafficRow>& rows, const std::function<bool(const TrafficRow&)>& which) {
  Bytes sum;
  for (const TrafficRow& row : rows) {
    if (row.kind == TrafficKind::Data && row.phase != Pass::Setup && which(row)) sum += row.payload;
  }
  return sum;
}

struct Way {
  const char* name;
  std::function<void(Training&)> change;
};

const std::vector<Way> kWays = {
    {"as it is", [](Training&) {}},
    {"keeping", [](Training& t) { t.zero.max_reuse_distance = Elements(5000); }},
    {"one by one", [](Training& t) { t.zero.allgather_sequential = true; }},
    {"by all-reduce", [](Training& t) { t.zero.all_reduce_for_fetch = true; }},
    {"buckets all-reduced", [](Training& t) { t.zero.reduce_scatter = false; }},
    {"no bucket", [](Training& t) { t.zero.contiguous_gradients = false; }},
    {"sums in fp32", [](Training& t) { t.grad_accum_dtype = DType::Float32; }},
    {"sent in fp32", [](Training& t) { t.communication_dtype = DType::Float32; }},
    {"all-reduced and summed in fp32",
     [](Training& t) {
       t.zero.reduce_scatter = false;
       t.grad_accum_dtype = DType::Float32;
     }},
    {"saved whole", [](Training& t) { t.zero.gather_16bit_weights_on_model_save = true; }},
    {"hpZ", [](Training& t) { t.zero.hpz_partition_size = 2; }},
    {"hpZ, saved whole",
     [](Training& t) {
       t.zero.hpz_partition_size = 2;
       t.zero.gather_16bit_weights_on_model_save = true;
     }},
    {"qwZ", [](Training& t) { t.zero.quantized_weights = true; }},
    {"qwZ one by one",
     [](Training& t) {
       t.zero.quantized_weights = true;
       t.zero.allgather_sequential = true;
     }},
    {"qwZ in hpZ",
     [](Training& t) {
       t.zero.quantized_weights = true;
       t.zero.hpz_partition_size = 2;
     }},
    {"leaves",
     [](Training& t) {
       t.zero.leaf_classes = {"LlamaDecoderLayer", "MixtralSparseMoeBlock"};
     }},
    {"fine modules as leaves", [](Training& t) { t.zero.module_granularity_threshold = Elements(3000); }},
};

}  // namespace

TEST_CASE("stage 3: every way of fetching makes legal schedules whose persistent bytes are the formulas'") {
  for (const char* config : {kLlama, kMixtral}) {
    const ModelSpec model = model_of(config);
    for (const Way& way : kWays) {
      for (std::int64_t world : {1, 4}) {
        for (int other : {0, 1, 2, 3}) {
          const Job job = job_of(world, [&](Training& t) {
            way.change(t);
            t.zero.hpz_partition_size = std::min(t.zero.hpz_partition_size, world);
            if (other == 1) t.freeze = {"*mlp*", "*embed*"};
            if (other >= 2) t.checkpoint.groups = {{0, 0}, {1, 1}};
            for (CheckpointGroup& group : t.checkpoint.groups) {
              if (other == 3) group.kind = CheckpointKind::Reentrant;
            }
          });
          const std::string title = dsplan::formatted("{} {} world {} other {}", model.family, way.name, world, other);
          CAPTURE(title);
          if (other == 3 && job.training.checkpoint.groups.empty()) continue;
          const Schedule schedule = schedule_of(model, job, world - 1);
          std::string text;
          for (const Finding& finding : audit(schedule)) text += finding.text + "\n";
          CHECK_MESSAGE(text.empty(), text);
          MemoryMeter meter(schedule);
          replay(schedule, meter);
          CHECK(meter.by_role() == footprint(model, job).persistent);
        }
      }
    }
  }
}

TEST_CASE("stage 3: hpZ crosses nodes once in a step, and stays inside for everything else") {
  const ModelSpec model = model_of(kLlama);
  const Schedule plain = schedule_of(model, job_of(4, [](Training&) {}));
  const Schedule split = schedule_of(model, job_of(4, [](Training& t) { t.zero.hpz_partition_size = 2; }));
  const auto gathered = [](const Schedule& schedule, Group group) {
    return payload(traffic_of(schedule), [&](const TrafficRow& row) {
      return row.collective == Collective::AllGather && row.group == group && row.phase != Pass::Step;
    });
  };
  const Bytes all = gathered(plain, Group::DataParallel);
  const Bytes between = gathered(split, Group::DataParallelBetween);
  CHECK(gathered(split, Group::DataParallel) == Bytes(0));
  CHECK(between + gathered(split, Group::DataParallelInside) == all);
  // Two micro-batches, each forward and backward: the first forward alone has no shards.
  Bytes once;
  for (const Parameter& parameter : model.parameters) {
    if (parameter.tied_to == kNone && parameter.shape.elements() > Elements(40)) {
      once += storage(parameter.shape.elements(), DType::BFloat16);
    }
  }
  CHECK(between == once);
}

TEST_CASE("stage 3: qwZ sends one byte per element and four per group") {
  const ModelSpec model = model_of(kLlama);
  const auto change = [](Training& t) { t.zero.prefetch_bucket_size = Elements(0); };
  const std::vector<TrafficRow> plain = traffic_of(schedule_of(model, job_of(4, change)));
  const std::vector<TrafficRow> rows = traffic_of(schedule_of(model, job_of(4, [&](Training& t) {
                                                                change(t);
                                                                t.zero.quantized_weights = true;
                                                              })));
  const auto sum = [](const std::vector<TrafficRow>& list, DType dtype) {
    return payload(list, [&](const TrafficRow& row) {
      return row.collective == Collective::AllGather && row.dtype == dtype && row.phase == Pass::Forward;
    });
  };
  CHECK(sum(rows, DType::Int8) * 2 == sum(plain, DType::BFloat16));
  // No partition here is longer than 8,000 elements: one group each, on four ranks.
  std::int64_t calls = 0;
  for (const TrafficRow& row : plain) {
    if (row.collective == Collective::AllGather && row.phase == Pass::Forward) calls += row.calls;
  }
  CHECK(sum(rows, DType::Float32) == Bytes(calls * 4 * 4));
}

TEST_CASE("stage 3: qwZ refuses partitions that its quantizer cannot cut, by name") {
  const ModelSpec model = model_of(kLlama);
  const Job job = job_of(3, [](Training& t) {
    t.zero.quantized_weights = true;
    t.zero.prefetch_bucket_size = Elements(0);
  });
  CHECK_THROWS_WITH_AS((void)schedule_of(model, job), doctest::Contains("model.embed_tokens.weight"), Refusal);
}

TEST_CASE("stage 3: saving gathers and sends every weight, and leaves all as it was") {
  const ModelSpec model = model_of(kLlama);
  const Job job = job_of(4, [](Training& t) { t.zero.gather_16bit_weights_on_model_save = true; });
  const Schedule schedule = schedule_of(model, job);
  Bytes twice;  // A tied weight is gathered for both of its modules.
  for (const Parameter& parameter : model.parameters) {
    const Bytes size = storage(parameter.shape.elements(), DType::BFloat16);
    twice += size;
  }
  const auto saved = [&](Collective collective) {
    return payload(traffic_of(schedule),
                   [&](const TrafficRow& row) { return row.collective == collective && row.phase == Pass::Save; });
  };
  CHECK(saved(Collective::Broadcast) == twice);
  CHECK(saved(Collective::AllGather) > twice);  // Persistent parameters once more at the end.
  MemoryMeter meter(schedule);
  replay(schedule, meter);
  CHECK(meter.phases().back().name == "save");
  CHECK(meter.phases().back().marks.front().requested == meter.phases().back().marks.back().requested);
}
