// What DistributedDataParallel is given, and what its reducer makes of it.
#include <doctest/doctest.h>

#include <algorithm>

#include "audited.h"
#include "planner/lower/lower.h"
#include "resolving.h"
#include "sharded_jobs.h"

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

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

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

TEST_CASE("ddp: a hook under a static graph says what nobody can settle") {
  const auto told = [](const std::vector<std::string>& pairs) {
    const Job job = run(over(4, pairs));
    return std::count_if(job.notices.begin(), job.notices.end(),
                         [](const Notice& notice) { return has(notice.message, "NCCL's watchdog"); });
  };
  CHECK(told({"ddp.static_graph=true", "ddp.comm_hook=bf16"}) == 1);
  CHECK(told({"ddp.static_graph=true"}) == 0);
  CHECK(told({"ddp.comm_hook=bf16"}) == 0);
}

TEST_CASE("ddp: what PyTorch refuses and what is not modelled has a name") {
  CHECK(has(said(4, {"ddp.comm_hook=power_sgd"}), "PowerSGD is not modelled yet"));
  CHECK(has(said(4, {"ddp.comm_hook=bf61"}), "none of none, fp16 and bf16"));
  CHECK(has(said(4, {"ddp.static_graph=maybe"}), "neither true nor false"));
  CHECK(has(said(4, {"ddp.static_graph=true"}, 2), "PyTorch's own assertion fails"));
  CHECK(has(said(1, {"ddp.static_graph=true"}), "without DistributedDataParallel"));
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

TEST_CASE("ddp: a hook compresses what has another dtype") {
  Job job = lowered::job(-1, 2);
  job.training.ddp.comm_hook = DType::BFloat16;
  CHECK(made(job, "compressed bucket") == 0);
  job.training.ddp.comm_hook = DType::Float16;
  CHECK(made(job, "compressed bucket") == made(job, "gradient bucket"));
}
