#include "report/page/slide.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/format.h"
#include "report/cells.h"
#include "report/page/markup.h"
#include "report/page_parts.h"

namespace dsplan {
namespace {

using detail::spaced;

constexpr double kLeft = 90, kTop = 150, kWide = 1150, kHigh = 480;
constexpr std::size_t kColumns = 1150;

// Of the page's light style: "--bad: #c81e2b;".
std::string colour(std::string_view variable) {
  const std::string key = formatted("--{}: ", variable);
  const std::size_t at = kPageStyle.find(key) + key.size();
  return std::string(kPageStyle.substr(at, kPageStyle.find(';', at) - at));
}

std::string written(double x, double y, std::string_view text, std::string_view more) {
  return formatted("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, more, in_html(text));
}

// From events to the picture's columns, and from bytes to its rows.
class Frame {
 public:
  explicit Frame(const PageInput& input) : timeline_(input.timeline) {
    const bool timed = timeline_.clock && timeline_.clock->at.back() > 0;
    extent_ = timed ? timeline_.clock->at.back() : static_cast<double>(std::max<std::size_t>(1, timeline_.events));
    timed_ = timed;
    Bytes most(1);
    for (const TimelinePoint& point : timeline_.points) most = std::max(most, point.by_role.total());
    if (input.limit) most = std::max(most, std::min(*input.limit, most + most));
    top_ = 1.06 * static_cast<double>(most.value());
  }
  [[nodiscard]] bool timed() const { return timed_; }
  [[nodiscard]] double extent() const { return extent_; }
  [[nodiscard]] double top() const { return top_; }
  [[nodiscard]] double x(std::size_t event) const {
    return kLeft + kWide * (timed_ ? timeline_.clock->at[event] : static_cast<double>(event)) / extent_;
  }
  [[nodiscard]] double y(double bytes) const { return kTop + kHigh * (1 - bytes / top_); }
  [[nodiscard]] double y(Bytes bytes) const { return y(static_cast<double>(bytes.value())); }
  [[nodiscard]] bool shows(Bytes bytes) const { return static_cast<double>(bytes.value()) <= top_; }

 private:
  const Timeline& timeline_;
  bool timed_ = false;
  double extent_ = 1;
  double top_ = 1;
};

// For each column the highest of its moments, or what held when it began.
std::vector<ByRole> columns_of(const Timeline& timeline, const Frame& frame) {
  std::vector<ByRole> columns(kColumns);
  ByRole now;
  std::size_t next = 0;
  for (std::size_t column = 0; column < kColumns; ++column) {
    columns[column] = now;
    const double end = kLeft + kWide * static_cast<double>(column + 1) / kColumns;
    for (; next < timeline.points.size() && frame.x(timeline.points[next].event) < end; ++next) {
      now = timeline.points[next].by_role;
      if (now.total() > columns[column].total()) columns[column] = now;
    }
  }
  return columns;
}

std::string areas(const std::vector<ByRole>& columns, const Frame& frame) {
  std::string text;
  std::vector<Bytes> base(kColumns);
  for (std::size_t role = 0; role < kRoles; ++role) {
    std::string there, back;
    bool any = false;
    for (std::size_t column = 0; column < kColumns; ++column) {
      const Bytes below = base[column];
      base[column] += columns[column].bytes[role];
      any = any || base[column] > below;
      const double x = kLeft + static_cast<double>(column);
      append_formatted(there, "{}{:.0f} {:.1f}H{:.0f}", column == 0 ? "M" : "L", x, frame.y(base[column]), x + 1);
      back.insert(0, formatted("L{:.0f} {:.1f}H{:.0f}", x + 1, frame.y(below), x));
    }
    if (!any) continue;
    text += formatted("<path fill=\"{}\" d=\"{}{}Z\"><title>{}</title></path>\n", colour(formatted("c{}", role)), there,
                      back, spaced(name(static_cast<Role>(role))));
  }
  return text;
}

// Sizes at the left, phases above, times below.
std::string axes(const PageInput& input, const Frame& frame) {
  const std::string soft = colour("soft"), line = colour("line");
  std::string text;
  double apart = std::exp2(std::floor(std::log2(frame.top() / 5)));
  if (frame.top() / apart > 7.5) apart *= 2;
  for (double at = 0; at <= frame.top(); at += apart) {
    text += formatted("<path d=\"M{} {:.1f}h{}\" stroke=\"{}\"/>\n", kLeft, frame.y(at), kWide, line);
    text += written(kLeft - 10, frame.y(at) + 5, human(Bytes(static_cast<std::int64_t>(at))),
                    formatted("text-anchor=\"end\" fill=\"{}\"", soft));
  }
  double free = 0;
  for (const TimelineSlice& slice : input.timeline.slices) {
    if (slice.kind != TimelineSlice::Kind::Phase) continue;
    const double x = frame.x(slice.begin);
    text += formatted("<path d=\"M{:.1f} {}V{}\" stroke=\"{}\" stroke-dasharray=\"2 4\"/>\n", x, kTop - 14,
                      kTop + kHigh, soft);
    if (x < free) continue;
    text += written(x + 5, kTop - 6, spaced(slice.name), formatted("fill=\"{}\"", soft));
    free = x + 90;
  }
  const std::string unit = frame.timed() ? formatted("estimated time, {:.2f} s in all", frame.extent())
                                         : formatted("{} events in order", grouped(std::llround(frame.extent())));
  return text + written(kLeft + kWide, kTop + kHigh + 24, unit, formatted("text-anchor=\"end\" fill=\"{}\"", soft));
}

std::string limit_line(const PageInput& input, const Frame& frame) {
  const std::string bad = colour("bad");
  std::string text;
  if (!input.limit || !frame.shows(*input.limit)) return text;
  const double y = frame.y(*input.limit);
  text += formatted("<path d=\"M{} {:.1f}h{}\" stroke=\"{}\" stroke-width=\"2\"/>\n", kLeft, y, kWide, bad);
  text += written(kLeft + 6, y - 7, "may reserve " + human(*input.limit), formatted("fill=\"{}\"", bad));
  if (input.over) {
    const double x = frame.x(*input.over);
    const bool right = x > kLeft + .8 * kWide;
    text += formatted("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"7\" fill=\"{}\"/>\n", x, y, bad);
    text += written(x + (right ? -12 : 12), y + 20, "out of memory",
                    formatted("fill=\"{}\" font-weight=\"bold\" text-anchor=\"{}\"", bad, right ? "end" : "start"));
  }
  return text;
}

std::string keys(const std::vector<ByRole>& columns) {
  std::string text;
  double x = kLeft;
  for (std::size_t role = 0; role < kRoles; ++role) {
    const bool any = std::any_of(columns.begin(), columns.end(),
                                 [role](const ByRole& column) { return column.bytes[role] > Bytes(0); });
    if (!any) continue;
    const std::string word = spaced(name(static_cast<Role>(role)));
    text += formatted("<rect x=\"{:.0f}\" y=\"676\" width=\"14\" height=\"14\" rx=\"3\" fill=\"{}\"/>\n", x,
                      colour(formatted("c{}", role)));
    text += written(x + 20, 689, word, formatted("fill=\"{}\"", colour("text")));
    x += 44 + 8.6 * static_cast<double>(word.size());
  }
  return text;
}

}  // namespace

std::string svg_slide(const PageInput& input) {
  const Frame frame(input);
  const std::vector<ByRole> columns = columns_of(input.timeline, frame);
  const PageWords words = page_words(input);
  const std::string verdict = colour(words.kind);
  std::string text =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1280\" "
      "height=\"720\" viewBox=\"0 0 1280 720\" "
      "font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"15\">\n";
  text += formatted("<rect width=\"1280\" height=\"720\" fill=\"{}\"/>\n", colour("ground"));
  text += formatted(
      "<text x=\"{}\" y=\"52\" font-size=\"32\" font-weight=\"bold\" fill=\"{}\">{}: <tspan "
      "fill=\"{}\">{}</tspan></text>\n",
      kLeft, colour("text"), in_html(input.prediction.model), verdict, in_html(words.verdict));
  text += written(kLeft, 84, words.figure, formatted("font-size=\"20\" fill=\"{}\"", colour("text")));
  text += written(kLeft, 112, words.job, formatted("fill=\"{}\"", colour("soft")));
  text += areas(columns, frame) + axes(input, frame) + limit_line(input, frame) + keys(columns);
  return text + "</svg>\n";
}

}  // namespace dsplan
