// Training scripts of others, run unchanged through `dsplan measure` on the dry device, and what a prediction from the
// file of settings that they were given says of them (docs/fsdp.md).
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <cmath>

#include "paths.h"
#include "run_binary.h"

using namespace dsplan::test;
using Json = nlohmann::ordered_json;

namespace {

// Of the phases of a step, one after the other: by how much each prediction is off at most, in percent.
std::vector<double> errors_of(const Json& measured, const Json& phases) {
  std::vector<double> errors(3, 0);
  const char* const peaks[] = {"peak_requested", "peak_allocated", "peak_reserved"};
  for (const Json& phase : phases) {
    const std::string name = phase["name"];
    if (name == "init") continue;
    for (std::size_t at = 0; at < errors.size(); ++at) {
      const auto real = measured.at(name)[at].get<double>();
      const double error = 100 * std::abs(phase[peaks[at]].get<double>() - real) / real;
      errors[at] = std::max(errors[at], error);
    }
  }
  return errors;
}

}  // namespace

// Activations and loss are those of transformers' model: where layers are checkpointed little of them is left.
TEST_CASE("torchtitan's own training script is predicted from its own file") {
  const Json receipts = Json::parse(slurp(test_paths::source_dir() + "/tests/receipts/launchers/torchtitan.json"));
  REQUIRE(receipts["runs"].size() == 10);
  for (const Json& run : receipts["runs"]) {
    const std::string name = run["name"];
    const Folder folder;
    spill(folder / "train.toml", run["training"].get<std::string>());
    const Ran ran = run_binary(
        folder, split("simulate --training train.toml --gpus " + run["world"].dump() + " --rank " + run["rank"].dump() +
                      " --hardware h100-sxm --stream-frees immediate --host-memory 8TiB --format json"));
    CHECK_MESSAGE((ran.code == 0 || ran.code == 3), name, ran.err);
    const std::vector<double> errors = errors_of(run["measured"], Json::parse(ran.out)["memory"]["phases"]);
    const bool whole = name.find("-none-") != std::string::npos || name.find("-op2-") != std::string::npos;
    CAPTURE(name);
    CHECK(errors[0] < (whole ? 13.1 : 1.1));
    CHECK(errors[1] < (whole ? 13.1 : 1.1));
    CHECK(errors[2] < (whole ? 15.1 : 1.0));
  }
}
