// Independent pieces of work on all processors.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace dsplan {

// How many pieces of work can go on at once.
[[nodiscard]] std::size_t processors();

// Calls `work` with 0 to count - 1, each once, in any order and from several threads. Returns when all have ended; the
// first exception is thrown again then, and what had not begun is left out.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work);

// Each of `pieces` once, likewise. One after the other where `worth` is false.
void in_parallel(const std::vector<std::function<void()>>& pieces, bool worth);

}  // namespace dsplan
