// Rates of machines: kernels, collectives, copies; which rows are missing; what a calibration replaces.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "core/error.h"
#include "planner/time/links.h"
#include "timing.h"

namespace {

using namespace timing;

Job plain(std::int64_t world = 8) { return on_a100("gpt2", 3, world).job; }

void names(const Job& job, const std::string& part) {
  const std::string said = Rates::missing(job);
  INFO(said);
  CHECK_MESSAGE(said.find(part) != std::string::npos, part);
  CHECK_THROWS_AS((void)Rates::of(job), Refusal);
}

constexpr Bytes mebibytes(std::int64_t count) { return Bytes(count << 20); }

TEST_CASE("a job without a device has no time, and missing rows are named") {
  Job job = plain();
  CHECK(Rates::missing(job).empty());
  job.hardware.reset();
  names(job, "no device is named");

  job = plain();
  job.hardware = load_hardware("v100-sxm2-32");
  names(job, "v100-sxm2-32 has no \"bf16\" rate");
  job.training.dtype = DType::Float16;
  CHECK(Rates::missing(job).empty());

  job = plain(16);
  job.cluster->node_network_gb_per_s = 0;
  names(job, "8xa100-80g has no \"node_network_gb_per_s\"");
  job.cluster.reset();
  names(job, "no cluster is named, and with it no \"node_network_gb_per_s\"");

  job = plain();
  job.hardware->memory_gb_per_s = 0;
  job.hardware->multiprocessors = 0;
  names(job, "\"memory_gb_per_s\"");
  names(job, "\"multiprocessors\"");
}

TEST_CASE("links, copies and files are asked for where they are used") {
  Job job = plain();
  job.hardware->host_link_gb_per_s = 0;
  CHECK(Rates::missing(job).empty());
  job.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
  names(job, "\"host_link_gb_per_s\"");

  job = plain();
  job.hardware->link_gb_per_s = job.hardware->host_link_gb_per_s = 0;
  names(job, "\"link_gb_per_s\"");
  set_ranks(job, 1);
  CHECK(Rates::missing(job).empty());

  job = plain();
  job.training.zero.offload_param.device = OffloadDevice::Nvme;
  CHECK(Rates::missing(job).empty());
  job.cluster->nvme_write_gb_per_s = 0;
  names(job, "8xa100-80g has no \"nvme_write_gb_per_s\"");
}

TEST_CASE("a matrix product takes no less than its operations at the peak rate, and no less when it grows") {
  const Rates rates = Rates::of(plain());
  const double peak = 312e12;
  CHECK(rates.peak(DType::BFloat16) == peak);
  double last = 0;
  for (std::int64_t size = 64; size <= 16384; size += 112) {
    const double seconds = rates.product(1, size, 4096, 4096, DType::BFloat16);
    CHECK(seconds >= last);
    CHECK(seconds > 2.0 * static_cast<double>(size) * 4096 * 4096 / peak);
    CHECK(rates.product(1, 4096, size, 4096, DType::BFloat16) <=
          rates.product(1, 4096, size + 8, 4096, DType::BFloat16));
    CHECK(rates.product(1, 4096, 4096, size, DType::BFloat16) <=
          rates.product(1, 4096, 4096, size + 8, DType::BFloat16));
    last = seconds;
  }
  // 8192^3 on A100 runs at 60 to 87 % of 312 TFLOP/s; a small one far below.
  const double large = 2 * std::pow(8192.0, 3) / rates.product(1, 8192, 8192, 8192, DType::BFloat16) / peak;
  CHECK(large > 0.6);
  CHECK(large < 0.87);
  const double small = 2 * std::pow(256.0, 3) / rates.product(1, 256, 256, 256, DType::BFloat16) / peak;
  CHECK(small < 0.1);
  CHECK(rates.product(1, 4096, 50257, 768, DType::BFloat16, false) >
        1.2 * rates.product(1, 4096, 50257, 768, DType::BFloat16, true));
  // fp32 runs on other units.
  CHECK(rates.product(1, 8192, 8192, 8192, DType::Float32) > 10 * rates.product(1, 8192, 8192, 8192, DType::BFloat16));
}

TEST_CASE("all-reduces inside a node take what nccl-tests measured, within a third") {
  // GB/s of bus bandwidth on eight devices; docs/time.md names the sources.
  struct Measured {
    const char* cluster;
    std::int64_t mebibytes;
    double bus;
  };
  constexpr Measured kMeasured[] = {
      {"8xa100-80g", 4, 76.62}, {"8xa100-80g", 16, 126.33}, {"8xa100-80g", 64, 202.52}, {"8xa100-80g", 1024, 229.35},
      {"8xh200", 4, 107.16},    {"8xh200", 16, 219.89},     {"8xh200", 64, 346.51},     {"8xh200", 1024, 463.58}};
  for (const Measured& one : kMeasured) {
    CAPTURE(one.cluster);
    CAPTURE(one.mebibytes);
    Job job = plain();
    job.cluster = load_cluster(one.cluster);
    job.hardware = load_hardware(job.cluster->hardware);
    const double seconds =
        Rates::of(job).collective(Collective::AllReduce, Group::DataParallel, mebibytes(one.mebibytes));
    const double measured = static_cast<double>(mebibytes(one.mebibytes).value()) * 1.75 / (one.bus * 1e9);
    CHECK(near(seconds, measured, 0.33));
  }
}

TEST_CASE("a collective by hand: two nodes of one device each") {
  GroupLinks links;
  links.ranks = links.nodes = 2;
  links.network = 10e9;
  // One step of the ring; a gigabyte, half of which each sends at 10 GB/s; half a pass of two nodes' latency.
  const double seconds = collective_seconds(links, Collective::AllGather, 1e9);
  CHECK(near(seconds, 8.4e-6 + 2.2e-6 / 2 + 0.05 + 0.5 * 2 * 33e-6));
  CHECK(collective_seconds(links, Collective::AllGather, 0) == 0);
  links.ranks = 1;
  CHECK(collective_seconds(links, Collective::AllGather, 1e9) == 0);
}

TEST_CASE("collectives grow with bytes and nodes, and never with a bandwidth") {
  for (const Collective kind : {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter,
                                Collective::Broadcast, Collective::Reduce}) {
    for (const std::int64_t world : {2, 8, 16, 64}) {
      Job job = plain(world);
      Job faster = job;
      faster.hardware->link_gb_per_s *= 2;
      faster.cluster->node_network_gb_per_s *= 2;
      const Rates rates = Rates::of(job);
      const Rates better = Rates::of(faster);
      double last = 0;
      for (std::int64_t bytes = 512; bytes < (std::int64_t{1} << 34); bytes *= 4) {
        const double seconds = rates.collective(kind, Group::DataParallel, Bytes(bytes));
        CHECK(seconds > last);
        CHECK(better.collective(kind, Group::DataParallel, Bytes(bytes)) <= seconds);
        last = seconds;
      }
    }
  }
  const Rates inside = Rates::of(plain(8));
  const Rates across = Rates::of(plain(16));
  const Bytes bytes = mebibytes(64);
  CHECK(across.collective(Collective::AllReduce, Group::DataParallel, bytes) >
        1.2 * inside.collective(Collective::AllReduce, Group::DataParallel, bytes));
  CHECK(inside.collective_tax(Group::DataParallel) > across.collective_tax(Group::DataParallel));
  CHECK(inside.collective_tax(Group::TensorParallel) == 0);
}

TEST_CASE("groups lie on the machine as ranks are numbered") {
  Job job = plain();
  set_ranks(job, 32, 4);
  const auto links = group_links(job);
  const GroupLinks& tensor = links[static_cast<std::size_t>(Group::TensorParallel)];
  const GroupLinks& data = links[static_cast<std::size_t>(Group::DataParallel)];
  CHECK(tensor.nodes == 1);
  CHECK(tensor.per_node == 4);
  CHECK(data.ranks == 8);
  CHECK(data.per_node == 2);
  CHECK(data.nodes == 4);
  // Four such groups share the network of a node.
  CHECK(near(data.network, 200e9 / 4 * 0.93));
  set_ranks(job, 32, 16);
  const GroupLinks wide = group_links(job)[static_cast<std::size_t>(Group::TensorParallel)];
  CHECK(wide.nodes == 2);
  CHECK(wide.network > 0);
}

TEST_CASE("a bridge joins two cards; more go over PCIe") {
  Job job = plain(2);
  job.cluster.reset();
  job.hardware = load_hardware("a100-pcie-80");
  const Bytes bytes = mebibytes(256);
  CHECK_FALSE(group_links(job)[static_cast<std::size_t>(Group::DataParallel)].pcie);
  const double pair = Rates::of(job).collective(Collective::AllReduce, Group::DataParallel, bytes);
  set_ranks(job, 8);
  CHECK(group_links(job)[static_cast<std::size_t>(Group::DataParallel)].pcie);
  CHECK(Rates::of(job).collective(Collective::AllReduce, Group::DataParallel, bytes) > 10 * pair);
}

TEST_CASE("ranks of a node share its host links and its cores") {
  Job job = plain(8);
  const Rates eight = Rates::of(job);
  set_ranks(job, 1);
  const Rates one = Rates::of(job);
  const Bytes bytes = mebibytes(1024);
  // Eight devices behind four uplinks.
  CHECK(near(eight.host_copy(bytes, true), 2 * one.host_copy(bytes, true), 0.01));
  CHECK(near(one.host_copy(bytes, true), static_cast<double>(bytes.value()) / 25e9, 0.01));
  CHECK(one.host_copy(bytes, false) > one.host_copy(bytes, true));
  // 10B parameters in 6.2 to 6.5 s on one node.
  CHECK(near(one.host_optimizer(Elements(10'000'000'000)), 6.25));
  CHECK(near(eight.host_optimizer(Elements(1'000'000'000)), 5.0));
  CHECK(near(eight.nvme(Bytes(1'000'000'000), false), 0.8));
  CHECK(near(eight.nvme(Bytes(1'000'000'000), true), 1.6));
}

TEST_CASE("a calibration replaces what it measured, and says so") {
  Job job = plain(1);
  set_ranks(job, 1);
  const Rates before = Rates::of(job);
  CHECK_FALSE(before.calibrated());
  job.calibration = Calibration{};
  job.calibration->path = "mine.json";
  job.calibration->rates = {
      {"copy_h2d_pinned:1048576", 5e9}, {"copy_h2d_pinned:268435456", 20e9}, {"copy_d2h_pinned:268435456", 18e9}};
  const Rates copies = Rates::of(job);
  CHECK_FALSE(copies.calibrated());
  CHECK(near(copies.host_copy(Bytes(18'000'000'000), true), 1.0, 0.001));
  CHECK(copies.basis().find("pinned copies as measured (mine.json)") != std::string::npos);

  job.calibration->rates["gemm:bf16:8192x8192x8192"] = 250e12;
  job.calibration->rates["gemm:bf16:128x128x128"] = 1e12;     // Too small to say anything of products.
  job.calibration->rates["gemm:fp16:8192x8192x8192"] = 1e12;  // Another dtype.
  job.calibration->rates["copy_d2d:1073741824"] = 700e9;
  const Rates all = Rates::of(job);
  CHECK(all.calibrated());
  CHECK(near(all.product(1, 8192, 8192, 8192, DType::BFloat16), 2 * std::pow(8192.0, 3) / 250e12, 0.001));
  CHECK(near(all.memory(Bytes(1'400'000'000)), 1e-3, 0.01));
  CHECK(before.product(1, 8192, 8192, 8192, DType::BFloat16) > all.product(1, 8192, 8192, 8192, DType::BFloat16));
}

}  // namespace
