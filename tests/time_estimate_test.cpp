// Estimates of steps: what must hold whatever the constants are.
#include <doctest/doctest.h>

#include <string>

#include "planner/predict/predict.h"
#include "timing.h"

namespace {

using namespace timing;

TEST_CASE("phases sum to the step, and the interval contains it") {
  for (const int stage : {-1, 0, 1, 2, 3}) {
    for (const std::int64_t world : {1, 8, 16}) {
      const StepTime time = on_a100("gpt2", stage, world).time();
      CAPTURE(stage);
      CAPTURE(world);
      REQUIRE(time.phases.size() == 3);
      double sum = 0;
      for (const PhaseTime& phase : time.phases) {
        sum += phase.total();
        CHECK(phase.hidden >= 0);
        CHECK(phase.recompute <= phase.compute);
      }
      CHECK(near(time.total, sum));
      CHECK(time.low < time.total);
      CHECK(time.high > time.total);
      CHECK(near(time.tokens_per_second, 4.0 * 1024 * static_cast<double>(world) / time.total));
      CHECK(time.mfu > 0);
      CHECK(time.mfu < 1);
      CHECK(near(time.mfu, time.model_flops / time.total / 312e12));
      CHECK_FALSE(time.calibrated);
      if (world == 1) CHECK(exposed(time) == 0);
    }
  }
}

TEST_CASE("operations of a step: six for each weight of a product and token, and causal attention") {
  const Setup setup = on_a100("llama-3.2-1b", -1, 1);
  const Dimensions& d = setup.model.dims;
  const double tokens = 4 * 1024;
  const double layer = static_cast<double>(d.hidden * (d.heads + d.kv_heads) * d.head_dim * 2 + 3 * d.hidden * d.ffn);
  const double weights = static_cast<double>(d.layers) * layer + static_cast<double>(d.hidden * d.vocab);
  // Two products over half of the pairs of positions; as much again for each gradient.
  const double attention = 3.0 * 2 * 1024 * static_cast<double>(d.heads * d.head_dim * d.layers) * tokens;
  const StepTime time = setup.time();
  CHECK(near(time.model_flops, 6 * weights * tokens + attention, 1e-6));
  CHECK(time.hardware_flops == time.model_flops);
}

TEST_CASE("a larger micro-batch and a longer sequence never take less time") {
  for (const int stage : {-1, 2, 3}) {
    Setup setup = on_a100("gpt2", stage, 8);
    setup.job.training.seq = 90;
    double last = 0;
    for (std::int64_t rows = 1; rows <= 24; ++rows) {
      setup.job.training.micro_batch = rows;
      const double seconds = setup.time().total;
      CHECK(seconds >= last);
      last = seconds;
    }
    last = 0;
    for (std::int64_t positions = 64; positions <= 1024; positions += 96) {
      setup.job.training.seq = positions;
      const double seconds = setup.time().total;
      CHECK(seconds >= last);
      last = seconds;
    }
  }
}

TEST_CASE("faster rates never make a step slower") {
  const auto check = [](Setup setup) {
    const double before = setup.time().total;
    const auto with = [&](auto change) {
      Setup faster = setup;
      change(faster.job);
      CHECK(faster.time().total <= before);
    };
    with([](Job& job) { job.hardware->link_gb_per_s *= 1.5; });
    with([](Job& job) { job.hardware->host_link_gb_per_s *= 1.5; });
    with([](Job& job) { job.hardware->memory_gb_per_s *= 1.5; });
    with([](Job& job) { job.hardware->tflops["bf16"] *= 1.5; });
    with([](Job& job) { job.cluster->node_network_gb_per_s *= 1.5; });
  };
  for (const int stage : {-1, 0, 1, 2, 3}) {
    Setup setup = on_a100("gpt2", stage, 16);
    check(setup);
    if (stage < 1) continue;
    setup.job.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
    check(setup);
    if (stage < 3) continue;
    setup.job.training.zero.offload_param.device = OffloadDevice::Cpu;
    check(setup);
  }
  check(on_a100("gpt2", 1, 16, 4));
}

TEST_CASE("recomputing every layer takes a fifth to two fifths more, and stopping early saves some of it") {
  Setup setup = on_a100("llama-3.2-1b", 2, 8);
  const StepTime none = setup.time();
  Setup full = setup;
  checkpoint_all(full);
  const StepTime again = full.time();
  CHECK(none.phases[1].recompute == 0);
  CHECK(again.phases[1].recompute > 0);
  const double ratio =
      (again.phases[0].compute + again.phases[1].compute) / (none.phases[0].compute + none.phases[1].compute);
  CHECK(ratio > 1.2);
  CHECK(ratio < 1.4);
  CHECK(again.model_flops == none.model_flops);
  CHECK(again.hardware_flops > 1.15 * none.hardware_flops);
  CHECK(again.hardware_flops < 4.0 / 3 * none.hardware_flops);

  Setup reentrant = setup;
  checkpoint_all(reentrant, CheckpointKind::Reentrant);
  CHECK(reentrant.time().phases[1].recompute > again.phases[1].recompute);
  Setup kept = full;
  for (CheckpointGroup& group : kept.job.training.checkpoint.groups) group.kept = {Op::Linear};
  CHECK(kept.time().phases[1].recompute < 0.8 * again.phases[1].recompute);
  Setup half = setup;
  for (std::int32_t at = 0; at < half.model.dims.layers; at += 2)
    half.job.training.checkpoint.groups.push_back({at, at});
  CHECK(near(half.time().phases[1].recompute, again.phases[1].recompute / 2, 0.01));
}

TEST_CASE("ZeRO-3 sends more than ZeRO-2, and several micro-batches more than one") {
  Setup two = on_a100("llama-3.2-1b", 2, 8);
  Setup three = on_a100("llama-3.2-1b", 3, 8);
  CHECK(sent(three.time()) > sent(two.time()));
  Setup one = on_a100("llama-3.2-1b", 1, 8);
  one.job.training.grad_accum = two.job.training.grad_accum = three.job.training.grad_accum = 4;
  // ZeRO-1 waits for the last micro-batch, ZeRO-2 and 3 do not.
  CHECK(sent(two.time()) > 2 * sent(one.time()));
  CHECK(sent(three.time()) > sent(two.time()));
}

TEST_CASE("collectives hide where the runtime overlaps them, and only there") {
  for (const int stage : {1, 2, 3}) {
    Setup setup = on_a100("llama-3.2-1b", stage, 16);
    setup.job.training.zero.reduce_bucket_size = Elements(50'000'000);
    setup.job.training.zero.overlap_comm = false;
    const StepTime apart = setup.time();
    setup.job.training.zero.overlap_comm = true;
    const StepTime beside = setup.time();
    CHECK(apart.phases[0].hidden + apart.phases[1].hidden == 0);
    CHECK(beside.phases[1].hidden > 0);
    CHECK(beside.total < apart.total);
  }
  const StepTime ddp = on_a100("llama-3.2-1b", -1, 8).time();
  CHECK(ddp.phases[1].hidden > 0);
  CHECK(ddp.phases[2].exposed == 0);
}

TEST_CASE("tensor parallelism: its collectives are exposed, and cost more between nodes") {
  const StepTime alone = on_a100("llama-3.2-1b", -1, 1).time();
  const StepTime four = on_a100("llama-3.2-1b", 0, 4, 4).time();
  CHECK(four.phases[0].exposed > 0);
  CHECK(four.phases[0].hidden == 0);
  CHECK(four.phases[0].compute < alone.phases[0].compute);
  CHECK(four.model_flops < alone.model_flops);
  Setup across = on_a100("llama-3.2-1b", 0, 4, 4);
  set_ranks(across.job, 4, 4, 2);
  CHECK(across.time().phases[0].exposed > 1.3 * four.phases[0].exposed);
  // Recomputation repeats them, but for the last of each layer.
  Setup again = on_a100("llama-3.2-1b", 0, 4, 4);
  checkpoint_all(again);
  CHECK(again.time().phases[1].exposed > 1.2 * four.phases[1].exposed);
}

TEST_CASE("offloading costs time on the host") {
  Setup setup = on_a100("llama-3.2-1b", 3, 8);
  const StepTime none = setup.time();
  CHECK(host(none) == 0);
  setup.job.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
  const StepTime optimizer = setup.time();
  CHECK(host(optimizer) > 0);
  CHECK(optimizer.total > none.total);
  // 1.24 billion parameters, one node: the host's Adam alone takes most of a second.
  CHECK(optimizer.phases[2].host > 0.7);
  setup.job.training.zero.offload_param.device = OffloadDevice::Cpu;
  setup.job.training.zero.overlap_comm = false;
  const StepTime both = setup.time();
  CHECK(both.phases[0].host > 0);
  CHECK(both.total > optimizer.total);
}

TEST_CASE("checkpoints on the host are copied there and back") {
  Setup setup = on_a100("llama-3.2-1b", 2, 8);
  checkpoint_all(setup, CheckpointKind::DeepSpeed);
  const StepTime device = setup.time();
  setup.job.training.checkpoint.deepspeed.cpu = true;
  const StepTime moved = setup.time();
  CHECK(moved.phases[0].host > 0);
  CHECK(near(moved.phases[1].host, moved.phases[0].host));
  CHECK(moved.total > device.total);
  CHECK(moved.phases[0].compute == device.phases[0].compute);
}

TEST_CASE("small work waits for the host that launches it") {
  Setup setup = on_a100("gpt2", -1, 1);
  setup.job.training.micro_batch = 1;
  setup.job.training.seq = 32;
  const StepTime small = setup.time();
  CHECK(small.phases[0].launch > small.phases[0].compute);
  setup.job.training.micro_batch = 64;
  setup.job.training.seq = 1024;
  const StepTime large = setup.time();
  CHECK(large.phases[0].launch == 0);
}

TEST_CASE("layers that are alike are computed once and come out alike") {
  const Setup setup = on_a100("gpt2", 2, 8);
  const Shapes shapes = build_shapes(setup.model, setup.job);
  const Rates rates = Rates::of(setup.job);
  const GraphTimes times = graph_times(shapes.graphs.front(), setup.job.training, rates);
  REQUIRE(times.regions.size() == 12);
  double elements = 0;
  const auto count = [&](const PartParameters& part) {
    for (const SizeCount& size : part.sizes) {
      if (!size.again) elements += static_cast<double>(size.elements.value() * size.count);
    }
  };
  count(times.before_parameters);
  count(times.after_parameters);
  for (std::size_t at = 0; at < times.regions.size(); ++at) {
    CHECK(times.regions[at].forward == times.regions[0].forward);
    CHECK(times.tails[at].forward > 0);
    CHECK(times.tails[at].forward < times.regions[at].forward);
    count(times.region_parameters[at]);
  }
  // Every parameter once, the tied head among them.
  CHECK(elements == 124'439'808);
}

TEST_CASE("rates are no part of the fingerprint") {
  Setup setup = on_a100("gpt2", 2, 8);
  const std::string before = fingerprint(setup.model, setup.job);
  setup.job.hardware->link_gb_per_s *= 2;
  setup.job.hardware->tflops["bf16"] *= 2;
  setup.job.cluster->node_network_gb_per_s *= 2;
  CHECK(fingerprint(setup.model, setup.job) == before);
}

TEST_CASE("a prediction has a time where rates are known, and says which are not") {
  Setup setup = on_a100("gpt2", 2, 8);
  const Prediction with = predict(setup.model, setup.job, 0);
  REQUIRE(with.time);
  CHECK(near(with.time->total, setup.time().total));
  const auto why = [](const Prediction& p) {
    for (const Absence& absence : p.not_modelled) {
      if (absence.what == "time") return absence.why;
    }
    return std::string("nothing");
  };
  CHECK(why(with) == "nothing");
  setup.job.hardware.reset();
  const Prediction without = predict(setup.model, setup.job, 0);
  CHECK_FALSE(without.time);
  CHECK(why(without).find("no device is named") != std::string::npos);
}

TEST_CASE("alternating lengths: the time of a mean micro-batch") {
  Setup setup = on_a100("gpt2", 2, 8);
  setup.job.training.grad_accum = 2;
  setup.job.training.seq = 1024;
  setup.job.training.seq_list = {512, 1024};
  const Prediction mixed = predict(setup.model, setup.job, 0);
  REQUIRE(mixed.time);
  setup.job.training.seq_list.clear();
  const double high = setup.time().total;
  setup.job.training.seq = 512;
  const double low = setup.time().total;
  CHECK(mixed.time->total > low);
  CHECK(mixed.time->total < high);
}

}  // namespace
