// What DistributedDataParallel is given, and what its reducer makes of it.
#include <doctest/doctest.h>

#include <algorithm>

#include "audited.h"
#include "core/schedule.h"
#include "planner/lower/lower.h"
#include "planner/predict/footprint.h"
#include "planner/zero/zero_facts.h"
#include "resolving.h"
#include "sharded_jobs.h"
#include "sim/memory.h"
#include "texts.h"

using namespace dsplan;
using namespace resolving;

namespace {

Given over(std::int64_t ranks, const std::vector<std::string>& pairs) {
  Given given{.request = gpus(ranks), .model = lowered::bundled("tiny-llama")};
  set(given.request.seq, std::int64_t{16}, "--seq");
  set(given.request.runtime, std::string(ranks > 1 ? "ddp" : "pytorch"), "--runtime");
  set(given.request.set, pairs, "--set");
  return given;
}

Ddp of(const std::vector<std::string>& pairs) { return run(over(4, pairs)).training.ddp; }

std::string said(std::int64_t ranks, const std::vector<std::string>& pairs, std::int64_t micro_batches = 1) {
  Given given = over(ranks, pairs);
  set(given.request.grad_accum, micro_batches, "--grad-accum");
  return refusal(given);
}

using dsplan::test::has;

std::int64_t made(const Job& job, const char* label) {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const Schedule schedule = lower(model, job, build_shapes(model, job), 0);
  CHECK(audit(schedule).empty());
  return std::count_if(schedule.buffers.begin(), schedule.buffers.end(),
                       [&](const Buffer& buffer) { return std::string_view(buffer.label) == label; });
}

}  // namespace

TEST_CASE("ddp: views, a static graph and hooks are said by --set") {
  CHECK(of({"ddp.gradient_as_bucket_view=true"}).gradient_as_bucket_view);
  CHECK(of({"ddp.static_graph=true"}).static_graph);
  CHECK(of({"ddp.comm_hook=bf16"}).comm_hook == DType::BFloat16);
  CHECK(of({"ddp.comm_hook=fp16"}).comm_hook == DType::Float16);
  CHECK(of({"ddp.comm_hook=no"}) == Ddp{});
}

TEST_CASE("ddp: a hook says until when what it sent is counted") {
  const auto told = [](const std::vector<std::string>& pairs, const char* torch = "2.11.0") {
    Given given = over(4, pairs);
    set(given.request.torch_version, std::string(torch), "--torch-version");
    const Job job = run(given);
    return std::count_if(job.notices.begin(), job.notices.end(),
                         [](const Notice& notice) { return has(notice.message, "NCCL's watchdog"); });
  };
  CHECK(told({"ddp.static_graph=true", "ddp.comm_hook=bf16"}) == 1);
  CHECK(told({"ddp.static_graph=true"}) == 0);
  CHECK(told({"ddp.comm_hook=bf16"}) == 1);
  CHECK(told({"ddp.comm_hook=bf16"}, "2.7.1") == 0);  // There it goes when the hook has returned.
}

TEST_CASE("ddp: what PyTorch refuses and what is not modelled has a name") {
  CHECK(has(said(4, {"ddp.comm_hook=power_sgd"}), "PowerSGD is not modelled yet"));
  CHECK(has(said(4, {"ddp.comm_hook=bf61"}), "none of none, fp16 and bf16"));
  CHECK(has(said(4, {"ddp.static_graph=maybe"}), "neither true nor false"));
  CHECK(has(said(4, {"ddp.static_graph=true"}, 2), "PyTorch's own assertion fails"));
  CHECK(has(said(1, {"ddp.static_graph=true"}), "without DistributedDataParallel"));
  CHECK(has(said(1, {"ddp.zero_redundancy=true"}), "without DistributedDataParallel"));
  CHECK(has(said(4, {"ddp.zero_redundancy=1"}), "neither true nor false"));
}

TEST_CASE("ddp: a static graph copies the outputs once and makes its buckets anew before the third step") {
  const Job plain = lowered::job(-1, 2);
  Job fixed = plain;
  fixed.training.ddp.static_graph = true;
  Job looks = plain;
  looks.training.ddp.find_unused_parameters = true;
  const std::int64_t copies = made(looks, "contiguous") - made(plain, "contiguous");
  CHECK(copies > 0);
  Job longer = plain;  // As many forwards, which a second length asks for.
  longer.training.seq_list = {longer.training.seq, longer.training.seq};
  REQUIRE(longer.training.steps() == 3);
  CHECK(2 * (made(fixed, "contiguous") - made(longer, "contiguous")) == copies);
  CHECK(made(plain, "gradient bucket") == made(fixed, "gradient bucket"));
  // Two steps alone of the three have one bucket for everything.
  const ModelSpec model = lowered::bundled("tiny-llama");
  const auto rebuilt_in = [&](const Job& job) {
    const Schedule schedule = lower(model, job, build_shapes(model, job), 0);
    Stretch stretch = Stretch::Init;
    Stretch last = Stretch::Init;
    for (const Event& event : schedule.events) {
      const auto* mark = std::get_if<Mark>(&event);
      if (mark != nullptr && mark->moment == Moment::StretchBegins) stretch = mark->stretch;
      const auto* one = std::get_if<Allocate>(&event);
      if (one != nullptr && std::string_view(schedule.buffers[one->buffer].label) == "gradient bucket") last = stretch;
    }
    return last;
  };
  CHECK(rebuilt_in(plain) == Stretch::SecondStep);
  CHECK(rebuilt_in(fixed) == Stretch::SecondStep);
  CHECK(rebuilt_in(longer) == Stretch::MiddleStep);
  CHECK(fixed.training.steps() == 3);
  fixed.training.seq_list = {8, 16, 24};
  CHECK(fixed.training.steps() == 5);  // All lengths behind the second step.
}

TEST_CASE("ddp: each dtype has buckets of its own, which routers in fp32 need") {
  const ModelSpec model = lowered::bundled("ernie-4.5-21b-a3b");
  const Job job = lowered::job(-1, 2);
  const Schedule schedule = lower(model, job, build_shapes(model, job), 0);
  const std::vector<Finding> findings = audit(schedule);
  CHECK_MESSAGE(findings.empty(), (findings.empty() ? std::string() : findings.front().text));
  Bytes wide;
  Bytes rest;
  for (const Parameter& parameter : model.parameters) {
    if (parameter.tied_to != kNone || !parameter.trainable) continue;
    Bytes& of = parameter.dtype == DType::Float32 ? wide : rest;
    of += storage(parameter.shape.elements(), parameter.dtype.value_or(job.training.dtype));
  }
  REQUIRE(wide > Bytes(0));
  std::vector<std::pair<DType, Bytes>> buckets;
  for (const Buffer& buffer : schedule.buffers) {
    if (std::string_view(buffer.label) == "gradient bucket") buckets.emplace_back(buffer.dtype, buffer.size);
  }
  REQUIRE(buckets.size() > 3);  // One of each dtype at first, of the last parameter's first; then of some 25 MiB.
  CHECK(buckets[0] == std::pair(DType::Float32, wide));
  CHECK(buckets[1] == std::pair(DType::BFloat16, rest));
  Bytes again;
  for (std::size_t i = 2; i < buckets.size(); ++i) {
    if (buckets[i].first == DType::Float32) again += buckets[i].second;
  }
  CHECK(again == wide);
}

TEST_CASE("ddp: a hook compresses what has another dtype") {
  Job job = lowered::job(-1, 2);
  job.training.ddp.comm_hook = DType::BFloat16;
  CHECK(made(job, "compressed bucket") == 0);
  job.training.ddp.comm_hook = DType::Float16;
  // One for everything in the first step, then as many as there are buckets from the second on, in two steps.
  CHECK(made(job, "compressed bucket") == 2 * made(job, "gradient bucket") - 1);
}

TEST_CASE("ddp: the step behind the one that makes buckets anew is the settled one of a hook") {
  Job job = lowered::job(-1, 2);
  CHECK(job.training.steps() == 2);
  job.training.ddp.comm_hook = DType::Float16;
  CHECK(job.training.steps() == 3);
  const ModelSpec model = lowered::bundled("tiny-llama");
  const auto at_forward = [&] {  // Compressed buckets that are there when the last forward begins.
    const Schedule schedule = lower(model, job, build_shapes(model, job), 0);
    Stretch stretch = Stretch::Init;
    std::int64_t live = 0;
    std::int64_t found = -1;
    const auto is = [&](BufferId id) { return std::string_view(schedule.buffers[id].label) == "compressed bucket"; };
    for (const Event& event : schedule.events) {
      if (const auto* made = std::get_if<Allocate>(&event); made != nullptr && is(made->buffer)) ++live;
      if (const auto* gone = std::get_if<Release>(&event); gone != nullptr && is(gone->buffer)) --live;
      const auto* mark = std::get_if<Mark>(&event);
      if (mark == nullptr) continue;
      if (mark->moment == Moment::StretchBegins) stretch = mark->stretch;
      if (stretch == Stretch::SecondStep && mark->moment == Moment::ForwardEnds) found = live;
    }
    return found;
  };
  job.training.ddp.broadcast_buffers = false;  // Which is a collective as well.
  CHECK(at_forward() > 0);
  job.training.torch = {2, 7, 1};
  CHECK(at_forward() == 0);
  job.training.torch = kWitnessTorch;
  job.training.ddp.static_graph = true;
  CHECK(job.training.steps() == 4);
  CHECK(at_forward() > 0);
}

TEST_CASE("ddp: ZeroRedundancyOptimizer gives the largest parameter left to the rank that has the least") {
  using Sizes = std::vector<Elements>;
  using Owners = std::vector<std::int64_t>;
  CHECK(redundancy_owners(Sizes{Elements(3), Elements(9), Elements(3), Elements(5), Elements(1)}, 2) ==
        Owners{1, 0, 1, 1, 0});
  CHECK(redundancy_owners(Sizes{Elements(2), Elements(2), Elements(2)}, 5) == Owners{0, 1, 2});
}

TEST_CASE("ddp: under ZeroRedundancyOptimizer a rank updates its own parameters and is sent the others") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job plain = lowered::job(-1, 3);
  Job job = plain;
  job.training.ddp.zero_redundancy = true;
  const Bytes all = footprint(model, plain).persistent[Role::Optimizer];
  Bytes sum;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    const Schedule schedule = lower(model, job, build_shapes(model, job), rank);
    CHECK(audit(schedule).empty());
    MemoryMeter meter(schedule);
    replay(schedule, meter);
    const Footprint own = footprint(model, job, rank);
    CHECK(meter.by_role() == own.persistent);
    CHECK(own.persistent[Role::Optimizer] < all);
    sum += own.persistent[Role::Optimizer];
    std::int64_t sent = 0;
    Pass last = Pass::Setup;
    for (const Event& event : schedule.events) {
      const auto* call = std::get_if<Communicate>(&event);
      if (call == nullptr || call->collective != Collective::Broadcast || call->pass != Pass::Step) continue;
      ++sent;
      last = call->pass;
    }
    CHECK(last == Pass::Step);
    const auto names = std::count_if(model.parameters.begin(), model.parameters.end(),
                                     [](const Parameter& p) { return p.tied_to == kNone; });
    CHECK(sent == 2 * names);
  }
  CHECK(sum == all);
}
