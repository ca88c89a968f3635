// Attention in blocks, as the flash and memory-efficient kernels do it: no matrix of scores is ever whole. Forward
// keeps the logarithm of each row's sum.
#include "exec/host/attention_blocks.h"

namespace dsplan::exec::host {
namespace {

// The largest score of each row so far, and the sum of exponentials relative to it.
template <class C>
struct RunningRows {
  std::array<C, kBlock> largest;
  std::array<C, kBlock> total;
};

// Scores of one block become exponentials, dropped ones zeros; what was summed before is scaled to the new maxima.
template <class C>
void exponentiate(const Problem& p, const Block& at, RunningRows<C>& so_far, Workspace<C>& w) {
  for (std::int64_t r = 0; r < at.rows; ++r) {
    const auto k = static_cast<std::size_t>(r);
    C* const row = w.scores.at.data() + r * kBlock;
    const C next = std::max(so_far.largest[k], *std::max_element(row, row + at.columns));
    const C shift = std::isinf(next) ? C(0) : next;
    const C factor = std::isinf(so_far.largest[k]) ? C(0) : std::exp(so_far.largest[k] - shift);
    C sum = 0;
    for (std::int64_t c = 0; c < at.columns; ++c) {
      row[c] = std::exp(row[c] - shift);
      sum += row[c];
      if (p.p > 0) row[c] *= static_cast<C>(kept(p, at, r, c));
    }
    so_far.total[k] = so_far.total[k] * factor + sum;
    so_far.largest[k] = next;
    for (std::int64_t d = 0; d < p.values; ++d) w.sum.at[static_cast<std::size_t>(r * p.values + d)] *= factor;
  }
}

// One block of queries against all keys: running maxima and sums.
template <class C>
void forward_block(const Problem& p, const Args& args, std::int64_t b, std::int64_t h, std::int64_t i,
                   Workspace<C>& w) {
  const std::int64_t rows = std::min(kBlock, p.queries - i);
  const std::int64_t group = p.heads / p.kv_heads;
  RunningRows<C> so_far;
  so_far.largest.fill(-std::numeric_limits<C>::infinity());
  so_far.total.fill(C(0));
  std::fill_n(w.sum.at.begin(), rows * p.values, C(0));
  load_rows(args.in(0), b, h, i, rows, w.q);
  for (std::int64_t j = 0; j < p.keys && !beyond(p, i, rows, j); j += kBlock) {
    const Block at{b, h, i, j, rows, std::min(kBlock, p.keys - j)};
    load_rows(args.in(1), b, h / group, j, at.columns, w.k);
    load_rows(args.in(2), b, h / group, j, at.columns, w.v);
    scores(p, at, w);
    exponentiate(p, at, so_far, w);
    multiply(matrix(w.scores.at.data(), rows, at.columns, kBlock),
             matrix(w.v.at.data(), at.columns, p.values, p.values), matrix(w.part.at.data(), rows, p.values, p.values));
    for (std::int64_t d = 0; d < rows * p.values; ++d) {
      w.sum.at[static_cast<std::size_t>(d)] += w.part.at[static_cast<std::size_t>(d)];
    }
  }
  const dsplan_tensor* lse = args.find(SlotKind::Extra, 0);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto k = static_cast<std::size_t>(r);
    const C total = so_far.total[k];
    const C share = total > C(0) ? C(1) / total : C(0);
    for (std::int64_t d = 0; d < p.values; ++d) w.sum.at[static_cast<std::size_t>(r * p.values + d)] *= share;
    const C logarithm = total > C(0) ? so_far.largest[k] + std::log(total) : std::numeric_limits<C>::infinity();
    if (lse != nullptr) store(strided(*lse), (b * p.heads + h) * last_of(*lse) + i + r, 1, &logarithm);
  }
  store_rows(args.output(), b, h, i, rows, w.sum.at.data(), p.values);
}

// Flash keeps what decides dropout on the device, as its kernel keeps the state of its generator.
void keep_random(const Problem& p, const Args& args) {
  const auto key = static_cast<std::int64_t>(p.key);
  const std::int64_t none = 0;
  expect_count(args.extra(1), 2, "the random state");
  expect_count(args.extra(2), 1, "the random state");
  store(strided(args.extra(1)), 0, 1, &key);
  store(strided(args.extra(1)), 1, 1, &p.first_sample);
  store(strided(args.extra(2)), 0, 1, &none);
}

void forward(const Args& args) {
  const dsplan_tensor& q = args.in(0);
  const Problem p = problem_of(args, q, args.in(1), args.in(2), args.has_in(3) ? &args.in(3) : nullptr);
  expect_dims(args.output(), std::array{p.batch, p.heads, p.queries, p.values}, "the output");
  if (is_flash(args)) keep_random(p, args);
  with_arithmetic(dtype_of(q), [&]<class C>(C) {
    if (const dsplan_tensor* lse = args.find(SlotKind::Extra, 0)) {
      expect(lse->rank == 3 && lse->dims[0] == p.batch && lse->dims[1] == p.heads && lse->dims[2] >= p.queries,
             "the log-sum-exp has other dimensions");
      map<C, 0>(*lse, {}, [](std::int64_t) { return std::numeric_limits<C>::infinity(); });
    }
    Workspace<C>& w = workspace<C>();
    for (std::int64_t b = 0; b < p.batch; ++b) {
      for (std::int64_t h = 0; h < p.heads; ++h) {
        for (std::int64_t i = 0; i < p.queries; i += kBlock) forward_block(p, args, b, h, i, w);
      }
    }
  });
}

}  // namespace

bool run_attention(const Args& args) {
  if (args.op() != Op::Attention) return false;
  if (args.backward()) {
    attention_backward(args);
  } else {
    forward(args);
  }
  return true;
}

}  // namespace dsplan::exec::host
