// The rows that an index picks: tensors of indices for the first dimensions of a tensor, as they broadcast or each with
// each, and for each of their places what is left of its dimensions. Shared by host and device.
#pragma once

#include "exec/host/args.h"

namespace dsplan::exec::host {

struct PickedRows {
  // `whole` is what is picked from, `picked` what comes of it; indices are the inputs, or what was saved of them, from
  // `first` on.
  PickedRows(const Args& args, std::size_t first, const dsplan_tensor& whole, const dsplan_tensor& picked);

  // Of place `at`: the row of `whole`.
  [[nodiscard]] std::int64_t row(std::int64_t at) const;

  std::array<Strided, DSPLAN_MOST_INDICES> indices{};
  std::array<std::int64_t, DSPLAN_MOST_INDICES> dims{};  // Of `whole`, that they index.
  std::size_t indexed = 0;
  std::int64_t count = 0;    // Places.
  std::int64_t columns = 1;  // Of a row.
};

}  // namespace dsplan::exec::host
