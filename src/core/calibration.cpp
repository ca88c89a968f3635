#include "core/calibration.h"

#include <vector>

#include "core/text/letters.h"

namespace dsplan {
bool same_device(std::string_view gpu, std::string_view hardware) {
  const std::string wanted = in_lower_case(hardware.substr(0, hardware.find('-')));
  if (wanted.empty()) return false;
  std::vector<std::string> words(1);
  for (const char c : in_lower_case(gpu)) {
    if (c == ' ' || c == '-') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  for (std::size_t from = 0; from < words.size(); ++from) {
    std::string joined;
    for (std::size_t to = from; to < words.size() && joined.size() < wanted.size(); ++to) {
      joined += words[to];
      if (joined == wanted) return true;
    }
  }
  return false;
}

}  // namespace dsplan
