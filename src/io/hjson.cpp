#include <algorithm>

#include "core/format.h"
#include "io/json_parse.h"
#include "io/text.h"

namespace dsplan {
namespace {

using detail::found;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_hjson_digit(char c) { return c >= '0' && c <= '9'; }
bool is_punctuator(char c) { return std::string_view("{}[],:").find(c) != std::string_view::npos; }

// The length of the blank character that starts at, or ends before, a place: what Python's str.strip takes off.
std::size_t blank_at(std::string_view text, std::size_t at) {
  const auto c = static_cast<unsigned char>(text[at]);
  if (c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F)) return 1;
  const std::string_view rest = text.substr(at);
  for (std::string_view wide : {"\u0085", "\u00A0"}) {
    if (rest.starts_with(wide)) return 2;
  }
  for (std::string_view wide :
       {"\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009",
        "\u200A", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"}) {
    if (rest.starts_with(wide)) return 3;
  }
  return 0;
}

std::string_view strip(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = blank_at(text, 0);
    if (length == 0) break;
    text.remove_prefix(length);
  }
  for (std::size_t length = 1; length <= 3 && length <= text.size();) {
    if (blank_at(text, text.size() - length) == length) {
      text.remove_suffix(length);
      length = 1;
    } else {
      ++length;
    }
  }
  return text;
}

// The length of the JSON number at the start of `text`, 0 if there is none. hjson takes the longest match, so that
// "1.x" leaves ".x" over and is then a string.
std::size_t number_length(std::string_view text) {
  std::size_t at = 0;
  const auto digits = [&](std::size_t from) {
    std::size_t end = from;
    while (end < text.size() && is_hjson_digit(text[end])) ++end;
    return end;
  };
  if (at < text.size() && text[at] == '-') ++at;
  const std::size_t integer = at < text.size() && text[at] == '0' ? at + 1 : digits(at);
  if (integer == at) return 0;
  at = integer;
  if (at < text.size() && text[at] == '.' && digits(at + 1) > at + 1) at = digits(at + 1);
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    std::size_t exponent = at + 1;
    if (exponent < text.size() && (text[exponent] == '+' || text[exponent] == '-')) ++exponent;
    if (digits(exponent) > exponent) at = digits(exponent);
  }
  return at;
}

// Rewrites Hjson as strict JSON in one pass and keeps, for every token, where it came from.
class Rewriter {
 public:
  explicit Rewriter(const Document& document) : document_(&document), text_(document.text) {
    json_.reserve(text_.size() + 16);
  }

  void run() {
    at_ = detail::after_mark(text_);
    next();
    const bool braced = at_ < text_.size() && (text_[at_] == '{' || text_[at_] == '[');
    if (braced) {
      value();
      next();
      if (at_ < text_.size()) refuse(at_, "expected the end of the file, found " + found(text_, at_));
      return;
    }
    anchor();
    json_ += '{';
    if (at_ < text_.size()) members(false);
    json_ += '}';
  }

  [[nodiscard]] const std::string& json() const { return json_; }
  [[nodiscard]] const std::vector<detail::Anchor>& anchors() const { return anchors_; }

 private:
  [[noreturn]] void refuse(std::size_t at, std::string message, std::string hint = {}) const {
    throw Refusal({document_->at(at, std::move(message), std::move(hint))});
  }

  void anchor() {
    if (++count_ > 2 * kMostValues) refuse(at_, formatted("more than {} values", kMostValues));
    anchors_.push_back({json_.size(), at_});
  }

  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  [[nodiscard]] bool line_ends() const { return at_ >= text_.size() || text_[at_] == '\n' || text_[at_] == '\r'; }

  // Passes over blanks and comments.
  void next() {
    for (;;) {
      while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
      if (peek() == '#' || (peek() == '/' && peek(1) == '/')) {
        while (!line_ends()) ++at_;
      } else if (peek() == '/' && peek(1) == '*') {
        const std::size_t end = text_.find("*/", at_ + 2);
        if (end == std::string_view::npos) refuse(at_, "the comment that starts here has no closing '*/'");
        at_ = end + 2;
      } else {
        return;
      }
    }
  }

  void value() {
    if (at_ >= text_.size()) refuse(last_character(), "expected a value, found the end of the file");
    switch (peek()) {
      case '{':
      case '[': container(); break;
      case '"': quoted_string(); break;
      case '\'':
        if (peek(1) == '\'' && peek(2) == '\'') {
          multi_line();
        } else {
          quoted_string();
        }
        break;
      default: unquoted(); break;
    }
  }

  void container() {
    if (depth_ == kDeepest) refuse(at_, formatted("nested deeper than {} levels", kDeepest));
    ++depth_;
    const std::size_t opened = at_;
    anchor();
    const char open = text_[at_++];
    const char close = open == '{' ? '}' : ']';
    json_ += open;
    next();
    if (at_ < text_.size() && text_[at_] == close) {
      ++at_;
    } else if (open == '{') {
      members(true, opened);
    } else {
      items(opened);
    }
    json_ += close;
    --depth_;
  }

  void members(bool braced, std::size_t opened = 0) {
    for (bool first = true;; first = false) {
      if (!first) json_ += ',';
      if (at_ >= text_.size()) refuse_end("object", opened);
      key();
      next();
      if (at_ >= text_.size() || text_[at_] != ':') {
        refuse(at_, "expected ':' after the key, found " + found(text_, at_));
      }
      ++at_;
      json_ += ':';
      next();
      value();
      next();
      if (peek() == ',') {
        ++at_;
        next();
      }
      if (!braced && at_ >= text_.size()) return;
      if (braced && peek() == '}') {
        ++at_;
        return;
      }
    }
  }

  void items(std::size_t opened) {
    for (bool first = true;; first = false) {
      if (!first) json_ += ',';
      if (at_ >= text_.size()) refuse_end("array", opened);
      value();
      next();
      if (peek() == ',') {
        ++at_;
        next();
      }
      if (peek() == ']') {
        ++at_;
        return;
      }
    }
  }

  void key() {
    if (peek() == '"' || peek() == '\'') return quoted_string();
    anchor();
    const std::size_t begin = at_;
    std::size_t end = begin;  // Behind the last character that is not blank.
    for (; at_ < text_.size() && text_[at_] != ':'; ++at_) {
      const char c = text_[at_];
      if (is_blank(c)) continue;
      if (is_punctuator(c)) refuse(at_, formatted("expected a key, found '{}'", c), "a key with {}[],: needs quotes");
      if (at_ > begin && end != at_)
        refuse(end, "blank in a key", "put a key with blanks in quotes, or is ':' missing?");
      end = at_ + 1;
    }
    if (at_ >= text_.size()) refuse(end, "expected ':' after the key, found the end of the file");
    if (end == begin) refuse(begin, "expected a key, found ':'", "an empty key needs quotes");
    write(text_.substr(begin, end - begin));
  }

  // A string in double or single quotes. Its escapes are JSON's, and \' besides.
  void quoted_string() {
    detail::JsonFault judged = detail::judge_string(text_, at_);
    if (!judged.message.empty()) refuse(judged.offset, std::move(judged.message), std::move(judged.hint));
    anchor();
    const std::string_view inside = text_.substr(at_ + 1, judged.offset - at_ - 2);
    json_ += '"';
    for (std::size_t i = 0; i < inside.size(); ++i) {
      if (inside[i] == '\\' && inside[i + 1] == '\'') {
        json_ += inside[++i];
      } else if (inside[i] == '\\') {
        json_ += inside[i];
        json_ += inside[++i];
      } else {
        if (inside[i] == '"') json_ += '\\';
        json_ += inside[i];
      }
    }
    json_ += '"';
    at_ = judged.offset;
  }

  // '''text''': each line loses as many blanks as stand before the opening quotes, at most; a line break right after
  // the opening and one right before the closing quotes do not count.
  void multi_line() {
    anchor();
    const std::size_t opened = at_;
    // There hjson 3.1.0 counts the indent round the end of the file: what it reads depends on the last line.
    const std::size_t before = text_.substr(0, opened).rfind('\n');
    if (before == std::string_view::npos) {
      refuse(opened, "a ''' string on the first line", "hjson gives it an indent by chance; start it on a later line");
    }
    std::size_t indent = 0;  // In characters.
    for (std::size_t i = before + 1; i < opened; ++i) {
      if ((static_cast<unsigned char>(text_[i]) & 0xC0) != 0x80) ++indent;
    }
    const auto skip_indent = [&](std::size_t most) {
      for (; most > 0 && (peek() == ' ' || peek() == '\t' || peek() == '\r'); --most) ++at_;
    };
    at_ += 3;
    skip_indent(text_.size());
    if (peek() == '\n') {
      ++at_;
      skip_indent(indent);
    }
    std::string string;
    while (!text_.substr(std::min(at_, text_.size())).starts_with("'''")) {
      if (at_ >= text_.size()) refuse(opened, "the string that starts here has no closing '''");
      const char c = text_[at_++];
      if (c != '\r') string += c;
      if (c == '\n') skip_indent(indent);
    }
    at_ += 3;
    if (!string.empty() && string.back() == '\n') string.pop_back();
    write(string);
  }

  // true, false, null and numbers up to the next , } ] or comment; anything else is a string up to the end of the line.
  void unquoted() {
    if (is_punctuator(peek())) refuse(at_, "expected a value, found " + found(text_, at_));
    anchor();
    const std::size_t begin = at_;
    const std::size_t number = number_length(text_.substr(begin));
    const auto stops = [&] {
      const char c = peek();
      return line_ends() || c == ',' || c == '}' || c == ']' || c == '#' ||
             (c == '/' && (peek(1) == '/' || peek(1) == '*'));
    };
    while (!stops()) ++at_;
    const std::string_view piece = strip(text_.substr(begin, at_ - begin));
    if (piece == "true" || piece == "false" || piece == "null") {
      json_ += piece;
    } else if (number > 0 && text_.find_first_not_of(" \t", begin + number) >= at_) {
      json_ += piece.substr(0, number);
    } else {
      // What comes before the first stop decides: a longer piece is none of the words and no number.
      at_ = std::min(text_.find_first_of("\r\n", at_), text_.size());
      write(strip(text_.substr(begin, at_ - begin)));
    }
  }

  // A JSON string with this content.
  void write(std::string_view content) {
    json_ += '"';
    for (const char c : content) {
      if (static_cast<unsigned char>(c) < 0x20) {
        json_ += formatted("\\u{:04x}", static_cast<unsigned>(c));
      } else {
        if (c == '"' || c == '\\') json_ += '\\';
        json_ += c;
      }
    }
    json_ += '"';
  }

  [[nodiscard]] std::size_t last_character() const {
    const std::size_t last = text_.find_last_not_of(" \t\r\n");
    return last == std::string_view::npos ? 0 : last + 1;
  }

  [[noreturn]] void refuse_end(std::string_view what, std::size_t opened) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(opened), '\n');
    refuse(last_character(), formatted("the file ends inside the {} opened on line {}", what, line));
  }

  const Document* document_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t depth_ = 0;
  std::size_t count_ = 0;
  std::string json_;
  std::vector<detail::Anchor> anchors_;
};

}  // namespace

Document parse_hjson(std::string path, std::string text) {
  Document document{std::move(path), std::move(text), {}};
  detail::refuse_bad_utf8(document);
  Rewriter rewriter(document);
  rewriter.run();
  document.root = detail::parse_strict(document, rewriter.json(), &rewriter.anchors());
  return document;
}

}  // namespace dsplan
