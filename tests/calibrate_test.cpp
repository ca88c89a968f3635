// `dsplan calibrate`: what is measured, what becomes of trouble, the file, and who takes it. Rates are never judged: a
// machine under load is slow, and that is no fault.
#include <doctest/doctest.h>

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "exec/calibrate/calibrate.h"
#include "exec/failure.h"
#include "exec/host/host_backend.h"
#include "exec/host/kernels.h"
#include "io/machine_files.h"
#include "io/text.h"
#include "lowered.h"
#include "paths.h"
#include "planner/time/rates.h"
#include "report/calibration.h"
#include "run_binary.h"
#include "texts.h"
#include "watched_backend.h"

#include <nlohmann/json.hpp>

using namespace dsplan;
using namespace dsplan::test;

namespace {

using Json = nlohmann::json;
using Unit = MeasuredRow::Unit;

exec::HostOptions with_kernels() {
  exec::HostOptions options;
  options.kernels = exec::host_kernels;
  return options;
}

exec::CalibrateOptions quick(const dsplan_backend& backend, const Folder& folder) {
  exec::CalibrateOptions options;
  options.backend = &backend;
  options.directory = folder.path();
  options.quick = true;
  options.time = std::chrono::minutes(10);  // Whatever else the machine does.
  return options;
}

// The words before the first colon.
std::set<std::string> families(const MeasuredMachine& machine) {
  std::set<std::string> found;
  for (const MeasuredRow& row : machine.rows) found.insert(row.name.substr(0, row.name.find(':')));
  return found;
}

MeasuredMachine by_hand() {
  MeasuredMachine machine;
  machine.backend = "host";
  machine.device = "host";
  machine.memory = Bytes(1'000'000'000);
  const auto add = [&](const char* name, Unit unit, std::int64_t value) {
    machine.rows.push_back({name, unit, "by hand", {value, value + 2, value - 1}});
  };
  add("gemm:fp32:64x64x64", Unit::FlopPerSecond, 1'000'000'000);
  add("gemm:fp32:512x512x512", Unit::FlopPerSecond, 4'000'000'000);
  add("gemm:bf16:64x64x64", Unit::FlopPerSecond, 500'000'000);
  add("elementwise:add:fp32:65536", Unit::BytesPerSecond, 9'000'000'000);
  add("elementwise:add:fp32:4194304", Unit::BytesPerSecond, 2'000'000'000);
  add("elementwise:silu:fp32:4194304", Unit::BytesPerSecond, 1'000'000'000);
  add("elementwise:softmax:fp32:4194304", Unit::BytesPerSecond, 500'000'000);
  add("copy_d2d:65536", Unit::BytesPerSecond, 50'000'000'000);
  add("copy_d2d:1048576", Unit::BytesPerSecond, 5'000'000'000);
  add("copy_h2d_pinned:1048576", Unit::BytesPerSecond, 6'000'000'000);
  add("copy_d2h_pinned:1048576", Unit::BytesPerSecond, 4'000'000'000);
  add("kernel", Unit::Nanoseconds, 1000);
  add("collective_threads:all_reduce:2:1000000", Unit::BytesPerSecond, 1'000'000'000);
  add("collective_threads:all_gather:2:1000000", Unit::BytesPerSecond, 2'000'000'000);
  add("host_adam:1000", Unit::ElementsPerSecond, 100'000'000);
  add("file_write:1000", Unit::BytesPerSecond, 300'000'000);
  machine.failed.push_back({"file_read:1000", "the disk is full"});
  return machine;
}

std::string file_of(const MeasuredMachine& machine) {
  CalibratedFile file;
  file.name = "host-calibrated";
  file.source = "a test";
  file.recorded = "2026-01-01T00:00:00Z";
  file.processor = "a processor";
  return calibrated_hardware_json(machine, file);
}

Job job_on(const std::string& text) {
  const Document document = parse_json("mine.json", text);
  Job job = lowered::job(-1, 2);
  lowered::set_dtype(job, DType::Float32);
  job.parallelism.gpus_per_node = 8;
  job.hardware = read_hardware(document);
  job.calibration = calibration_in(document);
  return job;
}

bool near(double a, double b, double part = 1e-6) { return std::abs(a - b) <= part * std::abs(b); }

}  // namespace

TEST_CASE("the host is measured in all its parts") {
  const Folder folder;
  const exec::HostBackend host(with_kernels());
  std::vector<std::string> parts;
  exec::CalibrateOptions options = quick(host.table(), folder);
  options.progress = [&](const std::string& part) { parts.push_back(part); };
  const MeasuredMachine machine = exec::calibrate(options);
  for (const NotMeasured& each : machine.failed) FAIL_CHECK(each.name << ": " << each.why);
  CHECK(families(machine) == std::set<std::string>{"attention", "attention_backward", "collective_threads", "copy_d2d",
                                                   "copy_d2h_pageable", "copy_d2h_pinned", "copy_h2d_pageable",
                                                   "copy_h2d_pinned", "cublaslt_handle", "elementwise", "file_read",
                                                   "file_write", "first_use", "gemm", "host_adam", "kernel"});
  CHECK(parts.size() == 7);
  std::set<std::string> names;
  for (const MeasuredRow& row : machine.rows) {
    INFO(row.name);
    CHECK(names.insert(row.name).second);
    CHECK(!row.how.empty());
    CHECK(row.samples.size() >= (row.unit == Unit::PlainBytes ? 1 : 3));
    CHECK(row.value() >= (row.unit == Unit::PlainBytes ? 0 : 1));
  }
  CHECK(machine.find("launch") == nullptr);  // A host that does everything at once enqueues nothing.
  CHECK(host.left_behind() == 0);
}

TEST_CASE("what a machine refuses is named, and the rest goes on") {
  const Folder folder;
  const exec::HostBackend host(with_kernels());
  const exec::WatchedBackend watched(host.table());
  (void)exec::calibrate(quick(watched.table(), folder));
  const std::int64_t calls = watched.calls(0);
  for (const std::int64_t at : {std::int64_t{30}, calls / 50, calls / 5}) {
    const exec::WatchedBackend broken(host.table(), exec::WatchedBackend::Fault{0, at, DSPLAN_OUT_OF_MEMORY});
    const MeasuredMachine machine = exec::calibrate(quick(broken.table(), folder));
    INFO("call " << at << ", " << broken.failed());
    CHECK(!machine.failed.empty());
    CHECK(machine.rows.size() > 20);
    for (const NotMeasured& each : machine.failed) {
      CHECK(machine.find(each.name) == nullptr);  // Absent, not nothing.
      CHECK(!each.why.empty());
    }
  }
}

TEST_CASE("without time nothing is measured, and each part says so") {
  const Folder folder;
  const exec::HostBackend host(with_kernels());
  exec::CalibrateOptions options = quick(host.table(), folder);
  options.time = std::chrono::nanoseconds(0);
  const MeasuredMachine machine = exec::calibrate(options);
  CHECK(machine.rows.empty());
  CHECK(machine.failed.size() == 7);
  for (const NotMeasured& each : machine.failed) CHECK(each.why == "no time was left");
}

TEST_CASE("who asks to stop gets what there is") {
  const Folder folder;
  const exec::HostBackend host(with_kernels());
  std::atomic<bool> stop{false};
  exec::CalibrateOptions options = quick(host.table(), folder);
  options.stop = &stop;
  options.progress = [&](const std::string& part) { stop = part == "kernels"; };
  const MeasuredMachine machine = exec::calibrate(options);
  CHECK(machine.interrupted);
  CHECK(families(machine) == std::set<std::string>{"cublaslt_handle", "first_use", "gemm"});
  CHECK(Json::parse(file_of(machine))["calibration"]["complete"] == false);
}

TEST_CASE("the file is one of the hardware, and one of measurements") {
  const std::string text = file_of(by_hand());
  const Json json = Json::parse(text);
  CHECK(json["tflops"]["fp32"] == 0.004);
  CHECK(json["memory_gb_per_s"] == 10.0);
  CHECK(json["host_link_gb_per_s"] == 4.0);
  CHECK(json["link_gb_per_s"] == 2.0);
  CHECK(json["calibration"]["complete"] == false);
  CHECK(json["calibration"]["failed"][0]["name"] == "file_read:1000");
  for (const Json& row : json["calibration"]["rows"]) CHECK(row["name"] != "file_read:1000");
  const Document document = parse_json("mine.json", text);
  const Hardware hardware = read_hardware(document);
  CHECK(hardware.architecture == "host");
  CHECK(hardware.capacity == Bytes(1'000'000'000));
  CHECK(!hardware.context);  // Nobody measured one.
  for (const Calibration& read : {read_calibration(document), *calibration_in(document)}) {
    CHECK(read.gpu == "host (a processor)");
    CHECK(read.rates.at("gemm:fp32:512x512x512") == 4e9);
    CHECK(read.rates.at("kernel") == 1e6);
    CHECK(!read.rates.contains("file_read:1000"));
  }
  CHECK(!calibration_in(parse_json("h.json", R"({"kind": "hardware"})")));
  CHECK_THROWS_AS((void)calibration_in(parse_json("h.json", R"({"kind": "hardware", "calibration": {"rows": 3}})")),
                  Refusal);
}

TEST_CASE("a GPU's file has what a data sheet says and nothing measures") {
  MeasuredMachine machine = by_hand();
  machine.backend = "cuda";
  machine.device = "NVIDIA H200";
  machine.rows.push_back({"context", Unit::PlainBytes, "by hand", {555}});
  machine.rows.push_back({"collective_virtual:all_reduce:2:1000000", Unit::BytesPerSecond, "by hand", {1}});
  CalibratedFile file;
  file.name = "h200-calibrated";
  file.source = "a test";
  file.like = load_hardware("h200-sxm");
  const Json json = Json::parse(calibrated_hardware_json(machine, file));
  CHECK(json["tflops"]["bf16"] == file.like->tflops.at("bf16"));
  CHECK(json["multiprocessors"] == 132);
  CHECK(json["context_bytes"] == 555);
  CHECK(json["architecture"] == "sm_90");
  MeasuredMachine alone = machine;
  std::erase_if(alone.rows, [](const MeasuredRow& row) { return row.name.starts_with("collective_threads"); });
  CHECK(Json::parse(calibrated_hardware_json(alone, file))["link_gb_per_s"] == file.like->link_gb_per_s);
}

TEST_CASE("a host's steps are estimated from what was measured on it") {
  const Job job = job_on(file_of(by_hand()));
  const Rates rates = Rates::of(job);
  CHECK(rates.calibrated());
  CHECK(near(rates.product(1, 512, 512, 512, DType::Float32), 1e-6 + 2 * std::pow(512.0, 3) / 4e9));
  CHECK(near(rates.product(1, 64, 64, 64, DType::Float32), 1e-6 + 2 * std::pow(64.0, 3) / 1e9));
  const double between = rates.product(1, 128, 128, 128, DType::Float32) - 1e-6;
  CHECK(between > 2 * std::pow(128.0, 3) / 4e9);
  CHECK(between < 2 * std::pow(128.0, 3) / 1e9);
  // As at the smallest that was measured.
  CHECK(near(rates.product(1, 8, 8, 8, DType::Float32), 1e-6 + 2 * 512 / 1e9));
  CHECK(near(rates.memory(Bytes(1'000'000)), 1e-6 + 1e-3));  // The median at the largest size.
  CHECK(near(rates.collective(Collective::AllReduce, Group::DataParallel, Bytes(2'000'000)), 2e-3));
  CHECK(near(rates.collective(Collective::Broadcast, Group::DataParallel, Bytes(2'000'000)), 1e-3));
  CHECK(near(rates.host_optimizer(Elements(50'000'000)), 1.0));  // Two ranks share the host.
  CHECK(near(rates.nvme(Bytes(150'000'000), true), 1.0));
  CHECK(rates.launch() == 0);
  CHECK(rates.between_steps() == 0);
  CHECK(has(rates.basis(), "matrix products"));
  CHECK(has(rates.basis(), "collectives between threads as measured (mine.json)"));
}

TEST_CASE("the command writes a file that simulate, plan and run take") {
  const Folder folder;
  const Ran made = run_binary(folder, split("calibrate --quick --out mine.json"));
  REQUIRE_MESSAGE(made.code == 0, made.err);
  CHECK(made.out.empty());
  CHECK(has(made.err, "calibrate: products\n"));
  const std::string tiny = test_paths::source_dir() + "/models/tiny-llama.json --seq 32 --dtype fp32 ";
  const Ran simulated = run_binary(folder, split("simulate " + tiny + "--hardware mine.json --format json"));
  REQUIRE_MESSAGE(simulated.code == 0, simulated.err);
  const Json said = Json::parse(simulated.out);
  CHECK(said["time"]["calibrated"] == true);
  const double estimated = said["time"]["seconds"];
  CHECK(estimated > 0);
  const Ran ran = run_binary(folder, split("run " + tiny + "--hardware mine.json --out r.json"));
  REQUIRE_MESSAGE(ran.code == 0, ran.err << ran.out);
  const Json receipt = Json::parse(slurp(folder / "r.json"));
  const double measured = receipt["samples"].back()["step_ns"].get<double>() / 1e9;
  MESSAGE("estimated " << estimated << " s, measured " << measured << " s");
  // What was calibrated on the host is the code of products and kernels, and no context.
  CHECK(receipt["process"]["rows"].size() == 2);
  CHECK(receipt["process"]["unexplained"].is_number_integer());
  CHECK(has(ran.out, "process: "));
  const Ran planned = run_binary(folder, split("plan " + tiny +
                                               "--hardware mine.json --gpus 2 --global-batch 4 --vary tp=1 "
                                               "--vary offload=none --emit plan --out plan.json"));
  CHECK_MESSAGE(planned.code == 0, planned.err);
  const Ran again = run_binary(folder, split("simulate plan.json --format json"));
  REQUIRE_MESSAGE(again.code == 0, again.err);
  CHECK(Json::parse(again.out)["time"]["calibrated"] == true);  // The plan has it all.
}

TEST_CASE("what cannot be measured is refused by name") {
  const Folder folder;
  ::setenv("DSPLAN_CUDA_PLUGIN", (std::string(DSPLAN_TEST_BACKENDS) + "/libdsplan_backend_no_device.so").c_str(), 1);
  const Ran none = run_binary(folder, split("calibrate --backend cuda --out c.json"));
  ::unsetenv("DSPLAN_CUDA_PLUGIN");
  CHECK(none.code == 6);
  CHECK(has(none.err, "--backend cuda: not available: no usable device: none is plugged in"));
  CHECK(!std::filesystem::exists(folder / "c.json"));
  const Ran unknown = run_binary(folder, split("calibrate --backend tpu"));
  CHECK(unknown.code == 2);
  CHECK(has(unknown.err, "no backend \"tpu\""));
  const Ran odd = run_binary(folder, split("calibrate --hardware h100-sxm"));
  CHECK(odd.code == 2);
  const Ran nowhere = run_binary(folder, split("calibrate --quick --out no/such/folder.json"));
  CHECK(nowhere.code == 2);
  CHECK(!has(nowhere.err, "calibrate: products"));  // Before anything is measured.
}

TEST_CASE("Ctrl-C leaves a file that is whole and says that it is not complete") {
  const Folder folder;
  spill(folder / "mine.json", "an older one");
  const pid_t child = ::fork();
  if (child == 0) {
    if (::chdir(folder.path().c_str()) != 0) ::_exit(99);
    ::dup2(::open("err", O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    ::execl(test_paths::binary(), test_paths::binary(), "calibrate", "--out", "mine.json", nullptr);
    ::_exit(98);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!has(slurp(folder / "err"), "calibrate: products\n") && std::chrono::steady_clock::now() < deadline) {
    ::usleep(20'000);
    CHECK(slurp(folder / "mine.json") == "an older one");
  }
  ::kill(child, SIGINT);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 130);
  const Json json = Json::parse(slurp(folder / "mine.json"));
  CHECK(json["calibration"]["complete"] == false);
  std::size_t files = 0;
  for (const auto& each : std::filesystem::directory_iterator(folder.path())) files += each.is_regular_file() ? 1U : 0U;
  CHECK(files == 2);  // It and `err`.
}
