// The loader of backends that are libraries: what it finds, what it refuses and with which reason, and that a run goes
// through it. The libraries are small ones of tests/plugins; the real one is loaded where it was built.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "exec/device.h"
#include "exec/plugin.h"
#include "paths.h"
#include "run_binary.h"
#include "texts.h"

using namespace dsplan;
using namespace dsplan::test;

namespace {

std::string library(const std::string& name) {
  return std::string(DSPLAN_TEST_BACKENDS) + "/libdsplan_backend_" + name + ".so";
}

// What $DSPLAN_CUDA_PLUGIN says, for this test and the programs that it starts.
class Named {
 public:
  explicit Named(const std::string& path) { ::setenv("DSPLAN_CUDA_PLUGIN", path.c_str(), 1); }
  ~Named() { ::unsetenv("DSPLAN_CUDA_PLUGIN"); }
  Named(const Named&) = delete;
  Named& operator=(const Named&) = delete;
};

std::string why(const std::string& name) {
  const exec::Plugin plugin = exec::load_plugin_from(library(name));
  CHECK(plugin.table == nullptr);
  return plugin.why;
}

// That of the table in tests/plugins that is one ahead of ours.
const std::string kOtherVersion = "it speaks version " + std::to_string(DSPLAN_BACKEND_VERSION + 1);

const std::string kRun = "run " + test_paths::source_dir() +
                         "/models/tiny-llama.json --micro-batch 1 --seq 16 --dtype bf16 --ranks 2 --zero-stage 3 ";

}  // namespace

TEST_CASE("a library that is a backend is loaded") {
  const exec::Plugin plugin = exec::load_plugin_from(library("on_host"));
  REQUIRE_MESSAGE(plugin.table != nullptr, plugin.why);
  CHECK(std::string(plugin.table->name) == "cuda");
  exec::Device device(*plugin.table, {});
  CHECK(!device.synchronous());
  CHECK(!device.host_readable());
  device.close();
}

TEST_CASE("every other library is refused with its reason") {
  CHECK(has(why("other_version"), kOtherVersion + " of the interface in "));
  CHECK(has(why("no_symbol"), "it is no backend of dsplan: it has no dsplan_backend_table"));
  CHECK(has(why("missing"), "No such file"));
  const std::string text = test_paths::source_dir() + "/CMakeLists.txt";
  const exec::Plugin plugin = exec::load_plugin_from(text);
  CHECK(plugin.table == nullptr);
  CHECK(plugin.why.rfind(text + ": ", 0) == 0);
  CHECK(plugin.why.find(text, 1) == std::string::npos);  // The loader names it, too: told once.
}

TEST_CASE("where a backend is looked for") {
  {
    const Named named("/somewhere/else.so");
    CHECK(exec::plugin_places("cuda") == std::vector<std::string>{"/somewhere/else.so"});
    CHECK(has(exec::load_plugin("cuda").why, "/somewhere/else.so: "));
  }
  const std::vector<std::string> places = exec::plugin_places("other");
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  REQUIRE(places.size() == 2);
  CHECK(places[0] == (program / "libdsplan_other.so").string());
  CHECK(places[1] == (program.parent_path() / "lib/dsplan/libdsplan_other.so").string());
  const exec::Plugin plugin = exec::load_plugin("other");
  CHECK(plugin.table == nullptr);
  CHECK(has(plugin.why, "there is no " + places[0] + ", and no " + places[1]));
}

TEST_CASE("a run goes through a loaded backend, with the device's kernels") {
  const Folder folder;
  const Named named(library("on_host"));
  for (const char* words : {"", "--placement planned", "--grad-accum 2 --steps 3",
                            "--alloc-conf expandable_segments:True", "--tp 2 --attention eager"}) {
    CAPTURE(words);
    const Ran ran = run_binary(folder, split(kRun + "--backend cuda --out receipt.json " + words));
    CHECK_MESSAGE(ran.code == 0, ran.err << ran.out);
    CHECK(has(ran.out, "tiny-llama-run: agrees (cuda, virtual)"));
    const Ran again = run_binary(folder, split("compare --re-predict receipt.json"));
    CHECK_MESSAGE(again.code == 0, again.out);
  }
  const Ran doctor = run_binary(folder, {"doctor"});
  CHECK(has(doctor.out, "CUDA          host, "));
}

TEST_CASE("losses through a loaded backend are those of the host") {
  const Folder folder;
  const Named named(library("on_host"));
  const auto losses = [&](const std::string& words) {
    const Ran ran = run_binary(folder, split(kRun + words));
    const std::size_t at = ran.out.find("loss of rank 0: ");
    REQUIRE(at != std::string::npos);
    return std::pair{std::stod(ran.out.substr(at + 16)),
                     std::stod(ran.out.substr(ran.out.find("micro-batch, ", at) + 13))};
  };
  const auto host = losses("--steps 4");
  const auto loaded = losses("--steps 4 --backend cuda --transport virtual");
  CHECK(std::abs(host.first - loaded.first) < 0.01);
  CHECK(std::abs(host.second - loaded.second) < 0.05);
}

TEST_CASE("without library, driver or device a run ends with exit code 6 and the reason") {
  const Folder folder;
  for (const auto& [name, reason] : {std::pair{"no_device", "no usable device: none is plugged in"},
                                     {"missing", "No such file"},
                                     {"other_version", kOtherVersion.c_str()}}) {
    const Named named(library(name));
    const Ran ran = run_binary(folder, split(kRun + "--backend cuda"));
    CHECK(ran.code == 6);
    CHECK(ran.out.empty());
    CHECK_MESSAGE(has(ran.err, "--backend cuda: not available: "), ran.err);
    CHECK_MESSAGE(has(ran.err, reason), ran.err);
    const Ran doctor = run_binary(folder, {"doctor"});
    CHECK(doctor.code == 0);
    CHECK_MESSAGE(has(doctor.out, reason), doctor.out);
  }
  const Named named(library("on_host"));
  CHECK(run_binary(folder, split(kRun + "--backend cuda --transport threads")).code == 2);
  CHECK(run_binary(folder, split(kRun + "--transport virtual")).code == 2);
}

#ifdef DSPLAN_CUDA_LIBRARY
TEST_CASE("the CUDA plugin loads where there is no driver, and says so") {
  const exec::Plugin plugin = exec::load_plugin_from(DSPLAN_CUDA_LIBRARY);
  REQUIRE_MESSAGE(plugin.table != nullptr, plugin.why);
  CHECK(std::string(plugin.table->name) == "cuda");
  const bool launches = plugin.table->launch != nullptr;
  CHECK(launches);
  std::optional<exec::Failure> failure;
  try {
    exec::Device device(*plugin.table, {});
    MESSAGE("a GPU is here: " << device.info().name);
    device.close();
  } catch (const exec::RunFailure& refused) {
    failure = refused.failure();
  }
  if (!failure) return;
  CHECK(failure->status == DSPLAN_UNAVAILABLE);
  CHECK_MESSAGE(has(failure->text, "no usable CUDA device"), failure->text);
}
#endif
