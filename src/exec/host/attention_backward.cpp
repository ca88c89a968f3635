// Attention backward: the weights are made again, once for the queries' gradient and once for the keys' and values', so
// that nothing is summed in an order that depends on anything but shapes.
#include "exec/host/attention_blocks.h"

namespace dsplan::exec::host {
namespace {

// What backward writes.
struct Gradients {
  const dsplan_tensor& q;
  const dsplan_tensor& k;
  const dsplan_tensor& v;
  dsplan_tensor delta{};                       // [B, H, rows]: sums of gradient times output.
  const dsplan_tensor* accumulated = nullptr;  // Flash: the queries' gradient in the accumulating type.
  const dsplan_tensor* expanded_k = nullptr;   // Grouped heads: [B, S, H, D].
  const dsplan_tensor* expanded_v = nullptr;
};

const dsplan_tensor& gradient_or_temporary(const Args& args, std::size_t i, std::size_t& next) {
  if (args.needs(i)) return args.gradient(i);
  return args.temporary(next++);
}

// Temporaries stand in the order in which they are made: copies of gradient and output, gradients that nobody asks for,
// then what the kernel works with.
Gradients gradients_of(const Args& args) {
  std::size_t next = copies_by_token(args);
  const dsplan_tensor& q = gradient_or_temporary(args, 0, next);
  const dsplan_tensor& k = gradient_or_temporary(args, 1, next);
  const dsplan_tensor& v = gradient_or_temporary(args, 2, next);
  // The memory-efficient kernel's last part finds the sums made, and perhaps copied, before.
  if (args.part() > 0) next += args.part() - 1;
  Gradients made{q, k, v, args.temporary(next++)};
  if (!is_flash(args)) return made;
  made.accumulated = &args.temporary(next++);
  made.expanded_k = args.find(SlotKind::Temporary, next++);
  made.expanded_v = args.find(SlotKind::Temporary, next++);
  return made;
}

// The weights of a block, what dropout leaves of them, and the slopes of its scores.
template <class C>
void slopes(const Problem& p, const Args& args, const Gradients& made, const Block& at, Workspace<C>& w) {
  scores(p, at, w);
  multiply(matrix(w.grad.at.data(), at.rows, p.values, p.values),
           matrix(w.v.at.data(), at.columns, p.values, p.values, true),
           matrix(w.slopes.at.data(), at.rows, at.columns, kBlock));
  const dsplan_tensor& lse = args.saved_extra(0);
  for (std::int64_t r = 0; r < at.rows; ++r) {
    C logarithm{};
    C delta{};
    const std::int64_t head = at.b * p.heads + at.h;
    load(strided(lse), head * last_of(lse) + at.i + r, 1, &logarithm);
    load(strided(made.delta), head * last_of(made.delta) + at.i + r, 1, &delta);
    for (std::int64_t c = 0; c < at.columns; ++c) {
      const auto k = static_cast<std::size_t>(r * kBlock + c);
      const C weight = std::exp(w.scores.at[k] - logarithm);
      const C factor = p.p > 0 ? static_cast<C>(kept(p, at, r, c)) : C(1);
      w.slopes.at[k] = weight * (w.slopes.at[k] * factor - delta) * static_cast<C>(p.scale);
      w.scores.at[k] = weight * factor;
    }
  }
}

template <class C>
void add_to_sum(Tile<C>& sum, const Tile<C>& part, std::int64_t count) {
  for (std::size_t d = 0; d < static_cast<std::size_t>(count); ++d) sum.at[d] += part.at[d];
}

template <class C>
void sum_outputs(const Problem& p, const Args& args, const Gradients& made, Workspace<C>& w) {
  map<C, 0>(made.delta, {}, [](std::int64_t) { return C(0); });
  for (std::int64_t head = 0; head < p.batch * p.heads; ++head) {
    for (std::int64_t i = 0; i < p.queries; i += kBlock) {
      const std::int64_t rows = std::min(kBlock, p.queries - i);
      load_rows(args.gradient_of(), head / p.heads, head % p.heads, i, rows, w.grad);
      load_rows(args.saved_out(0), head / p.heads, head % p.heads, i, rows, w.out);
      for (std::int64_t r = 0; r < rows; ++r) {
        double sum = 0;  // It is taken off what is about as large.
        for (std::int64_t d = 0; d < p.values; ++d) {
          const auto k = static_cast<std::size_t>(r * p.values + d);
          sum += static_cast<double>(w.grad.at[k]) * static_cast<double>(w.out.at[k]);
        }
        store(strided(made.delta), head * last_of(made.delta) + i + r, 1, &sum);
      }
    }
  }
}

template <class C>
void query_gradient(const Problem& p, const Args& args, const Gradients& made, Workspace<C>& w) {
  if (made.accumulated != nullptr) map<C, 0>(*made.accumulated, {}, [](std::int64_t) { return C(0); });
  const std::int64_t group = p.heads / p.kv_heads;
  for (std::int64_t head = 0; head < p.batch * p.heads; ++head) {
    const std::int64_t b = head / p.heads;
    const std::int64_t h = head % p.heads;
    for (std::int64_t i = 0; i < p.queries; i += kBlock) {
      const std::int64_t rows = std::min(kBlock, p.queries - i);
      load_rows(args.saved_in(0), b, h, i, rows, w.q);
      load_rows(args.gradient_of(), b, h, i, rows, w.grad);
      std::fill_n(w.sum.at.begin(), rows * p.width, C(0));
      for (std::int64_t j = 0; j < p.keys && !beyond(p, i, rows, j); j += kBlock) {
        const Block at{b, h, i, j, rows, std::min(kBlock, p.keys - j)};
        load_rows(args.saved_in(1), b, h / group, j, at.columns, w.k);
        load_rows(args.saved_in(2), b, h / group, j, at.columns, w.v);
        slopes(p, args, made, at, w);
        multiply(matrix(w.slopes.at.data(), rows, at.columns, kBlock),
                 matrix(w.k.at.data(), at.columns, p.width, p.width), matrix(w.part.at.data(), rows, p.width, p.width));
        add_to_sum(w.sum, w.part, rows * p.width);
      }
      if (made.accumulated != nullptr) {
        dsplan_tensor by_head = *made.accumulated;
        std::swap(by_head.dims[1], by_head.dims[2]);
        std::swap(by_head.strides[1], by_head.strides[2]);
        store_rows(by_head, b, h, i, rows, w.sum.at.data(), p.width);
      }
      store_rows(made.q, b, h, i, rows, w.sum.at.data(), p.width);
    }
  }
}

// One block of keys against the queries of one head, added to `sum` (keys) and `other` (values).
template <class C>
void key_block(const Problem& p, const Args& args, const Gradients& made, std::int64_t b, std::int64_t h,
               std::int64_t j, Workspace<C>& w) {
  const std::int64_t columns = std::min(kBlock, p.keys - j);
  for (std::int64_t i = 0; i < p.queries; i += kBlock) {
    const Block at{b, h, i, j, std::min(kBlock, p.queries - i), columns};
    if (beyond(p, i, at.rows, j)) continue;
    load_rows(args.saved_in(0), b, h, i, at.rows, w.q);
    load_rows(args.gradient_of(), b, h, i, at.rows, w.grad);
    slopes(p, args, made, at, w);
    multiply(matrix(w.slopes.at.data(), at.rows, columns, kBlock, true),
             matrix(w.q.at.data(), at.rows, p.width, p.width), matrix(w.part.at.data(), columns, p.width, p.width));
    add_to_sum(w.sum, w.part, columns * p.width);
    multiply(matrix(w.scores.at.data(), at.rows, columns, kBlock, true),
             matrix(w.grad.at.data(), at.rows, p.values, p.values),
             matrix(w.part.at.data(), columns, p.values, p.values));
    add_to_sum(w.other, w.part, columns * p.values);
  }
}

dsplan_tensor by_head(const dsplan_tensor& by_token) {
  dsplan_tensor seen = by_token;
  std::swap(seen.dims[1], seen.dims[2]);
  std::swap(seen.strides[1], seen.strides[2]);
  return seen;
}

template <class C>
void key_gradients(const Problem& p, const Args& args, const Gradients& made, Workspace<C>& w) {
  const std::int64_t group = p.heads / p.kv_heads;
  for (std::int64_t at = 0; at < p.batch * p.kv_heads; ++at) {
    const std::int64_t b = at / p.kv_heads;
    const std::int64_t own = at % p.kv_heads;
    for (std::int64_t j = 0; j < p.keys; j += kBlock) {
      const std::int64_t columns = std::min(kBlock, p.keys - j);
      load_rows(args.saved_in(1), b, own, j, columns, w.k);
      load_rows(args.saved_in(2), b, own, j, columns, w.v);
      for (std::int64_t h = own * group; h < (own + 1) * group; ++h) {
        if (h == own * group || made.expanded_k != nullptr) {
          std::fill_n(w.sum.at.begin(), columns * p.width, C(0));
          std::fill_n(w.other.at.begin(), columns * p.values, C(0));
        }
        key_block(p, args, made, b, h, j, w);
        if (made.expanded_k == nullptr) continue;
        store_rows(by_head(*made.expanded_k), b, h, j, columns, w.sum.at.data(), p.width);
        store_rows(by_head(*made.expanded_v), b, h, j, columns, w.other.at.data(), p.values);
      }
      if (made.expanded_k != nullptr) continue;
      store_rows(made.k, b, own, j, columns, w.sum.at.data(), p.width);
      store_rows(made.v, b, own, j, columns, w.other.at.data(), p.values);
    }
  }
}

// Of a gradient for each of the query's heads [B, S, H, D], the sum over each group.
void sum_groups(const dsplan_tensor& expanded, const dsplan_tensor& to) {
  dsplan_tensor from = by_head(expanded);  // [B, H, S, D] -> [B, own, group, S, D].
  const std::int64_t group = from.dims[1] / to.dims[1];
  from.rank = 5;
  for (std::size_t d = 4; d > 2; --d) {
    from.dims[d] = from.dims[d - 1];
    from.strides[d] = from.strides[d - 1];
  }
  from.dims[1] = to.dims[1];
  from.dims[2] = group;
  from.strides[2] = from.strides[1];
  from.strides[1] *= group;
  dsplan_tensor target = to;
  target.rank = 5;
  for (std::size_t d = 4; d > 2; --d) {
    target.dims[d] = target.dims[d - 1];
    target.strides[d] = target.strides[d - 1];
  }
  target.dims[2] = 1;
  target.strides[2] = 0;
  sum_to(from, target);
}

// What the memory-efficient kernel does not do itself in wide types: gradient times output, and room for its sums, of
// which the last part makes them.
bool is_preparation(const Args& args) {
  const bool half = dtype_of(args.saved_in(0)) == DType::BFloat16 || dtype_of(args.saved_in(0)) == DType::Float16;
  if (is_flash(args) || half) return false;
  const bool copied = args.saved_in(0).dims[1] > 1 && args.saved_in(0).dims[2] > 1;
  return args.part() < (copied ? 3U : 2U);
}

void prepare(const Args& args) {
  const dsplan_tensor& latest = args.latest();
  with_arithmetic(dtype_of(latest), [&]<class C>(C) {
    if (args.part() > 0) return map<C, 0>(latest, {}, [](std::int64_t) { return C(0); });
    map<C, 2>(latest, {&args.gradient_of(), &args.saved_out(0)}, [](C gradient, C out) { return gradient * out; });
  });
}

}  // namespace

void attention_backward(const Args& args) {
  if (is_preparation(args)) return prepare(args);
  const std::int64_t kept_inputs = args.integer(DSPLAN_INPUTS);
  Problem p = problem_of(args, args.saved_in(0), args.saved_in(1), args.saved_in(2),
                         kept_inputs > 3 ? &args.saved_in(3) : nullptr);
  if (is_flash(args)) {
    std::int64_t key = 0;
    load(strided(args.saved_extra(1)), 0, 1, &key);
    load(strided(args.saved_extra(1)), 1, 1, &p.first_sample);
    p.key = static_cast<std::uint64_t>(key);
  }
  const Gradients made = gradients_of(args);
  expect_dims(made.q, dims_of(args.saved_in(0)), "the gradient of queries");
  expect_dims(made.k, dims_of(args.saved_in(1)), "the gradient of keys");
  expect_dims(made.v, dims_of(args.saved_in(2)), "the gradient of values");
  expect(count_of(made.delta) >= p.batch * p.heads * p.queries && made.delta.rank == 3, "the sums are too few");
  if (made.accumulated != nullptr) {
    expect(made.accumulated->dims[1] >= p.queries && made.accumulated->dims[2] == p.heads &&
               made.accumulated->dims[3] >= p.width,
           "the accumulated gradient is too small");
  }
  expect(made.expanded_k != nullptr || made.accumulated == nullptr || p.heads == p.kv_heads,
         "grouped heads without gradients of their own");
  with_arithmetic(dtype_of(args.saved_in(0)), [&]<class C>(C) {
    Workspace<C>& w = workspace<C>();
    sum_outputs(p, args, made, w);
    query_gradient(p, args, made, w);
    key_gradients(p, args, made, w);
  });
  if (made.expanded_k == nullptr) return;
  sum_groups(*made.expanded_k, made.k);
  sum_groups(*made.expanded_v, made.v);
}

}  // namespace dsplan::exec::host
