#include "exec/rendezvous/rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/format.h"

namespace dsplan::exec {
namespace {

void open_pipe(int (&ends)[2]) {
  if (::pipe(ends) == 0) return;
  throw RunFailure({DSPLAN_UNAVAILABLE, -1, kNoEvent, "rendezvous", std::strerror(errno)});
}

}  // namespace

FirstFailure::FirstFailure() { open_pipe(pipe_); }

FirstFailure::~FirstFailure() {
  for (const int end : pipe_) ::close(end);
}

bool FirstFailure::set(const Failure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (first_) return false;
    first_ = failure;
    (void)!::write(pipe_[1], "x", 1);
  }
  const std::lock_guard lock(calling_);
  if (call_) call_();
  return true;
}

std::optional<Failure> FirstFailure::get() const {
  const std::lock_guard lock(mutex_);
  return first_;
}

void FirstFailure::check(int rank) const {
  const std::optional<Failure> first = get();
  if (first) throw RunFailure({DSPLAN_ABORTED, rank, kNoEvent, "rendezvous", describe(*first)});
}

void FirstFailure::on_set(std::function<void()> call) {
  const std::lock_guard lock(calling_);
  call_ = std::move(call);
  if (call_ && get()) call_();
}

Connections::Connections(int rank, std::vector<Socket> sockets, Reader reader)
    : rank_(rank), sockets_(std::move(sockets)), reader_(std::move(reader)) {
  open_pipe(stop_);
  listener_ = std::thread([this] { listen(); });
}

Connections::~Connections() {
  (void)!::write(stop_[1], "x", 1);
  listener_.join();
  for (const int end : stop_) ::close(end);
}

void Connections::listen() {
  std::vector<bool> over(sockets_.size(), false);
  for (;;) {
    std::vector<pollfd> wait{{stop_[0], POLLIN, 0}};
    std::vector<std::size_t> who{0};
    for (std::size_t rank = 0; rank < sockets_.size(); ++rank) {
      if (!sockets_[rank].open() || over[rank]) continue;
      wait.push_back({sockets_[rank].get(), POLLIN, 0});
      who.push_back(rank);
    }
    if (::poll(wait.data(), wait.size(), -1) < 0) continue;
    if (wait[0].revents != 0) return;
    for (std::size_t at = 1; at < wait.size(); ++at) {
      if (wait[at].revents == 0 || receive_from(who[at])) continue;
      over[who[at]] = true;
      reader_.lose(static_cast<int>(who[at]));
    }
  }
}

// False: the connection is over, or says what nobody understands.
bool Connections::receive_from(std::size_t rank) {
  try {
    Message message;
    if (!receive_message(sockets_[rank], message, Clock::now() + kGrace)) return false;
    reader_.take(static_cast<int>(rank), std::move(message));
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool Connections::send(int to, const Message& message) noexcept {
  const std::lock_guard lock(sending_);
  return put(to, message);
}

bool Connections::put(int to, const Message& message) noexcept {
  try {
    const Socket& socket = sockets_[static_cast<std::size_t>(to)];
    return socket.open() && send_message(socket, message, Clock::now() + kGrace);
  } catch (const std::exception&) {
    return false;
  }
}

void Connections::pass_on(const Message& message) noexcept {
  const std::lock_guard lock(sending_);
  for (int to = 0; to < static_cast<int>(sockets_.size()); ++to) {
    if (to != rank_ && (rank_ == 0 || to == 0)) (void)put(to, message);
  }
}

Rendezvous::Rendezvous(const LaunchPlace& place, std::chrono::milliseconds timeout, Meeting meeting)
    : place_(place),
      timeout_(timeout),
      address_(std::move(meeting.address)),
      strangers_(meeting.strangers),
      peers_(static_cast<std::size_t>(place.ranks)),
      connections_(
          place.rank, std::move(meeting.connections),
          {[this](int from, Message message) { take(from, std::move(message)); }, [this](int who) { lose(who); }}) {}

void Rendezvous::take(int from, Message message) {
  std::unique_lock lock(mutex_);
  Peer& peer = peers_[static_cast<std::size_t>(from)];
  switch (message.kind) {
    case Kind::Give: peer.given.push_back(std::move(message.bytes)); break;
    case Kind::Report: peer.report = std::move(message.bytes); break;
    case Kind::Announce: announced_ = std::move(message.bytes); break;
    case Kind::All: all_.push_back(unpacked<std::vector<Blob>>(message.bytes)); break;
    case Kind::Bye: peer.said_bye = true; break;
    case Kind::Abort: {
      lock.unlock();
      if (note(unpacked<Failure>(message.bytes)) && rank() == 0)
        connections_.pass_on({Kind::Abort, 0, std::move(message.bytes)});
      return;
    }
    case Kind::Leave:
      if (message.rank >= 0 && message.rank < ranks()) peers_[static_cast<std::size_t>(message.rank)].left = true;
      if (rank() == 0) {
        lock.unlock();
        connections_.pass_on(message);
      }
      break;
    case Kind::Start: break;  // Nobody says that here.
  }
  changed_.notify_all();
}

// The connection to `who` is over. Without a good-bye its process has ended, or its machine.
void Rendezvous::lose(int who) {
  bool expected = false;
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<std::size_t>(who)];
    peer.gone = true;
    expected = peer.said_bye;
  }
  if (!expected) {
    Failure failure{DSPLAN_UNAVAILABLE, who, kNoEvent, "process", "it ended without a word"};
    if (note(failure) && rank() == 0) connections_.pass_on({Kind::Abort, 0, packed(failure)});
  }
  changed_.notify_all();
}

// False: there was one before. The lock in between: nobody is between looking and going to sleep.
bool Rendezvous::note(const Failure& failure) {
  if (!failure_.set(failure)) return false;
  { const std::lock_guard lock(mutex_); }
  changed_.notify_all();
  return true;
}

std::vector<Blob> Rendezvous::exchange(const Blob& own, const std::string& what) {
  if (ranks() == 1) return {own};
  const Clock::time_point end = Clock::now() + timeout_ + (rank() == 0 ? std::chrono::seconds(0) : kGrace);
  if (rank() != 0) (void)connections_.send(0, {Kind::Give, rank(), own});
  std::unique_lock lock(mutex_);
  const auto missing = [&] {
    std::vector<int> list;
    for (int at = 1; at < ranks(); ++at) {
      if (peers_[static_cast<std::size_t>(at)].given.empty()) list.push_back(at);
    }
    return list;
  };
  const auto done = [&] { return rank() == 0 ? missing().empty() : !all_.empty(); };
  const bool came = changed_.wait_until(lock, end, [&] { return failure_.get() || done(); });
  // What all have given counts, though one of them failed since: they part at the same place.
  if (!done()) failure_.check(rank());
  if (!came) {
    const std::vector<int> late = rank() == 0 ? missing() : std::vector<int>{0};
    lock.unlock();
    Failure failure{
        DSPLAN_TIMEOUT, rank(), kNoEvent, "rendezvous",
        formatted("{} s for {} of rank {}", std::chrono::duration<double>(timeout_).count(), what, joined(late, ", "))};
    abort(failure);
    throw RunFailure(std::move(failure));
  }
  std::vector<Blob> result;
  if (rank() != 0) {
    result = std::move(all_.front());
    all_.erase(all_.begin());
    return result;
  }
  result.push_back(own);
  for (int at = 1; at < ranks(); ++at) {
    std::vector<Blob>& given = peers_[static_cast<std::size_t>(at)].given;
    result.push_back(std::move(given.front()));
    given.erase(given.begin());
  }
  lock.unlock();
  connections_.pass_on({Kind::All, 0, packed(result)});
  return result;
}

std::vector<std::optional<Blob>> Rendezvous::gather(const Blob& own) {
  if (rank() != 0) {
    (void)connections_.send(0, {Kind::Report, rank(), own});
    return {};
  }
  std::unique_lock lock(mutex_);
  (void)changed_.wait_for(lock, timeout_, [&] {
    return std::all_of(peers_.begin() + 1, peers_.end(), [](const Peer& peer) { return peer.report || peer.gone; });
  });
  std::vector<std::optional<Blob>> result{own};
  for (std::size_t at = 1; at < peers_.size(); ++at) result.push_back(peers_[at].report);
  return result;
}

void Rendezvous::announce(const Blob& bytes) noexcept { connections_.pass_on({Kind::Announce, 0, bytes}); }

std::optional<Blob> Rendezvous::await_announcement() {
  std::unique_lock lock(mutex_);
  (void)changed_.wait_for(lock, timeout_ + kGrace, [&] { return announced_.has_value() || peers_[0].gone; });
  return announced_;
}

void Rendezvous::abort(const Failure& failure) noexcept {
  try {
    if (note(failure)) connections_.pass_on({Kind::Abort, rank(), packed(failure)});
  } catch (const std::exception&) {
    // No memory to say it: this process ends, and the others notice that.
  }
}

void Rendezvous::leave() noexcept {
  {
    const std::lock_guard lock(mutex_);
    peers_[static_cast<std::size_t>(rank())].left = true;
  }
  connections_.pass_on({Kind::Leave, rank(), {}});
}

bool Rendezvous::has_left(int rank) const {
  const std::lock_guard lock(mutex_);
  return peers_[static_cast<std::size_t>(rank)].left;
}

void Rendezvous::await_failure(int rank) const {
  std::unique_lock lock(mutex_);
  (void)changed_.wait_for(lock, kMoment,
                          [&] { return failure_.get() || (rank >= 0 && peers_[static_cast<std::size_t>(rank)].left); });
}

}  // namespace dsplan::exec
