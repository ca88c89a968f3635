// The auditor against a schedule of a dozen events, broken by hand in each way that it judges, and against what the
// lowering really writes.
#include "core/audit.h"

#include <doctest/doctest.h>

#include <functional>

#include "lowered.h"
#include "planner/lower/unsupported.h"

using namespace dsplan;

namespace {

// Rank 0 of 2: a weight is loaded and used in module 7; the result is all-reduced and updates the weight.
Schedule legal() {
  Schedule s;
  s.world = s.dp = 2;
  s.buffers = {Buffer{.size = Bytes(8), .label = "weight"}, Buffer{.size = Bytes(8), .label = "result"}};
  const Bytes none;
  const Bytes all(8);
  s.accesses = {{BufferId(0), ContentId(2), none, all}, {BufferId(0), ContentId(2), none, all},
                {BufferId(1), ContentId(4), none, all}, {BufferId(1), ContentId(4), none, all},
                {BufferId(1), ContentId(6), none, all}, {BufferId(1), ContentId(6), none, all},
                {BufferId(0), ContentId(2), none, all}, {BufferId(0), ContentId(7), none, all}};
  s.events = {Mark{Moment::StretchBegins, Stretch::FirstStep, 0, ContentId(1)},
              Allocate{BufferId(0)},
              Compute{"load", kNone, 0, Pass::Setup, {0, 0}, {0, 1}},
              Enter{7, Pass::Forward, ContentId(3)},
              Allocate{BufferId(1)},
              Compute{"use", 7, 0, Pass::Forward, {1, 2}, {2, 3}},
              Exit{7, Pass::Forward, false, ContentId(5)},
              Communicate{Collective::AllReduce,
                          Group::DataParallel,
                          DType::Float32,
                          TrafficKind::Data,
                          0,
                          Pass::Backward,
                          kNone,
                          all,
                          {3, 4},
                          {4, 5}},
              Mark{Moment::StepBegins, Stretch::FirstStep, 0, ContentId(8)},
              Compute{"update", kNone, 0, Pass::Step, {5, 7}, {7, 8}},
              Release{BufferId(1)},
              Mark{Moment::StepEnds, Stretch::FirstStep, 0, ContentId(9)}};
  s.survivors = {BufferId(0)};
  s.promises = {{PromiseKind::UpdatedEachStep, {BufferId(0), kNone, none, all}},
                {PromiseKind::HeldAtTheEnd, {BufferId(0), ContentId(7), none, all}}};
  return s;
}

template <class E>
E& at(Schedule& s, std::size_t event) {
  return std::get<E>(s.events[event]);
}
void erase(Schedule& s, std::size_t event) { s.events.erase(s.events.begin() + static_cast<std::ptrdiff_t>(event)); }

struct Breakage {
  const char* finding;
  std::function<void(Schedule&)> change;
};

const Breakage kBreakages[] = {
    {"allocated twice", [](Schedule& s) { s.events.insert(s.events.begin() + 1, Allocate{BufferId(0)}); }},
    {"touched while it is not there", [](Schedule& s) { erase(s, 4); }},
    {"touched while it is not there", [](Schedule& s) { std::swap(s.events[9], s.events[10]); }},
    {"released twice", [](Schedule& s) { s.events.insert(s.events.begin() + 10, Release{BufferId(1)}); }},
    {"released or survives", [](Schedule& s) { erase(s, 10); }},
    {"released or survives",
     [](Schedule& s) {
       s.survivors = {BufferId(0), BufferId(1)};
     }},
    {"not ascending",
     [](Schedule& s) {
       s.survivors = {BufferId(0), BufferId(0)};
     }},
    {"there is no buffer 9", [](Schedule& s) { s.accesses[3].buffer = BufferId(9); }},
    {"there is no buffer 9", [](Schedule& s) { s.survivors.push_back(BufferId(9)); }},
    {"never allocated",
     [](Schedule& s) {
       s.buffers.push(Buffer{Bytes(4), "forgotten"});
     }},
    {"is not inside", [](Schedule& s) { s.accesses[1].bytes = Bytes(12); }},
    {"is not inside", [](Schedule& s) { s.accesses[1].bytes = Bytes(0); }},
    {"is not inside", [](Schedule& s) { s.accesses[1].offset = Bytes(INT64_MAX); }},
    {"cuts an element", [](Schedule& s) { s.accesses[1].bytes = Bytes(6); }},
    {"touched up to 8", [](Schedule& s) { s.buffers[BufferId(1)].size = Bytes(12); }},
    {"outside the pool",
     [](Schedule& s) {
       at<Compute>(s, 5).reads = {1, 99};
     }},
    {"does not hold 2", [](Schedule& s) { s.accesses[0].bytes = Bytes(4); }},
    {"does not hold 4", [](Schedule& s) { erase(s, 5); }},
    {"given twice", [](Schedule& s) { s.accesses[4].content = ContentId(4); }},
    {"given twice", [](Schedule& s) { at<Exit>(s, 6).id = ContentId(3); }},
    {"out of range", [](Schedule& s) { s.accesses[4].content = kNone; }},
    {"out of range", [](Schedule& s) { s.accesses[4].content = ContentId(1'000'000); }},
    {"was never read", [](Schedule& s) { erase(s, 7); }},
    {"was never read", [](Schedule& s) { s.accesses[3].bytes = Bytes(4); }},
    {"makes nothing",
     [](Schedule& s) {
       at<Compute>(s, 5).writes = {2, 2};
     }},
    {"right after its last use", [](Schedule& s) { std::swap(s.events[10], s.events[11]); }},
    {"right after its last use", [](Schedule& s) { s.events.insert(s.events.begin() + 10, Allocate{BufferId(0)}); }},
    {"gives loop for a release at its last use",
     [](Schedule& s) {
       s.events[10] = Release{BufferId(1), ContentId(7), 0, Reason::Loop};
     }},
    {"right after its cause 3",
     [](Schedule& s) {
       s.events.push_back(Release{BufferId(0), ContentId(3), 0, Reason::Loop}), s.survivors.clear();
     }},
    {"stream 1 reads buffer", [](Schedule& s) { at<Compute>(s, 5).stream = 1; }},
    {"without having waited for stream 1", [](Schedule& s) { at<Compute>(s, 5).stream = 1; }},
    {"allocated on another stream", [](Schedule& s) { at<Release>(s, 10).stream = 1; }},
    {"there is no stream 9", [](Schedule& s) { at<Compute>(s, 5).stream = 9; }},
    {"which nobody has recorded",
     [](Schedule& s) {
       s.events.insert(s.events.begin(), WaitEvent{ContentId(8), 0, ContentId(9)});
     }},
    {"of 12 bytes reads 8", [](Schedule& s) { at<Communicate>(s, 7).payload = Bytes(12); }},
    {"all_gather of 8", [](Schedule& s) { at<Communicate>(s, 7).collective = Collective::AllGather; }},
    {"reduce_scatter of 8", [](Schedule& s) { at<Communicate>(s, 7).collective = Collective::ReduceScatter; }},
    {"different places of one buffer",
     [](Schedule& s) { s.accesses[4].offset = Bytes(4), s.buffers[BufferId(1)].size = Bytes(12); }},
    {"two writes of one work overlap",
     [](Schedule& s) {
       s.accesses.push_back({BufferId(1), ContentId(4), Bytes(0), Bytes(8)});
       s.accesses.push_back({BufferId(1), ContentId(10), Bytes(4), Bytes(4)});
       at<Compute>(s, 5).writes = {8, 10};
     }},
    {"of bf16 touches", [](Schedule& s) { at<Communicate>(s, 7).dtype = DType::BFloat16; }},
    {"group of one rank", [](Schedule& s) { s.dp = 1; }},
    {"not the innermost", [](Schedule& s) { at<Exit>(s, 6).module = 8; }},
    {"not the innermost", [](Schedule& s) { at<Exit>(s, 6).pass = Pass::Backward; }},
    {"inside module 7", [](Schedule& s) { std::swap(s.events[6], s.events[8]); }},
    {"never left",
     [](Schedule& s) {
       s.events.push_back(Enter{7, Pass::Forward, ContentId(10)});
     }},
    {"only recomputation abandons", [](Schedule& s) { at<Exit>(s, 6).abandoned = true; }},
    {"work outside its module 8", [](Schedule& s) { at<Compute>(s, 5).module = 8; }},
    {"entered in another pass", [](Schedule& s) { at<Compute>(s, 5).pass = Pass::Step; }},
    {"the step wrote 0 of the 8", [](Schedule& s) { std::swap(s.events[8], s.events[9]); }},
    {"the step wrote 4 of the 8", [](Schedule& s) { s.accesses[7].bytes = Bytes(4); }},
    {"a step never ends", [](Schedule& s) { erase(s, 11); }},
    {"does not hold 2 at the end", [](Schedule& s) { s.promises[1].what.content = ContentId(2); }},
    {"differ by -8 bytes", [](Schedule& s) { s.promises.pop_back(); }},
    {"impossible rank", [](Schedule& s) { s.rank = 2; }},
};

std::string texts(const std::vector<Finding>& findings) {
  std::string all;
  for (const Finding& finding : findings) all += dsplan::formatted("{}: {}\n", finding.event, finding.text);
  return all;
}

// A lost copy of what a collective brought is legal, and so is what no longer matters once recomputation stops.
void break_early_stop(Schedule& s) {
  at<Enter>(s, 3).pass = at<Exit>(s, 6).pass = at<Compute>(s, 5).pass = Pass::Recompute;
  at<Exit>(s, 6).abandoned = true;
  s.events.insert(s.events.begin() + 6, Release{BufferId(1)});
  s.events.erase(s.events.begin() + 8);   // The collective,
  s.events.erase(s.events.begin() + 10);  // and the release that stood behind the update.
  at<Compute>(s, 9).reads = {6, 7};
}

}  // namespace

TEST_CASE("each breakage is found and named") {
  CHECK(texts(audit(legal())) == "");
  for (const Breakage& breakage : kBreakages) {
    CAPTURE(breakage.finding);
    Schedule schedule = legal();
    breakage.change(schedule);
    const std::string found = texts(audit(schedule));
    CAPTURE(found);
    CHECK(found.find(breakage.finding) != std::string::npos);
  }
}

TEST_CASE("an early stop may drop what nobody has read, if nothing follows") {
  Schedule schedule = legal();
  break_early_stop(schedule);
  CHECK(texts(audit(schedule)) == "");
  at<Exit>(schedule, 7).abandoned = false;
  CHECK(texts(audit(schedule)) == "7: an early stop does not abandon module 7\n");
}

TEST_CASE("findings stop after the number that was asked for") {
  Schedule schedule = legal();
  schedule.accesses.clear();
  CHECK(audit(schedule, 1).size() == 1);
  schedule = legal();
  for (int i = 0; i < 30; ++i) schedule.events.push_back(Allocate{BufferId(0)});
  CHECK(audit(schedule).size() == kMostFindings);
}

TEST_CASE("ranks must be distinct and their collectives the same") {
  std::vector<Schedule> ranks{legal(), legal()};
  ranks[1].rank = 1;
  CHECK(texts(audit_ranks(ranks)) == "");
  CHECK(texts(audit_ranks({})) == "");
  const auto broken = [&](auto change) {
    std::vector<Schedule> changed = ranks;
    change(changed[1]);
    return texts(audit_ranks(changed));
  };
  CHECK(broken([](Schedule& s) { s.rank = 0; }) == "12: rank 0: this rank appears twice\n");
  CHECK(broken([](Schedule& s) { s.rank = 2; }) == "12: rank 2: not a rank of its group\n");
  CHECK(broken([](Schedule& s) { s.world = 4; }) == "12: rank 1: another world\n");
  CHECK(broken([](Schedule& s) { erase(s, 7); }) == "11: rank 1: 0 collectives, rank 0 has 1\n");
  CHECK(broken([](Schedule& s) { at<Communicate>(s, 7).payload = Bytes(4); }) ==
        "7: rank 1: collective 0 is not rank 0's\n");
  CHECK(broken([](Schedule& s) { at<Communicate>(s, 7).kind = TrafficKind::Control; }) ==
        "7: rank 1: collective 0 is not rank 0's\n");
}

TEST_CASE("what the lowering writes is legal") {
  const std::vector<ModelSpec> models{lowered::bundled("tiny-gpt2"), lowered::bundled("tiny-llama"),
                                      lowered::tiny_mixtral(), lowered::tiny_gemma2()};
  int jobs = 0;
  for (const ModelSpec& model : models) {
    for (int stage = -1; stage <= 3; ++stage) {
      for (std::int64_t ranks = 1; ranks <= (stage < 0 ? 2 : 4); ++ranks) {
        for (const lowered::Case& c : lowered::variants(stage, ranks, static_cast<std::int32_t>(model.dims.layers))) {
          if (unsupported(model, c.job)) continue;
          CAPTURE(model.name);
          CAPTURE(c.name);
          const std::vector<Schedule> schedules = lowered::all_ranks(model, c.job);
          for (const Schedule& schedule : schedules) CHECK(texts(audit(schedule)) == "");
          CHECK(texts(audit_ranks(schedules)) == "");
          ++jobs;
        }
      }
    }
  }
  CHECK(jobs > 1500);
}
