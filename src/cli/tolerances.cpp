#include "cli/tolerances.h"

#include "cli/command_line.h"
#include "cli/options.h"
#include "core/format.h"
#include "core/units.h"

namespace dsplan {
namespace {

void take_tolerance(const std::string& text, Tolerances& into, Diagnostics& faults) {
  const auto refuse = [&](std::string message, std::string hint = {}) {
    faults.add({"--tolerance", 0, 0, {}, std::move(message), std::move(hint)});
  };
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) return refuse(formatted("\"{}\" is not KIND=N", text), "write reserved=1%");
  const std::string word = text.substr(0, equals);
  std::optional<RowKind> kind;
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < kRowKinds; ++i) {
    if (static_cast<RowKind>(i) == RowKind::Verdict) continue;
    names.push_back(name(static_cast<RowKind>(i)));
    if (names.back() == word) kind = static_cast<RowKind>(i);
  }
  if (!kind) return refuse(formatted("no kind \"{}\"", word), did_you_mean(word, names));
  if (into.by_kind.contains(*kind)) return refuse(formatted("\"{}\" is given more than once", word));
  std::string value = text.substr(equals + 1);
  const bool percent = value.ends_with('%');
  if (percent) value.pop_back();
  // One decimal: permille.
  const std::size_t point = percent ? value.find('.') : std::string::npos;
  const bool tenth = point != std::string::npos && point + 2 == value.size();
  if (tenth) value.erase(point, 1);
  const std::optional<std::int64_t> read = whole_number("--tolerance", value, faults);
  if (!read) return;
  const std::int64_t permille = percent && !tenth ? checked_mul(*read, 10) : *read;
  if (*read < 0 || (percent && permille > 1000)) return refuse(formatted("{} is no tolerance", text));
  into.by_kind[*kind] = percent ? Tolerance{0, permille} : Tolerance{*read, 0};
}

}  // namespace

Tolerances read_tolerances(const std::vector<std::string>& texts) {
  Tolerances tolerances;
  Diagnostics faults;
  for (const std::string& text : texts) take_tolerance(text, tolerances, faults);
  faults.throw_if_any();
  return tolerances;
}

}  // namespace dsplan
