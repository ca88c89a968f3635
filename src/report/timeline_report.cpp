#include "report/timeline_report.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "core/format.h"
#include "io/json_text.h"

namespace dsplan {
namespace {

constexpr double kWidth = 1000;
constexpr double kHeight = 360;
constexpr std::size_t kColumns = 1000;
constexpr std::array<const char*, kRoles> kColours = {"#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951",
                                                      "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0"};

std::string in_html(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      default: safe += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return safe;
}

std::string spaced(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

// Of the points that fall into one column, the highest.
std::vector<TimelinePoint> thinned(const Timeline& timeline) {
  std::vector<TimelinePoint> columns;
  const std::size_t per_column = timeline.events / kColumns + 1;
  for (const TimelinePoint& point : timeline.points) {
    const bool same = !columns.empty() && columns.back().event / per_column == point.event / per_column;
    if (!same) {
      columns.push_back(point);
    } else if (point.by_role.total() >= columns.back().by_role.total()) {
      columns.back() = point;
    }
  }
  return columns;
}

class Picture {
 public:
  Picture(const Timeline& timeline, const Prediction& prediction)
      : timeline_(timeline), prediction_(prediction), points_(thinned(timeline)) {
    for (const TimelinePoint& point : points_) top_ = std::max({top_, point.reserved, point.by_role.total()});
  }

  std::string svg() {
    std::string text = formatted(R"(<svg viewBox="0 -20 {:.0f} {:.0f}" role="img" aria-label="Bytes over the schedule">
)",
                                 kWidth, kHeight + 40);
    add_bands(text);
    for (std::size_t i = kRoles; i-- > 0;) add_area(static_cast<Role>(i), text);
    add_reserved(text);
    add_peak(text);
    return text + "</svg>\n";
  }

 private:
  [[nodiscard]] double x(std::size_t event) const {
    return kWidth * static_cast<double>(event) / static_cast<double>(std::max<std::size_t>(timeline_.events, 1));
  }
  [[nodiscard]] double y(Bytes bytes) const {
    return kHeight *
           (1 - static_cast<double>(bytes.value()) / static_cast<double>(std::max<std::int64_t>(top_.value(), 1)));
  }

  void add_bands(std::string& text) const {
    for (const TimelineSlice& slice : timeline_.slices) {
      if (slice.kind != TimelineSlice::Kind::Phase) continue;
      append_formatted(text,
                       "<rect x=\"{0:.2f}\" y=\"0\" width=\"{1:.2f}\" height=\"{2:.0f}\" class=\"band\"/>"
                       "<text x=\"{3:.2f}\" y=\"-6\">{4}</text>\n",
                       x(slice.begin), x(slice.end) - x(slice.begin), kHeight, x(slice.begin) + 4, spaced(slice.name));
    }
  }

  // Levels hold until the next point: steps.
  template <class Level>
  std::string steps(Level&& level) const {
    std::string path = formatted("M0,{:.2f}", kHeight);
    double before = kHeight;
    for (const TimelinePoint& point : points_) {
      const double now = y(level(point));
      append_formatted(path, "L{0:.2f},{1:.2f}L{0:.2f},{2:.2f}", x(point.event), before, now);
      before = now;
    }
    return path + formatted("L{:.2f},{:.2f}", kWidth, before);
  }

  // Everything up to and with this role, so that the roles drawn later cover what is below.
  void add_area(Role role, std::string& text) const {
    const std::string path = steps([role](const TimelinePoint& point) {
      Bytes sum;
      for (std::size_t i = 0; i <= static_cast<std::size_t>(role); ++i) sum += point.by_role.bytes[i];
      return sum;
    });
    append_formatted(text, "<path fill=\"{}\" d=\"{}L{:.2f},{:.2f}Z\"><title>{}</title></path>\n",
                     kColours[static_cast<std::size_t>(role)], path, kWidth, kHeight, spaced(name(role)));
  }

  void add_reserved(std::string& text) const {
    append_formatted(text, "<path class=\"reserved\" d=\"{}\"><title>reserved</title></path>\n",
                     steps([](const TimelinePoint& point) { return point.reserved; }));
  }

  void add_peak(std::string& text) const {
    if (!prediction_.peak) return;
    const double at = x(prediction_.peak->event_index);
    append_formatted(text, "<line class=\"peak\" x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"0\" y2=\"{1:.0f}\"/>\n", at,
                     kHeight);
  }

  const Timeline& timeline_;
  const Prediction& prediction_;
  std::vector<TimelinePoint> points_;
  Bytes top_;
};

constexpr const char* kStyle = R"(<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 64em; padding: 0 1em; color: #222; background: #fff; }
table { border-collapse: collapse; margin: 1em 0; } td, th { padding: .2em .8em; text-align: right; }
td:first-child, th:first-child, td.text { text-align: left; } tr { border-bottom: 1px solid #ddd; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; } .band { fill: none; stroke: #bbb; }
.reserved { fill: none; stroke: #222; stroke-dasharray: 4 3; } .peak { stroke: #d00; }
.swatch { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
</style>
)";

std::string roles_table(const Prediction& p) {
  std::string text = "<table><tr><th>role</th><th>persistent</th><th>at the peak</th></tr>\n";
  const auto cell = [](std::optional<Bytes> bytes) { return bytes ? human(*bytes) : std::string("unknown"); };
  for (std::size_t i = 0; i < kRoles; ++i) {
    const auto role = static_cast<Role>(i);
    text +=
        formatted("<tr><td><span class=\"swatch\" style=\"background:{}\"></span>{}</td><td>{}</td><td>{}</td></tr>\n",
                  kColours[i], spaced(name(role)), human(p.persistent.by_role[role]),
                  cell(p.peak ? std::optional(p.peak->by_role[role]) : std::nullopt));
  }
  return text + formatted("<tr><td>total</td><td>{}</td><td>{}</td></tr></table>\n",
                          human(p.persistent.by_role.total()),
                          cell(p.peak ? std::optional(p.peak->requested) : std::nullopt));
}

std::string live_table(const Prediction& p) {
  if (!p.peak) return {};
  std::string text = formatted(
      "<h2>Alive at the peak</h2>\n<p>{} at event {}: {}.</p>\n<table><tr><th>what</th><th>where</th><th>role</th>"
      "<th>bytes</th><th>count</th></tr>\n",
      human(p.peak->requested), p.peak->event_index, in_html(p.peak->event));
  for (const LiveBuffer& buffer : p.peak->live) {
    text += formatted(
        "<tr><td>{}</td><td class=\"text\">{}</td><td class=\"text\">{}</td><td>{}</td><td>{}</td></tr>\n",
        in_html(buffer.name), in_html(buffer.module), spaced(name(buffer.role)), human(buffer.bytes), buffer.count);
  }
  return text + "</table>\n";
}

std::string phases_table(const Prediction& p) {
  std::string text =
      "<h2>Phases</h2>\n<table><tr><th>phase</th><th>requested</th><th>allocated</th><th>reserved</th></tr>\n";
  for (const Phase& phase : p.phases) {
    text += formatted("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n", spaced(phase.name),
                      human(phase.peak_requested), human(phase.peak_allocated), human(phase.peak_reserved));
  }
  return text + "</table>\n";
}

std::string traffic_table(const Prediction& p) {
  if (!p.communication || p.communication->empty()) return {};
  std::string text =
      "<h2>Traffic of one step</h2>\n<table><tr><th>collective</th><th>group</th><th>phase</th><th>calls</th>"
      "<th>payload</th><th>wire</th></tr>\n";
  for (const TrafficRow& row : *p.communication) {
    text += formatted("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                      spaced(name(row.collective)), name(row.group), name(row.phase), row.calls, human(row.payload),
                      human(row.wire));
  }
  return text + "</table>\n";
}

std::string head(const Prediction& p, const Job& job) {
  const Training& t = job.training;
  const std::string runtime =
      t.runtime == Runtime::DeepSpeed ? formatted("ZeRO stage {}", t.zero.stage) : std::string("PyTorch");
  return formatted(
      "<h1>{}: {}</h1>\n<p>{}, {} ranks (rank {} is shown), {}, {}, micro-batch {} x {}, seq {}, checkpointing {}, "
      "attention {}.</p>\n<p>{}</p>\n",
      in_html(p.model), spaced(name(p.verdict)), runtime, p.world, p.rank, name(t.dtype), in_html(optimizer_text(t)),
      t.micro_batch, t.grad_accum, t.seq, in_html(t.checkpoint.text), name(t.attention), in_html(p.verdict_reason));
}

}  // namespace

std::string html_page(const Timeline& timeline, const Prediction& prediction, const Job& job) {
  std::string text = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n";
  text += formatted("<title>dsplan: {}</title>\n", in_html(prediction.model));
  text += kStyle;
  text += "</head>\n<body>\n" + head(prediction, job);
  text +=
      "<h2>Bytes over the schedule</h2>\n<p>One step to the right is one event, not a time. Dashed: reserved. Red: "
      "the peak of requested bytes.</p>\n";
  text += Picture(timeline, prediction).svg();
  text += roles_table(prediction) + live_table(prediction) + phases_table(prediction) + traffic_table(prediction);
  text += formatted("<p>{} events, {}.</p>\n</body>\n</html>\n", timeline.events, in_html(prediction.fingerprint));
  return text;
}

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
