#include "exec/measure.h"

#include <algorithm>

namespace dsplan::exec {
namespace {

// Requested as PyTorch counts it: with blocks whose free waits for another stream.
void put(Counters& counters, const AllocatorStatistics& statistics) {
  counters[Counter::Requested] = statistics.requested;
  counters[Counter::Allocated] = statistics.allocated;
  counters[Counter::Active] = statistics.active;
  counters[Counter::Reserved] = statistics.reserved;
}

void take_larger(Counters& most, const Counters& other) {
  for (std::size_t i = 0; i < kCounters; ++i) {
    if (other.bytes[i]) most.bytes[i] = std::max(most.bytes[i].value_or(Bytes(0)), *other.bytes[i]);
  }
}

std::int64_t nanoseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

}  // namespace

Measurer::Measurer(const Schedule& schedule, const Device& device, RankMemory& memory, const Runner& runner)
    : schedule_(schedule),
      device_(device),
      memory_(memory),
      runner_(runner),
      since_(std::chrono::steady_clock::now()) {}

Counters Measurer::now() const {
  Counters counters;
  put(counters, memory_.device());
  return counters;
}

void Measurer::on(std::size_t at, const Allocate&) {
  event_ = at;
  phase_requested_ = std::max(phase_requested_, memory_.demand().bytes);
  if (saving_ || memory_.demand().bytes <= most_requested_) return;
  most_requested_ = memory_.demand().bytes;
  peak_phase_ = name(stretch_);
}

// The middle steps are one phase, with the marks of its first step.
void Measurer::on(std::size_t at, const Mark& event) {
  event_ = at;
  note_time(event.moment);
  if (event.moment == Moment::StretchBegins) {
    repeated_ = event.stretch == Stretch::MiddleStep && stretch_ == Stretch::MiddleStep;
    stretch_ = event.stretch;
    saving_ = event.stretch == Stretch::Save;
    if (saving_) before_saving_ = memory_.host().peaks;
    phase_requested_ = memory_.demand().bytes;
    file_read_ = device_.files().bytes_read();
    file_written_ = device_.files().bytes_written();
    requested_total_ = memory_.demand().total;
    allocations_ = memory_.demand().allocations;
    host_requested_total_ = memory_.host().requested_total;
    memory_.reset_peaks();
    if (!repeated_) phases_.push_back({std::string(name(event.stretch)), {}, {}, {}, {}, {}});
    times_.push_back({event.stretch, 0, 0, 0, 0});
    peak_[Counter::Requested] = std::max(peak_[Counter::Requested].value_or(Bytes(0)), memory_.demand().bytes);
  }
  FigurePhase& phase = phases_.back();
  if (!repeated_) phase.marks.push_back({std::string(name(event.moment)), now()});
  if (event.moment != Moment::StretchEnds) return;
  Counters most;
  put(most, memory_.device_peaks());
  take_larger(phase.peak, most);
  most[Counter::Requested] = phase_requested_;  // The headline's roles are those of live buffers.
  phase.requested_total = phase.requested_total.value_or(Bytes(0)) + (memory_.demand().total - requested_total_);
  phase.allocations = phase.allocations.value_or(0) + (memory_.demand().allocations - allocations_);
  phase.host_requested_total =
      phase.host_requested_total.value_or(Bytes(0)) + (memory_.host().requested_total - host_requested_total_);
  if (saving_) return;
  if (stretch_ == Stretch::SecondStep) {
    step_read_ = device_.files().bytes_read() - file_read_;
    step_written_ = device_.files().bytes_written() - file_written_;
  }
  take_larger(peak_, most);
  persistent_ = {};
  persistent_[Counter::Requested] = memory_.demand().bytes;
  persistent_[Counter::Allocated] = memory_.device().allocated;
}

void Measurer::note_time(Moment moment) {
  const auto at = std::chrono::steady_clock::now();
  const std::int64_t took = nanoseconds(at - since_);
  since_ = at;
  if (times_.empty()) return;
  if (moment == Moment::ForwardEnds) times_.back().forward += took;
  if (moment == Moment::BackwardEnds) times_.back().backward += took;
  if (moment == Moment::StepEnds) times_.back().step += took;
  times_.back().communication += runner_.communicating() - communicated_;
  communicated_ = runner_.communicating();
}

// As TrafficMeter counts: init, saving, and the second step.
std::vector<TrafficFigure> Measurer::traffic() const {
  std::vector<TrafficFigure> rows;
  Stretch stretch = Stretch::Init;
  std::size_t next = 0;
  for (const CollectiveWork::Sent& sent : runner_.sent()) {
    for (; next <= sent.event; ++next) {
      if (const auto* mark = std::get_if<Mark>(&schedule_.events[next])) stretch = mark->stretch;
    }
    if (stretch == Stretch::FirstStep || stretch == Stretch::MiddleStep) continue;
    const auto& event = std::get<Communicate>(schedule_.events[sent.event]);
    const Pass pass = event.pass == Pass::Recompute ? Pass::Backward : event.pass;
    TrafficFigure row;
    row.collective = name(sent.record.kind);
    row.group = name(sent.record.group);
    row.phase = pass == Pass::Setup ? "init" : std::string(name(pass));
    row.dtype = name(sent.record.dtype);
    row.kind = event.kind == TrafficKind::Data ? "data" : "control";
    const auto same = [&](const TrafficFigure& other) {
      return other.collective == row.collective && other.group == row.group && other.phase == row.phase &&
             other.dtype == row.dtype && other.kind == row.kind;
    };
    auto found = std::find_if(rows.begin(), rows.end(), same);
    if (found == rows.end()) found = rows.insert(rows.end(), row);
    found->calls = found->calls.value_or(0) + 1;
    found->payload = found->payload.value_or(Bytes(0)) + sent.record.payload;
    if (sent.record.sent) found->wire = found->wire.value_or(Bytes(0)) + *sent.record.sent;
  }
  return rows;
}

RankFigures Measurer::figures() const {
  RankFigures figures;
  figures.rank = schedule_.rank;
  figures.persistent = persistent_;
  figures.peak = peak_;
  figures.peak_phase = peak_phase_;
  // What is predicted is the second step; those behind it repeat it.
  for (const FigurePhase& phase : phases_) {
    if (phase.name != name(Stretch::MiddleStep)) figures.phases.push_back(phase);
  }
  figures.communication = traffic();
  const HostPeaks& host = before_saving_ ? *before_saving_ : memory_.host().peaks;
  figures.host.pinned = host.most.pinned + host.most.locked;
  figures.host.pinned_requested = host.most.pinned_requested;
  figures.host.pageable = host.most.pageable;
  figures.host.peak = host.memory;
  figures.host.nvme = host.most.nvme;
  figures.host.nvme_read = step_read_;
  figures.host.nvme_written = step_written_;
  return figures;
}

}  // namespace dsplan::exec
