// Products of matrices that lie as no library takes them: a team for each element.
#include "cuda/products.h"

#include "cuda/element.h"
#include "cuda/grid.h"

namespace dsplan::cuda {
namespace {

template <class C>
struct ProductKernel {
  MatrixProduct p;

  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t item) const {
    const std::int64_t at = item / (p.c.rows * p.c.columns);
    const std::int64_t row = item / p.c.columns % p.c.rows;
    const std::int64_t column = item % p.c.columns;
    C sum = 0;
    for (std::int64_t pair = 0; pair < p.pairs.count; ++pair) {
      const std::int64_t a = at * p.a_step + pair * p.pairs.a_step + row * p.a.row;
      const std::int64_t b = at * p.b_step + pair * p.pairs.b_step + column * p.b.column;
      for (std::int64_t k = team.lane(); k < p.a.columns; k += Team::kLanes) {
        sum += load_at<C>(p.a.data, p.a.dtype, a + k * p.a.column) * load_at<C>(p.b.data, p.b.dtype, b + k * p.b.row);
      }
    }
    sum = team.sum(sum);
    if (team.lane() != 0) return;
    store_at(p.c.data, p.c.dtype, at * p.c_step + row * p.c.row + column * p.c.column, sum);
  }
};

}  // namespace

void multiply_slowly(const MatrixProduct& product, const Queue& queue) {
  const std::int64_t items = product.count * product.c.rows * product.c.columns;
  if (product.c.dtype == DType::Float64) return teams(queue, items, ProductKernel<double>{product});
  teams(queue, items, ProductKernel<float>{product});
}

}  // namespace dsplan::cuda
