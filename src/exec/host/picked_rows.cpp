#include "exec/host/picked_rows.h"

#include <algorithm>
#include <vector>

namespace dsplan::exec::host {
namespace {

// As many dimensions as there are indices, of which this one has its own.
dsplan_tensor along_own(const dsplan_tensor& index, std::size_t own, std::size_t of) {
  const Strided line = strided(index);
  expect(line.rank == 1, "indices that do not lie as one line");
  dsplan_tensor seen = index;
  seen.rank = static_cast<std::int32_t>(of);
  for (std::size_t d = 0; d < of; ++d) {
    seen.dims[d] = d == own ? line.dims[0] : 1;
    seen.strides[d] = d == own ? line.strides[0] : 0;
  }
  return seen;
}

}  // namespace

PickedRows::PickedRows(const Args& args, std::size_t first, const dsplan_tensor& whole, const dsplan_tensor& picked) {
  indexed = static_cast<std::size_t>(args.integer(DSPLAN_INPUTS)) - first;
  expect(indexed >= 1 && indexed <= DSPLAN_MOST_INDICES && indexed <= static_cast<std::size_t>(whole.rank),
         "an index of too many dimensions");
  for (std::size_t d = indexed; d < static_cast<std::size_t>(whole.rank); ++d) columns *= whole.dims[d];
  count = count_of(picked) / std::max<std::int64_t>(1, columns);
  expect_count(picked, count * columns, "what an index picks");
  const auto tensor = [&](std::size_t i) { return args.backward() ? args.saved_in(first + i) : args.in(first + i); };
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < indexed; ++i) lengths.push_back(count_of(tensor(i)));
  const bool each_with_each = *std::max_element(lengths.begin(), lengths.end()) != count;
  const std::array<std::int64_t, 1> line{count};
  for (std::size_t i = 0; i < indexed; ++i) {
    const dsplan_tensor own = along_own(tensor(i), each_with_each ? i : 0, each_with_each ? indexed : 1);
    indices[i] = each_with_each ? broadcast(own, lengths) : broadcast(own, line);
    dims[i] = whole.dims[i];
  }
}

std::int64_t PickedRows::row(std::int64_t at) const {
  std::int64_t row = 0;
  for (std::size_t i = 0; i < indexed; ++i) {
    std::int64_t index = 0;
    load(indices[i], at, 1, &index);
    expect(index >= 0 && index < dims[i], "an index lies outside its dimension");
    row = row * dims[i] + index;
  }
  return row;
}

}  // namespace dsplan::exec::host
