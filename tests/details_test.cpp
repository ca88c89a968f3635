// What is left out of a prediction, or of a search, is what nobody sees: the first screen of one that was made for it,
// and the answer of a search whose screen alone is shown, are those of the whole.
#include <doctest/doctest.h>

#include <atomic>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "cli/report.h"
#include "planner/lower/lower.h"
#include "planner/predict/verdict.h"
#include "searching.h"
#include "sim/free_blocks.h"

using namespace dsplan;
using namespace dsplan::test;

namespace {

std::string screen(const Prediction& prediction, const Job& job) { return report(prediction, job, {false, {}, false}); }

Job job_of(const Asked& asked) {
  const DeepSpeedInput file = own_deepspeed_file(asked.request);
  return resolve(asked.model, asked.request, &file, &h100(), &eight_h100());
}

// Whether one that is wanted if it is clean is there; then it is the whole one.
bool check_clean(const ModelSpec& model, const Job& job, const Prediction& whole) {
  const std::optional<Prediction> clean = predict_wanted(model, job, Detail::Fate, Wanted::IfClean);
  const bool is_clean = fits(whole.verdict) && whole.verdict != Verdict::Tight && !surely_retries(whole);
  // What is left is what only the end says: tight, or one end alone.
  if (!is_clean && whole.retries_low > 0) CHECK_FALSE(clean.has_value());
  if (!clean) {
    CHECK_FALSE(is_clean);
    return false;
  }
  CHECK(clean->verdict == whole.verdict);
  CHECK(clean->retries == whole.retries);
  CHECK(clean->peak->process == whole.peak->process);
  CHECK(clean->peak->reserved == whole.peak->reserved);
  CHECK(clean->host.per_node == whole.host.per_node);
  return true;
}

// Whether one that is wanted if it fits is there as a change has it.
bool check_change(const ModelSpec& model, const Job& job, const Prediction& whole) {
  const std::optional<Prediction> change = predict_wanted(model, job, Detail::Change, Wanted::IfFits);
  if (!change) return false;
  CHECK(change->verdict == whole.verdict);
  CHECK(change->needed == whole.needed);
  CHECK(change->retries == whole.retries);
  CHECK(change->peak->process == whole.peak->process);
  CHECK(change->time.has_value() == whole.time.has_value());
  CHECK(change->host.per_node == whole.host.per_node);
  return true;
}

// Those of its rows as far as a screen has them: of what does not fit no process.
void check_same(const PlanRow& a, const PlanRow& b) {
  CHECK(a.settings == b.settings);
  CHECK(a.fate == b.fate);
  CHECK(a.missing == b.missing);
  if (fits(a.fate)) CHECK(a.process == b.process);
}

}  // namespace

TEST_CASE("the first screen needs no more than was made for it") {
  std::map<Verdict, int> seen;
  int given_up = 0;  // Lowered no further than the device has room,
  int failed = 0;    // or than to where the allocator fails.
  int unclean = 0;   // Or placed no further than to the first retry.
  for (const char* model : {"gpt2", "llama-3.2-1b"}) {
    for (const std::int64_t stage : {0, 2, 3}) {
      for (const std::int64_t mebibytes : {3000, 4000, 5000, 6500, 8200, 9000, 12000, 20000, 60000}) {
        CAPTURE(model);
        CAPTURE(stage);
        CAPTURE(mebibytes);
        Asked asked(model);
        asked.with_capacity(Bytes(mebibytes << 20));
        asked.request.zero_stage = {stage, option("--zero-stage")};
        asked.request.checkpoint = {"full", option("--checkpoint")};
        asked.request.rank = {"worst", option("--rank")};
        const Job job = job_of(asked);
        const Prediction whole = predict_asked(asked.model, job).front();
        const Prediction seen_only = predict_asked(asked.model, job, Detail::Screen).front();
        CHECK(screen(seen_only, job) == screen(whole, job));
        CHECK(seen_only.verdict == whole.verdict);
        const Prediction fate = predict_asked(asked.model, job, Detail::Fate).front();
        CHECK(fate.verdict == whole.verdict);
        CHECK(fate.retries == whole.retries);
        CHECK(fate.peak->process == whole.peak->process);
        if (whole.verdict != Verdict::DoesNotFit) CHECK(fate.retries_low == whole.retries_low);
        const std::optional<Prediction> fitting = predict_wanted(asked.model, job, Detail::Fate, Wanted::IfFits);
        if (!fitting) {
          ++given_up;
          CHECK(whole.verdict == Verdict::DoesNotFit);
          failed += *whole.needed + whole.reserve > Bytes(mebibytes << 20) ? 0 : 1;
        } else {
          CHECK(fitting->verdict == whole.verdict);
          CHECK(fitting->peak->process == whole.peak->process);
        }
        CHECK(check_change(asked.model, job, whole) == fitting.has_value());
        unclean += check_clean(asked.model, job, whole) ? 0 : 1;
        ++seen[whole.verdict];
      }
    }
  }
  // Each way in which less is made than everything.
  CHECK(given_up > failed);
  CHECK(failed > 0);
  CHECK(unclean > given_up);
  std::atomic<bool> needless = true;
  Asked asked("gpt2");
  CHECK_FALSE(predict_wanted(asked.model, job_of(asked), Detail::Fate, Wanted::Any, &needless).has_value());
  needless = false;
  CHECK(predict_wanted(asked.model, job_of(asked), Detail::Fate, Wanted::Any, &needless).has_value());
  CHECK(seen[Verdict::Fits] > 0);
  CHECK(seen[Verdict::DoesNotFit] > 0);
  CHECK(seen[Verdict::Tight] + seen[Verdict::FitsWithRetries] > 0);
}

TEST_CASE("small tensors that stand as one buffer take what they take one by one") {
  std::map<Verdict, int> seen;
  for (const char* model : {"gpt2", "qwen3-0.6b"}) {
    for (const std::int64_t ranks : {200, 640}) {
      for (const std::int64_t mebibytes : {1600, 1900, 2300, 2700, 3300, 4000, 6000, 60000}) {
        CAPTURE(model);
        CAPTURE(ranks);
        CAPTURE(mebibytes);
        Asked asked(model);
        asked.with_capacity(Bytes(mebibytes << 20));
        asked.request.gpus = {ranks, option("--gpus")};
        asked.request.zero_stage = {3, option("--zero-stage")};
        asked.request.checkpoint = {"full", option("--checkpoint")};
        const Job job = job_of(asked);
        const Prediction whole = predict_asked(asked.model, job).front();
        const Prediction pieces = predict_asked(asked.model, job, Detail::Screen).front();
        CHECK(pieces.buffers < whole.buffers);
        CHECK(screen(pieces, job) == screen(whole, job));
        CHECK(pieces.peak->requested == whole.peak->requested);
        CHECK(pieces.peak->allocated == whole.peak->allocated);
        CHECK(pieces.peak->event == whole.peak->event);
        CHECK(pieces.verdict_reason == whole.verdict_reason);
        REQUIRE(pieces.phases.size() == whole.phases.size());
        for (std::size_t at = 0; at < whole.phases.size(); ++at) {
          CHECK(pieces.phases[at].allocations == whole.phases[at].allocations);
          CHECK(pieces.phases[at].peak_allocated == whole.phases[at].peak_allocated);
          CHECK(pieces.phases[at].peak_active == whole.phases[at].peak_active);
          CHECK(pieces.phases[at].peak_reserved == whole.phases[at].peak_reserved);
        }
        const Prediction fate = predict_asked(asked.model, job, Detail::Fate).front();
        CHECK(fate.verdict == whole.verdict);
        CHECK(fate.retries == whole.retries);
        CHECK(fate.needed == whole.needed);
        ++seen[whole.verdict];
      }
    }
  }
  CHECK(seen[Verdict::Fits] > 0);
  CHECK(seen[Verdict::DoesNotFit] > 0);
  CHECK(seen[Verdict::Tight] + seen[Verdict::FitsWithRetries] > 0);
}

TEST_CASE("shapes that several jobs share are each job's own") {
  Asked asked("gpt2");
  SharedShapes shared(asked.model);
  std::set<const Shapes*> made;
  int jobs = 0;
  for (const char* checkpoint : {"none", "full", "every:2"}) {
    for (const std::int64_t rows : {1, 2}) {
      for (const std::int64_t stage : {0, 1, 3}) {
        for (const char* loss : {"hf", "chunked:4"}) {
          CAPTURE(checkpoint);
          CAPTURE(rows);
          CAPTURE(stage);
          CAPTURE(loss);
          asked.request.checkpoint = {checkpoint, option("--checkpoint")};
          asked.request.micro_batch = {rows, option("--micro-batch")};
          asked.request.zero_stage = {stage, option("--zero-stage")};
          asked.request.loss = {loss, option("--loss")};
          const Job job = job_of(asked);
          const std::shared_ptr<const Shapes> shapes = shared.of(job);
          made.insert(shapes.get());
          ++jobs;
          const Schedule own = lower(asked.model, job, build_shapes(asked.model, job), 0);
          const Schedule by_shared = lower(asked.model, job, *shapes, 0);
          REQUIRE(by_shared.events.size() == own.events.size());
          REQUIRE(by_shared.buffers.size() == own.buffers.size());
          bool same = true;
          for (const BufferId id : own.buffers.ids()) same = same && by_shared.buffers[id].size == own.buffers[id].size;
          CHECK(same);
        }
      }
    }
  }
  CHECK(made.size() < static_cast<std::size_t>(jobs));
  CHECK(made.size() >= 8);
}

TEST_CASE("a search whose screen alone is shown answers the same") {
  for (const std::int64_t gibibytes : {6, 9, 14, 24}) {
    CAPTURE(gibibytes);
    Asked asked("llama-3.2-1b");
    asked.with_capacity(Bytes(gibibytes << 30));
    const PlanAnswer all = asked.answer();
    SearchOptions options;
    options.whole = false;
    const PlanAnswer seen = asked.answer(options);
    REQUIRE(all.chosen.has_value() == seen.chosen.has_value());
    CHECK(all.counts.simulated == seen.counts.simulated);
    CHECK(all.counts.candidates == seen.counts.candidates);
    if (all.nearest) check_same(*all.nearest, *seen.nearest);
    if (!all.chosen) continue;
    check_same(*all.chosen, *seen.chosen);
    CHECK(all.prediction->doubt() == seen.prediction->doubt());
    REQUIRE(all.next.size() == seen.next.size());
    for (std::size_t at = 0; at < all.next.size(); ++at) check_same(all.next[at], seen.next[at]);
    REQUIRE(all.neighbours.size() == seen.neighbours.size());
    for (std::size_t at = 0; at < all.neighbours.size(); ++at) {
      check_same(all.neighbours[at].row, seen.neighbours[at].row);
    }
  }
}

TEST_CASE("free blocks keep the order of a set") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    std::mt19937_64 random(seed);
    FreeBlocks blocks;
    std::set<std::pair<std::int64_t, std::int64_t>> set;  // Size, address.
    const std::uint64_t sizes = 1 + random() % 6;
    const std::uint64_t way = seed % 3;  // Addresses at random, rising or falling.
    for (std::int64_t step = 1; step <= 3000; ++step) {
      const std::uint64_t what = random() % 100;
      const auto size = static_cast<std::int64_t>(512 * (40000 + random() % sizes * 3));
      if (what < 52 || set.empty()) {
        const auto anywhere = static_cast<std::int64_t>(random() % 100000);
        const std::int64_t address = 512 * (way == 0 ? anywhere * 4000 + step : way == 1 ? step : 10000 - step);
        blocks.insert(size, address, static_cast<BlockId>(step));
        set.emplace(size, address);
      } else if (what < 80) {
        const auto wanted = set.lower_bound({size, INT64_MIN});
        const FreeBlocks::Cursor found = blocks.lower_bound(size);
        REQUIRE(found.valid() == (wanted != set.end()));
        if (!found.valid()) continue;
        REQUIRE(blocks[found].size == wanted->first);
        REQUIRE(blocks[found].address == wanted->second);
        blocks.erase(found);
        set.erase(wanted);
      } else {
        const auto gone = std::next(set.begin(), static_cast<std::ptrdiff_t>(random() % set.size()));
        blocks.erase(gone->first, gone->second);
        set.erase(gone);
      }
      if (step % 100 != 0) continue;
      auto next = set.begin();
      blocks.for_each([&](const FreeBlocks::Entry& entry) {
        REQUIRE(next != set.end());
        REQUIRE(entry.address == (next++)->second);
      });
      REQUIRE(next == set.end());
    }
    CHECK(blocks.empty() == set.empty());
  }
}
