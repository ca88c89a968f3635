#include "planner/time/clock.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "planner/lower/shapes.h"
#include "planner/time/node_cost.h"
#include "planner/time/rates.h"

namespace dsplan {
namespace {

// Where an event belongs whose time the estimate knows: a pass of one of the steps.
enum class ClockPart : std::uint8_t { Forward, Backward, Step, Apart };

struct LaunchedWork {
  std::size_t event = 0;
  std::size_t stretch = 0;  // Counted from 0.
  ClockPart part = ClockPart::Apart;
  StreamId stream = kComputeStream;
  double seconds = 0;  // By the rates alone.
};

// Kernels of one operator in one module, in one kind of pass.
using KernelKey = std::tuple<ModuleId, std::string_view, Pass>;

class OperatorTimes {
 public:
  OperatorTimes(const Graph& graph, const Rates& rates) {
    for (const Node& node : graph.nodes) {
      const NodeCost cost = node_cost(graph, node, rates);
      const std::string_view name = dsplan::name(node.op);
      seconds_[{node.module, name, Pass::Forward}] += cost.forward;
      seconds_[{node.module, name, Pass::Recompute}] += cost.forward;
      seconds_[{node.module, name, Pass::Backward}] += cost.backward;
    }
  }
  [[nodiscard]] double of(const KernelKey& key) const {
    const auto found = seconds_.find(key);
    return found == seconds_.end() ? 0 : found->second;
  }

 private:
  std::map<KernelKey, double> seconds_;
};

// What runs, where, and how long the rates say that it takes.
class LaunchedWorks : public Ignores<Allocate, Release, RecordEvent, WaitEvent, EmptyCache, Enter, Exit> {
 public:
  LaunchedWorks(const Schedule& schedule, const Rates& rates, const OperatorTimes& operators)
      : schedule_(schedule), rates_(rates), operators_(operators) {}

  using Ignores<Allocate, Release, RecordEvent, WaitEvent, EmptyCache, Enter, Exit>::on;
  void on(std::size_t at, const Compute& event) {
    Bytes touched;
    for (const Span& span : {event.reads, event.writes}) {
      for (const Access& access : schedule_.range(span)) touched += access.bytes;
    }
    list_.push_back({at, stretch_, part_, event.stream, rates_.memory(touched)});
    keys_.emplace_back(KernelKey{event.module, event.work, event.pass}, batch_);
  }
  void on(std::size_t at, const Communicate& event) {
    const double seconds = rates_.collective(event.collective, event.group, event.payload);
    list_.push_back({at, stretch_, part_, event.stream, seconds});
    keys_.emplace_back(KernelKey{kNone, {}, event.pass}, batch_);
  }
  void on(std::size_t, const Mark& event) {
    const bool step = event.stretch != Stretch::Init && event.stretch != Stretch::Save;
    switch (event.moment) {
      case Moment::StretchBegins:
        ++stretch_;
        part_ = step ? ClockPart::Forward : ClockPart::Apart;
        break;
      case Moment::MicroBatchBegins:
        ++batch_;
        part_ = step ? ClockPart::Forward : ClockPart::Apart;
        break;
      case Moment::BackwardBegins: part_ = ClockPart::Backward; break;
      case Moment::StepBegins: part_ = ClockPart::Step; break;
      case Moment::StretchEnds: part_ = ClockPart::Apart; break;
      default: break;
    }
  }

  // Kernels of one operator share what the formulas say of it, by the bytes that they touch.
  [[nodiscard]] std::vector<LaunchedWork> take() {
    std::map<std::pair<KernelKey, int>, double> together;
    for (std::size_t i = 0; i < list_.size(); ++i) together[keys_[i]] += list_[i].seconds;
    for (std::size_t i = 0; i < list_.size(); ++i) {
      const double known = operators_.of(keys_[i].first);
      if (known > 0 && together[keys_[i]] > 0) list_[i].seconds *= known / together[keys_[i]];
    }
    return std::move(list_);
  }

 private:
  const Schedule& schedule_;
  const Rates& rates_;
  const OperatorTimes& operators_;
  std::vector<LaunchedWork> list_;
  std::vector<std::pair<KernelKey, int>> keys_;  // By place in the list, with the micro-batch.
  std::size_t stretch_ = 0;
  int batch_ = 0;
  ClockPart part_ = ClockPart::Apart;
};

double seconds_of(const StepTime& time, ClockPart part) {
  for (const PhaseTime& phase : time.phases) {
    const bool same = (part == ClockPart::Forward && phase.name == "forward") ||
                      (part == ClockPart::Backward && phase.name == "backward") ||
                      (part == ClockPart::Step && phase.name == "step");
    if (same) return phase.total();
  }
  return 0;
}

// What is on the compute stream takes together what the estimate says of its pass.
void scale(std::vector<LaunchedWork>& works, const StepTime& time) {
  std::map<std::pair<std::size_t, ClockPart>, double> together;
  for (const LaunchedWork& work : works) {
    if (work.stream == kComputeStream) together[{work.stretch, work.part}] += work.seconds;
  }
  for (LaunchedWork& work : works) {
    const double sum = together[{work.stretch, work.part}];
    if (work.stream == kComputeStream && work.part != ClockPart::Apart && sum > 0)
      work.seconds *= seconds_of(time, work.part) / sum;
  }
}

}  // namespace

Clock clock_of(const Schedule& schedule, const ModelSpec& model, const Job& job, const StepTime& time) {
  const Rates rates = Rates::of(job);
  const Shapes shapes = build_shapes(model, job);
  const OperatorTimes operators(shapes.graphs[shapes.lengths.size() - 1], rates);
  LaunchedWorks reader(schedule, rates, operators);
  replay(schedule, reader);
  std::vector<LaunchedWork> works = reader.take();
  scale(works, time);
  Clock clock;
  const std::size_t events = schedule.events.size();
  clock.at.reserve(events + 1);
  clock.begins.assign(events, 0);
  clock.ends.assign(events, 0);
  std::array<double, kStreams> free{};
  std::size_t next = 0;
  double now = 0;
  for (std::size_t event = 0; event < events; ++event) {
    clock.at.push_back(now);
    clock.begins[event] = clock.ends[event] = now;
    if (next == works.size() || works[next].event != event) continue;
    const LaunchedWork& work = works[next++];
    double& end = free[work.stream];
    clock.begins[event] = std::max(now, end);
    clock.ends[event] = end = clock.begins[event] + work.seconds;
    if (work.stream == kComputeStream) now = end;
  }
  clock.at.push_back(now);
  return clock;
}

}  // namespace dsplan
