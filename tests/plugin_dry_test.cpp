// The CUDA plugin as it is built for GPUs, over the dry device's libraries (docs/dry-device.md): `dsplan run --backend
// cuda` end to end. Every allocation, stream, event, launch and refusal happens as on a GPU and is compared row by row;
// launches are held against the device's limits. No kernel computes: numbers are no part of this.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "launched.h"
#include "paths.h"
#include "run_binary.h"

#ifdef DSPLAN_CUDA_ON_DRY

using namespace dsplan::test;

namespace {

using Json = nlohmann::json;

// What the programs that are started find in their environment: the plugin, and the device that is not there.
class Dry {
 public:
  explicit Dry(const std::string& device = "") {
    ::setenv("DSPLAN_CUDA_PLUGIN", DSPLAN_CUDA_ON_DRY, 1);
    ::setenv("DSPLAN_DRY_DEVICE", device.c_str(), 1);
  }
  ~Dry() {
    ::unsetenv("DSPLAN_CUDA_PLUGIN");
    ::unsetenv("DSPLAN_DRY_DEVICE");
  }
  Dry(const Dry&) = delete;
  Dry& operator=(const Dry&) = delete;
};

constexpr const char* kA100 = "name=NVIDIA A100-SXM4-40GB;major=8;minor=0;multiprocessors=108;memory=42298834944";

Ran run_model(const Folder& folder, const std::string& model, const std::string& words) {
  return run_binary(folder,
                    split("run " + test_paths::source_dir() + "/models/" + model + ".json --backend cuda " + words));
}

}  // namespace

TEST_CASE("plans of every kind agree row by row through the CUDA plugin, on the dry device") {
  const Folder folder;
  for (const char* device : {"", kA100}) {
    const Dry dry(device);
    for (const char* words :
         {"--ranks 1 --dtype fp32 --attention eager", "--ranks 2 --zero-stage 0 --grad-accum 2 --dtype bf16",
          "--ranks 3 --zero-stage 1 --dtype fp16", "--ranks 2 --zero-stage 2 --dtype bf16 --checkpoint full",
          "--ranks 4 --zero-stage 3 --dtype bf16 --steps 3",
          "--ranks 2 --zero-stage 3 --dtype bf16 --placement planned",
          "--ranks 2 --zero-stage 2 --dtype bf16 --alloc-conf expandable_segments:True",
          "--ranks 4 --tp 2 --zero-stage 1 --dtype bf16 --attention eager"}) {
      CAPTURE(device);
      CAPTURE(words);
      const Ran ran = run_model(folder, "tiny-llama", std::string("--seq 32 --out receipt.json ") + words);
      CHECK_MESSAGE(ran.code == 0, ran.err << ran.out);
      CHECK(has(ran.out, "tiny-llama-run: agrees (cuda, virtual)"));
      CHECK(has(ran.out, "no losses and no times: on the dry device nothing is computed"));
      CHECK(!has(ran.out, "loss of rank 0"));
      CHECK(run_binary(folder, split("compare --re-predict receipt.json")).code == 0);
      const Json receipt = Json::parse(slurp(folder / "receipt.json"));
      CHECK(has(receipt["environment"]["gpu"], *device == '\0' ? "H100 80GB HBM3 (dry device)" : "(dry device)"));
    }
  }
}

TEST_CASE("encoders, pictures, biases of positions and sinks go through the CUDA plugin, on the dry device") {
  struct Family {
    const char* witness;
    const char* words;
  };
  constexpr Family kFamilies[] = {
      {"bert", "--seq 12"},
      {"roberta", "--seq 12"},
      {"modernbert", "--seq 12"},
      {"t5", "--seq 12 --target-seq 8 --attention eager"},
      {"vit", "--seq 5 --micro-batch 2"},
      {"bloom", "--seq 12 --attention eager"},
      {"falcon", "--seq 12 --attention math"},
      {"falcon.groups", "--seq 12 --attention mem-efficient"},
      {"falcon.alibi", "--seq 12 --attention mem-efficient"},
      {"gpt_oss", "--seq 12 --attention eager"},
  };
  const Folder folder;
  const Dry dry;
  for (const Family& family : kFamilies) {
    CAPTURE(family.witness);
    std::ifstream witness(test_paths::source_dir() + "/tests/witnesses/exec/" + family.witness + ".txt");
    std::string line;
    while (std::getline(witness, line) && !line.starts_with("# config ")) {
    }
    REQUIRE(line.starts_with("# config "));
    const std::string config = folder.path() + "/config.json";
    std::ofstream(config) << line.substr(9);
    for (const char* how :
         {"--ranks 1 --dtype fp32 --out receipt.json", "--ranks 2 --zero-stage 3 --dtype bf16 --out receipt.json"}) {
      const Ran ran = run_binary(folder, split("run " + config + " --backend cuda " + how + " " + family.words));
      CHECK_MESSAGE(ran.code == 0, how << ": " << ran.out << ran.err);
    }
  }
}

TEST_CASE("a model of real size goes through the CUDA plugin, launch by launch") {
  const Folder folder;
  const Dry dry;
  for (const char* words : {"--seq 2048 --attention flash --dtype bf16", "--seq 1000 --micro-batch 2 --dtype fp32"}) {
    CAPTURE(words);
    const Ran ran = run_model(folder, "llama-3.2-1b", std::string("--ranks 1 ") + words);
    CHECK_MESSAGE(ran.code == 0, ran.err << ran.out);
    CHECK(has(ran.out, "llama-3.2-1b-run: agrees (cuda, virtual)"));
  }
}

TEST_CASE("plans agree however far the device is behind the host") {
  const Folder folder;
  const Dry dry;
  for (const char* events : {"pending", "timed", "1", "100"}) {
    ::setenv("DSPLAN_DRY_EVENTS", events, 1);
    for (const char* words : {"--zero-stage 3 --grad-accum 2", "--zero-stage 0", "--zero-stage 2 --placement planned",
                              "--zero-stage 3 --alloc-conf expandable_segments:True --steps 3"}) {
      CAPTURE(events);
      CAPTURE(words);
      const Ran ran = run_model(folder, "tiny-llama", std::string("--ranks 2 --seq 32 --dtype bf16 ") + words);
      CHECK_MESSAGE(ran.code == 0, ran.err << ran.out);
      CHECK(has(ran.out, "tiny-llama-run: agrees (cuda, virtual)"));
      CHECK(has(ran.out, ", 0 differ, "));
    }
    ::unsetenv("DSPLAN_DRY_EVENTS");
  }
}

TEST_CASE("a kernel that the device could never launch ends the run: which, on which rank, and why") {
  const Folder folder;
  // The kernels are compiled for 256 threads: 32 registers for each, and some of ours take more.
  const Dry dry("registers_per_block=8192");
  const Ran ran = run_model(folder, "tiny-llama", "--ranks 2 --seq 32 --dtype bf16 --zero-stage 1");
  CHECK(ran.code == 1);
  CHECK_MESSAGE(has(ran.out, ", event "), ran.out);
  CHECK_MESSAGE(has(ran.out, "device failed: load parameter: launch: cudaErrorLaunchOutOfResources: too many "),
                ran.out);
  CHECK(has(ran.out, "tiny-llama-run: agrees so far (cuda, virtual)"));
}

TEST_CASE("the device's own end of memory ends a run with exit code 3, rank, event and what is missing") {
  const Folder folder;
  const Dry dry("memory=2147483648");
  constexpr const char* kJob = "--ranks 1 --seq 512 --dtype fp32 --attention eager";
  for (const char* words : {"", " --alloc-conf expandable_segments:True"}) {
    CAPTURE(words);
    const Ran ran = run_model(folder, "gpt2", std::string(kJob) + words);
    CHECK(ran.code == 3);
    CHECK_MESSAGE(has(ran.out, "rank 0, event "), ran.out);
    CHECK_MESSAGE(has(ran.out, "out of memory: buffer "), ran.out);
    CHECK_MESSAGE(has(ran.out, "of 2147483648, the device has "), ran.out);  // Its context lies there, too.
    CHECK_MESSAGE(!has(ran.out, " 0 are missing"), ran.out);
    CHECK(has(ran.out, "gpt2-run: agrees so far (cuda, virtual)"));
  }
  const Ran planned = run_model(folder, "gpt2", std::string(kJob) + " --placement planned");
  CHECK(planned.code == 3);
  CHECK_MESSAGE(has(planned.out, "out of memory: the plan's arena wants "), planned.out);
  CHECK_MESSAGE(has(planned.out, "; the device has 1558183936 left"), planned.out);
}

TEST_CASE("a device that has what the plan takes runs it, and one that has less gives its cache back") {
  const Folder folder;
  const std::string words = "--ranks 1 --seq 512 --dtype fp32 --attention eager --out receipt.json";
  const auto reserved_on = [&](const Dry&, int code) {
    const Ran ran = run_model(folder, "gpt2", words);
    CHECK_MESSAGE(ran.code == code, ran.out);
    return Json::parse(slurp(folder / "receipt.json"))["ranks"][0]["memory"]["peak"]["reserved"].get<std::int64_t>();
  };
  const std::int64_t reserved = reserved_on(Dry(), 0);
  constexpr std::int64_t kContext = 560LL << 20;
  constexpr std::int64_t kOwn = 8LL << 20;  // The streams' own scratch, in the device's granules.
  const auto sized = [](std::int64_t bytes) { return "memory=" + std::to_string(bytes); };
  CHECK(reserved_on(Dry(sized(kContext + kOwn + reserved)), 0) == reserved);
  CHECK(reserved_on(Dry(sized(kContext + reserved)), 4) < reserved);  // The prediction knows of no context.
}

TEST_CASE("a device for which there are no kernels is refused") {
  const Folder folder;
  const Dry dry("major=7;minor=5");
  const Ran ran = run_model(folder, "tiny-llama", "--ranks 1 --seq 16");
  CHECK(ran.code == 6);
  CHECK_MESSAGE(has(ran.err, "capability 7"), ran.err);
}

TEST_CASE("processes over the dry device's NCCL agree with the prediction") {
  for (const auto& [ranks, words] : {std::pair{2, "--zero-stage 3 --grad-accum 2"}, {4, "--zero-stage 2"}}) {
    CAPTURE(words);
    const Folder folder;
    const std::string line = "run " + test_paths::source_dir() +
                             "/models/tiny-llama.json --micro-batch 1 --seq 16 --dtype bf16 --backend cuda "
                             "--transport nccl --out nccl.json --ranks " +
                             std::to_string(ranks) + " " + words;
    auto all = launch(folder, torchrun, ranks, line, [&](int, std::string&, Variables& variables) {
      variables["DSPLAN_CUDA_PLUGIN"] = DSPLAN_CUDA_ON_DRY;
      variables["DSPLAN_NCCL_LIBRARY"] = DSPLAN_DRY_FOLDER "/libnccl.so.2";
      variables["DSPLAN_DRY_DEVICE"] = "count=" + std::to_string(ranks);
    });
    for (const auto& each : all) CHECK_MESSAGE(each->end() == 0, each->err() << each->out());
    CHECK_MESSAGE(has(all[0]->out(), "tiny-llama-run: agrees (cuda, nccl)"), all[0]->out());
  }
}

TEST_CASE("a rank whose memory ends, or that is killed, ends the others over the dry device's NCCL") {
  const std::string line = "run " + test_paths::source_dir() +
                           "/models/gpt2.json --micro-batch 1 --seq 128 --dtype bf16 "
                           "--backend cuda --transport nccl --zero-stage 1 --timeout 20 ";
  const auto variables_of = [](int rank, Variables& variables, const char* memory) {
    variables["DSPLAN_CUDA_PLUGIN"] = DSPLAN_CUDA_ON_DRY;
    variables["DSPLAN_NCCL_LIBRARY"] = DSPLAN_DRY_FOLDER "/libnccl.so.2";
    variables["DSPLAN_DRY_DEVICE"] = std::string("count=2") + (rank == 1 ? memory : "");
  };
  {
    const Folder folder;
    auto all = launch(folder, torchrun, 2, line + "--ranks 2", [&](int rank, std::string&, Variables& variables) {
      variables_of(rank, variables, ";memory=1073741824");
    });
    CHECK(all[0]->end(60s) == 3);
    CHECK(all[1]->end(60s) == 3);
    CHECK_MESSAGE(has(all[0]->out(), "rank 1, event "), all[0]->out() << all[0]->err());
    CHECK_MESSAGE(has(all[0]->out(), "out of memory: buffer "), all[0]->out());
  }
  {
    const Folder folder;
    Variables where;
    variables_of(0, where, "");
    auto all = endless(folder, 2, line, where);
    all[1]->kill(SIGKILL);
    (void)all[1]->end();
    CHECK(all[0]->end(60s) == 6);
    CHECK_MESSAGE(has(all[0]->out(), "rank 1, process: not available: it ended without a word"), all[0]->out());
  }
}

TEST_CASE("calibration goes through on the dry device, and writes no rates") {
  const Folder folder;
  const Dry dry;
  const Ran ran = run_binary(folder, split("calibrate --backend cuda --quick --out rates.json"));
  CHECK(ran.code == 6);
  // Each part is executed; NVML's own is what a real driver knows of a process.
  for (const char* part :
       {"process bytes", "products", "kernels", "copies", "collectives", "Adam on the host", "files"})
    CHECK_MESSAGE(has(ran.err, std::string("calibrate: ") + part + "\n"), ran.err);
  CHECK_MESSAGE(has(ran.err, "rows measured, 1 not\n"), ran.err);
  CHECK_MESSAGE(has(ran.err, "no file is written: on the dry device nothing is computed"), ran.err);
  CHECK(!std::filesystem::exists(folder / "rates.json"));
}

#endif
