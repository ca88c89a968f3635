#include "dry/streams.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "dry/device.h"
#include "dry/ledger.h"

namespace dsplan::dry {
namespace {

constexpr Nanoseconds kHostCall = 5000;  // What a framework's host needs from one launch to the next, about.

// Nothing is on it that the host has not waited for: a device comes at once to what is recorded there.
bool idle(const Stream& stream) {
  const auto over = [](const Wait& wait) { return wait.up_to <= wait.on->done_up_to; };
  return stream.last_work <= stream.done_up_to && std::all_of(stream.waits.begin(), stream.waits.end(), over);
}

}  // namespace

void Streams::host_call() {
  if (when_ == Completion::Timed) host_ += kHostCall;
}

void Streams::host_waits(Nanoseconds until) { host_ = std::max(host_, until); }

// A stream is never deleted: an event may still name it.
Stream* Streams::create(int device, int priority) {
  const std::lock_guard guard(lock_);
  auto* stream = new Stream;
  stream->id = next_id_++;
  stream->device = device;
  stream->priority = priority;
  all_.push_back(stream);
  return stream;
}

Stream* Streams::of(void* handle, int device) {
  if (reinterpret_cast<std::size_t>(handle) > 2) return static_cast<Stream*>(handle);
  const std::lock_guard guard(lock_);
  while (own_.size() <= static_cast<std::size_t>(device)) {
    auto* stream = new Stream;
    stream->device = static_cast<int>(own_.size());
    own_.push_back(stream);
    all_.push_back(stream);
  }
  return own_[static_cast<std::size_t>(device)];
}

// Whoever has come to a point has come to all that it waited for before.
void Streams::finish(Stream* stream, std::uint64_t up_to) {
  std::vector<std::pair<Stream*, std::uint64_t>> todo{{stream, up_to}};
  while (!todo.empty()) {
    const auto [at, point] = todo.back();
    todo.pop_back();
    if (at->done_up_to >= point) continue;
    at->done_up_to = point;
    const auto kept =
        std::partition(at->waits.begin(), at->waits.end(), [reached = point](const Wait& w) { return w.at > reached; });
    for (auto wait = kept; wait != at->waits.end(); ++wait) todo.emplace_back(wait->on, wait->up_to);
    at->waits.erase(kept, at->waits.end());
  }
}

void Streams::launch(Stream* stream, Nanoseconds duration) {
  count(Counted::Launches);
  if (when_ == Completion::Done) return;
  const std::lock_guard guard(lock_);
  stream->last_work = ++ticket_;
  if (when_ == Completion::Pending) return;
  if (when_ == Completion::Timed) {
    host_call();
    stream->ready = std::max(stream->ready, host_) + duration;
    return;
  }
  if (stream->recent.empty()) stream->recent.resize(ahead_);
  std::uint64_t& slot = stream->recent[stream->launches++ % ahead_];
  if (stream->launches > ahead_) finish(stream, slot);
  slot = ++ticket_;
}

void Streams::record(Event& event, Stream* stream) {
  const std::lock_guard guard(lock_);
  host_call();
  event.on = stream;
  event.at = idle(*stream) ? stream->done_up_to : ++ticket_;
  event.ready = std::max(stream->ready, host_);
  event.recorded = event.ready;
}

void Streams::order(Stream* later, const Event& earlier) {
  const std::lock_guard guard(lock_);
  host_call();
  if (when_ == Completion::Done || earlier.on == nullptr || earlier.on == later) return;
  if (when_ == Completion::Timed) {
    later->ready = std::max(later->ready, earlier.ready);
  } else if (earlier.at > earlier.on->done_up_to) {
    later->waits.push_back({earlier.on, ++ticket_, earlier.at});
  }
}

bool Streams::done(const Event& event) {
  if (when_ == Completion::Done || event.on == nullptr) return true;
  const std::lock_guard guard(lock_);
  host_call();
  if (when_ == Completion::Timed) return host_ >= event.ready;
  return event.at <= event.on->done_up_to;
}

bool Streams::done(Stream* stream) {
  if (when_ == Completion::Done) return true;
  const std::lock_guard guard(lock_);
  host_call();
  return when_ == Completion::Timed ? host_ >= stream->ready : idle(*stream);
}

void Streams::wait(const Event& event) {
  const std::lock_guard guard(lock_);
  if (when_ == Completion::Done || event.on == nullptr) return;
  if (when_ == Completion::Timed) {
    host_waits(event.ready);
  } else {
    finish(event.on, event.at);
  }
}

void Streams::wait(Stream* stream) {
  const std::lock_guard guard(lock_);
  if (when_ == Completion::Done) return;
  if (when_ == Completion::Timed) {
    host_waits(stream->ready);
  } else {
    finish(stream, ticket_);
  }
}

void Streams::wait_for_all(int device) {
  const std::lock_guard guard(lock_);
  if (when_ == Completion::Done) return;
  for (Stream* stream : all_) {
    if (stream->device != device) continue;
    if (when_ == Completion::Timed) {
      host_waits(stream->ready);
    } else {
      finish(stream, ticket_);
    }
  }
}

Nanoseconds Streams::now() {
  const std::lock_guard guard(lock_);
  return host_;
}

Streams& streams() {
  static auto* const made = [] {
    const char* said = std::getenv("DSPLAN_DRY_EVENTS");
    if (said == nullptr || *said == '\0' || std::strcmp(said, "done") == 0) return new Streams(Completion::Done, 0);
    if (std::strcmp(said, "pending") == 0) return new Streams(Completion::Pending, 0);
    if (std::strcmp(said, "timed") == 0) return new Streams(Completion::Timed, 0);
    const std::size_t ahead = std::strtoull(said, nullptr, 10);
    return ahead == 0 ? new Streams(Completion::Pending, 0) : new Streams(Completion::Ahead, ahead);
  }();
  return *made;
}

int& current_device() {
  thread_local int chosen = 0;
  return chosen;
}

}  // namespace dsplan::dry
