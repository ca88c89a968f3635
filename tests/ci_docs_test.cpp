// Keeps docs/ci.md true: each "$ command" of its console blocks is run, one after the other, in a copy of
// docs/examples/ci, and what it prints is what the page shows. DSPLAN_UPDATE_DOCS=1 rewrites the page.
#include <doctest/doctest.h>

#include <cstdlib>

#include "paths.h"
#include "run_binary.h"

using namespace dsplan::test;
namespace fs = std::filesystem;

namespace {

const std::string kDocs = test_paths::source_dir() + "/docs";

std::string output_of(const Folder& folder, const std::string& command) {
  const std::string out = folder / ".printed";
  const std::string path = fs::path(test_paths::binary()).parent_path().string();
  const std::string line = "cd '" + folder.path() + "/ci' && PATH='" + path +
                           "':\"$PATH\" NO_COLOR=1 && export PATH && { " + command + "\n} > '" + out + "' 2> /dev/null";
  const int status = std::system(line.c_str());
  CHECK(WIFEXITED(status));
  return slurp(out);
}

// The block with the output of its commands put in anew.
std::string printed_anew(const Folder& folder, const std::string& block) {
  std::istringstream lines(block);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("$ ")) text += line + "\n" + output_of(folder, line.substr(2));
  }
  return text;
}

}  // namespace

TEST_CASE("docs/ci.md shows what its commands print") {
  const Folder folder;
  fs::copy(kDocs + "/examples/ci", folder / "ci", fs::copy_options::recursive);
  const std::string page = slurp(kDocs + "/ci.md");
  const std::string fence = "\n```console\n";
  std::string anew;
  std::size_t from = 0;
  int blocks = 0;
  for (std::size_t at = page.find(fence); at != std::string::npos; at = page.find(fence, from)) {
    const std::size_t begin = at + fence.size();
    const std::size_t end = page.find("```\n", begin);
    REQUIRE(end != std::string::npos);
    anew += page.substr(from, begin - from) + printed_anew(folder, page.substr(begin, end - begin));
    from = end;
    ++blocks;
  }
  anew += page.substr(from);
  CHECK(blocks == 4);
  if (std::getenv("DSPLAN_UPDATE_DOCS") != nullptr) return spill(kDocs + "/ci.md", anew);
  CHECK(anew == page);
  CHECK(page.find("zero_optimization.reduce_bucket_size: 16777216 -> 50000000") != std::string::npos);
}

TEST_CASE("the workflow of docs/examples calls check as it is") {
  const std::string workflow = slurp(kDocs + "/examples/memory.yml");
  const Folder folder;
  fs::copy(kDocs + "/examples/ci", folder / "ci", fs::copy_options::recursive);
  (void)output_of(folder,
                  "dsplan check --add baselines/a.json llama-3-8b --deepspeed ds.json --training train.json --gpus 8 "
                  "--hardware gpu.json");
  int calls = 0;
  std::istringstream lines(workflow);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find("dsplan check");
    if (at == std::string::npos) continue;
    ++calls;
    const std::string said = output_of(folder, line.substr(at) + " && echo fine");
    CHECK_MESSAGE(said.find("fine\n") != std::string::npos, line);
  }
  CHECK(calls == 3);
}
