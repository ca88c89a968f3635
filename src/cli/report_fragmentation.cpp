#include "cli/report_fragmentation.h"

#include <algorithm>

#include "cli/wrap.h"
#include "core/format.h"

namespace dsplan {
namespace {

// The table shows fewer than JSON holds.
constexpr std::size_t kSegmentsShown = 8;
constexpr std::size_t kPinsShown = 3;

std::string sums(const Fragmentation& f) {
  std::string text = wrapped("  ", "reserved is largest at " + f.event, 4);
  const auto row = [&text](const char* label, Bytes bytes, const char* meaning) {
    if (bytes > Bytes(0)) text += formatted("  {:<16}{:>13}  {}\n", label, human(bytes), meaning);
  };
  row("requested", f.requested, "what was asked for");
  row("slack", f.slack, "rounding, and rests too small to split off");
  row("awaiting", f.awaiting, "freed, but another stream may still use it");
  row("inactive split", f.inactive_split, "free parts of segments in use");
  row("cached", f.cached, "wholly free: empty_cache gives it back");
  row("reserved", f.reserved, "the sum");
  return text;
}

std::string pinned(const Fragmentation& f) {
  if (f.segments.empty()) return {};
  std::string text = f.segments_in_use == 1
                         ? std::string("\n  one segment in use has free parts; what pins it\n")
                         : formatted("\n  {} segments in use have free parts; what pins them\n", f.segments_in_use);
  text += formatted("{:>13}{:>13}  {}\n", "free", "of", "pinned by");
  for (std::size_t i = 0; i < std::min(kSegmentsShown, f.segments.size()); ++i) {
    const PinnedSegment& segment = f.segments[i];
    std::string pins;
    const std::size_t shown = std::min(kPinsShown, segment.pins.size());
    for (std::size_t k = 0; k < shown; ++k) {
      const PinningBlock& pin = segment.pins[k];
      if (k > 0) pins += "; ";
      pins += formatted("{} ({}{}{})", pin.name, human(pin.requested), pin.module.empty() ? "" : ", ", pin.module);
    }
    if (const auto rest = segment.blocks - static_cast<std::int64_t>(shown); rest > 0) {
      pins += formatted("; {} more", rest);
    }
    text += wrapped(formatted("{:>13}{:>13}  ", human(segment.free), human(segment.size)), pins, 28);
  }
  return text;
}

std::string tried(const Fragmentation& f) {
  if (f.remedies.empty()) return {};
  std::string text = formatted("\n  {:>13}{:>13}  other allocator confs\n", "reserved", "saved");
  for (const AllocatorRemedy& remedy : f.remedies) {
    const bool less = remedy.reserved <= f.reserved;
    const Bytes difference = less ? f.reserved - remedy.reserved : remedy.reserved - f.reserved;
    const std::string saved = difference == Bytes(0) ? std::string("nothing") : (less ? "" : "-") + human(difference);
    const std::string verdict = !remedy.fits ? "" : (*remedy.fits ? " (fits)" : " (does not fit)");
    text += wrapped(formatted("  {:>13}{:>13}  ", human(remedy.reserved), saved), remedy.conf + verdict, 30);
  }
  return text;
}

}  // namespace

std::string fragmentation_report(const Fragmentation& fragmentation) {
  return sums(fragmentation) + pinned(fragmentation) + tried(fragmentation);
}

}  // namespace dsplan
