// The one printer of tables for people: columns are as wide as what stands in them, numbers end in one line, and what
// is too wide for the terminal is wrapped in the last column or cut.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dsplan {

// How many characters a line has: a terminal's own number, from 40 to 200; 80 where standard output is none.
[[nodiscard]] std::size_t columns();

class Table {
 public:
  enum class Align : std::uint8_t { Left, Right };

  // Titles; an empty list of them prints no head. The last column wraps if it is Left.
  Table(std::vector<std::string> titles, std::vector<Align> aligns);
  void row(std::vector<std::string> cells);
  [[nodiscard]] bool empty() const { return rows_.empty(); }
  // Each line indented by so many blanks, each with its end.
  [[nodiscard]] std::string text(std::size_t indent = 2) const;
  // The first `most` rows and the head, each on one line, cut where the terminal ends.
  [[nodiscard]] std::string lines(std::size_t most, std::size_t indent = 2) const;

 private:
  [[nodiscard]] std::vector<std::size_t> widths() const;

  std::vector<std::string> titles_;
  std::vector<Align> aligns_;
  std::vector<std::vector<std::string>> rows_;
};

// A line of '#': `part` of `whole` in `most` characters, at least one for what is not nothing.
[[nodiscard]] std::string bar(std::int64_t part, std::int64_t whole, std::size_t most);

// As many of the items as fit on one line, with ", " between them, then how many more there are.
[[nodiscard]] std::string fitted(std::string_view first, const std::vector<std::string>& items, std::string_view more);

// One line of `text`: what is beyond the line's end is cut.
[[nodiscard]] std::string one_line(const std::string& text);

// A text in a terminal's colours, where there are any.
enum class Paint : std::uint8_t { Good, Warning, Bad, Dim, Strong };
[[nodiscard]] std::string painted(const std::string& text, Paint paint, bool colour);

}  // namespace dsplan
