// Processes of a test that meet as the ranks of a run do.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "exec/failure.h"
#include "exec/rendezvous/launch_place.h"
#include "exec/rendezvous/rendezvous.h"
#include "ports.h"
#include "texts.h"

namespace dsplan::test {

// Apart for test runs that go on at the same time; the same for the processes of one.
inline const int first_port = first_port_of_process();

inline exec::LaunchPlace place(int rank, int ranks, int which) {
  exec::LaunchPlace made;
  made.rank = rank;
  made.ranks = ranks;
  made.host = "localhost";
  made.port = first_port + which;
  return made;
}

// Runs `body` in a process of its own; what it returns is the exit code.
template <class Body>
pid_t start(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  return child;
}

inline int end_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// What a process says when it fails to meet the others, or the failure that reaches it within `body`.
template <class Body>
std::string failure_of(const exec::LaunchPlace& where, std::chrono::milliseconds timeout, const Body& body) {
  try {
    exec::Rendezvous rendezvous(where, timeout);
    body(rendezvous);
    return rendezvous.failure().get() ? exec::describe(*rendezvous.failure().get()) : "none";
  } catch (const exec::RunFailure& failure) {
    return failure.what();
  }
}

}  // namespace dsplan::test
