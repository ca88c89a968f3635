// Keeps the README true: the output that it shows is what its first command prints. DSPLAN_UPDATE_DOCS=1 writes it.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "io/text.h"
#include "paths.h"

namespace {

const std::filesystem::path kReadme = std::filesystem::path(test_paths::source_dir()) / "README.md";

// Standard output of `dsplan ARGUMENTS`, run in the root of the tree as the README says; it must succeed.
std::string output_of(const std::string& arguments) {
  const std::string command = "cd '" + test_paths::source_dir() + "' && env -u DSPLAN_DATA NO_COLOR=1 '" +
                              test_paths::binary() + "' " + arguments;
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  std::array<char, 4096> piece{};
  for (std::size_t read = 0; (read = std::fread(piece.data(), 1, piece.size(), pipe)) > 0;)
    text.append(piece.data(), read);
  const int status = pclose(pipe);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  return text;
}

TEST_CASE("the README shows what its first command prints") {
  const std::string page = dsplan::read_file(kReadme);
  const std::string run = "\ntools/run ";
  const std::size_t line = page.find(run);
  REQUIRE(line != std::string::npos);
  const std::size_t arguments = line + run.size();
  const std::string printed = output_of(page.substr(arguments, page.find('\n', arguments) - arguments));
  CHECK(printed.size() > 500);

  // The second fenced block.
  const std::string fence = "\n```\n";
  std::size_t from = page.find(fence, page.find(fence, arguments) + fence.size());
  REQUIRE(from != std::string::npos);
  from += fence.size();
  const std::size_t to = page.find("```", from);
  REQUIRE(to != std::string::npos);
  const std::string shown = page.substr(from, to - from);
  CHECK(std::count(printed.begin(), printed.end(), '\n') <= 16);
  if (std::getenv("DSPLAN_UPDATE_DOCS") != nullptr) {
    std::ofstream(kReadme, std::ios::binary) << page.substr(0, from) << printed << page.substr(to);
    return;
  }
  CHECK(shown == printed);
}

}  // namespace
