#include "planner/time/estimate.h"

#include <algorithm>

#include "planner/lower/lower.h"
#include "planner/time/traffic.h"

namespace dsplan {
namespace {

PartTime whole(const GraphTimes& times) {
  PartTime sum = times.before;
  for (const PartTime& region : times.regions) sum += region;
  sum += times.after;
  return sum;
}

// Kernels whose results a selective checkpoint keeps, of one region.
PartTime kept_of(const GraphTimes& times, std::size_t region, const CheckpointGroup& group) {
  PartTime kept;
  for (const GraphTimes::OperatorTime& one : times.by_operator[times.operators[region]]) {
    if (std::find(group.kept.begin(), group.kept.end(), one.op) == group.kept.end()) continue;
    PartTime part = one.part;
    if (group.alternate && one.op == Op::Linear) part *= 0.5;  // As if products were alike.
    kept += part;
  }
  return kept;
}

void leave_out(const PartTime& part, PartTime& from) {
  from.forward = std::max(0.0, from.forward - part.forward);
  from.forward_launch = std::max(0.0, from.forward_launch - part.forward_launch);
  from.forward_collectives = std::max(0.0, from.forward_collectives - part.forward_collectives);
  from.forward_flops = std::max(0.0, from.forward_flops - part.forward_flops);
}

// What backward runs once more, of one micro-batch: in `forward` and its companions.
PartTime recomputed(const GraphTimes& times, const Checkpointing& checkpoint) {
  PartTime sum;
  for (const CheckpointGroup& group : checkpoint.groups) {
    PartTime one;
    const auto last = std::min(static_cast<std::size_t>(group.last) + 1, times.regions.size());
    for (auto at = static_cast<std::size_t>(group.first); at < last; ++at) one += times.regions[at];
    if (!group.kept.empty() && last > 0) {
      for (auto at = static_cast<std::size_t>(group.first); at < last; ++at) {
        leave_out(kept_of(times, at, group), one);
      }
    } else if (group.kind == CheckpointKind::NonReentrant && last > 0) {
      leave_out(times.tails[last - 1], one);
    }
    sum += one;
  }
  return sum;
}

// Arguments of checkpoints that lie on the host: to it in forward, from it in backward, pageable. Seconds one way.
double checkpoints_on_host(const Graph& graph, const Job& job, const Checkpointing& checkpoint, const Rates& rates) {
  if (!checkpoint.by_deepspeed() || !checkpoint.deepspeed.cpu) return 0;
  double seconds = 0;
  for (const CheckpointGroup& group : checkpoint.groups) {
    const Region& region = graph.regions[static_cast<std::size_t>(group.first)];
    Bytes bytes;
    for (const TensorId id : region.arguments) bytes += graph.bytes(id);
    if (checkpoint.deepspeed.partition) bytes = div_ceil(bytes, job.parallelism.tp);
    seconds += rates.host_copy(bytes, false);
  }
  return seconds;
}

// Collectives and copies beside `window` seconds of computation: what sticks out, and what is hidden.
struct Exposure {
  double exposed = 0;
  double hidden = 0;
};

Exposure beside(double seconds, double fixed, bool overlaps, double window) {
  Exposure result;
  const double free = overlaps ? std::max(0.0, seconds - fixed) : 0;
  result.hidden = std::min(free, std::max(0.0, window));
  result.exposed = seconds - result.hidden;
  return result;
}

class Estimator {
 public:
  Estimator(const Job& job, const Graph& graph, const GraphTimes& times, const Rates& rates)
      : job_(job), t_(job.training), graph_(graph), times_(times), rates_(rates) {}

  StepTime run() {
    const DataTraffic traffic = data_traffic(job_, times_, rates_);
    const PartTime all = whole(times_);
    // Modules that are checkpoints are resolved against the graph; layers already are.
    const bool by_module = !t_.checkpoint.modules.empty();
    const Checkpointing checkpoint = by_module ? checkpointing_of(t_, graph_) : Checkpointing{};
    const Checkpointing& used = by_module ? checkpoint : t_.checkpoint;
    const PartTime recompute = recomputed(times_, used);
    const double copies = checkpoints_on_host(graph_, job_, used, rates_);
    StepTime step;
    step.phases = {forward(all, copies, traffic), backward(all, recompute, copies, traffic), last(traffic)};
    for (const PhaseTime& phase : step.phases) step.total += phase.total();
    const auto micro = static_cast<double>(t_.grad_accum);
    step.model_flops = micro * (all.forward_flops + all.backward_flops);
    step.hardware_flops = step.model_flops + micro * recompute.forward_flops;
    finish(step);
    return step;
  }

 private:
  PhaseTime forward(const PartTime& all, double copies, const DataTraffic& traffic) const {
    const auto micro = static_cast<double>(t_.grad_accum);
    PhaseTime phase;
    phase.name = "forward";
    phase.compute = micro * (all.forward - all.forward_launch);
    phase.launch = micro * all.forward_launch;
    phase.exposed = micro * all.forward_collectives;
    hide(traffic.forward, traffic.forward_first, traffic.beside, traffic.forward_host, traffic.host_beside, phase);
    phase.host += micro * copies;
    return phase;
  }

  PhaseTime backward(const PartTime& all, const PartTime& recompute, double copies, const DataTraffic& traffic) const {
    const auto micro = static_cast<double>(t_.grad_accum);
    PhaseTime phase;
    phase.name = "backward";
    phase.recompute = micro * (recompute.forward - recompute.forward_launch);
    phase.compute = micro * (all.backward - all.backward_launch) + phase.recompute + traffic.accumulate;
    phase.launch = micro * (all.backward_launch + recompute.forward_launch);
    phase.exposed = micro * (all.backward_collectives + recompute.forward_collectives);
    // Below ZeRO-3 gradients of one micro-batch alone are sent where accumulation waits for the last.
    const bool last_only = t_.runtime == Runtime::PyTorch || t_.zero.stage == 1;
    hide(traffic.backward, traffic.backward_last, traffic.beside, traffic.backward_host, traffic.host_beside, phase,
         last_only ? 1 / micro : 1.0);
    phase.host += micro * copies;
    return phase;
  }

  // `part`: of the phase's computation, what collectives can run beside.
  void hide(double collectives, double fixed, bool overlaps, double host, bool host_overlaps, PhaseTime& phase,
            double part = 1) const {
    const double window = (phase.compute + phase.launch) * part * rates_.overlap();
    const Exposure sent = beside(collectives, std::min(fixed, collectives), overlaps, window);
    // What runs beside computation takes part of it away.
    const double tax = sent.hidden * rates_.collective_tax(Group::DataParallel);
    phase.exposed += sent.exposed + tax;
    phase.hidden += sent.hidden - tax;
    // Copies have engines of their own, and hide under the same computation.
    phase.host += beside(host, 0, host_overlaps, (phase.compute + phase.launch) * rates_.overlap()).exposed;
  }

  PhaseTime last(const DataTraffic& traffic) const {
    PhaseTime phase;
    phase.name = "step";
    phase.compute = traffic.step_device;
    phase.launch = rates_.between_steps();
    phase.exposed = traffic.step;
    phase.host = traffic.step_host;
    return phase;
  }

  void finish(StepTime& step) const {
    std::int64_t positions = 0;
    for (std::int64_t k = 0; k < t_.grad_accum; ++k) positions += t_.seq_of((t_.steps() - 1) * t_.grad_accum + k);
    const double tokens = static_cast<double>(t_.rows() * job_.parallelism.dp) * static_cast<double>(positions);
    step.low = step.total * rates_.low();
    step.high = step.total * rates_.high();
    if (step.total > 0) {
      const double most = step.total * rates_.peak(t_.compute_dtype());
      step.tokens_per_second = tokens / step.total;
      step.mfu = step.model_flops / most;
      step.hfu = step.hardware_flops / most;
    }
    step.calibrated = rates_.calibrated();
    step.basis = rates_.basis();
  }

  const Job& job_;
  const Training& t_;
  const Graph& graph_;
  const GraphTimes& times_;
  const Rates& rates_;
};

}  // namespace

StepTime estimate(const ModelSpec& /*model*/, const Job& job, const Graph& graph, const GraphTimes& times,
                  const Rates& rates) {
  return Estimator(job, graph, times, rates).run();
}

namespace {

// The mean micro-batch of the steady step.
GraphTimes mean_times(const Job& job, const Shapes& shapes, const Rates& rates) {
  const Training& t = job.training;
  if (shapes.lengths.size() == 1) return graph_times(shapes.graphs.front(), t, rates);
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
  answer.why = model.recording ? "how long a recorded module's operators take is not estimated" : Rates::missing(job);
  if (!answer.why.empty()) return answer;
  const Rates rates = Rates::of(job);
  answer.time = estimate(model, job, shapes.graphs.front(), mean_times(job, shapes, rates), rates);
  return answer;
}

}  // namespace dsplan
