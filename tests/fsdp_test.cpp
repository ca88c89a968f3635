// fully_shard: groups, shards, schedules that hold, and what is refused.
#include <doctest/doctest.h>
#include <algorithm>

#include "audited.h"
#include "model/lora.h"
#include "planner/fsdp/fsdp_facts.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/predict.h"
#include "resolving.h"
#include "sharded_jobs.h"
#include "sim/host_memory.h"
#include "sim/placement.h"
#include "sim/traffic.h"

using namespace dsplan;
using namespace resolving;

namespace {

using lowered::sharded;

Job mixed(std::int64_t ranks) { return lowered::sharded_mixed(ranks); }

Bytes sent(const std::vector<TrafficRow>& rows, Collective collective, Pass phase, Group group) {
  Bytes sum;
  for (const TrafficRow& row : rows) {
    if (row.collective == collective && row.phase == phase && row.group == group) sum += row.payload;
  }
  return sum;
}

// The steady step's traffic, by schedule and by formula.
void check_traffic(const ModelSpec& model, const Job& job, const Schedule& schedule) {
  TrafficMeter meter;
  replay(schedule, meter);
  const std::vector<TrafficRow> measured = meter.rows(job.parallelism.dp, schedule.dp_inside, 1);
  const std::vector<TrafficRow> derived = traffic_formulas(model, job);
  for (const auto* rows : {&measured, &derived}) {
    for (const TrafficRow& row : *rows) {
      if (row.phase == Pass::Setup || row.kind == TrafficKind::Control) continue;
      INFO(name(row.collective), " ", name(row.phase), " ", name(row.group));
      CHECK(sent(measured, row.collective, row.phase, row.group) ==
            sent(derived, row.collective, row.phase, row.group));
    }
  }
}

void check(const ModelSpec& model, const Job& job) {
  REQUIRE_MESSAGE(!unsupported(model, job), unsupported(model, job).value_or(""));
  const std::vector<Schedule> schedules = audited::ranks(model, job);
  check_traffic(model, job, schedules.front());
}

struct Ways {
  const char* name;
  void (*change)(Job&);
};

void recompute_reentrant(Job& job) {
  job.training.checkpoint.groups = {{0, 0, CheckpointKind::Reentrant, true}, {1, 1, CheckpointKind::Reentrant, true}};
}

constexpr Ways kWays[] = {
    {"plain", [](Job&) {}},
    {"kept after forward", [](Job& j) { j.training.fsdp.reshard_after_forward = 0; }},
    {"root resharded", [](Job& j) { j.training.fsdp.reshard_root = true; }},
    {"norm and head resharded",
     [](Job& j) {
       j.training.fsdp.wrap = "ends";
       j.training.fsdp.reshard_tail = true;
     }},
    {"embedding, layers, norm and head", [](Job& j) { j.training.fsdp.wrap = "ends"; }},
    {"the last layer kept",
     [](Job& j) {
       j.training.fsdp.wrap = "ends";
       j.training.fsdp.reshard_last = false;
     }},
    {"one group", [](Job& j) { j.training.fsdp.wrap = "root"; }},
    {"accumulation", [](Job& j) { j.training.grad_accum = 3; }},
    {"accumulation, each reduced",
     [](Job& j) {
       j.training.grad_accum = 3;
       j.training.fsdp.sync_every = true;
     }},
    {"foreach", [](Job& j) { j.training.optimizer.implementation = Implementation::Foreach; }},
    {"for loop", [](Job& j) { j.training.optimizer.implementation = Implementation::ForLoop; }},
    {"sgd",
     [](Job& j) {
       j.training.optimizer = {OptimizerKind::Sgd, Implementation::Foreach, 0.9, 0.1, false};
     }},
    {"made on the device", [](Job& j) { j.training.model_init = ModelInit::Device; }},
    {"made on the host", [](Job& j) { j.training.model_init = ModelInit::Host; }},
    {"made on the host, both ends held",
     [](Job& j) {
       j.training.model_init = ModelInit::Host;
       j.training.fsdp.wrap = "layers+ends+held";
     }},
    {"sent by rank 0", [](Job& j) { j.training.model_init = ModelInit::Rank0; }},
    {"sent by rank 0 to hosts",
     [](Job& j) {
       j.training.model_init = ModelInit::Rank0;
       j.training.fsdp.cpu_offload = true;
     }},
    {"as accelerate",
     [](Job& j) {
       j.training.model_init = ModelInit::Rank0;
       j.training.fsdp.wrap = "layers+ends";
       j.training.fsdp.casts_outputs = j.training.dtype != DType::Float32;
     }},
    {"as axolotl, from the device",
     [](Job& j) {
       j.training.model_init = ModelInit::Device;
       j.training.fsdp.wrap = "layers+axolotl";
       j.training.fsdp.reshard_root = true;
     }},
    {"as axolotl, sent by rank 0",
     [](Job& j) {
       j.training.model_init = ModelInit::Rank0;
       j.training.fsdp.wrap = "layers+axolotl";
     }},
    {"as axolotl, sent by rank 0 to hosts",
     [](Job& j) {
       j.training.model_init = ModelInit::Rank0;
       j.training.fsdp.wrap = "layers+axolotl";
       j.training.fsdp.cpu_offload = true;
     }},
    {"classes, then ends", [](Job& j) { j.training.fsdp.wrap = "LlamaMLP+ends"; }},
    {"decay in groups", [](Job& j) { j.training.param_groups = ParamGroups::Decay; }},
    {"clipping", [](Job& j) { j.training.gradient_clipping = 1; }},
    {"clipping, nothing held",
     [](Job& j) {
       j.training.gradient_clipping = 1;
       j.training.loop = LoopKind::Minimal;
     }},
    {"frozen embeddings",
     [](Job& j) {
       j.training.freeze = {"*embed*", "*wte*", "*lm_head*"};
     }},
    {"only norms trained",
     [](Job& j) {
       j.training.freeze = {"*proj*", "*embed*", "*wte*", "*lm_head*", "*attn*"};
     }},
    {"the next layer gathered ahead", [](Job& j) { j.training.fsdp.forward_prefetch = 1; }},
    {"gathered ahead both ways, accumulation",
     [](Job& j) {
       j.training.fsdp.forward_prefetch = j.training.fsdp.backward_prefetch = 1;
       j.training.grad_accum = 2;
     }},
    {"reentrant checkpoints", recompute_reentrant},
    {"reentrant checkpoints, kept after forward",
     [](Job& j) {
       recompute_reentrant(j);
       j.training.fsdp.reshard_after_forward = 0;
     }},
    {"reentrant checkpoints, gathered ahead both ways, accumulation",
     [](Job& j) {
       recompute_reentrant(j);
       j.training.fsdp.forward_prefetch = j.training.fsdp.backward_prefetch = 1;
       j.training.grad_accum = 2;
     }},
    {"reentrant checkpoints before 2.10",
     [](Job& j) {
       recompute_reentrant(j);
       j.training.torch = {2, 9, 1};
     }},
    {"reentrant checkpoints before 2.10, kept after forward, gathered ahead",
     [](Job& j) {
       recompute_reentrant(j);
       j.training.torch = {2, 9, 1};
       j.training.fsdp.reshard_after_forward = 0;
       j.training.fsdp.forward_prefetch = 1;
     }},
    {"reentrant checkpoints before 2.10, norm and head resharded",
     [](Job& j) {
       recompute_reentrant(j);
       j.training.torch = {2, 9, 1};
       j.training.fsdp.wrap = "ends";
       j.training.fsdp.reshard_tail = true;
     }},
    {"one of two layers checkpointed, before 2.10",
     [](Job& j) {
       j.training.checkpoint.groups = {{1, 1, CheckpointKind::Reentrant, true}};
       j.training.torch = {2, 9, 1};
     }},
    {"script loop", [](Job& j) { j.training.loop = LoopKind::Script; }},
    {"loop that holds its loss", [](Job& j) { j.training.loop = LoopKind::Loss; }},
    {"labels that are the ids", [](Job& j) { j.training.labels_are_ids = true; }},
    {"a model that was cast", [](Job& j) { j.training.cast_model = true; }},
    {"native loss", [](Job& j) { j.training.loss = Loss::Native; }},
};

}  // namespace

TEST_CASE("fsdp: rows are cut as torch.chunk cuts them, and padded to as many") {
  // ceil(10 / 4) = 3 rows each, the last one has one; of 5 rows on 4 ranks the last has none.
  const Shape shape{10, 7};
  CHECK(shard_on_dim0(shape, 4, 0).real == Elements(21));
  CHECK(shard_on_dim0(shape, 4, 3).real == Elements(7));
  CHECK(shard_on_dim0(shape, 4, 3).from == Elements(63));
  CHECK(shard_on_dim0(shape, 4, 3).padded == Elements(21));
  const FsdpShard none = shard_on_dim0(Shape{5}, 4, 3);
  CHECK(none.real == Elements(0));
  CHECK(none.padded == Elements(2));
  CHECK(none.from == Elements(5));
}

TEST_CASE("fsdp: ranks whose rows are whole are counted, not looked for") {
  for (std::int64_t rows = 1; rows < 40; ++rows) {
    for (std::int64_t ranks = 1; ranks < 20; ++ranks) {
      std::int64_t full = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const FsdpShard shard = shard_on_dim0(Shape{rows, 3}, ranks, rank);
        full += shard.real == shard.padded ? 1 : 0;
      }
      CHECK(full_shards(Shape{rows, 3}, ranks) == full);
    }
  }
}

// A node's other ranks are not lowered whole where their shards are alike.
TEST_CASE("fsdp: what a node's host holds while rank 0 loads is that of whole schedules") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const auto host_peak = [&](const Job& job, std::int64_t rank) {
    const Shapes shapes = build_shapes(model, job);
    const Schedule schedule = lower(model, job, shapes, rank);
    HostMeter meter(schedule);
    replay(schedule, meter);
    return meter.peak();
  };
  for (const std::int64_t ranks : {2, 3, 4}) {
    for (const Ways& way : kWays) {
      for (const CheckpointKind kind : {CheckpointKind::NonReentrant, CheckpointKind::Reentrant}) {
        Job job = mixed(ranks);
        way.change(job);
        job.training.model_init = ModelInit::Rank0;
        job.training.checkpoint.groups = {{0, 1, kind, true}};
        job.parallelism.gpus_per_node = ranks;
        if (unsupported(model, job)) continue;
        INFO(way.name, ", ", ranks, " ranks");
        const Bytes node = host_peak(job, 0) + host_peak(job, 1) * (ranks - 1);
        for (std::int64_t r = 0; r < ranks; ++r) CHECK(predict(model, job, r).host.per_node == node);
      }
    }
  }
}

TEST_CASE("fsdp: groups of layers, of both ends, and of classes") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const auto groups = [&](const char* wrap) {
    Fsdp fsdp;
    fsdp.wrap = wrap;
    return fsdp_groups(model, fsdp);
  };
  const auto paths = [&](const FsdpGroup& group) {
    std::string text;
    for (const ModuleId id : group.modules) text += model.module_at(id).path + ";";
    return text;
  };
  const auto layers = groups("layers");
  REQUIRE(layers.size() == static_cast<std::size_t>(model.dims.layers) + 1);
  CHECK(paths(layers.front()) == "model.layers.0;");
  CHECK(layers.front().parameters.size() == 9);
  CHECK(layers.back().modules == std::vector<ModuleId>{0});
  CHECK(layers.back().reshards == 0);
  const auto ends = groups("ends");
  const bool tied = std::any_of(model.parameters.begin(), model.parameters.end(),
                                [](const Parameter& p) { return p.tied_to != kNone; });
  CHECK(paths(ends.front()) == (tied ? "model.norm;model.embed_tokens;lm_head;" : "model.embed_tokens;"));
  CHECK(ends.back().parameters.empty());
  const auto classes = groups("LlamaMLP");
  CHECK(classes.front().parameters.size() == 3);
  CHECK(classes.back().parameters.size() ==
        layers.back().parameters.size() + 6 * static_cast<std::size_t>(model.dims.layers));
  CHECK(groups("root").size() == 1);
}

TEST_CASE("fsdp: every way makes legal schedules whose states and traffic are the formulas'") {
  for (const char* name : {"tiny-llama", "tiny-gpt2"}) {
    const ModelSpec model = lowered::bundled(name);
    for (const Ways& way : kWays) {
      for (const std::int64_t ranks : {2, 3, 7}) {
        INFO(name, ", ", way.name, ", ", ranks, " ranks");
        for (Job job : {mixed(ranks), sharded(ranks, DType::BFloat16, DType::BFloat16, DType::BFloat16),
                        sharded(ranks, DType::BFloat16, DType::BFloat16, DType::Float32)}) {
          way.change(job);
          check(model, job);
        }
      }
    }
  }
}

TEST_CASE("fsdp: ignored parameters are whole on each rank, and nobody gathers them") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  for (const ModelInit init : {ModelInit::Meta, ModelInit::Device, ModelInit::Host}) {
    for (const std::int64_t ranks : {2, 3}) {
      for (const char* glob : {"*mlp*", "*embed*+*self_attn*"}) {
        Job job = sharded(ranks, DType::BFloat16, DType::BFloat16, DType::BFloat16);
        job.training.model_init = init;
        job.training.fsdp.ignored = glob;
        job.training.freeze = {"*mlp*", "*embed*", "*self_attn*"};
        check(model, job);
      }
    }
  }
  Job job = sharded(2, DType::BFloat16, DType::BFloat16, DType::BFloat16);
  job.training.fsdp.ignored = "*mlp*";
  CHECK(unsupported(model, job).value_or("").find("which is trained and which fully_shard ignores") !=
        std::string::npos);
  const ModelSpec tied = lowered::bundled("tiny-gpt2");
  Job untied = sharded(2, DType::BFloat16, DType::BFloat16, DType::BFloat16);
  untied.training.fsdp.ignored = untied.training.freeze.emplace_back("*wte*");
  CHECK(unsupported(tied, untied).value_or("").find("which fully_shard ignores and to_empty unties") !=
        std::string::npos);
  job = mixed(2);
  job.training.fsdp.ignored = "*mlp*";
  job.training.freeze = {"*mlp*"};
  CHECK(unsupported(model, job).value_or("").find("in fp32 among modules that compute in bf16") != std::string::npos);
  job.training.model_init = ModelInit::Rank0;
  CHECK(unsupported(model, job).value_or("").find("at which accelerate stops") != std::string::npos);
}

TEST_CASE("fsdp: what rank 0 scatters is traffic of initialisation") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = mixed(3);
  job.parallelism.world = 3;
  job.training.model_init = ModelInit::Rank0;
  const auto sent = [&](std::int64_t rank) {
    std::vector<TrafficRow> rows;
    for (const TrafficRow& row : predict(model, job, rank).communication.value_or(std::vector<TrafficRow>{})) {
      if (row.collective == Collective::SendRecv) rows.push_back(row);
    }
    return rows;
  };
  Bytes chunks;
  for (const Parameter& p : model.parameters) {
    const Elements row(p.shape.elements().value() / p.shape.dims[0]);
    chunks += storage(row * ((p.shape.dims[0] + 2) / 3), DType::Float32);
  }
  const auto names = static_cast<std::int64_t>(model.parameters.size());
  REQUIRE(sent(0).size() == 1);
  CHECK(sent(0)[0] == TrafficRow{Collective::SendRecv, Group::DataParallel, Pass::Setup, DType::Float32,
                                 TrafficKind::Data, names, chunks * 2, chunks * 2});
  CHECK(sent(2)[0].calls == names);
  CHECK(sent(2)[0].payload == chunks);
  job = mixed(6);
  job.parallelism.world = 6;
  job.training.fsdp.replicate = 2;
  job.training.model_init = ModelInit::Rank0;
  CHECK(sent(3)[0].group == Group::DataParallelInside);  // The first of the other replica sends as well.
  CHECK(sent(3)[0].payload == chunks * 2);
  CHECK(sent(4)[0].payload == chunks);
  job.training.model_init = ModelInit::Host;
  CHECK(sent(0).empty());
}

TEST_CASE("fsdp: norm and head reshard where they are told so") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Fsdp fsdp;
  fsdp.wrap = "layers+ends";
  const auto tail = [&] {
    for (const FsdpGroup& group : fsdp_groups(model, fsdp)) {
      if (group.modules.size() > 1) return group.reshards;
    }
    return std::int64_t{-1};
  };
  CHECK(tail() == 0);
  fsdp.reshard_tail = true;
  CHECK(tail() == 1);
  fsdp.reshard_last = false;
  const std::vector<FsdpGroup> groups = fsdp_groups(model, fsdp);
  const std::vector<std::size_t> layers = layer_groups(model, groups);
  REQUIRE(layers.size() > 1);
  for (const std::size_t at : layers) CHECK(groups[at].reshards == (at == layers.back() ? 0 : 1));
}

TEST_CASE("fsdp: resharding to fewer ranks, and replicas") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  for (Job job : {mixed(4), mixed(8)}) {
    job.training.fsdp.reshard_after_forward = 2;
    check(model, job);
    job.training.fsdp.reshard_after_forward = 1;
    job.training.fsdp.replicate = 2;
    check(model, job);
    job.training.grad_accum = 2;
    check(model, job);
  }
}

TEST_CASE("fsdp: adapters in fp32 beside weights in bf16 are gathered as bytes, with param_dtype in that") {
  Request request;
  request.lora = {"r=4,targets=q_proj+v_proj,dtype=fp32", option("--lora")};
  const ModelSpec model = model_of(lowered::bundled("tiny-llama"), request);
  for (const bool casts : {false, true}) {
    for (const std::int64_t ranks : {2, 3, 7}) {
      Job job = sharded(ranks, DType::BFloat16, DType::BFloat16, DType::BFloat16);
      job.training.fsdp.casts_parameters = casts;
      check(model, job);
      job.training.grad_accum = 2;
      check(model, job);
    }
  }
}

TEST_CASE("fsdp: layers that are computed again are gathered once more for it, not twice") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = mixed(2);
  const std::vector<TrafficRow> plain = traffic_formulas(model, job);
  for (std::int32_t at = 0; at < model.dims.layers; ++at) job.training.checkpoint.groups.push_back({at, at});
  check(model, job);
  CHECK(sent(traffic_formulas(model, job), Collective::AllGather, Pass::Backward, Group::DataParallel) ==
        sent(plain, Collective::AllGather, Pass::Backward, Group::DataParallel));
}

// Who frees what another stream used has waited for it: with frees that wait and with frees that do not, the allocator
// has the same.
TEST_CASE("fsdp: frees do not wait for streams") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const Schedule schedule = lowered::all_ranks(model, mixed(2)).front();
  CHECK(schedule.several_streams);
  PlacementOptions options;
  options.frees = StreamFrees::AtSync;
  const Placement at_sync = place(schedule, options);
  options.frees = StreamFrees::Immediate;
  const Placement at_once = place(schedule, options);
  CHECK(at_sync.peak.reserved == at_once.peak.reserved);
  CHECK(at_sync.peak.allocated == at_once.peak.allocated);
  CHECK(at_sync.peak.active == at_sync.peak.allocated);
  CHECK_FALSE(at_sync.waited);
}

namespace {

// What is said of so many GPUs under fully_shard, with one thing changed.
std::string said_of(const ModelSpec& model, void (*change)(Request&)) {
  Given given{.request = gpus(8), .model = model};
  set(given.request.seq, std::int64_t{16}, "--seq");
  set(given.request.runtime, std::string("fsdp2"), "--runtime");
  change(given.request);
  return refusal(given);
}

void contains(const std::string& text, const char* part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("fsdp: what is refused of prefetches, ignored parameters and packed weights") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const auto said = [&](void (*change)(Request&)) { return said_of(model, change); };
  contains(said([](Request& r) { set(r.fsdp.forward_prefetch, std::string("-1"), "--set"); }), "no number of layers");
  contains(said([](Request& r) { set(r.fsdp.backward_prefetch, std::string("two"), "--set"); }), "no number of layers");
  contains(said([](Request& r) {
             set(r.fsdp.wrap, std::string("root"), "--set");
             set(r.fsdp.forward_prefetch, std::string("1"), "--set");
           }),
           "without groups of layers");
  contains(said([](Request& r) { set(r.fsdp.ignored, std::string("*mlp*+*nobody*"), "--set"); }),
           "has no parameter \"*nobody*\"");
  contains(said([](Request& r) {
             set(r.fsdp.ignored, std::string("*mlp*"), "--set");
             set(r.torch_version, std::string("2.6.0"), "--torch-version");
           }),
           "before PyTorch 2.7");
  const auto packed = [&](const char* kind, const char* storage, const char* ignored) {
    Given given{.request = gpus(8)};
    set(given.request.seq, std::int64_t{2048}, "--seq");
    set(given.request.runtime, std::string("fsdp2"), "--runtime");
    set(given.request.quantization, std::string(kind), "--quantization");
    set(given.request.lora, std::string("r=4,targets=all-linear"), "--lora");
    if (*storage != 0) set(given.request.quant_storage, std::string(storage), "--quant-storage");
    if (*ignored != 0) set(given.request.fsdp.ignored, std::string(ignored), "--set");
    given.model = model_of(model, given.request);
    return refusal(given);
  };
  contains(packed("nf4", "", ""), "only Tensors of floating point dtype can require gradients");
  contains(packed("int8", "", ""), "only Tensors of floating point dtype can require gradients");
  CHECK(packed("nf4", "bf16", "") == "accepted");
  CHECK(packed("nf4", "uint8", "packed") == "accepted");
}

TEST_CASE("fsdp: words of ignored parameters") {
  using Words = std::vector<std::string_view>;
  CHECK(ignored_words("").empty());
  CHECK(ignored_words("packed") == Words{"packed"});
  CHECK(ignored_words("*mlp*+packed+wte") == Words{"*mlp*", "packed", "wte"});
  Parameter parameter;
  parameter.name = "layers.0.mlp.weight";
  CHECK(means("*mlp*", parameter));
  CHECK_FALSE(means("*attn*", parameter));
  CHECK_FALSE(means("packed", parameter));
  for (const DType whole : {DType::UInt8, DType::Int8}) {
    parameter.dtype = whole;
    CHECK(means("packed", parameter));
  }
  parameter.dtype = DType::BFloat16;  // Shards of packed weights are such.
  CHECK_FALSE(means("packed", parameter));
}

TEST_CASE("fsdp: what fully_shard does not take is refused, with its rule") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const auto said = [&](void (*change)(Request&)) { return said_of(model, change); };
  CHECK(said([](Request&) {}) == "accepted");
  contains(said([](Request& r) { set(r.fsdp.reshard_after_forward, std::string("3"), "--set"); }),
           "is no factor of the 8 ranks that shard");
  contains(said([](Request& r) { set(r.fsdp.reshard_tail, std::string("true"), "--set"); }),
           "without a group of norm and head");
  contains(said([](Request& r) { set(r.fsdp.wrap, std::string("layers+held"), "--set"); }),
           "nobody holds weights of ends that have no groups");
  contains(said([](Request& r) {
             set(r.fsdp.reshard_last, std::string("false"), "--set");
             set(r.fsdp.wrap, std::string("root"), "--set");
           }),
           "without groups of layers");
  contains(said([](Request& r) { set(r.fsdp.wrap, std::string("LlamaBlock"), "--set"); }),
           "has no module of class \"LlamaBlock\"");
  contains(said([](Request& r) { set(r.fsdp.wrap, std::string("LlamaDecoderLayr"), "--set"); }),
           "did you mean \"LlamaDecoderLayer\"?");
  contains(said([](Request& r) { set(r.fsdp.shard, std::string("3"), "--set"); }), "does not divide 8 ranks");
  contains(said([](Request& r) {
             set(r.fsdp.shard, std::string("2"), "--set");
             set(r.fsdp.replicate, std::string("2"), "--set");
           }),
           "a mesh of 2 x 2 is not 8 ranks");
  contains(said([](Request& r) { set(r.fsdp.param_dtype, std::string("bfloat"), "--set"); }), "none of bf16, fp16");
  contains(said([](Request& r) { set(r.fsdp.cpu_offload, std::string("yes"), "--set"); }), "neither true nor false");
  contains(said([](Request& r) { set(r.fsdp.output_dtype, std::string("fp32"), "--set"); }), "not modelled yet");
  for (const char* one : {"adamw_8bit", "paged_adamw_8bit", "ademamix"}) {
    Given given{.request = gpus(8), .model = model};
    set(given.request.runtime, std::string("fsdp2"), "--runtime");
    set(given.request.optimizer, std::string(one), "--optimizer");
    contains(refusal(given), "bitsandbytes takes plain tensors");
  }
  contains(said([](Request& r) { set(r.runtime, std::string("fsdp"), "--runtime"); }), "FullyShardedDataParallel");
  const std::string both = said([](Request& r) {
    set(r.zero_stage, std::int64_t{2}, "--zero-stage");
    set(r.fsdp.wrap, std::string("ends"), "--set");
  });
  contains(both, "runtime fsdp2 contradicts the ZeRO stage");
  CHECK(both.find("without fully_shard") == std::string::npos);
  contains(said([](Request& r) {
             set(r.runtime, std::string("pytorch"), "--runtime");
             set(r.fsdp.wrap, std::string("ends"), "--set");
           }),
           "without fully_shard");
  contains(said([](Request& r) { set(r.zero_stage, std::int64_t{3}, "--zero-stage"); }), "contradicts the ZeRO stage");
  contains(said([](Request& r) { set(r.set, std::vector<std::string>{"fsdp.wrapp=ends"}, "--set"); }),
           "there is no setting \"fsdp.wrapp\"; did you mean \"fsdp.wrap\"?");
}

TEST_CASE("fsdp: a policy's dtypes are those of shards, of what is gathered and of what is reduced") {
  Given given{.request = gpus(8), .model = lowered::bundled("tiny-llama")};
  Request& request = given.request;
  set(request.seq, std::int64_t{16}, "--seq");
  set(request.runtime, std::string("hsdp"), "--runtime");
  set(request.dtype, std::string("fp32"), "--dtype");
  set(request.gpus_per_node, std::int64_t{4}, "--gpus-per-node");
  set(request.set, std::vector<std::string>{"fsdp.param_dtype=bf16", "fsdp.reduce_dtype=fp32"}, "--set");
  const Training t = run(given).training;
  CHECK(t.master_dtype == DType::Float32);
  CHECK(t.dtype == DType::BFloat16);
  CHECK(t.communication_dtype == DType::Float32);
  CHECK(t.fsdp.replicate == 2);  // Shards within a node.
  CHECK(t.model_init == ModelInit::Meta);
}

TEST_CASE("fsdp: checkpoints within those of layers gather nothing more") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  for (const std::int64_t ranks : {2, 3}) {
    for (const std::int64_t kept : {0, 1}) {
      Job job = mixed(ranks);
      job.training.fsdp.reshard_after_forward = kept == 0 ? job.training.fsdp.reshard_after_forward : 0;
      job.training.checkpoint.groups = {{0, 0}, {1, 1}};
      job.training.checkpoint.modules = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"};
      check(model, job);
      job.training.grad_accum = 2;
      check(model, job);
      job.training.freeze = {"*embed*"};
      CHECK(unsupported(model, job) == "checkpoints within those of layers beside frozen parameters");
    }
  }
}

TEST_CASE("fsdp: what has no schedule yet is said, and states are there by formula") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = mixed(4);
  job.training.autocast = DType::BFloat16;
  CHECK(unsupported(model, job) == "autocast under fully_shard");
  job = mixed(4);
  job.training.torch = {2, 5, 1};
  CHECK(unsupported(model, job) == "fully_shard before PyTorch 2.6");
  Job cut = mixed(4);
  cut.training.loss = Loss::Cut;
  CHECK(!unsupported(model, cut));
  cut = lowered::sharded(4, DType::Float32, DType::Float32, DType::Float32);
  cut.training.loss = Loss::Cut;
  cut.training.attention = Attention::Math;  // Of grouped heads in fp32.
  CHECK(unsupported(model, cut).value_or("").find("cut cross-entropy over weights gathered in fp32") !=
        std::string::npos);
  const Prediction p = predict(model, job, 0);
  CHECK_FALSE(p.peak);
  CHECK(p.states.total() > Bytes(0));
}

TEST_CASE("fsdp: with CPUOffloadPolicy the device keeps no shard between steps, and the host what is pinned") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = mixed(4);
  const Prediction there = predict(model, job, 0);
  job.training.fsdp.cpu_offload = true;
  const Prediction p = predict(model, job, 0);
  CHECK(p.peak->allocated < there.peak->allocated);
  // Parameters and gradients are pinned, each rounded up to a power of two; both moments are pageable.
  CHECK(p.host.pinned.value() >= p.states.parameters + p.states.gradients);
  for (const Schedule& schedule : lowered::all_ranks(model, job)) {
    CHECK(audit(schedule).empty());
    for (const Buffer& buffer : schedule.buffers) {
      if (buffer.role == Role::Optimizer) CHECK(buffer.space == Space::Pageable);
      if (buffer.role == Role::Parameters) CHECK(buffer.space != Space::Device);
    }
  }
}

TEST_CASE("fsdp: torch.optim loops over parameters on the host unless it is told how") {
  const auto made = [](const char* optimizer, const char* offload) {
    Given given{.request = gpus(4), .model = lowered::bundled("tiny-llama")};
    set(given.request.seq, std::int64_t{16}, "--seq");
    set(given.request.runtime, std::string("fsdp2"), "--runtime");
    set(given.request.optimizer, std::string(optimizer), "--optimizer");
    set(given.request.set, std::vector<std::string>{std::string("fsdp.cpu_offload=") + offload}, "--set");
    return run(given).training.optimizer.implementation;
  };
  CHECK(made("adamw_torch", "true") == Implementation::ForLoop);
  CHECK(made("adamw_torch", "false") == Implementation::Foreach);
  CHECK(made("adamw:foreach", "true") == Implementation::Foreach);
  CHECK(made("adamw_torch_fused", "true") == Implementation::Fused);
}

TEST_CASE("fsdp: what PyTorch's releases do otherwise") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const auto shards_made = [&](Version torch, std::int64_t ranks) {
    Job job = mixed(ranks);
    job.training.torch = torch;
    CHECK(!unsupported(model, job));
    const Schedule schedule = lowered::all_ranks(model, job).back();  // Whose shards are short.
    CHECK(audit(schedule).empty());
    return std::count_if(schedule.buffers.begin(), schedule.buffers.end(),
                         [](const Buffer& buffer) { return buffer.role == Role::Parameters; });
  };
  // Uneven shards are padded once more by the first forward before 2.10; even ones never were.
  CHECK(shards_made({2, 9, 1}, 3) > shards_made({2, 10, 0}, 3));
  CHECK(shards_made({2, 9, 1}, 2) == shards_made({2, 10, 0}, 2));
  CHECK(shards_made({2, 6, 0}, 3) == shards_made({2, 9, 1}, 3));
  Job job = mixed(4);
  job.training.torch = {2, 7, 1};
  job.training.freeze = {"*mlp*"};
  CHECK(!unsupported(model, job));
  // The model's own group reshards from 2.8 on.
  const auto root = [](const char* version) {
    Given given{.request = gpus(4), .model = lowered::bundled("tiny-llama")};
    set(given.request.seq, std::int64_t{16}, "--seq");
    set(given.request.runtime, std::string("fsdp2"), "--runtime");
    set(given.request.torch_version, std::string(version), "--torch-version");
    set(given.request.set, std::vector<std::string>{"fsdp.reshard_root=true", "fsdp.reshard_after_forward=true"},
        "--set");
    return run(given).training.fsdp.reshard_root;
  };
  CHECK(root("2.8.0"));
  CHECK(!root("2.7.1"));
}

TEST_CASE("fsdp: copies beside adapters of another dtype are refused as fully_shard refuses them") {
  const auto lora = [](const char* more) {
    const Setting<std::string> text{std::string("r=8,targets=q_proj,save=input_layernorm") + more, option("--lora")};
    return with_adapters(lowered::bundled("tiny-llama"), parse_lora(text), text.place);
  };
  // Adapters are in fp32.
  const Job job = sharded(4, DType::BFloat16, DType::BFloat16, DType::BFloat16);
  CHECK(unsupported(lora(""), job) == "trained parameters of two dtypes in one group, which fully_shard refuses");
  CHECK_FALSE(unsupported(lora(",save_dtype=fp32"), job));
  CHECK_FALSE(unsupported(lora(",dtype=bf16"), job));
  CHECK_FALSE(unsupported(lora(""), mixed(4)));
}

TEST_CASE("fully_shard on a device whose kernels nobody knows has no table of tensors to gather") {
  Job job = lowered::sharded_mixed(2);
  job.hardware.emplace();
  job.hardware->architecture = "gfx942";
  for (const Schedule& schedule : lowered::all_ranks(lowered::bundled("tiny-llama"), job)) {
    CHECK(audit(schedule).empty());
    CHECK(!schedule.events.empty());
  }
}
