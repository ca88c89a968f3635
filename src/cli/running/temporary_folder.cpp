#include "cli/running/temporary_folder.h"

#include <stdlib.h>

#include <filesystem>

#include "core/error.h"
#include "core/format.h"

namespace dsplan {

TemporaryFolder::TemporaryFolder(std::string_view command) {
  std::string pattern = (std::filesystem::temp_directory_path() / formatted("dsplan-{}-XXXXXX", command)).string();
  const char* made = ::mkdtemp(pattern.data());
  if (made == nullptr)
    throw Refusal(std::string(command), formatted("no folder \"{}\" can be made for files", pattern));
  path_ = made;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace dsplan
