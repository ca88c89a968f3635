// Predictions against receipts: equal where they should be, and each kind of row red once.
#include "report/compare.h"
#include "paths.h"

#include <doctest/doctest.h>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/predicted.h"
#include "core/format.h"
#include "io/text.h"
#include "planner/predict/predict.h"
#include "report/compare_rows.h"
#include "report/receipt.h"
#include "run_binary.h"

using namespace dsplan;
using Json = nlohmann::ordered_json;

namespace {

const std::string kRoot = test_paths::source_dir();
const std::string kReceipts = kRoot + "/tests/data/receipts/pytorch";
const std::string kMade = kRoot + "/tests/golden/receipts/v1/made-ddp.json";

std::vector<std::string> recorded() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(kReceipts)) {
    paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

Receipt read(const std::string& path) { return read_receipt(read_document(path)); }

// A receipt that measured exactly what is predicted of its inputs.
Receipt as_predicted(Receipt receipt) {
  const Repredicted predicted = repredict(receipt, {});
  for (std::size_t i = 0; i < receipt.ranks.size(); ++i) {
    receipt.ranks[i] = predicted.ranks[i].figures;
    receipt.ranks[i].absent.clear();
  }
  return receipt;
}

ReceiptComparison anew(const Receipt& receipt, const CompareTerms& terms = {}) {
  return compare(receipt, repredict(receipt, {}).ranks, terms);
}

std::vector<std::string> red(const ReceiptComparison& comparison) {
  std::vector<std::string> paths;
  for (const RankComparison& rank : comparison.ranks) {
    for (const ComparedRow& row : rank.rows) {
      if (row.state == ComparedRow::State::Differs) paths.push_back(row.path);
    }
  }
  return paths;
}

const ComparedRow& row_of(const ReceiptComparison& comparison, const std::string& path) {
  for (const ComparedRow& row : comparison.ranks.front().rows) {
    if (row.path == path) return row;
  }
  FAIL(path);
  return comparison.ranks.front().rows.front();
}

std::int64_t count(const ReceiptComparison& comparison, ComparedRow::State state) {
  std::int64_t sum = 0;
  for (const RankComparison& rank : comparison.ranks) {
    sum +=
        std::count_if(rank.rows.begin(), rank.rows.end(), [&](const ComparedRow& row) { return row.state == state; });
  }
  return sum;
}

// Gradients, summed over the ranks.
TrafficFigure& all_reduce(RankFigures& rank) {
  for (TrafficFigure& row : *rank.communication) {
    if (row.collective == "all_reduce") return row;
  }
  FAIL("no all_reduce");
  return rank.communication->front();
}

KnownDifference known(const std::string& row, std::int64_t bytes) {
  KnownDifference one;
  one.receipt = "made-ddp";
  one.row = row;
  one.bytes = bytes;
  one.reason = "because";
  one.place.path = "explained.json";
  return one;
}

}  // namespace

TEST_CASE("what frameworks were measured to take is what is predicted, to the byte") {
  const std::vector<std::string> paths = recorded();
  REQUIRE(paths.size() >= 4);
  std::int64_t equal = 0;
  for (const std::string& path : paths) {
    CAPTURE(path);
    const ReceiptComparison comparison = anew(read(path));
    const std::vector<std::string> apart = red(comparison);
    CHECK_MESSAGE(apart.empty(), apart.size(), " rows differ, the first is ", apart.empty() ? "" : apart.front());
    CHECK_FALSE(comparison.refused.has_value());
    CHECK(count(comparison, ComparedRow::State::Equal) >= 20);
    equal += count(comparison, ComparedRow::State::Equal);
  }
  MESSAGE(paths.size(), " receipts, ", equal, " rows equal");
}

TEST_CASE("every kind of row goes red once, alone") {
  const Receipt same = as_predicted(read(kMade));
  const ReceiptComparison agreed = anew(same);
  CHECK(red(agreed).empty());
  CHECK(count(agreed, ComparedRow::State::NotMeasured) == 0);
  CHECK(count(agreed, ComparedRow::State::Equal) > 100);

  using Change = void (*)(RankFigures&);
  struct Case {
    const char* path;
    Change change;
  };
  const auto more = [](std::optional<Bytes>& bytes, std::int64_t by) { bytes = Bytes(bytes->value() + by); };
  static const auto add = more;
  for (const Case& c : {
           Case{"parameters.total", [](RankFigures& r) { r.parameters_total = Elements(1); }},
           Case{"parameters.trainable", [](RankFigures& r) { r.parameters_trainable = Elements(1); }},
           Case{"memory.persistent.requested", [](RankFigures& r) { add(r.persistent[Counter::Requested], 1); }},
           Case{"memory.persistent.allocated", [](RankFigures& r) { add(r.persistent[Counter::Allocated], -512); }},
           Case{"memory.peak.requested", [](RankFigures& r) { add(r.peak[Counter::Requested], 1); }},
           Case{"memory.peak.allocated", [](RankFigures& r) { add(r.peak[Counter::Allocated], 512); }},
           Case{"memory.peak.active", [](RankFigures& r) { add(r.peak[Counter::Active], 512); }},
           Case{"memory.peak.reserved", [](RankFigures& r) { add(r.peak[Counter::Reserved], 1 << 30); }},
           Case{"memory.peak.process", [](RankFigures& r) { add(r.peak[Counter::Process], 1 << 30); }},
           Case{"memory.phases.init.marks.end.requested",
                [](RankFigures& r) { add(r.phases[0].marks[1].at[Counter::Requested], 4); }},
           Case{"memory.phases.steady.marks.before forward#2.allocated",
                [](RankFigures& r) {
                  int seen = 0;
                  for (FigureMark& mark : r.phases[2].marks) {
                    if (mark.name == "before forward" && ++seen == 2) add(mark.at[Counter::Allocated], 512);
                  }
                }},
           Case{"memory.phases.first_step.peak_requested",
                [](RankFigures& r) { add(r.phases[1].peak[Counter::Requested], 4); }},
           Case{"memory.phases.first_step.peak_active",
                [](RankFigures& r) { add(r.phases[1].peak[Counter::Active], 4); }},
           Case{"memory.host.pinned", [](RankFigures& r) { r.host.pinned = Bytes(r.host.pinned->value() + 1); }},
           Case{"memory.host.per_node", [](RankFigures& r) { r.host.per_node = Bytes(r.host.per_node->value() + 1); }},
           Case{"communication.all_reduce.dp.backward.bf16.data.calls",
                [](RankFigures& r) { all_reduce(r).calls = *all_reduce(r).calls + 1; }},
           Case{"communication.all_reduce.dp.backward.bf16.data.payload_bytes",
                [](RankFigures& r) { add(all_reduce(r).payload, 2); }},
           Case{"communication.all_reduce.dp.backward.bf16.data.wire_bytes",
                [](RankFigures& r) { add(all_reduce(r).wire, 2); }},
       }) {
    Receipt changed = same;
    c.change(changed.ranks.front());
    const std::vector<std::string> rows = red(anew(changed));
    CHECK_MESSAGE(rows == std::vector<std::string>{c.path}, std::string(c.path), ": ", rows.size(), " rows");
  }
}

TEST_CASE("an outcome refutes a verdict") {
  Receipt receipt = as_predicted(read(kMade));
  CHECK(row_of(anew(receipt), "verdict").state == ComparedRow::State::Equal);
  receipt.complete = false;
  receipt.outcome = Receipt::Outcome::OutOfMemory;
  CHECK(red(anew(receipt)) == std::vector<std::string>{"verdict"});
  // Under a limit that it does not fit, running out of memory is what was predicted.
  receipt.environment.limit = Bytes(1 << 21);
  CHECK(red(anew(receipt)).empty());
  receipt.complete = true;
  receipt.outcome = Receipt::Outcome::Ran;
  CHECK(red(anew(receipt)) == std::vector<std::string>{"verdict"});
  receipt.complete = false;
  receipt.outcome = Receipt::Outcome::Error;
  receipt.message = "boom";
  CHECK(row_of(anew(receipt), "verdict").state == ComparedRow::State::NotMeasured);
  CHECK(row_of(anew(receipt), "verdict").note == "boom");
}

TEST_CASE("a run that ended early has marks, but no peaks") {
  Receipt receipt = as_predicted(read(kMade));
  receipt.complete = false;
  receipt.outcome = Receipt::Outcome::Error;
  receipt.ranks.front().phases.pop_back();
  receipt.ranks.front().phases.back().marks.resize(3);
  const ReceiptComparison comparison = anew(receipt);
  CHECK(red(comparison).empty());
  CHECK(row_of(comparison, "memory.peak.reserved").state == ComparedRow::State::NotMeasured);
  CHECK(row_of(comparison, "memory.phases.first_step.peak_requested").state == ComparedRow::State::NotMeasured);
  CHECK(row_of(comparison, "memory.phases.init.peak_requested").state == ComparedRow::State::Equal);
  CHECK(row_of(comparison, "memory.phases.first_step.marks.before forward.requested").state ==
        ComparedRow::State::Equal);
  CHECK(row_of(comparison, "memory.phases.steady.marks.begin.requested").state == ComparedRow::State::NotMeasured);
}

TEST_CASE("what one side does not say is never equal") {
  Receipt receipt = as_predicted(read(kMade));
  RankFigures& rank = receipt.ranks.front();
  rank.communication.reset();
  rank.peak[Counter::Process].reset();
  rank.absent = {{"communication", "nobody counted"}, {"memory.process", "no NVML"}};
  rank.phases[1].marks.push_back({"after forward", {}});
  rank.phases[1].marks.back().at[Counter::Requested] = Bytes(5);
  const ReceiptComparison comparison = anew(receipt);
  CHECK(red(comparison).empty());
  CHECK(row_of(comparison, "communication").state == ComparedRow::State::NotMeasured);
  CHECK(row_of(comparison, "communication").note == "nobody counted");
  CHECK(row_of(comparison, "memory.peak.process").note == "no NVML");
  CHECK(row_of(comparison, "memory.phases.first_step.marks.after forward#3.requested").state ==
        ComparedRow::State::NotPredicted);
}

TEST_CASE("a collective that only one side lists counts 0 on the other") {
  Receipt receipt = as_predicted(read(kMade));
  all_reduce(receipt.ranks.front()).collective = "reduce_scatter";
  const ReceiptComparison comparison = anew(receipt);
  CHECK(row_of(comparison, "communication.all_reduce.dp.backward.bf16.data.calls").measured == 0);
  CHECK(row_of(comparison, "communication.reduce_scatter.dp.backward.bf16.data.calls").predicted == 0);
  CHECK(red(comparison).size() == 6);
}

TEST_CASE("whole numbers by which processes agree are measured and not predicted") {
  Receipt receipt = as_predicted(read(kMade));
  TrafficFigure agreed = all_reduce(receipt.ranks.front());
  agreed.kind = "control";
  agreed.dtype = "int64";
  receipt.ranks.front().communication->push_back(agreed);
  CHECK(red(anew(receipt)).empty());
  receipt.ranks.front().communication->back().dtype = "fp32";  // Norms are predicted.
  CHECK(red(anew(receipt)).size() == 3);
}

TEST_CASE("a first batch that is there before the model is called is explained, and nothing else of its size") {
  const Receipt made = as_predicted(read(kMade));
  const auto late = [&](std::int64_t more) {
    Receipt receipt = made;
    std::vector<FigurePhase>& phases = receipt.ranks.front().phases;
    FigurePhase& init = phases.at(0);
    FigureMark& begin = phases.at(1).marks.at(0);
    REQUIRE(begin.name == "begin");
    const FigureMark& forward = *std::find_if(phases.at(1).marks.begin(), phases.at(1).marks.end(),
                                              [](const FigureMark& mark) { return mark.name == "before forward"; });
    FigureMark& end = init.marks.back();
    REQUIRE(end.name == "end");
    for (const Counter counter : {Counter::Requested, Counter::Allocated, Counter::Active}) {
      const Bytes batch(forward.at[counter]->value() - begin.at[counter]->value() + more);
      begin.at[counter] = *begin.at[counter] + batch;
      end.at[counter] = *end.at[counter] + batch;
    }
    return receipt;
  };
  const ReceiptComparison comparison = anew(late(0));
  CHECK(red(comparison).empty());
  CHECK(row_of(comparison, "memory.phases.init.marks.end.requested").explained > 0);
  CHECK(row_of(comparison, "memory.phases.init.marks.end.requested").reasons.size() == 1);
  CHECK(red(anew(late(512))).size() == 6);
}

TEST_CASE("what was pending in the prediction and is gone in the receipt is explained, and nothing else") {
  const Receipt made = as_predicted(read(kMade));
  const auto pending = [&](std::int64_t requested, std::int64_t active) {
    Receipt measured = made;
    Repredicted other = repredict(made, {});
    FigureMark& mark = other.ranks.front().figures.phases.at(2).marks.back();
    FigureMark& seen = measured.ranks.front().phases.at(2).marks.back();
    seen.at[Counter::Active] = seen.at[Counter::Allocated];
    mark.at[Counter::Active] = *mark.at[Counter::Allocated] + Bytes(1024);
    mark.at[Counter::Requested] = *seen.at[Counter::Requested] + Bytes(requested);
    seen.at[Counter::Active] = *seen.at[Counter::Active] + Bytes(active);
    return red(compare(measured, other.ranks, {}));
  };
  CHECK(pending(1000, 0).empty());
  CHECK(pending(1025, 0).size() == 1);
  CHECK(pending(-1, 0).size() == 1);
  CHECK(pending(1000, 512).size() >= 2);
}

TEST_CASE("of the dispatcher's count only requested bytes are compared") {
  Receipt receipt = as_predicted(read(kMade));
  receipt.device = Receipt::Device::Fake;
  receipt = as_predicted(receipt);
  receipt.ranks.front().peak[Counter::Reserved] = Bytes(1);
  const ReceiptComparison comparison = anew(receipt);
  CHECK(red(comparison).empty());
  CHECK(row_of(comparison, "memory.peak.requested").state == ComparedRow::State::Equal);
  CHECK(row_of(comparison, "memory.peak.reserved").state == ComparedRow::State::NotMeasured);
  CHECK(row_of(comparison, "verdict").state == ComparedRow::State::NotMeasured);
  CHECK_THROWS_AS((void)repredict(receipt, {"kernel", {}}), Refusal);
}

TEST_CASE("tolerances are per kind, of what is unexplained") {
  CHECK(Tolerances{}.of(RowKind::Requested).of(1000) == 0);
  CHECK(Tolerances{}.of(RowKind::Allocated).of(1000) == 0);
  CHECK(Tolerances{}.of(RowKind::Reserved).of(1000) == 10);
  CHECK(Tolerances{}.of(RowKind::Process).of(1999) == 19);
  CHECK(Tolerance{0, 1000}.of(INT64_MAX) == INT64_MAX);
  Receipt receipt = as_predicted(read(kMade));
  std::optional<Bytes>& reserved = receipt.ranks.front().peak[Counter::Reserved];
  const std::int64_t exact = reserved->value();
  reserved = Bytes(exact + exact / 200);
  CHECK(row_of(anew(receipt), "memory.peak.reserved").state == ComparedRow::State::Within);
  CompareTerms terms;
  terms.tolerances.by_kind[RowKind::Reserved] = {};
  CHECK(red(anew(receipt, terms)) == std::vector<std::string>{"memory.peak.reserved"});
  terms.tolerances.by_kind[RowKind::Reserved] = {exact / 200, 0};
  CHECK(red(anew(receipt, terms)).empty());
}

TEST_CASE("known differences are taken off, and reported when they are gone") {
  Receipt receipt = as_predicted(read(kMade));
  std::optional<Bytes>& peak = receipt.ranks.front().peak[Counter::Requested];
  peak = Bytes(peak->value() - 40);
  CompareTerms terms;
  terms.known = {known("memory.peak.requested", -40)};
  const ReceiptComparison explained = anew(receipt, terms);
  const ComparedRow& row = row_of(explained, "memory.peak.requested");
  CHECK(row.explained == -40);
  CHECK(row.unexplained == 0);
  CHECK(row.state == ComparedRow::State::Equal);
  CHECK(row.reasons == std::vector<std::string>{"because"});
  CHECK(explained.stale.empty());

  terms.known = {known("memory.peak.requested", -41)};  // Another difference than the known one.
  CHECK(row_of(anew(receipt, terms), "memory.peak.requested").unexplained == 1);
  CHECK(red(anew(receipt, terms)).size() == 1);

  terms.known = {known("memory.peak.allocated", 512)};
  const ReceiptComparison gone = anew(receipt, terms);
  REQUIRE(gone.stale.size() == 1);
  CHECK(gone.stale.front().find("memory.peak.allocated: no such difference any more") != std::string::npos);

  terms.known = {known("memory.*.requested", -40)};
  CHECK(red(anew(receipt, terms)).empty());
  terms.known = {known("memory.peak.requestd", -40)};
  try {
    (void)anew(receipt, terms);
    FAIL("an unknown row was accepted");
  } catch (const Refusal& refusal) {
    CHECK(std::string(refusal.what()).find("did you mean \"memory.peak.requested\"?") != std::string::npos);
  }
  terms.known = {known("memory.peak.requested", -40)};
  terms.known.front().rank = 3;
  CHECK_THROWS_AS((void)anew(receipt, terms), Refusal);
  terms.known.front().receipt = "another";
  CHECK(red(anew(receipt, terms)).size() == 1);
}

TEST_CASE("patterns of rows") {
  CHECK(detail::matches("a*c", "abc"));
  CHECK(detail::matches("a*c", "ac"));
  CHECK(detail::matches("*", ""));
  CHECK(detail::matches("*.requested", "memory.peak.requested"));
  CHECK_FALSE(detail::matches("a*c", "abd"));
  CHECK_FALSE(detail::matches("a", "ab"));
}

TEST_CASE("strata: medians and worst errors are signed, and need ten cases for a percentage") {
  std::vector<ReceiptComparison> comparisons(11);
  for (std::size_t i = 0; i < comparisons.size(); ++i) {
    ComparedRow row;
    row.path = "memory.peak.reserved";
    row.kind = RowKind::Reserved;
    row.measured = 1000;
    row.predicted = 1000 + static_cast<std::int64_t>(i) * 10 - 60;
    row.state = row.predicted == row.measured ? ComparedRow::State::Equal : ComparedRow::State::Differs;
    comparisons[i].strata = {"ZeRO-2", "offload"};
    comparisons[i].ranks = {{0, {row}}};
  }
  const std::vector<StratumRow> rows = by_stratum(comparisons);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].stratum == "ZeRO-2");
  CHECK(rows[1].stratum == "offload");
  CHECK(rows[0].cases == 11);
  CHECK(rows[0].equal == 1);
  CHECK(rows[0].unexplained == 10);
  CHECK(rows[0].median_percent == doctest::Approx(-1));
  CHECK(rows[0].worst_percent == doctest::Approx(-6));
  CHECK(kLeastCases == 10);
}
