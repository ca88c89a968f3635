// Attention backward: the weights are made again, once for the queries' gradient and once for the keys' and values', so
// that every sum has one owner.
#include "cuda/kernels/attention_parts.h"

namespace dsplan::cuda {
namespace {

template <class C, int kWidth>
struct DeltaKernel {
  Attention a;
  AttentionGradients g;

  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t item) const {
    const std::int64_t head = item / a.queries;
    const std::int64_t i = item % a.queries;
    Row<Team, C, kWidth> gradient;
    Row<Team, C, kWidth> out;
    gradient.load(team, g.incoming, row_of(g.incoming, head / a.heads, head % a.heads, i), a.values);
    out.load(team, a.out, row_of(a.out, head / a.heads, head % a.heads, i), a.values);
    const double sum = team.sum(gradient.times_in_double(out));
    if (team.lane() == 0) cuda::store(g.delta, head * g.delta_rows + i, sum);
  }
};

// The weight of query i and key j, and the slope of its score.
template <class C>
struct Slope {
  C weight;  // As dropout leaves it.
  C slope;

  DSPLAN_KERNEL Slope(const Attention& a, const AttentionGradients& g, std::int64_t head, std::int64_t i,
                      std::int64_t j, C product, C gradient) {
    const C x = score(a, head, i, j, product);
    const C made = std::exp(x - load<C>(a.lse, head * a.lse_rows + i));
    const C factor = dropped<C>(a, head, i, j);
    weight = made * factor;
    slope = made * (gradient * factor - load<C>(g.delta, head * g.delta_rows + i)) * static_cast<C>(a.scale);
  }
};

template <class C, int kWidth>
struct QueryKernel {
  Attention a;
  AttentionGradients g;

  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t item) const {
    const std::int64_t head = item / a.queries;
    const std::int64_t i = item % a.queries;
    const std::int64_t b = head / a.heads;
    const std::int64_t h = head % a.heads;
    const std::int64_t own = h / (a.heads / a.kv_heads);
    Row<Team, C, kWidth> query;
    Row<Team, C, kWidth> gradient;
    Row<Team, C, kWidth> key;
    Row<Team, C, kWidth> value;
    Row<Team, C, kWidth> sum;
    query.load(team, a.q, row_of(a.q, b, h, i), a.width);
    gradient.load(team, g.incoming, row_of(g.incoming, b, h, i), a.values);
    sum.clear();
    const std::int64_t end = a.causal && i + 1 < a.keys ? i + 1 : a.keys;
    for (std::int64_t j = 0; j < end; ++j) {
      key.load(team, a.k, row_of(a.k, b, own, j), a.width);
      value.load(team, a.v, row_of(a.v, b, own, j), a.values);
      const C product = team.sum(query.times(key));
      const C incoming = team.sum(gradient.times(value));
      sum.add(C(1), key, Slope<C>(a, g, head, i, j, product, incoming).slope);
    }
    sum.store(team, g.q, row_of(g.q, b, h, i), a.width);
    if (g.accumulated.data != nullptr) sum.store(team, g.accumulated, row_of(g.accumulated, b, h, i), a.width);
  }
};

// Of one key: over the queries of one head, or of all heads of its group.
template <class C, int kWidth>
struct KeyKernel {
  Attention a;
  AttentionGradients g;

  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t item) const {
    const std::int64_t group = a.heads / a.kv_heads;
    const std::int64_t lines = g.expanded ? a.heads : a.kv_heads;
    const std::int64_t b = item / a.keys / lines;
    const std::int64_t line = item / a.keys % lines;
    const std::int64_t j = item % a.keys;
    const std::int64_t own = g.expanded ? line / group : line;
    Row<Team, C, kWidth> key;
    Row<Team, C, kWidth> value;
    Row<Team, C, kWidth> of_key;
    Row<Team, C, kWidth> of_value;
    key.load(team, a.k, row_of(a.k, b, own, j), a.width);
    value.load(team, a.v, row_of(a.v, b, own, j), a.values);
    of_key.clear();
    of_value.clear();
    const std::int64_t first = g.expanded ? line : line * group;
    for (std::int64_t h = first; h < first + (g.expanded ? 1 : group); ++h)
      add_head(team, b, h, j, key, value, of_key, of_value);
    of_key.store(team, g.k, row_of(g.k, b, line, j), a.width);
    of_value.store(team, g.v, row_of(g.v, b, line, j), a.values);
  }

  template <class Team>
  DSPLAN_KERNEL void add_head(const Team& team, std::int64_t b, std::int64_t h, std::int64_t j,
                              const Row<Team, C, kWidth>& key, const Row<Team, C, kWidth>& value,
                              Row<Team, C, kWidth>& of_key, Row<Team, C, kWidth>& of_value) const {
    Row<Team, C, kWidth> query;
    Row<Team, C, kWidth> gradient;
    for (std::int64_t i = a.causal ? j : 0; i < a.queries; ++i) {
      query.load(team, a.q, row_of(a.q, b, h, i), a.width);
      gradient.load(team, g.incoming, row_of(g.incoming, b, h, i), a.values);
      const C product = team.sum(query.times(key));
      const C incoming = team.sum(gradient.times(value));
      const Slope<C> at(a, g, b * a.heads + h, i, j, product, incoming);
      of_key.add(C(1), query, at.slope);
      of_value.add(C(1), gradient, at.weight);
    }
  }
};

}  // namespace

void attention_backward(const Queue& queue, const Attention& attention, const AttentionGradients& gradients) {
  with_width(attention, [&]<class C, int kWidth>() {
    const std::int64_t queries = attention.batch * attention.heads * attention.queries;
    const std::int64_t lines = gradients.expanded ? attention.heads : attention.kv_heads;
    teams(queue, queries, DeltaKernel<C, kWidth>{attention, gradients});
    teams(queue, queries, QueryKernel<C, kWidth>{attention, gradients});
    teams(queue, attention.batch * lines * attention.keys, KeyKernel<C, kWidth>{attention, gradients});
  });
}

}  // namespace dsplan::cuda
