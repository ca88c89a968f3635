// ZeRO-1 and ZeRO-2 with the optimizer on the host: what the host holds, in exact figures, and both sides of each
// switch. The order of all allocations is held against real DeepSpeed in deepspeed_witness_test.cpp.
#include <doctest/doctest.h>

#include "core/audit.h"
#include "lowered.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/predict.h"

using namespace dsplan;

namespace {

Job offloaded(int stage, std::int64_t ranks, bool pins) {
  Job job = lowered::job(stage, ranks);
  job.parallelism.gpus_per_node = ranks;
  job.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
  job.training.zero.offload_optimizer.pin_memory = pins;
  return job;
}

// Llama-3-8B on eight GPUs: a partition of S = 1,003,782,656 elements; 525,336,576 elements in its largest parameter.
Job llama(bool pins) {
  Job job = offloaded(2, 8, pins);
  job.training.micro_batch = 1;
  job.training.zero.reduce_bucket_size = Elements(500'000'000);
  return job;
}

// Buffers of this label and space.
std::int64_t made(const Schedule& schedule, std::string_view label, Space space) {
  return std::count_if(schedule.buffers.begin(), schedule.buffers.end(),
                       [&](const Buffer& buffer) { return buffer.label == label && buffer.space == space; });
}

}  // namespace

TEST_CASE("the host of Llama-3-8B under ZeRO-2: 18 bytes for each element of the partition, pinned in powers of two") {
  const ModelSpec model = lowered::bundled("llama-3-8b");
  const Prediction p = predict(model, llama(true), 0);
  // Pinned: master and gradient in fp32, the 16-bit copy, the scratch: 4 + 4 + 2 + 1 GiB for 4 S + 4 S + 2 S + 2 n.
  CHECK(*p.host.pinned_requested == Bytes(10 * 1'003'782'656LL + 2 * 525'336'576LL));
  CHECK(*p.host.pinned == Bytes(11LL << 30));
  // Pageable: both moments of Adam. At init it was 6 S: what is cast or copied before it is pinned.
  CHECK(*p.host.pageable == Bytes(8 * 1'003'782'656LL));
  CHECK(*p.host.peak == Bytes(19'841'421'312));
  CHECK(*p.host.per_node == Bytes(8 * 19'841'421'312LL));
  CHECK(p.persistent.by_role[Role::Parameters] == Bytes(16'060'522'496));
  CHECK(p.persistent.by_role[Role::RuntimeBuffers] == Bytes(2 * 525'336'576LL));
  CHECK(p.persistent.by_role[Role::Optimizer] == Bytes(0));

  const Prediction pageable = predict(model, llama(false), 0);
  CHECK(*pageable.host.pinned == Bytes(0));
  CHECK(*pageable.host.peak == Bytes(18 * 1'003'782'656LL + 2 * 525'336'576LL));
  CHECK(pageable.peak->requested == p.peak->requested);
}

TEST_CASE("accumulation keeps one sum for each parameter that touches the partition, and no gradients on the device") {
  const ModelSpec model = lowered::bundled("llama-3-8b");
  Job job = llama(true);
  job.training.grad_accum = 4;
  const Prediction p = predict(model, job, 0);
  // Rank 0 has the embedding, two layers and a third one's attention and gate: 1 GiB, 32 MiB for q and o, 8 MiB for k
  // and v, 128 MiB for each of gate, up and down (112 MiB of them), 8 KiB for a norm.
  constexpr std::int64_t kMiB = 1LL << 20;
  constexpr std::int64_t kLayer = (2 * 32 + 2 * 8 + 3 * 128) * kMiB + (2 << 13);
  CHECK(*p.host.pinned == Bytes((12LL << 30) + 2 * kLayer + (2 * 32 + 2 * 8 + 128) * kMiB));
  CHECK(*p.host.peak == *p.host.pinned + Bytes(8 * 1'003'782'656LL));
  const Prediction once = predict(model, llama(true), 0);
  CHECK(p.persistent.by_role == once.persistent.by_role);

  // ZeRO-1 waits for the boundary with all gradients on the device, and has no sums on the host.
  job.training.zero.stage = 1;
  CHECK(*predict(model, job, 0).host.pinned == Bytes(11LL << 30));
}

TEST_CASE("versions of DeepSpeed: both sides of each switch under offload") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = offloaded(2, 2, true);
  job.training.zero.reduce_bucket_size = Elements(500);
  const auto at = [&](Version version) {
    job.training.deepspeed = version;
    return lowered::all_ranks(model, job).front();
  };
  const Schedule now = at({0, 19, 8});
  CHECK(made(now, "clone of a large gradient", Space::Device) > 0);
  CHECK(made(now, "overflow scan", Space::Device) == 0);
  CHECK(made(at({0, 19, 7}), "clone of a large gradient", Space::Device) == 0);
  CHECK(made(at({0, 19, 6}), "overflow scan", Space::Device) == 0);
  CHECK(made(at({0, 19, 5}), "overflow scan", Space::Device) > 0);
  CHECK(made(now, "master weights", Space::Pinned) == 1);
  CHECK(made(now, "master weights", Space::Pageable) == 1);
  job.training.deepspeed = Version{0, 19, 0};
  CHECK(!unsupported(model, job));
  job.training.deepspeed = Version{0, 17, 0};
  CHECK(!unsupported(model, job));
  job.training.deepspeed = Version{0, 14, 4};
  CHECK(!unsupported(model, job));
  job.training.deepspeed = Version{0, 14, 3};
  CHECK(unsupported(model, job) == "optimizer offload below ZeRO-3 before DeepSpeed 0.14.4");
}

TEST_CASE("an unknown host leaves the device's verdict of an offloaded job alone; a known one can refute it") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = offloaded(2, 2, true);
  job.capacity = Bytes(1LL << 34);
  const Prediction open = predict(model, job, 0);
  CHECK(open.verdict == Verdict::Fits);
  CHECK(open.host.verdict == Verdict::Unknown);
  job.host_memory = *open.host.per_node;
  CHECK(predict(model, job, 0).verdict == Verdict::Fits);
  job.host_memory = *open.host.per_node - Bytes(1);
  CHECK(predict(model, job, 0).verdict == Verdict::DoesNotFit);
}

TEST_CASE("versions of DeepSpeed: before 0.19.0 the host has sums wherever micro-batches are accumulated") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  for (const int stage : {1, 2}) {
    Job job = offloaded(stage, 2, true);
    job.training.grad_accum = 2;
    const auto sums = [&](Version version) {
      job.training.deepspeed = version;
      std::int64_t count = 0;
      for (const Schedule& schedule : lowered::all_ranks(model, job)) {
        CHECK(audit(schedule).empty());
        count += made(schedule, "sum of a gradient on the host", Space::Pinned);
      }
      return count;
    };
    CAPTURE(stage);
    CHECK(sums({0, 18, 9}) > 0);
    CHECK((sums({0, 19, 0}) > 0) == (stage == 2));
  }
}
