#include "exec/assembly.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/error.h"
#include "core/format.h"
#include "exec/packed_failure.h"

namespace dsplan::exec {
namespace {

constexpr std::array<char, 8> kMagic{'d', 's', 'p', 'l', 'a', 'n', ' ', '2'};
constexpr std::uint64_t kMostBytes = 64ULL << 20;
// Rank 0 is to find out who is missing before others give up on it.
constexpr std::chrono::seconds kGrace{5};
// How long a stranger at the door, or a process that does not read, holds the others up.
constexpr std::chrono::seconds kMoment{2};

struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint32_t word = 0;
  std::int32_t rank = 0;
  std::uint64_t bytes = 0;
};

}  // namespace

bool Assembly::send_on(const Socket& socket, const Frame& frame, Clock::time_point end) {
  Header header;
  header.word = static_cast<std::uint32_t>(frame.word);
  header.rank = frame.rank;
  header.bytes = frame.blob.size();
  Blob bytes(sizeof header + frame.blob.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  std::copy(frame.blob.begin(), frame.blob.end(), bytes.begin() + sizeof header);
  return send_all(socket, bytes.data(), bytes.size(), end);
}

bool Assembly::receive_from(const Socket& socket, Frame& frame, Clock::time_point end) {
  Header header;
  if (!exec::receive(socket, &header, sizeof header, end) || header.magic != kMagic || header.bytes > kMostBytes ||
      header.word > static_cast<std::uint32_t>(Word::Bye)) {
    return false;
  }
  frame.word = static_cast<Word>(header.word);
  frame.rank = header.rank;
  frame.blob.resize(header.bytes);
  return exec::receive(socket, frame.blob.data(), frame.blob.size(), end);
}

Assembly::Assembly(LaunchPlace place, std::chrono::milliseconds patience)
    : place_(std::move(place)), patience_(patience), peers_(static_cast<std::size_t>(place_.ranks)) {
  DSPLAN_CHECK(place_.rank >= 0 && place_.rank < place_.ranks, "a rank beyond the number of ranks");
  const Clock::time_point end = Clock::now() + patience;
  address_ = place_.host;
  if (place_.rank != 0) {
    reach_rank_0(end);
  } else if (place_.ranks > 1) {
    receive_all(end);
  }
  if (::pipe(alarm_) != 0 || ::pipe(stop_) != 0) fail(DSPLAN_UNAVAILABLE, std::strerror(errno));
  listener_ = std::thread([this] { listen(); });
}

Assembly::~Assembly() {
  pass_on({Word::Bye, rank(), {}});
  (void)!::write(stop_[1], "x", 1);
  listener_.join();
  for (const int end : {alarm_[0], alarm_[1], stop_[0], stop_[1]}) ::close(end);
}

void Assembly::fail(dsplan_status status, std::string text) const {
  throw RunFailure({status, rank(), kNoEvent, "rendezvous", std::move(text)});
}

// Rank 0: those who came are told why it comes to nothing.
void Assembly::fail_meeting(Failure failure) {
  pass_on({Word::Abort, 0, packed(failure)});
  throw RunFailure(std::move(failure));
}

void Assembly::receive_all(Clock::time_point end) {
  std::string why;
  const Socket door = listen_on(place_.port, why);
  if (!door.open()) fail(DSPLAN_UNAVAILABLE, formatted("port {}: {}", place_.port, why));
  std::vector<int> missing;
  for (int rank = 1; rank < place_.ranks; ++rank) missing.push_back(rank);
  while (!missing.empty()) {
    Socket guest = accept_from(door, end);
    if (milliseconds_left(end) == 0) {
      fail_meeting({DSPLAN_TIMEOUT, 0, kNoEvent, "rendezvous",
                    formatted("{} s for rank{} {}, at port {}", std::chrono::duration<double>(patience_).count(),
                              missing.size() > 1 ? "s" : "", joined(missing, ", "), place_.port)});
    }
    if (guest.open()) admit(std::move(guest), end, missing);
  }
  pass_on({Word::Welcome, 0, {}});
}

// Who comes says so first; anybody else's words are not these.
void Assembly::admit(Socket guest, Clock::time_point end, std::vector<int>& missing) {
  Frame hello;
  std::int32_t ranks = 0;
  if (!receive_from(guest, hello, std::min(end, Clock::now() + kMoment)) || hello.word != Word::Hello ||
      hello.blob.size() != sizeof ranks) {
    return;
  }
  std::memcpy(&ranks, hello.blob.data(), sizeof ranks);
  const auto found = std::find(missing.begin(), missing.end(), hello.rank);
  if (ranks != place_.ranks || found == missing.end()) {
    Failure failure{DSPLAN_INVALID, 0, kNoEvent, "rendezvous",
                    formatted("rank {} of {} came, where there are {}{}", hello.rank, ranks, place_.ranks,
                              ranks == place_.ranks ? ", for the second time" : "")};
    (void)send_on(guest, {Word::Abort, 0, packed(failure)}, Clock::now() + kMoment);
    fail_meeting(std::move(failure));
  }
  peers_[static_cast<std::size_t>(hello.rank)].socket = std::move(guest);
  missing.erase(found);
}

// False: nobody there, or not rank 0 of a run. Throws what rank 0 says.
bool Assembly::greet(const Socket& host, Clock::time_point end, std::string& why) {
  const std::int32_t ranks = place_.ranks;
  Blob blob(sizeof ranks);
  std::memcpy(blob.data(), &ranks, sizeof ranks);
  Frame answer;
  if (!send_on(host, {Word::Hello, rank(), std::move(blob)}, end) || !receive_from(host, answer, end + kGrace)) {
    why = "what answers there is no rank 0 of a run";
    return false;
  }
  if (answer.word == Word::Abort) {
    Failure failure = unpacked<Failure>(answer.blob);
    throw RunFailure(std::move(failure));
  }
  return answer.word == Word::Welcome;
}

void Assembly::reach_rank_0(Clock::time_point end) {
  std::string why = "nobody answers";
  for (;;) {
    Socket host = connect_to(place_.host, place_.port, end, why);
    if (host.open()) {
      address_ = own_address(host);
      if (greet(host, end, why)) {
        peers_[0].socket = std::move(host);
        return;
      }
    }
    if (milliseconds_left(end) == 0) {
      fail(DSPLAN_TIMEOUT, formatted("{} s for rank 0 at {}:{}: {}", std::chrono::duration<double>(patience_).count(),
                                     place_.host, place_.port, why));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// The listening thread.
void Assembly::listen() {
  for (;;) {
    std::vector<pollfd> wait{{stop_[0], POLLIN, 0}};
    std::vector<int> who{-1};
    for (int rank = 0; rank < ranks(); ++rank) {
      const Peer& peer = peers_[static_cast<std::size_t>(rank)];
      if (!peer.socket.open() || peer.gone) continue;  // `gone` is this thread's to set.
      wait.push_back({peer.socket.get(), POLLIN, 0});
      who.push_back(rank);
    }
    if (::poll(wait.data(), wait.size(), -1) < 0) continue;
    if (wait[0].revents != 0) return;
    for (std::size_t at = 1; at < wait.size(); ++at) {
      if (wait[at].revents == 0) continue;
      if (!hear_from(who[at])) lose(who[at]);
    }
  }
}

// False: the connection is over, or says what nobody understands.
bool Assembly::hear_from(int rank) {
  try {
    Frame frame;
    if (!receive_from(peers_[static_cast<std::size_t>(rank)].socket, frame, Clock::now() + kGrace)) return false;
    take(rank, std::move(frame));
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void Assembly::take(int from, Frame frame) {
  std::unique_lock lock(mutex_);
  Peer& peer = peers_[static_cast<std::size_t>(from)];
  switch (frame.word) {
    case Word::Give: peer.given.push_back(std::move(frame.blob)); break;
    case Word::Report: peer.report = std::move(frame.blob); break;
    case Word::Tell: told_ = std::move(frame.blob); break;
    case Word::All: all_.push_back(unpacked<std::vector<Blob>>(frame.blob)); break;
    case Word::Bye: peer.said_bye = true; break;
    case Word::Abort: {
      lock.unlock();
      if (note(unpacked<Failure>(frame.blob)) && rank() == 0) pass_on({Word::Abort, 0, std::move(frame.blob)});
      return;
    }
    case Word::Leave:
      if (frame.rank >= 0 && frame.rank < ranks()) peers_[static_cast<std::size_t>(frame.rank)].left = true;
      if (rank() == 0) {
        lock.unlock();
        pass_on(frame);
      }
      break;
    case Word::Hello:
    case Word::Welcome: break;  // Nobody says that here.
  }
  changed_.notify_all();
}

// The connection to `who` is over. Without a good-bye its process has ended, or its machine.
void Assembly::lose(int who) {
  bool expected = false;
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<std::size_t>(who)];
    peer.gone = true;
    expected = peer.said_bye;
  }
  if (!expected) {
    Failure failure{DSPLAN_UNAVAILABLE, who, kNoEvent, "process", "it ended without a word"};
    if (note(failure) && rank() == 0) pass_on({Word::Abort, 0, packed(failure)});
  }
  changed_.notify_all();
}

// False: there was one before.
bool Assembly::note(const Failure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (first_) return false;
    first_ = failure;
    (void)!::write(alarm_[1], "x", 1);
  }
  changed_.notify_all();
  const std::lock_guard lock(calling_);
  if (call_) call_();
  return true;
}

bool Assembly::send(int to, const Frame& frame) noexcept {
  try {
    const Peer& peer = peers_[static_cast<std::size_t>(to)];
    const std::lock_guard lock(sending_);
    return peer.socket.open() && send_on(peer.socket, frame, Clock::now() + kGrace);
  } catch (const std::exception&) {
    return false;
  }
}

// From rank 0 to all others, from others to rank 0.
void Assembly::pass_on(const Frame& frame) noexcept {
  for (int to = 0; to < ranks(); ++to) {
    if (to != rank() && (rank() == 0 || to == 0)) (void)send(to, frame);
  }
}

void Assembly::rethrow_first(std::unique_lock<std::mutex>& lock) const {
  const Failure first = *first_;
  lock.unlock();
  throw RunFailure({DSPLAN_ABORTED, rank(), kNoEvent, "rendezvous", describe(first)});
}

std::vector<Blob> Assembly::exchange(const Blob& own, const std::string& what) {
  if (ranks() == 1) return {own};
  const Clock::time_point end = Clock::now() + patience_ + (rank() == 0 ? std::chrono::seconds(0) : kGrace);
  if (rank() != 0) (void)send(0, {Word::Give, rank(), own});
  std::unique_lock lock(mutex_);
  const auto missing = [&] {
    std::vector<int> list;
    for (int at = 1; at < ranks(); ++at) {
      if (peers_[static_cast<std::size_t>(at)].given.empty()) list.push_back(at);
    }
    return list;
  };
  const auto done = [&] { return rank() == 0 ? missing().empty() : !all_.empty(); };
  const bool came = changed_.wait_until(lock, end, [&] { return first_.has_value() || done(); });
  if (first_) rethrow_first(lock);
  if (!came) {
    const std::vector<int> late = rank() == 0 ? missing() : std::vector<int>{0};
    lock.unlock();
    Failure failure{DSPLAN_TIMEOUT, rank(), kNoEvent, "rendezvous",
                    formatted("{} s for {} of rank {}", std::chrono::duration<double>(patience_).count(), what,
                              joined(late, ", "))};
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
  pass_on({Word::All, 0, packed(result)});
  return result;
}

std::vector<std::optional<Blob>> Assembly::gather(const Blob& own) {
  if (rank() != 0) {
    (void)send(0, {Word::Report, rank(), own});
    return {};
  }
  std::unique_lock lock(mutex_);
  (void)changed_.wait_for(lock, patience_, [&] {
    return std::all_of(peers_.begin() + 1, peers_.end(), [](const Peer& peer) { return peer.report || peer.gone; });
  });
  std::vector<std::optional<Blob>> result{own};
  for (std::size_t at = 1; at < peers_.size(); ++at) result.push_back(peers_[at].report);
  return result;
}

void Assembly::tell(const Blob& word) noexcept { pass_on({Word::Tell, 0, word}); }

std::optional<Blob> Assembly::hear() {
  std::unique_lock lock(mutex_);
  (void)changed_.wait_for(lock, patience_ + kGrace, [&] { return told_.has_value() || peers_[0].gone; });
  return told_;
}

void Assembly::abort(const Failure& failure) noexcept {
  try {
    if (note(failure)) pass_on({Word::Abort, rank(), packed(failure)});
  } catch (const std::exception&) {
    // No memory to say it: this process ends, and the others notice that.
  }
}

std::optional<Failure> Assembly::first_failure() const {
  const std::lock_guard lock(mutex_);
  return first_;
}

void Assembly::leave() noexcept {
  {
    const std::lock_guard lock(mutex_);
    peers_[static_cast<std::size_t>(rank())].left = true;
  }
  pass_on({Word::Leave, rank(), {}});
}

bool Assembly::has_left(int rank) const {
  const std::lock_guard lock(mutex_);
  return peers_[static_cast<std::size_t>(rank)].left;
}

void Assembly::await_word_of(int rank) const {
  std::unique_lock lock(mutex_);
  (void)changed_.wait_for(lock, kMoment,
                          [&] { return first_.has_value() || peers_[static_cast<std::size_t>(rank)].left; });
}

void Assembly::await_failure() const {
  std::unique_lock lock(mutex_);
  (void)changed_.wait_for(lock, kMoment, [&] { return first_.has_value(); });
}

void Assembly::on_failure(std::function<void()> call) {
  const std::lock_guard lock(calling_);
  call_ = std::move(call);
  if (call_ && first_failure()) call_();
}

}  // namespace dsplan::exec
