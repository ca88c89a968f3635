#include <csignal>
#include <exception>
#include <string>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "cli/commands.h"
#include "cli/output.h"
#include "core/error.h"

namespace {

// A run makes a few large vectors and ends: handing their pages back and fetching them again would cost a tenth of it.
void keep_memory() {
#if defined(__GLIBC__)
  (void)mallopt(M_MMAP_THRESHOLD, 1 << 30);
  (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
  (void)mallopt(M_TOP_PAD, 16 << 20);
#endif
}

}  // namespace

// The only place that turns refusals into exit codes.
int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // A reader that goes away is seen as EPIPE.
  keep_memory();
  try {
    return dsplan::run(dsplan::Words(argv + (argc > 0 ? 1 : 0), argv + argc));
  } catch (const dsplan::Refusal& refusal) {
    dsplan::say(refusal.what());
    return dsplan::kRefused;
  } catch (const std::exception& error) {
    dsplan::say("dsplan: a bug, please report it with the command and its files: " + std::string(error.what()) + "\n");
    return dsplan::kBug;
  }
}
