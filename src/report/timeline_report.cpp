#include "report/timeline_report.h"

#include <array>

#include "core/format.h"
#include "io/json_text.h"

namespace dsplan {
namespace {

using Kind = TimelineSlice::Kind;

// What lies on one line of the picture.
struct Track {
  Kind kind;
  StreamId stream;
  const char* name;
};
constexpr std::array kTracks = {Track{Kind::Phase, kComputeStream, "phase"},
                                Track{Kind::Pass, kComputeStream, "pass"},
                                Track{Kind::Module, kComputeStream, "modules"},
                                Track{Kind::Recomputation, kComputeStream, "recomputation"},
                                Track{Kind::Kernel, kComputeStream, "kernels"},
                                Track{Kind::Collective, kComputeStream, "collectives"},
                                Track{Kind::Kernel, kGatherStream, "kernels, gather stream"},
                                Track{Kind::Collective, kGatherStream, "collectives, gather stream"},
                                Track{Kind::Kernel, kReduceStream, "kernels, reduce stream"},
                                Track{Kind::Collective, kReduceStream, "collectives, reduce stream"},
                                Track{Kind::Kernel, kCopyStream, "copies to the host"},
                                Track{Kind::Kernel, kCopyInStream, "copies into what is gathered"},
                                Track{Kind::Collective, kReplicaStream, "collectives, replicas"},
                                Track{Kind::Kernel, kReplicaStream, "kernels, replicas"}};

std::size_t track_of(const TimelineSlice& slice) {
  std::size_t place = kTracks.size();
  for (std::size_t i = 0; i < kTracks.size(); ++i) {
    if (kTracks[i].kind != slice.kind) continue;
    if (kTracks[i].stream == slice.stream) return i + 1;
    if (place == kTracks.size()) place = i;
  }
  return place + 1;
}

// Perfetto's microseconds: estimated ones, else the number of the event.
class TraceAxis {
 public:
  explicit TraceAxis(const Timeline& timeline) : clock_(timeline.clock) {}

  [[nodiscard]] std::string at(std::size_t event) const {
    return clock_ ? microseconds(clock_->at[event]) : std::to_string(event);
  }
  [[nodiscard]] std::string begin(const TimelineSlice& slice) const {
    return clock_ && launched(slice) ? microseconds(clock_->begins[slice.begin]) : at(slice.begin);
  }
  [[nodiscard]] std::string length(const TimelineSlice& slice) const {
    if (!clock_) return std::to_string(slice.end - slice.begin);
    if (launched(slice)) return microseconds(clock_->ends[slice.begin] - clock_->begins[slice.begin]);
    return microseconds(clock_->at[slice.end] - clock_->at[slice.begin]);
  }
  [[nodiscard]] const char* words() const {
    return clock_ ? "estimated microseconds (docs/time.md); the first step is drawn as each later one"
                  : "one microsecond is one event of the schedule";
  }

 private:
  static bool launched(const TimelineSlice& slice) {
    return slice.kind == Kind::Kernel || slice.kind == Kind::Collective;
  }
  static std::string microseconds(double seconds) { return formatted("{:.3f}", seconds * 1e6); }

  const std::optional<Clock>& clock_;
};

void add_names(const Timeline& timeline, const Prediction& prediction, std::string& text) {
  append_formatted(text, R"({{"ph":"M","pid":1,"name":"process_name","args":{{"name":{}}}}})",
                   json_text(formatted("{}, rank {} of {}", prediction.model, prediction.rank, prediction.world)));
  std::array<bool, kTracks.size() + 1> used{};
  for (const TimelineSlice& slice : timeline.slices) used[track_of(slice)] = true;
  for (std::size_t id = 1; id <= kTracks.size(); ++id) {
    if (!used[id]) continue;
    append_formatted(
        text,
        ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{0},\"name\":\"thread_name\",\"args\":{{\"name\":\"{1}\"}}}}"
        ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{0},\"name\":\"thread_sort_index\",\"args\":{{\"sort_index\":{0}}}}}",
        id, kTracks[id - 1].name);
  }
}

void add_counters(const Timeline& timeline, const TraceAxis& axis, std::string& text) {
  for (const TimelinePoint& point : timeline.points) {
    append_formatted(text, ",\n{{\"ph\":\"C\",\"pid\":1,\"ts\":{},\"name\":\"requested bytes\",\"args\":{{",
                     axis.at(point.event));
    for (std::size_t i = 0; i < kRoles; ++i) {
      const auto role = static_cast<Role>(i);
      append_formatted(text, "{}\"{}\":{}", i == 0 ? "" : ",", name(role), point.by_role[role].value());
    }
    text += "}}";
    for (const auto& [what, bytes] : {std::pair{"allocated", point.allocated}, std::pair{"reserved", point.reserved}}) {
      append_formatted(text, ",\n{{\"ph\":\"C\",\"pid\":1,\"ts\":{},\"name\":\"{} bytes\",\"args\":{{\"bytes\":{}}}}}",
                       axis.at(point.event), what, bytes.value());
    }
  }
}

}  // namespace

std::string perfetto_json(const Timeline& timeline, const Prediction& prediction) {
  const TraceAxis axis(timeline);
  std::string text = "{\"traceEvents\":[\n";
  add_names(timeline, prediction, text);
  add_counters(timeline, axis, text);
  for (const TimelineSlice& slice : timeline.slices) {
    append_formatted(text, ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{},\"dur\":{},\"name\":{}}}", track_of(slice),
                     axis.begin(slice), axis.length(slice), json_text(slice.name));
  }
  text += formatted(
      "\n],\n\"displayTimeUnit\":\"{}\",\n\"otherData\":{{\"schema\":\"dsplan.trace/1\",\"fingerprint\":{},"
      "\"axis\":\"{}\"}}}}\n",
      timeline.clock ? "ms" : "ns", json_text(prediction.fingerprint), axis.words());
  return text;
}

}  // namespace dsplan
