#include "exec/transport/thread_group.h"

#include "core/format.h"
#include "exec/transport/collective_calls.h"
#include "exec/transport/threads.h"

namespace dsplan::exec {

// The lock is let go first: whoever aborts takes those of all groups.
void GroupWait::lose(Lock& lock, const Caller& who, dsplan_status status, std::string text) {
  Failure failure{status, member(who.me), who.call.event, std::string(dsplan::name(who.call.kind)), std::move(text)};
  lock.unlock();
  transport_.abort(failure);
  throw RunFailure(std::move(failure));
}

void GroupWait::throw_if_lost(Lock& lock, const Caller& who) {
  if (!transport_.aborted()) return;
  const std::optional<Failure> first = transport_.first_failure();
  lose(lock, who, DSPLAN_ABORTED, first ? describe(*first) : "");
}

void GroupWait::until(Lock& lock, const Caller& who, const std::function<bool()>& done,
                      const std::function<bool(int)>& needs) {
  const auto deadline = std::chrono::steady_clock::now() + transport_.timeout();
  bool late = false;
  while (!done()) {
    throw_if_lost(lock, who);
    std::string missing;
    for (int at = 0; at < size(); ++at) {
      if (at == who.me || !needs(at)) continue;
      if (transport_.has_left(member(at))) {
        lose(lock, who, DSPLAN_INVALID,
             formatted("rank {} has finished, and takes no part in this call of group {}", member(at),
                       dsplan::name(group_)));
      }
      if (late) missing += formatted("{}rank {}", missing.empty() ? "" : ", ", member(at));
    }
    if (late) {
      lose(lock, who, DSPLAN_TIMEOUT,
           formatted("{} ms for {} of group {}", transport_.timeout().count(), missing.empty() ? "a rank" : missing,
                     dsplan::name(group_)));
    }
    late = changed_.wait_until(lock, deadline) == std::cv_status::timeout;
  }
}

// The lock in between: nobody is between looking and going to sleep.
void GroupWait::wake() noexcept {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

Barrier::Barrier(GroupWait& wait)
    : wait_(wait), slots_(static_cast<std::size_t>(wait.size())), here_(slots_.size(), false) {
  for (Slot& each : slots_) each.taken.assign(slots_.size(), 0);
}

std::string Barrier::difference() const {
  const CollectiveCall& first = slots_[0].call;
  for (int at = 1; at < wait_.size(); ++at) {
    const CollectiveCall& other = slots_[static_cast<std::size_t>(at)].call;
    if (agree(first, other)) continue;
    return formatted("the ranks of group {} disagree: {}, {}", dsplan::name(wait_.group()),
                     describe(first, wait_.member(0)), describe(other, wait_.member(at)));
  }
  return {};
}

void Barrier::arrive(int me, bool enters) {
  const GroupWait::Caller who{me, slot(me).call};
  GroupWait::Lock lock = wait_.lock();
  if (enters) wait_.throw_if_lost(lock, who);
  const std::uint64_t round = round_;
  here_[static_cast<std::size_t>(me)] = true;
  if (++arrived_ < wait_.size()) {
    // Who has come may leave later: it is not waited for.
    const auto absent = [&](int at) { return !here_[static_cast<std::size_t>(at)]; };
    return wait_.until(
        lock, who, [&] { return round_ != round; }, absent);
  }
  if (enters) {
    std::string wrong = difference();
    if (!wrong.empty()) wait_.lose(lock, who, DSPLAN_INVALID, std::move(wrong));
    inside_ = wait_.size();
    passed_ = 0;
  }
  arrived_ = 0;
  here_.assign(here_.size(), false);
  ++round_;
  wait_.changed();
}

void Barrier::await_turn(int me, int turn) {
  GroupWait::Lock lock = wait_.lock();
  wait_.until(lock, {me, slot(me).call}, [&] { return passed_ >= turn; });
}

void Barrier::pass_turn() {
  const GroupWait::Lock lock = wait_.lock();
  ++passed_;
  wait_.changed();
}

void Barrier::exit(bool wait_for_all) noexcept {
  GroupWait::Lock lock = wait_.lock();
  if (--inside_ == 0) wait_.changed();
  if (wait_for_all) wait_.surely_until(lock, [&] { return inside_ == 0; });
}

void Barrier::wait_until_empty() noexcept {
  GroupWait::Lock lock = wait_.lock();
  wait_.surely_until(lock, [&] { return inside_ == 0; });
}

void Mailbox::send(const Caller& who, const DeviceEvent& ready) {
  const int to = who.call.to;
  GroupWait::Lock lock = wait_.lock();
  Message& message = between(who.me, to);
  wait_.until(
      lock, who, [&] { return message.state == Message::State::Empty; }, [&](int at) { return at == to; });
  message = {Message::State::Waiting, who.call, &ready, nullptr, 0};
  wait_.changed();
}

Mailbox::Message Mailbox::await_taken(const Caller& who) {
  const int to = who.call.to;
  GroupWait::Lock lock = wait_.lock();
  Message& message = between(who.me, to);
  try {
    wait_.until(
        lock, who, [&] { return message.state == Message::State::Taken; },
        [&](int at) { return at == to && message.state == Message::State::Waiting; });
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    wait_.surely_until(lock, [&] { return message.state != Message::State::Copying; });
    message.state = Message::State::Empty;
    wait_.changed();
    throw;
  }
  return message;
}

void Mailbox::collect(int me, int to) noexcept {
  const GroupWait::Lock lock = wait_.lock();
  between(me, to).state = Message::State::Empty;
  wait_.changed();
}

Mailbox::Message Mailbox::receive(const Caller& who) {
  const int from = who.call.from;
  GroupWait::Lock lock = wait_.lock();
  Message& message = between(from, who.me);
  wait_.until(
      lock, who, [&] { return message.state == Message::State::Waiting; }, [&](int at) { return at == from; });
  if (message.call.elements != who.call.elements || message.call.dtype != who.call.dtype) {
    wait_.lose(lock, who, DSPLAN_INVALID,
               formatted("expects {} {} of rank {}, which sends {} {}", who.call.elements, dsplan::name(who.call.dtype),
                         wait_.member(from), message.call.elements, dsplan::name(message.call.dtype)));
  }
  message.state = Message::State::Copying;
  return message;
}

void Mailbox::take(int me, int from, const DeviceEvent& copied, std::int64_t bytes) noexcept {
  const GroupWait::Lock lock = wait_.lock();
  Message& message = between(from, me);
  message.state = Message::State::Taken;
  message.copied = &copied;
  message.bytes = bytes;
  wait_.changed();
}

void Mailbox::await_collected(const Caller& who) {
  GroupWait::Lock lock = wait_.lock();
  const Message& message = between(who.call.from, who.me);
  wait_.until(lock, who, [&] { return message.state != Message::State::Taken; });
}

}  // namespace dsplan::exec
