#include "report/replay_report.h"

#include <algorithm>

#include "io/fields.h"

namespace dsplan {
namespace {

constexpr const char* kReplaySchema = "dsplan.replay/1";
constexpr const char* kExplainSchema = "dsplan.explain/1";

void describe_sizes(Fields& fields, const Key& key, SnapshotSizes& sizes) {
  fields.object(key, {"sizes"}, [&] {
    fields("allocated", sizes.allocated);
    fields("requested", sizes.requested);
    fields("active", sizes.active);
    fields("reserved", sizes.reserved);
  });
}

void describe(Fields& fields, DeviceReplay& device) {
  fields("device", device.device);
  fields.derived("agrees", !device.difference.has_value());
  fields("entries", device.entries);
  fields("allocations", device.allocations);
  fields("frees", device.frees);
  fields("segment_steps", device.segment_steps);
  fields("ooms", device.ooms);
  fields("releases", device.releases);
  fields("segments", device.segments);
  fields("blocks", device.blocks);
  describe_sizes(fields, "start", device.start);
  describe_sizes(fields, "end", device.end);
  describe_sizes(fields, "peaks", device.peaks);
  fields.object("difference", device.difference, {"a difference"}, [&](SnapshotDifference& difference) {
    fields("entry", difference.entry);
    fields("recorded", difference.recorded);
    fields("predicted", difference.predicted);
  });
}

void describe(Fields& fields, SnapshotComparison& comparison) {
  fields("device", comparison.device);
  fields.derived("equal", comparison.equal());
  fields.object("peaks", {"peaks"}, [&] {
    describe_sizes(fields, "recorded", comparison.recorded);
    describe_sizes(fields, "predicted", comparison.predicted);
  });
  fields.object("end", {"the end"}, [&] {
    describe_sizes(fields, "recorded", comparison.recorded_end);
    describe_sizes(fields, "predicted", comparison.predicted_end);
  });
  fields.object("segments", {"segments"}, [&] {
    fields("recorded", comparison.recorded_segments);
    fields("predicted", comparison.predicted_segments);
  });
}

void describe_replay(Fields& fields, std::vector<DeviceReplay>& devices, std::vector<SnapshotComparison>& comparisons) {
  fields.constant("schema", kReplaySchema);
  fields.derived("agrees", std::none_of(devices.begin(), devices.end(),
                                        [](const DeviceReplay& one) { return one.difference.has_value(); }));
  fields.list("devices", devices, {"a device"}, [&](DeviceReplay& device) { describe(fields, device); });
  fields.list(Key::if_there("against", !comparisons.empty()), comparisons, {"a comparison"},
              [&](SnapshotComparison& one) { describe(fields, one); });
}

void describe_size(Fields& fields, const char* key, bool there, std::optional<PrintedSize>& size) {
  Nested part{"a size"};
  part.nullable = true;
  part.there = size.has_value();
  PrintedSize none;
  fields.object(Key::if_there(key, there), part, [&] {
    PrintedSize& said = size ? *size : none;
    fields("text", said.text);
    fields("low", said.low);
    fields("high", said.high);
  });
}

// Of the two kinds of message each has sizes that the other has not.
void describe(Fields& fields, LogMessage& message) {
  const bool failed = message.kind == LogMessage::Kind::OutOfMemory;
  std::string kind = failed ? "out_of_memory" : "see_memory_usage";
  fields.word("kind", kind, {"out_of_memory", "see_memory_usage"});
  fields("line", message.line);
  fields("times", message.times);
  describe_size(fields, "request", failed, message.request);
  describe_size(fields, "capacity", failed, message.capacity);
  describe_size(fields, "free", failed, message.free);
  describe_size(fields, "process", failed, message.process);
  describe_size(fields, "unallocated", failed, message.unallocated);
  describe_size(fields, "private_pools", failed, message.pools);
  describe_size(fields, "allowed", failed, message.allowed);
  fields(Key::if_there("title", !failed), message.title);
  describe_size(fields, "peak_allocated", !failed, message.peak_allocated);
  describe_size(fields, "peak_reserved", !failed, message.peak_reserved);
  describe_size(fields, "allocated", true, message.allocated);
  describe_size(fields, "reserved", true, message.reserved);
}

void describe(Fields& fields, LogCandidate& candidate, bool failed) {
  fields("event", candidate.event);
  fields("moment", candidate.moment);
  fields("prints_the_same", candidate.prints_the_same);
  fields.texts("apart", candidate.apart, "what parts");
  fields("allocated", candidate.allocated);
  fields("reserved", candidate.reserved);
  fields(Key::if_there("request", failed), candidate.request);
  fields(Key::if_there("peak_allocated", !failed), candidate.peak_allocated);
  fields(Key::if_there("peak_reserved", !failed), candidate.peak_reserved);
  fields.list("live", candidate.live, {"a buffer"}, [&](LiveBuffer& buffer) {
    fields("name", buffer.name);
    fields("module", buffer.module);
    fields.derived("role", std::string(name(buffer.role)));
    fields("bytes", buffer.bytes);
    fields("count", buffer.count);
  });
}

void describe(Fields& fields, LogFinding& finding) {
  const bool failed = finding.message.kind == LogMessage::Kind::OutOfMemory;
  fields.object("message", {"a message"}, [&] { describe(fields, finding.message); });
  fields("matches", finding.matches);
  fields.list("candidates", finding.candidates, {"a candidate"},
              [&](LogCandidate& one) { describe(fields, one, failed); });
}

void describe(Fields& fields, Explanation& explanation) {
  fields.constant("schema", kExplainSchema);
  fields("fingerprint", explanation.fingerprint);
  fields("model", explanation.model);
  fields("rank", explanation.rank);
  fields.list("findings", explanation.findings, {"a finding"}, [&](LogFinding& one) { describe(fields, one); });
  fields("limit", explanation.limit);
  fields("limit_from", explanation.limit_from);
  fields.list("remedies", explanation.remedies, {"a remedy"}, [&](Remedy& remedy) {
    fields("change", remedy.change);
    fields.named("outcome", remedy.outcome, all_up_to(Remedy::Outcome::NotModelled));
    fields("peak_reserved", remedy.reserved);
    fields("note", remedy.note);
  });
}

}  // namespace

std::string replay_json(const std::vector<DeviceReplay>& devices, const std::vector<SnapshotComparison>& comparisons) {
  return written([&](Fields& fields) { describe_replay(fields, described(devices), described(comparisons)); });
}

std::string replay_schema() {
  return schema_of(kReplaySchema, "What `dsplan replay SNAPSHOT --format json` prints (docs/snapshots.md).",
                   [](Fields& fields) {
                     std::vector<DeviceReplay> devices;
                     std::vector<SnapshotComparison> comparisons;
                     describe_replay(fields, devices, comparisons);
                   });
}

std::string explanation_json(const Explanation& explanation) {
  return written([&](Fields& fields) { describe(fields, described(explanation)); });
}

std::string explanation_schema() {
  return schema_of(kExplainSchema, "What `dsplan explain MODEL --log FILE --format json` prints. Sizes are bytes.",
                   [](Fields& fields) {
                     Explanation any;
                     describe(fields, any);
                   });
}

}  // namespace dsplan
