#include "report/read_prediction.h"

#include <array>

#include "core/format.h"
#include "io/measured_file.h"
#include "io/own_file.h"

namespace dsplan {
namespace {

constexpr std::array<Counter, 4> kPeaks = {Counter::Requested, Counter::Allocated, Counter::Active, Counter::Reserved};
constexpr std::array<std::string_view, 4> kPeakKeys = {"peak_requested", "peak_allocated", "peak_active",
                                                       "peak_reserved"};

class Reader {
 public:
  explicit Reader(const Document& document) : document_(document) {}

  std::vector<PredictedRank> read() {
    std::vector<PredictedRank> ranks;
    ObjectReader reader(document_, document_.root, faults_);
    const std::string schema = reader.choice("schema", {"dsplan.prediction/1", "dsplan.predictions/1"}).value_or("");
    if (schema == "dsplan.prediction/1") {
      ranks.push_back(read_rank(document_.root));
    } else if (const Value* list = reader.array("ranks")) {
      for (const Value& item : list->items) {
        if (detail::is_object(document_, item, "a prediction", faults_)) ranks.push_back(read_rank(item));
      }
    }
    if (schema.empty() && !faults_.any()) reader.fault("schema", "\"schema\" is missing: is this a prediction?");
    faults_.throw_if_any();
    return ranks;
  }

 private:
  PredictedRank read_rank(const Value& value) {
    ObjectReader reader(document_, value, faults_);
    for (const char* known : {"schema", "model", "fits", "retries", "retries_low", "time", "assumptions",
                              "above_inputs", "reserve_bytes", "capacity_bytes", "traffic_terms", "advice"}) {
      reader.accept(known);
    }
    detail::need(reader, {"fingerprint", "world_size", "rank", "verdict", "memory"});
    PredictedRank into;
    into.fingerprint = reader.string("fingerprint").value_or("");
    into.world = reader.integer("world_size", 1, INT64_MAX).value_or(1);
    into.figures.rank = reader.integer("rank", 0, INT64_MAX).value_or(0);
    const std::string verdict =
        reader.choice("verdict", {"fits", "fits_with_retries", "does_not_fit", "unknown"}).value_or("unknown");
    for (const Verdict one : {Verdict::Fits, Verdict::FitsWithRetries, Verdict::DoesNotFit}) {
      if (verdict == name(one)) into.verdict = one;
    }
    into.verdict_reason = reader.string("verdict_reason").value_or("");
    beside_ = detail::bytes(reader, "context_bytes").value_or(Bytes(0)) +
              detail::bytes(reader, "communicators_bytes").value_or(Bytes(0));
    if (const Value* parameters = reader.object("parameters")) read_parameters(*parameters, into.figures);
    if (const Value* memory = reader.object("memory")) read_memory(*memory, into.figures);
    if (const Value* rows = reader.array("communication")) read_communication(*rows, into.figures);
    if (const Value* rows = reader.array("not_modelled")) read_absent(*rows, into.figures);
    reader.refuse_unread("a prediction");
    return into;
  }

  void read_parameters(const Value& value, RankFigures& into) {
    ObjectReader reader(document_, value, faults_);
    if (const auto total = reader.integer("total", 0, INT64_MAX)) into.parameters_total = Elements(*total);
    if (const auto some = reader.integer("trainable", 0, INT64_MAX)) into.parameters_trainable = Elements(*some);
  }

  void read_memory(const Value& value, RankFigures& into) {
    ObjectReader reader(document_, value, faults_);
    for (const char* known : {"states", "held_for_backward", "loss_spike", "fragmentation"}) reader.accept(known);
    if (const Value* found = reader.object("persistent")) {
      ObjectReader persistent(document_, *found, faults_);
      into.persistent[Counter::Requested] = detail::bytes(persistent, "total");
      into.persistent[Counter::Allocated] = detail::bytes(persistent, "allocated");
    }
    if (const Value* found = reader.object("peak")) {
      ObjectReader peak(document_, *found, faults_);
      read_counters(peak, into.peak);
      into.peak[Counter::Process] = detail::bytes(peak, "process");
      into.peak_phase = peak.string("phase").value_or("");
    }
    if (const Value* found = reader.object("host")) {
      ObjectReader host(document_, *found, faults_);
      into.host.pinned = detail::bytes(host, "pinned");
      into.host.pageable = detail::bytes(host, "pageable");
      into.host.peak = detail::bytes(host, "peak");
      into.host.per_node = detail::bytes(host, "per_node");
      into.host.nvme = detail::bytes(host, "nvme");
      into.host.nvme_per_node = detail::bytes(host, "nvme_per_node");
      into.host.nvme_read = detail::bytes(host, "nvme_read");
      into.host.nvme_written = detail::bytes(host, "nvme_written");
    }
    if (const Value* phases = reader.array("phases")) read_phases(*phases, into);
    reader.refuse_unread("a prediction's memory");
  }

  static void read_counters(ObjectReader& reader, Counters& into) {
    for (const Counter counter : kPeaks) into[counter] = detail::bytes(reader, name(counter));
  }

  void read_phases(const Value& list, RankFigures& into) {
    for (const Value& item : list.items) {
      if (!detail::is_object(document_, item, "a phase", faults_)) continue;
      ObjectReader reader(document_, item, faults_);
      FigurePhase phase;
      phase.name = reader.string("name").value_or("");
      for (std::size_t i = 0; i < kPeaks.size(); ++i) phase.peak[kPeaks[i]] = detail::bytes(reader, kPeakKeys[i]);
      phase.requested_total = detail::bytes(reader, "requested_total");
      phase.allocations = reader.integer("allocations", 0, INT64_MAX);
      phase.host_requested_total = detail::bytes(reader, "host_requested_total");
      if (const Value* marks = reader.array("marks")) read_marks(*marks, phase);
      (void)reader.array("parts");             // Nor the peaks of parts.
      (void)reader.array("see_memory_usage");  // The framework's own lines: no receipt has them.
      reader.refuse_unread("a phase");
      if (phase.name != kRecord) into.phases.push_back(std::move(phase));
    }
  }

  void read_marks(const Value& list, FigurePhase& phase) {
    for (const Value& item : list.items) {
      if (!detail::is_object(document_, item, "a mark", faults_)) continue;
      ObjectReader reader(document_, item, faults_);
      FigureMark mark;
      mark.name = reader.string("name").value_or("");
      read_counters(reader, mark.at);
      if (mark.at[Counter::Reserved]) mark.at[Counter::Process] = *mark.at[Counter::Reserved] + beside_;
      reader.refuse_unread("a mark");
      phase.marks.push_back(std::move(mark));
    }
  }

  void read_communication(const Value& list, RankFigures& into) {
    std::vector<TrafficFigure> rows;
    for (const Value& item : list.items) {
      if (!detail::is_object(document_, item, "a row of \"communication\"", faults_)) continue;
      ObjectReader reader(document_, item, faults_);
      TrafficFigure row;
      row.collective = reader.string("collective").value_or("");
      row.group = reader.string("group").value_or("");
      row.phase = reader.string("phase").value_or("");
      row.dtype = reader.string("dtype").value_or("");
      row.kind = reader.string("kind").value_or("");
      row.calls = reader.integer("calls", 0, INT64_MAX).value_or(0);
      row.payload = detail::bytes(reader, "payload_bytes").value_or(Bytes(0));
      row.wire = detail::bytes(reader, "wire_bytes").value_or(Bytes(0));
      reader.refuse_unread("a row of \"communication\"");
      add(std::move(row), rows);
    }
    into.communication = std::move(rows);
  }

  // Backward and what it recomputes carry one name.
  static void add(TrafficFigure row, std::vector<TrafficFigure>& rows) {
    for (TrafficFigure& other : rows) {
      const bool same = other.collective == row.collective && other.group == row.group && other.phase == row.phase &&
                        other.dtype == row.dtype && other.kind == row.kind;
      if (!same) continue;
      other.calls = checked_add(*other.calls, *row.calls);
      *other.payload += *row.payload;
      *other.wire += *row.wire;
      return;
    }
    rows.push_back(std::move(row));
  }

  void read_absent(const Value& list, RankFigures& into) {
    for (const Value& item : list.items) {
      if (!detail::is_object(document_, item, "an entry of \"not_modelled\"", faults_)) continue;
      ObjectReader reader(document_, item, faults_);
      into.absent.push_back({reader.string("what").value_or(""), reader.string("why").value_or("")});
    }
  }

  const Document& document_;
  Diagnostics faults_;
  Bytes beside_;  // What lies beside the allocator, of the rank being read.
};

}  // namespace

std::vector<PredictedRank> read_predictions(const Document& document) {
  expect_object(document, "a prediction");
  return Reader(document).read();
}

}  // namespace dsplan
