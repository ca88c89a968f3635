// Where tests find the tree and the program. One file alone knows the paths (paths.cpp), so that all others compile to
// the same object in every clone.
#pragma once

#include <string>

namespace test_paths {

[[nodiscard]] std::string source_dir();
[[nodiscard]] const char* binary();

}  // namespace test_paths
