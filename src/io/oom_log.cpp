#include "io/oom_log.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "core/error.h"
#include "core/format.h"

namespace dsplan {
namespace {

constexpr std::string_view kLogBlanks = " \t\r\n";
constexpr std::size_t kWindow = 2000;      // No message is longer.
constexpr std::size_t kMostMessages = 64;  // Different ones; each is looked for in the whole schedule.

bool blank(char c) { return kLogBlanks.find(c) != std::string_view::npos; }
bool digit(char c) { return c >= '0' && c <= '9'; }

// `pattern` at `at`, where a blank of the pattern is any number of blanks and line ends, comment signs included: logs
// are wrapped, quoted and commented out. Returns the offset behind it, or npos.
std::size_t matches(std::string_view text, std::size_t at, std::string_view pattern) {
  for (const char c : pattern) {
    if (c == ' ') {
      const std::size_t begin = at;
      while (at < text.size() && (blank(text[at]) || (text[at] == '#' && at > begin))) ++at;
      if (at == begin) return std::string_view::npos;
    } else if (at < text.size() && text[at] == c) {
      ++at;
    } else {
      return std::string_view::npos;
    }
  }
  return at;
}

// Whether `pattern` ends right before `end`, blanks aside.
bool ends_before(std::string_view text, std::size_t end, std::string_view pattern) {
  std::size_t at = end;
  while (at > 0 && blank(text[at - 1])) --at;
  for (std::size_t i = pattern.size(); i-- > 0;) {
    if (pattern[i] == ' ') {
      const std::size_t begin = at;
      while (at > 0 && (blank(text[at - 1]) || text[at - 1] == '#')) --at;
      if (at == begin) return false;
    } else if (at == 0 || text[--at] != pattern[i]) {
      return false;
    }
  }
  return true;
}

struct Number {
  std::int64_t mantissa = 0;  // Without the point.
  int decimals = 0;
  std::size_t end = 0;
};

std::optional<Number> number_at(std::string_view text, std::size_t at) {
  Number number;
  bool point = false, any = false;
  for (; at < text.size() && (digit(text[at]) || (text[at] == '.' && !point)); ++at) {
    if (text[at] == '.') {
      if (at + 1 >= text.size() || !digit(text[at + 1])) break;  // The end of a sentence.
      point = true;
      continue;
    }
    if (number.mantissa > INT64_MAX / 100 || number.decimals > 9) return std::nullopt;
    number.mantissa = number.mantissa * 10 + (text[at] - '0');
    number.decimals += point ? 1 : 0;
    any = true;
  }
  number.end = at;
  return any ? std::optional(number) : std::nullopt;
}

__extension__ using Wide = __int128;

// All byte counts that print as `number` when they are divided by `unit` and rounded to `decimals`.
std::optional<PrintedSize> interval(const Number& number, std::int64_t unit, int decimals, std::string text) {
  Wide scale = 1, half = 1;
  for (int i = 0; i < number.decimals; ++i) scale *= 10;
  for (int i = 0; i < decimals; ++i) half *= 10;
  // number / scale +- 1 / (2 * half), times unit.
  const Wide centre = static_cast<Wide>(number.mantissa) * unit * 2 * half;
  const Wide spread = unit == 1 ? 0 : static_cast<Wide>(unit) * scale;
  const Wide divisor = scale * 2 * half;
  const Wide low = centre > spread ? (centre - spread + divisor - 1) / divisor : 0;
  const Wide high = (centre + spread) / divisor;
  // Negative memory prints as an absurd figure; nobody has that much.
  if (high > (static_cast<Wide>(1) << 60)) return std::nullopt;
  return PrintedSize{Bytes(static_cast<std::int64_t>(low)), Bytes(static_cast<std::int64_t>(high)), std::move(text)};
}

struct Size {
  std::optional<PrintedSize> printed;
  std::size_t end = 0;
};

// "2.00 GiB", "0 bytes".
std::optional<Size> size_at(std::string_view text, std::size_t at) {
  constexpr std::array<std::pair<std::string_view, std::int64_t>, 4> kUnits = {
      {{" bytes", 1}, {" KiB", 1 << 10}, {" MiB", 1 << 20}, {" GiB", 1 << 30}}};
  const std::optional<Number> number = number_at(text, at);
  if (!number) return std::nullopt;
  for (const auto& [unit, bytes] : kUnits) {
    const std::size_t end = matches(text, number->end, unit);
    if (end == std::string_view::npos) continue;
    std::string shown = formatted("{}{}", text.substr(at, number->end - at), unit);
    Size size{interval(*number, bytes, number->decimals, std::move(shown)), end};
    // PyTorch takes the next unit only above 1024 of this one.
    if (size.printed && bytes > 1 && size.printed->high > Bytes(bytes)) {
      size.printed->low = std::max(size.printed->low, Bytes(bytes + 1));
    }
    return size;
  }
  return std::nullopt;
}

using Field = std::optional<PrintedSize> LogMessage::*;

// What stands around a size says which one it is. "Process 12 has 2.98 GiB memory in use" is somebody else's, and is
// not wanted; the first rule that fits decides.
struct Rule {
  std::string_view before;
  std::string_view after;
  Field field;
};
constexpr std::array kRules = {
    Rule{"Tried to allocate", "", &LogMessage::request},
    Rule{"a total capacity of", "", &LogMessage::capacity},
    Rule{"a total capacty of", "", &LogMessage::capacity},  // PyTorch 2.1 spells it so.
    Rule{"", " total capacity", &LogMessage::capacity},
    Rule{"", " already allocated", &LogMessage::allocated},
    Rule{"", " is allocated by PyTorch", &LogMessage::allocated},
    Rule{"", " allocated in private pools", &LogMessage::pools},
    Rule{"", " is reserved by PyTorch but unallocated", &LogMessage::unallocated},
    Rule{"", " reserved in total by PyTorch", &LogMessage::reserved},
    Rule{"", " cached", &LogMessage::reserved},  // Before PyTorch 1.6.
    Rule{"", " is free", &LogMessage::free},
    Rule{"", " free", &LogMessage::free},
    Rule{"", " allowed", &LogMessage::allowed},
    Rule{"this process has", " memory in use", &LogMessage::process},
};

LogMessage out_of_memory(std::string_view window) {
  LogMessage message;
  for (std::size_t at = 0; at < window.size(); ++at) {
    if (!digit(window[at]) || (at > 0 && (digit(window[at - 1]) || window[at - 1] == '.'))) continue;
    const std::optional<Size> size = size_at(window, at);
    if (!size) continue;
    for (const Rule& rule : kRules) {
      const bool fits = (rule.before.empty() || ends_before(window, at, rule.before)) &&
                        (rule.after.empty() || matches(window, size->end, rule.after) != std::string_view::npos);
      if (!fits) continue;
      if (!(message.*rule.field)) message.*rule.field = size->printed;
      break;
    }
    at = size->end - 1;
  }
  return message;
}

constexpr std::int64_t kGibibyte = std::int64_t{1} << 30;

// "MA 15.0 GB" at `at`; Python drops trailing zeros, so that the number of decimals is not the precision.
std::optional<Size> usage_at(std::string_view text, std::size_t at, std::string_view name, int decimals) {
  const std::size_t behind = matches(text, at, name);
  if (behind == std::string_view::npos) return std::nullopt;
  const std::optional<Number> number = number_at(text, behind);
  if (!number) return std::nullopt;
  const std::size_t end = matches(text, number->end, " GB");
  if (end == std::string_view::npos) return std::nullopt;
  return Size{interval(*number, kGibibyte, decimals, formatted("{} GiB", text.substr(behind, number->end - behind))),
              end};
}

std::optional<LogMessage> memory_usage(std::string_view text, std::size_t at) {
  LogMessage message;
  message.kind = LogMessage::Kind::MemoryUsage;
  struct Part {
    std::string_view name;
    Field field;
    int decimals;
  };
  constexpr std::array kParts = {
      Part{"MA ", &LogMessage::allocated, 2}, Part{" Max_MA ", &LogMessage::peak_allocated, 2},
      Part{" CA ", &LogMessage::reserved, 2}, Part{" Max_CA ", &LogMessage::peak_reserved, 0}};
  for (const Part& part : kParts) {
    const std::optional<Size> size = usage_at(text, at, part.name, part.decimals);
    if (!size || !size->printed) return std::nullopt;
    message.*part.field = size->printed;
    at = size->end;
  }
  return message;
}

// The message of the line before, without the logger's "[time] [INFO] [file:line:function] ".
std::string title_before(std::string_view text, std::size_t at) {
  const std::size_t line = text.rfind('\n', at);
  if (line == std::string_view::npos || line == 0) return {};
  const std::size_t begin = text.rfind('\n', line - 1) + 1;
  std::string_view title = text.substr(begin, line - begin);
  const std::size_t prefix = title.rfind("] ");
  if (prefix != std::string_view::npos) title.remove_prefix(prefix + 2);
  while (!title.empty() && blank(title.back())) title.remove_suffix(1);
  return std::string(title.substr(0, 80));
}

bool same(const LogMessage& a, const LogMessage& b) {
  const auto text = [](const std::optional<PrintedSize>& size) { return size ? size->text : std::string(); };
  return a.kind == b.kind && a.title == b.title && text(a.request) == text(b.request) &&
         text(a.allocated) == text(b.allocated) && text(a.reserved) == text(b.reserved) &&
         text(a.unallocated) == text(b.unallocated) && text(a.capacity) == text(b.capacity) &&
         text(a.process) == text(b.process) && text(a.peak_allocated) == text(b.peak_allocated);
}

}  // namespace

std::vector<LogMessage> read_oom_log(const std::string& path, std::string_view text) {
  std::vector<LogMessage> messages;
  std::size_t line = 1, counted = 0;
  const auto add = [&](LogMessage message, std::size_t at) {
    line += static_cast<std::size_t>(std::count(text.begin() + static_cast<std::ptrdiff_t>(counted),
                                                text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    counted = at;
    message.line = line;
    const auto known =
        std::find_if(messages.begin(), messages.end(), [&](const LogMessage& m) { return same(m, message); });
    if (known != messages.end()) {
      ++known->times;
    } else if (messages.size() < kMostMessages) {
      messages.push_back(std::move(message));
    }
  };
  constexpr std::string_view kTried = "Tried to allocate";
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == 'T' && matches(text, at, kTried) != std::string_view::npos) {
      std::string_view window = text.substr(at, kWindow);
      // It ends with advice; the next message or an empty line ends a shortened one.
      for (const std::string_view end : {"Tried", "documentation", "\n\n"}) {
        window = window.substr(0, window.find(end, kTried.size()));
      }
      LogMessage message = out_of_memory(window);
      if (message.request) add(std::move(message), at);
    } else if (text[at] == 'M' && (at == 0 || blank(text[at - 1]))) {
      if (std::optional<LogMessage> message = memory_usage(text, at)) {
        message->title = title_before(text, at);
        add(std::move(*message), at);
      }
    }
  }
  if (messages.empty()) {
    throw Refusal(path, "no message about memory is in this log",
                  "looked for PyTorch's \"CUDA out of memory. Tried to allocate 2.00 GiB ...\" and DeepSpeed's "
                  "\"MA 1.0 GB Max_MA 1.0 GB CA 1.0 GB Max_CA 1 GB\"");
  }
  return messages;
}

}  // namespace dsplan
