#include "planner/advise/advice.h"

#include <doctest/doctest.h>

#include <set>
#include <string_view>

#include "lowered.h"
#include "planner/predict/predict.h"

using namespace dsplan;

namespace {

const Advice* find(const std::vector<Advice>& advice, const std::string& rule) {
  const auto at = std::find_if(advice.begin(), advice.end(), [&](const Advice& one) { return one.rule == rule; });
  return at == advice.end() ? nullptr : &*at;
}

std::vector<Advice> advice_of(const Job& job) {
  return predict_asked(lowered::bundled("tiny-llama"), job).front().advice;
}

Job explained(int stage) {
  Job job = lowered::job(stage, 2);
  job.explain_advice = true;
  return job;
}

Bytes process(const Job& job) { return *predict_asked(lowered::bundled("tiny-llama"), job).front().peak->process; }

}  // namespace

TEST_CASE("advice: a bucket beyond the model costs what it is too large, once per bucket") {
  const std::int64_t trained =
      predict(lowered::bundled("tiny-llama"), lowered::job(2, 2), 0).parameters_trainable.value();
  struct Row {
    int stage;
    bool overlap;
    bool contiguous;
    std::int64_t size;
    std::int64_t costs;  // -1: no advice.
  };
  const Row rows[] = {
      {2, false, true, 1'000'000'000, 2 * (1'000'000'000 - trained)},
      {1, false, true, 1'000'000'000, 2 * (1'000'000'000 - trained)},
      {2, true, true, 1'000'000'000, 4 * (1'000'000'000 - trained)},
      {3, true, true, 1'000'000'000, 2 * (1'000'000'000 - trained)},
      {2, false, true, trained, -1},
      {2, false, false, 1'000'000'000, -1},
      {3, true, false, 1'000'000'000, -1},
      {2, true, false, 1'000'000'000, -1},
      {0, false, true, 1'000'000'000, -1},
      {-1, false, true, 1'000'000'000, -1},
  };
  for (const Row& row : rows) {
    INFO(row.stage << " " << row.overlap << " " << row.size);
    Job job = lowered::job(row.stage, 2);
    job.training.zero.overlap_comm = row.overlap;
    job.training.zero.contiguous_gradients = row.contiguous;
    job.training.zero.reduce_bucket_size = Elements(row.size);
    const std::vector<Advice> advice = advice_of(job);
    const Advice* const found = find(advice, "bucket_larger_than_model");
    REQUIRE((found != nullptr) == (row.costs >= 0));
    if (found == nullptr) continue;
    CHECK(found->costs == Bytes(row.costs));
    CHECK(found->key == "zero_optimization.reduce_bucket_size");
    const bool second = row.overlap && row.contiguous && row.stage < 3;
    CHECK((find(advice, "overlap_second_bucket") != nullptr) == second);
    if (second) CHECK(find(advice, "overlap_second_bucket")->costs == Bytes(2'000'000'000));
  }
}

TEST_CASE("advice: the cost of a bucket is what the schedule allocates less without it") {
  Job large = lowered::job(3, 2);
  large.training.zero.reduce_bucket_size = Elements(50'000'000);
  const std::vector<Advice> advice = advice_of(large);
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job fitting = large;
  fitting.training.zero.reduce_bucket_size = predict(model, large, 0).parameters_trainable;
  REQUIRE(find(advice, "bucket_larger_than_model") != nullptr);
  CHECK(find(advice, "bucket_larger_than_model")->costs ==
        predict(model, large, 0).persistent.by_role.total() - predict(model, fitting, 0).persistent.by_role.total());
}

TEST_CASE("advice: stage 2 with accumulation holds a second partition and sends more") {
  Job job = lowered::job(2, 2);
  CHECK(find(advice_of(job), "stage2_accumulation") == nullptr);
  job.training.grad_accum = 4;
  const std::vector<Advice> advice = advice_of(job);
  const Advice* const found = find(advice, "stage2_accumulation");
  REQUIRE(found != nullptr);
  CHECK(found->costs > Bytes(0));
  CHECK(found->text.find("after each of the 4 micro-batches") != std::string::npos);
  // Sums in fp32 are the partition and no more, four bytes each.
  job.training.grad_accum_dtype = DType::Float32;
  const Prediction p = predict_asked(lowered::bundled("tiny-llama"), job).front();
  REQUIRE(find(p.advice, "stage2_accumulation") != nullptr);
  CHECK(find(p.advice, "stage2_accumulation")->costs == p.states.gradients);
  // What the schedules of both send, as the report has it.
  const auto sent = [&](int stage) {
    Job one = job;
    one.training.zero.stage = stage;
    Bytes sum;
    const Prediction made = predict(lowered::bundled("tiny-llama"), one, 0);
    for (const TrafficRow& row : *made.communication) {
      if (row.phase != Pass::Setup && row.kind == TrafficKind::Data) sum += row.wire;
    }
    return human(sum);
  };
  CHECK(sent(2) != sent(1));
  CHECK(found->text.find(sent(2) + " sent by a rank and step, " + sent(1) + " with stage 1") != std::string::npos);
  job.training.zero.stage = 1;
  CHECK(find(advice_of(job), "stage2_accumulation") == nullptr);
}

TEST_CASE("advice: predicted alternatives cost the difference of the two predictions, and come when asked for") {
  Job job = explained(3);
  job.training.zero.reduce_bucket_size = Elements(100'000'000);
  Job other = job;
  other.explain_advice = false;
  other.training.zero.stage = 1;
  other.training.zero.overlap_comm = false;
  other.training.zero.reduce_bucket_size = Elements(1);
  // With the same bucket both hold it, and the stages' own buffers decide.
  other.training.zero.reduce_bucket_size = job.training.zero.reduce_bucket_size;
  const Bytes now = process(job);
  const Bytes then = process(other);
  const std::vector<Advice> advice = advice_of(job);
  const Advice* const found = find(advice, "smaller_stage");
  CHECK((found != nullptr) == (then < now));
  if (found != nullptr) CHECK(found->costs == now - then);
  job.explain_advice = false;
  for (const char* rule : {"smaller_stage", "reduce_scatter_copy", "sub_group_cast", "checkpointing_without_code"}) {
    CHECK(find(advice_of(job), rule) == nullptr);
  }
}

TEST_CASE("advice: an activation-checkpointing block without code costs what checkpointing would save") {
  Job job = explained(2);
  job.training.seq = 2048;
  job.notices.push_back(
      {Notice::Kind::Inert, {}, "has no effect", {}, "inert_key", "activation_checkpointing.partition_activations"});
  const std::vector<Advice> advice = advice_of(job);
  REQUIRE(find(advice, "checkpointing_without_code") != nullptr);
  Job checkpointed = job;
  checkpointed.explain_advice = false;
  for (std::int32_t layer = 0; layer < lowered::bundled("tiny-llama").dims.layers; ++layer) {
    checkpointed.training.checkpoint.groups.push_back({layer, layer});
  }
  job.explain_advice = false;
  CHECK(find(advice, "checkpointing_without_code")->costs == process(job) - process(checkpointed));
  CHECK(find(advice, "inert_key")->costs == Bytes(0));
  CHECK(advice.back().costs == Bytes(0));
}

namespace {

using Labels = std::set<std::string_view>;
void add_unnamed(const ModelSpec& model, const Job& job, Labels& labels) {
  for (const Schedule& schedule : lowered::all_ranks(model, job)) {
    for (const Buffer& buffer : schedule.buffers) {
      if (std::string_view(buffer.source).empty()) labels.insert(buffer.label);
    }
  }
}

// Of a step with two micro-batches, clipped.
Labels unnamed(int stage, DType dtype) {
  Job job = lowered::job(stage, 2);
  job.training.grad_accum = 2;
  job.training.gradient_clipping = 1;
  lowered::set_dtype(job, dtype);
  Labels labels;
  add_unnamed(lowered::bundled("tiny-llama"), job, labels);
  return labels;
}

}  // namespace

TEST_CASE("advice: what DeepSpeed adds to plain PyTorch names the file that makes it, control values too") {
  for (const DType dtype : {DType::BFloat16, DType::Float16}) {
    const Labels of_pytorch = unnamed(-1, dtype);
    CHECK(!of_pytorch.empty());
    for (int stage = 0; stage <= 3; ++stage) {
      for (const std::string_view label : unnamed(stage, dtype)) {
        INFO(stage << " " << label);
        CHECK(of_pytorch.contains(label));
      }
    }
  }
}

TEST_CASE("advice: every buffer that DeepSpeed makes names the file that makes it") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  for (int stage = 0; stage <= 3; ++stage) {
    Job job = lowered::job(stage, 2);
    job.training.grad_accum = 2;
    for (const Schedule& schedule : lowered::all_ranks(model, job)) {
      for (const Buffer& buffer : schedule.buffers) {
        if (buffer.role != Role::RuntimeBuffers && buffer.role != Role::Optimizer) continue;
        INFO(stage << " " << buffer.label);
        CHECK(std::string_view(buffer.source).find(".py") != std::string_view::npos);
      }
    }
  }
}
