// The host's ledger: the pool of pinned memory, what a rank and a node take, and the host's own verdict.
#include <doctest/doctest.h>

#include <algorithm>

#include "lowered.h"
#include "planner/predict/predict.h"
#include "planner/resolve/checkpointing.h"
#include "sim/host_memory.h"

using namespace dsplan;

namespace {

struct Step {
  std::int64_t bytes;  // Negative: freed.
  std::int64_t requested;
  std::int64_t reserved;
};

// Every layer checkpointed: its random state waits on the host, and nothing else does.
Job checkpointed(const ModelSpec& model) {
  Job job = lowered::job(-1, 1);
  Request request;
  request.checkpoint = {"full", option("--checkpoint")};
  job.training.checkpoint = resolve_checkpointing(request, model, CheckpointKind::NonReentrant);
  return job;
}

Schedule two_of_each(std::vector<Space> spaces) {
  Schedule schedule;
  for (const Space space : spaces) {
    schedule.events.emplace_back(Allocate{schedule.buffers.push({.size = Bytes(3000), .space = space}), 0});
  }
  schedule.events.emplace_back(Release{BufferId(0), kNone, 0, Reason::LastUse});
  return schedule;
}

HostMeter measured(const Schedule& schedule) {
  HostMeter meter(schedule);
  replay(schedule, meter);
  return meter;
}

}  // namespace

TEST_CASE("pinned memory comes in powers of two, is taken again by its size, and never goes back") {
  CHECK(rounded_to_power_of_two(Bytes(1)) == Bytes(1));
  CHECK(rounded_to_power_of_two(Bytes(4096)) == Bytes(4096));
  CHECK(rounded_to_power_of_two(Bytes(4097)) == Bytes(8192));
  // The Llama-3-8B shape's partition of eight: 2,007,565,312 bytes take 2 GiB.
  CHECK(rounded_to_power_of_two(Bytes(2'007'565'312)) == Bytes(1LL << 31));
  PinnedPool pool;
  for (const Step& step : {Step{3000, 3000, 4096}, Step{5000, 8000, 12288}, Step{-3000, 5000, 12288},
                           Step{4096, 9096, 12288},  // The block of 4096 again, to its last byte.
                           Step{3000, 12096, 16384}, Step{-5000, 7096, 16384}, Step{-4096, 3000, 16384},
                           Step{2000, 5000, 18432}}) {  // A smaller power does not take a larger block.
    step.bytes > 0 ? pool.allocate(Bytes(step.bytes)) : pool.free(Bytes(-step.bytes));
    CHECK(pool.requested() == Bytes(step.requested));
    CHECK(pool.reserved() == Bytes(step.reserved));
  }
}

TEST_CASE("each space has its own ledger; the device is in none of them") {
  const HostMeter pinned = measured(two_of_each({Space::Pinned, Space::Pinned}));
  CHECK(pinned.pinned() == Bytes(8192));
  CHECK(pinned.pinned_requested_peak() == Bytes(6000));
  CHECK(pinned.peak() == Bytes(8192));
  CHECK(pinned.pageable_peak() == Bytes(0));
  const HostMeter mixed = measured(two_of_each({Space::Pageable, Space::Nvme, Space::Pinned, Space::Device}));
  CHECK(mixed.pageable_peak() == Bytes(3000));
  CHECK(mixed.nvme_peak() == Bytes(3000));
  CHECK(mixed.peak() == Bytes(3000 + 4096));
  CHECK(measured(two_of_each({Space::Device})).peak() == Bytes(0));
  // What DeepSpeed locks itself is not rounded, and does go back.
  const HostMeter locked = measured(two_of_each({Space::Locked, Space::Locked, Space::Pinned}));
  CHECK(locked.pinned() == Bytes(6000 + 4096));
  CHECK(locked.pinned_requested_peak() == Bytes(9000));
  CHECK(locked.peak() == Bytes(6000 + 4096));
  // Saving is left out.
  Schedule saved = two_of_each({Space::Pageable});
  saved.events.emplace_back(Mark{.moment = Moment::StretchBegins, .stretch = Stretch::Save});
  saved.buffers.push({.size = Bytes(9000), .space = Space::Pageable});
  saved.events.emplace_back(Allocate{BufferId(1), 0});
  CHECK(measured(saved).peak() == Bytes(3000));
}

TEST_CASE("the host refutes a job that the device would hold, and says what is missing") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = checkpointed(model);
  job.capacity = Bytes(1LL << 34);
  const Prediction unknown = predict(model, job, 0);
  CHECK(unknown.verdict == Verdict::Fits);  // Without offload an unknown host decides nothing.
  CHECK(unknown.host.verdict == Verdict::Unknown);
  REQUIRE(unknown.host.per_node.has_value());
  const Bytes need = *unknown.host.per_node;
  CHECK(need > Bytes(0));
  CHECK(need == *unknown.host.peak);

  job.host_memory = need;
  CHECK(predict(model, job, 0).verdict == Verdict::Fits);
  CHECK(predict(model, job, 0).host.verdict == Verdict::Fits);
  job.host_memory = need - Bytes(1);
  const Prediction small = predict(model, job, 0);
  CHECK(small.verdict == Verdict::DoesNotFit);
  CHECK(small.host.verdict == Verdict::DoesNotFit);
  CHECK(small.verdict_reason.find("1 B of host memory are missing on a node") == 0);

  // A node of several ranks needs as many times as much; ranks on other nodes do not count.
  job.parallelism.world = job.parallelism.dp = 8;
  job.parallelism.gpus_per_node = 4;
  CHECK(*predict(model, job, 0).host.per_node == need * 4);
}

TEST_CASE("files: what one step in steady state reads and writes") {
  Schedule schedule = two_of_each({Space::Nvme, Space::Pinned});
  schedule.events.pop_back();
  schedule.accesses = {{BufferId(0), ContentId(1), Bytes(0), Bytes(1000)},
                       {BufferId(1), ContentId(2), Bytes(0), Bytes(700)}};
  const auto add = [&](Stretch stretch, bool writes) {
    schedule.events.emplace_back(Mark{.moment = Moment::StretchBegins, .stretch = stretch});
    schedule.events.emplace_back(Compute{
        .work = "", .reads = {writes ? 1U : 0U, writes ? 2U : 1U}, .writes = {writes ? 0U : 1U, writes ? 1U : 2U}});
  };
  add(Stretch::Init, true);
  add(Stretch::FirstStep, false);
  add(Stretch::SecondStep, false);
  add(Stretch::SecondStep, false);
  add(Stretch::SecondStep, true);
  add(Stretch::Save, true);
  const HostMeter host = measured(schedule);
  CHECK(host.nvme_read() == Bytes(2000));
  CHECK(host.nvme_written() == Bytes(1000));
}

TEST_CASE("files refute a job that device and host would hold, and say what is missing") {
  const ModelSpec model = lowered::bundled("llama-3.2-1b");
  Job job = lowered::job(3, 4);
  job.parallelism.gpus_per_node = 2;
  job.parallelism.nodes = 2;
  job.training.seq = 16;
  job.training.zero.offload_optimizer.device = OffloadDevice::Nvme;
  job.capacity = Bytes(1LL << 40);
  job.host_memory = Bytes(1LL << 40);
  const Prediction unknown = predict(model, job, 0);
  REQUIRE(unknown.host.verdict == Verdict::Fits);
  CHECK(unknown.host.nvme_verdict == Verdict::Unknown);
  CHECK(unknown.verdict == Verdict::Fits);  // The device's; the disk's stands beside it.
  CHECK(unknown.host.nvme_verdict_reason.find("--nvme-memory") != std::string::npos);
  const Bytes need = *unknown.host.nvme_per_node;  // Of two ranks: those of the other node do not count.
  CHECK(need == *unknown.host.nvme * 2);
  REQUIRE(need > Bytes(1LL << 30));

  job.nvme_memory = need;
  const Prediction enough = predict(model, job, 0);
  CHECK(enough.verdict == Verdict::Fits);
  CHECK(enough.host.nvme_verdict == Verdict::Fits);
  job.nvme_memory = need - Bytes(1);
  const Prediction small = predict(model, job, 0);
  CHECK(small.verdict == Verdict::DoesNotFit);
  CHECK(small.host.verdict == Verdict::Fits);
  CHECK(small.host.nvme_verdict == Verdict::DoesNotFit);
  CHECK(small.verdict_reason.find("1 B are missing for files on a node: 2 ranks write") == 0);
  // What is too little decides before what is not known.
  job.host_memory.reset();
  CHECK(predict(model, job, 0).verdict == Verdict::DoesNotFit);
  job.nvme_memory = need;
  CHECK(predict(model, job, 0).verdict == Verdict::Fits);
  CHECK(predict(model, job, 0).host.verdict == Verdict::Unknown);

  // Without files no disk is asked for, and none decides.
  job.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
  job.host_memory = Bytes(1LL << 40);
  job.nvme_memory.reset();
  const Prediction none = predict(model, job, 0);
  CHECK(none.verdict == Verdict::Fits);
  CHECK(none.host.nvme_verdict == Verdict::Fits);
}

TEST_CASE("where ranks differ, a node takes the sum of what its ranks take") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = lowered::job(2, 4);
  job.parallelism.gpus_per_node = 2;
  job.parallelism.nodes = 2;
  job.training.grad_accum = 2;
  job.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
  std::vector<Bytes> peaks;
  for (std::int64_t rank = 0; rank < 4; ++rank) peaks.push_back(*predict(model, job, rank).host.peak);
  REQUIRE(peaks[2] != peaks[3]);
  CHECK(*predict(model, job, 1).host.per_node == peaks[0] + peaks[1]);
  CHECK(*predict(model, job, 2).host.per_node == peaks[2] + peaks[3]);
  const auto is_named = [](const Prediction& p) {
    return std::any_of(p.not_modelled.begin(), p.not_modelled.end(),
                       [](const Absence& a) { return a.what == "memory.host.per_node"; });
  };
  CHECK(is_named(predict(model, job, 0)));  // Nodes differ as ranks do.
  job.parallelism.gpus_per_node = 4;
  job.parallelism.nodes = 1;
  CHECK(!is_named(predict(model, job, 0)));
  CHECK(*predict(model, job, 3).host.per_node == peaks[0] + peaks[1] + peaks[2] + peaks[3]);
  job.host_memory = peaks[0] + peaks[1] + peaks[2] + peaks[3] - Bytes(1);
  CHECK(predict(model, job, 0).host.verdict_reason.find("1 B of host memory are missing on a node: 4 ranks take") == 0);
}
