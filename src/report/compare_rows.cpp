#include "report/compare_rows.h"

#include <algorithm>
#include <map>

#include "core/format.h"
#include "core/units.h"
#include "io/fields.h"
#include "io/own_file.h"

namespace dsplan {
namespace {

std::optional<std::int64_t> value_of(const std::optional<Bytes>& bytes) {
  return bytes ? std::optional(bytes->value()) : std::nullopt;
}

}  // namespace

namespace detail {

bool matches(std::string_view pattern, std::string_view text) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == text;
  if (!text.starts_with(pattern.substr(0, star))) return false;
  const std::string_view rest = pattern.substr(star + 1);
  for (std::size_t at = star; at <= text.size(); ++at) {
    if (matches(rest, text.substr(at))) return true;
  }
  return false;
}

std::string traffic_path(const TrafficFigure& row) {
  return formatted("communication.{}.{}.{}.{}.{}", row.collective, row.group, row.phase, row.dtype, row.kind);
}

void RowMaker::counters(const std::string& prefix, const Counters& predicted, const Counters& measured,
                        std::initializer_list<Counter> which) {
  constexpr RowKind kKinds[] = {RowKind::Requested, RowKind::Allocated, RowKind::Active, RowKind::Reserved,
                                RowKind::Process};
  for (const Counter counter : which) {
    add(prefix + std::string(name(counter)), kKinds[static_cast<std::size_t>(counter)], value_of(predicted[counter]),
        value_of(measured[counter]));
  }
}

void RowMaker::add(std::string path, RowKind kind, std::optional<std::int64_t> predicted,
                   std::optional<std::int64_t> measured) {
  ComparedRow row;
  row.path = std::move(path);
  row.kind = kind;
  row.predicted = predicted;
  row.measured = measured;
  const bool by_dispatcher = receipt_.by_dispatcher();
  const bool memory =
      kind == RowKind::Allocated || kind == RowKind::Active || kind == RowKind::Reserved || kind == RowKind::Process;
  if (by_dispatcher && memory) row.measured.reset();
  if (!row.measured) {
    row.state = ComparedRow::State::NotMeasured;
    const Absence* why = absence_of(measured_.absent, row.path);
    row.note = why != nullptr ? why->why : "the receipt does not say it";
  } else if (!row.predicted) {
    row.state = ComparedRow::State::NotPredicted;
    const Absence* why = absence_of(predicted_.absent, row.path);
    row.note = why != nullptr ? why->why : "the prediction does not say it";
  } else {
    row.tolerance = tolerances_.of(kind).of(*row.measured);
    settle(row);
  }
  rows_.push_back(std::move(row));
}

void settle(ComparedRow& row) {
  row.unexplained = checked_add(checked_add(*row.measured, -*row.predicted), -row.explained);
  const std::int64_t size = row.unexplained < 0 ? -row.unexplained : row.unexplained;
  using State = ComparedRow::State;
  row.state = size > row.tolerance ? State::Differs : size > 0 ? State::Within : State::Equal;
}

void RowMaker::set_aside(std::size_t from, const std::string& why) {
  for (std::size_t i = from; i < rows_.size(); ++i) {
    if (!rows_[i].measured) continue;
    rows_[i].state = ComparedRow::State::NotMeasured;
    rows_[i].note = why;
    rows_[i].unexplained = 0;
  }
}

// The recorder finds the model when it is first called, and then a loop's first batch is there already: what a
// prediction makes after init.
void explain_batch(std::vector<ComparedRow>& rows) {
  const auto row_of = [&rows](const std::string& path) {
    const auto found = std::find_if(rows.begin(), rows.end(), [&](const ComparedRow& row) { return row.path == path; });
    const bool told = found != rows.end() && found->measured && found->predicted;
    return told ? &*found : nullptr;
  };
  const auto takes = [](ComparedRow& row, std::int64_t bytes) {
    row.explained = bytes;
    row.reasons = {"the first batch was there before the model was called"};
    settle(row);
  };
  for (const char* counter : {"requested", "allocated", "active"}) {
    const std::string first = "memory.phases.first_step.marks.";
    ComparedRow* const begin = row_of(first + "begin." + counter);
    const ComparedRow* const forward = row_of(first + "before forward." + counter);
    ComparedRow* const end = row_of(std::string("memory.phases.init.marks.end.") + counter);
    ComparedRow* const peak = row_of(std::string("memory.phases.init.peak_") + counter);
    if (begin == nullptr || forward == nullptr || end == nullptr || peak == nullptr) continue;
    const std::int64_t batch = *forward->predicted - *begin->predicted;
    if (batch <= 0 || begin->unexplained != batch || end->unexplained != batch) continue;
    takes(*begin, batch);
    takes(*end, batch);
    const bool at_end = *peak->measured == *end->measured && *peak->predicted <= *peak->measured;
    if (at_end && peak->unexplained <= batch) takes(*peak, peak->unexplained);
  }
}

// What another stream has used is free once the allocator is asked for something. A recorder's mark may come after
// that, and the prediction's before: an iteration's last mark when the next batch is there, that of the step when
// gradients have been clipped. `active` has what is pending, and `allocated` has not.
void explain_pending(std::vector<ComparedRow>& rows) {
  std::map<std::string, std::map<std::string, ComparedRow*>> marks;
  for (ComparedRow& row : rows) {
    const std::size_t dot = row.path.rfind('.');
    const bool told = row.measured && row.predicted && row.path.find(".marks.") != std::string::npos;
    if (told) marks[row.path.substr(0, dot)][row.path.substr(dot + 1)] = &row;
  }
  for (auto& [path, of] : marks) {
    if (!of.contains("requested") || !of.contains("allocated") || !of.contains("active")) continue;
    const ComparedRow& allocated = *of["allocated"];
    const std::int64_t pending = *of["active"]->predicted - *allocated.predicted;
    if (pending <= 0 || *of["active"]->measured != *allocated.measured) continue;
    const auto frees = [](ComparedRow& row, std::int64_t bytes) {
      row.explained = checked_add(row.explained, -bytes);
      row.reasons.emplace_back("an allocation in between has freed what another stream had used");
      settle(row);
    };
    if (allocated.unexplained - of["active"]->unexplained != pending) continue;
    frees(*of["active"], pending);
    const std::int64_t requested = -of["requested"]->unexplained;
    if (requested > 0 && requested <= pending) frees(*of["requested"], requested);
  }
}

void RowMaker::phases() {
  for (const FigurePhase& predicted : predicted_.phases) {
    const auto measured = std::find_if(measured_.phases.begin(), measured_.phases.end(),
                                       [&](const FigurePhase& phase) { return phase.name == predicted.name; });
    phase(predicted, measured == measured_.phases.end() ? FigurePhase{predicted.name, {}, {}, {}, {}, {}} : *measured);
  }
  for (const FigurePhase& measured : measured_.phases) {
    const bool known = std::any_of(predicted_.phases.begin(), predicted_.phases.end(),
                                   [&](const FigurePhase& phase) { return phase.name == measured.name; });
    if (!known) phase({measured.name, {}, {}, {}, {}, {}}, measured);
  }
  explain_batch(rows_);
  explain_pending(rows_);
}

// Marks of one name are told apart by their order, as in the CSV of a prediction.
void RowMaker::phase(const FigurePhase& predicted, const FigurePhase& measured) {
  const std::string base = formatted("memory.phases.{}.", predicted.name);
  const auto marks_of = [](const FigurePhase& phase) {
    std::vector<std::pair<std::string, const Counters*>> marks;
    std::map<std::string, int> seen;
    for (const FigureMark& mark : phase.marks) {
      const int again = ++seen[mark.name];
      marks.emplace_back(again == 1 ? mark.name : formatted("{}#{}", mark.name, again), &mark.at);
    }
    return marks;
  };
  const auto mine = marks_of(predicted);
  const auto theirs = marks_of(measured);
  const auto find = [](const auto& marks, const std::string& label) {
    const auto found = std::find_if(marks.begin(), marks.end(), [&](const auto& mark) { return mark.first == label; });
    return found == marks.end() ? Counters{} : *found->second;
  };
  const auto all = {Counter::Requested, Counter::Allocated, Counter::Active, Counter::Reserved, Counter::Process};
  for (const auto& mark : mine)
    counters(base + "marks." + mark.first + ".", *mark.second, find(theirs, mark.first), all);
  for (const auto& mark : theirs) {
    const bool known = std::any_of(mine.begin(), mine.end(), [&](const auto& one) { return one.first == mark.first; });
    if (!known) counters(base + "marks." + mark.first + ".", {}, *mark.second, all);
  }
  const std::size_t from = rows_.size();
  counters(base + "peak_", predicted.peak, measured.peak,
           {Counter::Requested, Counter::Allocated, Counter::Active, Counter::Reserved});
  // Receipts had none before they were counted.
  if (measured.requested_total) {
    add(base + "requested_total", RowKind::Requested, value_of(predicted.requested_total),
        value_of(measured.requested_total));
  }
  if (measured.allocations) add(base + "allocations", RowKind::Calls, predicted.allocations, measured.allocations);
  if (measured.host_requested_total) {
    add(base + "host_requested_total", RowKind::Host, value_of(predicted.host_requested_total),
        value_of(measured.host_requested_total));
  }
  const bool last = !measured_.phases.empty() && measured_.phases.back().name == measured.name;
  if (!receipt_.complete && last) set_aside(from, kEndedEarly);
}

void RowMaker::host() {
  const auto row = [&](const char* what, const std::optional<Bytes>& p, const std::optional<Bytes>& m) {
    add(formatted("memory.host.{}", what), RowKind::Host, value_of(p), value_of(m));
  };
  row("pinned", predicted_.host.pinned, measured_.host.pinned);
  row("pageable", predicted_.host.pageable, measured_.host.pageable);
  row("peak", predicted_.host.peak, measured_.host.peak);
  row("per_node", predicted_.host.per_node, measured_.host.per_node);
  // Of files nobody says anything where there are none, and only an executor measures them.
  const auto file = [&](const char* what, const std::optional<Bytes>& p, const std::optional<Bytes>& m) {
    if (m && (*m > Bytes(0) || p.value_or(Bytes(0)) > Bytes(0))) row(what, p, m);
  };
  file("nvme", predicted_.host.nvme, measured_.host.nvme);
  file("nvme_read", predicted_.host.nvme_read, measured_.host.nvme_read);
  file("nvme_written", predicted_.host.nvme_written, measured_.host.nvme_written);
}

void RowMaker::communication() {
  if (!predicted_.communication || !measured_.communication) {
    const auto calls = [](const auto& list) {
      std::optional<std::int64_t> sum;
      if (!list) return sum;
      sum = 0;
      for (const TrafficFigure& row : *list) sum = *sum + row.calls.value_or(0);
      return sum;
    };
    add("communication", RowKind::Calls, calls(predicted_.communication), calls(measured_.communication));
    return;
  }
  static const TrafficFigure kNone{{}, {}, {}, {}, {}, 0, Bytes(0), Bytes(0)};
  static const TrafficFigure kNotMeasured{};
  const auto rows = [&](const std::string& path, const TrafficFigure& p, const TrafficFigure& m) {
    add(path + ".calls", RowKind::Calls, p.calls, m.calls);
    add(path + ".payload_bytes", RowKind::Payload, value_of(p.payload), value_of(m.payload));
    add(path + ".wire_bytes", RowKind::Wire, value_of(p.wire), value_of(m.wire));
  };
  const auto find = [](const std::vector<TrafficFigure>& list, const std::string& path) {
    return std::find_if(list.begin(), list.end(), [&](const TrafficFigure& row) { return traffic_path(row) == path; });
  };
  for (const TrafficFigure& mine : *predicted_.communication) {
    const std::string path = traffic_path(mine);
    const auto theirs = find(*measured_.communication, path);
    const Absence* const why = absence_of(measured_.absent, path);
    const bool silent = why != nullptr && why->what != "communication";
    rows(path, mine, theirs != measured_.communication->end() ? *theirs : silent ? kNotMeasured : kNone);
  }
  for (const TrafficFigure& theirs : *measured_.communication) {
    const std::string path = traffic_path(theirs);
    if (find(*predicted_.communication, path) != predicted_.communication->end()) continue;
    const std::size_t from = rows_.size();
    rows(path, kNone, theirs);
    if (theirs.kind != "control" || (theirs.dtype != "int64" && theirs.dtype != "int32")) continue;
    for (std::size_t i = from; i < rows_.size(); ++i) {
      rows_[i].state = ComparedRow::State::NotPredicted;
      rows_[i].note = "whole numbers by which processes agree on shapes and buckets are in no prediction";
      rows_[i].unexplained = 0;
    }
  }
}

// A run that ended well refutes "does not fit", one that ran out of memory refutes those that fit.
void RowMaker::verdict(Verdict predicted) {
  ComparedRow row;
  row.path = "verdict";
  row.kind = RowKind::Verdict;
  row.predicted_text = name(predicted);
  row.measured_text = name(receipt_.outcome);
  const bool ran = receipt_.outcome == Receipt::Outcome::Ran && receipt_.complete;
  if (receipt_.by_dispatcher()) {
    row.state = ComparedRow::State::NotMeasured;
    row.note = "nothing runs out of memory by the dispatcher's count";
  } else if (!ran && receipt_.outcome != Receipt::Outcome::OutOfMemory) {
    row.state = ComparedRow::State::NotMeasured;
    row.note = receipt_.message.value_or("the run ended early");
  } else if (predicted == Verdict::Unknown) {
    row.state = ComparedRow::State::NotPredicted;
    row.note = "the verdict is unknown";
  } else {
    row.state = fits(predicted) == ran ? ComparedRow::State::Equal : ComparedRow::State::Differs;
  }
  rows_.push_back(std::move(row));
}

std::vector<ComparedRow> RowMaker::all(Verdict verdict_of_prediction) {
  const auto elements = [](const std::optional<Elements>& count) {
    return count ? std::optional(count->value()) : std::nullopt;
  };
  add("parameters.total", RowKind::Parameters, elements(predicted_.parameters_total),
      elements(measured_.parameters_total));
  add("parameters.trainable", RowKind::Parameters, elements(predicted_.parameters_trainable),
      elements(measured_.parameters_trainable));
  const std::size_t from = rows_.size();
  counters("memory.persistent.", predicted_.persistent, measured_.persistent, {Counter::Requested, Counter::Allocated});
  counters("memory.peak.", predicted_.peak, measured_.peak,
           {Counter::Requested, Counter::Allocated, Counter::Active, Counter::Reserved, Counter::Process});
  if (!receipt_.complete) set_aside(from, kEndedEarly);
  phases();
  host();
  communication();
  verdict(verdict_of_prediction);
  return std::move(rows_);
}

}  // namespace detail

namespace {

void describe_difference(Fields& fields, KnownDifference& one) {
  fields("receipt", one.receipt);
  fields("rank", one.rank);
  fields("row", one.row);
  fields("bytes", one.bytes, -INT64_MAX);
  fields("reason", one.reason);
  ObjectReader* reader = fields.reader();
  if (reader == nullptr) return;
  if (one.bytes == 0) reader->fault("bytes", "a difference is not 0 bytes");
  if (one.reason.empty()) reader->fault("reason", "a known difference has a reason");
  one.place = reader->document().at(reader->value().offset, {});
}

}  // namespace

std::vector<KnownDifference> read_known_differences(const Document& document) {
  expect_object(document, "a file of known differences");
  std::vector<KnownDifference> known;
  read_fields(document, "a file of known differences", [&](Fields& fields) {
    std::string source;
    fields.constant("schema", "dsplan.explained/1");
    fields("source", source);
    fields.list("differences", known, {"a known difference"},
                [&](KnownDifference& one) { describe_difference(fields, one); });
  });
  return known;
}

}  // namespace dsplan
