#include "exec/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "core/error.h"
#include "exec/failure.h"

namespace dsplan::exec {
namespace {

using Clock = std::chrono::steady_clock;

// What the launchers call rank, number of ranks, rank on the node and number on the node.
struct Launcher {
  const char* name;
  const char* rank;
  const char* ranks;
  const char* local_rank;
  const char* local_ranks;  // nullptr: it does not say.
};
constexpr std::array kLaunchers = {
    Launcher{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    Launcher{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
             "OMPI_COMM_WORLD_LOCAL_SIZE"},
    Launcher{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr},
    Launcher{"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

int number(const Variables& variable, const char* name, int least) {
  const char* text = variable(name);
  if (text == nullptr) throw Refusal(name, "is not set, though the launcher's other variables are");
  int value = 0;
  const std::string_view all(text);
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), value);
  if (error != std::errc() || end != all.data() + all.size() || value < least) {
    throw Refusal(name, fmt::format("\"{}\" is no number from {}", text, least));
  }
  return value;
}

// Whether all ranks are on this node, as far as the launcher says.
bool on_one_node(const Variables& variable, const Launcher& launcher, int ranks) {
  if (launcher.local_ranks != nullptr && variable(launcher.local_ranks) != nullptr) {
    return number(variable, launcher.local_ranks, 1) == ranks;
  }
  const char* nodes = variable("SLURM_NNODES");
  return nodes != nullptr && std::string_view(nodes) == "1";
}

// A connection or a listening socket, closed at its end.
class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  [[nodiscard]] bool open() const { return descriptor_ >= 0; }
  [[nodiscard]] int get() const { return descriptor_; }

 private:
  int descriptor_;
};

[[noreturn]] void fail(const LaunchPlace& place, dsplan_status status, std::string text) {
  throw RunFailure({status, place.rank, kNoEvent, "rendezvous", std::move(text)});
}

int left(Clock::time_point end) {
  const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
  return time > 0 ? static_cast<int>(std::min<std::int64_t>(time, 1 << 30)) : 0;
}

// All of it, or false: the other side went away, or time is over.
bool receive(const Socket& from, void* into, std::size_t bytes, Clock::time_point end) {
  auto* at = static_cast<char*>(into);
  while (bytes > 0) {
    pollfd wait{from.get(), POLLIN, 0};
    if (::poll(&wait, 1, left(end)) <= 0) return false;
    const ssize_t got = ::recv(from.get(), at, bytes, 0);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool send_all(const Socket& to, const void* from, std::size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t sent = ::send(to.get(), at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

// Who comes says so first; anybody else's words are not these.
struct Greeting {
  std::array<char, 8> magic{'d', 's', 'p', 'l', 'a', 'n', ' ', '1'};
  std::int32_t rank = 0;
  std::int32_t ranks = 0;
};

Socket listen_on(const LaunchPlace& place) {
  Socket socket(::socket(AF_INET6, SOCK_STREAM, 0));
  if (!socket.open()) fail(place, DSPLAN_UNAVAILABLE, std::strerror(errno));
  const int yes = 1;
  const int no = 0;
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  (void)::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  address.sin6_port = htons(static_cast<std::uint16_t>(place.port));
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), 128) != 0) {
    fail(place, DSPLAN_UNAVAILABLE, fmt::format("port {}: {}", place.port, std::strerror(errno)));
  }
  return socket;
}

// Rank 0: gives its bytes to each of the others, once.
void serve(const LaunchPlace& place, const std::vector<std::byte>& own, Clock::time_point end) {
  const Socket door = listen_on(place);
  std::vector<int> missing;
  for (int rank = 1; rank < place.ranks; ++rank) missing.push_back(rank);
  while (!missing.empty()) {
    pollfd wait{door.get(), POLLIN, 0};
    if (::poll(&wait, 1, left(end)) <= 0) {
      fail(place, DSPLAN_TIMEOUT, fmt::format("did not come: {}", fmt::join(missing, ", ")));
    }
    const Socket guest(::accept(door.get(), nullptr, nullptr));
    Greeting greeting;
    const Greeting expected;
    // Who says nothing holds the others up for no longer than this.
    const Clock::time_point soon = std::min(end, Clock::now() + std::chrono::seconds(2));
    if (!guest.open() || !receive(guest, &greeting, sizeof greeting, soon) || greeting.magic != expected.magic)
      continue;
    const auto found = std::find(missing.begin(), missing.end(), greeting.rank);
    if (greeting.ranks != place.ranks || found == missing.end()) {
      fail(place, DSPLAN_INVALID,
           fmt::format("rank {} of {} came, where there are {}{}", greeting.rank, greeting.ranks, place.ranks,
                       greeting.ranks == place.ranks ? ", for the second time" : ""));
    }
    const std::uint64_t bytes = own.size();
    if (send_all(guest, &bytes, sizeof bytes) && send_all(guest, own.data(), own.size())) missing.erase(found);
  }
}

Socket reach(const LaunchPlace& place) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(place.host.c_str(), std::to_string(place.port).c_str(), &hints, &found) != 0) return Socket(-1);
  int reached = -1;
  for (const addrinfo* at = found; at != nullptr && reached < 0; at = at->ai_next) {
    reached = ::socket(at->ai_family, at->ai_socktype, at->ai_protocol);
    if (reached < 0 || ::connect(reached, at->ai_addr, at->ai_addrlen) == 0) continue;
    ::close(reached);
    reached = -1;
  }
  ::freeaddrinfo(found);
  return Socket(reached);
}

std::vector<std::byte> fetch(const LaunchPlace& place, Clock::time_point end) {
  constexpr std::uint64_t kMostBytes = 1 << 20;
  for (;;) {
    const Socket host = reach(place);
    Greeting greeting;
    greeting.rank = place.rank;
    greeting.ranks = place.ranks;
    std::uint64_t bytes = 0;
    if (host.open() && send_all(host, &greeting, sizeof greeting) && receive(host, &bytes, sizeof bytes, end) &&
        bytes <= kMostBytes) {
      std::vector<std::byte> shared(bytes);
      if (receive(host, shared.data(), shared.size(), end)) return shared;
    }
    if (left(end) == 0) fail(place, DSPLAN_TIMEOUT, fmt::format("no rank 0 at {}:{}", place.host, place.port));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace

std::optional<LaunchPlace> launch_place(const Variables& variable) {
  for (const Launcher& launcher : kLaunchers) {
    if (variable(launcher.rank) == nullptr) continue;
    LaunchPlace place;
    place.launcher = launcher.name;
    place.rank = number(variable, launcher.rank, 0);
    place.ranks = number(variable, launcher.ranks, 1);
    place.local_rank = number(variable, launcher.local_rank, 0);
    if (place.rank >= place.ranks) {
      throw Refusal(launcher.rank, fmt::format("rank {} of {} ranks", place.rank, place.ranks));
    }
    if (const char* host = variable("MASTER_ADDR"); host != nullptr) {
      place.host = host;
    } else if (place.ranks == 1 || on_one_node(variable, launcher, place.ranks)) {
      place.host = "localhost";
    } else {
      throw Refusal("MASTER_ADDR",
                    fmt::format("is not set, and {} does not say that all ranks are on one node", launcher.name),
                    "the host name of rank 0");
    }
    if (variable("MASTER_PORT") != nullptr) place.port = number(variable, "MASTER_PORT", 1);
    return place;
  }
  return std::nullopt;
}

std::vector<std::byte> share(const LaunchPlace& place, const std::vector<std::byte>& own,
                             std::chrono::milliseconds patience) {
  const Clock::time_point end = Clock::now() + patience;
  if (place.rank != 0) return fetch(place, end);
  if (place.ranks > 1) serve(place, own, end);
  return own;
}

}  // namespace dsplan::exec
