#include "exec/circle.h"

#include "core/format.h"
#include "exec/collective_calls.h"
#include "exec/threads.h"

namespace dsplan::exec {

Circle::Circle(ThreadTransport& transport, Group group, std::vector<int> members)
    : transport_(transport),
      group_(group),
      members_(std::move(members)),
      seats_(members_.size()),
      here_(members_.size(), false),
      mails_(members_.size() * members_.size()) {
  for (Seat& each : seats_) each.taken.assign(members_.size(), 0);
}

// The lock is let go first: whoever aborts takes those of all circles.
void Circle::lose(std::unique_lock<std::mutex>& lock, int me, dsplan_status status, std::string text) {
  const CollectiveCall& call = seat(me).call;
  Failure failure{status, member(me), call.event, std::string(dsplan::name(call.kind)), std::move(text)};
  lock.unlock();
  transport_.abort(failure);
  throw RunFailure(std::move(failure));
}

template <class Done, class Needs>
void Circle::wait(std::unique_lock<std::mutex>& lock, int me, Done done, Needs needs) {
  const auto deadline = std::chrono::steady_clock::now() + transport_.patience();
  bool late = false;
  while (!done()) {
    if (transport_.aborted()) {
      const std::optional<Failure> first = transport_.first_failure();
      lose(lock, me, DSPLAN_ABORTED, first ? describe(*first) : "");
    }
    for (int at = 0; at < size(); ++at) {
      if (at != me && needs(at) && transport_.has_left(member(at))) {
        lose(lock, me, DSPLAN_INVALID,
             formatted("rank {} has finished, and takes no part in this call of group {}", member(at),
                       dsplan::name(group_)));
      }
    }
    if (late) {
      lose(lock, me, DSPLAN_TIMEOUT,
           formatted("{} ms for {} of group {}", transport_.patience().count(), missing(), dsplan::name(group_)));
    }
    late = changed_.wait_until(lock, deadline) == std::cv_status::timeout;
  }
}

std::string Circle::missing() const {
  std::string list;
  for (std::size_t at = 0; at < members_.size(); ++at) {
    if (!here_[at]) list += formatted("{}rank {}", list.empty() ? "" : ", ", members_[at]);
  }
  return list.empty() ? "a rank" : list;
}

std::string Circle::difference() const {
  const CollectiveCall& first = seats_[0].call;
  for (std::size_t at = 1; at < seats_.size(); ++at) {
    if (agree(first, seats_[at].call)) continue;
    return formatted("the ranks of group {} disagree: {}, {}", dsplan::name(group_), describe(first, members_[0]),
                     describe(seats_[at].call, members_[at]));
  }
  return {};
}

void Circle::arrive(int me, bool opens) {
  std::unique_lock lock(mutex_);
  if (opens && transport_.aborted())
    wait(
        lock, me, [] { return false; }, [](int) { return false; });
  const std::uint64_t round = round_;
  here_[static_cast<std::size_t>(me)] = true;
  if (++arrived_ < size()) {
    // Who has come may leave later: it is not waited for.
    wait(
        lock, me, [&] { return round_ != round; }, [&](int at) { return !here_[static_cast<std::size_t>(at)]; });
    return;
  }
  if (opens) {
    std::string wrong = difference();
    if (!wrong.empty()) lose(lock, me, DSPLAN_INVALID, std::move(wrong));
    inside_ = size();
    passed_ = 0;
  }
  arrived_ = 0;
  here_.assign(here_.size(), false);
  ++round_;
  changed_.notify_all();
}

void Circle::open(int me) { arrive(me, true); }
void Circle::meet(int me) { arrive(me, false); }

void Circle::await_turn(int me, int turn) {
  std::unique_lock lock(mutex_);
  wait(
      lock, me, [&] { return passed_ >= turn; }, [](int) { return false; });
}

void Circle::pass_turn() {
  const std::lock_guard lock(mutex_);
  ++passed_;
  changed_.notify_all();
}

void Circle::close(bool wait_for_all) noexcept {
  std::unique_lock lock(mutex_);
  if (--inside_ == 0) changed_.notify_all();
  if (wait_for_all) changed_.wait(lock, [&] { return inside_ == 0; });
}

void Circle::wait_until_closed() noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return inside_ == 0; });
}

void Circle::send(int me, int to, dsplan_event* ready) {
  std::unique_lock lock(mutex_);
  Mail& box = mail(me, to);
  wait(
      lock, me, [&] { return box.state == Mail::State::Empty; }, [&](int at) { return at == to; });
  box = {Mail::State::Waiting, seat(me).call, ready, nullptr, 0};
  changed_.notify_all();
}

std::int64_t Circle::await_taken(int me, int to, dsplan_event*& copied) {
  std::unique_lock lock(mutex_);
  Mail& box = mail(me, to);
  try {
    wait(
        lock, me, [&] { return box.state == Mail::State::Taken; },
        [&](int at) { return at == to && box.state == Mail::State::Waiting; });
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    changed_.wait(lock, [&] { return box.state != Mail::State::Copying; });
    box.state = Mail::State::Empty;
    changed_.notify_all();
    throw;
  }
  copied = box.copied;
  return box.bytes;
}

void Circle::collect(int me, int to) noexcept {
  const std::lock_guard lock(mutex_);
  mail(me, to).state = Mail::State::Empty;
  changed_.notify_all();
}

Circle::Mail Circle::receive(int me, int from) {
  std::unique_lock lock(mutex_);
  Mail& box = mail(from, me);
  wait(
      lock, me, [&] { return box.state == Mail::State::Waiting; }, [&](int at) { return at == from; });
  const CollectiveCall& mine = seat(me).call;
  if (box.call.elements != mine.elements || box.call.dtype != mine.dtype) {
    lose(lock, me, DSPLAN_INVALID,
         formatted("expects {} {} of rank {}, which sends {} {}", mine.elements, dsplan::name(mine.dtype), member(from),
                   box.call.elements, dsplan::name(box.call.dtype)));
  }
  box.state = Mail::State::Copying;
  return box;
}

void Circle::take(int me, int from, dsplan_event* copied, std::int64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  Mail& box = mail(from, me);
  box.state = Mail::State::Taken;
  box.copied = copied;
  box.bytes = bytes;
  changed_.notify_all();
}

void Circle::await_collected(int me, int from) {
  std::unique_lock lock(mutex_);
  const Mail& box = mail(from, me);
  wait(
      lock, me, [&] { return box.state != Mail::State::Taken; }, [](int) { return false; });
}

// The lock in between: nobody is between looking and going to sleep.
void Circle::wake() noexcept {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

}  // namespace dsplan::exec
