#include "cli/interrupt.h"

#include <csignal>

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

}  // namespace dsplan
