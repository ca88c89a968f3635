#include <doctest/doctest.h>

#include <filesystem>
#include <set>
#include <string>

#include "io/deepspeed.h"
#include "io/machine_files.h"
#include "io/text.h"
#include "io/training_file.h"
#include "paths.h"

using namespace dsplan;

namespace {

template <class Visit>
int each_file(const std::string& folder, Visit visit) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test_paths::source_dir() + "/configs/" + folder)) {
    INFO(entry.path().string());
    visit(entry.path().string(), entry.path().stem().string());
    ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("configs: hardware") {
  const int count = each_file("hardware", [](const std::string& path, const std::string& stem) {
    const Hardware hardware = read_hardware(read_document(path));
    CHECK(hardware.name == stem);
    CHECK(hardware.source.size() > 10);
    CHECK(!hardware.architecture.empty());
    CHECK(hardware.capacity > Bytes(10LL << 30));  // A T4 has the least.
    CHECK(hardware.capacity < Bytes(300LL << 30));
    CHECK(hardware.tflops.contains("fp32"));
    CHECK(hardware.tflops.contains("fp16"));
    CHECK(hardware.memory_gb_per_s > 0);
    CHECK(hardware.host_link_gb_per_s > 0);
    CHECK(hardware.multiprocessors > 0);
  });
  // The device table, with the two V100-PCIe sizes and A10 and A10G as devices of their own; and T4, A100-PCIe with 40
  // GB, H100 NVL, RTX 3090 Ti, RTX 4070 Ti, RTX 4080 SUPER, RTX A5000.
  CHECK(count == 50);
}

TEST_CASE("configs: memory is the driver's figure, or torch's where one was printed") {
  const Hardware h100 = load_hardware("h100-sxm");
  CHECK(h100.capacity == Bytes(81559LL * 1024 * 1024));
  CHECK(h100.capacity_is_driver_figure);
  CHECK(h100.tflops.at("bf16") == 989);
  CHECK(h100.link_gb_per_s == 450);
  const Hardware a100 = load_hardware("a100-sxm-80");
  CHECK(a100.capacity < Bytes(81920LL * 1024 * 1024));
  CHECK(!a100.capacity_is_driver_figure);
  CHECK(!load_hardware("v100-sxm2-32").tflops.contains("bf16"));
  CHECK_THROWS_AS((void)load_hardware("h100-sxn"), Refusal);
}

TEST_CASE("configs: clusters name bundled hardware") {
  std::set<std::string> names;
  each_file("clusters", [&](const std::string& path, const std::string& stem) {
    const Cluster cluster = read_cluster(read_document(path));
    CHECK(cluster.name == stem);
    CHECK(cluster.source.size() > 10);
    CHECK(cluster.nodes == 1);
    CHECK(load_hardware(cluster.hardware).name == cluster.hardware);
    names.insert(stem);
  });
  CHECK(names == std::set<std::string>{"1xrtx4090", "4xa10g", "8xa100-80g", "8xb200", "8xh100", "8xh200", "8xmi300x",
                                       "8xv100-32g"});
  CHECK(load_cluster("8xh100").gpus_per_node == 8);
}

TEST_CASE("configs: DeepSpeed examples are wholly modelled and say where they are from") {
  const int count = each_file("deepspeed", [](const std::string& path, const std::string&) {
    const std::string text = read_file(path);
    CHECK(text.starts_with("//"));
    const DeepSpeedInput input = read_deepspeed(parse_hjson(path, text));
    CHECK(input.not_modelled.empty());
    CHECK(input.notices.empty());
    CHECK(input.zero.stage.given());
  });
  CHECK(count == 4);
}

TEST_CASE("configs: training files") {
  const int count = each_file("training", [](const std::string& path, const std::string&) {
    const Request request = read_training_file(read_document(path));
    CHECK(request.checkpoint.given());
  });
  CHECK(count == 1);
}

TEST_CASE("configs: faults in our own machine files") {
  const auto hardware = [](const std::string& keys) {
    try {
      (void)read_hardware(parse_json("h.json", R"({"dsplan": 1, "kind": "hardware", "source": "x", "name": "h", )" +
                                                   std::string(R"("architecture": "sm_90", )") + keys + "}"));
    } catch (const Refusal& refusal) {
      return std::string(refusal.what());
    }
    return std::string("accepted");
  };
  CHECK(hardware(R"("driver_memory_bytes": 5)") == "accepted");
  CHECK(hardware(R"("multiprocessors": 5)").find("is needed") != std::string::npos);
  CHECK(hardware(R"("driver_memory_bytes": 5, "torch_total_bytes": 6)").find("cannot exceed") != std::string::npos);
  CHECK(hardware(R"("driver_memory_bytes": -5)").find("must be at least 1") != std::string::npos);
  CHECK(hardware(R"("driver_memory_bytes": 5, "memroy_gb_per_s": 1)").find("did you mean \"memory_gb_per_s\"?") !=
        std::string::npos);
  CHECK(hardware(R"("driver_memory_bytes": 5, "tflops": {"fp64": 1})").find("unknown key \"fp64\" in tflops") !=
        std::string::npos);
}
