// What the data-parallel ranks of a job send each other and their hosts in one optimizer step, and how long it takes
// alone: payloads as planner/predict/footprint.h has them, cut into the calls that the runtime makes.
#pragma once

#include "core/job.h"
#include "planner/time/graph_times.h"
#include "planner/time/rates.h"

namespace dsplan {

// Seconds by moment, all micro-batches together.
struct DataTraffic {
  double forward = 0;        // Gathered parameters.
  double forward_first = 0;  // Of these: what no computation runs beside, because nothing came before.
  double backward = 0;       // Gathered parameters and reduced gradients.
  double backward_last = 0;  // Of these: what comes after all computation.
  bool beside = false;       // The rest runs beside computation, on a stream of its own.
  double step = 0;           // Around the optimizer: nothing hides it.
  // Copies between device and host, and files.
  double forward_host = 0;
  double backward_host = 0;
  bool host_beside = false;
  double step_host = 0;    // The host's optimizer, its gradients and results.
  double step_device = 0;  // The device's optimizer.
  double accumulate = 0;   // Gradients added to what is there, or copied into buckets: kernels of backward.
};

[[nodiscard]] DataTraffic data_traffic(const Job& job, const GraphTimes& times, const Rates& rates);

}  // namespace dsplan
