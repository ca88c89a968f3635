#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "lowered.h"
#include "planner/predict/footprint.h"
#include "planner/zero/zero_facts.h"

using namespace dsplan;

namespace {

Training training(int stage) { return lowered::job(stage, 4).training; }

}  // namespace

TEST_CASE("ZeRO's facts: a flat buffer is padded for every rank, and only the last partition ends in padding") {
  const FlatPartition cut = flat_partition(Elements(1001), 4);
  CHECK(cut.padded == Elements(1008));
  CHECK(cut.own == Elements(252));
  CHECK(cut.filled == Elements(244));
  for (std::int64_t trained = 0; trained < 200; ++trained) {
    for (std::int64_t ranks = 1; ranks < 9; ++ranks) {
      const FlatPartition one = flat_partition(Elements(trained), ranks);
      INFO(trained << " " << ranks);
      CHECK(one.own * ranks == one.padded);
      CHECK(one.padded.value() % (2 * ranks) == 0);
      const Elements last = one.own - (one.padded - Elements(trained));
      CHECK(one.filled <= std::max(last, Elements(0)));
    }
  }
}

TEST_CASE("ZeRO's facts: shards, gathers and sub-groups") {
  CHECK(shard_of(Elements(10), 4) == Elements(3));
  CHECK(gathered_of(Elements(10), 4) == Elements(12));
  const std::vector<Elements> shards{Elements(3), Elements(4), Elements(9), Elements(1)};
  CHECK(sub_groups(shards, Elements(6)) == std::vector<Elements>{Elements(7), Elements(9), Elements(1)});
  CHECK(sub_groups({}, Elements(6)).empty());
}

TEST_CASE("ZeRO's facts: a partial offload takes whole sub-groups, the device's first since 0.18.0") {
  Training t = training(3);
  t.zero.offload_optimizer.ratio = 0.3;
  t.deepspeed = Version{0, 18, 0};
  CHECK(groups_on_device(t, 10).begin == 0);
  CHECK(groups_on_device(t, 10).end == 7);
  t.deepspeed = Version{0, 17, 6};
  CHECK(groups_on_device(t, 10).begin == 3);
  CHECK(groups_on_device(t, 10).end == 10);
  t.zero.offload_optimizer.ratio = 1;
  CHECK(groups_on_device(t, 10).begin == 10);
}

TEST_CASE("ZeRO's facts: which optimizer, which buckets, in which dtype") {
  struct Row {
    int stage;
    bool wide;  // Sums in fp32 of bf16.
    bool contiguous;
    bool overlap;
    bool bf16_optimizer;
    std::int64_t buckets;
    DType bucket;
    DType kept;
  };
  constexpr DType kHalf = DType::BFloat16;
  constexpr DType kFull = DType::Float32;
  const Row rows[] = {
      {0, false, true, false, false, 0, kHalf, kHalf},  {1, false, true, false, false, 1, kHalf, kHalf},
      {1, false, true, true, false, 2, kHalf, kHalf},   {1, true, true, true, true, 0, kHalf, kHalf},
      {2, true, true, false, false, 1, kHalf, kFull},   {2, false, false, true, false, 0, kHalf, kHalf},
      {2, false, false, false, false, 0, kHalf, kHalf}, {3, false, true, true, false, 1, kHalf, kHalf},
      {3, false, false, true, false, 0, kHalf, kHalf},
  };
  for (const Row& row : rows) {
    INFO(row.stage << row.wide << row.contiguous << row.overlap);
    Training t = training(row.stage);
    t.deepspeed = kSumsOfPartition;
    t.grad_accum_dtype = row.wide ? kFull : kHalf;
    t.zero.contiguous_gradients = row.contiguous;
    t.zero.overlap_comm = row.overlap;
    CHECK(uses_bf16_optimizer(t) == row.bf16_optimizer);
    CHECK(bucket_count(t) == row.buckets);
    CHECK(bucket_dtype(t) == row.bucket);
    CHECK(kept_dtype(t) == row.kept);
  }
  // ZeRO-1 widens before it puts gradients together; ZeRO-3 sends as it is told.
  Training t = training(1);
  t.deepspeed = kSumsOfPartition;
  t.grad_accum_dtype = kFull;
  t.zero.offload_optimizer.device = OffloadDevice::Cpu;
  CHECK(bucket_dtype(t) == kFull);
  t.deepspeed = Version{0, 19, 7};
  CHECK(bucket_dtype(t) == kHalf);
  t = training(3);
  t.communication_dtype = kFull;
  CHECK(bucket_dtype(t) == kFull);
}

TEST_CASE("ZeRO's facts: gradients go to their owners only where all three settings say so") {
  Training t = training(2);
  t.zero.reduce_scatter = t.zero.contiguous_gradients = true;
  t.zero.use_multi_rank_bucket_allreduce = false;
  CHECK(reduces_to_owners(t));
  t.zero.contiguous_gradients = false;
  CHECK_FALSE(reduces_to_owners(t));
  t.grad_accum = 4;
  CHECK(reductions_per_step(t) == 4);
  t.zero.stage = 1;
  CHECK(reductions_per_step(t) == 1);
}

TEST_CASE("ZeRO's facts and the footprint, which knows nothing of them, cut alike") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  for (const int stage : {1, 2}) {
    for (const std::int64_t ranks : {1, 2, 3, 8}) {
      const Job job = lowered::job(stage, ranks);
      Elements trained;
      for (const RankParameter& one : rank_parameters(model, job)) {
        if (one.trained) trained += one.elements;
      }
      const FlatPartition cut = flat_partition(trained, job.parallelism.dp);
      INFO(stage << " " << ranks);
      CHECK(footprint(model, job).states.parameters == storage(cut.padded, job.training.dtype));
    }
  }
}
