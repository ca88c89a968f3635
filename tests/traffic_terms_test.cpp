// The traffic of a step beside the ZeRO paper's count: terms that sum to the rows, and say what a setting does.
#include <doctest/doctest.h>

#include <algorithm>

#include "lowered.h"
#include "planner/predict/predict.h"
#include "planner/predict/traffic_terms.h"
#include "sim/traffic.h"

using namespace dsplan;

namespace {

Bytes sum_of_rows(const Prediction& p) {
  Bytes sum;
  for (const TrafficRow& row : *p.communication) {
    const bool step = row.phase != Pass::Setup && row.phase != Pass::Save;
    if (row.kind == TrafficKind::Data && step) sum += row.wire;
  }
  return sum;
}

Bytes term(const Prediction& p, const std::string& what) {
  for (const TrafficTerm& t : p.traffic_terms) {
    if (t.what == what) return t.wire;
  }
  return Bytes(0);
}

Prediction predicted(const ModelSpec& model, Job job) {
  Prediction p = predict(model, job, 0);
  Bytes sum;
  for (const TrafficTerm& t : p.traffic_terms) {
    CHECK_FALSE(t.why.empty());
    sum += t.wire;
  }
  CHECK(sum == sum_of_rows(p));
  return p;
}

Elements trained(const ModelSpec& model) {
  Elements sum;
  for (const Parameter& p : model.parameters) {
    if (p.tied_to == kNone) sum += p.shape.elements();
  }
  return sum;
}

Bytes one_percent(Bytes bytes) { return Bytes(bytes.value() / 100); }

}  // namespace

TEST_CASE("terms sum to the rows and what is left over is padding alone") {
  for (const ModelSpec& model : {lowered::bundled("tiny-llama"), lowered::bundled("tiny-gpt2")}) {
    const Bytes whole = storage(trained(model), DType::BFloat16);
    for (int stage = 0; stage <= 3; ++stage) {
      for (std::int64_t micro : {1, 3}) {
        CAPTURE(model.name);
        CAPTURE(stage);
        CAPTURE(micro);
        Job job = lowered::job(stage, 4);
        job.training.grad_accum = micro;
        const Prediction p = predicted(model, job);
        REQUIRE_FALSE(p.traffic_terms.empty());
        CHECK(p.traffic_terms.front().wire == wire_bytes(Collective::AllGather, whole * (stage == 3 ? 3 : 2), 4));
        // What is left over is padding of a few elements for each parameter: no term may hide in it.
        const Bytes rest = term(p, "padding and rounding");
        CHECK(std::max(rest, Bytes(0) - rest) <= one_percent(whole));
        CHECK((term(p, "3 micro-batches") > Bytes(0)) == (micro == 3 && stage >= 2));
        CHECK((term(p, "all-reduce for reduce-scatter") > Bytes(0)) == (stage == 1 || stage == 2));
      }
    }
  }
}

TEST_CASE("a setting moves the term that names it") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = lowered::job(2, 4);
  const Bytes half = term(predicted(model, job), "all-reduce for reduce-scatter");
  CHECK(half == wire_bytes(Collective::AllGather, storage(trained(model), DType::BFloat16), 4));
  job.training.communication_dtype = DType::Float32;
  const Prediction wide = predicted(model, job);
  CHECK(term(wide, "all-reduce for reduce-scatter") == half * 2);
  CHECK(term(wide, "gradients in fp32") == half);
  job = lowered::job(2, 4);
  job.training.zero.use_multi_rank_bucket_allreduce = false;
  CHECK(term(predicted(model, job), "all-reduce for reduce-scatter") == Bytes(0));
  CHECK(term(predicted(model, job), "one reduce per owner") > Bytes(0));
  job = lowered::job(0, 4);
  job.training.freeze = {"model.embed_tokens.*"};
  CHECK(term(predicted(model, job), "frozen parameters") < Bytes(0));
  job = lowered::job(3, 4);
  job.training.zero.reduce_scatter = false;
  CHECK(term(predicted(model, job), "all-reduce for reduce-scatter") > Bytes(0));
  job = lowered::job(3, 4);
  job.training.zero.hpz_partition_size = 2;
  job.parallelism.gpus_per_node = 2;
  predicted(model, job);
  CHECK(predict(model, lowered::job(2, 1), 0).traffic_terms.empty());
}
