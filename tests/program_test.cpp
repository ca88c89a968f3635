// Programs beside schedules: every piece of work has one task, in order; flat work reads as much as it writes; and
// recording changes no event.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lowered.h"
#include "planner/executable.h"

using namespace dsplan;

namespace {

std::int64_t elements(const Schedule& schedule, const ByteRange& range, DType otherwise) {
  const DType dtype = range.buffer == kNoBuffer ? otherwise : schedule.buffers[range.buffer].dtype;
  return range.bytes.value() / bytes_per_element(dtype);
}

std::int64_t sum(const Schedule& schedule, std::span<const ByteRange> ranges, DType otherwise) {
  std::int64_t total = 0;
  for (const ByteRange& range : ranges) total += elements(schedule, range, otherwise);
  return total;
}

bool same(const ByteRange& a, const ByteRange& b) {
  return a.buffer == b.buffer && a.offset == b.offset && a.bytes == b.bytes;
}

// What is read without being written too.
std::vector<ByteRange> read_alone(std::span<const ByteRange> reads, std::span<const ByteRange> writes) {
  std::vector<ByteRange> result;
  for (const ByteRange& range : reads) {
    if (std::none_of(writes.begin(), writes.end(), [&](const ByteRange& w) { return same(w, range); })) {
      result.push_back(range);
    }
  }
  return result;
}

// In words, what is wrong with a task; empty: nothing.
std::string fault_of(const Executable& plan, const Task& task) {
  const Schedule& schedule = plan.schedule;
  const std::span<const ByteRange> reads = plan.program.range(task.reads);
  const std::span<const ByteRange> writes = plan.program.range(task.writes);
  for (const auto& ranges : {reads, writes}) {
    for (const ByteRange& range : ranges) {
      if (range.buffer == kNoBuffer) continue;
      if (range.offset < Bytes(0) || range.offset + range.bytes > schedule.buffers[range.buffer].size) {
        return fmt::format("{} leaves its buffer \"{}\"", name(task.body), schedule.buffers[range.buffer].label);
      }
    }
  }
  if (writes.empty()) return {};
  const DType dtype = schedule.buffers[writes.front().buffer].dtype;
  const std::int64_t written = sum(schedule, writes, dtype);
  if (task.body == Body::Copy && sum(schedule, reads, dtype) > written) {
    return fmt::format("a copy of {} elements into {} (\"{}\")", sum(schedule, reads, dtype), written,
                       schedule.buffers[writes.front().buffer].label);
  }
  if (task.body == Body::Add && sum(schedule, read_alone(reads, writes), dtype) != written) {
    return fmt::format("{} elements are added to {} (\"{}\")", sum(schedule, read_alone(reads, writes), dtype), written,
                       schedule.buffers[writes.front().buffer].label);
  }
  if (task.body != Body::Update) return {};
  std::int64_t targets = 0;
  for (std::size_t at = 0; at < writes.size(); at += task.part + 1U) targets += elements(schedule, writes[at], dtype);
  const std::int64_t gradients = sum(schedule, read_alone(reads, writes), DType::Float32);
  if (gradients == targets) return {};
  return fmt::format("{} elements are updated with {} gradients", targets, gradients);
}

void check(const std::string& name, const Executable& plan, const Schedule& plain) {
  CAPTURE(name);
  REQUIRE(plan.schedule.events.size() == plain.events.size());
  REQUIRE(plan.schedule.buffers.size() == plain.buffers.size());
  std::size_t next = 0;
  std::set<std::string> faults;
  for (std::size_t at = 0; at < plan.schedule.events.size(); ++at) {
    const bool work = std::holds_alternative<Compute>(plan.schedule.events[at]) ||
                      std::holds_alternative<Communicate>(plan.schedule.events[at]);
    std::int64_t tasks = 0;
    for (; next < plan.program.tasks.size() && plan.program.tasks[next].event == at; ++next) {
      const Task& task = plan.program.tasks[next];
      const bool silent =
          task.body == Body::ForwardView || task.body == Body::BackwardView || task.body == Body::GradientReady;
      tasks += silent ? 0 : 1;
      if (const std::string fault = fault_of(plan, task); !fault.empty()) faults.insert(fault);
    }
    if (tasks != (work ? 1 : 0)) faults.insert(fmt::format("event {}: {} tasks", at, tasks));
  }
  CHECK(next == plan.program.tasks.size());
  for (const std::string& fault : faults) FAIL_CHECK(fault);
}

// Work that has no body yet, by the variants that do it: what `dsplan run` refuses.
using Unknown = std::map<std::string, std::set<std::string>>;

void check_variants(const ModelSpec& model, int stage, std::int64_t ranks, Unknown& unknown) {
  for (const lowered::Case& one : lowered::variants(stage, ranks, static_cast<std::int32_t>(model.dims.layers))) {
    const Shapes shapes = build_shapes(model, one.job);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const Executable plan = lower_to_execute(model, one.job, shapes, rank, one.job.training.steps());
      check(fmt::format("{} {} stage {} rank {}/{}", model.family, one.name, stage, rank, ranks), plan,
            lower(model, one.job, shapes, rank));
      for (const char* work : plan.program.unknown_work) unknown[work].insert(one.name);
    }
  }
}

}  // namespace

TEST_CASE("every variant's program fits its schedule") {
  const ModelSpec gpt2 = lowered::inlined("tiny-gpt2", R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
    "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 32, "vocab_size": 97})");
  const ModelSpec llama = lowered::inlined("tiny-llama", R"({"model_type": "llama",
    "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97})");
  Unknown unknown;
  for (int stage = -1; stage <= 3; ++stage) {
    for (std::int64_t ranks : {1, 2, 3}) {
      check_variants(gpt2, stage, ranks, unknown);
      check_variants(llama, stage, ranks, unknown);
    }
  }
  // fp16's moving loss scale, and Adafactor: refused by name where they are asked for.
  const std::set<std::string> refused = {"absolute gradients", "found inf",          "growth tracker",
                                         "loss scale",         "scaled loss",        "inverse of the loss scale",
                                         "root mean square",   "loss scale in fp64", "unscale gradients"};
  for (const auto& [work, variants] : unknown) {
    CAPTURE(fmt::format("{}", fmt::join(variants, ", ")));
    CHECK_MESSAGE(refused.contains(work), work);
  }
}
