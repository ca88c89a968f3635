#include "core/error.h"

#include <algorithm>

#include "core/format.h"

namespace dsplan {
namespace {

constexpr std::size_t kWidest = 100;

// The part of the line that is printed, and where the caret stands in it. Tabs become blanks so that it lines up.
struct Excerpt {
  std::string text;
  std::size_t caret;
};

Excerpt excerpt(const Diagnostic& diagnostic) {
  std::string line = diagnostic.source_line;
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  const std::size_t before = diagnostic.source_begin + 1;
  const std::size_t caret = diagnostic.column < before ? 0 : diagnostic.column - before;
  if (line.size() <= kWidest) return {line, std::min(caret, line.size())};
  const std::size_t begin = caret > kWidest / 2 ? std::min(caret - kWidest / 2, line.size() - kWidest) : 0;
  return {line.substr(begin, kWidest), std::min(caret - begin, kWidest)};
}

std::string join(const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) text += render(diagnostic);
  return text;
}

}  // namespace

std::string render(const Diagnostic& diagnostic, std::string_view severity) {
  std::string text = diagnostic.path;
  if (diagnostic.line > 0) text += formatted(":{}:{}", diagnostic.line, diagnostic.column);
  if (!text.empty()) text += ": ";
  text += formatted("{}: {}", severity, diagnostic.message);
  if (!diagnostic.hint.empty()) text += "; " + diagnostic.hint;
  text += '\n';
  if (diagnostic.line > 0) {
    const Excerpt shown = excerpt(diagnostic);
    text += formatted("{:5} | {}\n      | {}^\n", diagnostic.line, shown.text, std::string(shown.caret, ' '));
  }
  return text;
}

Refusal::Refusal(std::vector<Diagnostic> diagnostics)
    : diagnostics_(std::move(diagnostics)), text_(join(diagnostics_)) {}

Refusal::Refusal(std::string where, std::string message, std::string hint)
    : Refusal(std::vector<Diagnostic>{{std::move(where), 0, 0, {}, std::move(message), std::move(hint)}}) {}

void Diagnostics::add(Diagnostic diagnostic) {
  ++count_;
  if (list_.size() < kMost) list_.push_back(std::move(diagnostic));
}

void Diagnostics::throw_if_any() const {
  if (!any()) return;
  std::vector<Diagnostic> all = list_;
  if (count_ > list_.size()) {
    all.push_back({{}, 0, 0, {}, formatted("{} more faults are not shown", count_ - list_.size()), {}});
  }
  throw Refusal(std::move(all));
}

void check_failed(const char* condition, const char* file, int line, const std::string& detail) {
  throw InternalError(formatted("{}:{}: broken invariant: {} ({})", file, line, condition, detail));
}

}  // namespace dsplan
