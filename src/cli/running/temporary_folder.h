// A folder for the files of one command, which goes with it.
#pragma once

#include <string>
#include <string_view>

namespace dsplan {

class TemporaryFolder {
 public:
  // Under TMPDIR, with the command in its name. Refuses, in the command's name, where none can be made.
  explicit TemporaryFolder(std::string_view command);
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace dsplan
