// Logs of allocations and frees: as an oracle writes them ("+4096,8 op", "-4096,16"), and as a schedule makes them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/format.h"

namespace dsplan::testing {

// One allocation, or several by one operator, and the frees before the next. Sizes of one group are sorted: the order
// of an operator's outputs is not that in which its kernel makes them, and frees at one point have no order that
// matters to anyone but the allocator's free lists.
struct Moves {
  std::vector<std::int64_t> made;
  std::vector<std::int64_t> freed;
  std::string what;

  [[nodiscard]] std::string text() const {
    return dsplan::formatted("+{} {}{}{}", dsplan::joined(made, ","), what, freed.empty() ? "" : " -",
                             dsplan::joined(freed, ","));
  }
  void sort() {
    std::sort(made.begin(), made.end());
    std::sort(freed.begin(), freed.end());
  }
};

inline std::vector<std::int64_t> numbers(const std::string& text) {
  std::vector<std::int64_t> result;
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t used = 0;
    result.push_back(std::stoll(text.substr(at), &used));
    at += used + 1;
  }
  return result;
}

// "+4096,8 op", "-4096,16" and "# remarks", which are passed over.
inline void read_log_line(const std::string& line, std::vector<Moves>& log) {
  if (line.starts_with("+")) {
    const std::size_t space = line.find(' ');
    log.push_back({numbers(line.substr(1, space - 1)), {}, line.substr(space + 1)});
  } else if (line.starts_with("-")) {
    const std::vector<std::int64_t> freed = numbers(line.substr(1));
    log.back().freed.insert(log.back().freed.end(), freed.begin(), freed.end());
  }
}

// Consecutive allocations of dsplan are joined as far as the witness's operator made several at once.
inline std::vector<Moves> grouped_like(const std::vector<Moves>& witness, const std::vector<Moves>& ours) {
  std::vector<Moves> result;
  std::size_t next = 0;
  for (const Moves& theirs : witness) {
    if (next == ours.size()) break;
    Moves group = ours[next++];
    while (group.made.size() < theirs.made.size() && group.freed.empty() && next < ours.size()) {
      group.made.insert(group.made.end(), ours[next].made.begin(), ours[next].made.end());
      group.freed = ours[next++].freed;
    }
    group.sort();
    result.push_back(std::move(group));
  }
  result.insert(result.end(), ours.begin() + static_cast<std::ptrdiff_t>(next), ours.end());
  return result;
}

// The first place at which two logs part, with what stands before it; empty if they are equal.
inline std::string first_difference(const std::vector<Moves>& witness, const std::vector<Moves>& ours) {
  constexpr std::size_t kBefore = 4;
  constexpr std::size_t kAfter = 5;
  std::size_t at = 0;
  while (at < witness.size() && at < ours.size() && witness[at].made == ours[at].made &&
         witness[at].freed == ours[at].freed) {
    ++at;
  }
  if (at == witness.size() && at == ours.size()) return {};
  std::string text =
      dsplan::formatted("the logs part at {} of {} (witness) and {} (dsplan):\n", at, witness.size(), ours.size());
  for (std::size_t i = at < kBefore ? 0 : at - kBefore; i < at + kAfter; ++i) {
    text += dsplan::formatted("  {} {:<58} | {}\n", i == at ? ">" : " ", i < witness.size() ? witness[i].text() : "",
                              i < ours.size() ? ours[i].text() : "");
  }
  return text;
}

}  // namespace dsplan::testing
