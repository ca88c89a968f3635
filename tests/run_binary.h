// Runs the real `dsplan` as a black box, in a folder of its own.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "paths.h"

namespace dsplan::test {

inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void spill(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "dsplan-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Ran {
  int code = -1;  // 128 + signal where one killed it.
  std::string out;
  std::string err;
};

// An `out_path`: a pipe whose reader has gone away.
inline const std::string kNoReader = "|";

// Standard output goes to `out_path` where one is given ("/dev/full").
inline Ran run_binary(const Folder& folder, const std::vector<std::string>& words, const std::string& out_path = {}) {
  const std::string out = out_path.empty() ? folder / ".out" : out_path;
  const std::string err = folder / ".err";
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<char*> arguments{const_cast<char*>(test_paths::binary())};
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    if (::chdir(folder.path().c_str()) != 0) ::_exit(99);
    int ends[2] = {-1, -1};
    if (out_path == kNoReader && ::pipe(ends) == 0) {
      ::close(ends[0]);
      ::dup2(ends[1], 1);
    } else {
      ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
    }
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    ::execv(test_paths::binary(), arguments.data());
    ::_exit(98);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return {code, out_path.empty() ? slurp(out) : std::string(), slurp(err)};
}

// "a b 'c d'": words at blanks; quotes keep blanks.
inline std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool quoted = false, any = false;
  for (const char c : line) {
    if (c == '\'') {
      quoted = !quoted;
      any = true;
    } else if (c == ' ' && !quoted) {
      if (any) words.push_back(word);
      word.clear();
      any = false;
    } else {
      word += c;
      any = true;
    }
  }
  if (any) words.push_back(word);
  return words;
}

// The number of characters of the widest line.
inline std::size_t widest_line(const std::string& text) {
  std::size_t widest = 0, width = 0;
  for (const char c : text) {
    if (c == '\n') {
      width = 0;
    } else if ((static_cast<unsigned char>(c) & 0xC0U) != 0x80U) {
      widest = std::max(widest, ++width);
    }
  }
  return widest;
}

}  // namespace dsplan::test
