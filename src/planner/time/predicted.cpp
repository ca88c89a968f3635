#include "planner/time/predicted.h"

#include <algorithm>

#include "planner/time/estimate.h"

namespace dsplan {
namespace {

// The mean micro-batch of the steady step.
GraphTimes mean_times(const Job& job, const Shapes& shapes, const Rates& rates) {
  const Training& t = job.training;
  if (shapes.graphs.size() == 1) return graph_times(shapes.graphs.front(), t, rates);
  GraphTimes sum;
  for (std::int64_t k = 0; k < t.grad_accum; ++k) {
    const std::int64_t length = t.seq_of((t.steps() - 1) * t.grad_accum + k);
    const auto at = std::find(shapes.lengths.begin(), shapes.lengths.end(), length) - shapes.lengths.begin();
    GraphTimes one = graph_times(shapes.graphs[static_cast<std::size_t>(at)], t, rates);
    if (k == 0) {
      sum = std::move(one);
    } else {
      sum.add(one);
    }
  }
  sum.scale(1 / static_cast<double>(t.grad_accum));
  return sum;
}

}  // namespace

TimeAnswer time_of(const ModelSpec& model, const Job& job, const Shapes& shapes) {
  TimeAnswer answer;
  answer.why = Rates::missing(job);
  if (!answer.why.empty()) return answer;
  const Rates rates = Rates::of(job);
  answer.time = estimate(model, job, shapes.graphs.front(), mean_times(job, shapes, rates), rates);
  return answer;
}

}  // namespace dsplan
