// The schedule against an independent eager tape (tests/eager): what the lowering allocates and releases, in order,
// must be what reference-counted tensors with the same model, the same autograd and the same framework around them do.
#include <doctest/doctest.h>
#include <algorithm>
#include <functional>

#include "core/format.h"
#include "eager/of_job.h"
#include "io/text.h"
#include "model/families.h"
#include "planner/lower/lower.h"

using namespace dsplan;

namespace {

struct Model {
  const char* name;
  const char* config;
};

constexpr Model kGpt2{"gpt2", R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 61,
  "n_positions": 32, "n_ctx": 32, "n_embd": 24, "n_layer": 3, "n_head": 3, "activation_function": "gelu_new",
  "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0})"};
constexpr Model kGpt2Dropout{"gpt2 with dropout", R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
  "vocab_size": 61, "n_positions": 32, "n_ctx": 32, "n_embd": 24, "n_layer": 3, "n_head": 3,
  "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1})"};
constexpr Model kLlamaGrouped{"llama, grouped heads", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
  "vocab_size": 53, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
  "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 64, "tie_word_embeddings": false})"};
constexpr Model kLlamaTied{"llama, tied", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
  "vocab_size": 53, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3,
  "num_key_value_heads": 3, "hidden_act": "silu", "max_position_embeddings": 64, "tie_word_embeddings": true})"};

ModelSpec model_of(const Model& model) { return build_model(parse_json(model.name, model.config), model.name); }

// Views, as there are millions of them: of labels, and of what the tape's entries hold.
struct Change {
  std::int64_t bytes;
  std::string_view what;
  std::string_view after;
};

// What is put on the device and taken from it, with the work that follows or went before.
struct DeviceLog : Ignores<Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit> {
  using Ignores::on;
  explicit DeviceLog(const Schedule& read) : schedule(read) {}
  void on(std::size_t, const Allocate& event) { add(event.buffer, 1); }
  void on(std::size_t, const Release& event) { add(event.buffer, -1); }
  void on(std::size_t, const Compute& event) { last = event.work; }
  void on(std::size_t, const Mark& event) { last = name(event.moment); }

  void add(BufferId id, std::int64_t sign) {
    const Buffer& buffer = schedule.buffers[id];
    if (buffer.space != Space::Device) return;
    if (std::string_view(buffer.label) == "table of positions") return;  // The tape's tables come out of nothing.
    changes.push_back({sign * buffer.size.value(), buffer.label, last});
  }

  const Schedule& schedule;
  std::string_view last;
  std::vector<Change> changes;
};

std::vector<Change> lowered(const ModelSpec& model, const Job& job, std::int64_t rank) {
  const Schedule schedule = lower(model, job, build_shapes(model, job), rank);
  DeviceLog log(schedule);
  replay(schedule, log);
  return std::move(log.changes);
}

std::vector<Change> eagerly(const std::vector<eager::Entry>& entries) {
  std::vector<Change> changes;
  changes.reserve(entries.size());
  for (const eager::Entry& entry : entries) changes.push_back({entry.bytes, entry.doing, {}});
  return changes;
}

// Several frees between two allocations have no order of their own.
void order_frees(std::vector<Change>& changes) {
  auto at = changes.begin();
  while (at != changes.end()) {
    const auto end = std::find_if(at, changes.end(), [](const Change& c) { return c.bytes > 0; });
    std::stable_sort(at, end, [](const Change& a, const Change& b) { return a.bytes < b.bytes; });
    at = end == changes.end() ? end : end + 1;
  }
}

std::string around(const std::vector<Change>& changes, std::size_t at) {
  std::string text;
  for (std::size_t k = at > 8 ? at - 8 : 0; k < std::min(changes.size(), at + 8); ++k) {
    const Change& one = changes[k];
    text += dsplan::formatted("{} {} {:+} {}", k == at ? ">>" : "  ", k, one.bytes, one.what);
    text += one.after.empty() ? "\n" : dsplan::formatted(" (after {})\n", one.after);
  }
  return text;
}

// The number of compared changes; 0 after a failure.
std::size_t compare(const ModelSpec& model, const Job& job, std::int64_t rank) {
  std::vector<Change> schedule = lowered(model, job, rank);
  const std::vector<eager::Entry> entries = eager::of_job(model, job, rank);
  std::vector<Change> tape = eagerly(entries);
  order_frees(schedule);
  order_frees(tape);
  const std::size_t shorter = std::min(schedule.size(), tape.size());
  std::size_t at = 0;
  while (at < shorter && schedule[at].bytes == tape[at].bytes) ++at;
  if (at == schedule.size() && at == tape.size()) return at;
  const std::string what = dsplan::formatted("first difference at {} of {} and {}\nschedule:\n{}eager tape:\n{}", at,
                                             schedule.size(), tape.size(), around(schedule, at), around(tape, at));
  FAIL_CHECK(what);
  return 0;
}

struct Case {
  std::string name;
  Model model = kGpt2;
  int stage = -1;  // -1: PyTorch.
  std::int64_t world = 1;
  std::int64_t accumulation = 1;
  std::vector<CheckpointGroup> checkpoints{};
  bool fp32 = false;
  std::int64_t batch = 2;
  std::int64_t seq = 8;
  std::int64_t tp = 1;
};

Job job_of(const Case& c) {
  Job job;
  Training& training = job.training;
  training.runtime = c.stage < 0 ? Runtime::PyTorch : Runtime::DeepSpeed;
  training.deepspeed = *Version::parse(kDeepSpeedVersion);
  training.zero.stage = std::max(c.stage, 0);
  training.zero.reduce_bucket_size = Elements(2000);
  training.zero.param_persistence_threshold = Elements(30);
  training.micro_batch = c.batch;
  training.seq = c.seq;
  training.grad_accum = c.accumulation;
  training.checkpoint.groups = c.checkpoints;
  training.check_grad_overflow = true;
  if (c.fp32) {
    training.dtype = training.grad_accum_dtype = training.communication_dtype = DType::Float32;
    training.attention = Attention::MemoryEfficient;
  }
  job.parallelism.dp = c.world;
  job.parallelism.tp = c.tp;
  job.parallelism.world = c.world * c.tp;
  return job;
}

void check(const Case& c, const ModelSpec& model, const Job& job) {
  for (std::int64_t rank = 0; rank < c.world; ++rank) {
    const std::string title =
        dsplan::formatted("{}: {}, stage {}, {} ranks, rank {}, accumulation {}, {} checkpoints, {}, batch {}, tp {}",
                          c.name, c.model.name, c.stage, c.world, rank, c.accumulation, c.checkpoints.size(),
                          c.fp32 ? "fp32" : "bf16", c.batch, c.tp);
    CAPTURE(title);
    CHECK(compare(model, job, rank) > 100);
  }
}

void check(const Case& c) { check(c, model_of(c.model), job_of(c)); }

// none, full, every:2, segments:2.
std::vector<std::vector<CheckpointGroup>> checkpoint_choices(std::int32_t layers) {
  std::vector<std::vector<CheckpointGroup>> choices(2);
  for (std::int32_t at = 0; at < layers; ++at) choices[1].push_back({at, at});
  choices.emplace_back();
  for (std::int32_t at = 0; at < layers; at += 2) choices[2].push_back({at, std::min(at + 1, layers - 1)});
  choices.push_back({{0, layers / 2 - 1}});
  return choices;
}

std::vector<CheckpointGroup> reentrant(std::vector<CheckpointGroup> groups) {
  for (CheckpointGroup& group : groups) group.kind = CheckpointKind::Reentrant;
  return groups;
}

const Model kModels[] = {kGpt2, kGpt2Dropout, kLlamaGrouped, kLlamaTied};

}  // namespace

TEST_CASE("eager tape: one GPU, every model, checkpointed or not") {
  for (const Model& model : kModels) {
    for (const auto& checkpoints : checkpoint_choices(static_cast<std::int32_t>(model_of(model).dims.layers))) {
      for (std::int64_t batch : {1, 2}) {
        check({.name = "one GPU", .model = model, .checkpoints = checkpoints, .batch = batch});
      }
    }
  }
}

TEST_CASE("eager tape: every runtime, world and accumulation") {
  for (const Model& model : kModels) {
    for (int stage : {-1, 0, 1, 2, 3}) {
      for (std::int64_t world : {1, 2, 3}) {
        for (std::int64_t accumulation : {1, 2}) {
          check({.name = "runtimes", .model = model, .stage = stage, .world = world, .accumulation = accumulation});
        }
      }
    }
  }
}

TEST_CASE("eager tape: every stage with every checkpointing") {
  for (const Model& model : kModels) {
    for (const auto& checkpoints : checkpoint_choices(static_cast<std::int32_t>(model_of(model).dims.layers))) {
      for (int stage : {0, 1, 2, 3}) {
        check({.name = "stages",
               .model = model,
               .stage = stage,
               .world = 2,
               .accumulation = 2,
               .checkpoints = checkpoints});
      }
    }
  }
}

TEST_CASE("eager tape: the reentrant form of checkpointing") {
  for (const Model& model : kModels) {
    for (auto checkpoints : checkpoint_choices(static_cast<std::int32_t>(model_of(model).dims.layers))) {
      if (checkpoints.empty()) continue;
      for (CheckpointGroup& group : checkpoints) group.kind = CheckpointKind::Reentrant;
      for (int stage : {-1, 0, 1, 2, 3}) {
        check({.name = "reentrant",
               .model = model,
               .stage = stage,
               .world = stage < 0 ? 1 : 2,
               .accumulation = 2,
               .checkpoints = checkpoints});
      }
    }
  }
}

TEST_CASE("eager tape: fp32 with memory-efficient attention") {
  for (const Model& model : {kGpt2, kGpt2Dropout, kLlamaTied}) {
    for (int stage : {-1, 0, 1, 2, 3}) {
      for (std::int64_t world : {1, 2}) {
        check({.name = "fp32", .model = model, .stage = stage, .world = world, .fp32 = true});
        check({.name = "fp32",
               .model = model,
               .stage = stage,
               .world = world,
               .checkpoints = {{0, 0}, {1, 2}},
               .fp32 = true});
      }
    }
  }
}

TEST_CASE("eager tape: torch's Adam over partitions makes a root as large as a state") {
  for (const Model& model : {kGpt2, kLlamaTied}) {
    for (int stage : {1, 2, 3}) {
      for (std::int64_t world : {1, 2}) {
        Case c{.name = "torch_adam", .model = model, .stage = stage, .world = world};
        Job job = job_of(c);
        job.training.optimizer.implementation = Implementation::Foreach;
        job.training.zero.sub_group_size = Elements(3000);
        check(c, model_of(model), job);
      }
    }
  }
}

TEST_CASE("eager tape: buckets, sub-groups and persistence of every size") {
  for (const Model& model : {kGpt2, kLlamaGrouped}) {
    for (int stage : {1, 2, 3}) {
      for (std::int64_t bucket : {1, 100, 1500, 5000, 100'000}) {
        for (bool overlap : {false, true}) {
          Case c{.name = "buckets", .model = model, .stage = stage, .world = 3, .accumulation = 2};
          Job job = job_of(c);
          job.training.zero.reduce_bucket_size = Elements(bucket);
          job.training.zero.overlap_comm = overlap;
          job.training.zero.reduce_scatter = bucket != 5000;
          job.training.zero.sub_group_size = Elements(bucket);
          job.training.zero.param_persistence_threshold = Elements(bucket / 2);
          check(c, model_of(model), job);
        }
      }
    }
  }
}

TEST_CASE("eager tape: fetching ahead, keeping and gathering in every way") {
  struct Ways {
    std::int64_t prefetch;
    std::int64_t reuse;
    std::int64_t live;
  };
  for (const Model& model : {kGpt2, kLlamaTied}) {
    const auto choices = checkpoint_choices(static_cast<std::int32_t>(model_of(model).dims.layers));
    for (const Ways& ways : {Ways{0, 0, 100'000}, Ways{1, 0, 100'000}, Ways{700, 0, 3000}, Ways{3000, 2000, 9000},
                             Ways{3000, 20'000, 100'000}, Ways{0, 1, 0}}) {
      for (int way : {0, 1, 2}) {
        for (const std::size_t checkpoints : {std::size_t{0}, std::size_t{1}}) {
          Case c{.name = "ways", .model = model, .stage = 3, .world = 2, .accumulation = 2};
          c.checkpoints = choices[checkpoints];
          Job job = job_of(c);
          job.training.zero.prefetch_bucket_size = Elements(ways.prefetch);
          job.training.zero.max_reuse_distance = Elements(ways.reuse);
          job.training.zero.max_live_parameters = Elements(ways.live);
          job.training.zero.allgather_sequential = way == 1;
          job.training.zero.all_reduce_for_fetch = way == 2;
          check(c, model_of(model), job);
        }
      }
    }
  }
}

TEST_CASE("eager tape: fully_shard, every group, dtype, world and accumulation") {
  struct Policy {
    DType kept;
    DType computed;
    DType reduced;
  };
  constexpr DType kWide = DType::Float32;
  constexpr DType kHalf = DType::BFloat16;
  const auto sharded = [](const Model& model, const std::string& wrap, std::int64_t world, const Policy& policy) {
    Case c{.name = "fully_shard " + wrap, .model = model, .world = world};
    Job job = job_of(c);
    Training& t = job.training;
    t.runtime = Runtime::Fsdp2;
    t.model_init = ModelInit::Meta;
    t.fsdp.wrap = wrap;
    t.master_dtype = policy.kept;
    t.dtype = policy.computed;
    t.communication_dtype = policy.reduced;
    if (t.dtype == kWide) t.attention = Attention::MemoryEfficient;
    return std::pair(c, job);
  };
  for (const Model& model : {kGpt2, kLlamaGrouped, kLlamaTied}) {
    const auto choices = checkpoint_choices(static_cast<std::int32_t>(model_of(model).dims.layers));
    for (const char* wrap : {"layers", "ends", "root"}) {
      for (const Policy& policy :
           {Policy{kHalf, kHalf, kHalf}, Policy{kWide, kHalf, kWide}, Policy{kWide, kHalf, kHalf}}) {
        for (std::int64_t world : {2, 3, 5}) {
          auto [c, job] = sharded(model, wrap, world, policy);
          check(c, model_of(model), job);
          job.training.grad_accum = c.accumulation = 3;
          job.training.fsdp.sync_every = world == 3;
          job.training.fsdp.reshard_root = world == 2;
          if (world != 5) job.training.checkpoint.groups = choices[1];
          job.training.optimizer.implementation = Implementation::Foreach;
          check(c, model_of(model), job);
          job.training.fsdp.reshard_after_forward = 0;
          check(c, model_of(model), job);
          job.training.gradient_clipping = 1;
          job.training.loop = world == 2 ? LoopKind::Minimal : LoopKind::Trainer;
          check(c, model_of(model), job);
        }
        auto [c, job] = sharded(model, wrap, 4, policy);
        job.training.fsdp.reshard_after_forward = 2;
        check(c, model_of(model), job);
        job.training.checkpoint.groups = reentrant(choices[1]);
        check(c, model_of(model), job);
        job.training.checkpoint.groups.clear();
        job.training.fsdp.reshard_after_forward = 1;
        job.training.fsdp.reshard_tail = wrap == std::string("ends");
        check(c, model_of(model), job);
        job.training.fsdp.reshard_last = wrap == std::string("root");
        check(c, model_of(model), job);
        job.training.fsdp.replicate = 2;
        check(c, model_of(model), job);
      }
    }
  }
}

TEST_CASE("eager tape: fully_shard, layers that are gathered ahead, and parameters that are left out") {
  constexpr DType kWide = DType::Float32;
  constexpr DType kHalf = DType::BFloat16;
  const auto sharded = [](const Model& model, const std::string& wrap, std::int64_t world, DType kept) {
    Case c{.name = "fully_shard " + wrap, .model = model, .world = world};
    Job job = job_of(c);
    Training& t = job.training;
    t.runtime = Runtime::Fsdp2;
    t.model_init = ModelInit::Meta;
    t.fsdp.wrap = wrap;
    t.master_dtype = t.communication_dtype = kept;
    return std::pair(c, job);
  };
  for (const Model& model : {kGpt2, kLlamaGrouped, kLlamaTied}) {
    const auto choices = checkpoint_choices(static_cast<std::int32_t>(model_of(model).dims.layers));
    for (const char* wrap : {"layers", "ends"}) {
      for (const std::int64_t ahead : {1, 2}) {
        for (const DType kept : {kWide, kHalf}) {
          auto [c, job] = sharded(model, wrap, 3, kept);
          job.training.fsdp.forward_prefetch = ahead;
          check(c, model_of(model), job);
          job.training.fsdp.backward_prefetch = ahead;
          check(c, model_of(model), job);
          job.training.checkpoint.groups = choices[1];
          job.training.grad_accum = c.accumulation = 2;
          check(c, model_of(model), job);
          job.training.fsdp.forward_prefetch = 0;
          job.training.fsdp.reshard_after_forward = 0;
          check(c, model_of(model), job);
          job.training.checkpoint.groups = reentrant(choices[1]);
          check(c, model_of(model), job);
          job.training.fsdp.forward_prefetch = ahead;
          check(c, model_of(model), job);
          job.training.fsdp.reshard_after_forward = 1;
          check(c, model_of(model), job);
        }
      }
    }
  }
  for (const char* wrap : {"layers", "ends", "root"}) {
    for (const char* left : {"*mlp*", "*embed_tokens*", "*self_attn*"}) {
      auto [c, job] = sharded(kLlamaGrouped, wrap, 3, kHalf);
      job.training.fsdp.ignored = left;
      job.training.freeze = {left};
      check(c, model_of(kLlamaGrouped), job);
      job.training.fsdp.forward_prefetch = wrap == std::string("root") ? 0 : 1;
      job.training.optimizer.implementation = Implementation::Foreach;
      job.training.gradient_clipping = 1;
      check(c, model_of(kLlamaGrouped), job);
    }
  }
}

namespace {

struct FlatPolicy {
  DType kept;
  DType computed;
  DType reduced;
};

Job flattened(const Case& c, const FlatPolicy& policy, bool views) {
  Job job = job_of(c);
  Training& t = job.training;
  t.runtime = Runtime::Fsdp1;
  t.model_init = ModelInit::Host;
  t.fsdp.use_orig_params = views;
  t.master_dtype = policy.kept;
  t.dtype = policy.computed;
  t.communication_dtype = policy.reduced;
  t.fsdp.casts_parameters = policy.kept != policy.computed;
  if (t.dtype == DType::Float32) t.attention = Attention::MemoryEfficient;
  return job;
}

// Each way alone and on top of the ones before.
void check_flat(
    const Case& c, const Model& model, const FlatPolicy& policy, bool views,
    const std::function<void(Job&)>& keep = [](Job&) {}) {
  const auto choices = checkpoint_choices(static_cast<std::int32_t>(model_of(model).dims.layers));
  const std::vector<std::function<void(Job&)>> ways{
      [](Job&) {},
      [](Job& job) { job.training.fsdp.backward_prefetch = 1; },
      [](Job& job) { job.training.fsdp.forward_prefetch = 1; },
      [](Job& job) { job.training.grad_accum = 3; },
      [](Job& job) { job.training.fsdp.backward_prefetch = 2; },
      [](Job& job) { job.training.fsdp.reshard_after_forward = 0; },
      [&](Job& job) { job.training.checkpoint.groups = choices[1]; },
      [](Job& job) { job.training.fsdp.sync_every = true; },
      [](Job& job) { job.training.optimizer.implementation = Implementation::Foreach; },
      [](Job& job) { job.training.gradient_clipping = 1; },
      [](Job& job) { job.training.loop = LoopKind::Trainer; },
      [](Job& job) { job.training.fsdp.sync_module_states = true; },
      [](Job& job) { job.training.model_init = ModelInit::Device; },
      [&](Job& job) { job.training.checkpoint.groups = reentrant(choices[1]); },
  };
  Job all = flattened(c, policy, views);
  keep(all);
  for (const auto& way : ways) {
    Job alone = flattened(c, policy, views);
    keep(alone);
    way(alone);
    way(all);
    check(c, model_of(model), alone);
    check(c, model_of(model), all);
  }
}

void check_flat_units(const Model& model, const FlatPolicy& policy, bool views) {
  const std::string classes = model.name == kGpt2.name ? "GPT2MLP+GPT2Block" : "LlamaMLP+LlamaDecoderLayer";
  for (const std::string& wrap : {std::string("root"), classes}) {
    Case c{.name = "FSDP1 " + wrap, .model = model, .world = wrap == "root" ? 2 : 5};
    Job job = flattened(c, policy, views);
    job.training.fsdp.wrap = wrap;
    check(c, model_of(model), job);
    job.training.fsdp.forward_prefetch = 1;
    job.training.grad_accum = c.accumulation = 2;
    check(c, model_of(model), job);
  }
}

// Units within others and within checkpoints.
void check_flat_inside(const Model& model, const FlatPolicy& policy, bool views) {
  const auto choices = checkpoint_choices(static_cast<std::int32_t>(model_of(model).dims.layers));
  Case c{.name = "FSDP1, inside", .model = model, .world = 3};
  Job job = flattened(c, policy, views);
  job.training.fsdp.wrap = model.name == kGpt2.name ? "GPT2MLP+GPT2Block" : "LlamaMLP+LlamaDecoderLayer";
  job.training.checkpoint.groups = choices[1];
  for (const std::int64_t prefetch : {0, 1, 2}) {
    job.training.fsdp.backward_prefetch = prefetch;
    check(c, model_of(model), job);
  }
  job.training.grad_accum = c.accumulation = 2;
  check(c, model_of(model), job);
  job.training.fsdp.reshard_after_forward = 0;
  check(c, model_of(model), job);
}

constexpr FlatPolicy kFlatPolicies[] = {{DType::BFloat16, DType::BFloat16, DType::BFloat16},
                                        {DType::Float32, DType::BFloat16, DType::Float32},
                                        {DType::Float32, DType::BFloat16, DType::BFloat16},
                                        {DType::BFloat16, DType::BFloat16, DType::Float32},
                                        {DType::Float32, DType::Float32, DType::Float32}};

}  // namespace

TEST_CASE("eager tape: FullyShardedDataParallel, every unit, dtype, world and way") {
  for (const Model& model : {kGpt2, kLlamaGrouped, kLlamaTied}) {
    for (const FlatPolicy& policy : kFlatPolicies) {
      for (const bool views : {false, true}) {
        check_flat({.name = "FSDP1", .model = model, .world = 3}, model, policy, views);
        check_flat_units(model, policy, views);
        check_flat_inside(model, policy, views);
      }
    }
  }
}

namespace {

void check_flat_replicas(const Model& model, const FlatPolicy& policy, bool views) {
  Case c{.name = "FSDP1, replicas", .model = model, .world = 4};
  Job job = flattened(c, policy, views);
  job.training.fsdp.replicate = 2;
  job.training.fsdp.sync_module_states = true;
  check(c, model_of(model), job);
  job.training.fsdp.reshard_after_forward = 0;
  job.training.grad_accum = c.accumulation = 2;
  check(c, model_of(model), job);
}

// NO_SHARD, and one rank.
void check_flat_whole(const Model& model, const FlatPolicy& policy, bool views) {
  for (const std::int64_t world : {1, 3}) {
    if (world == 1 && !views) continue;  // One rank does what three do, but for collectives.
    const Case c{.name = "FSDP1, whole", .model = model, .world = world};
    const auto keep = [&](Job& job) { job.training.fsdp.replicate = world; };
    check_flat(c, model, policy, views, keep);
    if (policy.kept != DType::Float32 || policy.computed != DType::BFloat16) continue;
    Job job = flattened(c, policy, views);
    keep(job);
    job.training.fsdp.casts_buffers = job.training.fsdp.widens_shards = true;
    check(c, model_of(model), job);
  }
}

void check_flat_on_host(const Model& model, const FlatPolicy& policy, bool views) {
  Case c{.name = "FSDP1, on the host", .model = model, .world = 3};
  Job job = flattened(c, policy, views);
  job.training.fsdp.cpu_offload = true;
  check(c, model_of(model), job);
  job.training.grad_accum = c.accumulation = 2;
  job.training.fsdp.forward_prefetch = 1;
  job.training.gradient_clipping = 1;
  check(c, model_of(model), job);
}

void check_flat_widened(const Model& model, const FlatPolicy& policy, bool views) {
  if (policy.kept != DType::Float32 || policy.computed != DType::BFloat16) return;
  const Case c{.name = "FSDP1, cast", .model = model, .world = 3};
  Job job = flattened(c, policy, views);
  job.training.fsdp.casts_buffers = job.training.fsdp.widens_shards = true;
  check(c, model_of(model), job);
  job.training.fsdp.reshard_after_forward = 0;
  check(c, model_of(model), job);
}

// More ranks leave some without a trained view.
void check_flat_frozen(const Model& model, const FlatPolicy& policy) {
  for (const char* frozen : {"*mlp*", "*norm*", "*attn*"}) {
    Case c{.name = "FSDP1, frozen", .model = model, .world = 7};
    Job job = flattened(c, policy, true);
    job.training.freeze = {frozen};
    check(c, model_of(model), job);
    job.training.grad_accum = c.accumulation = 3;
    check(c, model_of(model), job);
    job.training.fsdp.sync_every = true;
    check(c, model_of(model), job);
  }
}

}  // namespace

TEST_CASE("eager tape: FullyShardedDataParallel with replicas, on the host, cast by accelerate and frozen in part") {
  for (const Model& model : {kGpt2, kLlamaGrouped, kLlamaTied}) {
    for (const FlatPolicy& policy : kFlatPolicies) {
      for (const bool views : {false, true}) {
        check_flat_replicas(model, policy, views);
        check_flat_whole(model, policy, views);
        check_flat_on_host(model, policy, views);
        check_flat_widened(model, policy, views);
      }
      check_flat_frozen(model, policy);
    }
  }
}

TEST_CASE("eager tape: more than 3,072 tokens") {
  check({.name = "long", .model = kLlamaGrouped, .batch = 2, .seq = 1600});
  check({.name = "long", .model = kLlamaTied, .batch = 1, .seq = 3100});
}

// The heads, the columns of the feed-forward and the words of the vocabulary are cut; key-value heads at last shared.
TEST_CASE("eager tape: tensor-parallel ranks") {
  constexpr Model kTied{"llama, tied, four heads", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "vocab_size": 53, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "hidden_act": "silu", "max_position_embeddings": 64, "tie_word_embeddings": true})"};
  struct Cut {
    Model model;
    std::int64_t tp;
  };
  for (const Cut& cut :
       {Cut{kGpt2, 3}, Cut{kGpt2Dropout, 3}, Cut{kLlamaGrouped, 2}, Cut{kLlamaGrouped, 4}, Cut{kTied, 2}}) {
    auto choices = checkpoint_choices(static_cast<std::int32_t>(model_of(cut.model).dims.layers));
    choices.push_back(choices[1]);
    for (CheckpointGroup& group : choices.back()) group.kind = CheckpointKind::Reentrant;
    for (const auto& checkpoints : choices) {
      for (int stage : {-1, 0, 1, 2, 3}) {
        for (std::int64_t batch : {1, 2}) {
          check({.name = "tensor parallelism",
                 .model = cut.model,
                 .stage = stage,
                 .world = stage < 0 ? 1 : 2,
                 .accumulation = 2,
                 .checkpoints = checkpoints,
                 .batch = batch,
                 .tp = cut.tp});
        }
      }
    }
    if (model_of(cut.model).dims.kv_heads != model_of(cut.model).dims.heads) continue;
    for (int stage : {-1, 0, 3}) {
      check({.name = "tensor parallelism", .model = cut.model, .stage = stage, .fp32 = true, .tp = cut.tp});
    }
  }
}

TEST_CASE("eager tape: DistributedDataParallel with a static graph, and optimizers that share the updates") {
  for (const Model& model : kModels) {
    const auto choices = checkpoint_choices(static_cast<std::int32_t>(model_of(model).dims.layers));
    for (const std::int64_t world : {2, 3}) {
      for (const std::size_t checkpoints : {std::size_t{0}, std::size_t{1}}) {
        Case c{.name = "static graph", .model = model, .world = world};
        c.checkpoints = choices[checkpoints];
        Job job = job_of(c);
        Ddp& ddp = job.training.ddp;
        ddp.static_graph = true;
        job.training.loop = LoopKind::Minimal;
        check(c, model_of(model), job);
        ddp.gradient_as_bucket_view = true;
        check(c, model_of(model), job);
        ddp.broadcast_buffers = false;
        job.training.optimizer.implementation = Implementation::Foreach;
        check(c, model_of(model), job);
        ddp = {};
        ddp.zero_redundancy = true;
        c.name = "shared updates";
        check(c, model_of(model), job);
        job.training.optimizer.implementation = Implementation::Fused;
        job.training.grad_accum = c.accumulation = 2;
        check(c, model_of(model), job);
      }
    }
  }
}
