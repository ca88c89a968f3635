#include "report/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "core/error.h"
#include "core/format.h"
#include "report/compare_rows.h"

namespace dsplan {
namespace {

Counters counters_of(const PhaseMark& mark) {
  Counters at;
  at[Counter::Requested] = mark.requested;
  at[Counter::Allocated] = mark.allocated;
  at[Counter::Active] = mark.active;
  at[Counter::Reserved] = mark.reserved;
  return at;
}

// What the process holds at a mark: the allocator's segments and what lies beside them, once it is there.
void add_process(const Prediction& p, Counters& at) {
  at[Counter::Process] = *at[Counter::Reserved] + p.context.value_or(Bytes(0)) + p.communicators.value_or(Bytes(0));
}

FigurePhase figures_of(const Phase& phase, const Prediction& p) {
  FigurePhase figures;
  figures.name = phase.name;
  for (const PhaseMark& mark : phase.marks) {
    figures.marks.push_back({mark.name, counters_of(mark)});
    add_process(p, figures.marks.back().at);
  }
  figures.peak[Counter::Requested] = phase.peak_requested;
  figures.peak[Counter::Allocated] = phase.peak_allocated;
  figures.peak[Counter::Active] = phase.peak_active;
  figures.peak[Counter::Reserved] = phase.peak_reserved;
  figures.requested_total = phase.requested_total;
  figures.allocations = phase.allocations;
  figures.host_requested_total = phase.host_requested_total;
  return figures;
}

// Rows of one kind are one row: recomputation counts as backward.
std::vector<TrafficFigure> figures_of(const std::vector<TrafficRow>& rows) {
  std::vector<TrafficFigure> figures;
  for (const TrafficRow& row : rows) {
    const Pass pass = row.phase == Pass::Recompute ? Pass::Backward : row.phase;
    TrafficFigure figure{std::string(name(row.collective)),
                         std::string(name(row.group)),
                         std::string(name(pass)),
                         std::string(name(row.dtype)),
                         row.kind == TrafficKind::Data ? "data" : "control",
                         row.calls,
                         row.payload,
                         row.wire};
    const auto same = std::find_if(figures.begin(), figures.end(), [&](const TrafficFigure& other) {
      return detail::traffic_path(other) == detail::traffic_path(figure);
    });
    if (same == figures.end()) {
      figures.push_back(std::move(figure));
    } else {
      same->calls = *same->calls + row.calls;
      same->payload = *same->payload + row.payload;
      same->wire = *same->wire + row.wire;
    }
  }
  return figures;
}

}  // namespace

PredictedRank figures_of(const Prediction& p) {
  PredictedRank rank{p.fingerprint, p.world, p.verdict, p.verdict_reason, {}};
  RankFigures& f = rank.figures;
  f.rank = p.rank;
  f.parameters_total = p.parameters_total;
  f.parameters_trainable = p.parameters_trainable;
  f.persistent[Counter::Requested] = p.persistent.by_role.total();
  f.persistent[Counter::Allocated] = p.persistent.allocated;
  if (p.peak) {
    f.peak[Counter::Requested] = p.peak->requested;
    f.peak[Counter::Allocated] = p.peak->allocated;
    f.peak[Counter::Active] = p.peak->active;
    f.peak[Counter::Reserved] = p.peak->reserved;
    f.peak[Counter::Process] = p.peak->process;
    f.peak_phase = p.peak->phase;
  }
  for (const Phase& phase : p.phases) {
    if (phase.name != kRecord) f.phases.push_back(figures_of(phase, p));  // Its marks are the first step's.
  }
  f.host = p.host;
  if (p.communication) f.communication = figures_of(*p.communication);
  f.absent = p.not_modelled;
  return rank;
}

namespace {

[[noreturn]] void refuse(const KnownDifference& known, std::string message, std::string hint = {}) {
  Diagnostic diagnostic = known.place;
  diagnostic.message = std::move(message);
  diagnostic.hint = std::move(hint);
  throw Refusal({std::move(diagnostic)});
}

// Adds what is known to the rows that differ. A difference that is gone is no longer explained, and reported.
void explain(const KnownDifference& known, ReceiptComparison& into) {
  const auto rank = std::find_if(into.ranks.begin(), into.ranks.end(),
                                 [&](const RankComparison& one) { return one.rank == known.rank; });
  if (rank == into.ranks.end()) refuse(known, formatted("\"{}\" has no rank {}", into.receipt, known.rank));
  std::vector<ComparedRow*> matching;
  for (ComparedRow& row : rank->rows) {
    if (row.kind != RowKind::Verdict && detail::matches(known.row, row.path)) matching.push_back(&row);
  }
  if (matching.empty()) {
    std::vector<std::string_view> paths;
    for (const ComparedRow& row : rank->rows) paths.push_back(row.path);
    refuse(known, formatted("\"{}\" has no row \"{}\"", into.receipt, known.row),
           did_you_mean(nearest(known.row, paths)));
  }
  bool applies = false;
  for (ComparedRow* row : matching) {
    if (!row->measured || !row->predicted || *row->measured == *row->predicted) continue;
    if (row->state == ComparedRow::State::NotMeasured) continue;
    row->explained = checked_add(row->explained, known.bytes);
    row->reasons.push_back(known.reason);
    detail::settle(*row);
    applies = true;
  }
  if (applies) return;
  into.stale.push_back(formatted("{}, rank {}, {}: no such difference any more ({} bytes, {})", known.receipt,
                                 known.rank, known.row, known.bytes, known.reason));
}

std::string why_nothing(const Receipt& receipt, const std::vector<PredictedRank>& predicted) {
  if (!predicted.empty() && !predicted.front().figures.peak[Counter::Requested]) {
    return predicted.front().verdict_reason;
  }
  return receipt.message.value_or("the receipt measured nothing that a prediction says");
}

const PredictedRank& prediction_of(std::int64_t rank, const std::vector<PredictedRank>& predicted) {
  const auto found = std::find_if(predicted.begin(), predicted.end(),
                                  [&](const PredictedRank& one) { return one.figures.rank == rank; });
  DSPLAN_CHECK(found != predicted.end(), formatted("no prediction of rank {}", rank));
  return *found;
}

// Of all verdicts Unknown is the least said.
bool worse(Verdict a, Verdict b) { return a != Verdict::Unknown && (b == Verdict::Unknown || a > b); }

}  // namespace

ReceiptComparison nothing_compared(const Receipt& receipt) {
  ReceiptComparison result;
  result.receipt = receipt.name;
  result.path = receipt.path;
  result.source = receipt.source;
  result.level = receipt.level;
  result.device = receipt.device;
  result.outcome = receipt.outcome;
  result.complete = receipt.complete;
  result.part = part_of(receipt.inputs);
  return result;
}

ReceiptComparison compare(const Receipt& receipt, const std::vector<PredictedRank>& predicted,
                          const CompareTerms& terms) {
  ReceiptComparison result = nothing_compared(receipt);
  const std::vector<RankFigures> nothing(receipt.ranks.empty() ? 1 : 0);  // Out of memory before any rank spoke.
  for (const RankFigures& measured : receipt.ranks.empty() ? nothing : receipt.ranks) {
    const PredictedRank& mine = prediction_of(measured.rank, predicted);
    result.fingerprint = mine.fingerprint;
    if (worse(mine.verdict, result.verdict)) result.verdict = mine.verdict;
    detail::RowMaker maker(receipt, mine.figures, measured, terms.tolerances);
    result.ranks.push_back({measured.rank, maker.all(mine.verdict)});
  }
  for (const KnownDifference& known : terms.known) {
    if (known.receipt == receipt.name) explain(known, result);
  }
  const bool any = std::any_of(result.ranks.begin(), result.ranks.end(), [](const RankComparison& rank) {
    return std::any_of(rank.rows.begin(), rank.rows.end(),
                       [](const ComparedRow& row) { return row.kind != RowKind::Parameters && is_said(row); });
  });
  if (!any) result.refused = "no row can be compared: " + why_nothing(receipt, predicted);
  return result;
}

std::vector<std::string> strata_of(const Job& job, const ModelSpec& model) {
  const Training& training = job.training;
  std::vector<std::string> strata;
  if (training.runtime == Runtime::DeepSpeed) {
    strata.push_back(formatted("ZeRO-{}", training.zero.stage));
  } else if (training.runtime == Runtime::Fsdp2) {
    strata.emplace_back("FSDP2");
  } else if (training.runtime == Runtime::Fsdp1) {
    strata.emplace_back("FSDP1");
  } else {
    strata.emplace_back(job.parallelism.world > 1 ? "DDP" : "single GPU");
  }
  const Zero& zero = training.zero;
  if (zero.offload_param.device != OffloadDevice::None || zero.offload_optimizer.device != OffloadDevice::None) {
    strata.emplace_back("offload");
  }
  if (!training.checkpoint.groups.empty() || !training.checkpoint.modules.empty()) strata.emplace_back("checkpointing");
  const bool adapters = std::any_of(model.parameters.begin(), model.parameters.end(), [](const Parameter& parameter) {
    return parameter.name.find(".lora_A") != std::string::npos;
  });
  if (adapters) strata.emplace_back("LoRA");
  return strata;
}

namespace {

// The rows that stand for a whole run.
constexpr std::array<std::string_view, 9> kPrincipal = {"memory.persistent.requested",
                                                        "memory.persistent.allocated",
                                                        "memory.peak.requested",
                                                        "memory.peak.allocated",
                                                        "memory.peak.active",
                                                        "memory.peak.reserved",
                                                        "memory.peak.process",
                                                        "memory.host.peak",
                                                        "verdict"};
constexpr std::array<std::string_view, 9> kStrata = {"single GPU", "DDP",     "ZeRO-0",        "ZeRO-1", "ZeRO-2",
                                                     "ZeRO-3",     "offload", "checkpointing", "LoRA"};

double percent(const ComparedRow& row) {
  const auto measured = static_cast<double>(*row.measured);
  const auto error = static_cast<double>(*row.predicted) - measured;
  return measured == 0 ? (error == 0 ? 0 : std::copysign(100.0, error)) : 100 * error / measured;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

class Gatherer {
 public:
  explicit Gatherer(StratumRow row) : row_(std::move(row)) {}

  void take(const ComparedRow& row) {
    if (row.state == ComparedRow::State::NotMeasured || row.state == ComparedRow::State::NotPredicted) return;
    ++row_.cases;
    if (row.kind == RowKind::Verdict ? row.state == ComparedRow::State::Equal : row.measured == row.predicted) {
      ++row_.equal;
    }
    if (row.state == ComparedRow::State::Differs) ++row_.unexplained;
    if (row.measured) errors_.push_back(percent(row));
  }

  [[nodiscard]] StratumRow finish() {
    row_.median_percent = median(errors_);
    for (const double error : errors_) {
      if (std::abs(error) > std::abs(row_.worst_percent)) row_.worst_percent = error;
    }
    return row_;
  }

 private:
  StratumRow row_;
  std::vector<double> errors_;
};

bool belongs(const ReceiptComparison& comparison, std::string_view stratum, Receipt::Device device) {
  return comparison.device == device &&
         std::find(comparison.strata.begin(), comparison.strata.end(), stratum) != comparison.strata.end();
}

}  // namespace

std::vector<StratumRow> by_stratum(const std::vector<ReceiptComparison>& comparisons) {
  std::vector<StratumRow> rows;
  for (const auto device :
       {Receipt::Device::Cuda, Receipt::Device::Cpu, Receipt::Device::Fake, Receipt::Device::Host}) {
    for (const std::string_view stratum : kStrata) {
      for (const std::string_view path : kPrincipal) {
        Gatherer gatherer(StratumRow{std::string(stratum), device, std::string(path)});
        for (const ReceiptComparison& comparison : comparisons) {
          if (!belongs(comparison, stratum, device)) continue;
          for (const RankComparison& rank : comparison.ranks) {
            for (const ComparedRow& row : rank.rows) {
              if (row.path == path) gatherer.take(row);
            }
          }
        }
        const StratumRow row = gatherer.finish();
        if (row.cases > 0) rows.push_back(row);
      }
    }
  }
  return rows;
}

}  // namespace dsplan
