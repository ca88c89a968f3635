// DeepSpeed's streams: what overlap_comm puts where, what waits for what, and what that does to memory.
#include <doctest/doctest.h>
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "both_ends.h"
#include "core/audit.h"
#include "core/format.h"
#include "lowered.h"
#include "planner/predict/predict.h"
#include "run_binary.h"
#include "sim/placement.h"

using namespace dsplan;

namespace {

Job overlapping(int stage, bool overlap) {
  Job job = lowered::job(stage, 2);
  job.training.zero.overlap_comm = overlap;
  job.training.zero.reduce_bucket_size = Elements(20'000);
  job.training.zero.param_persistence_threshold = Elements(100);
  job.training.zero.prefetch_bucket_size = Elements(30'000);
  job.training.grad_accum = 2;
  job.training.checkpoint.groups = {{0, 0}, {1, 1}};
  return job;
}

// What happens, without streams.
std::vector<std::string> story(const Schedule& schedule) {
  std::vector<std::string> list;
  for (const Event& event : schedule.events) {
    if (const auto* made = std::get_if<Allocate>(&event)) {
      const Buffer& buffer = schedule.buffers[made->buffer];
      list.push_back(dsplan::formatted("+{} {}", buffer.size.value(), buffer.label));
    } else if (const auto* gone = std::get_if<Release>(&event)) {
      const Buffer& buffer = schedule.buffers[gone->buffer];
      list.push_back(dsplan::formatted("-{} {}", buffer.size.value(), buffer.label));
    } else if (const auto* work = std::get_if<Compute>(&event)) {
      list.emplace_back(work->work);
    } else if (const auto* sent = std::get_if<Communicate>(&event)) {
      list.push_back(dsplan::formatted("{} {}", name(sent->collective), sent->payload.value()));
    }
  }
  return list;
}

std::map<StreamId, std::set<std::string>> work_by_stream(const Schedule& schedule) {
  std::map<StreamId, std::set<std::string>> works;
  for (const Event& event : schedule.events) {
    if (const auto* work = std::get_if<Compute>(&event)) works[work->stream].insert(work->work);
    if (const auto* sent = std::get_if<Communicate>(&event)) works[sent->stream].emplace(name(sent->collective));
  }
  return works;
}

std::map<StreamId, std::set<std::string>> buffers_by_stream(const Schedule& schedule) {
  std::map<StreamId, std::set<std::string>> labels;
  for (const Event& event : schedule.events) {
    if (const auto* made = std::get_if<Allocate>(&event)) {
      labels[made->stream].insert(schedule.buffers[made->buffer].label);
    }
  }
  return labels;
}

std::size_t waits_of(const Schedule& schedule, StreamId waiter) {
  std::size_t count = 0;
  for (const Event& event : schedule.events) {
    const auto* wait = std::get_if<WaitEvent>(&event);
    if (wait != nullptr && wait->waiter == waiter) ++count;
  }
  return count;
}

using Names = std::set<std::string>;

}  // namespace

TEST_CASE("without overlap there is one stream and nothing waits; with it the same things happen in the same order") {
  const ModelSpec llama = lowered::bundled("tiny-llama");
  // ZeRO-1 and 2 have a second bucket with overlap.
  const Schedule alone = lowered::all_ranks(llama, overlapping(3, false)).front();
  const Schedule beside = lowered::all_ranks(llama, overlapping(3, true)).front();
  CHECK(story(alone) == story(beside));
  CHECK_FALSE(alone.several_streams);
  CHECK(beside.several_streams);
  CHECK(work_by_stream(alone).size() == 1);
  for (const StreamId waiter : {kComputeStream, kGatherStream, kReduceStream, kHostSync}) {
    CHECK(waits_of(alone, waiter) == 0);
  }
  CHECK(audit(beside).empty());
}

TEST_CASE("ZeRO-3: gathers on one stream, reductions on another, everything else on the third") {
  const ModelSpec llama = lowered::bundled("tiny-llama");
  const Schedule schedule = lowered::all_ranks(llama, overlapping(3, true)).front();
  auto works = work_by_stream(schedule);
  CHECK(works.at(kGatherStream) == Names{"all_gather", "copy gathered parameters"});
  CHECK(works.at(kReduceStream) == Names{"add to gradient partitions", "copy gradient to bucket",
                                         "copy to gradient partitions", "interleave gradients", "reduce_scatter"});
  auto labels = buffers_by_stream(schedule);
  CHECK(labels.at(kGatherStream) == Names{"gather buffer", "gathered parameter"});
  CHECK(labels.at(kReduceStream) == Names{"interleaved gradients"});
  // Persistent parameters, and those of init, are gathered where everything else is.
  CHECK(labels.at(kComputeStream).contains("gathered parameter"));
  CHECK(labels.at(kComputeStream).contains("gradient bucket"));
  CHECK(waits_of(schedule, kComputeStream) > 0);
  CHECK(waits_of(schedule, kReduceStream) > 0);
  CHECK(waits_of(schedule, kGatherStream) == 0);  // Of nothing that the compute stream does.
}

TEST_CASE("ZeRO-1 and 2: what a reduction takes is on its stream, and the gradients that this rank keeps") {
  const ModelSpec llama = lowered::bundled("tiny-llama");
  for (const int stage : {1, 2}) {
    CAPTURE(stage);
    const Schedule schedule = lowered::all_ranks(llama, overlapping(stage, true)).front();
    auto works = work_by_stream(schedule);
    CHECK(works.at(kReduceStream).contains("all_reduce"));
    CHECK(works.at(kReduceStream).contains("keep gradient in partition"));
    CHECK(works.at(kComputeStream).contains("copy gradient to bucket"));
    CHECK_FALSE(works.contains(kGatherStream));
    auto labels = buffers_by_stream(schedule);
    CHECK(labels.at(kReduceStream).contains("gradients in partition"));
    CHECK(labels.at(kComputeStream).contains("gradient bucket"));
    CHECK(audit(schedule).empty());
  }
}

// llama-3.2-1b on 8 ranks under DeepSpeed 0.19.8: two buckets of 500 million elements, the second full of gradients
// that begin with rank 0's embedding.
TEST_CASE(
    "ZeRO-1 and 2: the allocator hears of the reduce stream's work on a bucket only where something is copied back") {
  const ModelSpec model = lowered::bundled("llama-3.2-1b");
  Job job = lowered::job(1, 8);
  job.training.zero.overlap_comm = true;
  job.training.zero.reduce_bucket_size = Elements(500'000'000);
  job.training.zero.use_multi_rank_bucket_allreduce = true;
  job.training.zero.reduce_scatter = true;
  job.training.torch = Version{2, 11, 0};
  job.training.deepspeed = Version{0, 19, 8};
  const auto untold = [&] {
    const Schedule schedule = lowered::all_ranks(model, job).front();
    CHECK(audit(schedule).empty());
    std::size_t buckets = 0;
    std::size_t found = 0;
    for (const BufferId id : schedule.buffers.ids()) {
      const std::string_view label = schedule.buffers[id].label;
      if (label == "gradients in partition") CHECK(schedule.untold.has(id));  // The step reads them on another stream.
      if (label != "gradient bucket") continue;
      ++buckets;
      if (schedule.untold.has(id)) ++found;
    }
    CHECK(buckets == 4);  // Two in each of two steps.
    return found;
  };
  CHECK(untold() == 2);
  SUBCASE("where all is reduced in place, of neither") {
    job.training.zero.reduce_scatter = false;
    CHECK(untold() == 4);
  }
  SUBCASE("before 0.19.0, of neither") {
    job.training.deepspeed = Version{0, 18, 9};
    CHECK(untold() == 4);
  }
  SUBCASE("while NCCL had a stream of its own, of both") {
    job.training.torch = Version{2, 7, 1};
    CHECK(untold() == 0);
  }
  SUBCASE("what it is not told of is gone when the step begins, and of what it is told waits for the next allocation") {
    const auto at_the_step = [&] {
      PlacementOptions options;
      options.frees = StreamFrees::Immediate;
      const Schedule schedule = lowered::all_ranks(model, job).front();
      Bytes held;
      for (const PlacementMark& mark : place(schedule, options).marks) {
        const auto* moment = std::get_if<Mark>(&schedule.events[mark.event]);
        if (moment != nullptr && moment->moment == Moment::StepBegins) held = mark.requested;
      }
      return held;
    };
    const Bytes now = at_the_step();
    job.training.torch = Version{2, 7, 1};
    CHECK(at_the_step() - now == Bytes(1'000'000'000));
  }
}

TEST_CASE("ZeRO-2 without contiguous gradients: with overlap those of other ranks wait for the next reduction") {
  const ModelSpec llama = lowered::bundled("tiny-llama");
  // Gradients that stand beside each piece of work in backward, all together.
  const auto beside = [&](bool overlap) {
    Job job = overlapping(2, overlap);
    job.training.zero.contiguous_gradients = false;
    const Schedule schedule = lowered::all_ranks(llama, job).front();
    CHECK(audit(schedule).empty());
    const auto is_gradient = [&](BufferId id) { return schedule.buffers[id].role == Role::Gradients; };
    std::int64_t live = 0;
    std::int64_t sum = 0;
    for (const Event& event : schedule.events) {
      const auto* made = std::get_if<Allocate>(&event);
      const auto* gone = std::get_if<Release>(&event);
      const auto* work = std::get_if<Compute>(&event);
      if (made != nullptr && is_gradient(made->buffer)) live += schedule.buffers[made->buffer].size.value();
      if (gone != nullptr && is_gradient(gone->buffer)) live -= schedule.buffers[gone->buffer].size.value();
      if (work != nullptr && work->pass == Pass::Backward) sum += live;
    }
    return sum;
  };
  CHECK(beside(true) > beside(false));
}

TEST_CASE("in backward the host waits for every reduction but the last three") {
  const ModelSpec llama = lowered::bundled("tiny-llama");
  const auto waits = [&](std::int64_t bucket) {
    Job job = overlapping(3, true);
    job.training.grad_accum = 1;
    job.training.zero.reduce_bucket_size = Elements(bucket);
    const Schedule schedule = lowered::all_ranks(llama, job).front();
    bool in = false;
    std::size_t flushes = 0;
    std::vector<std::size_t> waited;                 // For which reduction, from 1.
    std::map<ContentId, std::size_t> reduced_until;  // By recorded event.
    for (const Event& event : schedule.events) {
      if (const auto* mark = std::get_if<Mark>(&event)) {
        in = mark->moment == Moment::BackwardBegins && mark->stretch == Stretch::SecondStep;
      }
      const auto* sent = std::get_if<Communicate>(&event);
      const auto* wait = std::get_if<WaitEvent>(&event);
      const auto* record = std::get_if<RecordEvent>(&event);
      if (in && sent != nullptr && sent->collective == Collective::ReduceScatter) ++flushes;
      if (in && record != nullptr && record->stream == kReduceStream) reduced_until[record->id] = flushes;
      if (in && wait != nullptr && wait->waiter == kHostSync) waited.push_back(reduced_until.at(wait->recorded));
    }
    return std::pair{flushes, waited};
  };
  const auto [many, waited] = waits(10'000);
  CHECK(many > 4);
  std::vector<std::size_t> oldest_first(many - 3);
  std::iota(oldest_first.begin(), oldest_first.end(), 1U);
  oldest_first.push_back(many);  // And for the stream, at the end.
  CHECK(waited == oldest_first);
  const auto [one, once] = waits(10'000'000);
  CHECK(one == 1);
  CHECK(once == std::vector<std::size_t>{1});
}

TEST_CASE("gathered parameters pile up in a forward at the high end of reserved, and not at the low one") {
  const ModelSpec model = lowered::bundled("llama-3.2-1b");
  const auto ends = [&](bool overlap) {
    Job job = lowered::job(3, 8);
    job.training.seq = 256;
    job.training.zero.overlap_comm = overlap;
    job.training.zero.prefetch_bucket_size = Elements(50'000'000);
    job.training.zero.max_reuse_distance = job.training.zero.max_live_parameters = Elements(1'000'000'000);
    job.training.checkpoint.groups.clear();
    for (std::int32_t layer = 0; layer < model.dims.layers; ++layer) {
      job.training.checkpoint.groups.push_back({layer, layer});
    }
    job.rank = "0";
    return *predict(model, job, 0).peak;
  };
  const Peak alone = ends(false);
  const Peak beside = ends(true);
  CHECK(alone.reserved == alone.reserved_low);
  CHECK(alone.active == alone.allocated);
  CHECK(beside.requested == alone.requested);
  CHECK(*beside.reserved > *beside.reserved_low);
  CHECK(beside.active > beside.allocated);
  // The model's parameters are 2.5 GB.
  CHECK(*beside.reserved - *beside.reserved_low > Bytes(1'000'000'000));
}

TEST_CASE("on a clock frees are over at once where work takes no time, and pile up where it takes long") {
  const ModelSpec model = lowered::bundled("llama-3.2-1b");
  Job job = lowered::job(3, 8);
  job.training.seq = 256;
  job.training.zero.overlap_comm = true;
  job.training.zero.prefetch_bucket_size = Elements(50'000'000);
  const Schedule schedule = lowered::all_ranks(model, job).front();
  const auto reserved = [&](float work, double host) {
    const EventTimes times{std::vector<float>(schedule.events.size(), work), host};
    PlacementOptions options;
    options.times = &times;
    return place(schedule, options).peak.reserved;
  };
  PlacementOptions at_once;
  at_once.frees = StreamFrees::Immediate;
  CHECK(reserved(0, 1e-6) == place(schedule, at_once).peak.reserved);
  CHECK(reserved(1e-3F, 1e-6) > reserved(1e-6F, 1e-6));
  CHECK(reserved(1e-3F, 1e-6) > reserved(0, 1e-6) + Bytes(500'000'000));
  CHECK(reserved(1e-6F, 1e-3) == reserved(0, 1e-6));  // The host is never ahead.
}

TEST_CASE("a machine with rates says what is expected between the ends") {
  const test::Folder folder;
  const auto peak_of = [&](const std::string& stage) {
    const std::string words =
        "simulate llama-3.2-1b --gpus 8 --seq 256 --hardware h100-sxm --format json --zero-stage ";
    return nlohmann::json::parse(test::run_binary(folder, test::split(words + stage)).out).at("memory").at("peak");
  };
  const nlohmann::json beside = peak_of("3");
  REQUIRE(beside.contains("reserved_expected"));
  CHECK(beside.at("reserved_expected") >= beside.at("reserved_low"));
  CHECK(!peak_of("0").contains("reserved_expected"));
}

TEST_CASE("what does not fit at the high end is tried at the low one, and both counts of retries are told") {
  const ModelSpec model = lowered::bundled("llama-3.2-1b");
  Job job = lowered::job(3, 8);
  job.training.seq = 256;
  job.training.zero.overlap_comm = true;
  job.training.zero.prefetch_bucket_size = Elements(50'000'000);
  job.rank = "0";
  const Prediction free = predict(model, job, 0);
  const Bytes beside = *free.peak->process_high - *free.peak->reserved;
  job.capacity = *free.peak->reserved_low + beside + Bytes(64 << 20);
  REQUIRE(*job.capacity < *free.peak->process_high);
  const Prediction tight = predict(model, job, 0);
  CHECK(tight.verdict == Verdict::Tight);  // With less it would fail.
  CHECK(tight.retries > 0);
  CHECK(tight.retries_low == 0);
  CHECK(tight.verdict_reason.find("not at all if frees that wait for another stream end at once") != std::string::npos);
  job.stream_frees = StreamFrees::Immediate;
  CHECK(predict(model, job, 0).verdict == Verdict::Tight);
  CHECK(predict(model, job, 0).retries == 0);
  // Less than either end reserves without a limit: both give their cache back.
  job.capacity = *free.peak->reserved_low + beside - Bytes(64 << 20);
  const Prediction low = predict(model, job, 0);
  REQUIRE(low.verdict == Verdict::Tight);
  CHECK(low.retries > 0);
  job.stream_frees = StreamFrees::AtSync;
  const Prediction both = predict(model, job, 0);
  CHECK(both.retries_low == low.retries);
}

TEST_CASE("the other end repeats what was asked at the first, to the same end as a replay of its own") {
  const auto told = [](const Placement& p) {
    const auto peaks = [](const PlacementPeaks& of) {
      return dsplan::formatted("{} {} {} {} at {};", of.requested.value(), of.allocated.value(), of.active.value(),
                               of.reserved.value(), of.reserved_at);
    };
    std::string text =
        dsplan::formatted("{} retries, first {}, failed {}, {} {}, {}", p.retries, p.first_retry.value_or(0),
                          p.failed_event.value_or(0), p.failed_request.value(), p.missing.value(), p.waited);
    text += peaks(p.peak);
    for (const PlacementPeaks& one : p.by_stretch) text += peaks(one);
    for (const PlacementMark& mark : p.marks) {
      text += dsplan::formatted("\n{}: {} {} {} {} ", mark.event, mark.requested.value(), mark.allocated.value(),
                                mark.active.value(), mark.reserved.value()) +
              peaks(mark.since);
    }
    for (const PlacementPrint& print : p.prints) {
      text += dsplan::formatted("\n{} {} {} {}", print.allocated.value(), print.reserved.value(),
                                print.peak_allocated.value(), print.peak_reserved.value());
    }
    return text;
  };
  const ModelSpec model = lowered::bundled("llama-3.2-1b");
  std::set<std::int64_t> retries;
  bool failed = false;
  for (const int stage : {1, 2, 3}) {
    Job job = overlapping(stage, true);
    job.training.zero.reduce_bucket_size = Elements(50'000'000);
    job.training.zero.prefetch_bucket_size = Elements(50'000'000);
    const Schedule schedule = lowered::all_ranks(model, job).front();
    REQUIRE_FALSE(schedule.prints.empty());
    PlacementOptions options;
    const Placement most = place(schedule, options);
    REQUIRE(most.waited);
    for (const std::int64_t percent : {101, 99, 95, 90, 80, 60}) {
      options.limit = options.device = Bytes(most.peak.reserved.value() / 100 * percent);
      for (const StreamFrees frees : {StreamFrees::AtSync, StreamFrees::Immediate}) {
        options.frees = frees;
        const BothPlacements both = test::place_both(schedule, options);
        CAPTURE(stage);
        CAPTURE(percent);
        CHECK(told(both.asked) == told(place(schedule, options)));
        REQUIRE(both.other.has_value() == both.asked.waited);
        if (!both.other) continue;
        CHECK(told(*both.other) == told(place(schedule, other_end(options))));
        retries.insert(both.other->retries);
        failed = failed || both.other->failed_event.has_value();
      }
    }
  }
  CHECK(retries.size() > 1);
  CHECK(failed);
}

TEST_CASE("arguments of DeepSpeed's checkpoints are copied to the host and back on a stream of their own") {
  const ModelSpec llama = lowered::bundled("tiny-llama");
  Job job = overlapping(1, false);
  for (CheckpointGroup& group : job.training.checkpoint.groups) group.kind = CheckpointKind::DeepSpeed;
  job.training.checkpoint.deepspeed.cpu = true;
  const Schedule schedule = lowered::all_ranks(llama, job).front();
  for (const Finding& finding : audit(schedule)) FAIL_CHECK(finding.event << ": " << finding.text);
  auto works = work_by_stream(schedule);
  REQUIRE(works.contains(kCopyStream));
  for (const std::string& work : works.at(kCopyStream)) {
    CHECK((work == "copy argument to host" || work == "copy argument to device"));
  }
  job.training.deepspeed = {0, 19, 5};
  CHECK_FALSE(work_by_stream(lowered::all_ranks(llama, job).front()).contains(kCopyStream));
}
