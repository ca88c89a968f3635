#include "report/timeline_report.h"

#include <array>

#include "core/format.h"
#include "io/json_text.h"

namespace dsplan {
namespace {

using Kind = TimelineSlice::Kind;

struct Track {
  Kind kind;
  const char* name;
};
constexpr std::array kTracks = {Track{Kind::Phase, "phase"},    Track{Kind::Pass, "pass"},
                                Track{Kind::Module, "modules"}, Track{Kind::Recomputation, "recomputation"},
                                Track{Kind::Kernel, "kernels"}, Track{Kind::Collective, "collectives"}};

int track_of(Kind kind) { return static_cast<int>(kind) + 1; }

void add_names(const Prediction& prediction, std::string& text) {
  append_formatted(text, R"({{"ph":"M","pid":1,"name":"process_name","args":{{"name":{}}}}})",
                   json_text(formatted("{}, rank {} of {}", prediction.model, prediction.rank, prediction.world)));
  for (const Track& track : kTracks) {
    const int id = track_of(track.kind);
    append_formatted(
        text,
        ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{0},\"name\":\"thread_name\",\"args\":{{\"name\":\"{1}\"}}}}"
        ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{0},\"name\":\"thread_sort_index\",\"args\":{{\"sort_index\":{0}}}}}",
        id, track.name);
  }
}

void add_counters(const Timeline& timeline, std::string& text) {
  for (const TimelinePoint& point : timeline.points) {
    append_formatted(text, ",\n{{\"ph\":\"C\",\"pid\":1,\"ts\":{},\"name\":\"requested bytes\",\"args\":{{",
                     point.event);
    for (std::size_t i = 0; i < kRoles; ++i) {
      const auto role = static_cast<Role>(i);
      append_formatted(text, "{}\"{}\":{}", i == 0 ? "" : ",", name(role), point.by_role[role].value());
    }
    text += "}}";
    for (const auto& [what, bytes] : {std::pair{"allocated", point.allocated}, std::pair{"reserved", point.reserved}}) {
      append_formatted(text, ",\n{{\"ph\":\"C\",\"pid\":1,\"ts\":{},\"name\":\"{} bytes\",\"args\":{{\"bytes\":{}}}}}",
                       point.event, what, bytes.value());
    }
  }
}

}  // namespace

std::string perfetto_json(const Timeline& timeline, const Prediction& prediction) {
  std::string text = "{\"traceEvents\":[\n";
  add_names(prediction, text);
  add_counters(timeline, text);
  for (const TimelineSlice& slice : timeline.slices) {
    append_formatted(text, ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{},\"dur\":{},\"name\":{}}}",
                     track_of(slice.kind), slice.begin, slice.end - slice.begin, json_text(slice.name));
  }
  text += formatted(
      "\n],\n\"displayTimeUnit\":\"ns\",\n\"otherData\":{{\"schema\":\"dsplan.trace/1\",\"fingerprint\":{},"
      "\"axis\":\"one microsecond is one event of the schedule\"}}}}\n",
      json_text(prediction.fingerprint));
  return text;
}

}  // namespace dsplan
