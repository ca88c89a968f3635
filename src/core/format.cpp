#include "core/format.h"

#define FMT_HEADER_ONLY 1  // No library to link, and none to find at every start.

#include <fmt/args.h>
#include <fmt/format.h>

#include <array>
#include <ctime>
#include <functional>
#include <iterator>

namespace dsplan {
namespace {

using Store = fmt::dynamic_format_arg_store<fmt::format_context>;

Store store_of(std::span<const FormatArgument> arguments) {
  Store store;
  store.reserve(arguments.size(), 0);
  for (const FormatArgument& argument : arguments) {
    switch (argument.kind) {
      case FormatArgument::Kind::Signed: store.push_back(argument.whole); break;
      case FormatArgument::Kind::Unsigned: store.push_back(argument.natural); break;
      case FormatArgument::Kind::Real: store.push_back(argument.real); break;
      case FormatArgument::Kind::Boolean: store.push_back(argument.natural != 0); break;
      case FormatArgument::Kind::Character: store.push_back(static_cast<char>(argument.natural)); break;
      // By reference: a copy of each text would be an allocation.
      case FormatArgument::Kind::Text: store.push_back(std::cref(argument.text)); break;
    }
  }
  return store;
}

// "{}" of a whole number or a text, which is nearly all that fingerprints and logs of many lines are made of.
bool append_plainly(std::string& to, const FormatArgument& argument) {
  switch (argument.kind) {
    case FormatArgument::Kind::Signed: to += fmt::format_int(argument.whole).c_str(); return true;
    case FormatArgument::Kind::Unsigned: to += fmt::format_int(argument.natural).c_str(); return true;
    case FormatArgument::Kind::Text: to += argument.text; return true;
    default: return false;
  }
}

// Appends as long as nothing but "{}" of such arguments is asked for. False: it is not, and nothing was appended.
bool append_plain_pattern(std::string& to, std::string_view pattern, std::span<const FormatArgument> arguments) {
  const std::size_t before = to.size();
  std::size_t next = 0;
  for (;;) {
    const std::size_t brace = pattern.find_first_of("{}");
    if (brace == std::string_view::npos) break;
    const bool plain = pattern.substr(brace, 2) == "{}" && next < arguments.size();
    to += pattern.substr(0, brace);
    if (!plain || !append_plainly(to, arguments[next++])) {
      to.resize(before);
      return false;
    }
    pattern.remove_prefix(brace + 2);
  }
  to += pattern;
  return true;
}

}  // namespace

std::string formatted_as(std::string_view pattern, std::span<const FormatArgument> arguments) {
  std::string text;
  append_formatted_as(text, pattern, arguments);
  return text;
}

void append_formatted_as(std::string& to, std::string_view pattern, std::span<const FormatArgument> arguments) {
  if (append_plain_pattern(to, pattern, arguments)) return;
  fmt::vformat_to(std::back_inserter(to), pattern, store_of(arguments));
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, sizeof "2026-08-01T12:00:00Z"> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

}  // namespace dsplan
