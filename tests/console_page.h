// Pages of docs whose console blocks are run again: each "$ command" in a folder, with what it prints below it.
// DSPLAN_UPDATE_DOCS=1 rewrites the page.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>

#include "run_binary.h"

namespace dsplan::test {

// Standard output of a shell's command line in `folder`, with this build's `dsplan` first in PATH. Its exit code is its
// own affair.
inline std::string console_output(const std::string& folder, const std::string& command) {
  const Folder printed;
  const std::string out = printed / "out";
  const std::string path = std::filesystem::path(test_paths::binary()).parent_path().string();
  const std::string line = "cd '" + folder + "' && unset COLUMNS DSPLAN_DATA; PATH='" + path +
                           "':\"$PATH\" NO_COLOR=1 && export PATH NO_COLOR && { " + command + "\n} > '" + out +
                           "' 2> /dev/null < /dev/null";
  const int status = std::system(line.c_str());
  CHECK(WIFEXITED(status));
  return slurp(out);
}

struct ConsolePage {
  std::string path;
  std::string text;    // As it stands.
  std::string anew;    // With the output of its commands put in anew.
  std::string silent;  // Commands of dsplan that print nothing: a refusal goes to standard error.
  int blocks = 0;

  ConsolePage(std::string page, const std::string& folder) : path(std::move(page)), text(slurp(path)) {
    const std::string fence = "\n```console\n";
    std::size_t from = 0;
    for (std::size_t at = text.find(fence); at != std::string::npos; at = text.find(fence, from)) {
      const std::size_t begin = at + fence.size();
      const std::size_t end = text.find("```\n", begin);
      REQUIRE(end != std::string::npos);
      anew += text.substr(from, begin - from);
      std::istringstream lines(text.substr(begin, end - begin));
      for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with("$ ")) continue;
        const std::string printed = console_output(folder, line.substr(2));
        if (printed.empty() && line.starts_with("$ dsplan")) silent += line + "\n";
        anew += line + "\n" + printed;
      }
      from = end;
      ++blocks;
    }
    anew += text.substr(from);
  }
  void check() const {
    if (std::getenv("DSPLAN_UPDATE_DOCS") != nullptr) return spill(path, anew);
    CHECK(anew == text);
  }
};

}  // namespace dsplan::test
