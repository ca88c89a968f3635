// The search: no shortcut changes its answer, what it chooses is the best of all that fit, and what it says of the
// others is so.
#include <array>

#include "planner/plan/evaluator.h"
#include "planner/predict/verdict.h"
#include "searching.h"

using namespace dsplan;
using namespace dsplan::test;

namespace {

// Stages, batches, segmentations and ranks that share a layer: 4 * 3 * 3 * 2 candidates.
Asked small_question(Bytes capacity) {
  Asked asked("llama-3.2-1b");
  asked.request.gpus = {4, option("--gpus")};
  asked.with_capacity(capacity)
      .vary(Axis::ZeroStage, {"0", "1", "2", "3"})
      .vary(Axis::MicroBatch, {"1", "2", "8"})
      .vary(Axis::Checkpoint, {"none", "full", "every:4"})
      .vary(Axis::TensorParallel, {"1", "2"})
      .vary(Axis::ReduceBucket, {"50000000"})
      .vary(Axis::Offload, {"none"});
  return asked;
}

std::string shown(const PlanRow& row) {
  std::string text;
  for (const std::string& one : row.settings) text += one + " ";
  return text;
}

// By the interface of the search alone: the space cut into single candidates.
std::vector<PlanRow> every_candidate(const Asked& asked) {
  std::vector<PlanRow> rows;
  for (const Setting<std::string>& stage : asked.space.axes[0].values) {
    for (const Setting<std::string>& batch : asked.space.axes[1].values) {
      for (const Setting<std::string>& checkpoint : asked.space.axes[2].values) {
        for (const Setting<std::string>& tp : asked.space.axes[3].values) {
          Asked one = asked;
          one.request.capacity = {};
          one.space.axes[0].values = {stage};
          one.space.axes[1].values = {batch};
          one.space.axes[2].values = {checkpoint};
          one.space.axes[3].values = {tp};
          SearchOptions options;
          options.explain = false;
          options.bounds = false;
          const PlanAnswer answer = one.answer(options);
          if (answer.chosen) rows.push_back(*answer.chosen);
          if (answer.nearest) rows.push_back(*answer.nearest);
        }
      }
    }
  }
  return rows;
}

}  // namespace

namespace {

// Retries that only the high end of waiting frees has count as none; what is left at the low one decides.
Verdict verdict_in_search(const Prediction& p) {
  if (p.verdict != Verdict::FitsWithRetries || surely_retries(p)) return p.verdict;
  return *least_process(p) + p.doubt() <= *p.capacity ? Verdict::Fits : Verdict::Tight;
}

// The fastest of those that fit, else of those that retry, else of those that are tight; null: none.
const PlanRow* best_of(const Asked& asked, const std::vector<PlanRow>& rows) {
  std::array<const PlanRow*, 3> best{};
  for (const PlanRow& row : rows) {
    const Verdict verdict = verdict_in_search(simulated(asked, row));
    if (!dsplan::fits(verdict)) continue;
    const PlanRow*& than = best[verdict == Verdict::Fits ? 0 : verdict == Verdict::FitsWithRetries ? 1 : 2];
    if (than == nullptr || row.tokens_per_second() > than->tokens_per_second()) than = &row;
  }
  const auto* const found = std::find_if(best.begin(), best.end(), [](const PlanRow* one) { return one != nullptr; });
  return found == best.end() ? nullptr : *found;
}

void check_choices(Asked (*question)(Bytes), std::size_t candidates) {
  const Asked everything = question(Bytes(INT64_C(1) << 40));
  const std::vector<PlanRow> rows = every_candidate(everything);
  REQUIRE(rows.size() == candidates);
  for (const std::int64_t gib : {12, 20, 40}) {
    CAPTURE(gib);
    const Asked asked = question(Bytes(gib << 30));
    const PlanRow* const best = best_of(asked, rows);
    const PlanAnswer answer = asked.answer();
    REQUIRE(answer.chosen.has_value() == (best != nullptr));
    if (best == nullptr) continue;
    CHECK_MESSAGE(answer.chosen->tokens_per_second() == doctest::Approx(best->tokens_per_second()).epsilon(1e-12),
                  shown(*best), " against ", shown(*answer.chosen));
    CHECK(answer.prediction->verdict != Verdict::DoesNotFit);
    // What does not fit at the high end of waiting frees counts by the other one.
    const Prediction again = simulated(asked, *answer.chosen);
    const Peak& peak = *again.peak;
    const bool ends = again.verdict != Verdict::Fits && peak.process_high && peak.reserved && peak.reserved_low;
    CHECK(answer.chosen->process ==
          (ends ? std::optional(*peak.reserved_low + (*peak.process_high - *peak.reserved)) : peak.process));
  }
}

void check_shortcuts(Asked (*question)(Bytes), std::int64_t candidates) {
  for (const std::int64_t gib : {10, 18, 36}) {
    CAPTURE(gib);
    const Asked asked = question(Bytes(gib << 30));
    SearchOptions options;
    options.explain = false;
    const PlanAnswer quick = asked.answer(options);
    options.bounds = false;
    const PlanAnswer unbounded = asked.answer(options);
    options.stop_early = false;
    const PlanAnswer exhaustive = asked.answer(options);
    REQUIRE(quick.chosen.has_value() == exhaustive.chosen.has_value());
    REQUIRE(quick.chosen.has_value() == unbounded.chosen.has_value());
    CHECK(exhaustive.counts.simulated == candidates);
    CHECK(quick.counts.simulated <= unbounded.counts.simulated);
    CHECK(unbounded.counts.simulated <= exhaustive.counts.simulated);
    CHECK(quick.counts.candidates == exhaustive.counts.candidates);
    if (!quick.chosen) continue;
    CHECK(shown(*quick.chosen) == shown(*exhaustive.chosen));
    CHECK(shown(*quick.chosen) == shown(*unbounded.chosen));
  }
}

// ZeRO-3 and fully_shard, side by side.
Asked sharded_question(Bytes capacity) {
  Asked asked = small_question(capacity);
  asked.space.axes[0].values = {{"3", option("--vary")}, {"fsdp2", option("--vary")}};
  asked.space.axes[3].values = {{"1", option("--vary")}};
  return asked;
}

}  // namespace

TEST_CASE("the choice is the fastest of all candidates that fit, each simulated on its own") {
  check_choices(small_question, 72);
  check_choices(sharded_question, 18);
}

TEST_CASE("switching a shortcut off never changes the choice") {
  check_shortcuts(small_question, 72);
  check_shortcuts(sharded_question, 18);
}

TEST_CASE("what is chosen leaves what the prediction may be too low; a faster one that does not is named") {
  Asked asked("llama-3-8b");
  asked.request.seq = {4096, option("--seq")};
  asked.vary(Axis::ZeroStage, {"3"}).vary(Axis::MicroBatch, {"1", "2"}).vary(Axis::Checkpoint, {"none", "auto"});
  SearchOptions options;
  options.explain = false;
  const PlanAnswer answer = asked.answer(options);
  REQUIRE(answer.chosen.has_value());
  REQUIRE(answer.tight.has_value());
  const Bytes doubt = answer.prediction->doubt();
  REQUIRE(doubt > Bytes(0));
  CHECK(answer.chosen->fate == Fate::Fits);
  CHECK(*answer.chosen->process + doubt <= answer.limit);
  CHECK(answer.tight->fate == Fate::Tight);
  CHECK(*answer.tight->process + doubt > answer.limit);
  CHECK(answer.tight->tokens_per_second() > answer.chosen->tokens_per_second());
  asked.request.reserve = {Bytes(0), option("--reserve")};  // As much as that is enough.
  const PlanAnswer filled = asked.answer(options);
  REQUIRE(filled.chosen.has_value());
  CHECK(!filled.tight);
  CHECK(shown(*filled.chosen) == shown(*answer.tight));
}

TEST_CASE("a larger budget is never slower, and counts add up") {
  double before = 0;
  for (std::int64_t gib = 10; gib <= 80; gib += 14) {
    const PlanAnswer answer = small_question(Bytes(gib << 30)).answer();
    const SearchCounts& counts = answer.counts;
    CHECK(counts.candidates == 72);
    CHECK(counts.bounded + counts.refused + counts.slower <= counts.candidates);
    if (!answer.chosen) {
      CHECK(before == 0);
      continue;
    }
    CHECK(answer.chosen->tokens_per_second() >= before);
    before = answer.chosen->tokens_per_second();
  }
  CHECK(before > 0);
}

TEST_CASE("each neighbour differs in one setting, and what is said of it is so") {
  const Asked asked = small_question(Bytes(INT64_C(20) << 30));
  const PlanAnswer answer = asked.answer();
  REQUIRE(answer.chosen);
  REQUIRE(answer.neighbours.size() >= 6);
  std::size_t refuted = 0;
  for (const PlanChange& change : answer.neighbours) {
    CAPTURE(shown(change.row));
    std::size_t differing = 0;
    for (std::size_t i = 0; i < kAxes; ++i) differing += change.row.settings[i] != answer.chosen->settings[i] ? 1U : 0U;
    CHECK(differing == 1);
    const bool faster = change.speed > 1;
    if (change.row.fate == Fate::Slower) {
      CHECK(!faster);
      continue;
    }
    const Prediction p = simulated(asked, change.row);
    CHECK(fits(p) == (change.row.fate == Fate::Fits || change.row.fate == Fate::FitsWithRetries));
    if (fits(p)) continue;
    ++refuted;
    REQUIRE(p.peak);
    // What a bound says is missing is missing at least.
    if (change.row.fate == Fate::Bounded) CHECK(*change.row.missing <= *p.peak->process - *p.capacity);
  }
  CHECK(refuted >= 1);
}

TEST_CASE("where nothing fits, the nearest is named, and each remedy does fit") {
  Asked asked("llama-3.2-1b");
  asked.with_capacity(Bytes(INT64_C(9) << 30))
      .vary(Axis::ZeroStage, {"0"})
      .vary(Axis::MicroBatch, {"4"})
      .vary(Axis::Checkpoint, {"none"})
      .vary(Axis::ReduceBucket, {"50000000"})
      .vary(Axis::TensorParallel, {"1"});
  const PlanAnswer answer = asked.answer();
  CHECK(!answer.chosen);
  REQUIRE(answer.nearest);
  CHECK(answer.nearest->missing.value_or(Bytes(0)) > Bytes(0));
  CHECK(answer.states.find("the states alone take") != std::string::npos);
  CHECK(answer.states.find("zero_stage 1") != std::string::npos);
  REQUIRE(!answer.remedies.empty());
  double before = 1e9;
  for (const PlanChange& change : answer.remedies) {
    CAPTURE(shown(change.row));
    CHECK(change.axes.size() <= 2);
    CHECK(change.speed <= before);
    before = change.speed;
    if (setting(change.row, Axis::Checkpoint).starts_with("auto")) continue;
    CHECK(fits(simulated(asked, change.row)));
  }
}

TEST_CASE("files: nothing is chosen that a disk does not hold, or on a disk that nobody knows") {
  Asked asked("llama-3.2-1b");
  asked.vary(Axis::ZeroStage, {"3"})
      .vary(Axis::MicroBatch, {"1"})
      .vary(Axis::Checkpoint, {"full"})
      .vary(Axis::ReduceBucket, {"50000000"})
      .vary(Axis::TensorParallel, {"1"});
  asked.request.host_memory = {Bytes(INT64_C(1) << 40), option("--host-memory")};
  asked.deepspeed = DeepSpeedInput{};
  OffloadInput& files = asked.deepspeed->zero.offload_optimizer;
  asked.deepspeed->zero.present = files.present = true;
  files.device = {OffloadDevice::Nvme, option("device")};
  files.nvme_path = {"/x", option("nvme_path")};
  Cluster disks = eight_h100();
  disks.nvme_read_gb_per_s = 10;
  disks.nvme_write_gb_per_s = 5;
  const auto answer = [&](const SearchOptions& options = {}) {
    SearchInputs inputs = asked.inputs();
    inputs.cluster = &disks;
    return search(inputs, asked.space, options);
  };
  try {
    (void)answer();
    FAIL("files on a disk that nobody knows");
  } catch (const Refusal& refusal) {
    CHECK(std::string(refusal.what()).find("name --nvme-memory or a cluster that has it") != std::string::npos);
  }

  asked.request.nvme_memory = {Bytes(INT64_C(1) << 40), option("--nvme-memory")};
  const PlanAnswer open = answer();
  REQUIRE(open.chosen);
  REQUIRE(open.chosen->nvme);
  const Bytes need = *open.chosen->nvme;
  CHECK(need > Bytes(INT64_C(10) << 30));  // 12 bytes for each of 1.2e9 parameters, and gradients.
  asked.request.nvme_memory.value = need;
  CHECK(answer().chosen);
  asked.request.nvme_memory.value = need - Bytes(1);
  const PlanAnswer small = answer();
  CHECK(!small.chosen);
  REQUIRE(small.nearest);
  CHECK(small.nearest->missing == Bytes(1));
  SearchOptions whole;
  whole.bounds = false;  // By simulation, not by the formula.
  const PlanAnswer simulated_too = answer(whole);
  CHECK(!simulated_too.chosen);
  CHECK(simulated_too.counts.simulated == 1);
}

TEST_CASE("what `auto` stands for is neither smaller nor faster than it says before it is written out") {
  std::size_t seen = 0;
  for (const char* name : {"tiny-llama", "tiny-gpt2", "llama-3.2-1b"}) {
    for (const std::int64_t accumulation : {1, 3}) {
      Asked asked(name);
      asked.request.host_memory = {Bytes(INT64_C(1) << 40), option("--host-memory")};
      asked.vary(Axis::MicroBatch, {"1", "6"}).vary(Axis::Checkpoint, {"auto"}).vary(Axis::TensorParallel, {"1", "2"});
      asked.request.grad_accum = {accumulation, option("--grad-accum")};
      const SearchInputs inputs = asked.inputs();
      const SearchSpace space = space_of(inputs, asked.space, Objective::TokensPerSecond);
      detail::Evaluator evaluator(inputs, space, 12);
      for (std::size_t family = 0; family < evaluator.families().size(); ++family) {
        if (!evaluator.families()[family].refusal.empty()) continue;
        for (const std::int64_t rows : {1, 6}) {
          std::map<std::string, std::int64_t> ignored;
          std::vector<detail::Candidate> made = evaluator.candidates(family, rows, ignored);
          REQUIRE(made.size() == 1);
          evaluator.add_time(made.front());
          for (detail::Candidate& one : evaluator.expanded(made.front())) {
            evaluator.add_time(one);
            CAPTURE(one.segmented->text);
            CHECK(one.least >= made.front().least);
            CHECK(one.time->tokens_per_second <= made.front().time->tokens_per_second * (1 + 1e-12));
            ++seen;
          }
        }
      }
    }
  }
  CHECK(seen > 500);
}

TEST_CASE("with `auto` the choice is the fastest of all that it stands for") {
  Asked asked = small_question(Bytes(INT64_C(16) << 30));
  asked.space.axes[2].values = {{"none", option("--vary")}, {"full", option("--vary")}, {"auto", option("--vary")}};
  SearchOptions options;
  options.explain = false;
  const PlanAnswer quick = asked.answer(options);
  options.bounds = false;
  options.stop_early = false;
  const PlanAnswer exhaustive = asked.answer(options);
  REQUIRE(quick.chosen);
  CHECK(shown(*quick.chosen) == shown(*exhaustive.chosen));
  CHECK(exhaustive.counts.simulated > 72);
  CHECK(quick.counts.simulated < 20);
}

TEST_CASE("a global batch decides accumulation; what it cannot be cut into is counted as impossible") {
  Asked asked = small_question(Bytes(INT64_C(70) << 30));
  asked.space.axes[1].values = {{"1", option("--vary")}, {"2", option("--vary")}, {"3", option("--vary")}};
  asked.space.global_batch = {64, option("--global-batch")};
  const PlanAnswer answer = asked.answer();
  REQUIRE(answer.chosen);
  const auto batch_of = [](const PlanRow& row) {
    return row.grad_accum * row.dp * std::stoll(setting(row, Axis::MicroBatch));
  };
  CHECK(batch_of(*answer.chosen) == 64);
  for (const PlanRow& row : answer.next) CHECK(batch_of(row) == 64);
  REQUIRE(!answer.refusals.empty());
  CHECK(answer.refusals.front().why.find("cannot be cut into equal micro-batches") != std::string::npos);
  CHECK(answer.job->training.grad_accum == answer.chosen->grad_accum);
}

TEST_CASE("the largest micro-batch fits, and one row more does not") {
  Asked asked = small_question(Bytes(INT64_C(30) << 30));
  asked.space.axes.erase(asked.space.axes.begin() + 1);
  SearchOptions options;
  options.objective = Objective::MicroBatch;
  options.explain = false;
  const PlanAnswer answer = asked.answer(options);
  REQUIRE(answer.found);
  REQUIRE(answer.chosen);
  CHECK(*answer.found > 2);
  CHECK(setting(*answer.chosen, Axis::MicroBatch) == std::to_string(*answer.found));
  CHECK(fits(simulated(asked, *answer.chosen)));
  for (const char* stage : {"0", "1", "2", "3"}) {
    for (const char* checkpoint : {"none", "full", "every:4"}) {
      for (const char* tp : {"1", "2"}) {
        PlanRow row = *answer.chosen;
        row.settings[static_cast<std::size_t>(Axis::ZeroStage)] = stage;
        row.settings[static_cast<std::size_t>(Axis::Checkpoint)] = checkpoint;
        row.settings[static_cast<std::size_t>(Axis::TensorParallel)] = tp;
        row.settings[static_cast<std::size_t>(Axis::MicroBatch)] = std::to_string(*answer.found + 1);
        CAPTURE(shown(row));
        CHECK(!fits(simulated(asked, row)));
      }
    }
  }
}

namespace {

// One layout alone: what is sought is a count.
Asked one_layout(const char* model, Bytes capacity, const char* stage, const char* micro_batch, const char* tp) {
  Asked asked(model);
  asked.with_capacity(capacity)
      .vary(Axis::ZeroStage, {stage})
      .vary(Axis::MicroBatch, {micro_batch})
      .vary(Axis::Checkpoint, {"full"})
      .vary(Axis::TensorParallel, {tp})
      .vary(Axis::Offload, {"none"})
      .vary(Axis::ReduceBucket, {"1000000"});
  return asked;
}

}  // namespace

TEST_CASE("the longest sequence and the most layers") {
  Asked asked = one_layout("tiny-llama", Bytes(INT64_C(1400) << 20), "3", "4", "1");
  SearchOptions options;
  options.explain = false;
  options.objective = Objective::Seq;
  const PlanAnswer longest = asked.answer(options);
  REQUIRE(longest.found);
  CHECK(*longest.found % 64 == 0);
  CHECK(longest.job->training.seq == *longest.found);
  asked.request.seq = {*longest.found, option("--seq")};
  CHECK(runs(simulated(asked, *longest.chosen)));
  asked.request.seq = {*longest.found + 64, option("--seq")};
  CHECK(!runs(simulated(asked, *longest.chosen)));
  asked.request.seq = {1024, option("--seq")};
  options.objective = Objective::Layers;
  const PlanAnswer deepest = asked.answer(options);
  REQUIRE(deepest.found);
  CHECK(*deepest.found > asked.model.dims.layers);
  for (const std::int64_t more : {0, 1}) {
    Asked deeper = asked;
    deeper.model = build_model(with_layers(asked.files.document, *deepest.found + more), asked.files.name);
    CHECK(runs(simulated(deeper, *deepest.chosen)) == (more == 0));
  }
}

// One that gives its cache back to fit is longer, and slower than its estimate says.
TEST_CASE("the longest sequence is one that fits without retries, where there is one") {
  Asked asked = one_layout("llama-3.2-1b", Bytes(INT64_C(12) << 30), "1", "1", "4");
  asked.request.gpus = {4, option("--gpus")};
  asked.request.reserve = {Bytes(1 << 20), option("--reserve")};  // As much as that is enough.
  SearchOptions options;
  options.explain = false;
  options.objective = Objective::Seq;
  const PlanAnswer longest = asked.answer(options);
  REQUIRE(longest.found);
  CHECK(longest.chosen->fate == Fate::Fits);
  asked.request.seq = {*longest.found + 64, option("--seq")};
  const Prediction longer = simulated(asked, *longest.chosen);
  CHECK(runs(longer));
  CHECK(longer.retries > 0);
}

TEST_CASE("the fewest GPUs: half of them do not do") {
  Asked asked = small_question(Bytes(INT64_C(24) << 30));
  SearchOptions options;
  options.objective = Objective::Gpus;
  options.explain = false;
  const PlanAnswer answer = asked.answer(options);
  REQUIRE(answer.chosen);
  CHECK(answer.chosen->world < 4);
  if (answer.chosen->world == 1) return;
  Asked fewer = asked;
  fewer.request.gpus = {answer.chosen->world / 2, option("--gpus")};
  CHECK(!fewer.answer().chosen);
}

TEST_CASE("the front: nobody on it is beaten, and the shortcut leaves nobody out") {
  Asked asked = small_question(Bytes(INT64_C(40) << 30));
  SearchOptions options;
  options.front = true;
  options.explain = false;
  const PlanAnswer answer = asked.answer(options);
  REQUIRE(answer.front.size() >= 3);
  for (const PlanRow& a : answer.front) {
    for (const PlanRow& b : answer.front) {
      if (&a == &b) continue;
      CHECK(!(a.tokens_per_second() >= b.tokens_per_second() && *a.process <= *b.process && *a.wire <= *b.wire));
    }
  }
  options.stop_early = false;
  options.bounds = false;
  const PlanAnswer all = asked.answer(options);
  REQUIRE(all.front.size() == answer.front.size());
  for (std::size_t i = 0; i < all.front.size(); ++i) CHECK(shown(all.front[i]) == shown(answer.front[i]));
}

TEST_CASE("an interrupted search says so, with the best plan so far") {
  const Asked asked = small_question(Bytes(INT64_C(20) << 30));
  SearchOptions options;
  options.explain = false;
  std::int64_t calls = 0;
  options.go_on = [&](const SearchProgress&) { return ++calls < 20; };
  const PlanAnswer answer = asked.answer(options);
  CHECK(!answer.complete);
  CHECK(calls == 20);
  options.go_on = [](const SearchProgress&) { return true; };
  CHECK(asked.answer(options).complete);
}

TEST_CASE("what retries at one end of what waiting frees can do counts as clean unless the clock expects retries") {
  Prediction p;
  p.verdict = Verdict::FitsWithRetries;
  p.retries = 2;
  CHECK(!surely_retries(p));  // Nobody can estimate when frees end.
  p.long_run_expected.emplace().repeats = true;
  CHECK(!surely_retries(p));
  p.long_run_expected->retries = 1;
  CHECK(surely_retries(p));
  p.long_run_expected.emplace().failed_step = 5;
  CHECK(surely_retries(p));
  p.long_run_expected.reset();
  p.retries_low = 1;
  CHECK(surely_retries(p));
}
