// Ports of this test process: a block of its own, so that tests that run at the same time, whose processes often have
// neighbouring numbers, do not meet; and below those that the system gives to outgoing connections.
#pragma once

#include <unistd.h>

namespace dsplan::test {

inline constexpr int kPortsOfAProcess = 32;
inline int first_port_of_process() { return 10000 + static_cast<int>(::getpid()) % 700 * kPortsOfAProcess; }
inline int next_port() {
  static int port = first_port_of_process();
  return ++port;
}

}  // namespace dsplan::test
