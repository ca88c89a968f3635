// Calls of collectives, with inputs whose results are exact in every dtype, and what each rank must have behind them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "core/schedule.h"
#include "exec/backend.h"

namespace collective_cases {

using namespace dsplan;

// Small integers, exact in every dtype that they are stored in, also as sums over eight ranks.
inline double sample(DType dtype, int rank, std::int64_t element) {
  const std::int64_t value = (element * 7 + rank * 3 + 1) % 11;
  return static_cast<double>(dtype == DType::Bool ? std::min<std::int64_t>(value, 1) : value);
}

inline std::vector<std::vector<int>> all_of(int ranks) {
  std::vector<int> list(static_cast<std::size_t>(ranks));
  std::iota(list.begin(), list.end(), 0);
  return {list};
}

struct Case {
  Collective kind;
  DType dtype;
  int ranks;
  std::int64_t elements;
  dsplan_reduction how = DSPLAN_SUM;
  bool in_place = false;
  int root = 0;
};

inline double reduced(const Case& c, std::int64_t element) {
  double value = sample(c.dtype, 0, element);
  for (int rank = 1; rank < c.ranks; ++rank) {
    value =
        c.how == DSPLAN_MAX ? std::max(value, sample(c.dtype, rank, element)) : value + sample(c.dtype, rank, element);
  }
  return c.dtype == DType::Bool && value != 0 ? 1 : value;
}

// What `rank` must hold in its output after the call; nullopt: its output is not written.
inline std::optional<double> expected(const Case& c, int rank, std::int64_t element) {
  const std::int64_t share = c.elements / c.ranks;
  switch (c.kind) {
    case Collective::AllReduce: return reduced(c, element);
    case Collective::ReduceScatter: return reduced(c, share * rank + element);
    case Collective::AllGather: return sample(c.dtype, static_cast<int>(element / share), element % share);
    case Collective::Broadcast: return sample(c.dtype, c.root, element);
    case Collective::Reduce: return rank == c.root ? std::optional(reduced(c, element)) : std::nullopt;
    case Collective::AllToAll:
      return sample(c.dtype, static_cast<int>(element / share), share * rank + element % share);
    case Collective::SendRecv: return sample(c.dtype, (rank - 1 + c.ranks) % c.ranks, element);
  }
  return std::nullopt;
}

inline std::int64_t input_elements(const Case& c) {
  return c.kind == Collective::AllGather ? c.elements / c.ranks : c.elements;
}
inline std::int64_t output_elements(const Case& c) {
  return c.kind == Collective::ReduceScatter ? c.elements / c.ranks : c.elements;
}

}  // namespace collective_cases
