// What the allocator's options do to a prediction: confs, phases, fragmentation, and the verdict under them.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "lowered.h"
#include "planner/predict/predict.h"

using namespace dsplan;

namespace {

constexpr std::int64_t kMiB = 1 << 20;

Job with_conf(Job job, const std::string& conf) {
  job.allocator = parse_allocator_conf(conf, "--alloc-conf", job.training.torch);
  job.allocator_conf = conf;
  return job;
}

Job job_on(std::int64_t capacity) {
  Job job = lowered::job(-1, 1);
  job.training.torch = *Version::parse(kTorchVersion);
  job.training.seq = 512;
  job.capacity = Bytes(capacity);
  job.context = Bytes(100 * kMiB);
  return job;
}

const ModelSpec& model() {
  static const ModelSpec kModel = lowered::bundled("gpt2");
  return kModel;
}

Prediction predicted(const Job& job) { return predict(model(), job, 0); }

}  // namespace

TEST_CASE("a conf moves what is reserved, and the fingerprint") {
  const Job job = job_on(8LL << 30);
  const Prediction plain = predicted(job);
  const Prediction expandable = predicted(with_conf(job, "expandable_segments:True"));
  CHECK(expandable.peak->reserved != plain.peak->reserved);
  CHECK(expandable.peak->reserved->value() % (2 * kMiB) == 0);
  CHECK(expandable.peak->requested == plain.peak->requested);
  CHECK(*expandable.peak->process == *expandable.peak->reserved + Bytes(100 * kMiB));
  CHECK(expandable.fingerprint != plain.fingerprint);
  CHECK(predicted(with_conf(job, "pinned_use_background_threads:True")).fingerprint == plain.fingerprint);
  const Prediction rounded = predicted(with_conf(job, "roundup_power2_divisions:1,max_split_size_mb:20"));
  CHECK(rounded.peak->reserved != plain.peak->reserved);
}

TEST_CASE("the verdict's replay runs under the conf: a fraction refuses") {
  const Job job = job_on(8LL << 30);
  const Bytes reserved = *predicted(job).peak->reserved;
  const auto fraction_of = [&](Bytes bytes) {
    return dsplan::formatted("per_process_memory_fraction:{}",
                             static_cast<double>(bytes.value()) / (8.0 * (1LL << 30)));
  };
  const Prediction small = predicted(with_conf(job, fraction_of(Bytes(reserved.value() / 4))));
  CHECK(small.verdict == Verdict::DoesNotFit);
  CHECK(small.verdict_reason.starts_with("tried to allocate "));
  CHECK(small.peak->reserved == reserved);  // Without a limit.
  const Prediction enough = predicted(with_conf(job, fraction_of(reserved + Bytes(2 * kMiB))));
  CHECK(enough.verdict == Verdict::Fits);
  CHECK(enough.retries == 0);
}

TEST_CASE("a run that only fits by giving its cache back says so, and where it first does") {
  const ModelSpec llama = lowered::bundled("llama-3-8b");
  Job job = lowered::job(3, 8);
  job.training.torch = *Version::parse(kTorchVersion);
  job.training.seq = 2048;
  job.training.micro_batch = 1;
  job.capacity = Bytes(80LL << 30);
  const Prediction plain = predict(llama, job, 0);
  REQUIRE(plain.verdict == Verdict::Fits);
  const double limit = static_cast<double>(plain.peak->reserved->value() - (1LL << 30));
  const std::string fraction = dsplan::formatted("per_process_memory_fraction:{}", limit / 0x1.4p36);
  const Prediction tight = predict(llama, with_conf(job, fraction), 0);
  CHECK(tight.verdict == Verdict::FitsWithRetries);
  CHECK(tight.retries > 0);
  CHECK(tight.verdict_reason.find("times to fit, first at ") != std::string::npos);
  CHECK(tight.peak->reserved == plain.peak->reserved);  // Without a limit.
  // Garbage collection gives back before the limit is met.
  CHECK(predict(llama, with_conf(job, fraction + ",garbage_collection_threshold:0.6"), 0).retries < tight.retries);
}

TEST_CASE("one phase: its own peaks, marks and traffic; everyone's verdict") {
  Job job = job_on(8LL << 30);
  const Prediction whole = predicted(job);
  Bytes most;
  for (const Stretch stretch : {Stretch::Init, Stretch::FirstStep, Stretch::SecondStep}) {
    job.phase = name(stretch);
    const Prediction one = predicted(job);
    CAPTURE(job.phase);
    REQUIRE(one.phases.size() == 1);
    CHECK(one.phases[0].name == job.phase);
    CHECK(one.peak->phase == job.phase);
    CHECK(one.peak->requested == one.peak->by_role.total());
    CHECK(one.peak->allocated >= one.phases[0].peak_allocated);
    CHECK(one.persistent.by_role == whole.persistent.by_role);
    CHECK(one.verdict == whole.verdict);
    CHECK(one.fingerprint == whole.fingerprint);
    CHECK(one.held_for_backward.has_value() == (stretch == Stretch::SecondStep));
    most = std::max(most, *one.peak->reserved);
  }
  CHECK(most == *whole.peak->reserved);
  job.phase = "init";
  const Prediction init = predicted(job);
  CHECK(*init.peak->reserved < *whole.peak->reserved);
  CHECK(init.peak->by_role[Role::Activations] == Bytes(0));
  // What does not fit in a later phase does not fit.
  job.capacity = *init.peak->reserved + Bytes(102 * kMiB);
  CHECK(predicted(job).verdict == Verdict::DoesNotFit);
}

TEST_CASE("one part of the steady step, or the micro-batch that records: its own peaks, marks and traffic") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = lowered::job(3, 4);
  job.training.grad_accum = 2;
  job.training.zero.param_persistence_threshold = Elements(100);
  job.training.zero.max_reuse_distance = Elements(0);
  const Prediction whole = predict(model, job, 0);
  const auto named = [](const std::vector<Phase>& phases, std::string_view name) {
    return std::find_if(phases.begin(), phases.end(), [&](const Phase& phase) { return phase.name == name; });
  };
  const Phase& steady = *named(whole.phases, "steady");
  const std::map<std::string, std::size_t> marks{{"forward", 6}, {"outputs_released", 4}, {"backward", 4}, {"step", 2}};
  Bytes most;
  Bytes reserved;
  std::size_t rows = 0;
  for (const auto& [part, count] : marks) {
    CAPTURE(part);
    job.phase = part;
    const Prediction one = predict(model, job, 0);
    const auto known =
        std::find_if(steady.parts.begin(), steady.parts.end(), [&](const PhasePart& p) { return p.name == part; });
    REQUIRE(known != steady.parts.end());
    REQUIRE(one.phases.size() == 1);
    CHECK(one.phases[0].name == part);
    CHECK(one.phases[0].peak_requested == known->peak.requested);
    CHECK(one.phases[0].parts.size() == 1);
    CHECK(one.phases[0].marks.size() == count);
    CHECK(one.peak->phase == "steady");
    CHECK(one.peak->requested == known->peak.requested);
    CHECK(one.peak->requested == one.peak->by_role.total());
    CHECK(one.peak->reserved == known->peak.reserved);
    CHECK(one.fingerprint == whole.fingerprint);
    most = std::max(most, one.peak->requested);
    reserved = std::max(reserved, *one.peak->reserved);
    for (const TrafficRow& row : *one.communication) {
      CHECK(std::count(whole.communication->begin(), whole.communication->end(), row) == 1);
      ++rows;
    }
    CHECK(one.communication->empty() == (part == "outputs_released"));
  }
  CHECK(most == steady.peak_requested);
  CHECK(reserved == steady.peak_reserved);
  CHECK(rows ==
        static_cast<std::size_t>(std::count_if(whole.communication->begin(), whole.communication->end(),
                                               [](const TrafficRow& row) { return row.phase != Pass::Setup; })));
  job.phase = "record";
  const Prediction record = predict(model, job, 0);
  REQUIRE(record.phases.size() == 1);
  CHECK(record.phases[0].name == "record");
  CHECK(record.peak->phase == "first_step");
  CHECK(record.peak->requested == named(whole.phases, "record")->peak_requested);
  CHECK(record.peak->reserved == named(whole.phases, "record")->peak_reserved);
  CHECK(record.peak->requested < named(whole.phases, "first_step")->peak_requested);
  CHECK(!record.communication);
}

TEST_CASE("--explain fragmentation adds up, names what pins, and what another conf would reserve") {
  Job job = job_on(8LL << 30);
  CHECK_FALSE(predicted(job).fragmentation);
  job.explain_fragmentation = true;
  const Prediction p = predicted(job);
  REQUIRE(p.fragmentation);
  const Fragmentation& f = *p.fragmentation;
  CHECK(f.reserved == *p.peak->reserved);
  CHECK(f.requested + f.slack + f.awaiting + f.inactive_split + f.cached == f.reserved);
  CHECK(f.awaiting == Bytes(0));
  REQUIRE_FALSE(f.segments.empty());
  CHECK(std::is_sorted(f.segments.begin(), f.segments.end(),
                       [](const PinnedSegment& a, const PinnedSegment& b) { return a.free > b.free; }));
  for (const PinnedSegment& segment : f.segments) {
    REQUIRE_FALSE(segment.pins.empty());
    Bytes pinned;
    for (const PinningBlock& pin : segment.pins) {
      CHECK_FALSE(pin.name.empty());
      CHECK(pin.requested <= pin.size);
      CHECK(pin.address >= segment.address);
      CHECK(pin.address + pin.size <= segment.address + segment.size);
      pinned += pin.size;
    }
    CHECK(pinned + segment.free <= segment.size);
    if (segment.blocks == static_cast<std::int64_t>(segment.pins.size())) CHECK(pinned + segment.free == segment.size);
  }
  REQUIRE(f.remedies.size() >= 3);
  for (const AllocatorRemedy& remedy : f.remedies) {
    CAPTURE(remedy.conf);
    CHECK(remedy.fits == true);
    if (remedy.conf.find("fraction") != std::string::npos) continue;  // Only there is a limit part of it.
    CHECK(*predicted(with_conf(job_on(8LL << 30), remedy.conf)).peak->reserved == remedy.reserved);
  }
}
