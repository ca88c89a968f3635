// fp16: the loss scale moves by the rules of whoever moves it; a step whose gradients are not finite changes nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "exec/runner/loss_scale.h"
#include "exec/runner/runner.h"
#include "io/deepspeed.h"
#include "running.h"

using namespace dsplan;

namespace {

using Kind = LossScaling::Kind;

// The scale after each step; '!' is an overflow.
std::vector<double> scales(LossScaling rules, std::string_view steps) {
  exec::LossScale scale(rules);
  std::vector<double> seen;
  for (const char step : steps) {
    CHECK(scale.step(step == '!'));
    seen.push_back(scale.now());
  }
  return seen;
}

Job fp16_job(int stage, std::int64_t ranks) {
  Job job = lowered::job(stage, ranks);
  lowered::set_dtype(job, DType::Float16);
  return job;
}

std::uint64_t mixed(std::uint64_t hash, std::byte byte) {
  return (hash ^ static_cast<std::uint64_t>(byte)) * 1099511628211ULL;
}

bool is_state(const Buffer& buffer) { return buffer.role == Role::Parameters || buffer.role == Role::Optimizer; }

// What a rank keeps for ever, weights and states of the optimizer, byte by byte.
std::uint64_t hash_of(const Schedule& schedule, const exec::RankMemory& memory) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const BufferId buffer : schedule.survivors) {
    const Buffer& what = schedule.buffers[buffer];
    if (!is_state(what) || !memory.holds(buffer)) continue;
    const std::byte* bytes = memory.pointer(buffer);
    for (std::int64_t i = 0; bytes != nullptr && i < what.size.value(); ++i) hash = mixed(hash, bytes[i]);
  }
  return hash;
}

struct Trained {
  exec::RunResult result;
  std::vector<bool> changed;  // By optimizer step, of rank 0.
};

Trained train(const ModelSpec& model, const Job& job, const LossScaling& scaling, std::int64_t steps) {
  const ExecutableRanks plan = executables_of(model, job, steps, "test");
  running::Options options;
  options.loss_scaling = scaling;
  options.learning_rate = 3e-3;
  Trained trained;
  options.observers.resize(plan.ranks.size());
  std::uint64_t before = 0;
  bool held_state = false;
  const Schedule& schedule = plan.ranks.front().schedule;
  options.observers.front().mark = [&](const Mark& mark, const exec::RankMemory& memory) {
    const bool holds = std::all_of(schedule.survivors.begin(), schedule.survivors.end(),
                                   [&](BufferId id) { return !is_state(schedule.buffers[id]) || memory.holds(id); });
    if (mark.moment == Moment::StepBegins) {
      before = hash_of(schedule, memory);
      held_state = holds;
    }
    // The first step makes its states.
    if (mark.moment == Moment::StepEnds) trained.changed.push_back(!held_state || hash_of(schedule, memory) != before);
  };
  trained.result = running::run(model, job, plan, options);
  return trained;
}

}  // namespace

TEST_CASE("DeepSpeed's and torch's scales move by their own rules") {
  const LossScaling zero{Kind::Dynamic, 1024, 3, 1, 2, false};
  // The first overflow only uses up the hysteresis, for good, until the scale grows.
  CHECK(scales(zero, "!!!....!") == std::vector<double>{1024, 512, 256, 256, 256, 256, 512, 512});
  CHECK(scales(zero, "....") == std::vector<double>{1024, 1024, 1024, 2048});
  LossScaling refilled = zero;
  refilled.refills = true;
  CHECK(scales(refilled, "!.!.!!") == std::vector<double>{1024, 1024, 1024, 1024, 1024, 512});
  LossScaling fp16 = zero;
  fp16.kind = Kind::Fused;
  CHECK(scales(fp16, "!!....!") == std::vector<double>{512, 256, 256, 256, 256, 512, 256});
  LossScaling torch = zero;
  torch.kind = Kind::GradScaler;
  CHECK(scales(torch, "...!...") == std::vector<double>{1024, 1024, 2048, 1024, 1024, 1024, 2048});
  LossScaling fixed = zero;
  fixed.kind = Kind::Static;
  CHECK(scales(fixed, "!!!....") == std::vector<double>(7, 1024));
  exec::LossScale last({Kind::Dynamic, 2, 1000, 1, 1, false});
  CHECK(last.step(true));
  CHECK(last.now() == 1);
  CHECK_FALSE(last.step(true));  // DeepSpeed raises here.
}

TEST_CASE("the scaling of a DeepSpeed JSON") {
  const auto input = [](const char* text, bool zero = true) { return read_loss_scaling(parse_json("ds", text), zero); };
  const auto read = [&](const char* text, bool zero = true) { return input(text, zero).scaling; };
  const LossScaling plain = read(R"({"fp16": {"enabled": true}})");
  CHECK(plain.kind == Kind::Dynamic);
  CHECK(plain.scale == 65'536);
  CHECK(plain.window == 1000);
  CHECK(plain.hysteresis == 2);
  CHECK(read("{}", false).kind == Kind::Fused);
  const LossScaling own = read(R"({"fp16": {"initial_scale_power": 8, "loss_scale_window": 10, "hysteresis": 1,
    "min_loss_scale": 4, "consecutive_hysteresis": true, "loss_scale": 0}})");
  CHECK(own.scale == 256);
  CHECK(own.window == 10);
  CHECK(own.least == 4);
  CHECK(own.hysteresis == 1);
  CHECK(own.refills);
  CHECK(read(R"({"fp16": {"loss_scale": 128}})").kind == Kind::Static);
  CHECK(read(R"({"fp16": {"loss_scale": "auto", "initial_scale_power": "auto"}})").scale == 65'536);
  CHECK_THROWS_AS((void)read(R"({"fp16": {"loss_scale_window": 0}})"), Refusal);
  // Which of them decide: those of a moving scale only where it moves, hysteresis only under ZeRO.
  using Keys = std::vector<std::string>;
  const char* moving = R"({"fp16": {"enabled": true, "initial_scale_power": 8, "hysteresis": 1}})";
  CHECK(input(moving).keys == Keys{"fp16.initial_scale_power", "fp16.hysteresis"});
  CHECK(input(moving, false).keys == Keys{"fp16.initial_scale_power"});
  CHECK(input(R"({"fp16": {"loss_scale": 128, "initial_scale_power": 8}})").keys == Keys{"fp16.loss_scale"});
}

TEST_CASE("fp16 follows fp32 under every stage") {
  for (const char* config : {running::kGpt2, running::kLlama}) {
    const ModelSpec model = running::model(config);
    running::Options options;
    options.steps = 4;
    options.learning_rate = 1e-3;
    Job wide = lowered::job(2, 2);
    lowered::set_dtype(wide, DType::Float32);
    wide.training.attention = model.family == "gpt2" ? Attention::MemoryEfficient : Attention::Math;
    const std::vector<double> expected = running::losses_by_step(running::run(model, wide, options), 1);
    for (const int stage : {0, 1, 2, 3}) {
      options.loss_scaling = {stage == 0 ? Kind::Fused : Kind::Dynamic, 1024};
      const exec::RunResult result = running::run(model, fp16_job(stage, 2), options);
      CAPTURE(stage);
      CHECK_MESSAGE(result.message == "", result.message);
      const std::vector<double> losses = running::losses_by_step(result, 1);
      REQUIRE(losses.size() == expected.size());
      for (std::size_t i = 0; i < losses.size(); ++i) CHECK(std::abs(losses[i] / expected[i] - 1) < 0.005);
      for (const exec::OptimizerStep::Taken& step : result.ranks.front().steps) CHECK_FALSE(step.skipped);
    }
  }
}

TEST_CASE("a step that overflows halves the scale and changes nothing else") {
  const ModelSpec model = running::model(running::kGpt2);
  for (const int stage : {-1, 0, 1, 2, 3}) {
    for (const bool away : {false, true}) {
      if (away && stage < 1) continue;
      Job job = fp16_job(stage, 2);
      LossScaling scaling{stage == 0 ? Kind::Fused : Kind::Dynamic, std::ldexp(1.0, 24), 3, 1, 1, false};
      if (stage < 0) {
        lowered::set_dtype(job, DType::Float32);
        job.training.autocast = DType::Float16;
        job.training.grad_scaler = true;
        scaling.kind = Kind::GradScaler;
      }
      if (away) job.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
      CAPTURE(stage);
      CAPTURE(away);
      const Trained trained = train(model, job, scaling, 20);
      CHECK_MESSAGE(trained.result.message == "", trained.result.message);
      const std::vector<exec::OptimizerStep::Taken>& steps = trained.result.ranks.front().steps;
      REQUIRE(steps.size() == 20);
      REQUIRE(trained.changed.size() == 20);
      CHECK(trained.result.ranks.back().steps.size() == 20);
      std::int64_t skipped = 0;
      std::int64_t grown = 0;
      for (std::size_t at = 0; at < steps.size(); ++at) {
        CHECK(steps[at].skipped == trained.result.ranks.back().steps[at].skipped);
        if (at > 0 || !steps[at].skipped) CHECK(trained.changed[at] == !steps[at].skipped);
        skipped += steps[at].skipped ? 1 : 0;
        if (at + 1 == steps.size()) break;
        grown += steps[at + 1].loss_scale > steps[at].loss_scale ? 1 : 0;
        if (steps[at].skipped) CHECK(steps[at + 1].loss_scale == steps[at].loss_scale / 2);
      }
      CHECK(steps.front().skipped);
      CHECK(skipped < 18);
      CHECK(grown > 0);
      const std::vector<double> losses = running::losses_by_step(trained.result, 1);
      CHECK(losses.back() < losses.front());
    }
  }
}

TEST_CASE("at the smallest scale the run ends as DeepSpeed ends it") {
  const ModelSpec model = running::model(running::kGpt2);
  const LossScaling scaling{Kind::Dynamic, std::ldexp(1.0, 30), 3, std::ldexp(1.0, 30), 1, false};
  const Trained trained = train(model, fp16_job(2, 2), scaling, 3);
  CHECK(trained.result.outcome == Receipt::Outcome::Error);
  CHECK_MESSAGE(trained.result.message.find("smallest scale") != std::string::npos, trained.result.message);
}
