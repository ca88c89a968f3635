// Whole reports, byte for byte. DSPLAN_UPDATE_GOLDEN=1 writes them anew; tests/golden/README.md says when.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>

#include "paths.h"
#include "run_binary.h"

using namespace dsplan::test;
namespace fs = std::filesystem;

namespace {

std::string golden_folder() { return test_paths::source_dir() + "/tests/golden"; }

std::vector<std::string> cases() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(golden_folder())) {
    if (fs::exists(entry.path() / "command")) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("golden reports") {
  const bool update = std::getenv("DSPLAN_UPDATE_GOLDEN") != nullptr;
  REQUIRE(cases().size() >= 6);
  for (const std::string& name : cases()) {
    CAPTURE(name);
    const std::string source = golden_folder() + "/" + name;
    const Folder folder;
    fs::copy(source, folder.path(), fs::copy_options::recursive);
    std::string line = slurp(source + "/command");
    line.erase(line.find_last_not_of('\n') + 1);
    for (const auto& [format, file] : {std::pair{"json", "/expected.json"}, std::pair{"table", "/expected.txt"}}) {
      std::vector<std::string> words = split(line);
      words.insert(words.end(), {"--format", format, "--verbose"});
      const Ran ran = run_binary(folder, words);
      CAPTURE(ran.err);
      CHECK((ran.code == 0 || ran.code == 3));
      if (update) {
        spill(source + file, ran.out);
      } else {
        const bool same = ran.out == slurp(source + file);
        CHECK_MESSAGE(same, source, file, " differs from:\n", ran.out);
      }
    }
  }
}
