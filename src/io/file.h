// A regular file opened for reading in pieces. Not for use outside io's readers.
#pragma once

#include <cstdint>
#include <string>

namespace dsplan::detail {

class File {
 public:
  // Refused: missing, unreadable, not a regular file.
  explicit File(const std::string& path);
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  [[nodiscard]] std::uint64_t size() const { return size_; }  // When it was opened.
  // Up to `count` bytes from `offset`; less only where the system gives less, 0 at the end.
  [[nodiscard]] std::size_t read(std::uint64_t offset, char* into, std::size_t count) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace dsplan::detail
