// What a process holds on a device beside its own memory: NVML's figure, what a calibration explains of it, and what
// products are lent. The device is a library of tests/plugins, whose counters are a GPU's.
#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "cuda/nvml.h"
#include "exec/ranks.h"
#include "exec/transport/threads.h"
#include "paths.h"
#include "run_binary.h"
#include "running.h"
#include "texts.h"

using namespace dsplan;
using namespace dsplan::test;

namespace {

using Json = nlohmann::json;

std::string library(const std::string& name) {
  return std::string(DSPLAN_TEST_BACKENDS) + "/libdsplan_backend_" + name + ".so";
}

// What tests/plugins/on_host.cpp counts.
constexpr std::int64_t kContext = 500LL << 20;
constexpr std::int64_t kLibrary = 9LL << 20;

const std::string kRun = "run " + test_paths::source_dir() +
                         "/models/tiny-llama.json --micro-batch 1 --seq 16 --dtype bf16 --backend cuda --out r.json ";

}  // namespace

TEST_CASE("NVML says what a process has, or why it does not") {
  cuda::Nvml nvml(library("nvml"));
  CHECK(nvml.process_bytes("0000:01:00.0", 1000) == 1 << 20);
  CHECK(nvml.process_bytes("0000:01:00.0", 1039) == 40LL << 20);  // Behind those that fitted at first.
  CHECK(nvml.why().empty());
  CHECK(nvml.process_bytes("0000:01:00.0", 1003) == -1);
  CHECK(has(nvml.why(), "does not know"));
  CHECK(nvml.process_bytes("0000:01:00.0", 7) == -1);
  CHECK(has(nvml.why(), "does not list this process"));
  CHECK(nvml.process_bytes("0000:02:00.0", 1000) == -1);
  CHECK(has(nvml.why(), "no device 0000:02:00.0: error 6"));
  cuda::Nvml missing("libdsplan-no-such-library.so.1");
  CHECK(missing.process_bytes("0000:01:00.0", 1000) == -1);
  CHECK(has(missing.why(), "libdsplan-no-such-library.so.1"));
  cuda::Nvml other(library("no_symbol"));
  CHECK(other.process_bytes("0000:01:00.0", 1000) == -1);
  CHECK(has(other.why(), "lacks a call"));
}

TEST_CASE("context, library and kernels are rows from another run, and what is left is unexplained") {
  const Folder folder;
  ::setenv("DSPLAN_CUDA_PLUGIN", library("on_host").c_str(), 1);
  const Ran measured = run_binary(folder, split("calibrate --backend cuda --quick --hardware h200-sxm --out c.json"));
  REQUIRE_MESSAGE(measured.code == 0, measured.err);
  std::map<std::string, std::int64_t> rows;
  const Json calibrated = Json::parse(slurp(folder / "c.json"));
  for (const Json& row : calibrated["calibration"]["rows"]) {
    if (row["unit"] == "bytes") rows[row["name"]] = row["value"];
  }
  CHECK(rows["context:opened"] == kContext);
  CHECK(rows["cublaslt_handle"] == kLibrary);
  CHECK(rows["first_use:kernels"] == 0);
  CHECK(rows["context"] == kContext + kLibrary);
  for (const char* words : {"", "--ranks 2 --zero-stage 3", "--alloc-conf expandable_segments:True",
                            "--ranks 2 --zero-stage 3 --alloc-conf expandable_segments:True"}) {
    const Ran ran = run_binary(folder, split(kRun + "--attention flash --hardware c.json " + words));
    INFO(words);
    CHECK_MESSAGE(ran.code == 0, ran.err << ran.out);
    const Json receipt = Json::parse(slurp(folder / "r.json"));
    const Json& process = receipt["process"];
    REQUIRE(process["moments"].size() == 2);
    CHECK(process["moments"][0]["name"] == "opened");
    CHECK(process["moments"][0]["process"] == kContext);
    CHECK(process["moments"][0]["reserved"] == 0);
    CHECK(process["rows"].size() == 3);
    // Each rank has a block for scalars, which is no part of the plan.
    const auto ranks = receipt["ranks"].size();
    CHECK(process["unexplained"] == 512 * ranks);
    CHECK(process["moments"][1]["device_used"] == process["moments"][1]["process"]);
    CHECK(has(ran.out, "unexplained"));
    // Alone in its process, a rank's figure is held against the prediction.
    const Json& peak = receipt["ranks"][0]["memory"]["peak"]["process"];
    CHECK(peak.is_null() == (ranks > 1));
    const Ran again = run_binary(folder, split("compare --re-predict r.json --format json"));
    CHECK_MESSAGE(again.code == 0, again.out << again.err);
  }
  const Ran plain = run_binary(folder, split(kRun));
  CHECK_MESSAGE(plain.code == 0, plain.err << plain.out);
  const Json receipt = Json::parse(slurp(folder / "r.json"));
  CHECK(receipt["process"]["rows"].empty());
  CHECK(receipt["process"]["unexplained"].is_null());  // Nothing was calibrated: nothing is explained.
  CHECK(receipt["ranks"][0]["memory"]["peak"]["process"].is_null());
  ::unsetenv("DSPLAN_CUDA_PLUGIN");
}

TEST_CASE("a receipt whose remainder is not what its rows leave is refused") {
  const Folder folder;
  const Ran ran =
      run_binary(folder, split("run " + test_paths::source_dir() + "/models/tiny-llama.json --seq 16 --out r.json"));
  REQUIRE_MESSAGE(ran.code == 0, ran.err);
  Json receipt = Json::parse(slurp(folder / "r.json"));
  CHECK(receipt["process"]["moments"][1]["device_used"].is_null());  // A host counts no device.
  receipt["process"]["unexplained"] = 5;
  spill(folder / "r.json", receipt.dump());
  const Ran refused = run_binary(folder, split("compare --re-predict r.json"));
  CHECK(refused.code == 2);
  CHECK(has(refused.err, "is not what moments and rows leave over"));
}

TEST_CASE("ranks stand still together, and go on where one of them is lost") {
  const exec::HostBackend host;
  exec::ThreadTransport transport(3);
  exec::ProcessBarrier still(3, transport);
  const exec::RanksOutcome outcome = exec::run_ranks(3, transport, [&](exec::RankScope& scope) {
    exec::Device device(host.table(), {scope.rank, 0, {}});
    still.at("opened", device, Bytes(100 * (scope.rank + 1)));
    still.at("middle", device, Bytes(1));
    if (scope.rank == 1) throw exec::RunFailure({DSPLAN_DEVICE, 1, exec::kNoEvent, "test", "lost"});
    still.at("end", device, Bytes(5));
  });
  REQUIRE(outcome.first);
  CHECK(outcome.first->text == "lost");
  REQUIRE(still.moments().size() == 2);
  CHECK(still.moments()[0].reserved == Bytes(600));
  CHECK(still.moments()[1].reserved == Bytes(3));
  CHECK(still.moments()[1].process > Bytes(0));
}

namespace {

// What products and others were lent.
struct Lent {
  std::mutex mutex;
  std::set<std::pair<void*, std::int64_t>> products;
  bool others = false;
};
Lent lent;

void note_workspace(const dsplan_launch& what) {
  const auto op = static_cast<Op>(what.op);
  const bool node = what.body <= static_cast<std::uint32_t>(Body::Backward);
  {
    const std::lock_guard lock(lent.mutex);
    if (node && (op == Op::Linear || op == Op::Matmul)) {
      lent.products.insert({what.workspace, what.workspace_bytes});
    } else {
      lent.others = lent.others || what.workspace != nullptr;
    }
  }
  exec::host_kernels(what);
}

}  // namespace

TEST_CASE("products work in the plan's own workspace, all of them in one of one size") {
  exec::HostOptions machine;
  machine.kernels = note_workspace;
  const exec::HostBackend host(machine);
  running::Options options;
  options.backend = &host.table();
  Job job = lowered::job(-1, 1);
  job.training.attention = Attention::Math;
  job.training.checkpoint.groups = {{0, 0}, {1, 1}, {2, 2}};
  CHECK(running::run(running::model(running::kGpt2), job, options).message == "");
  CHECK(lent.products == std::set<std::pair<void*, std::int64_t>>{{nullptr, 0}});  // No device is named.
  lent.products.clear();
  job.hardware.emplace();
  job.hardware->architecture = "sm_90";
  CHECK(running::run(running::model(running::kGpt2), job, options).message == "");
  REQUIRE(lent.products.size() == 1);
  CHECK(lent.products.begin()->first != nullptr);
  CHECK(lent.products.begin()->second == 32 << 20);
  CHECK(!lent.others);
}
