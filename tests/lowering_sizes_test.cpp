// Every size that a runtime asks for has a second derivation: one rule of the lowering after the other is changed by
// one element, and somebody who does not share its code has to notice. Formulas (footprint, traffic, files), the eager
// tape, figures worked out by hand, the auditor, or flat work that no longer fits together; what optimizers, clipping
// and the loss scaler take inside a step, tests/witnesses/optimizers.json, which PyTorch made. None is left out.
//
// A rule is all buffers of one label, role and space. It is changed in a finished schedule, as lowering would have
// written it: size, what fills or empties the buffer, what is sent of it. So production code knows nothing of this.
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>

#include "core/format.h"
#include "io/text.h"
#include "lowered.h"
#include "lowering_judges.h"
#include "paths.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/verdict.h"
#include "planner/resolve/resolve.h"
#include "report/compare.h"
#include "report/operator_comparison.h"
#include "report/operators_receipt.h"
#include "sharded_jobs.h"

using namespace dsplan;
using namespace judging;

namespace {

constexpr const char* kGpt2 = R"({"model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 32,
  "vocab_size": 61, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0})";
constexpr const char* kLlama = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32,
  "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
  "vocab_size": 98})";
constexpr const char* kWide = R"({"model_type": "gpt2", "n_embd": 512, "n_layer": 2, "n_head": 4, "n_positions": 16,
  "vocab_size": 97})";
constexpr const char* kEven = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64,
  "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "tie_word_embeddings": true})";

// By rule and direction, what PyTorch's own steps notice (tests/witnesses/optimizers.json: dtypes and bytes in order).
std::set<std::string> noticed_by_witness() {
  const Document document = read_document(test_paths::source_dir() + "/tests/witnesses/optimizers.json");
  Diagnostics diagnostics;
  std::set<std::string> noticed;
  for (const Value& one : document.root.find("cases")->items) {
    const OptimizerRun run = read_optimizer_run(document, one, diagnostics);
    if (run.action == OptimizerRun::Action::ZeroGrad) continue;
    Executable plan;
    plan.schedule = optimizer_schedule(run, RunLevel::Dispatch);
    std::map<std::string, std::vector<BufferId>> rules;
    for (const BufferId id : plan.schedule.buffers.ids()) {
      rules[rule_of(plan.schedule.buffers[id])].push_back(id);
    }
    for (const auto& [rule, buffers] : rules) {
      for (const std::int64_t by : {1, -1}) {
        const Schedule other = changed(plan, buffers, by).schedule;
        if (!same_steps(optimizer_logs(other, RunLevel::Dispatch), run.logs)) noticed.insert(change_of(rule, by));
      }
    }
    REQUIRE(same_steps(optimizer_logs(plan.schedule, RunLevel::Dispatch), run.logs));
  }
  diagnostics.throw_if_any();
  return noticed;
}

struct Case {
  std::string name;
  const char* model = kGpt2;
  Job job;
  bool has_tape = false;
  bool first = false;     // The first rank; else the last one.
  Request request = {};   // What makes another model of it: adapters, packed weights.
  bool must_run = false;  // Others may have no schedule: they are every way to combine a few settings.
};

// Rows of small buckets, with nothing fetched ahead.
Job small(int stage, std::int64_t ranks) {
  Job job = lowered::job(stage, ranks);
  job.training.zero.reduce_bucket_size = Elements(2000);
  job.training.zero.param_persistence_threshold = Elements(30);
  job.training.zero.prefetch_bucket_size = Elements(0);
  job.training.zero.max_reuse_distance = Elements(0);
  job.training.check_grad_overflow = true;
  return job;
}

// Every way in which arguments of DeepSpeed's checkpoints are kept, whole and cut over ranks that share layers, and the
// plain ones of both kinds.
void add_checkpoints(std::vector<Case>& all) {
  const auto add = [&](const DeepSpeedCheckpointing& config, Version version, std::int64_t tp) {
    Job job = small(1, 2);
    job.parallelism.tp = tp;
    job.parallelism.world = 2 * tp;
    job.training.deepspeed = version;
    job.training.checkpoint.deepspeed = config;
    for (std::int32_t at = 0; at < 3; ++at) {
      job.training.checkpoint.groups.push_back({at, at, CheckpointKind::DeepSpeed, true});
    }
    all.push_back({dsplan::formatted("DeepSpeed's checkpoints, partition {}, cpu {}, contiguous {}, version {}, tp {}",
                                     config.partition, config.cpu, config.contiguous, version.text(), tp),
                   kLlama, job, false});
  };
  for (const std::int64_t tp : {1, 2}) {
    for (const bool cpu : {false, true}) {
      for (const Version version : {Version{0, 19, 5}, Version{0, 19, 8}}) add({false, cpu, false, 0}, version, tp);
      add({true, cpu, false, 0}, Version{0, 19, 8}, tp);
      add({true, cpu, true, 4}, Version{0, 19, 8}, tp);
    }
  }
  for (const CheckpointKind kind : {CheckpointKind::NonReentrant, CheckpointKind::Reentrant}) {
    Job job = small(3, 2);
    for (std::int32_t at = 0; at < 3; ++at) job.training.checkpoint.groups.push_back({at, at, kind, true});
    all.push_back({dsplan::formatted("checkpoints, {}", name(kind)), kLlama, job, false});
  }
}

// Partitions of a megabyte or more, in files.
void add_files(std::vector<Case>& all) {
  for (const int form : {0, 1, 2, 3, 4, 5}) {
    Job job = lowered::job(3, 2);
    job.training.micro_batch = 1;
    job.training.seq = 8;
    job.training.grad_accum = form % 2 + 1;
    Zero& zero = job.training.zero;
    zero.sub_group_size = Elements(700'000);
    zero.prefetch_bucket_size = Elements(0);
    zero.offload_optimizer.device = form == 2 ? OffloadDevice::Cpu : OffloadDevice::Nvme;
    zero.offload_optimizer.buffer_count = 12;
    zero.offload_optimizer.pipeline_read = zero.offload_optimizer.pipeline_write = form == 1;
    zero.offload_param.buffer_count = 8;
    zero.offload_param.buffer_size = Elements(1'200'000);
    if (form >= 2 && form < 5) {
      zero.offload_param.device = OffloadDevice::Nvme;
      zero.offload_param.max_in_cpu = Elements(form == 4 ? 500'000 : 0);
    }
    if (form == 5) lowered::set_dtype(job, DType::Float32);
    if (form == 5) job.training.attention = Attention::MemoryEfficient;
    all.push_back({dsplan::formatted("files, form {}", form), kWide, job, false});
  }
}

// Secondary shards (hpZ) and weights that travel as int8 (qwZ).
void add_ways_of_gathering(std::vector<Case>& all) {
  for (const bool secondary : {false, true}) {
    for (const bool quantized : {false, true}) {
      for (const bool sequential : {false, true}) {
        Job job = small(3, 4);
        job.training.zero.hpz_partition_size = secondary ? 2 : 1;
        job.training.zero.quantized_weights = quantized;
        job.training.zero.allgather_sequential = sequential;
        job.training.zero.param_persistence_threshold = Elements(40);
        all.push_back(
            {dsplan::formatted("hpZ {}, qwZ {}, one by one {}", secondary, quantized, sequential), kEven, job, false});
      }
    }
  }
}

// What needs padding, a device with a name, int8 of several parameters at once, a model that is saved; optimizers'
// other paths.
void add_others(std::vector<Case>& all) {
  const auto add = [&](const char* name, const char* model, Job job, auto change) {
    change(job);
    all.push_back({name, model, job, false});
  };
  for (int stage = 0; stage <= 3; ++stage) {
    add("three ranks", kLlama, small(stage, 3), [](Job&) {});
    add("three ranks, sums in fp32", kLlama, small(stage, 3), [](Job& job) {
      job.training.grad_accum_dtype = DType::Float32;
      job.training.grad_accum = 2;
    });
    add("three ranks, no bucket", kLlama, small(stage, 3),
        [](Job& job) { job.training.zero.contiguous_gradients = false; });
  }
  // Each is of two elements or more.
  add("seven ranks, parts behind gradients' ends", kLlama, small(3, 7), [](Job&) {});
  all.back().has_tape = true;
  for (const Version version : {Version{0, 16, 9}, Version{0, 19, 8}}) {
    add("three ranks, an older way to flatten", kLlama, small(2, 3),
        [&](Job& job) { job.training.deepspeed = version; });
  }
  add("a device with a name", kGpt2, small(-1, 1), [](Job& job) {
    job.hardware.emplace();
    job.hardware->architecture = "sm_90";
  });
  add("the optimizer on the host, older", kLlama, small(2, 2), [](Job& job) {
    job.training.deepspeed = {0, 16, 9};
    job.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
  });
  for (const Version version : {Version{0, 13, 2}, Version{0, 17, 0}, Version{0, 19, 8}}) {
    add("half of the optimizer on the host", kEven, small(3, 2), [&](Job& job) {
      job.training.deepspeed = version;
      job.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
      job.training.zero.offload_optimizer.ratio = 0.5;
      job.training.zero.sub_group_size = Elements(2000);
    });
  }
  add("qwZ, fetched ahead", kEven, small(3, 4), [](Job& job) {
    job.training.zero.quantized_weights = true;
    job.training.zero.prefetch_bucket_size = Elements(4000);
  });
  add("saved whole", kEven, small(3, 2), [](Job& job) { job.training.zero.gather_16bit_weights_on_model_save = true; });
  all.back().first = true;  // Who writes the weights.
  add("three ranks, no reduce_scatter", kLlama, small(3, 3),
      [](Job& job) { job.training.zero.reduce_scatter = false; });
  add("adagrad without decay", kGpt2, small(-1, 1), [](Job& job) {
    job.training.optimizer = {OptimizerKind::Adagrad, Implementation::Foreach, 0, 0, false};
  });
  add("muon in fp32", kGpt2, small(-1, 1), [](Job& job) {
    lowered::set_dtype(job, DType::Float32);
    job.training.attention = Attention::MemoryEfficient;
    job.training.optimizer = {OptimizerKind::Muon, Implementation::ForLoop, 0, 0, false};
  });
}

void hold_ends(Job& job) {
  job.training.model_init = ModelInit::Host;
  job.training.fsdp.wrap = "layers+ends+held";
}

// fully_shard: dtypes of what is kept, gathered and reduced, what comes back after forward, whole models that are cut,
// shards without rows, norms over shards, a device with a name.
// Two models, with and without mixed precision.
template <class Change>
void add_sharded_four(std::vector<Case>& all, const char* name, bool tape, std::int64_t ranks, const Change& change) {
  for (const char* model : {kGpt2, kLlama}) {
    for (const bool mixed : {false, true}) {
      Job job = mixed ? lowered::sharded_mixed(ranks)
                      : lowered::sharded(ranks, DType::BFloat16, DType::BFloat16, DType::BFloat16);
      change(job);
      all.push_back({dsplan::formatted("fully_shard, {}, mixed {}", name, mixed), model, job, tape, false, {}, true});
    }
  }
}

void add_sharded(std::vector<Case>& all) {
  const auto add = [&](const char* name, bool tape, std::int64_t ranks, auto change) {
    add_sharded_four(all, name, tape, ranks, change);
  };
  add("plain", true, 3, [](Job&) {});
  add("accumulation", true, 3, [](Job& job) { job.training.grad_accum = 2; });
  add("to two", true, 4, [](Job& job) { job.training.fsdp.reshard_after_forward = 2; });
  add("replicas", true, 4, [](Job& job) { job.training.fsdp.replicate = 2; });
  add("norm and head resharded", true, 3, [](Job& job) {
    job.training.fsdp.wrap = "ends";
    job.training.fsdp.reshard_tail = true;
  });
  add("the last layer kept", true, 3, [](Job& job) { job.training.fsdp.reshard_last = false; });
  add("gathered ahead", true, 3,
      [](Job& job) { job.training.fsdp.forward_prefetch = job.training.fsdp.backward_prefetch = 1; });
  add("reduced in 16 bits", true, 3, [](Job& job) { job.training.communication_dtype = DType::BFloat16; });
  add("foreach", true, 2, [](Job& job) { job.training.optimizer.implementation = Implementation::Foreach; });
  add("clipping", true, 2, [](Job& job) { job.training.gradient_clipping = 1; });
  add("made on the device", false, 3, [](Job& job) { job.training.model_init = ModelInit::Device; });
  add("made on the host", false, 3, [](Job& job) { job.training.model_init = ModelInit::Host; });
  add("made on the host, both ends held", false, 3, hold_ends);
  add("sent by rank 0", false, 3, [](Job& job) { job.training.model_init = ModelInit::Rank0; });
  add("sent by rank 0 to replicas", false, 6, [](Job& job) {
    job.training.model_init = ModelInit::Rank0;
    job.training.fsdp.replicate = 2;
  });
  add("ignored", false, 3, [](Job& job) {
    job.training.master_dtype = job.training.dtype;
    job.training.fsdp.casts_parameters = false;
    job.training.freeze = {"*mlp*"};
    job.training.fsdp.ignored = "*mlp*";
  });
  add("Adagrad", false, 3, [](Job& job) {
    job.training.optimizer.kind = OptimizerKind::Adagrad;
    job.training.optimizer.implementation = Implementation::Foreach;
  });
  add("RMSprop", false, 3, [](Job& job) {
    job.training.optimizer.kind = OptimizerKind::RmsProp;
    job.training.optimizer.implementation = Implementation::ForLoop;
    job.training.optimizer.momentum = 0.9;
  });
  add("saved whole", false, 3, [](Job& job) { job.training.fsdp.state_dict = "full"; });
  add("saved whole on the device", false, 3, [](Job& job) { job.training.fsdp.state_dict = "full-device"; });
  add("on the host", false, 3, [](Job& job) { job.training.fsdp.cpu_offload = true; });
  add("on the host, summed", false, 3, [](Job& job) {
    job.training.fsdp.cpu_offload = true;
    job.training.fsdp.sync_every = true;
    job.training.grad_accum = 2;
    job.training.gradient_clipping = 1;
    job.training.optimizer.implementation = Implementation::ForLoop;
  });
  add("moved to the host", false, 3, [](Job& job) {
    job.training.fsdp.cpu_offload = true;
    job.training.model_init = ModelInit::Host;
  });
  add("sent by rank 0 to hosts", false, 3, [](Job& job) {
    job.training.fsdp.cpu_offload = true;
    job.training.model_init = ModelInit::Rank0;
  });
  Job left_out = lowered::sharded(3, DType::BFloat16, DType::BFloat16, DType::BFloat16);
  left_out.training.fsdp.ignored = "*norm*";
  left_out.training.freeze = {"*norm*"};
  all.push_back({"fully_shard, ignored parameters", kLlama, left_out, false, false, {}, true});
  add("before PyTorch 2.10", false, 3, [](Job& job) { job.training.torch = {2, 6, 0}; });
  add("a device with a name", false, 3, [](Job& job) {
    job.hardware.emplace();
    job.hardware->architecture = "sm_90";
    job.hardware->multiprocessors = 132;
  });
}

// axolotl's own preparation: what rank 0 sends, and what is on the device.
void add_prepared_by_axolotl(std::vector<Case>& all) {
  for (const ModelInit from : {ModelInit::Rank0, ModelInit::Device}) {
    const char* const name = from == ModelInit::Rank0 ? "sent by rank 0 as axolotl does it" : "cut as axolotl does it";
    add_sharded_four(all, name, false, 3, [from](Job& job) {
      job.training.model_init = from;
      job.training.fsdp.wrap = "layers+axolotl";
    });
  }
}

// FSDP1: the same with flat parameters; the eager tape knows no autocast.
void add_flat(std::vector<Case>& all) {
  const auto add = [&](const char* name, std::int64_t ranks, DType kept, DType reduced, auto change) {
    for (const char* model : {kGpt2, kLlama}) {
      Job job = lowered::sharded(ranks, kept, DType::BFloat16, reduced);
      job.training.runtime = Runtime::Fsdp1;
      job.training.model_init = ModelInit::Host;
      change(job);
      all.push_back({dsplan::formatted("FSDP1, {}", name), model, job, !job.training.autocast, false, {}, true});
    }
  };
  Job inside = lowered::sharded(3, DType::Float32, DType::BFloat16, DType::BFloat16);
  inside.training.runtime = Runtime::Fsdp1;
  inside.training.model_init = ModelInit::Host;
  inside.training.fsdp.wrap = "LlamaMLP+LlamaDecoderLayer";
  inside.training.freeze = {"*self_attn*", "*layernorm*"};
  for (std::int32_t layer = 0; layer < 3; ++layer) inside.training.checkpoint.groups.push_back({layer, layer});
  all.push_back({"FSDP1, trained units in frozen ones, checkpointed", kLlama, inside, false, false, {}, true});
  add("plain", 3, DType::BFloat16, DType::BFloat16, [](Job&) {});
  add("mixed", 3, DType::Float32, DType::Float32, [](Job&) {});
  add("reduced in 16 bits", 3, DType::Float32, DType::BFloat16, [](Job&) {});
  add("views", 3, DType::Float32, DType::Float32, [](Job& job) { job.training.fsdp.use_orig_params = true; });
  add("views, accumulated", 3, DType::Float32, DType::Float32, [](Job& job) {
    job.training.fsdp.use_orig_params = true;
    job.training.fsdp.forward_prefetch = 1;
    job.training.grad_accum = 2;
  });
  add("replicas", 4, DType::Float32, DType::Float32, [](Job& job) { job.training.fsdp.replicate = 2; });
  const auto prepare = [](Job& job) {
    job.training.autocast = DType::BFloat16;
    job.training.outputs_to_fp32 = true;
    job.training.gradient_clipping = 1;
    job.training.fsdp.casts_buffers = job.training.fsdp.widens_shards = true;
    job.training.fsdp.sync_module_states = true;
  };
  add("by accelerate", 3, DType::Float32, DType::BFloat16, prepare);
  add("views by accelerate", 3, DType::Float32, DType::BFloat16, [prepare](Job& job) {
    prepare(job);
    job.training.fsdp.use_orig_params = true;
  });
  add("on the host", 3, DType::Float32, DType::BFloat16, [prepare](Job& job) {
    prepare(job);
    job.training.fsdp.cpu_offload = true;
  });
  add("accumulation", 3, DType::Float32, DType::BFloat16, [](Job& job) {
    job.training.grad_accum = 2;
    job.training.fsdp.sync_every = true;
  });
  add("made on the device", 3, DType::Float32, DType::Float32,
      [](Job& job) { job.training.model_init = ModelInit::Device; });
  add("NO_SHARD", 3, DType::Float32, DType::Float32, [](Job& job) {
    job.training.fsdp.replicate = 3;
    job.training.fsdp.use_orig_params = true;
    job.training.gradient_clipping = 1;
  });
  add("one rank", 1, DType::Float32, DType::BFloat16, prepare);
  add("NO_SHARD on the host", 3, DType::Float32, DType::BFloat16, [prepare](Job& job) {
    prepare(job);
    job.training.fsdp.replicate = 3;
    job.training.fsdp.cpu_offload = true;
  });
}

// Norms of what is large enough that several blocks of a kernel share it.
void add_norms(std::vector<Case>& all) {
  for (int stage = 0; stage <= 3; ++stage) {
    Job job = lowered::job(stage, 2);
    job.training.seq = 8;
    job.training.gradient_clipping = 1;
    job.hardware.emplace();
    job.hardware->architecture = "sm_90";
    job.hardware->multiprocessors = 132;
    all.push_back({dsplan::formatted("norms over blocks, stage {}", stage), kWide, job, false, false, {}, true});
  }
}

// Weights that are packed as they come to the device, in both ways to keep their scales.
void add_packed(std::vector<Case>& all) {
  for (const bool nested : {true, false}) {
    Job job = small(-1, 1);
    lowered::set_dtype(job, DType::Float32);
    job.training.attention = Attention::Math;  // Heads are grouped.
    Case one{nested ? "packed weights, scales packed, too" : "packed weights", kLlama, job};
    one.must_run = true;
    one.request.quantization = {"nf4", option("--quantization")};
    one.request.double_quant = {nested, option("--double-quant")};
    one.request.lora = {"r=4,targets=q_proj+v_proj,dtype=fp32", option("--lora")};
    all.push_back(std::move(one));
  }
}

// torchtitan's own code: tables that are computed, tokens that are counted, a barrier.
void add_torchtitan(std::vector<Case>& all) {
  for (const Version version : {Version{0, 1, 0}, Version{0, 2, 1}, kWitnessTorchtitan}) {
    for (const std::int64_t ranks : {1, 3}) {
      Job job = ranks == 1 ? small(-1, 1) : lowered::sharded_mixed(ranks);
      job.training.fsdp.wrap = "ends";
      job.training.fsdp.sync_every = true;
      job.training.grad_accum = 2;
      job.training.gradient_clipping = 1;
      job.training.model_code = ModelCode::Torchtitan;
      job.training.torchtitan = version;
      job.training.loss = Loss::Summed;
      job.training.loop = LoopKind::Torchtitan;
      Case one{dsplan::formatted("torchtitan {} on {}", version.text(), ranks), kLlama, job};
      one.must_run = true;
      one.request.model_code = {"torchtitan", option("--model-code")};
      all.push_back(std::move(one));
    }
  }
}

// As every job of lowered.h.
void add_variants(std::vector<Case>& all) {
  for (int stage = -1; stage <= 3; ++stage) {
    for (const lowered::Case& one : lowered::variants(stage, 2, 2)) {
      if (one.job.training.checkpoint.modules.empty()) all.push_back({one.name, kGpt2, one.job, false});
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](int stage, bool tape, auto change) {
    Job job = small(stage, 2);
    change(job);
    all.push_back({dsplan::formatted("stage {}, case {}", stage, all.size()), kGpt2, job, tape});
  };
  for (int stage = -1; stage <= 3; ++stage) {
    add(stage, true, [](Job&) {});
    add(stage, true, [](Job& job) { job.training.grad_accum = 2; });
    add(stage, true, [](Job& job) {
      lowered::set_dtype(job, DType::Float32);
      job.training.attention = Attention::MemoryEfficient;
    });
    add(stage, false, [](Job& job) { lowered::set_dtype(job, DType::Float16); });
    if (stage < 1) continue;
    add(stage, false, [](Job& job) {
      job.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
      job.training.grad_accum = 2;
    });
  }
  add(3, false, [](Job& job) {
    job.training.zero.offload_optimizer.device = job.training.zero.offload_param.device = OffloadDevice::Cpu;
  });
  add(-1, false, [](Job& job) { job.training.ddp.find_unused_parameters = true; });
  add(-1, true, [](Job& job) {
    job.training.ddp.broadcast_buffers = false;
    job.training.ddp.bucket_cap_mb = 1;
  });
  add(-1, true, [](Job& job) { job.training.ddp.gradient_as_bucket_view = true; });
  add(-1, true, [](Job& job) {
    job.training.ddp.gradient_as_bucket_view = true;
    job.training.grad_accum = 2;
  });
  add(-1, false, [](Job& job) {
    job.training.ddp.gradient_as_bucket_view = true;
    job.training.zero_grad_to_none = false;
  });
  add(-1, false, [](Job& job) { job.training.ddp.static_graph = true; });
  add(-1, true, [](Job& job) { job.training.ddp.zero_redundancy = true; });
  add(-1, false, [](Job& job) {
    job.training.ddp.static_graph = job.training.ddp.gradient_as_bucket_view = true;
    job.training.ddp.find_unused_parameters = true;
    job.training.ddp.comm_hook = DType::Float16;
  });
  add_checkpoints(all);
  add_files(all);
  add_ways_of_gathering(all);
  add_others(all);
  add_sharded(all);
  add_prepared_by_axolotl(all);
  add_flat(all);
  add_norms(all);
  add_packed(all);
  add_torchtitan(all);
  add_variants(all);
  return all;
}

// The literal that begins at or behind `at` with nothing but spaces before it; empty where something else does.
std::string literal_at(const std::string& text, std::size_t at) {
  at = text.find_first_not_of(" \n", at);
  if (at == std::string::npos || text[at] != '"') return {};
  return text.substr(at + 1, text.find('"', at + 1) - at - 1);
}

// What the sources of the lowering name buffers by: the literal behind a role, and where a helper adds the role, all
// literals among its arguments outside of braces.
void labels_in(const std::string& text, std::set<std::string>& labels) {
  for (const std::string before : {"Role::", ".label ="}) {
    for (std::size_t at = text.find(before); at != std::string::npos; at = text.find(before, at + 1)) {
      const std::size_t comma =
          text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", at + before.size());
      const bool role = before == "Role::";
      if (role && (comma == std::string::npos || text[comma] != ',')) continue;
      const std::string label = literal_at(text, role ? comma + 1 : at + before.size());
      if (!label.empty()) labels.insert(label);
    }
  }
  for (const char* call :
       {"allocate(", "make_on_host(", "make_file(", " like(", " one(", "stash(", " make(", "scalars("}) {
    for (std::size_t at = text.find(call); at != std::string::npos; at = text.find(call, at + 1)) {
      int depth = 0;
      int braces = 0;
      for (std::size_t i = text.find('(', at); i < text.size(); ++i) {
        if (text[i] == '(') ++depth;
        if (text[i] == '{') ++braces;
        if (text[i] == '}') --braces;
        if (text[i] == ')' && --depth == 0) break;
        if (text[i] != '"') continue;
        const std::size_t end = text.find('"', i + 1);
        if (braces == 0 && end > i + 1) labels.insert(text.substr(i + 1, end - i - 1));
        i = end;
      }
    }
  }
}

std::set<std::string> labels_of_sources() {
  std::set<std::string> labels;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(test_paths::source_dir() + "/src/planner/lower")) {
    std::ifstream file(entry.path());
    std::string code;
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("//")) code += line + '\n';
    }
    labels_in(code, labels);
  }
  return labels;
}

}  // namespace

// As a run of this very schedule would measure it: what was asked for, never what the formulas say.
RankFigures carried_out(const Executable& plan) {
  const Schedule& schedule = plan.schedule;
  MemoryMeter meter(schedule);
  HostMeter host(schedule);
  TrafficMeter traffic;
  replay(schedule, meter, host, traffic);
  Prediction measured;
  measured.phases = meter.phases();
  measured.persistent.by_role = meter.by_role();
  measured.communication = traffic.rows(schedule.dp, schedule.dp_inside, schedule.tp);
  measured.host = host_of(host, NodeMemory{}, Job{});
  return figures_of(measured).figures;
}

// Whether `dsplan compare` is red when a run of the one is held against the prediction of the other.
bool compare_is_red(const RankFigures& predicted, const RankFigures& measured) {
  Receipt receipt;
  receipt.level = Receipt::Level::Threads;
  receipt.device = Receipt::Device::Host;
  receipt.complete = true;
  receipt.outcome = Receipt::Outcome::Ran;
  receipt.inputs.digest = std::string(64, '0');
  receipt.ranks = {measured};
  PredictedRank known;
  known.figures = predicted;
  known.verdict = Verdict::Fits;
  const ReceiptComparison result = compare(receipt, {known}, {});
  const std::vector<ComparedRow>& rows = result.ranks.front().rows;
  return std::any_of(rows.begin(), rows.end(),
                     [](const ComparedRow& row) { return row.state == ComparedRow::State::Differs; });
}

bool is_lowered(const Case& one, const ModelSpec& model) {
  const std::optional<std::string> cannot = unsupported(model, one.job);
  CHECK_MESSAGE((!cannot || !one.must_run), one.name, ": ", cannot.value_or(""));
  return !cannot;
}

void add_witnesses(const std::string& change, const std::set<std::string>& witnessed, std::set<std::string>& who) {
  if (witnessed.contains(change)) who.insert("PyTorch's steps");
  // What a table is computed by, at init on the device: model_init_test has PyTorch's own events of it.
  if (change.find(" table of positions (") != std::string::npos) who.insert("PyTorch's events");
}

// Rules that no job of this test has, and who holds them.
std::set<std::string> noticed_elsewhere() {
  std::set<std::string> labels;
  // PyTorch, byte for byte.
  labels.insert("gradient of an output");
  // Of gpt_bigcode's init: the dry device's receipts hold starcoder's.
  labels.insert("ones of a triangle");
  // Of families that are made on the device: model_init_test holds them against what PyTorch's own events said.
  labels.insert("table of positions");
  // Of DoRA's magnitudes at init: model_init_test has them.
  labels.insert("weight with its factors");
  labels.insert("factor in fp32");
  // Of dinov2's init: the dry device's receipts hold it.
  labels.insert("what a parameter is a multiple of");
  // Of parameters that no loss reaches, under ZeRO-0: deepspeed_witness_test has z0-llava-text.
  labels.insert("zero gradient");
  // Of activations on the host: activation_offloading_test and the dry device's receipts hold them.
  labels.insert({"activation brought back", "contiguous copy", "pinned copy of an activation"});
  // Of LLaMA-Factory v1's first norm under fully_shard: its receipts hold it (launchers_test).
  labels.insert("gradient of zeros");
  return labels;
}

TEST_CASE("a change of any size rule of the lowering is noticed") {
  // By rule and direction, who noticed.
  std::map<std::string, std::set<std::string>> noticed;
  std::set<std::string> labels;
  std::map<std::string, int> green;  // Changes that `compare` does not see.
  std::size_t changes = 0;
  for (const Case& one : cases()) {
    const ModelSpec model = model_of(lowered::inlined("model", one.model), one.request);
    if (!is_lowered(one, model)) continue;
    const Shapes shapes = build_shapes(model, one.job);
    const std::int64_t rank = one.first ? 0 : one.job.parallelism.dp - 1;
    const Executable plan = lower_to_execute(model, one.job, shapes, rank, one.job.training.steps());
    const Judges judges = judges_of(model, one.job, one.has_tape, rank);
    CAPTURE(one.name);
    const RankFigures predicted = carried_out(plan);
    CHECK_FALSE(compare_is_red(predicted, predicted));
    for (const Buffer& buffer : plan.schedule.buffers) labels.insert({buffer.label, buffer.source});
    // Who is alarmed already cannot notice: the figures worked out by hand and the formulas of traffic are for a part
    // of all jobs. Everybody else has to agree with every plan.
    const std::set<std::string> before = judges.of(plan);
    for (const std::string& judge : before) CHECK_MESSAGE((judge == "by hand" || judge == "traffic"), judge);
    for (const auto& [rule, buffers] : rules_of(plan)) {
      for (const std::int64_t by : {1, -1}) {
        const bool empties = std::any_of(buffers.begin(), buffers.end(), [&](BufferId id) {
          const Buffer& buffer = plan.schedule.buffers[id];
          return by < 0 && buffer.size <= Bytes(bytes_per_element(buffer.dtype));
        });
        if (empties) continue;
        ++changes;
        std::set<std::string>& who = noticed[change_of(rule, by)];
        const Executable other = changed(plan, buffers, by);
        for (const std::string& judge : judges.of(other)) {
          if (!before.contains(judge)) who.insert(judge);
        }
        if (!compare_is_red(predicted, carried_out(other))) ++green[change_of(rule, by)];
      }
    }
  }
  const std::set<std::string> witnessed = noticed_by_witness();
  std::size_t missed = 0;
  std::map<std::string, int> score;
  for (auto& [change, who] : noticed) {
    add_witnesses(change, witnessed, who);
    for (const std::string& judge : who) ++score[judge];
    if (!who.empty()) continue;
    ++missed;
    MESSAGE(change);
  }
  for (const auto& [judge, count] : score) MESSAGE(judge << " notices " << count);
  MESSAGE(changes << " changes of " << noticed.size() << " rules and directions; " << missed << " unnoticed");
  CHECK(missed == 0);
  for (const auto& [change, times] : green) CHECK_MESSAGE(times == 0, change);
  // Of op-graphs, which no job has: deepspeed_checkpoint_test and op_graph_witness_test hold them against PyTorch.
  labels.insert({"tensor", "seed of backward"});
  // Of reentrant checkpoints over layers with an output that nobody reads: memory_witness_test holds bloom's against
  labels.merge(noticed_elsewhere());
  std::string never;
  for (const std::string& label : labels_of_sources()) never += labels.contains(label) ? "" : label + "; ";
  CHECK(never == "");
}
