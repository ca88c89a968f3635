// TCP connections between the processes of a run and messages over them, each call with a time by which it returns.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "exec/rendezvous/packing.h"

namespace dsplan::exec {

using Clock = std::chrono::steady_clock;

// 0 once it is over; for poll.
[[nodiscard]] int milliseconds_left(Clock::time_point end);

// A connection or a listening socket, closed at its end.
class Socket {
 public:
  explicit Socket(int descriptor = -1) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  void close() noexcept;
  // The other side reads to the end of what was sent, and then that it is over.
  void end_sending() noexcept;
  [[nodiscard]] bool open() const { return descriptor_ >= 0; }
  [[nodiscard]] int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// Who can connect: processes of this machine alone (127.0.0.1, or ::1 where there is no such address), or whoever
// reaches any of its addresses, IPv6 and IPv4.
enum class Reach { Loopback, Everywhere };
// Port 0: any free one. Not open: `why` says it.
[[nodiscard]] Socket listen_on(Reach reach, int port, std::string& why);
[[nodiscard]] int port_of(const Socket& listening);
// Who connects next; not open where nobody did until `end`.
[[nodiscard]] Socket accept_from(const Socket& listening, Clock::time_point end);
// One attempt. Not open: `why` says it.
[[nodiscard]] Socket connect_to(const std::string& host, int port, Clock::time_point end, std::string& why);
// The same to who listens with this reach on this machine, or at `host`.
[[nodiscard]] Socket connect_to(Reach reach, const std::string& host, int port, Clock::time_point end,
                                std::string& why);
// This machine's address as the other side of a connection sees it: what third parties can reach, too; of a listening
// socket the address that it listens at. In numbers.
[[nodiscard]] std::string own_address(const Socket& socket);
[[nodiscard]] std::string other_address(const Socket& connection);

// All of it, or false: the other side went away, or time is over.
[[nodiscard]] bool receive(const Socket& from, void* into, std::size_t bytes, Clock::time_point end);
[[nodiscard]] bool send_all(const Socket& to, const void* from, std::size_t bytes, Clock::time_point end);

// Rank 0 is to find out who is missing before others give up on it.
inline constexpr std::chrono::seconds kGrace{5};
// How long a stranger, or a process that does not read, holds the others up.
inline constexpr std::chrono::seconds kMoment{2};

// One message between two processes of a run that have admitted each other (exec/rendezvous/admission.h).
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
