// Memory snapshots: read under every protocol, replayed against the allocator, and made from schedules.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "io/snapshot.h"
#include "lowered.h"
#include "paths.h"
#include "run_binary.h"
#include "schema.h"
#include "sim/placement.h"
#include "sim/snapshot_of.h"
#include "sim/snapshot_replay.h"

using namespace dsplan;
using namespace dsplan::test;
using Action = SnapshotEntry::Action;
using Json = nlohmann::ordered_json;

namespace {

const std::string kData = test_paths::source_dir() + "/tests/data/snapshots/";

Snapshot recorded(const std::string& name) { return read_snapshot(name, slurp(kData + name)); }

std::string refusal_of(const std::string& text) {
  try {
    const Snapshot snapshot = read_snapshot("s.pickle", text);
    (void)replay_snapshot(snapshot, "s.pickle");
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "accepted";
}

// The first difference in words, or "agrees".
std::string verdict(const Snapshot& snapshot) {
  for (const DeviceReplay& device : replay_snapshot(snapshot, "s.pickle")) {
    if (device.difference) return device.difference->recorded + " / " + device.difference->predicted;
  }
  return "agrees";
}

Schedule small_schedule(int stage, std::int64_t ranks) {
  const ModelSpec model = lowered::bundled("tiny-llama");
  return lowered::all_ranks(model, lowered::job(stage, ranks)).front();
}

std::vector<std::pair<std::string, AllocatorConfig>> configs() {
  std::vector<std::pair<std::string, AllocatorConfig>> list;
  for (const char* text : {"", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4",
                           "roundup_power2_divisions:[1:2,4:8,>:4]", "max_non_split_rounding_mb:40"}) {
    list.emplace_back(text, parse_allocator_conf(text, "conf"));
  }
  return list;
}

// A schedule of random allocations and frees on two streams, of sizes that reach every rule.
Schedule random_schedule(unsigned seed, int steps) {
  std::mt19937_64 random(seed);
  Schedule schedule;
  std::vector<BufferId> live;
  for (int i = 0; i < steps; ++i) {
    if (!live.empty() && random() % 2 == 0) {
      const std::size_t at = random() % live.size();
      schedule.events.emplace_back(Release{live[at], kNone, 0, Reason::LastUse});
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      continue;
    }
    Buffer buffer;
    const std::int64_t base = std::int64_t{1} << (6 + random() % 21);
    buffer.size = Bytes(base + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(base)));
    buffer.label = "random";
    live.push_back(schedule.buffers.push(buffer));
    schedule.events.emplace_back(Allocate{live.back(), static_cast<StreamId>(random() % 2)});
  }
  return schedule;
}

ModelSpec no_model() {
  ModelSpec model;
  model.name = "none";
  return model;
}

}  // namespace

TEST_CASE("one run under every protocol of Python's pickle") {
  const Snapshot first = recorded("run-protocol2.pickle");
  REQUIRE(first.segments.size() == 2);
  REQUIRE(first.traces.size() == 2);
  CHECK(first.traces[0].size() == 16);
  CHECK(first.segments[0].blocks[1].state == SnapshotBlock::State::PendingFree);
  CHECK(first.stacks.at(first.traces[0][0].stack).at(1) == SnapshotFrame{"\xc3\xbc"
                                                                         "bung",
                                                                         "/home/user/train.py", 7});
  REQUIRE(first.config.has_value());
  CHECK(*first.config == AllocatorConfig{});
  for (const char* name : {"run-protocol3.pickle", "run-protocol4.pickle", "run-protocol5.pickle"}) {
    CAPTURE(name);
    CHECK(recorded(name) == first);
  }
}

TEST_CASE("a recorded run is explained entry by entry") {
  for (const char* name : {"run-protocol4.pickle", "run-wrapped.pickle"}) {
    CAPTURE(name);
    const std::vector<DeviceReplay> devices = replay_snapshot(recorded(name), name);
    REQUIRE(devices.size() == 1);
    CHECK_FALSE(devices[0].difference.has_value());
    CHECK(devices[0].releases == 1);
    CHECK(devices[0].ooms == 1);
    CHECK(devices[0].end.allocated == Bytes(512 + 1024 + 34'000'384));
    CHECK(devices[0].end.reserved == Bytes((2 + 34) * kMebibyte));
    CHECK(devices[0].peaks.reserved == Bytes((2 + 34) * kMebibyte));
  }
  // The ring lost the entries before: undoing the trace finds what they left.
  const DeviceReplay wrapped = replay_snapshot(recorded("run-wrapped.pickle"), "w").front();
  CHECK(wrapped.start.requested == Bytes(100 + 1000 + 3'000'000));
  CHECK(wrapped.start.reserved == Bytes(22 * kMebibyte));
  CHECK(wrapped.segment_steps == 2);
}

TEST_CASE("each thing that the allocator would not have done is found") {
  CHECK(verdict(recorded("run-moved.pickle")) ==
        "alloc of 12,000,000 bytes at 0x7f0000200200 / placed at 0x7f0000200000");
  const auto changed = [](auto&& change) {
    Snapshot snapshot = recorded("run-protocol4.pickle");
    change(snapshot);
    return verdict(snapshot);
  };
  // A segment of another size than the request calls for, as if the first 20 MiB were 22.
  CHECK(changed([](Snapshot& s) {
          s.traces[0][3].size = Bytes(22 * kMebibyte);
          s.traces[0][10].size = Bytes(22 * kMebibyte);
        }) == "segment_alloc of 23,068,672 bytes at 0x7f0000200000 / segment_alloc of 20,971,520 bytes");
  // No segment was made although none is cached: it was there before.
  CHECK(changed([](Snapshot& s) { s.traces[0].erase(s.traces[0].begin(), s.traces[0].begin() + 1); }) == "agrees");
  // A segment given back twice as often as there are: the last one is in use.
  CHECK(changed([](Snapshot& s) { s.config->expandable_segments = true; }) ==
        "segment_alloc of 2,097,152 bytes at 0x7f0000000000 / segment_map of 2,097,152 bytes at 0x10000000000000");
  // The final blocks, one field at a time.
  CHECK(changed([](Snapshot& s) { s.segments[1].blocks[0].size -= Bytes(512); }) ==
        "active_allocated block of 33,999,872 bytes (34,000,000 requested) at 0x7f0002000000 / "
        "active_allocated block of 34,000,384 bytes (34,000,000 requested) at 0x7f0002000000");
  CHECK(changed([](Snapshot& s) { s.segments[0].large = true; }).starts_with("large segment of 2,097,152 bytes"));
  CHECK(changed([](Snapshot& s) {
          s.segments[0].blocks[1].state = SnapshotBlock::State::Allocated;
        }).starts_with("active_allocated block of 1,024 bytes"));
}

TEST_CASE("a trace that its segments contradict is refused with the entry") {
  const auto refused = [](auto&& change) {
    Snapshot snapshot = recorded("run-protocol4.pickle");
    change(snapshot);
    return refusal_of(write_snapshot(snapshot));
  };
  CHECK(refused([](Snapshot& s) {
          s.traces[0][12].size = Bytes(1);
        }).find("device 0, entry 12 (alloc of 1 bytes at 0x7f0002000000) contradicts what follows: 34000000 bytes") !=
        std::string::npos);
  CHECK(refused([](Snapshot& s) { s.traces[0][12].address = Bytes(4096); }).find("nothing is there afterwards") !=
        std::string::npos);
  CHECK(refused([](Snapshot& s) { s.traces[0][11].size = Bytes(4096); }).find("no such segment is there afterwards") !=
        std::string::npos);
  CHECK(refused([](Snapshot& s) {
          s.traces[0][10].address = s.segments[0].address;
        }).find("other memory is there afterwards") != std::string::npos);
  CHECK(refused([](Snapshot& s) { s.traces[0][9].address = Bytes(1024); }).find("no segment is there") !=
        std::string::npos);
}

TEST_CASE("malformed snapshots are refused with the byte") {
  const std::string text = slurp(kData + "run-protocol2.pickle");
  // Every truncation, and every byte changed to another, gives an answer.
  for (std::size_t length = 0; length < text.size(); ++length) {
    CHECK(refusal_of(text.substr(0, length)) != "accepted");
  }
  std::mt19937 random(5);
  for (int i = 0; i < 4000; ++i) {
    std::string bad = text;
    for (int changes = 0; changes < 3; ++changes) bad[random() % bad.size()] = static_cast<char>(random());
    CHECK_NOTHROW((void)refusal_of(bad));
  }
  const std::string empty = std::string("\x80\x02}X\x08\0\0\0", 8) + "segments]s.";
  CHECK(refusal_of("\x80\x02N.").find("at byte 2: a snapshot must be a dict, not None") != std::string::npos);
  CHECK(refusal_of("\x80\x02}.").find("at byte 2: this dict has no \"segments\"") != std::string::npos);
  CHECK(refusal_of(empty) == "accepted");
  // A pool of a CUDA graph.
  std::string pool = text;
  const std::size_t at = pool.find("segment_pool_id");
  const std::size_t pair = pool.find(std::string("K\0K\0", 4), at);
  REQUIRE(pair != std::string::npos);
  pool[pair + 3] = 1;
  CHECK(refusal_of(pool).find("memory pools of CUDA graphs and of users are not modelled") != std::string::npos);
}

TEST_CASE("a schedule written as a snapshot, read back and replayed is the same") {
  for (const auto& [text, config] : configs()) {
    CAPTURE(text);
    for (const int stage : {-1, 0, 2, 3}) {
      CAPTURE(stage);
      const ModelSpec model = lowered::bundled("tiny-llama");
      const Schedule schedule = small_schedule(stage, stage < 0 ? 1 : 4);
      const Snapshot made = snapshot_of(schedule, model, config, CachingAllocator::kUnlimited);
      const std::string bytes = write_snapshot(made);
      const Snapshot back = read_snapshot("s.pickle", bytes);
      CHECK(write_snapshot(back).size() == bytes.size());
      CHECK(back.segments.size() == made.segments.size());
      CHECK(back.config == made.config);
      CHECK(verdict(back) == "agrees");
      const Placement placed = place(schedule, PlacementOptions{config});
      const DeviceReplay device = replay_snapshot(back, "s").front();
      CHECK(device.peaks.allocated == placed.peak.allocated);
      CHECK(device.peaks.reserved == placed.peak.reserved);
      // Stacks name what and where.
      const std::vector<SnapshotFrame>& stack = back.stacks.at(back.traces[0].back().stack);
      REQUIRE(stack.size() >= 2);
      CHECK(stack.back().file == "dsplan");
    }
  }
}

TEST_CASE("random traces of every size, whole and wrapped, under limits and without") {
  std::int64_t releases = 0, ooms = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    for (const auto& [text, config] : configs()) {
      CAPTURE(seed);
      CAPTURE(text);
      const Schedule schedule = random_schedule(seed, 400);
      const Bytes limit = seed % 2 == 0 ? CachingAllocator::kUnlimited : Bytes((100 + 8 * seed) * kMebibyte);
      Snapshot made = snapshot_of(schedule, no_model(), config, limit);
      CHECK(verdict(made) == "agrees");
      for (const SnapshotEntry& entry : made.traces[0]) ooms += entry.action == Action::OutOfMemory ? 1 : 0;
      releases += replay_snapshot(made, "s").front().releases;
      // As the ring would have it: the oldest entries are gone. Segment steps belong to the request behind them.
      std::vector<SnapshotEntry>& trace = made.traces[0];
      std::size_t cut = trace.size() / 3;
      while (cut < trace.size() && trace[cut - 1].action != Action::Alloc) ++cut;
      trace.erase(trace.begin(), trace.begin() + static_cast<std::ptrdiff_t>(cut));
      // Where expandable ranges began is lost with them, which can move later blocks.
      if (!config.expandable_segments) CHECK(verdict(made) == "agrees");
    }
  }
  CHECK(releases > 0);
  CHECK(ooms > 0);
}

TEST_CASE("addresses beyond what the viewer can tell apart are refused") {
  Snapshot snapshot = recorded("run-protocol4.pickle");
  snapshot.segments[1].address = Bytes(kLargestViewerNumber);
  CHECK_THROWS_AS((void)write_snapshot(snapshot), Refusal);
}

TEST_CASE("emit and replay as commands") {
  const Folder folder;
  const auto runs = [&](const std::string& line) { return run_binary(folder, split(line)); };
  REQUIRE(runs("emit tiny-llama --zero-stage 2 --gpus 4 --format snapshot --out a.pickle").code == 0);
  REQUIRE(runs("emit tiny-llama --zero-stage 2 --gpus 4 --format snapshot --out b.pickle").code == 0);
  CHECK(slurp(folder / "a.pickle") == slurp(folder / "b.pickle"));
  const Ran table = runs("replay a.pickle");
  CHECK(table.code == 0);
  CHECK(table.out.starts_with("agrees: "));
  CHECK(widest_line(table.out) <= 80);
  const Ran against = runs("replay a.pickle --against tiny-llama --zero-stage 2 --gpus 4");
  CHECK(against.code == 0);
  CHECK(widest_line(against.out) <= 80);
  CHECK(runs("replay a.pickle --against tiny-llama --zero-stage 1 --gpus 4").code == 4);
  const Ran json = runs("replay a.pickle --format json --against tiny-llama --zero-stage 2 --gpus 4");
  const Json report = Json::parse(json.out);
  check_schema(folder, "replay", json.out);
  CHECK(report.at("schema") == "dsplan.replay/1");
  CHECK(report.at("agrees") == true);
  CHECK(report.at("against").at(0).at("equal") == true);
  const Json prediction = Json::parse(runs("simulate tiny-llama --zero-stage 2 --gpus 4 --format json").out);
  CHECK(report["devices"][0]["peaks"]["reserved"] == prediction["memory"]["peak"]["reserved"]);
  CHECK(report["devices"][0]["peaks"]["requested"] == prediction["memory"]["peak"]["requested"]);

  // One graph for each length of a list.
  CHECK(runs("emit tiny-llama --seq-list 64,128 --format snapshot --out lengths.pickle").code == 0);
  CHECK(runs("replay lengths.pickle --against tiny-llama --seq-list 64,128").code == 0);
  CHECK(runs("replay lengths.pickle --against tiny-llama --seq-list 128,64").code == 4);

  std::filesystem::copy_file(kData + "run-moved.pickle", folder / "moved.pickle");
  const Ran moved = runs("replay moved.pickle");
  CHECK(moved.code == 4);
  CHECK(widest_line(moved.out) <= 80);
  spill(folder / "short.pickle", slurp(kData + "run-moved.pickle").substr(0, 100));
  CHECK(runs("replay short.pickle").code == 2);
  // The kind is known by content, not by name.
  std::filesystem::copy_file(kData + "run-protocol4.pickle", folder / "run.bin");
  CHECK(runs("replay run.bin").code == 0);

  const std::vector<std::pair<std::string, std::string>> kRefused = {
      {"emit tiny-llama --out x", "--format: error: is missing"},
      {"emit tiny-llama --format json --out x",
       "--format: error: no format \"json\" of emit; formats are deepspeed, accelerate, torchtitan, plan, launch, "
       "checkpointing, perfetto, html, svg, png, snapshot"},
      {"emit tiny-llama --format snapshot", "--out: error: is missing: a snapshot is binary"},
      {"emit t5-small --dtype fp16 --format snapshot --out x", "--format snapshot: error: needs a schedule"},
      {"emit tiny-llama --rank all --format snapshot --out x", "--rank: error: --format snapshot is of one rank"},
      {"replay a.pickle --format csv", "--format: error: no format \"csv\" of a snapshot's report"},
      {"replay a.pickle --against", "MODEL is missing"},
  };
  for (const auto& [line, expected] : kRefused) {
    CAPTURE(line);
    const Ran ran = runs(line);
    CHECK(ran.code == 2);
    CHECK_MESSAGE(ran.err.find(expected) != std::string::npos, ran.err);
    CHECK_FALSE(std::filesystem::exists(folder / "x"));
  }
}
