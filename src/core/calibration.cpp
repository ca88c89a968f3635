#include "core/calibration.h"

#include <vector>

namespace dsplan {
namespace {

std::string lower(std::string_view text) {
  std::string result;
  for (const char c : text) result += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

}  // namespace

bool same_device(std::string_view gpu, std::string_view hardware) {
  const std::string wanted = lower(hardware.substr(0, hardware.find('-')));
  if (wanted.empty()) return false;
  std::vector<std::string> words(1);
  for (const char c : lower(gpu)) {
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
