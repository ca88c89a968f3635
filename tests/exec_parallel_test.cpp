// Tensor parallelism carried out: ranks that share layers train as one rank that has them whole.
#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <thread>

#include "exec/runner/flat.h"
#include "exec/runner/parallel.h"
#include "running.h"

using namespace dsplan;
using running::largest_gap;

namespace {

// A vocabulary that four ranks divide without padding: words behind its end would take part in the loss.
ModelSpec gpt2(double attention, double residual) {
  return running::model(dsplan::formatted(R"({{"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4,
    "n_positions": 32, "vocab_size": 512, "attn_pdrop": {}, "resid_pdrop": {}, "embd_pdrop": {}}})",
                                          attention, residual, residual)
                            .c_str());
}
ModelSpec llama(int heads_of_keys) {
  return running::model(dsplan::formatted(R"({{"model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": {}, "vocab_size": 512}})",
                                          heads_of_keys)
                            .c_str());
}

Job job_of(const ModelSpec& model, int stage, std::int64_t dp, std::int64_t tp) {
  Job job = running::fp32_job(model, stage, dp);
  job.parallelism.tp = tp;
  job.parallelism.world = dp * tp;
  return job;
}

std::vector<double> losses_of(const ModelSpec& model, const Job& job) { return running::losses_of(model, job, 3); }

using Gradients = std::map<ParameterId, std::vector<double>>;

// Of the first micro-batch of data-parallel rank 0, each element where it stands in the whole parameter.
Gradients gradients_of(const ModelSpec& model, const Job& job) {
  Gradients all;
  std::mutex mutex;
  running::Options options;
  for (std::int64_t rank = 0; rank < job.parallelism.world; ++rank) {
    exec::Observer& own = options.observers.emplace_back();
    if (rank >= job.parallelism.tp) continue;
    own.gradient = [&, rank, seen = std::set<ParameterId>()](ParameterId id, const dsplan_tensor& tensor) mutable {
      if (!seen.insert(id).second) return;
      const std::lock_guard lock(mutex);
      const Parameter& parameter = model.parameter_at(id);
      std::vector<double>& whole = all[id];
      whole.resize(static_cast<std::size_t>(parameter.shape.elements().value()));
      const auto* from = static_cast<const std::byte*>(tensor.data);
      for (const exec::Cut& cut : exec::part_of(model, parameter, job.parallelism.tp, rank)) {
        for (std::int64_t i = 0; i < cut.count; ++i, from += 4) {
          whole.at(static_cast<std::size_t>(cut.first + i)) = exec::decode_float(from, DType::Float32);
        }
      }
    };
  }
  const exec::RunResult result = running::run(model, job, options);
  CHECK_MESSAGE(result.message == "", result.message);
  return all;
}

double distance(const Gradients& a, const Gradients& b) {
  REQUIRE(a.size() == b.size());
  double error = 0;
  double norm = 0;
  for (const auto& [id, values] : a) {
    const std::vector<double>& other = b.at(id);
    REQUIRE(values.size() == other.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      error += (values[i] - other[i]) * (values[i] - other[i]);
      norm += other[i] * other[i];
    }
  }
  return std::sqrt(error / norm);
}

}  // namespace

TEST_CASE("ranks that share layers have the losses and gradients of one that has them whole") {
  for (const ModelSpec& model : {gpt2(0, 0.1), llama(4)}) {
    for (const std::int64_t dp : {1, 2}) {
      for (const int stage : {-1, 0, 1, 2, 3}) {
        const std::vector<double> whole = losses_of(model, job_of(model, stage, dp, 1));
        for (const std::int64_t tp : {2, 4}) {
          if (dp == 2 && tp == 4 && stage < 3) continue;
          CAPTURE(model.family);
          CAPTURE(dp);
          CAPTURE(stage);
          CAPTURE(tp);
          CHECK(largest_gap(losses_of(model, job_of(model, stage, dp, tp)), whole) < 1e-6);
        }
      }
    }
    for (const std::int64_t tp : {2, 4}) {
      CAPTURE(tp);
      const Gradients cut = gradients_of(model, job_of(model, -1, 1, tp));
      CHECK(distance(cut, gradients_of(model, job_of(model, -1, 1, 1))) < 1e-6);
    }
  }
}

TEST_CASE("accumulation, clipping, grouped heads, checkpoints and 16 bit share layers too") {
  const auto compared = [](const ModelSpec& model, auto change, double limit) {
    for (const int stage : {-1, 0, 1, 2, 3}) {
      Job whole = job_of(model, stage, 2, 1);
      Job cut = job_of(model, stage, 2, 2);
      change(whole);
      change(cut);
      CAPTURE(stage);
      CHECK(largest_gap(losses_of(model, cut), losses_of(model, whole)) < limit);
    }
  };
  compared(
      llama(2), [](Job& job) { job.training.grad_accum = 2; }, 1e-6);
  compared(
      gpt2(0, 0.1), [](Job& job) { job.training.gradient_clipping = 0.05; }, 1e-6);
  compared(
      gpt2(0, 0.1), [](Job& job) { lowered::set_dtype(job, DType::BFloat16); }, 5e-3);
  for (const CheckpointKind kind :
       {CheckpointKind::NonReentrant, CheckpointKind::Reentrant, CheckpointKind::DeepSpeed}) {
    compared(
        gpt2(0, 0.1),
        [&](Job& job) {
          job.training.checkpoint.groups = {{0, 0, kind, true}, {1, 1, kind, true}};
        },
        1e-6);
  }
}

TEST_CASE("a padded vocabulary trains, and words behind its end are nobody's target") {
  const ModelSpec model = running::model(running::kLlama);  // 97 words, padded to 256.
  const std::vector<double> losses = losses_of(model, job_of(model, 2, 1, 2));
  CHECK(std::abs(losses.front() - std::log(256.0)) < 0.3);
  CHECK(losses.back() < losses.front());
}

TEST_CASE("clipping counts what all ranks have alike once") {
  const ModelSpec model = gpt2(0, 0);
  for (const int stage : {-1, 0, 1, 2, 3}) {
    for (const bool away : {false, true}) {
      if (away && stage < 1) continue;
      Job cut = job_of(model, stage, 1, 2);
      Job whole = job_of(model, stage, 1, 1);
      for (Job* job : {&cut, &whole}) {
        job->training.gradient_clipping = 0.05;
        if (away) job->training.zero.offload_optimizer.device = OffloadDevice::Cpu;
      }
      Job free = whole;
      free.training.gradient_clipping = 0;
      CAPTURE(stage);
      CAPTURE(away);
      const std::vector<double> clipped = losses_of(model, whole);
      CHECK(largest_gap(losses_of(model, cut), clipped) < 1e-6);
      CHECK(largest_gap(losses_of(model, free), clipped) > 1e-7);  // It matters.
    }
  }
}

namespace {

// Keys of what draws numbers, by thread and operator: one thread for each rank.
std::mutex key_mutex;
std::map<std::thread::id, std::map<Op, std::set<std::uint64_t>>> keys;

void note_keys(const dsplan_launch& what) {
  const auto op = static_cast<Op>(what.op);
  if (static_cast<Body>(what.body) == Body::Forward && (op == Op::Dropout || op == Op::Attention)) {
    const std::lock_guard lock(key_mutex);
    keys[std::this_thread::get_id()][op].insert(what.random.key);
  }
  exec::host_kernels(what);
}

}  // namespace

TEST_CASE("masks are drawn by rank where layers are cut, and alike where they are whole") {
  const ModelSpec model = gpt2(0.1, 0.1);
  keys.clear();
  exec::HostOptions machine;
  machine.kernels = note_keys;
  const exec::HostBackend host(machine);
  running::Options options;
  options.backend = &host.table();
  const exec::RunResult result = running::run(model, job_of(model, -1, 1, 4), options);
  CHECK_MESSAGE(result.message == "", result.message);
  REQUIRE(keys.size() == 4);
  std::set<std::uint64_t> of_attention;
  for (const auto& [rank, by_op] : keys) {
    CHECK(by_op.at(Op::Dropout) == keys.begin()->second.at(Op::Dropout));
    CHECK(by_op.at(Op::Dropout).size() == 2 * (1 + 2 * 2));  // Two micro-batches: embedding, and twice in each layer.
    CHECK(by_op.at(Op::Attention).size() == 2 * 2);
    of_attention.insert(by_op.at(Op::Attention).begin(), by_op.at(Op::Attention).end());
  }
  CHECK(of_attention.size() == 4 * 2 * 2);
}

TEST_CASE("what DeepSpeed's checkpoints keep elsewhere comes back as it was") {
  for (const ModelSpec& model : {gpt2(0, 0.1), llama(4)}) {
    for (const std::int64_t tp : {1, 2, 4}) {
      const auto with = [&](auto change) {
        Job job = job_of(model, 2, 1, tp);
        for (const std::int32_t layer : {0, 1}) {
          job.training.checkpoint.groups.push_back({layer, layer, CheckpointKind::DeepSpeed, true});
        }
        change(job.training.checkpoint.deepspeed);
        return losses_of(model, job);
      };
      const std::vector<double> plain = with([](DeepSpeedCheckpointing&) {});
      CAPTURE(model.family);
      CAPTURE(tp);
      CHECK(with([](DeepSpeedCheckpointing& how) { how.partition = true; }) == plain);
      CHECK(with([](DeepSpeedCheckpointing& how) { how.cpu = true; }) == plain);
      CHECK(with([](DeepSpeedCheckpointing& how) { how.partition = how.cpu = true; }) == plain);
      CHECK(with([](DeepSpeedCheckpointing& how) {
              how.partition = how.contiguous = true;
              how.number_checkpoints = 2;
            }) == plain);
    }
  }
}

TEST_CASE("ranks that would share a key-value head are refused") {
  const ModelSpec model = llama(2);
  try {
    (void)executables_of(model, job_of(model, 1, 1, 4), 2, "test");
    FAIL("not refused");
  } catch (const Refusal& refusal) {
    CHECK(refusal.diagnostics().front().message.find("key-value heads") != std::string::npos);
  }
}
