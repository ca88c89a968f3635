// Keeps docs/ci.md true: each "$ command" of its console blocks is run, one after the other, in a copy of
// docs/examples/ci, and what it prints is what the page shows. DSPLAN_UPDATE_DOCS=1 rewrites the page.
#include <doctest/doctest.h>

#include "console_page.h"

using namespace dsplan::test;
namespace fs = std::filesystem;

namespace {

const std::string kDocs = test_paths::source_dir() + "/docs";

}  // namespace

TEST_CASE("docs/ci.md shows what its commands print") {
  const Folder folder;
  fs::copy(kDocs + "/examples/ci", folder / "ci", fs::copy_options::recursive);
  const ConsolePage page(kDocs + "/ci.md", folder / "ci");
  CHECK(page.blocks == 4);
  page.check();
  CHECK(page.text.find("zero_optimization.reduce_bucket_size: 16777216 -> 50000000") != std::string::npos);
}

TEST_CASE("the workflow of docs/examples calls check as it is") {
  const std::string workflow = slurp(kDocs + "/examples/memory.yml");
  const Folder folder;
  fs::copy(kDocs + "/examples/ci", folder / "ci", fs::copy_options::recursive);
  (void)console_output(
      folder / "ci",
      "dsplan check --add baselines/a.json llama-3-8b --deepspeed ds.json --training train.json --gpus 8 "
      "--hardware gpu.json");
  int calls = 0;
  std::istringstream lines(workflow);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find("dsplan check");
    if (at == std::string::npos) continue;
    ++calls;
    const std::string said = console_output(folder / "ci", line.substr(at) + " && echo fine");
    CHECK_MESSAGE(said.find("fine\n") != std::string::npos, line);
  }
  CHECK(calls == 3);
}
