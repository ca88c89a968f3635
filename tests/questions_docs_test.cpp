// Keeps docs/questions true: every command of every page prints what the page shows. DSPLAN_UPDATE_DOCS=1 rewrites
// them.
#include <doctest/doctest.h>

#include "console_page.h"

using namespace dsplan::test;
namespace fs = std::filesystem;

TEST_CASE("docs/questions: each question's commands print what its page shows, and something") {
  const std::string docs = test_paths::source_dir() + "/docs";
  int pages = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(docs + "/questions")) {
    const std::string path = entry.path().string();
    if (entry.path().filename() == "README.md") continue;
    CAPTURE(path);
    ++pages;
    const Folder folder;
    fs::copy(docs + "/examples/questions", folder / "job", fs::copy_options::recursive);
    const ConsolePage page(path, folder / "job");
    CHECK(page.blocks >= 1);
    CHECK(page.silent == "");
    page.check();
    // The index leads to each.
    CHECK(slurp(docs + "/questions/README.md").find("(" + entry.path().filename().string() + ")") != std::string::npos);
  }
  CHECK(pages == 8);
}
