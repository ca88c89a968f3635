// What a rank measured, as bytes for rank 0 (exec/rendezvous/packing.h).
#pragma once

#include <optional>
#include <string>

#include "exec/rendezvous/packing.h"
#include "exec/run.h"

namespace dsplan::exec {

// What a rank tells rank 0 when it has ended.
struct Report {
  RankRun run;
  std::optional<std::size_t> parted;
  std::string parted_text;
  std::int64_t strangers = 0;  // As of Rendezvous::strangers.
};

// Each member of what a rank measured. A member that is added to one of these structs is added here: a test takes full
// ones apart and puts them together again.
template <class Archive>
void fields(Archive& archive, Counters& c) {
  archive(c.bytes);
}
template <class Archive>
void fields(Archive& archive, FigureMark& mark) {
  archive(mark.name, mark.at);
}
template <class Archive>
void fields(Archive& archive, FigurePhase& phase) {
  archive(phase.name, phase.marks, phase.peak, phase.requested_total, phase.allocations, phase.host_requested_total);
}
template <class Archive>
void fields(Archive& archive, TrafficFigure& row) {
  archive(row.collective, row.group, row.phase, row.dtype, row.kind, row.calls, row.payload, row.wire);
}
template <class Archive>
void fields(Archive& archive, Absence& absence) {
  archive(absence.what, absence.why);
}
template <class Archive>
void fields(Archive& archive, HostMemory& host) {
  archive(host.pinned, host.pinned_requested, host.pageable, host.peak, host.per_node, host.nvme, host.nvme_per_node,
          host.nvme_read, host.nvme_written, host.capacity, host.verdict, host.verdict_reason);
}
template <class Archive>
void fields(Archive& archive, RankFigures& f) {
  archive(f.rank, f.parameters_total, f.parameters_trainable, f.persistent, f.peak, f.peak_phase, f.phases, f.host,
          f.communication, f.snapshot, f.absent);
}
template <class Archive>
void fields(Archive& archive, PhaseTime& time) {
  archive(time.stretch, time.forward, time.backward, time.step, time.communication);
}
template <class Archive>
void fields(Archive& archive, OptimizerStep::Taken& step) {
  archive(step.loss_scale, step.skipped);
}
template <class Archive>
void fields(Archive& archive, RankRun& run) {
  archive(run.figures, run.losses, run.times, run.steps, run.communicators);
}
template <class Archive>
void fields(Archive& archive, Report& report) {
  archive(report.run, report.parted, report.parted_text, report.strangers);
}

}  // namespace dsplan::exec
