// One message between two processes of a run that have admitted each other (exec/admission.h).
#pragma once

#include <chrono>
#include <cstdint>

#include "exec/packing.h"
#include "exec/sockets.h"

namespace dsplan::exec {

// Rank 0 is to find out who is missing before others give up on it.
inline constexpr std::chrono::seconds kGrace{5};
// How long a stranger, or a process that does not read, holds the others up.
inline constexpr std::chrono::seconds kMoment{2};

struct Message {
  enum class Kind : std::uint32_t { Start, Give, All, Report, Announce, Abort, Leave, Bye };
  Kind kind = Kind::Bye;
  int rank = 0;  // That it is about.
  Blob bytes;
};

// False: the connection is over, time is, or what comes is no message.
[[nodiscard]] bool send_message(const Socket& socket, const Message& message, Clock::time_point end);
[[nodiscard]] bool receive_message(const Socket& socket, Message& message, Clock::time_point end);

}  // namespace dsplan::exec
