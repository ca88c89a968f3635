#include "exec/rendezvous/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace dsplan::exec {
namespace {

// Small messages go at once, and a machine that vanished without a word is noticed after about half a minute.
void tune(int descriptor) {
  const auto set = [&](int level, int name, int value) {
    (void)::setsockopt(descriptor, level, name, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
}

bool wait_for(int descriptor, short what, Clock::time_point end) {
  pollfd wait{descriptor, what, 0};
  for (;;) {
    const int ready = ::poll(&wait, 1, milliseconds_left(end));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

// One address; 0, or why not.
int connect_one(int descriptor, const addrinfo& address, Clock::time_point end) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  (void)::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK);
  if (::connect(descriptor, address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno;
    if (!wait_for(descriptor, POLLOUT, end)) return ETIMEDOUT;
    int trouble = 0;
    socklen_t size = sizeof trouble;
    (void)::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &trouble, &size);
    if (trouble != 0) return trouble;
  }
  (void)::fcntl(descriptor, F_SETFL, flags);
  return 0;
}

// Of one end of a connection, in numbers.
std::string address_of(const Socket& socket, int (*end_of)(int, sockaddr*, socklen_t*), const char* unknown) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  std::array<char, NI_MAXHOST> text{};
  auto* end = reinterpret_cast<sockaddr*>(&address);
  if (end_of(socket.get(), end, &size) != 0 ||
      ::getnameinfo(end, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return unknown;
  }
  return text.data();
}

}  // namespace

int milliseconds_left(Clock::time_point end) {
  const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
  return time > 0 ? static_cast<int>(std::min<std::int64_t>(time, 1 << 30)) : 0;
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

void Socket::close() noexcept {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void Socket::end_sending() noexcept {
  if (descriptor_ >= 0) (void)::shutdown(descriptor_, SHUT_WR);
}

Socket listen_on(Reach reach, int port, std::string& why) {
  // Where a machine lacks one family the other does.
  const bool loopback = reach == Reach::Loopback;
  for (const int family : {loopback ? AF_INET : AF_INET6, loopback ? AF_INET6 : AF_INET}) {
    Socket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.open()) {
      why = std::strerror(errno);
      continue;
    }
    const int yes = 1;
    const int no = 0;
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_addr = loopback ? in6addr_loopback : in6addr_any;
    six.sin6_port = htons(static_cast<std::uint16_t>(port));
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
    four.sin_port = htons(static_cast<std::uint16_t>(port));
    if (family == AF_INET6) (void)::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    const auto* address =
        family == AF_INET6 ? reinterpret_cast<const sockaddr*>(&six) : reinterpret_cast<const sockaddr*>(&four);
    const socklen_t size = family == AF_INET6 ? sizeof six : sizeof four;
    if (::bind(socket.get(), address, size) == 0 && ::listen(socket.get(), 1024) == 0) return socket;
    why = std::strerror(errno);
    if (errno == EADDRINUSE) break;
  }
  return Socket();
}

int port_of(const Socket& listening) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  const auto port = address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                                  : reinterpret_cast<const sockaddr_in&>(address).sin_port;
  return ntohs(port);
}

Socket accept_from(const Socket& listening, Clock::time_point end) {
  if (!wait_for(listening.get(), POLLIN, end)) return Socket();
  Socket guest(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (guest.open()) tune(guest.get());
  return guest;
}

Socket connect_to(const std::string& host, int port, Clock::time_point end, std::string& why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int looked = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (looked != 0) {
    why = ::gai_strerror(looked);
    return Socket();
  }
  Socket reached;
  for (const addrinfo* at = found; at != nullptr && !reached.open(); at = at->ai_next) {
    Socket attempt(::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol));
    const int trouble = attempt.open() ? connect_one(attempt.get(), *at, end) : errno;
    if (trouble == 0) {
      reached = std::move(attempt);
    } else {
      why = std::strerror(trouble);
    }
  }
  ::freeaddrinfo(found);
  if (reached.open()) tune(reached.get());
  return reached;
}

Socket connect_to(Reach reach, const std::string& host, int port, Clock::time_point end, std::string& why) {
  if (reach == Reach::Everywhere) return connect_to(host, port, end, why);
  Socket reached = connect_to("127.0.0.1", port, end, why);
  std::string ignored;
  return reached.open() ? std::move(reached) : connect_to("::1", port, end, ignored);
}

std::string own_address(const Socket& socket) { return address_of(socket, ::getsockname, "localhost"); }
std::string other_address(const Socket& connection) { return address_of(connection, ::getpeername, "nowhere"); }

bool receive(const Socket& from, void* into, std::size_t bytes, Clock::time_point end) {
  auto* at = static_cast<char*>(into);
  while (bytes > 0) {
    if (!wait_for(from.get(), POLLIN, end)) return false;
    const ssize_t got = ::recv(from.get(), at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool send_all(const Socket& to, const void* from, std::size_t bytes, Clock::time_point end) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    if (!wait_for(to.get(), POLLOUT, end)) return false;
    const ssize_t sent = ::send(to.get(), at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

namespace {

constexpr std::uint64_t kMostMessageBytes = 64ULL << 20;

struct MessageHeader {
  std::uint32_t kind = 0;
  std::int32_t rank = 0;
  std::uint64_t bytes = 0;
};

}  // namespace

bool send_message(const Socket& socket, const Message& message, Clock::time_point end) {
  const MessageHeader header{static_cast<std::uint32_t>(message.kind), message.rank, message.bytes.size()};
  Blob bytes(sizeof header + message.bytes.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  std::copy(message.bytes.begin(), message.bytes.end(), bytes.begin() + sizeof header);
  return send_all(socket, bytes.data(), bytes.size(), end);
}

bool receive_message(const Socket& socket, Message& message, Clock::time_point end) {
  MessageHeader header;
  if (!receive(socket, &header, sizeof header, end) || header.bytes > kMostMessageBytes ||
      header.kind > static_cast<std::uint32_t>(Message::Kind::Bye)) {
    return false;
  }
  message.kind = static_cast<Message::Kind>(header.kind);
  message.rank = header.rank;
  message.bytes.resize(header.bytes);
  return receive(socket, message.bytes.data(), message.bytes.size(), end);
}

}  // namespace dsplan::exec
