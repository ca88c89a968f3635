// Runs for tests: small models, all ranks of a plan carried out on the host, and what came of it.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "exec/host/host_backend.h"
#include "exec/host/kernels.h"
#include "exec/run.h"
#include "lowered.h"
#include "planner/predict/allocation.h"
#include "planner/predict/predict.h"
#include "planner/predict/schedules.h"
#include "report/compare.h"
#include "run_binary.h"
#include "sim/arena.h"
#include "sim/memory.h"
#include "sim/placement.h"

namespace running {

using namespace dsplan;

inline const char* kGpt2 = R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_layer": 3,
  "n_head": 4, "n_positions": 32, "vocab_size": 97, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0})";
inline const char* kGpt2Dropout = R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32,
  "n_layer": 3, "n_head": 4, "n_positions": 32, "vocab_size": 97})";
inline const char* kLlama = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32,
  "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
  "vocab_size": 97, "rms_norm_eps": 1e-5})";

inline ModelSpec model(const char* config) { return lowered::inlined("tiny", config); }

struct Options {
  std::int64_t steps = 2;
  double clip = 0;
  double learning_rate = 1e-2;
  std::vector<exec::MemoryOptions> memory{exec::MemoryOptions{}};
  const dsplan_backend* backend = nullptr;
  std::vector<exec::Observer> observers;
  LossScaling loss_scaling;
  std::string directory;  // Of files; empty: one that is gone afterwards.
};

// Each rank's own, whose allocator hears of what the schedule says.
inline std::vector<exec::MemoryOptions> memory_of(const ExecutableRanks& plan, const Options& options) {
  std::vector<exec::MemoryOptions> memory;
  for (std::size_t at = 0; at < plan.ranks.size(); ++at) {
    memory.push_back(options.memory.size() == 1 ? options.memory.front() : options.memory[at]);
    memory.back().untold = plan.ranks[at].schedule.untold;
  }
  return memory;
}

inline exec::RunResult run(const ModelSpec& model, const Job& job, const ExecutableRanks& plan,
                           const Options& options = {}) {
  std::vector<exec::RankPlan> ranks;
  for (std::size_t at = 0; at < plan.ranks.size(); ++at) {
    const Executable& one = plan.ranks[at];
    ranks.push_back({model, plan.graphs(at), one.schedule, one.program, plan.tensor_rank(at)});
  }
  exec::RunOptions how;
  how.settings = exec::settings_of(job);
  how.settings.learning_rate = options.learning_rate;
  how.settings.seed = 7;
  how.settings.loss_scaling = options.loss_scaling;
  const test::Folder folder;
  exec::HostOptions machine;
  machine.kernels = exec::host_kernels;
  const exec::HostBackend host(machine);
  how.backend = options.backend != nullptr ? options.backend : &host.table();
  how.directory = options.directory.empty() ? folder.path() : options.directory;
  how.memory = memory_of(plan, options);
  how.observers = options.observers;
  return exec::run(ranks, how);
}

inline exec::RunResult run(const ModelSpec& model, const Job& job, const Options& options = {}) {
  return run(model, job, executables_of(model, job, options.steps, "test"), options);
}

// One block of exactly the planned height for each rank.
inline std::vector<exec::MemoryOptions> planned(const ExecutableRanks& plan) {
  std::vector<exec::MemoryOptions> memory;
  for (const Executable& one : plan.ranks) {
    PlannedArena arena = plan_arena(one.schedule, Bytes(0));
    exec::MemoryOptions& own = memory.emplace_back();
    own.kind = exec::AllocatorKind::Planned;
    own.height = arena.height;
    own.offsets = std::move(arena.offsets);
  }
  return memory;
}

// The mean loss of all ranks, micro-batch by micro-batch, averaged over each optimizer step.
inline std::vector<double> losses_by_step(const exec::RunResult& result, std::int64_t grad_accum) {
  std::vector<double> losses;
  const std::size_t count = result.ranks.front().losses.size();
  for (std::size_t at = 0; at < count; ++at) {
    double sum = 0;
    for (const exec::RankRun& rank : result.ranks) sum += rank.losses[at];
    if (at % static_cast<std::size_t>(grad_accum) == 0) losses.push_back(0);
    losses.back() += sum / static_cast<double>(result.ranks.size()) / static_cast<double>(grad_accum);
  }
  return losses;
}

// Of a run that ends well, in which those who share layers have the same losses.
inline std::vector<double> losses_of(const ModelSpec& model, const Job& job, const Options& options) {
  const exec::RunResult result = run(model, job, options);
  CHECK_MESSAGE(result.message == "", result.message);
  if (result.outcome != Receipt::Outcome::Ran) return {};
  const auto tp = static_cast<std::size_t>(job.parallelism.tp);
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    CHECK(result.ranks[rank].losses == result.ranks[rank / tp * tp].losses);
  }
  return losses_by_step(result, job.training.grad_accum);
}

inline std::vector<double> losses_of(const ModelSpec& model, const Job& job, std::int64_t steps) {
  Options options;
  options.steps = steps;
  return losses_of(model, job, options);
}

// Relative to `b`.
inline double largest_gap(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double gap = 0;
  for (std::size_t i = 0; i < a.size(); ++i) gap = std::max(gap, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return gap;
}

inline Job fp32_job(const ModelSpec& model, int stage, std::int64_t ranks) {
  Job job = lowered::job(stage, ranks);
  lowered::set_dtype(job, DType::Float32);
  job.training.attention = model.dims.heads == model.dims.kv_heads ? Attention::MemoryEfficient : Attention::Math;
  return job;
}

// The rows that differ, in words.
inline std::string differences(const ModelSpec& model, const Job& of, bool planned, const exec::RunResult& result,
                               std::int64_t& rows) {
  Receipt receipt;
  receipt.device = Receipt::Device::Host;
  receipt.level = Receipt::Level::Threads;
  receipt.complete = true;
  receipt.world = of.parallelism.world;
  receipt.inputs.digest = std::string(64, '0');  // Nobody asks to which part it belongs.
  std::vector<PredictedRank> predicted;
  for (const exec::RankRun& rank : result.ranks) {
    receipt.ranks.push_back(rank.figures);
    Job job = of;
    job.placement = planned ? PlacementKind::Planned : PlacementKind::Caching;
    predicted.push_back(figures_of(predict(model, job, rank.figures.rank)));
  }
  CompareTerms exactly;
  for (std::size_t kind = 0; kind < kRowKinds; ++kind) exactly.tolerances.by_kind[static_cast<RowKind>(kind)] = {};
  std::string text;
  for (const RankComparison& rank : compare(receipt, predicted, exactly).ranks) {
    for (const ComparedRow& row : rank.rows) {
      rows += row.state == ComparedRow::State::Equal ? 1 : 0;
      // Under a planned arena blocks are the arena's own: what the caching allocator would do is not measured.
      const bool blocks =
          row.kind == RowKind::Allocated || row.kind == RowKind::Active || row.kind == RowKind::Reserved;
      if (row.state != ComparedRow::State::Differs || (planned && blocks)) continue;
      text += dsplan::formatted("rank {} {}: predicted {}, measured {}\n", rank.rank, row.path,
                                row.predicted.value_or(-1), row.measured.value_or(-1));
    }
  }
  return text;
}

}  // namespace running
