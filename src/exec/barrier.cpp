#include "exec/barrier.h"

#include "core/format.h"
#include "exec/collective_calls.h"
#include "exec/threads.h"

namespace dsplan::exec {

Barrier::Barrier(ThreadTransport& transport, Group group, std::vector<int> members)
    : transport_(transport),
      group_(group),
      members_(std::move(members)),
      slots_(members_.size()),
      here_(members_.size(), false),
      messages_(members_.size() * members_.size()) {
  for (Slot& each : slots_) each.taken.assign(members_.size(), 0);
}

// The lock is let go first: whoever aborts takes those of all barriers.
void Barrier::lose(std::unique_lock<std::mutex>& lock, int me, dsplan_status status, std::string text) {
  const CollectiveCall& call = slot(me).call;
  Failure failure{status, member(me), call.event, std::string(dsplan::name(call.kind)), std::move(text)};
  lock.unlock();
  transport_.abort(failure);
  throw RunFailure(std::move(failure));
}

template <class Done, class Needs>
void Barrier::wait(std::unique_lock<std::mutex>& lock, int me, Done done, Needs needs) {
  const auto deadline = std::chrono::steady_clock::now() + transport_.timeout();
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
           formatted("{} ms for {} of group {}", transport_.timeout().count(), missing(), dsplan::name(group_)));
    }
    late = changed_.wait_until(lock, deadline) == std::cv_status::timeout;
  }
}

std::string Barrier::missing() const {
  std::string list;
  for (std::size_t at = 0; at < members_.size(); ++at) {
    if (!here_[at]) list += formatted("{}rank {}", list.empty() ? "" : ", ", members_[at]);
  }
  return list.empty() ? "a rank" : list;
}

std::string Barrier::difference() const {
  const CollectiveCall& first = slots_[0].call;
  for (std::size_t at = 1; at < slots_.size(); ++at) {
    if (agree(first, slots_[at].call)) continue;
    return formatted("the ranks of group {} disagree: {}, {}", dsplan::name(group_), describe(first, members_[0]),
                     describe(slots_[at].call, members_[at]));
  }
  return {};
}

void Barrier::arrive(int me, bool enters) {
  std::unique_lock lock(mutex_);
  if (enters && transport_.aborted())
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
  if (enters) {
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

void Barrier::enter(int me) { arrive(me, true); }
void Barrier::arrive_and_wait(int me) { arrive(me, false); }

void Barrier::await_turn(int me, int turn) {
  std::unique_lock lock(mutex_);
  wait(
      lock, me, [&] { return passed_ >= turn; }, [](int) { return false; });
}

void Barrier::pass_turn() {
  const std::lock_guard lock(mutex_);
  ++passed_;
  changed_.notify_all();
}

void Barrier::exit(bool wait_for_all) noexcept {
  std::unique_lock lock(mutex_);
  if (--inside_ == 0) changed_.notify_all();
  if (wait_for_all) changed_.wait(lock, [&] { return inside_ == 0; });
}

void Barrier::wait_until_empty() noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return inside_ == 0; });
}

void Barrier::send(int me, int to, dsplan_event* ready) {
  std::unique_lock lock(mutex_);
  Message& message = message_between(me, to);
  wait(
      lock, me, [&] { return message.state == Message::State::Empty; }, [&](int at) { return at == to; });
  message = {Message::State::Waiting, slot(me).call, ready, nullptr, 0};
  changed_.notify_all();
}

std::int64_t Barrier::await_taken(int me, int to, dsplan_event*& copied) {
  std::unique_lock lock(mutex_);
  Message& message = message_between(me, to);
  try {
    wait(
        lock, me, [&] { return message.state == Message::State::Taken; },
        [&](int at) { return at == to && message.state == Message::State::Waiting; });
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    changed_.wait(lock, [&] { return message.state != Message::State::Copying; });
    message.state = Message::State::Empty;
    changed_.notify_all();
    throw;
  }
  copied = message.copied;
  return message.bytes;
}

void Barrier::collect(int me, int to) noexcept {
  const std::lock_guard lock(mutex_);
  message_between(me, to).state = Message::State::Empty;
  changed_.notify_all();
}

Barrier::Message Barrier::receive(int me, int from) {
  std::unique_lock lock(mutex_);
  Message& message = message_between(from, me);
  wait(
      lock, me, [&] { return message.state == Message::State::Waiting; }, [&](int at) { return at == from; });
  const CollectiveCall& mine = slot(me).call;
  if (message.call.elements != mine.elements || message.call.dtype != mine.dtype) {
    lose(lock, me, DSPLAN_INVALID,
         formatted("expects {} {} of rank {}, which sends {} {}", mine.elements, dsplan::name(mine.dtype), member(from),
                   message.call.elements, dsplan::name(message.call.dtype)));
  }
  message.state = Message::State::Copying;
  return message;
}

void Barrier::take(int me, int from, dsplan_event* copied, std::int64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  Message& message = message_between(from, me);
  message.state = Message::State::Taken;
  message.copied = copied;
  message.bytes = bytes;
  changed_.notify_all();
}

void Barrier::await_collected(int me, int from) {
  std::unique_lock lock(mutex_);
  const Message& message = message_between(from, me);
  wait(
      lock, me, [&] { return message.state != Message::State::Taken; }, [](int) { return false; });
}

// The lock in between: nobody is between looking and going to sleep.
void Barrier::wake() noexcept {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

}  // namespace dsplan::exec
