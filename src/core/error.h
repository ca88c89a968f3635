// How dsplan says no.
//
// One rule for the whole house: a function that cannot do what it was asked throws; `cli/main.cpp` is the only place
// that catches and turns the kind of refusal into an exit code. Readers collect several faults in a `Diagnostics`
// and throw them together.
//
//   Refusal        the input is wrong, contradicts itself, overflows, or asks for what is not modelled   -> exit 2
//   InternalError  an invariant of dsplan itself is broken (DSPLAN_CHECK)                                -> exit 1
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace dsplan {

// One fault with its address. `line` and `column` count from 1; 0 means that the fault has no place in a file
// (a command-line option, say), and then only `path` (the option's name) and the message are printed.
struct Diagnostic {
  std::string path;
  std::size_t line = 0;
  std::size_t column = 0;
  std::string source_line;       // The text of that line, untrimmed; cut around the column when printed.
  std::string message;           // What is wrong and which rule says so.
  std::string hint;              // Nearest valid name or next step; may be empty.
  std::size_t source_begin = 0;  // Characters of the line that were cut off before `source_line`.
};

// `path:line:col: error: message; hint` followed by the line and a caret. Lines longer than 100 columns are cut.
[[nodiscard]] std::string render(const Diagnostic& diagnostic, std::string_view severity = "error");

class Refusal : public std::exception {
 public:
  explicit Refusal(std::vector<Diagnostic> diagnostics);
  // A fault without a place in a file. `where` names the option or the input.
  Refusal(std::string where, std::string message, std::string hint = {});

  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] const std::vector<Diagnostic>& diagnostics() const noexcept { return diagnostics_; }

 private:
  std::vector<Diagnostic> diagnostics_;
  std::string text_;
};

// Collects up to kMost faults; the rest are counted. `throw_if_any` ends a reader.
class Diagnostics {
 public:
  static constexpr std::size_t kMost = 20;

  void add(Diagnostic diagnostic);
  [[nodiscard]] bool any() const noexcept { return count_ > 0; }
  [[nodiscard]] bool full() const noexcept { return count_ >= kMost; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] const std::vector<Diagnostic>& list() const noexcept { return list_; }
  void throw_if_any() const;

 private:
  std::vector<Diagnostic> list_;
  std::size_t count_ = 0;
};

class InternalError : public std::exception {
 public:
  explicit InternalError(std::string text) : text_(std::move(text)) {}
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& detail);

}  // namespace dsplan

// An invariant of dsplan; on in every build type.
#define DSPLAN_CHECK(condition, detail)                                                 \
  do {                                                                                  \
    if (!(condition)) ::dsplan::check_failed(#condition, __FILE__, __LINE__, (detail)); \
  } while (false)
