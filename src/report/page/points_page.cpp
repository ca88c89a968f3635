#include "report/page/points_page.h"

#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "report/page/markup.h"
#include "report/page_parts.h"

namespace dsplan {
namespace {

constexpr double kWidth = 960, kHeight = 400, kBegin = 84, kEnd = 940, kCeiling = 16, kFloor = 350;
constexpr std::size_t kColours = 9;  // --c0 to --c8 of the style.

struct Range {
  double low = 0;
  double high = 1;
  bool logarithmic = false;  // Where values are many times apart.

  [[nodiscard]] double part(double value) const {
    if (high <= low) return .5;
    return logarithmic ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  }
};

Range range_of_x(const Chart& chart) {
  Range range{HUGE_VAL, -HUGE_VAL, false};
  for (const ChartSeries& one : chart.series) {
    for (const ChartPoint& point : one.points) {
      range.low = std::min(range.low, point.x);
      range.high = std::max(range.high, point.x);
    }
  }
  if (range.low > range.high) return {};
  range.logarithmic = chart.places.empty() && range.low > 0 && range.high / range.low >= 16;
  return range;
}

double highest(const Chart& chart) {
  double most = 0;
  for (const ChartSeries& one : chart.series) {
    for (const ChartPoint& point : one.points) most = std::max(most, point.y);
  }
  // What is far above the limit would press what matters into a line.
  if (chart.limit) {
    const auto limit = static_cast<double>(chart.limit->value());
    most = std::clamp(most, limit, 3 * limit);
  }
  return most > 0 ? 1.06 * most : 1;
}

double round_step(double rough, bool binary) {
  if (binary) {
    const double power = std::exp2(std::floor(std::log2(rough)));
    return rough / power > 1.5 ? 2 * power : power;
  }
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double times : {1., 2., 5.}) {
    if (rough <= times * power) return times * power;
  }
  return 10 * power;
}

std::string axis_figure(double value, bool bytes) {
  if (bytes) return human(Bytes(std::llround(value)));
  return value >= 100 || value == std::floor(value) ? grouped(std::llround(value)) : formatted("{:.1f}", value);
}

class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart), across_(range_of_x(chart)), top_(highest(chart)) {}

  std::string run() {
    text_ = formatted("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" font-size=\"13\">\n", kWidth, kHeight,
                      in_html(chart_.title));
    axes();
    if (chart_.limit && static_cast<double>(chart_.limit->value()) <= top_) limit();
    // The first lies on top.
    for (std::size_t i = chart_.series.size(); i-- > 0;) series(chart_.series[i], i % kColours);
    return text_ + "</svg>\n";
  }

 private:
  [[nodiscard]] double x(double value) const { return kBegin + 14 + (kEnd - kBegin - 28) * across_.part(value); }
  [[nodiscard]] double y(double value) const { return kFloor - (kFloor - kCeiling) * std::min(value, top_) / top_; }

  void label(double at, double down, const std::string& words, const char* more) {
    text_ += formatted("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", at, down, more, in_html(words));
  }

  void axes() {
    const double apart = round_step(top_ / 5, chart_.bytes);
    for (double at = 0; at <= top_; at += apart) {
      text_ += formatted("<path d=\"M{} {:.1f}H{}\" stroke=\"var(--line)\"/>\n", kBegin, y(at), kEnd);
      label(kBegin - 8, y(at) + 4, axis_figure(at, chart_.bytes), "text-anchor=\"end\" fill=\"var(--soft)\"");
    }
    double free = -HUGE_VAL;
    for (const auto& [place, words] : ticks()) {
      const double wide = 7.5 * static_cast<double>(words.size());
      if (x(place) - wide / 2 < free) continue;
      label(x(place), kFloor + 18, words, "text-anchor=\"middle\" fill=\"var(--soft)\"");
      free = x(place) + wide / 2 + 8;
    }
    label((kBegin + kEnd) / 2, kFloor + 38, chart_.below, "text-anchor=\"middle\" fill=\"var(--soft)\"");
  }

  // Where somebody looked, each place once.
  [[nodiscard]] std::vector<std::pair<double, std::string>> ticks() const {
    std::vector<double> places;
    for (const ChartSeries& one : chart_.series) {
      for (const ChartPoint& point : one.points) places.push_back(point.x);
    }
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    std::vector<std::pair<double, std::string>> list;
    for (const double place : places) {
      const auto at = static_cast<std::size_t>(std::max(0., place));
      list.emplace_back(place, chart_.places.empty() ? axis_figure(place, false) : chart_.places.at(at));
    }
    return list;
  }

  void limit() {
    const double at = y(static_cast<double>(chart_.limit->value()));
    text_ += formatted("<path d=\"M{} {:.1f}H{}\" stroke=\"var(--bad)\" stroke-width=\"1.5\"/>\n", kBegin, at, kEnd);
    label(kBegin + 4, at - 5, "the device has " + human(*chart_.limit), "fill=\"var(--bad)\"");
  }

  void series(const ChartSeries& one, std::size_t colour) {
    if (one.joined && one.points.size() > 1) {
      std::string path;
      for (const ChartPoint& point : one.points) {
        path += formatted("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x(point.x), y(point.y));
      }
      text_ += formatted("<path d=\"{}\" fill=\"none\" stroke=\"var(--c{})\" stroke-width=\"2\"/>\n", path, colour);
    }
    for (const ChartPoint& point : one.points) {
      text_ += formatted(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" fill=\"var(--c{})\" stroke=\"var(--{})\" "
          "stroke-width=\"2\"><title>{}</title></circle>\n",
          x(point.x), y(point.y), colour, point.kind, in_html(point.words));
    }
  }

  const Chart& chart_;
  Range across_;
  double top_;
  std::string text_;
};

std::string keys_of(const Chart& chart) {
  std::string text;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    if (chart.series[i].name.empty()) continue;
    text += formatted("<span class=\"key\"><i style=\"background: var(--c{})\"></i>{}</span>", i % kColours,
                      in_html(chart.series[i].name));
  }
  return text.empty() ? text : "<p>" + text + "</p>\n";
}

std::string table_of_points(const PointsPage& page) {
  std::string text = "<div class=\"wide\"><table><tr>";
  for (const std::string& head : page.heads) text += "<th>" + in_html(head) + "</th>";
  text += "</tr>\n";
  for (std::size_t i = 0; i < page.rows.size(); ++i) {
    text += "<tr>";
    for (std::size_t at = 0; at < page.rows[i].size(); ++at) {
      text += formatted("<td class=\"{}\">{}</td>", at == 0 ? page.kinds[i] : "", in_html(page.rows[i][at]));
    }
    text += "</tr>\n";
  }
  return text + "</table></div>\n";
}

}  // namespace

std::string points_page(const PointsPage& page) {
  std::string text = page_begin("dsplan: " + page.title);
  text += formatted("<h1>{}</h1>\n<p>{}</p>\n", in_html(page.title), in_html(page.lead));
  for (const Chart& chart : page.charts) {
    text += formatted("<h2>{}</h2>\n{}{}", in_html(chart.title), keys_of(chart), Drawing(chart).run());
  }
  text += "<h2>All of them</h2>\n" + table_of_points(page);
  return text + formatted("<h2>Made by</h2>\n<pre>{}</pre>\n</body>\n</html>\n", in_html(page.command));
}

}  // namespace dsplan
