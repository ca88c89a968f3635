// Whole jobs in plain loops, under fully_shard and DistributedDataParallel, as `dsplan measure` recorded them of
// scripts that know nothing of it (tests/data/measured; PyTorch 2.11.0, accelerate 1.15, transformers 5.17): predicted
// again from what was recorded.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/predicted.h"
#include "io/text.h"
#include "paths.h"
#include "report/compare.h"
#include "report/receipt.h"
#include "texts.h"

using namespace dsplan;

namespace {

struct Case {
  const char* name;
  Runtime runtime;
  std::int64_t apart;  // Numbers that the script's own loop holds: accelerate's loss by micro-batches, the Trainer's.
};

Receipt measured(const std::string& name) {
  return read_receipt(read_document(test_paths::source_dir() + "/tests/data/measured/" + name + ".json"));
}

using dsplan::test::has;

}  // namespace

TEST_CASE("what a script gave fully_shard and DistributedDataParallel predicts its steps") {
  for (const Case& one :
       {Case{"fully-shard", Runtime::Fsdp2, 0}, Case{"accelerate-fsdp", Runtime::Fsdp2, 2},
        Case{"accelerate-fsdp-host", Runtime::Fsdp2, 2}, Case{"accelerate-fsdp-checkpoints", Runtime::Fsdp2, 4},
        Case{"trainer-fsdp", Runtime::Fsdp2, 16}, Case{"ddp", Runtime::PyTorch, 0},
        Case{"ddp-views", Runtime::PyTorch, 0}, Case{"plain-script", Runtime::PyTorch, 0},
        Case{"plain-norm", Runtime::PyTorch, 0}, Case{"plain-loss", Runtime::PyTorch, 0},
        Case{"plain-cast", Runtime::PyTorch, 0}, Case{"flattened", Runtime::Fsdp1, 0},
        Case{"flattened-on-host", Runtime::Fsdp1, 0}, Case{"accelerate-flattened", Runtime::Fsdp1, 4}}) {
    CAPTURE(one.name);
    const Receipt receipt = measured(one.name);
    const Repredicted predicted = repredict(receipt, {});
    CHECK(predicted.job.training.runtime == one.runtime);
    const ReceiptComparison comparison = compare(receipt, predicted.ranks, {});
    std::int64_t seen = 0;
    for (const ComparedRow& row : comparison.ranks.front().rows) {
      // A batch is there when the first forward begins, and the norm before the step: a recorder stands between.
      if (!row.measured || has(row.path, ".init.") || has(row.path, "first_step.marks.begin") ||
          has(row.path, "before step")) {
        continue;
      }
      const bool bytes = has(row.path, "requested") || has(row.path, "reserved");
      if (!row.path.starts_with("memory.") || !bytes || !row.predicted) continue;
      CAPTURE(row.path);
      CHECK(row.unexplained >= 0);
      CHECK(row.unexplained <= (has(row.path, "reserved") ? 0 : one.apart));
      ++seen;
    }
    CHECK(seen >= 20);
  }
}

TEST_CASE("what a plain loop's variables were seen to hold reaches the job") {
  const Training outputs = repredict(measured("plain-script"), {}).job.training;
  CHECK(outputs.loop == LoopKind::Script);
  CHECK(outputs.model_init == ModelInit::Host);
  CHECK(repredict(measured("plain-norm"), {}).job.training.loop == LoopKind::Trainer);
  const Training loss = repredict(measured("plain-loss"), {}).job.training;
  CHECK(loss.loop == LoopKind::Loss);
  CHECK(loss.labels_are_ids);
  CHECK_FALSE(loss.cast_model);
  CHECK(repredict(measured("plain-cast"), {}).job.training.cast_model);
}

TEST_CASE("what accelerate was told reaches the job") {
  const Fsdp host = repredict(measured("accelerate-fsdp-host"), {}).job.training.fsdp;
  CHECK(host.cpu_offload);
  CHECK(host.wrap == "LlamaMLP+LlamaDecoderLayer+ends");
  CHECK(host.reshard_after_forward == 0);
  const Training again = repredict(measured("accelerate-fsdp-checkpoints"), {}).job.training;
  CHECK(again.checkpoint.groups.size() == 4);
  CHECK_FALSE(again.checkpoint.preserve_rng_state);
}

TEST_CASE("what FullyShardedDataParallel was told reaches the job") {
  const Training flat = repredict(measured("flattened"), {}).job.training;
  CHECK(flat.fsdp.wrap == "LlamaMLP+LlamaDecoderLayer");
  CHECK(flat.fsdp.use_orig_params);
  CHECK(flat.fsdp.forward_prefetch == 1);
  CHECK(flat.grad_accum == 3);
  CHECK_FALSE(flat.fsdp.sync_every);
  CHECK(repredict(measured("flattened-on-host"), {}).job.training.fsdp.cpu_offload);
  const Training prepared = repredict(measured("accelerate-flattened"), {}).job.training;
  CHECK(prepared.autocast == DType::BFloat16);
  CHECK(prepared.fsdp.widens_shards);
  CHECK(prepared.fsdp.backward() == BackwardPrefetch::None);
  CHECK(prepared.gradient_clipping == 1);
}

TEST_CASE("what a recorder could not say is no prediction of another job") {
  Receipt receipt = measured("fully-shard");
  receipt.ranks.front().absent.push_back({"inputs.training", "fully_shard was called with several meshes"});
  CHECK_THROWS_WITH_AS(repredict(receipt, {}), doctest::Contains("fully_shard was called with several meshes"),
                       Refusal);
}
