// The libraries' workspaces: how large, where in the schedule, and the formula beside them.
#include <doctest/doctest.h>

#include <algorithm>

#include "core/audit.h"
#include "lowered.h"
#include "planner/libraries/library_memory.h"
#include "planner/predict/footprint.h"
#include "planner/predict/predict.h"
#include "sim/memory.h"

using namespace dsplan;

namespace {

Job on(Job job, const std::string& architecture, const char* torch = kTorchVersion) {
  job.hardware.emplace();
  job.hardware->architecture = architecture;
  job.training.torch = *Version::parse(torch);
  return job;
}

struct Placed {
  std::string label;
  std::int64_t bytes;
  Moment after;      // The last mark before it.
  std::string work;  // What runs right behind it.
};

std::vector<Placed> placed(const Schedule& schedule) {
  std::vector<Placed> found;
  Moment last = Moment::StretchBegins;
  bool next = false;
  for (const Event& event : schedule.events) {
    if (const auto* mark = std::get_if<Mark>(&event)) last = mark->moment;
    if (const auto* made = std::get_if<Allocate>(&event)) {
      const Buffer& buffer = schedule.buffers[made->buffer];
      if (buffer.role == Role::Workspace) found.push_back({buffer.label, buffer.size.value(), last, ""});
      next = next || buffer.role == Role::Workspace;
    }
    if (const auto* work = std::get_if<Compute>(&event); work != nullptr && next) {
      if (std::string(work->work) == "set workspace") continue;
      for (Placed& one : found) {
        if (one.work.empty()) one.work = work->work;
      }
      next = false;
    }
  }
  return found;
}

Job checkpointed(Job job, std::int32_t layers) {
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    job.training.checkpoint.groups.push_back({layer, layer});
  }
  return job;
}

}  // namespace

TEST_CASE("sizes by compute capability and version") {
  struct Row {
    const char* architecture;
    const char* torch;
    std::int64_t cublas;
    std::int64_t lt;
    bool per_call;
  };
  const Row rows[] = {
      {"sm_90", "2.11.0", 33'554'432, 1'048'576, false}, {"sm_80", "2.11.0", 8'519'680, 1'048'576, false},
      {"sm_70", "2.11.0", 8'519'680, 1'048'576, false},  {"sm_100", "2.11.0", 8'519'680, 1'048'576, false},
      {"sm_103", "2.12.0", 33'554'432, 0, false},        {"sm_120", "2.12.0", 33'554'432, 0, false},
      {"sm_89", "2.12.0", 8'519'680, 0, false},          {"sm_90", "2.9.0", 33'554'432, 1'048'576, false},
      {"sm_90", "2.8.0", 33'554'432, 1'048'576, true},   {"sm_80", "2.6.0", 8'519'680, 1'048'576, true},
  };
  for (const Row& row : rows) {
    CAPTURE(row.architecture);
    CAPTURE(row.torch);
    const auto sizes = library_workspaces(on(lowered::job(-1, 1), row.architecture, row.torch));
    REQUIRE(sizes);
    CHECK(sizes->cublas.value() == row.cublas);
    CHECK(sizes->cublaslt.value() == row.lt);
    CHECK(sizes->lt_per_call == row.per_call);
  }
  CHECK_FALSE(library_workspaces(lowered::job(-1, 1)));
  CHECK_FALSE(library_workspaces(on(lowered::job(-1, 1), "gfx942")));
}

TEST_CASE("workspaces come at the first product of forward and of backward") {
  const ModelSpec llama = lowered::bundled("tiny-llama");
  const std::vector<Placed> plain = placed(lowered::all_ranks(llama, on(lowered::job(-1, 1), "sm_90"))[0]);
  REQUIRE(plain.size() == 2);
  CHECK(plain[0].after == Moment::ForwardBegins);
  CHECK(plain[0].work == name(Op::Matmul));  // The rotary angles, before any weight.
  CHECK(plain[1].after == Moment::BackwardBegins);
  CHECK(plain[1].work == name(Op::Linear));  // The head.

  const ModelSpec gpt2 = lowered::bundled("tiny-gpt2");
  const Job job = on(lowered::job(-1, 1), "sm_80");
  std::vector<Placed> biased = placed(lowered::all_ranks(gpt2, job)[0]);
  REQUIRE(biased.size() == 3);
  CHECK(biased[1].label == "cuBLASLt workspace");
  CHECK(biased[1].after == Moment::ForwardBegins);
  CHECK(biased[2].label == "cuBLAS workspace");
  // Where each call has a workspace of its own, the first one is there before the handle.
  biased = placed(lowered::all_ranks(gpt2, on(lowered::job(-1, 1), "sm_80", "2.8.0"))[0]);
  REQUIRE(biased.size() > 2);
  CHECK(biased[0].label == "cuBLASLt workspace");
  CHECK(biased[1].label == "cuBLAS workspace");
  // Recomputation multiplies with a bias on autograd's thread.
  biased = placed(lowered::all_ranks(gpt2, checkpointed(job, static_cast<std::int32_t>(gpt2.dims.layers)))[0]);
  REQUIRE(biased.size() == 4);
  CHECK(biased[3].label == "cuBLASLt workspace");
  CHECK(biased[3].after == Moment::BackwardBegins);
  // Up to 2.8 each call has its own, which dies with it.
  const Schedule older = lowered::all_ranks(gpt2, on(lowered::job(-1, 1), "sm_80", "2.8.0"))[0];
  CHECK(placed(older).size() == static_cast<std::size_t>(2 + 2 * 4 * gpt2.dims.layers));
  CHECK(std::count_if(older.survivors.begin(), older.survivors.end(),
                      [&](BufferId id) { return older.buffers[id].role == Role::Workspace; }) == 2);
  CHECK(placed(lowered::all_ranks(gpt2, lowered::job(-1, 1))[0]).empty());
}

TEST_CASE("schedules with workspaces are legal, and the formula agrees") {
  const ModelSpec models[] = {lowered::bundled("tiny-llama"), lowered::bundled("tiny-gpt2"),
                              lowered::inlined("tiny-qwen2", R"({"model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97})")};
  for (const ModelSpec& model : models) {
    for (const int stage : {-1, 0, 1, 2, 3}) {
      for (const bool recompute : {false, true}) {
        for (const char* torch : {"2.8.0", "2.11.0", "2.12.0"}) {
          CAPTURE(model.name);
          CAPTURE(stage);
          CAPTURE(recompute);
          CAPTURE(torch);
          Job job = on(lowered::job(stage, 2), "sm_90", torch);
          if (recompute) job = checkpointed(job, static_cast<std::int32_t>(model.dims.layers));
          for (const Schedule& schedule : lowered::all_ranks(model, job)) {
            const std::vector<Finding> findings = audit(schedule);
            CHECK_MESSAGE(findings.empty(), (findings.empty() ? "" : findings.front().text));
            MemoryMeter meter(schedule);
            replay(schedule, meter);
            CHECK(meter.by_role()[Role::Workspace] == footprint(model, job).persistent[Role::Workspace]);
          }
        }
      }
    }
  }
}

TEST_CASE("checkpoints around modules multiply with a bias on autograd's thread, or stop before it") {
  const ModelSpec gpt2 = lowered::bundled("tiny-gpt2");
  struct Row {
    const char* modules;
    CheckpointKind kind;
    std::size_t workspaces;  // Of cuBLAS two; of cuBLASLt one or two.
  };
  for (const Row& row :
       {Row{"mlp", CheckpointKind::NonReentrant, 4}, Row{"attn", CheckpointKind::NonReentrant, 4},
        Row{"ln_1", CheckpointKind::NonReentrant, 3}, Row{"c_fc", CheckpointKind::NonReentrant, 3},
        Row{"c_fc", CheckpointKind::Reentrant, 4}, Row{"core_attn", CheckpointKind::NonReentrant, 3}}) {
    CAPTURE(row.modules);
    Job job = on(lowered::job(-1, 1), "sm_90");
    job.training.checkpoint.kind = row.kind;
    job.training.checkpoint.modules = {row.modules};
    const Schedule schedule = lowered::all_ranks(gpt2, job)[0];
    CHECK(placed(schedule).size() == row.workspaces);
    MemoryMeter meter(schedule);
    replay(schedule, meter);
    CHECK(meter.by_role()[Role::Workspace] == footprint(gpt2, job).persistent[Role::Workspace]);
  }
}

TEST_CASE("workspaces move the fingerprint by their sizes, not by the device's name") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const Job job = lowered::job(-1, 1);
  const std::string hopper = fingerprint(model, on(job, "sm_90"));
  CHECK(hopper != fingerprint(model, job));
  CHECK(hopper != fingerprint(model, on(job, "sm_80")));
  CHECK(fingerprint(model, on(job, "sm_80")) == fingerprint(model, on(job, "sm_89")));
  // The memory-efficient kernel has other blocks.
  Job efficient = job;
  efficient.training.attention = Attention::MemoryEfficient;
  CHECK(fingerprint(model, on(efficient, "sm_80")) != fingerprint(model, on(efficient, "sm_89")));
}

// bloom-560m's events: under autocast the weights of attention are in the query's dtype when they meet the values.
TEST_CASE("bloom under autocast brings attention's weights back to the query's dtype") {
  const ModelSpec model = lowered::inlined("bloom", R"({"model_type": "bloom", "architectures": ["BloomForCausalLM"],
    "hidden_size": 48, "n_layer": 1, "n_head": 4, "vocab_size": 97, "attention_dropout": 0.1})");
  Job job = lowered::job(-1, 1);
  lowered::set_dtype(job, DType::Float32);
  job.training.autocast = DType::BFloat16;
  job.training.attention = Attention::Eager;
  const Schedule schedule = lower(model, job, build_shapes(model, job), 0);
  const auto count = [&](std::string_view label, Bytes size) {
    return std::count_if(schedule.buffers.begin(), schedule.buffers.end(), [&](const Buffer& buffer) {
      return buffer.role == Role::Activations && buffer.label == label && buffer.size == size;
    });
  };
  constexpr Bytes kScores(2 * 4 * 16 * 16 * 2);
  CHECK(count("softmax", kScores * 2) > 0);
  // What is dropped out is as narrow as the values that it will meet.
  CHECK(count("dropout", kScores) > 0);
  CHECK(count("dropout", kScores * 2) == 0);
}
