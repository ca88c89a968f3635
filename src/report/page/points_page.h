// Many predictions on one page for a browser: lines over an axis, or a front, with the device's limit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/units.h"

namespace dsplan {

struct ChartPoint {
  double x = 0;
  double y = 0;
  std::string words;  // Shown by whoever points at it.
  std::string kind;   // The style's name of its colour: good, warn, bad, soft.
};

struct ChartSeries {
  std::string name;
  bool joined = true;
  std::vector<ChartPoint> points;
};

struct Chart {
  std::string title;
  std::string below;                // What the axis counts.
  bool bytes = false;               // Of y: else a plain number.
  std::optional<Bytes> limit;       // A line across.
  std::vector<std::string> places;  // Names of x = 0, 1, ...; empty: x is a number.
  std::vector<ChartSeries> series;
};

struct PointsPage {
  std::string title;
  std::string lead;  // The answer in a sentence.
  std::vector<Chart> charts;
  std::vector<std::string> heads;
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> kinds;  // By row: of its first cell.
  std::string command;             // That makes this page.
};

// Nothing is loaded from elsewhere, and no script runs.
[[nodiscard]] std::string points_page(const PointsPage& page);

}  // namespace dsplan
