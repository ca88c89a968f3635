// Whether what a program's flat work reads fits what it writes.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "core/format.h"
#include "planner/lower/lower.h"

namespace fitting {

using namespace dsplan;

inline std::int64_t elements(const Schedule& schedule, const ByteRange& range, DType otherwise) {
  const DType dtype = range.buffer == kNoBuffer ? otherwise : schedule.buffers[range.buffer].dtype;
  return range.bytes.value() / bytes_per_element(dtype);
}

inline std::int64_t sum(const Schedule& schedule, std::span<const ByteRange> ranges, DType otherwise) {
  std::int64_t total = 0;
  for (const ByteRange& range : ranges) total += elements(schedule, range, otherwise);
  return total;
}

// What has no dtype of its own (a pool's, a slot's) is copied as it is.
inline bool is_raw(const Schedule& schedule, std::span<const ByteRange> ranges) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const ByteRange& range) {
    return range.buffer != kNoBuffer && schedule.buffers[range.buffer].dtype == DType::UInt8;
  });
}

inline std::int64_t bytes(std::span<const ByteRange> ranges) {
  std::int64_t total = 0;
  for (const ByteRange& range : ranges) total += range.bytes.value();
  return total;
}

inline bool same(const ByteRange& a, const ByteRange& b) {
  return a.buffer == b.buffer && a.offset == b.offset && a.bytes == b.bytes;
}

// What is read without being written too.
inline std::vector<ByteRange> read_alone(std::span<const ByteRange> reads, std::span<const ByteRange> writes) {
  std::vector<ByteRange> result;
  for (const ByteRange& range : reads) {
    if (std::none_of(writes.begin(), writes.end(), [&](const ByteRange& w) { return same(w, range); })) {
      result.push_back(range);
    }
  }
  return result;
}

// In words, what is wrong with a task; empty: nothing.
inline std::string fault_of(const Executable& plan, const Task& task) {
  const Schedule& schedule = plan.schedule;
  const std::span<const ByteRange> reads = plan.program.range(task.reads);
  const std::span<const ByteRange> writes = plan.program.range(task.writes);
  for (const auto& ranges : {reads, writes}) {
    for (const ByteRange& range : ranges) {
      if (range.buffer == kNoBuffer) continue;
      if (range.offset < Bytes(0) || range.offset + range.bytes > schedule.buffers[range.buffer].size) {
        return dsplan::formatted("{} leaves its buffer \"{}\"", name(task.body), schedule.buffers[range.buffer].label);
      }
    }
  }
  if (writes.empty()) return {};
  const DType dtype = schedule.buffers[writes.front().buffer].dtype;
  const std::int64_t written = sum(schedule, writes, dtype);
  if (task.body == Body::Copy) {
    const bool raw = is_raw(schedule, reads) || is_raw(schedule, writes);
    const std::int64_t from = raw ? bytes(reads) : sum(schedule, reads, dtype);
    const std::int64_t to = raw ? bytes(writes) : written;
    if (from > to) {
      return dsplan::formatted("a copy of {} {} into {} (\"{}\")", from, raw ? "bytes" : "elements", to,
                               schedule.buffers[writes.front().buffer].label);
    }
  }
  if (task.body == Body::Add && sum(schedule, read_alone(reads, writes), dtype) != written) {
    return dsplan::formatted("{} elements are added to {} (\"{}\")", sum(schedule, read_alone(reads, writes), dtype),
                             written, schedule.buffers[writes.front().buffer].label);
  }
  if (task.body != Body::Update) return {};
  std::int64_t targets = 0;
  for (std::size_t at = 0; at < writes.size(); at += task.part + 1U) targets += elements(schedule, writes[at], dtype);
  const std::int64_t gradients = sum(schedule, read_alone(reads, writes), DType::Float32);
  if (gradients == targets) return {};
  return dsplan::formatted("{} elements are updated with {} gradients", targets, gradients);
}

}  // namespace fitting
