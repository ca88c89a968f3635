#include <csignal>
#include <exception>
#include <string>

#include "cli/commands.h"
#include "cli/output.h"
#include "core/error.h"

// The only place that turns refusals into exit codes.
int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // A reader that goes away is seen as EPIPE.
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
