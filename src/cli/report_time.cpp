#include "cli/report_time.h"

#include <cmath>

#include "cli/wrap.h"
#include "core/format.h"
#include "core/units.h"

namespace dsplan {
namespace {

constexpr char kRow[] = "  {:<16}{:>10}{:>10}{:>11}{:>10}{:>9}{:>9}\n";

// Nothing at all is a dash.
std::string part(double seconds) { return seconds <= 0 ? "-" : seconds_text(seconds); }

}  // namespace

std::string seconds_text(double seconds) {
  if (seconds >= 99.95) return formatted("{:.0f} s", seconds);
  if (seconds >= 0.9995) return formatted("{:.3g} s", seconds);
  if (seconds >= 0.9995e-3) return formatted("{:.3g} ms", seconds * 1e3);
  return formatted("{:.3g} us", seconds * 1e6);
}

std::string time_report(const StepTime& time) {
  std::string text = formatted(kRow, time.calibrated ? "step, calibrated" : "step, estimated", "time", "compute",
                               "recompute", "exposed", "host", "hidden");
  for (const PhaseTime& phase : time.phases) {
    text += formatted(kRow, phase.name, part(phase.total()), part(phase.compute + phase.launch), part(phase.recompute),
                      part(phase.exposed), part(phase.host), part(phase.hidden));
  }
  const auto tokens = static_cast<std::int64_t>(std::llround(time.tokens_per_second));
  text += wrapped("  ",
                  formatted("together {} ({} to {}), {} tokens/s, MFU {:.1f} %, HFU {:.1f} %; {}",
                            seconds_text(time.total), seconds_text(time.low), seconds_text(time.high), grouped(tokens),
                            100 * time.mfu, 100 * time.hfu, time.basis),
                  4);
  return text;
}

}  // namespace dsplan
