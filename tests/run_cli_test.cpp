// `dsplan run` as a user meets it.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "paths.h"
#include "run_binary.h"
#include "schema.h"

using namespace dsplan::test;

namespace {

using Json = nlohmann::json;

const std::string kModel = test_paths::source_dir() + "/models/tiny-llama.json";

Ran run(const Folder& folder, const std::string& words) {
  return run_binary(folder, split("run " + kModel + " --micro-batch 1 --seq 16 --dtype bf16 " + words));
}

// With files of at most so many bytes, as a full disk has them.
Ran run_limited(const Folder& folder, const std::vector<std::string>& words, rlim_t bytes) {
  struct rlimit before {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const struct rlimit small { bytes, before.rlim_max };
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  Ran ran = run_binary(folder, words);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  return ran;
}

}  // namespace

TEST_CASE("a run agrees with its prediction, and its receipt can be predicted again") {
  const Folder folder;
  const Ran ran = run(folder, "--ranks 2 --zero-stage 3 --grad-accum 2 --out receipt.json");
  CHECK_MESSAGE(ran.code == 0, ran.err);
  CHECK(ran.out.find("tiny-llama-run: agrees (host, threads)") != std::string::npos);
  CHECK(ran.out.find("0 differ") != std::string::npos);
  const Json receipt = Json::parse(slurp(folder / "receipt.json"));
  CHECK(receipt["schema"] == "dsplan.receipt/1");
  check_schema(folder, "receipt", slurp(folder / "receipt.json"));
  CHECK(receipt["level"] == "threads");
  CHECK(receipt["device"] == "host");
  CHECK(receipt["complete"] == true);
  CHECK(receipt["ranks"].size() == 2);
  CHECK(!receipt["ranks"][1]["communication"].empty());
  const Ran again = run_binary(folder, split("compare --re-predict receipt.json"));
  CHECK_MESSAGE(again.code == 0, again.out);
}

TEST_CASE("the first rank alone keeps what ZeRO-3 gathers to save") {
  const Folder folder;
  const Ran ran = run(folder, "--deepspeed zero3 --ranks 2");
  CHECK_MESSAGE(ran.code == 0, ran.out);
}

TEST_CASE("DistributedDataParallel and fully_shard by their names") {
  const Folder folder;
  for (const char* words :
       {"--runtime ddp", "--runtime ddp --set ddp.static_graph=true",
        "--runtime ddp --set ddp.gradient_as_bucket_view=true", "--runtime fsdp2 --set fsdp.forward_prefetch=1",
        "--runtime fsdp2 --set fsdp.state_dict=full", "--runtime fsdp2 --set model_init=rank0"}) {
    CAPTURE(words);
    const Ran ran = run(folder, std::string("--ranks 2 --out named.json ") + words);
    CHECK_MESSAGE(ran.code == 0, ran.out, ran.err);
    CHECK(ran.out.find("0 differ") != std::string::npos);
    const Ran again = run_binary(folder, split("compare --re-predict named.json"));
    CHECK_MESSAGE(again.code == 0, again.out, again.err);
  }
}

TEST_CASE("a static graph is settled in its third step") {
  const Folder folder;
  const Ran few = run(folder, "--ranks 2 --steps 2 --runtime ddp --set ddp.static_graph=true");
  CHECK(few.code == 2);
  CHECK(few.err.find("2 steps: the first that is settled is step 3") != std::string::npos);
}

TEST_CASE("ranks that share layers, and fp16 with the scale of a DeepSpeed JSON") {
  const Folder folder;
  const Ran shared = run(folder, "--ranks 4 --tp 2 --zero-stage 2 --out shared.json");
  CHECK_MESSAGE(shared.code == 0, shared.out, shared.err);
  CHECK(shared.out.find("0 differ") != std::string::npos);
  const Json receipt = Json::parse(slurp(folder / "shared.json"));
  CHECK(receipt["ranks"].size() == 4);
  CHECK(receipt["ranks"][3]["rank"] == 3);
  spill(folder / "ds.json", R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1},
    "steps_per_print": 10, "fp16": {"enabled": true, "initial_scale_power": 40, "hysteresis": 1}})");
  const Ran overflows = run_binary(folder, split("run " + kModel + " --deepspeed ds.json --gpus 2 --seq 16 --steps 3"));
  CHECK_MESSAGE(overflows.code == 0, overflows.out, overflows.err);
  const std::string scales = "loss scale: 1099511627776 in the first step, 274877906944 in the last of 3; 3 left out";
  CHECK(overflows.out.find(scales) != std::string::npos);
  // What has an effect on numbers alone has none for a prediction, and one here.
  CHECK_MESSAGE(overflows.err.find("fp16.initial_scale_power") == std::string::npos, overflows.err);
  CHECK_MESSAGE(overflows.err.find("\"steps_per_print\" has no effect here") != std::string::npos, overflows.err);
  const Ran predicted = run_binary(folder, split("simulate " + kModel + " --deepspeed ds.json --gpus 2 --seq 16"));
  CHECK(predicted.err.find("\"fp16.initial_scale_power\" has no effect here") != std::string::npos);
  // A plan carries its DeepSpeed JSON along.
  CHECK(
      run_binary(folder, split("emit " + kModel + " --deepspeed ds.json --gpus 2 --seq 16 --format plan --out p.json"))
          .code == 0);
  const Ran planned = run_binary(folder, split("run p.json --steps 3"));
  CHECK_MESSAGE(planned.out.find(scales) != std::string::npos, planned.out, planned.err);
}

TEST_CASE("a planned arena and a limit") {
  const Folder folder;
  CHECK(run(folder, "--ranks 2 --zero-stage 2 --placement planned").code == 0);
  const Ran small = run(folder, "--ranks 2 --zero-stage 2 --capacity 640MiB");
  CHECK(small.code == 3);
  CHECK(small.out.find("out of memory") != std::string::npos);
  // Less than what lies beside the allocator: nothing is left, and not less than that.
  const Ran none = run(folder, "--ranks 2 --zero-stage 2 --capacity 100MiB");
  CHECK(none.code == 3);
  CHECK_MESSAGE(none.out.find("0 are taken of 0,") != std::string::npos, none.out);
}

TEST_CASE("a window that flash-attn's kernel is told of is refused by name: no backend's kernel is") {
  const Folder folder;
  spill(
      folder / "config.json",
      R"({"model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
            "max_position_embeddings": 64, "sliding_window": 8})");
  const auto seq = [&](const char* tokens) {
    return run_binary(folder, {"run", folder / "config.json", "--ranks", "1", "--micro-batch", "1", "--dtype", "bf16",
                               "--attention", "flash_attention_2", "--seq", tokens});
  };
  CHECK(seq("6").code == 0);
  CHECK(seq("32").code == 2);
  CHECK(seq("32").err.find("flash-attn's kernel over a sliding window, which no backend has") != std::string::npos);
}

TEST_CASE("what cannot be run is refused by name, before anything starts") {
  const Folder folder;
  const std::pair<const char*, const char*> cases[] = {
      {"--backend tpu", "no backend \"tpu\""},
      {"--transport mpi", "no transport \"mpi\""},
      {"--transport nccl", "its ranks are processes, each with a GPU; the backend is host"},
      {"--transport tcp", "nobody launched this process as one rank of several"},
      {"--timeout 3", "nobody waits for other processes here"},
      {"--steps 1", "1 steps: from 2"},
      {"--ranks 65 --zero-stage 1", "65 ranks are more threads than the 64"},
      {"--ranks 2 --gpus 2", "says what --gpus says already"},
      {"--gpus 4 --tp 4", "key-value heads that tensor-parallel ranks share"},
      {"--liger-kernels all", "cannot be executed yet: Liger's kernels, which no backend has"},
      {"--activation-offloading streams --checkpoint full",
       "cannot be executed yet: activation offloading, whose copies no backend makes"},
      {"--loss weighted --loop llama-factory-v1 --checkpoint full", "cannot be executed yet: LLaMA-Factory v1's loss"},
      {"--optimizer muon", "the step of muon cannot be executed yet"},
      {"--level dispatch", "--level dispatch, which leaves out the memory that kernels work in"},
      {"--torch-version 2.6.0", "the fused attention of PyTorch before 2.7"},
      {"--learning-rate -1", "is not a number above 0"},
      {"--format csv", "no format \"csv\" of a run"},
  };
  for (const auto& [words, why] : cases) {
    const Ran ran = run(folder, words);
    CAPTURE(words);
    CHECK(ran.code == 2);
    CHECK_MESSAGE(ran.err.find(why) != std::string::npos, ran.err);
  }
}

TEST_CASE("a full disk or a path that cannot be written loses no receipt that is there") {
  const Folder folder;
  const std::string words = "run " + kModel + " --micro-batch 1 --seq 16 --dtype bf16 --out ";
  REQUIRE(run_binary(folder, split(words + "receipt.json")).code == 0);
  const std::string first = slurp(folder / "receipt.json");
  REQUIRE(first.size() > 1000);
  // The disk takes half a kilobyte: more than the descriptor's file and less than a receipt.
  const Ran full = run_limited(folder, split(words + "receipt.json"), 512);
  CHECK(full.code != 0);
  CHECK_MESSAGE(full.err.find("receipt.json") != std::string::npos, full.err);
  CHECK(slurp(folder / "receipt.json") == first);
  std::filesystem::create_directory(folder / "receipts");
  std::filesystem::copy_file(folder / "receipt.json", folder / "receipts/one.json");
  const Ran device = run_binary(folder, split(words + "/dev/full"));
  CHECK(device.code != 0);
  const Ran nowhere = run_binary(folder, split(words + "missing/receipt.json"));
  CHECK(nowhere.code == 2);
  CHECK_MESSAGE(nowhere.err.find("missing/receipt.json") != std::string::npos, nowhere.err);
  CHECK(slurp(folder / "receipts/one.json") == first);
  // Nothing half-written is left beside them.
  std::ptrdiff_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    files += entry.path().filename().string().starts_with("receipt.json") ? 1 : 0;
  }
  CHECK(files == 1);
}
