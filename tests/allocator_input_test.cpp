// What reaches the allocator from outside: trace files, and PYTORCH_CUDA_ALLOC_CONF.
#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "core/allocator_config.h"
#include "core/error.h"
#include "io/allocator_trace.h"
#include "sim/allocator_replay.h"

using namespace dsplan;

namespace {

std::string replay_text(const std::string& text) { return replay_csv(read_allocator_trace("t.trace", text)); }

std::string refusal_of(const std::string& text) {
  try {
    (void)replay_text(text);
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "";
}

AllocatorConfig conf(const std::string& text) { return parse_allocator_conf(text, "--alloc-conf"); }

}  // namespace

TEST_CASE("replay refuses what no program can do, with place and caret, and prints no rows") {
  struct Case {
    const char* text;
    const char* place;
    const char* message;
  };
  const Case cases[] = {
      {"alloc 1 512 0\nfree 1\nfree 1\n", "t.trace:3:6:", "already freed"},
      {"alloc 1 512 0\n  free 2\n", "t.trace:2:8:", "never allocated"},
      {"alloc 1 512 0\nalloc 1 512 0\n", "t.trace:2:7:", "live"},
      {"record_stream 7 1\n", "t.trace:1:15:", "never allocated"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.text);
    const std::string refusal = refusal_of(each.text);
    CHECK(refusal.find(each.place) == 0);
    CHECK(refusal.find(each.message) != std::string::npos);
    CHECK(refusal.find('^') != std::string::npos);
  }
}

TEST_CASE("an ID whose allocation failed holds nothing: free and record_stream print a row and do nothing") {
  const std::string header = "allocated,requested,active,reserved,inactive_split,segments,retries,ooms\n";
  const std::string failed = "0,0,0,0,0,0,1,1\n";
  CHECK(replay_text("capacity 1\nalloc 1 512 0\nfree 1\nrecord_stream 1 3\nfree 1\n") ==
        header + failed + failed + failed + failed);
  // It is unused, so it can be allocated again; and a freed ID can be recorded, and reused.
  CHECK(replay_text("capacity 2097152\nalloc 1 9999999 0\nalloc 1 512 0\n") ==
        header + failed + "512,512,512,2097152,2096640,1,1,1\n");
  const std::string one = "512,512,512,2097152,2096640,1,0,0\n";
  const std::string none = "0,0,0,2097152,0,1,0,0\n";
  CHECK(replay_text("alloc 1 512 0\nfree 1\nrecord_stream 1 9\nalloc 1 512 0\n") == header + one + none + none + one);
  // 0 bytes hold nothing either; above 2^60 nothing is even tried.
  CHECK(replay_text("alloc 1 0 0\nfree 1\n") == header + "0,0,0,0,0,0,0,0\n0,0,0,0,0,0,0,0\n");
  CHECK(replay_text("alloc 1 1152921504606846977 0\n") == header + "0,0,0,0,0,0,0,1\n");
}

TEST_CASE("a trace's faults are reported with line, column and caret, several at once") {
  struct Case {
    const char* text;
    const char* place;
    const char* message;
  };
  const Case cases[] = {
      {"aloc 1 2 3\n", ":1:1:", "did you mean \"alloc\"?"},
      {"xyzzy\n", ":1:1:", "unknown call"},
      {"alloc 1 512\n", ":1:12:", "alloc ID BYTES STREAM"},
      {"free 1 2\n", ":1:8:", "free ID"},
      {"\n\nempty_cache now\n", ":3:13:", "empty_cache"},
      {"alloc -1 512 0\n", ":1:7:", "whole number"},
      {"alloc 1 51x 0\n", ":1:9:", "whole number"},
      {"alloc 1 9223372036854775808 0\n", ":1:9:", "63 bits"},
      {"capacity 0\n", ":1:10:", "at least 1"},
      {"fraction 1.5\n", ":1:10:", "0 to 1"},
      {"fraction nan\n", ":1:10:", "0 to 1"},
      {"events_ready 2\n", ":1:14:", "0 or 1"},
      {"conf\n", ":1:5:", "conf KEY:VALUE"},
      {"conf max_split_size_mb:20\n", ":1:24:", "more than 20"},
      {"conf max_split_size_mb: 64, nonsense:1\n", ":1:29:", "nonsense"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.text);
    const std::string refusal = refusal_of(each.text);
    CAPTURE(refusal);
    CHECK(refusal.find(std::string("t.trace") + each.place) == 0);
    CHECK(refusal.find(each.message) != std::string::npos);
  }
  CHECK(refusal_of("conf " + std::string(200'000, '[')).find("131072") != std::string::npos);
  const std::string both = refusal_of("free x\nfree y\n");
  CHECK(both.find("t.trace:1:6:") != std::string::npos);
  CHECK(both.find("t.trace:2:6:") != std::string::npos);
  std::string streams;
  for (int at = 0; at <= 1024; ++at) streams += "record_stream 1 " + std::to_string(at) + "\n";
  CHECK(refusal_of(streams).find("more than 1024 streams") != std::string::npos);
}

TEST_CASE("allocator conf: what PyTorch reads") {
  CHECK(conf("") == AllocatorConfig{});
  CHECK(conf("max_split_size_mb:21").max_split_size == Bytes(21 << 20));
  CHECK(conf(" max_split_size_mb : 128 ,").max_split_size == Bytes(128 << 20));
  CHECK(conf("max_non_split_rounding_mb:100").max_non_split_rounding == Bytes(100 << 20));
  CHECK(conf("garbage_collection_threshold:0.8").garbage_collection_threshold == 0.8);
  CHECK(conf("expandable_segments:True").expandable_segments);
  CHECK_FALSE(conf("expandable_segments:True,expandable_segments:False").expandable_segments);
  CHECK(conf("large_segment_size_mb:12").large_segment_size == Bytes(12 << 20));
  CHECK(conf("per_process_memory_fraction:0.5").memory_fraction == 0.5);
  CHECK(conf("backend:native,release_lock_on_cudamalloc:True,pinned_num_register_threads:8") == AllocatorConfig{});
  CHECK(conf("roundup_power2_divisions:8").roundup_power2_divisions[15] == 8);
  const auto list = conf("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]").roundup_power2_divisions;
  CHECK(list[0] == 1);
  CHECK(list[8] == 1);
  CHECK(list[9] == 2);
  CHECK(list[10] == 8);  // '>' starts at the last key's own entry.
  CHECK(list[15] == 8);
  const auto gaps = conf("roundup_power2_divisions:[64:4,1024:2]").roundup_power2_divisions;
  CHECK(gaps[5] == 4);
  CHECK(gaps[7] == 0);
  CHECK(gaps[10] == 2);
  CHECK(gaps[11] == 0);
}

TEST_CASE("allocator conf: what is refused, and where") {
  const std::pair<const char*, std::size_t> cases[] = {
      {"max_split_size_mb:20", 19},
      {"max_split_size_mb:", 19},
      {"max_split_size_mb", 18},
      {"max_split_size_mb:64mb", 19},
      {"max_split_size_mb:-64", 19},
      {"max_split_size_mb:99999999999", 19},
      {"max_non_split_rounding_mb:20", 27},
      {"large_segment_size_mb:10", 23},
      {"garbage_collection_threshold:0", 30},
      {"garbage_collection_threshold:1", 30},
      {"garbage_collection_threshold:nan", 30},
      {"per_process_memory_fraction:1.5", 29},
      {"expandable_segments:true", 21},
      {"roundup_power2_divisions:3", 26},
      {"roundup_power2_divisions:0", 26},
      {"roundup_power2_divisions:[256:3]", 31},
      {"roundup_power2_divisions:[300:2]", 27},
      {"roundup_power2_divisions:[256:2", 32},
      {"backend:cudaMallocAsync", 9},
      {"backend:other", 9},
      {"pinned_num_register_threads:256", 29},
      {"expandable_segmants:True", 1},
      {"expandable_segments:True,,backend:native", 26},
      {"expandable_segments:True backend:native", 21},
  };
  for (const auto& [text, column] : cases) {
    CAPTURE(text);
    try {
      (void)conf(text);
      FAIL("accepted");
    } catch (const Refusal& refusal) {
      CAPTURE(refusal.what());
      CHECK(refusal.diagnostics().front().column == column);
    }
  }
}

namespace {

// What PyTorch itself answers: 2.11.0 was asked, each conf in a process of its own, by
// torch._C._accelerator_setAllocatorSettings; the others follow from the strings of their libraries and, for 2.6, from
// its source.
struct Asked {
  const char* text;
  const char* torch;
  bool accepted;
};

constexpr Asked kAsked[] = {
    {"max_split_size_mb:20", "2.11", true},
    {"max_split_size_mb:19", "2.11", false},
    {"max_split_size_mb:20", "2.10", true},
    {"max_split_size_mb:20", "2.9", false},
    {"max_split_size_mb:20", "2.6", false},
    {"max_split_size_mb:15,large_segment_size_mb:11", "2.11", true},
    {"large_segment_size_mb:11,max_split_size_mb:15", "2.11", true},
    {"max_split_size_mb:30,large_segment_size_mb:40", "2.11", false},
    {"large_segment_size_mb:40,max_non_split_rounding_mb:30", "2.11", false},
    {"max_non_split_rounding_mb:15,large_segment_size_mb:11", "2.11", true},
    {"max_split_size_mb:99999999999", "2.11", true},
    {"max_split_size_mb:99999999999", "2.9", false},
    {"max_split_size_mb:[30]", "2.11", false},
    {"max_split_size_mb:", "2.11", false},
    {"max_split_size_mb:21,", "2.11", true},
    {"max_split_size_mb:21,,expandable_segments:True", "2.11", false},
    {"max_split_size_mb:\t30", "2.11", true},
    {"max_split_size_mb:\t30", "2.6", false},
    {"large_segment_size_mb:11", "2.11", true},
    {"large_segment_size_mb:10", "2.11", false},
    {"large_segment_size_mb:40", "2.10", false},
    {"per_process_memory_fraction:0", "2.11", true},
    {"per_process_memory_fraction:1.5", "2.11", false},
    {"per_process_memory_fraction:0.5", "2.10", true},
    {"per_process_memory_fraction:0.5", "2.9", false},
    {"graph_capture_record_stream_reuse:True", "2.9", true},
    {"graph_capture_record_stream_reuse:True", "2.8", false},
    {"pinned_reserve_segment_size_mb:16", "2.10", true},
    {"pinned_reserve_segment_size_mb:0", "2.11", false},
    {"pinned_reserve_segment_size_mb:16", "2.9", false},
    {"throw_on_cudamalloc_oom:True", "2.11", false},
    {"pinned_free_catch_all:True", "2.11", false},
    {"throw_on_cudamalloc_oom:True", "2.12", true},
    {"garbage_collection_threshold:0", "2.11", false},
    {"garbage_collection_threshold:0.5", "2.11", true},
    {"roundup_power2_divisions:0", "2.11", false},
    {"roundup_power2_divisions:[256:0]", "2.11", true},
    {"roundup_power2_divisions:[256:1,]", "2.11", true},
    {"roundup_power2_divisions:[>:8]", "2.11", true},
    {"roundup_power2_divisions:[3:1]", "2.11", false},
    {"roundup_power2_divisions:[256:1", "2.11", false},
    {"expandable_segments:true", "2.11", false},
    {"release_lock_on_hipmalloc:True", "2.11", true},
    {"pinned_num_register_threads:256", "2.11", false},
    {"pinned_max_power2_size_mb:16", "2.11", false},
    {",", "2.11", false},
    {"", "2.11", true},
};

}  // namespace

TEST_CASE("a conf is judged by the rules of its version") {
  for (const Asked& asked : kAsked) {
    CAPTURE(asked.text);
    CAPTURE(asked.torch);
    AllocatorConfig config;
    const auto fault = apply_allocator_conf(asked.text, config, Version::parse(asked.torch));
    CAPTURE((fault ? fault->message : "accepted"));
    CHECK(fault.has_value() != asked.accepted);
  }
}

TEST_CASE("setting the conf again resets three keys and keeps the others") {
  AllocatorConfig config = conf(
      "max_split_size_mb:64,max_non_split_rounding_mb:30,garbage_collection_threshold:0.5,"
      "roundup_power2_divisions:4,expandable_segments:True");
  CHECK(apply_allocator_conf("max_split_size_mb:20", config).has_value());
  CHECK(config.max_split_size == Bytes(64 << 20));  // A fault leaves everything.
  CHECK_FALSE(apply_allocator_conf("", config).has_value());
  CHECK(config.max_split_size == Bytes(AllocatorConfig::kNoSplitLimit));
  CHECK(config.garbage_collection_threshold == 0);
  CHECK(config.roundup_power2_divisions[3] == 0);
  CHECK(config.max_non_split_rounding == Bytes(30 << 20));
  CHECK(config.expandable_segments);
}
