// FullyShardedDataParallel: flat parameters, schedules that hold, and what is refused.
#include <doctest/doctest.h>

#include <algorithm>

#include "audited.h"
#include "model/lora.h"
#include "planner/fsdp/flat_facts.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/footprint.h"
#include "resolving.h"
#include "sharded_jobs.h"
#include "sim/traffic.h"

using namespace dsplan;
using namespace resolving;

namespace {

Job flat(std::int64_t ranks, DType kept, DType computed, DType reduced) {
  Job job = lowered::sharded(ranks, kept, computed, reduced);
  job.training.runtime = Runtime::Fsdp1;
  job.training.model_init = ModelInit::Host;
  return job;
}

struct Way {
  const char* name;
  void (*change)(Fsdp&, Training&);
};

constexpr Way kFlatWays[] = {
    {"plain", [](Fsdp&, Training&) {}},
    {"views", [](Fsdp& f, Training&) { f.use_orig_params = true; }},
    {"kept after forward", [](Fsdp& f, Training&) { f.reshard_after_forward = 0; }},
    {"one unit", [](Fsdp& f, Training&) { f.wrap = "root"; }},
    {"after backward", [](Fsdp& f, Training&) { f.backward_prefetch = 1; }},
    {"no prefetch", [](Fsdp& f, Training&) { f.backward_prefetch = 2; }},
    {"forward prefetch", [](Fsdp& f, Training&) { f.forward_prefetch = 1; }},
    {"no limit", [](Fsdp& f, Training&) { f.limit_all_gathers = false; }},
    {"accumulation", [](Fsdp&, Training& t) { t.grad_accum = 3; }},
    {"accumulation of views, kept",
     [](Fsdp& f, Training& t) {
       t.grad_accum = 2;
       f.use_orig_params = true;
       f.reshard_after_forward = 0;
     }},
    {"accumulation, each reduced",
     [](Fsdp& f, Training& t) {
       t.grad_accum = 3;
       f.sync_every = true;
     }},
    {"made on the device", [](Fsdp&, Training& t) { t.model_init = ModelInit::Device; }},
};

// What accelerate makes around it: bf16 under autocast, buffers too, shards in fp32, outputs in fp32.
Job prepared(std::int64_t ranks, bool loaded_narrow) {
  Job job = flat(ranks, DType::Float32, DType::BFloat16, DType::BFloat16);
  Training& t = job.training;
  t.autocast = DType::BFloat16;
  t.outputs_to_fp32 = true;
  t.fsdp.casts_buffers = true;
  t.fsdp.widens_shards = loaded_narrow;
  t.fsdp.sync_module_states = true;
  t.fsdp.backward_prefetch = 2;
  return job;
}

void checkpoint_layers(Training& t, CheckpointKind kind) {
  for (std::int32_t layer = 0; layer < 2; ++layer) t.checkpoint.groups.push_back({layer, layer, kind, true});
}

ModelSpec adapted(const char* text) {
  return with_adapters(lowered::bundled("tiny-llama"), parse_lora({std::string(text), option("--lora")}),
                       option("--lora"));
}

constexpr Way kPreparedWays[] = {
    {"usual", [](Fsdp& f, Training&) { f.use_orig_params = true; }},
    {"flat", [](Fsdp&, Training&) {}},
    {"clipped", [](Fsdp&, Training& t) { t.gradient_clipping = 1; }},
    {"clipped views, and the norm held",
     [](Fsdp& f, Training& t) {
       f.use_orig_params = true;
       t.gradient_clipping = 1;
       t.loop = LoopKind::Trainer;
       t.param_groups = ParamGroups::Decay;
     }},
    {"views, kept",
     [](Fsdp& f, Training& t) {
       f.use_orig_params = true;
       f.reshard_after_forward = 0;
       t.grad_accum = 2;
     }},
    {"checkpoints", [](Fsdp&, Training& t) { checkpoint_layers(t, CheckpointKind::NonReentrant); }},
    {"reentrant checkpoints",
     [](Fsdp& f, Training& t) {
       f.backward_prefetch = 0;
       checkpoint_layers(t, CheckpointKind::Reentrant);
     }},
    {"on the host",
     [](Fsdp& f, Training& t) {
       f.cpu_offload = true;
       t.gradient_clipping = 1;
       t.optimizer.implementation = Implementation::ForLoop;
     }},
    {"views on the host",
     [](Fsdp& f, Training& t) {
       f.cpu_offload = true;
       f.use_orig_params = true;
       t.loop = LoopKind::Trainer;
       t.gradient_clipping = 1;
       t.grad_accum = 2;
     }},
    {"frozen in part",
     [](Fsdp& f, Training& t) {
       f.use_orig_params = true;
       t.freeze = {"*mlp*"};
       t.gradient_clipping = 1;
     }},
};

// The steady step's traffic, by schedule and by formula.
void check_flat_traffic(const ModelSpec& model, const Job& job, const Schedule& schedule) {
  TrafficMeter meter;
  replay(schedule, meter);
  const auto sum = [](const std::vector<TrafficRow>& rows, const TrafficRow& like) {
    Bytes bytes;
    for (const TrafficRow& row : rows) {
      const bool same = row.collective == like.collective && row.phase == like.phase && row.group == like.group;
      if (same) bytes += row.payload;
    }
    return bytes;
  };
  const std::vector<TrafficRow> measured = meter.rows(job.parallelism.dp, schedule.dp_inside, 1);
  const std::vector<TrafficRow> derived = traffic_formulas(model, job);
  for (const auto* rows : {&measured, &derived}) {
    for (const TrafficRow& row : *rows) {
      if (row.phase == Pass::Setup || row.kind == TrafficKind::Control) continue;
      INFO(name(row.collective), " ", static_cast<int>(row.phase), " ", name(row.group));
      CHECK(sum(measured, row) == sum(derived, row));
    }
  }
}

void check_flat(const ModelSpec& model, const Way& way, std::int64_t ranks) {
  INFO(model.name, ", ", way.name, ", ", ranks, " ranks");
  for (Job job : {flat(ranks, DType::Float32, DType::BFloat16, DType::Float32),
                  flat(ranks, DType::BFloat16, DType::BFloat16, DType::BFloat16),
                  flat(ranks, DType::Float32, DType::BFloat16, DType::BFloat16)}) {
    way.change(job.training.fsdp, job.training);
    REQUIRE(unsupported(model, job).value_or("") == "");
    check_flat_traffic(model, job, audited::ranks(model, job).front());
  }
}

// NO_SHARD and one rank: units whole, gradients alone on their way.
void check_whole(const ModelSpec& model, const Way& way, std::int64_t ranks) {
  for (Job job : {flat(ranks, DType::Float32, DType::BFloat16, DType::Float32),
                  flat(ranks, DType::BFloat16, DType::BFloat16, DType::BFloat16),
                  flat(ranks, DType::Float32, DType::BFloat16, DType::BFloat16)}) {
    way.change(job.training.fsdp, job.training);
    INFO(model.name, ", ", way.name, ", ", ranks, " whole");
    job.training.fsdp.replicate = ranks;
    const std::string refused = unsupported(model, job).value_or("");
    if (refused.find("CPUOffload by NO_SHARD") == 0 || refused.find("accumulated under no_sync()") < refused.size())
      continue;
    REQUIRE(refused == "");
    const Schedule schedule = audited::ranks(model, job).back();
    check_flat_traffic(model, job, schedule);
    MemoryMeter memory(schedule);
    replay(schedule, memory);
    CHECK(memory.by_role() == footprint(model, job, schedule.rank).persistent);
  }
}

// Of 7 ranks, in bf16.
void check_pieces(const FlatUnit& unit, bool views) {
  Elements end;
  Elements real;
  for (const FlatPiece& piece : unit.pieces) {
    CHECK(piece.from == end);
    end += piece.elements;
    if (piece.id != kNone) real += piece.elements;
    if (!views) CHECK(piece.id != kNone);
    if (views && piece.id != kNone) CHECK(piece.from.value() % 8 == 0);
  }
  CHECK(end == unit.total);
  CHECK((!views || unit.total.value() % 7 == 0));
  CHECK(unit.shard.value() == (unit.total.value() + 6) / 7);
  Elements kept;
  for (std::int64_t rank = 0; rank < 7; ++rank) {
    for (const FlatSlice& slice : slices_of(unit, rank)) kept += slice.elements;
  }
  CHECK(kept == real);
}

void says(const std::string& text, const char* part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
}

std::string flat_said(void (*change)(Request&)) {
  Given given{.request = gpus(8), .model = lowered::bundled("tiny-llama")};
  set(given.request.seq, std::int64_t{16}, "--seq");
  set(given.request.runtime, std::string("fsdp1"), "--runtime");
  change(given.request);
  return refusal(given);
}

}  // namespace

TEST_CASE("fsdp1: every way makes legal schedules whose states and traffic are the formulas'") {
  for (const char* name : {"tiny-llama", "tiny-gpt2"}) {
    const ModelSpec model = lowered::bundled(name);
    for (const Way& way : kFlatWays) {
      for (const std::int64_t ranks : {2, 3, 7}) check_flat(model, way, ranks);
    }
  }
}

TEST_CASE("fsdp1: as accelerate prepares it, schedules are legal and have the formulas' states and traffic") {
  for (const char* name : {"tiny-llama", "tiny-gpt2"}) {
    const ModelSpec model = lowered::bundled(name);
    for (const Way& way : kPreparedWays) {
      for (const bool loaded_narrow : {false, true}) {
        INFO(name, ", ", way.name, ", ", loaded_narrow);
        Job job = prepared(3, loaded_narrow);
        way.change(job.training.fsdp, job.training);
        REQUIRE(unsupported(model, job).value_or("") == "");
        check_flat_traffic(model, job, audited::ranks(model, job).front());
      }
    }
  }
}

// What a schedule allocates under that name.
Bytes bytes_of(const Schedule& schedule, std::string_view label) {
  Bytes sum;
  for (const Buffer& buffer : schedule.buffers) {
    if (buffer.label == label) sum += buffer.size;
  }
  return sum;
}

TEST_CASE("fsdp1: shards that accelerate casts are there twice until views are made anew; a frozen root's stays") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  for (const bool views : {false, true}) {
    Job job = prepared(2, true);
    job.training.fsdp.use_orig_params = views;
    const Schedule schedule = audited::ranks(model, job).front();
    Bytes kept;
    for (const FlatUnit& unit : flat_units(model, job))
      kept += storage(unit.shard, DType::Float32) + storage(unit.shard, DType::BFloat16);
    CHECK(bytes_of(schedule, "shard of a flat parameter") == kept);
    job.training.freeze = {"*embed*", "model.norm*", "lm_head*"};
    CHECK(unsupported(model, job).value_or("") == "");
    const Schedule frozen = audited::ranks(model, job).front();
    kept -= storage(flat_units(model, job).front().shard, DType::Float32);
    CHECK(bytes_of(frozen, "shard of a flat parameter") == kept);
  }
}

// Each adapter is a unit in fp32, and a layer around it one in bf16.
void check_adapter_units(const ModelSpec& model, const Job& job) {
  std::int64_t adapters = 0;
  for (const FlatUnit& unit : flat_units(model, job)) {
    CHECK(unit.kept == (unit.trains ? DType::Float32 : DType::BFloat16));
    CHECK(unit.made == unit.kept);
    CHECK(unit.gathered == DType::BFloat16);
    if (unit.trains) ++adapters;
  }
  CHECK(adapters == 4 * model.dims.layers);
  const DType later = job.training.fsdp.use_orig_params ? DType::Float32 : DType::BFloat16;
  CHECK(shown_adapters(model, job)->first == DType::Float32);
  CHECK(shown_adapters(model, job)->later == later);
}

TEST_CASE("fsdp1: adapters are units of their own in fp32, within layers that are frozen in bf16") {
  for (const char* text : {"r=4,targets=q_proj+v_proj,dtype=fp32", "r=4,targets=q_proj+down_proj,dtype=fp32"}) {
    const ModelSpec model = adapted(text);
    for (const bool views : {false, true}) {
      Job job = prepared(3, true);
      job.training.fsdp.wrap = "adapters+layers";
      job.training.fsdp.use_orig_params = views;
      check_adapter_units(model, job);
      REQUIRE(unsupported(model, job).value_or("") == "");
      check_flat_traffic(model, job, audited::ranks(model, job).front());
    }
  }
}

TEST_CASE("fsdp1: adapters that are units within checkpoints, whose inputs are cast as their weights are seen") {
  for (const char* text : {"r=4,targets=q_proj+v_proj,dtype=fp32", "r=4,targets=q_proj+down_proj,dtype=fp32"}) {
    const ModelSpec model = adapted(text);
    Job job = prepared(3, true);
    job.training.fsdp.wrap = "adapters+layers";
    checkpoint_layers(job.training, CheckpointKind::NonReentrant);
    says(unsupported(model, job).value_or(""), "a first recomputation of adapters");
    job.training.fsdp.use_orig_params = true;
    REQUIRE(unsupported(model, job).value_or("") == "");
    check_flat_traffic(model, job, audited::ranks(model, job).front());
    job.training.fsdp.backward_prefetch = 0;
    says(unsupported(model, job).value_or(""), "has gathered by then");
  }
}

TEST_CASE("fsdp1: sizes wrap what is large enough, from within, and no lists") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = flat(2, DType::Float32, DType::BFloat16, DType::BFloat16);
  const auto units = [&](const char* wrap) {
    job.training.fsdp.wrap = wrap;
    return flat_units(model, job).size();
  };
  std::size_t owners = 0;  // Of parameters, not counting what is tied.
  for (std::size_t at = 0; at < model.modules.size(); ++at) {
    owners += std::any_of(model.parameters.begin(), model.parameters.end(), [&](const Parameter& p) {
      return p.tied_to == kNone && static_cast<std::size_t>(p.module) == at;
    });
  }
  CHECK(units("size:1") == owners);
  CHECK(units("size:100000000") == 1);
  CHECK(units("root") == 1);
  const Way sizes[] = {{"by size", [](Fsdp& f, Training&) { f.wrap = "size:9000"; }},
                       {"by a larger size", [](Fsdp& f, Training& t) {
                          f.wrap = "size:40000";
                          f.use_orig_params = true;
                          t.grad_accum = 2;
                        }}};
  for (const Way& way : sizes) check_flat(model, way, 3);
}

TEST_CASE("fsdp1: replicas") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = flat(6, DType::Float32, DType::BFloat16, DType::Float32);
  job.training.fsdp.replicate = 2;
  check_flat_traffic(model, job, audited::ranks(model, job).front());
}

TEST_CASE("fsdp1: NO_SHARD in every way has the formulas' states and traffic") {
  for (const char* name : {"tiny-gpt2", "tiny-llama"}) {
    const ModelSpec model = lowered::bundled(name);
    for (const Way& way : kFlatWays) {
      for (const std::int64_t ranks : {1, 3}) check_whole(model, way, ranks);
    }
  }
}

TEST_CASE("fsdp1: views are aligned to 16 bytes, and the flat parameter to the ranks") {
  const ModelSpec model = lowered::bundled("tiny-gpt2");
  Job job = flat(7, DType::Float32, DType::BFloat16, DType::BFloat16);
  for (const bool views : {false, true}) {
    job.training.fsdp.use_orig_params = views;
    for (const FlatUnit& unit : flat_units(model, job)) check_pieces(unit, views);
  }
}

TEST_CASE("fsdp1: what is not followed yet, and fully_shard's words, are refused by name") {
  CHECK(flat_said([](Request&) {}) == "accepted");
  says(flat_said([](Request& r) { set(r.fsdp.wrap, std::string("ends"), "--set"); }), "wraps no modules together");
  says(flat_said([](Request& r) { set(r.fsdp.reshard_root, std::string("true"), "--set"); }), "is fully_shard's word");
  says(flat_said([](Request& r) { set(r.fsdp.backward_prefetch, std::string("2"), "--set"); }),
       "none of pre, post and none");
  says(flat_said([](Request& r) {
         set(r.runtime, std::string("fsdp2"), "--runtime");
         set(r.fsdp.use_orig_params, std::string("true"), "--set");
       }),
       "is FSDP1's word");
  says(flat_said([](Request& r) { set(r.fsdp.wrap, std::string("size:many"), "--set"); }), "a number of parameters");
  says(flat_said([](Request& r) { set(r.fsdp.wrap, std::string("adapters+layers"), "--set"); }),
       "adapters of a model that has none");
  says(flat_said([](Request& r) {
         set(r.fsdp.wrap, std::string("size:1000"), "--set");
         set(r.runtime, std::string("fsdp2"), "--runtime");
       }),
       "FSDP1's words");
  const ModelSpec model = lowered::bundled("tiny-llama");
  const auto lacks = [&](void (*change)(Training&)) {
    Job job = flat(4, DType::Float32, DType::BFloat16, DType::BFloat16);
    change(job.training);
    return unsupported(model, job).value_or("");
  };
  CHECK(lacks([](Training&) {}).empty());
  says(lacks([](Training& t) {
         t.fsdp.cpu_offload = t.fsdp.sync_every = true;
         t.grad_accum = 2;
       }),
       "outside of no_sync()");
  says(lacks([](Training& t) { t.freeze = {"*mlp*"}; }), "without use_orig_params");
  CHECK(lacks([](Training& t) { t.torch = {2, 6, 0}; }).empty());
  says(lacks([](Training& t) { t.torch = {2, 5, 1}; }), "before PyTorch 2.6");
  says(lacks([](Training& t) {
         t.fsdp.replicate = 4;
         t.fsdp.use_orig_params = t.fsdp.widens_shards = true;
         t.torch = {2, 8, 0};
       }),
       "before 2.9 stops");
  says(lacks([](Training& t) {
         t.fsdp.replicate = 4;
         t.fsdp.cpu_offload = true;
         t.master_dtype = DType::BFloat16;
       }),
       "copies on the device saved tensors keep");
  says(lacks([](Training& t) {
         t.grad_scaler = true;
         t.gradient_clipping = 1;
       }),
       "at which PyTorch stops");
  says(lacks([](Training& t) { t.grad_scaler = t.fsdp.cpu_offload = true; }), "ShardedGradScaler with CPUOffload");
  says(lacks([](Training& t) {
         t.freeze = {"model.layers.0.*"};
         t.fsdp.use_orig_params = true;
       }),
       "in and below which nothing is trained");
  says(lacks([](Training& t) {
         t.master_dtype = t.dtype = DType::Float32;
         t.autocast = DType::BFloat16;
       }),
       "autocast over flat parameters in another dtype");
}
