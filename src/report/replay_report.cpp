#include "report/replay_report.h"

#include "io/json_text.h"

namespace dsplan {
namespace {

Json value_of(const SnapshotSizes& sizes) {
  return {{"allocated", sizes.allocated.value()},
          {"requested", sizes.requested.value()},
          {"active", sizes.active.value()},
          {"reserved", sizes.reserved.value()}};
}

Json value_of(const std::optional<SnapshotDifference>& difference) {
  if (!difference) return nullptr;
  return {{"entry", difference->entry}, {"recorded", difference->recorded}, {"predicted", difference->predicted}};
}

Json value_of(const DeviceReplay& device) {
  return {{"device", device.device},
          {"agrees", !device.difference},
          {"entries", device.entries},
          {"allocations", device.allocations},
          {"frees", device.frees},
          {"segment_steps", device.segment_steps},
          {"ooms", device.ooms},
          {"releases", device.releases},
          {"segments", device.segments},
          {"blocks", device.blocks},
          {"start", value_of(device.start)},
          {"end", value_of(device.end)},
          {"peaks", value_of(device.peaks)},
          {"difference", value_of(device.difference)}};
}

Json value_of(const SnapshotComparison& comparison) {
  return {{"device", comparison.device},
          {"equal", comparison.equal()},
          {"peaks", {{"recorded", value_of(comparison.recorded)}, {"predicted", value_of(comparison.predicted)}}},
          {"end", {{"recorded", value_of(comparison.recorded_end)}, {"predicted", value_of(comparison.predicted_end)}}},
          {"segments", {{"recorded", comparison.recorded_segments}, {"predicted", comparison.predicted_segments}}}};
}

Json value_of(const std::optional<PrintedSize>& size) {
  if (!size) return nullptr;
  return {{"text", size->text}, {"low", size->low.value()}, {"high", size->high.value()}};
}

Json value_of(const LogMessage& message) {
  const bool failed = message.kind == LogMessage::Kind::OutOfMemory;
  Json value = {
      {"kind", failed ? "out_of_memory" : "see_memory_usage"}, {"line", message.line}, {"times", message.times}};
  if (failed) {
    value.set("request", value_of(message.request));
    value.set("capacity", value_of(message.capacity));
    value.set("free", value_of(message.free));
    value.set("process", value_of(message.process));
    value.set("unallocated", value_of(message.unallocated));
    value.set("private_pools", value_of(message.pools));
    value.set("allowed", value_of(message.allowed));
  } else {
    value.set("title", message.title);
    value.set("peak_allocated", value_of(message.peak_allocated));
    value.set("peak_reserved", value_of(message.peak_reserved));
  }
  value.set("allocated", value_of(message.allocated));
  value.set("reserved", value_of(message.reserved));
  return value;
}

Json value_of(const LogCandidate& candidate, bool failed) {
  Json live = Json::array();
  for (const LiveBuffer& buffer : candidate.live) {
    live.push_back({{"name", buffer.name},
                    {"module", buffer.module},
                    {"role", name(buffer.role)},
                    {"bytes", buffer.bytes.value()},
                    {"count", buffer.count}});
  }
  Json value = {{"event", candidate.event},
                {"moment", candidate.moment},
                {"prints_the_same", candidate.prints_the_same},
                {"apart", candidate.apart},
                {"allocated", candidate.allocated.value()},
                {"reserved", candidate.reserved.value()}};
  if (failed) {
    value.set("request", candidate.request.value());
  } else {
    value.set("peak_allocated", candidate.peak_allocated.value());
    value.set("peak_reserved", candidate.peak_reserved.value());
  }
  value.set("live", std::move(live));
  return value;
}

}  // namespace

std::string replay_json(const std::vector<DeviceReplay>& devices, const std::vector<SnapshotComparison>& comparisons) {
  bool agrees = true;
  Json list = Json::array();
  for (const DeviceReplay& device : devices) {
    agrees = agrees && !device.difference;
    list.push_back(value_of(device));
  }
  Json report = {{"schema", "dsplan.replay/1"}, {"agrees", agrees}, {"devices", std::move(list)}};
  if (!comparisons.empty()) {
    Json beside = Json::array();
    for (const SnapshotComparison& comparison : comparisons) beside.push_back(value_of(comparison));
    report.set("against", std::move(beside));
  }
  return json_text(report, 2) + "\n";
}

std::string explanation_json(const Explanation& explanation) {
  Json findings = Json::array();
  for (const LogFinding& finding : explanation.findings) {
    Json candidates = Json::array();
    const bool failed = finding.message.kind == LogMessage::Kind::OutOfMemory;
    for (const LogCandidate& candidate : finding.candidates) candidates.push_back(value_of(candidate, failed));
    findings.push_back(
        {{"message", value_of(finding.message)}, {"matches", finding.matches}, {"candidates", std::move(candidates)}});
  }
  Json remedies = Json::array();
  for (const Remedy& remedy : explanation.remedies) {
    remedies.push_back({{"change", remedy.change},
                        {"outcome", name(remedy.outcome)},
                        {"peak_reserved", remedy.reserved},
                        {"note", remedy.note}});
  }
  const Json report = {{"schema", "dsplan.explain/1"},         {"fingerprint", explanation.fingerprint},
                       {"model", explanation.model},           {"rank", explanation.rank},
                       {"findings", std::move(findings)},      {"limit", explanation.limit},
                       {"limit_from", explanation.limit_from}, {"remedies", std::move(remedies)}};
  return json_text(report, 2) + "\n";
}

}  // namespace dsplan
