#include "cli/progress.h"

#include <unistd.h>
#include <csignal>

#include "cli/output.h"
#include "core/format.h"
#include "core/units.h"

namespace dsplan {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set by a signal");

void note(int signal) {
  interrupted = true;
  std::signal(signal, SIG_DFL);
}

}  // namespace

Interrupt::Interrupt(On on) : before_(std::signal(SIGINT, note)) {
  if (on == On::Terminations) std::signal(SIGTERM, note);
}

Interrupt::~Interrupt() { std::signal(SIGINT, before_); }

const std::atomic<bool>& Interrupt::asked() { return interrupted; }

PlanProgress::PlanProgress(std::optional<std::int64_t> seconds) : terminal_(::isatty(STDERR_FILENO) == 1) {
  if (seconds) limit_ = std::chrono::seconds(*seconds);
}

bool PlanProgress::show(const SearchProgress& progress) {
  const Clock::time_point now = Clock::now();
  if (limit_ && now - begin_ >= *limit_) return false;
  if (!terminal_ || now - shown_ < std::chrono::milliseconds(200)) return true;
  shown_ = now;
  visible_ = true;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const double rate = seconds > 0 ? static_cast<double>(progress.simulated) / seconds : 0;
  std::string text = formatted("\r\033[K{} candidates, {} simulated, {:.0f} /s", grouped(progress.candidates),
                               grouped(progress.simulated), rate);
  if (progress.best != nullptr) text += formatted(", best {:.0f} tokens/s", progress.best->tokens_per_second());
  // Nobody knows when one will fit: this is the longest it can take.
  if (rate > 0 && progress.open > 0) {
    text += formatted(", at most {:.0f} s left", static_cast<double>(progress.open) / rate);
  }
  say(text);
  return true;
}

double PlanProgress::seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

void PlanProgress::clear() {
  if (visible_) say("\r\033[K");
  visible_ = false;
}

CountProgress::CountProgress(std::size_t all, const char* what) : all_(all), what_(what), terminal_(::isatty(2) == 1) {}

void CountProgress::done() {
  const std::size_t now = ++done_;
  if (!terminal_) return;
  constexpr std::int64_t kFirst = 500;
  constexpr std::int64_t kNext = 100;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin_).count();
  std::int64_t before = shown_;
  if (ms < kFirst || ms - before < kNext || !shown_.compare_exchange_strong(before, ms)) return;
  say(formatted("\r{} of {} {}\x1b[K", now, all_, what_));
}

void CountProgress::clear() {
  if (terminal_ && shown_ > 0) say("\r\x1b[K");
}

}  // namespace dsplan
