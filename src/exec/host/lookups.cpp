// Rows looked up in a table, and the table's gradient: sums in the order of the places, whatever their number.
#include <algorithm>

#include "exec/host/args.h"

namespace dsplan::exec::host {
namespace {

template <class C, class F>
void row_pieces(std::int64_t columns, F f) {
  std::array<C, kChunk> part;
  for (std::int64_t begin = 0; begin < columns; begin += kChunk)
    f(begin, std::min(kChunk, columns - begin), part.data());
}

void embedding(const Args& args) {
  const dsplan_tensor& table = args.in(0);
  const dsplan_tensor& out = args.output();
  const std::int64_t columns = last_of(table);
  const std::int64_t count = count_of(args.in(1));
  expect_count(out, count * columns, "the rows");
  const Strided from = strided(table);
  const Strided ids = strided(args.in(1));
  const Strided to = strided(out);
  with_arithmetic(dtype_of(out), [&]<class C>(C) {
    for (std::int64_t at = 0; at < count; ++at) {
      std::int64_t id = 0;
      load(ids, at, 1, &id);
      expect(id >= 0 && id < table.dims[0], "an index lies outside the table");
      row_pieces<C>(columns, [&](std::int64_t begin, std::int64_t n, C* part) {
        load(from, id * columns + begin, n, part);
        store(to, at * columns + begin, n, part);
      });
    }
  });
}

// The places that read one row of the table, in order: `next` of a place is the following one, -1 at the end.
struct Occurrences {
  Strided ids;
  const std::int64_t* sorted = nullptr;  // Where there are many: the indices in order, and their places.
  const std::int64_t* origins = nullptr;
  std::int64_t count = 0;

  [[nodiscard]] std::int64_t id(std::int64_t at) const {
    std::int64_t value = 0;
    load(ids, at, 1, &value);
    return value;
  }
};

template <class C>
void sum_places(const Strided& g, const Strided& to, std::int64_t columns, std::int64_t id, auto each_place) {
  std::array<double, kChunk> sums;
  row_pieces<C>(columns, [&](std::int64_t begin, std::int64_t n, C* part) {
    sums.fill(0);
    each_place([&](std::int64_t place) {
      load(g, place * columns + begin, n, part);
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) sums[i] += static_cast<double>(part[i]);
    });
    store(to, id * columns + begin, n, sums.data());
  });
}

// Few indices: each is looked for among all that follow its first appearance.
template <class C>
void few_rows(const Occurrences& o, const Strided& g, const Strided& to, std::int64_t columns) {
  for (std::int64_t at = 0; at < o.count; ++at) {
    const std::int64_t id = o.id(at);
    bool first = true;
    for (std::int64_t before = 0; before < at && first; ++before) first = o.id(before) != id;
    if (!first) continue;
    sum_places<C>(g, to, columns, id, [&](auto f) {
      for (std::int64_t place = at; place < o.count; ++place) {
        if (o.id(place) == id) f(place);
      }
    });
  }
}

template <class C>
void many_rows(const Occurrences& o, const Strided& g, const Strided& to, std::int64_t columns) {
  for (std::int64_t begin = 0; begin < o.count;) {
    std::int64_t end = begin;
    while (end < o.count && o.sorted[end] == o.sorted[begin]) ++end;
    sum_places<C>(g, to, columns, o.sorted[begin], [&](auto f) {
      for (std::int64_t k = begin; k < end; ++k) f(o.origins[k]);
    });
    begin = end;
  }
}

// In the order of the indices, and for one index in the order of its places.
void sort_indices(const Args& args, std::size_t first) {
  const dsplan_tensor& sorted = args.temporary(first);
  const dsplan_tensor& origins = args.temporary(first + 1);
  const std::int64_t count = count_of(args.saved_in(1));
  expect_count(sorted, count, "the sorted indices");
  expect_count(origins, count, "the places of indices");
  Occurrences o{strided(args.saved_in(1)), nullptr, nullptr, count};
  auto* place = static_cast<std::int64_t*>(origins.data);
  auto* index = static_cast<std::int64_t*>(sorted.data);
  for (std::int64_t i = 0; i < count; ++i) place[i] = i;
  std::sort(place, place + count, [&](std::int64_t a, std::int64_t b) {
    const std::int64_t x = o.id(a);
    const std::int64_t y = o.id(b);
    return x != y ? x < y : a < b;
  });
  for (std::int64_t i = 0; i < count; ++i) index[i] = o.id(place[i]);
}

void embedding_backward(const Args& args) {
  const std::size_t copies = args.flag(DSPLAN_FLAG_BY_HEAD) ? 1 : 0;
  if (args.part() < copies) return copy_in_order(args.gradient_of(), args.temporary(0));
  const dsplan_tensor& gradient = copies > 0 ? args.temporary(0) : args.gradient_of();
  const dsplan_tensor* sorted = args.find(SlotKind::Temporary, copies);
  if (sorted != nullptr && args.part() == copies) return sort_indices(args, copies);
  const dsplan_tensor& to = args.gradient(0);
  const std::int64_t columns = last_of(to);
  map<double, 0>(to, {}, [](std::int64_t) { return 0.0; });
  Occurrences o{strided(args.saved_in(1)), nullptr, nullptr, count_of(args.saved_in(1))};
  expect_count(gradient, o.count * columns, "the gradient of rows");
  for (std::int64_t at = 0; at < o.count; ++at) {
    expect(o.id(at) >= 0 && o.id(at) < to.dims[0], "an index lies outside the table");
  }
  if (sorted != nullptr) {
    o.sorted = static_cast<const std::int64_t*>(sorted->data);
    o.origins = static_cast<const std::int64_t*>(args.temporary(copies + 1).data);
  }
  with_arithmetic(dtype_of(to), [&]<class C>(C) {
    if (o.sorted != nullptr) {
      many_rows<C>(o, strided(gradient), strided(to), columns);
    } else {
      few_rows<C>(o, strided(gradient), strided(to), columns);
    }
  });
  if (args.number() == 0) return;
  const dsplan_tensor padding = selected(to, 0, static_cast<std::int64_t>(args.number()) - 1);
  map<double, 0>(padding, {}, [](std::int64_t) { return 0.0; });
}

}  // namespace

bool run_lookups(const Args& args) {
  if (args.op() != Op::Embedding) return false;
  if (args.backward()) {
    embedding_backward(args);
  } else {
    embedding(args);
  }
  return true;
}

}  // namespace dsplan::exec::host
