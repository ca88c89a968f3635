#include "exec/rendezvous/admission.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <thread>

#include "core/error.h"
#include "core/format.h"
#include "core/sha256.h"
#include "exec/rendezvous/sockets.h"

namespace dsplan::exec {
namespace {

constexpr std::array<char, 8> kMagic{'d', 's', 'p', 'l', 'a', 'n', ' ', '3'};
constexpr std::size_t kMostCallers = 128;
// Of a Hello: what is compared before the rest is read.
constexpr std::size_t kCredential = offsetof(Hello, rank);
static_assert(kCredential == 72 && sizeof(Hello) == 80, "sent as it lies in memory");

struct HostAnswer {
  std::array<char, 8> magic = kMagic;
  std::array<char, 64> proof{};  // Zeros: not to this one.
};

std::string proof_of(const LaunchPlace& place, std::string_view direction) {
  return sha256(formatted("dsplan run, {}\n{}", direction, place.identity));
}
std::string proof_of_guest(const LaunchPlace& place) { return proof_of(place, "who connects"); }
std::string proof_of_host(const LaunchPlace& place) { return proof_of(place, "who listens"); }

// It takes as long whatever differs.
bool equal_in_constant_time(const char* a, const char* b, std::size_t bytes) {
  volatile unsigned difference = 0;
  for (std::size_t at = 0; at < bytes; ++at) {
    difference = difference | static_cast<unsigned>(static_cast<unsigned char>(a[at] ^ b[at]));
  }
  return difference == 0;
}

Failure rendezvous_failure(const LaunchPlace& place, dsplan_status status, std::string text) {
  return {status, place.rank, kNoEvent, "rendezvous", std::move(text)};
}

double seconds_of(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

Listener::Listener(const LaunchPlace& place, int port, std::string& why)
    : place_(place), proof_(proof_of_guest(place)), socket_(listen_on(reach_of(place), port, why)) {
  DSPLAN_CHECK(place.local || !place.identity.empty(), "a run beyond this machine has an identity");
}

std::optional<Listener::Guest> Listener::accept(Clock::time_point end) {
  for (;;) {
    drop_late();
    Clock::time_point next = end;
    std::vector<pollfd> wait{{socket_.get(), POLLIN, 0}};
    for (const Caller& caller : callers_) {
      wait.push_back({caller.socket.get(), POLLIN, 0});
      next = std::min(next, caller.end);
    }
    const int ready = ::poll(wait.data(), wait.size(), milliseconds_left(next));
    for (std::size_t at = callers_.size(); ready > 0 && at-- > 0;) {
      if (wait[at + 1].revents == 0) continue;
      const Progress progress = read(callers_[at]);
      if (progress == Progress::Unfinished) continue;
      Caller caller = std::move(callers_[at]);
      callers_.erase(callers_.begin() + static_cast<std::ptrdiff_t>(at));
      if (progress == Progress::Admitted) return Guest{std::move(caller.socket), caller.hello.rank, caller.hello.ranks};
    }
    if (ready > 0 && wait[0].revents != 0) take_in();
    if (milliseconds_left(end) == 0) return std::nullopt;
  }
}

// A flood drops its own oldest connections first: a rank says who it is at once, and comes again if it was not heard.
void Listener::take_in() {
  Socket socket = accept_from(socket_, Clock::now());
  const bool full = !socket.open() || callers_.size() == kMostCallers;
  if (full && !callers_.empty()) {
    drop(callers_.front(), "one of too many at a time");
    callers_.erase(callers_.begin());
  }
  if (socket.open()) callers_.push_back({std::move(socket), Clock::now() + kMoment, 0, {}});
}

Listener::Progress Listener::read(Caller& caller) {
  auto* bytes = reinterpret_cast<char*>(&caller.hello);
  while (caller.got < sizeof(Hello)) {
    const std::size_t goal = caller.got < kCredential ? kCredential : sizeof(Hello);
    const ssize_t got = ::recv(caller.socket.get(), bytes + caller.got, goal - caller.got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Progress::Unfinished;
    if (got <= 0) return drop(caller, "it went away without saying who it is");
    caller.got += static_cast<std::size_t>(got);
    if (caller.got != kCredential) continue;
    if (!equal_in_constant_time(caller.hello.magic.data(), kMagic.data(), kMagic.size())) {
      return drop(caller, "it speaks otherwise");
    }
    const bool known = equal_in_constant_time(caller.hello.proof.data(), proof_.data(), proof_.size());
    if (known) continue;
    const HostAnswer answer;
    (void)send_all(caller.socket, &answer, sizeof answer, Clock::now());
    return drop(caller, "its run has another identity");
  }
  HostAnswer answer;
  const std::string proof = proof_of_host(place_);
  std::copy(proof.begin(), proof.end(), answer.proof.begin());
  if (!send_all(caller.socket, &answer, sizeof answer, Clock::now() + kMoment)) {
    return drop(caller, "it went away without an answer");
  }
  return Progress::Admitted;
}

Listener::Progress Listener::drop(const Caller& caller, const char* why) {
  ++strangers_;
  last_ = formatted("{}: {}", other_address(caller.socket), why);
  return Progress::Dropped;
}

void Listener::drop_late() {
  const Clock::time_point now = Clock::now();
  std::erase_if(callers_, [&](const Caller& caller) {
    if (now < caller.end) return false;
    drop(caller, caller.got == 0 ? "it said nothing" : "it said half of who it is");
    return true;
  });
}

void Listener::close() {
  for (;;) {
    Socket socket = accept_from(socket_, Clock::now());
    if (!socket.open()) break;
    callers_.push_back({std::move(socket), Clock::now(), 0, {}});
  }
  for (const Caller& caller : callers_) drop(caller, "it said nothing before all ranks had come");
  callers_.clear();
  socket_.close();
}

std::string Listener::describe_strangers() const {
  if (strangers_ == 0) return {};
  return formatted("; {} connection{} not of this run ({}), the last from {}", strangers_,
                   strangers_ == 1 ? " was" : "s were", describe_identity(place_), last_);
}

bool introduce(const Socket& host, const LaunchPlace& place, const std::string& there, Clock::time_point end,
               std::string& why) {
  Hello hello{kMagic, {}, place.rank, place.ranks};
  const std::string own = proof_of_guest(place);
  std::copy(own.begin(), own.end(), hello.proof.begin());
  HostAnswer answer;
  if (!send_all(host, &hello, sizeof hello, end) || !receive(host, &answer, sizeof answer, end + kGrace) ||
      answer.magic != kMagic) {
    why = "what answers there is no rank of a run";
    return false;
  }
  const std::string theirs = proof_of_host(place);
  if (equal_in_constant_time(answer.proof.data(), theirs.data(), theirs.size())) return true;
  throw RunFailure(rendezvous_failure(
      place, DSPLAN_INVALID,
      formatted("{} is of another run: rank {} has {}", there, place.rank, describe_identity(place))));
}

namespace {

// Rank 0 waits for the others.
class Host {
 public:
  Host(const LaunchPlace& place, std::chrono::milliseconds timeout, Meeting& meeting)
      : place_(place), timeout_(timeout), meeting_(meeting) {
    for (int rank = 1; rank < place.ranks; ++rank) missing_.push_back(rank);
  }

  void receive_all(Clock::time_point end) {
    std::string why;
    Listener listener(place_, place_.port, why);
    if (!listener.open()) {
      throw RunFailure(rendezvous_failure(place_, DSPLAN_UNAVAILABLE, formatted("port {}: {}", place_.port, why)));
    }
    meeting_.address = place_.local ? own_address(listener.socket()) : place_.host;
    while (!missing_.empty()) {
      std::optional<Listener::Guest> guest = listener.accept(end);
      if (!guest) fail({DSPLAN_TIMEOUT, 0, kNoEvent, "rendezvous", describe_missing() + listener.describe_strangers()});
      admit(std::move(*guest));
    }
    listener.close();
    meeting_.strangers = listener.strangers();
    tell_all({Message::Kind::Start, 0, {}});
  }

 private:
  void admit(Listener::Guest guest) {
    const auto found = std::find(missing_.begin(), missing_.end(), guest.rank);
    if (guest.ranks != place_.ranks || found == missing_.end()) {
      Failure failure =
          rendezvous_failure(place_, DSPLAN_INVALID,
                             formatted("rank {} of {} came, where there are {}{}", guest.rank, guest.ranks,
                                       place_.ranks, guest.ranks == place_.ranks ? ", for the second time" : ""));
      (void)send_message(guest.socket, {Message::Kind::Abort, 0, packed(failure)}, Clock::now() + kMoment);
      fail(std::move(failure));
    }
    meeting_.connections[static_cast<std::size_t>(guest.rank)] = std::move(guest.socket);
    missing_.erase(found);
  }

  [[nodiscard]] std::string describe_missing() const {
    return formatted("{} s for rank{} {}, at port {}", seconds_of(timeout_), missing_.size() > 1 ? "s" : "",
                     joined(missing_, ", "), place_.port);
  }

  void tell_all(const Message& message) {
    for (const Socket& socket : meeting_.connections) {
      if (socket.open()) (void)send_message(socket, message, Clock::now() + kGrace);
    }
  }

  // Those who came are told why it comes to nothing.
  [[noreturn]] void fail(Failure failure) {
    tell_all({Message::Kind::Abort, 0, packed(failure)});
    throw RunFailure(std::move(failure));
  }

  const LaunchPlace& place_;
  std::chrono::milliseconds timeout_;
  Meeting& meeting_;
  std::vector<int> missing_;
};

// False: nobody there, or not rank 0 of a run. Throws what rank 0 says.
bool started_by(const Socket& host, const LaunchPlace& place, const std::string& there, Clock::time_point end,
                std::string& why) {
  if (!introduce(host, place, there, end, why)) return false;
  Message answer;
  if (!receive_message(host, answer, end + kGrace)) {
    why = "it went away before all ranks had come";
    return false;
  }
  if (answer.kind == Message::Kind::Abort) throw RunFailure(unpacked<Failure>(answer.bytes));
  return answer.kind == Message::Kind::Start;
}

void reach_rank_0(const LaunchPlace& place, std::chrono::milliseconds timeout, Clock::time_point end,
                  Meeting& meeting) {
  const std::string there = formatted("rank 0 at {}:{}", place.host, place.port);
  std::string why = "nobody answers";
  for (;;) {
    Socket host = connect_to(reach_of(place), place.host, place.port, end, why);
    if (host.open() && started_by(host, place, there, end, why)) {
      meeting.address = own_address(host);
      meeting.connections[0] = std::move(host);
      return;
    }
    if (milliseconds_left(end) == 0) {
      throw RunFailure(
          rendezvous_failure(place, DSPLAN_TIMEOUT, formatted("{} s for {}: {}", seconds_of(timeout), there, why)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace

Meeting meet(const LaunchPlace& place, std::chrono::milliseconds timeout) {
  DSPLAN_CHECK(place.rank >= 0 && place.rank < place.ranks, "a rank beyond the number of ranks");
  const Clock::time_point end = Clock::now() + timeout;
  Meeting meeting;
  meeting.connections.resize(static_cast<std::size_t>(place.ranks));
  meeting.address = place.host;
  if (place.rank != 0) {
    reach_rank_0(place, timeout, end, meeting);
  } else if (place.ranks > 1) {
    Host(place, timeout, meeting).receive_all(end);
  }
  return meeting;
}

}  // namespace dsplan::exec
