#include "cli/screen/table.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cli/wrap.h"
#include "core/format.h"

namespace dsplan {
namespace {

std::string padded(const std::string& text, std::size_t width, Table::Align align) {
  const std::size_t own = width_of(text);
  const std::string blanks(width - std::min(width, own), ' ');
  return align == Table::Align::Left ? text + blanks : blanks + text;
}

// Absent cells on the right leave no blanks behind.
std::string tidy(const std::string& text) { return text.substr(0, text.find_last_not_of(' ') + 1); }

}  // namespace

std::size_t columns() {
  static const std::size_t known = [] {
    struct winsize window {};
    const bool terminal = ::isatty(1) == 1 && ::ioctl(1, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
    return terminal ? std::clamp<std::size_t>(window.ws_col, 40, 200) : std::size_t{80};
  }();
  return known;
}

Table::Table(std::vector<std::string> titles, std::vector<Align> aligns)
    : titles_(std::move(titles)), aligns_(std::move(aligns)) {}

void Table::row(std::vector<std::string> cells) {
  cells.resize(aligns_.size());
  rows_.push_back(std::move(cells));
}

std::vector<std::size_t> Table::widths() const {
  std::vector<std::size_t> widths(aligns_.size(), 0);
  const auto widen = [&widths](const std::vector<std::string>& cells) {
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], width_of(cells[i]));
  };
  widen(titles_);
  for (const auto& cells : rows_) widen(cells);
  return widths;
}

std::string Table::text(std::size_t indent) const {
  const std::vector<std::size_t> wide = widths();
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text(indent, ' ');
    for (std::size_t i = 0; i + 1 < cells.size(); ++i) text += padded(cells[i], wide[i], aligns_[i]) + "  ";
    if (aligns_.back() == Align::Right) return tidy(text + padded(cells.back(), wide.back(), Align::Right)) + "\n";
    // A column that begins too far to the right is cut with its line instead.
    const std::size_t begins = width_of(text);
    return begins + 16 > columns() || cells.back().empty() ? one_line(tidy(text + cells.back()))
                                                           : wrapped(text, cells.back(), begins);
  };
  std::string text;
  if (!titles_.empty()) text += line(titles_);
  for (const auto& cells : rows_) text += line(cells);
  return text;
}

std::string Table::lines(std::size_t most, std::size_t indent) const {
  const std::vector<std::size_t> wide = widths();
  std::string text;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string one(indent, ' ');
    for (std::size_t i = 0; i < cells.size(); ++i) one += (i == 0 ? "" : "  ") + padded(cells[i], wide[i], aligns_[i]);
    text += one_line(tidy(one));
  };
  if (!titles_.empty()) line(titles_);
  for (std::size_t i = 0; i < std::min(most, rows_.size()); ++i) line(rows_[i]);
  return text;
}

std::string bar(std::int64_t part, std::int64_t whole, std::size_t most) {
  if (part <= 0 || whole <= 0) return {};
  const auto length = static_cast<std::size_t>(
      static_cast<double>(part) / static_cast<double>(whole) * static_cast<double>(most) + 0.5);
  return std::string(std::clamp<std::size_t>(length, 1, most), '#');
}

std::string fitted(std::string_view first, const std::vector<std::string>& items, std::string_view more) {
  std::string text(first);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::size_t left = items.size() - i - 1;
    const std::string rest = left > 0 ? formatted(", {} more{}", left, more) : std::string();
    const std::string with = (i == 0 ? "" : ", ") + items[i];
    if (i > 0 && width_of(text) + width_of(with) + width_of(rest) > columns()) {
      return one_line(text + formatted(", {} more{}", left + 1, more));
    }
    text += with;
  }
  return one_line(text);
}

std::string one_line(const std::string& text) {
  if (width_of(text) <= columns()) return text + "\n";
  return text.substr(0, bytes_of(text, columns() - 3)) + "...\n";
}

std::string painted(const std::string& text, Paint paint, bool colour) {
  if (!colour || text.empty()) return text;
  const char* code = "";
  switch (paint) {
    case Paint::Good: code = "\x1b[1;32m"; break;
    case Paint::Warning: code = "\x1b[1;33m"; break;
    case Paint::Bad: code = "\x1b[1;31m"; break;
    case Paint::Dim: code = "\x1b[2m"; break;
    case Paint::Strong: code = "\x1b[1m"; break;
  }
  return formatted("{}{}\x1b[0m", code, text);
}

}  // namespace dsplan
