// Attention forward: running maximum and sum of each query.
#include "cuda/kernels/attention_parts.h"

namespace dsplan::cuda {
namespace {

template <class C, int kWidth>
struct ForwardKernel {
  Attention a;

  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t item) const {
    const std::int64_t head = item / a.queries;
    const std::int64_t i = item % a.queries;
    const std::int64_t b = head / a.heads;
    const std::int64_t h = head % a.heads;
    const std::int64_t own = h / (a.heads / a.kv_heads);
    Row<Team, C, kWidth> query;
    Row<Team, C, kWidth> other;
    Row<Team, C, kWidth> sum;
    query.load(team, a.q, row_of(a.q, b, h, i), a.width);
    sum.clear();
    C largest = -std::numeric_limits<C>::infinity();
    C total = 0;
    const std::int64_t end = a.causal && i + 1 < a.keys ? i + 1 : a.keys;
    for (std::int64_t j = 0; j < end; ++j) {
      other.load(team, a.k, row_of(a.k, b, own, j), a.width);
      const C x = score(a, head, i, j, team.sum(query.times(other)));
      const C next = x > largest ? x : largest;
      if (next == -std::numeric_limits<C>::infinity()) continue;  // Nothing but masked keys so far.
      const C factor = std::exp(largest - next);
      const C weight = std::exp(x - next);
      total = total * factor + weight;
      largest = next;
      other.load(team, a.v, row_of(a.v, b, own, j), a.values);
      sum.add(factor, other, weight * dropped<C>(a, head, i, j));
    }
    Row<Team, C, kWidth> result;
    result.clear();
    result.add(C(1), sum, total > C(0) ? C(1) / total : C(0));
    result.store(team, a.out, row_of(a.out, b, h, i), a.values);
    if (a.lse.data == nullptr || team.lane() != 0) return;
    const C logarithm = total > C(0) ? largest + std::log(total) : std::numeric_limits<C>::infinity();
    cuda::store(a.lse, head * a.lse_rows + i, logarithm);
  }
};

struct PutKernel {
  Strided to;
  std::int64_t at;
  std::int64_t value;
  DSPLAN_KERNEL void operator()(std::int64_t) const { store(to, at, value); }
};

}  // namespace

void attention_forward(const Queue& queue, const Attention& attention) {
  with_width(attention, [&]<class C, int kWidth>() {
    teams(queue, attention.batch * attention.heads * attention.queries, ForwardKernel<C, kWidth>{attention});
  });
}

void put_integer(const Queue& queue, const dsplan_tensor& to, std::int64_t at, std::int64_t value) {
  expect(dtype_of(to) == DType::Int64 && at < count_of(to), "an integer has no place");
  each(queue, 1, PutKernel{strided(to), at, value});
}

}  // namespace dsplan::cuda
