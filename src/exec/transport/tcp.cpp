#include "exec/transport/tcp.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <set>

#include "core/error.h"
#include "core/format.h"
#include "exec/transport/tcp_communicator.h"

namespace dsplan::exec {
namespace {

struct Address {
  std::string host;
  std::int32_t port = 0;
};
template <class Archive>
void fields(Archive& archive, Address& address) {
  archive(address.host, address.port);
}

}  // namespace

TcpTransport::TcpTransport(Rendezvous& rendezvous)
    : rendezvous_(rendezvous), peers_(static_cast<std::size_t>(rendezvous.ranks())) {
  if (rendezvous.ranks() > 1) meet_peers();
}

// Each listens, all learn where, and of every two the later connects.
void TcpTransport::meet_peers() {
  const auto fail_here = [&](dsplan_status status, std::string text) {
    Failure failure{status, rendezvous_.rank(), kNoEvent, "connect", std::move(text)};
    rendezvous_.abort(failure);
    throw RunFailure(std::move(failure));
  };
  std::string why;
  Listener listener(rendezvous_.place(), 0, why);
  if (!listener.open()) fail_here(DSPLAN_UNAVAILABLE, "no port: " + why);
  const Address own{rendezvous_.address(), port_of(listener.socket())};
  const std::vector<Blob> all = rendezvous_.exchange(packed(own), "the address");
  const Clock::time_point end = Clock::now() + rendezvous_.timeout();
  for (int rank = 0; rank < rendezvous_.rank(); ++rank) {
    const auto address = unpacked<Address>(all[static_cast<std::size_t>(rank)]);
    const std::string there = formatted("rank {} at {}:{}", rank, address.host, address.port);
    Socket& peer = peers_[static_cast<std::size_t>(rank)];
    while (!peer.open() && milliseconds_left(end) > 0 && !rendezvous_.failure().get()) {
      Socket attempt = connect_to(address.host, address.port, end, why);
      if (attempt.open() && introduce(attempt, rendezvous_.place(), there, end, why)) peer = std::move(attempt);
    }
    rendezvous_.failure().check(rendezvous_.rank());
    if (!peer.open()) fail_here(DSPLAN_UNAVAILABLE, there + ": " + why);
  }
  for (int missing = rendezvous_.ranks() - 1 - rendezvous_.rank(); missing > 0;) {
    std::optional<Listener::Guest> guest =
        listener.accept(std::min(end, Clock::now() + std::chrono::milliseconds(200)));
    rendezvous_.failure().check(rendezvous_.rank());
    if (milliseconds_left(end) == 0) {
      fail_here(DSPLAN_TIMEOUT, formatted("{} ranks did not connect{}", missing, listener.describe_strangers()));
    }
    if (!guest || guest->rank <= rendezvous_.rank() || guest->rank >= rendezvous_.ranks()) continue;
    Socket& peer = peers_[static_cast<std::size_t>(guest->rank)];
    if (peer.open()) continue;
    peer = std::move(guest->socket);
    --missing;
  }
  listener.close();
  rendezvous_.count_strangers(listener.strangers());
  // Nobody begins before all are connected: else the failure of a rank that has begun would end another's set-up, which
  // has no report to hand in.
  (void)rendezvous_.exchange({}, "the connections");
}

void TcpTransport::divide(Group group, std::vector<std::vector<int>> groups) { groups_[group] = std::move(groups); }

std::unique_ptr<Communicator> TcpTransport::connect(Group group, Device& device) {
  if (!device.host_readable()) {
    throw RunFailure({DSPLAN_UNSUPPORTED, device.rank(), kNoEvent, "connect",
                      "connections between processes carry what the host can read"});
  }
  const auto found = groups_.find(group);
  if (found == groups_.end()) return alone(group, device);
  for (const std::vector<int>& members : found->second) {
    const auto me = std::find(members.begin(), members.end(), rendezvous_.rank());
    if (me == members.end()) continue;
    if (members.size() == 1) return alone(group, device);
    return std::make_unique<TcpCommunicator>(*this, group, members, static_cast<int>(me - members.begin()), device);
  }
  check_failed("each rank is in a group of each kind", __FILE__, __LINE__, std::string(dsplan::name(group)));
}

// Whoever still waits for this rank reads to the end of what it sent, and then that it has left.
void TcpTransport::leave(int rank) noexcept {
  if (rank != rendezvous_.rank()) return;
  rendezvous_.leave();
  for (Socket& peer : peers_) peer.end_sending();
}

void TcpTransport::fail(dsplan_status status, const CollectiveCall& about, std::string text) {
  Failure failure{status, rendezvous_.rank(), about.event, std::string(dsplan::name(about.kind)), std::move(text)};
  if (status != DSPLAN_ABORTED) rendezvous_.abort(failure);
  throw RunFailure(std::move(failure));
}

// The connection to `rank` is over: it has failed, or left, or its process is no more.
void TcpTransport::lose(int rank, const CollectiveCall& about, Group group) {
  rendezvous_.await_failure(rank);
  if (const std::optional<Failure> first = rendezvous_.failure().get()) fail(DSPLAN_ABORTED, about, describe(*first));
  if (rendezvous_.has_left(rank)) {
    fail(DSPLAN_INVALID, about,
         formatted("rank {} has finished, and takes no part in this call of group {}", rank, dsplan::name(group)));
  }
  fail(DSPLAN_UNAVAILABLE, about, formatted("the connection to rank {} is gone", rank));
}

// False: this side takes no more now, or the connection is over; then its other direction says so.
bool TcpTransport::push(Outgoing& out) {
  const ssize_t sent = ::send(peers_[static_cast<std::size_t>(out.rank)].get(), out.from,
                              static_cast<std::size_t>(out.bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent <= 0) return sent < 0 && (errno == EAGAIN || errno == EINTR);
  out.from += sent;
  out.bytes -= sent;
  return true;
}

bool TcpTransport::pull(Incoming& in, const CollectiveCall& about, Group group) {
  const ssize_t got = ::recv(peers_[static_cast<std::size_t>(in.rank)].get(), in.into,
                             static_cast<std::size_t>(in.bytes), MSG_DONTWAIT);
  if (got == 0) lose(in.rank, about, group);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  in.into += got;
  in.bytes -= got;
  return true;
}

// Until something can move: what is ready, of `out` and then of `in`.
std::vector<bool> TcpTransport::await_ready(const std::vector<Outgoing>& out, const std::vector<Incoming>& in,
                                            const CollectiveCall& about, Group group) {
  std::vector<pollfd> wait{{rendezvous_.failure().descriptor(), POLLIN, 0}};
  for (const Outgoing& each : out) wait.push_back({peers_[static_cast<std::size_t>(each.rank)].get(), POLLOUT, 0});
  for (const Incoming& each : in) wait.push_back({peers_[static_cast<std::size_t>(each.rank)].get(), POLLIN, 0});
  int count = -1;
  do {
    count = ::poll(wait.data(), wait.size(), static_cast<int>(rendezvous_.timeout().count()));
  } while (count < 0 && errno == EINTR);
  if (wait[0].revents != 0) {
    const std::optional<Failure> first = rendezvous_.failure().get();
    fail(DSPLAN_ABORTED, about, first ? describe(*first) : "");
  }
  if (count == 0) {
    std::set<int> late;
    for (const Incoming& each : in) late.insert(each.rank);
    for (const Outgoing& each : out) late.insert(each.rank);
    fail(DSPLAN_TIMEOUT, about,
         formatted("{} ms for rank {} of group {}", rendezvous_.timeout().count(),
                   joined(std::vector<int>(late.begin(), late.end()), ", rank "), dsplan::name(group)));
  }
  std::vector<bool> ready;
  for (std::size_t at = 1; at < wait.size(); ++at) ready.push_back(wait[at].revents != 0);
  return ready;
}

void TcpTransport::move(std::vector<Outgoing> out, std::vector<Incoming> in, const CollectiveCall& about, Group group) {
  const auto done = [](const auto& each) { return each.bytes == 0; };
  std::erase_if(out, done);
  std::erase_if(in, done);
  while (!out.empty() || !in.empty()) {
    const std::vector<bool> ready = await_ready(out, in, about, group);
    for (std::size_t at = 0; at < out.size(); ++at) {
      if (ready[at] && !push(out[at])) lose(out[at].rank, about, group);
    }
    for (std::size_t at = 0; at < in.size(); ++at) {
      if (ready[out.size() + at] && !pull(in[at], about, group)) lose(in[at].rank, about, group);
    }
    std::erase_if(out, done);
    std::erase_if(in, done);
  }
}

}  // namespace dsplan::exec
