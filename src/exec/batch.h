// The data of a run: tokens of a text, byte by byte. A sample is a stretch of it; which one depends on its number among
// all samples of the run alone, so that ranks and accumulation divide the same data differently.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dsplan::exec {

class Text {
 public:
  // The text that ships with dsplan.
  Text();
  // At least two bytes.
  explicit Text(std::string text);

  // `length` tokens of sample `sample`; each is below `vocabulary`.
  [[nodiscard]] std::vector<std::int64_t> tokens(std::int64_t sample, std::int64_t length,
                                                 std::int64_t vocabulary) const;

 private:
  std::string text_;
};

}  // namespace dsplan::exec
