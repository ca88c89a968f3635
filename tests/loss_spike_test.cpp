// The row of logits and loss, from the sizes of reference formulas: N tokens, V entries.
#include <doctest/doctest.h>

#include "lowered.h"
#include "model/lora.h"
#include "planner/predict/predict.h"

using namespace dsplan;

namespace {

Bytes spike(const ModelSpec& model, const Job& job) {
  const Prediction p = predict(model, job, 0);
  REQUIRE(p.loss_spike.has_value());
  return p.loss_spike->requested;
}

// Scalars: the loss, its gradient, the weight sum, and the shifted labels of the loss function.
bool is_about(Bytes value, std::int64_t expected, std::int64_t tokens) {
  return value.value() >= expected && value.value() <= expected + 64 + 16 * tokens;
}

}  // namespace

TEST_CASE("logits and loss: with fp32 upcast the backward holds three fp32 tables, without it three narrow ones") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = lowered::job(-1, 1);
  const std::int64_t tokens = job.training.micro_batch * job.training.seq;
  const std::int64_t table = tokens * model.dims.vocab;
  CHECK(is_about(spike(model, job), 12 * table, tokens));
  job.training.loss = Loss::Native;
  // The logits die with the outputs before backward begins.
  CHECK(is_about(spike(model, job), 6 * table, tokens));
  lowered::set_dtype(job, DType::Float32);
  job.training.attention = Attention::MemoryEfficient;
  const ModelSpec gpt2 = lowered::bundled("tiny-gpt2");
  CHECK(is_about(spike(gpt2, job), 12 * tokens * gpt2.dims.vocab, tokens));
}

TEST_CASE("logits and loss are found below adapters too") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = lowered::job(-1, 1);
  const Bytes whole = spike(model, job);
  const Place place = option("--lora");
  CHECK(spike(with_adapters(model, parse_lora({"r=2,targets=q_proj", place}), place), job) == whole);
}
