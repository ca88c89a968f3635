// Where results go. Nothing else in dsplan writes to the standard streams.
#pragma once

#include <string>
#include <string_view>

namespace dsplan {

// Standard output, or a file that appears only when it is complete: it is opened beside its final name before any work
// starts, and renamed by `finish`. Something that is no regular file (/dev/null, a pipe) is written to directly.
class Output {
 public:
  // Empty: standard output. Refuses, under the name of the option that said it, a path that cannot be written.
  explicit Output(std::string path, std::string option = "--out");
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output();  // Without `finish`, a file leaves no trace.

  // Whether colours make sense: a terminal, and NO_COLOR is not set (no-color.org). `wish`: "always" and "never" decide
  // themselves, "auto" does not.
  [[nodiscard]] bool colour(std::string_view wish = "auto") const;
  void add(std::string_view text) { text_ += text; }
  // Writes everything. Refuses when the system does not take it (a full disk, a closed descriptor); a reader that has
  // gone away (EPIPE) is no fault.
  void finish();

 private:
  std::string path_;  // As the user named it; for messages, as the next.
  std::string option_;
  std::string final_;      // With links resolved.
  std::string temporary_;  // Empty: written directly.
  int descriptor_ = 1;
  std::string text_;
};

// To standard error; failures are nobody's business.
void say(std::string_view text);

}  // namespace dsplan
