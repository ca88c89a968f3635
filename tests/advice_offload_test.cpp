// Advice about what offloading takes on the host for nothing, and about tensor parallelism: each figure against two
// predictions, with the setting and without.
#include <doctest/doctest.h>

#include <algorithm>

#include "lowered.h"
#include "planner/advise/advice.h"
#include "planner/predict/footprint.h"
#include "planner/predict/predict.h"

using namespace dsplan;

namespace {

const Advice* find(const Prediction& prediction, const std::string& rule) {
  const auto at = std::find_if(prediction.advice.begin(), prediction.advice.end(),
                               [&](const Advice& one) { return one.rule == rule; });
  return at == prediction.advice.end() ? nullptr : &*at;
}

// Partitions of two ranks that are swapped, and some that are not: the MLP's have 787,500 elements, the vocabulary's
// 1,701,000.
ModelSpec swappable() {
  return lowered::inlined("swappable-llama", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "vocab_size": 6750, "hidden_size": 504, "intermediate_size": 3125, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": false})");
}
constexpr std::int64_t kLargest = 1'701'000;

Job on_nvme() {
  Job job = lowered::job(3, 2);
  Zero& zero = job.training.zero;
  zero.reduce_bucket_size = Elements(4'000'000);
  zero.prefetch_bucket_size = Elements(100);
  zero.max_reuse_distance = Elements(0);
  zero.sub_group_size = Elements(1'800'000);
  zero.offload_optimizer.device = OffloadDevice::Nvme;
  zero.offload_optimizer.buffer_count = 4;
  zero.offload_param.device = OffloadDevice::Nvme;
  zero.offload_param.buffer_count = 5;
  zero.offload_param.buffer_size = Elements(kLargest);
  zero.offload_param.max_in_cpu = Elements(0);
  return job;
}

}  // namespace

TEST_CASE("advice: swap buffers beyond what is swapped cost what the host does not take without them") {
  const ModelSpec model = swappable();
  const Prediction right = predict(model, on_nvme(), 0);
  for (const char* rule : {"swap_buffer_size", "swap_buffers_unused", "spare_swap_buffers", "max_in_cpu_idle"}) {
    CHECK(find(right, rule) == nullptr);
  }
  Job job = on_nvme();
  job.training.zero.offload_param.buffer_size = Elements(kLargest + 10'000'000);
  const Prediction wide = predict(model, job, 0);
  REQUIRE(find(wide, "swap_buffer_size") != nullptr);
  CHECK(find(wide, "swap_buffer_size")->costs == *wide.host.pinned - *right.host.pinned);
  CHECK(find(wide, "swap_buffer_size")->costs > Bytes(5 * 2 * 9'999'000LL));
  CHECK(find(wide, "swap_buffer_size")->text.find("1,701,000") != std::string::npos);

  job = on_nvme();
  job.training.zero.offload_optimizer.buffer_count = 11;
  const Prediction many = predict(model, job, 0);
  REQUIRE(find(many, "spare_swap_buffers") != nullptr);
  CHECK(find(many, "spare_swap_buffers")->costs == *many.host.pinned - *right.host.pinned);
  // Pipelining takes two sets more: one buffer short of three is none too many.
  job.training.zero.offload_optimizer.pipeline_read = job.training.zero.offload_optimizer.pipeline_write = true;
  job.training.zero.offload_optimizer.buffer_count = 12;
  CHECK(find(predict(model, job, 0), "spare_swap_buffers") == nullptr);
  job.training.zero.offload_optimizer.buffer_count = 13;
  CHECK(find(predict(model, job, 0), "spare_swap_buffers") != nullptr);
}

TEST_CASE("advice: buffers of what is too small for a file are locked for nothing") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = on_nvme();
  const Prediction small = predict(model, job, 0);
  CHECK(*small.host.nvme == Bytes(0));
  Bytes both;
  std::int64_t count = 0;
  for (const Advice& one : small.advice) {
    if (one.rule != "swap_buffers_unused") continue;
    both += one.costs;
    ++count;
  }
  CHECK(count == 2);
  // All that DeepSpeed locks; the pool takes the rest.
  const NvmeFootprint files = nvme_footprint(model, job, 0);
  CHECK(both > Bytes(5 * 2 * kLargest));
  CHECK(both <= files.locked);
}

TEST_CASE("advice: room of max_in_cpu that no sub-group fills is pinned all the same") {
  const ModelSpec model = swappable();
  Job job = on_nvme();
  // The embedding is the first sub-group with what follows it up to 1.8e6; it does not fit into a million.
  job.training.zero.offload_param.max_in_cpu = Elements(1'000'000);
  const Prediction idle = predict(model, job, 0);
  const Advice* const advice = find(idle, "max_in_cpu_idle");
  REQUIRE(advice != nullptr);
  CHECK(advice->costs == Bytes(1LL << 21));  // 2,000,000 bytes, as the pool rounds them.
  CHECK(advice->text.find("not even the first sub-group fits") != std::string::npos);
  job.training.zero.offload_param.max_in_cpu = Elements(0);
  const Prediction none = predict(model, job, 0);
  CHECK(find(none, "max_in_cpu_idle") == nullptr);
  CHECK(*idle.host.pinned - *none.host.pinned == advice->costs);
  CHECK(*idle.host.nvme == *none.host.nvme);  // And nothing more stays in memory.
  // Filled in part, and to the last element.
  job.training.zero.offload_param.max_in_cpu = Elements(4'000'000);
  const Prediction part = predict(model, job, 0);
  REQUIRE(find(part, "max_in_cpu_idle") != nullptr);
  CHECK(*part.host.nvme == *none.host.nvme);  // What moves to memory leaves its files behind.
  job.training.zero.offload_param.max_in_cpu = nvme_footprint(model, job, 0).filled;
  CHECK(find(predict(model, job, 0), "max_in_cpu_idle") == nullptr);
}

TEST_CASE("advice: a ratio that rounds to no sub-group, or to all of them") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = lowered::job(3, 2);
  job.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
  CHECK(find(predict(model, job, 0), "ratio_rounds") == nullptr);
  job.training.zero.offload_optimizer.ratio = 0.5;  // Of one.
  const Prediction one = predict(model, job, 0);
  REQUIRE(find(one, "ratio_rounds") != nullptr);
  CHECK(find(one, "ratio_rounds")->costs == Bytes(0));
  CHECK(find(one, "ratio_rounds")->text.find("no sub-group on the device") != std::string::npos);
  job.training.deepspeed = Version{0, 17, 6};
  const Prediction old = predict(model, job, 0);
  REQUIRE(find(old, "ratio_rounds") != nullptr);
  CHECK(find(old, "ratio_rounds")->costs ==
        old.persistent.by_role[Role::Gradients] + old.persistent.by_role[Role::Optimizer]);
  job.training.zero.sub_group_size = Elements(2'000);
  CHECK(find(predict(model, job, 0), "ratio_rounds") == nullptr);
}

TEST_CASE("advice: nothing is partitioned on one rank; tensor parallelism pads what does not divide") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = lowered::job(1, 1);
  job.training.checkpoint.text = "full";
  for (std::int32_t layer = 0; layer < model.dims.layers; ++layer) {
    job.training.checkpoint.groups.push_back({layer, layer, CheckpointKind::DeepSpeed});
  }
  CHECK(find(predict(model, job, 0), "partition_alone") == nullptr);
  job.training.checkpoint.deepspeed.partition = true;
  const Prediction alone = predict(model, job, 0);
  REQUIRE(find(alone, "partition_alone") != nullptr);
  CHECK(find(alone, "partition_alone")->costs == Bytes(2 * 16 * model.dims.hidden * 2));
  job.parallelism.tp = job.parallelism.world = 2;
  CHECK(find(predict(model, job, 0), "partition_alone") == nullptr);

  // 300 rows are 512 of two ranks: 106 more on each, of embedding and head.
  const ModelSpec odd = lowered::inlined("odd-llama", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "tie_word_embeddings": false})");
  Job two = lowered::job(1, 1);
  two.parallelism.tp = two.parallelism.world = 2;
  const Prediction padded = predict(odd, two, 0);
  REQUIRE(find(padded, "padded_vocabulary") != nullptr);
  CHECK(find(padded, "padded_vocabulary")->costs == Bytes(2 * 106 * 32 * 2));
  CHECK(find(padded, "replicated_key_values") == nullptr);
  two.parallelism.tp = two.parallelism.world = 4;
  const Prediction shared = predict(odd, two, 0);
  REQUIRE(find(shared, "replicated_key_values") != nullptr);
  // Two heads of eight for four ranks: each has one, of k and v, where half of one is its share.
  CHECK(find(shared, "replicated_key_values")->costs == Bytes(2 * 4 * 32 * 2));
}
