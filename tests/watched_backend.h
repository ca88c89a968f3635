// A backend around another one: counts its calls, fails one of them, and holds calls up. For the proof that a run whose
// machine fails at any call ends with an error, frees everything and does not hang.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "exec/backend.h"

namespace dsplan::exec {

class WatchedBackend {
 public:
  // The call with this number of this rank (from 0, its `open`) does nothing and returns `status`. A failed call that
  // gives something back leaves it to the end of its device.
  struct Fault {
    int rank = 0;
    std::int64_t call = 0;
    dsplan_status status = DSPLAN_DEVICE;
  };
  // How long call number `call` of rank `rank` is held up before it begins.
  using Delay = std::function<std::chrono::nanoseconds(int rank, std::int64_t call)>;

  // `inner` must outlive this, and this every device opened through it.
  explicit WatchedBackend(const dsplan_backend& inner, std::optional<Fault> fault = std::nullopt, Delay delay = {});
  WatchedBackend(const WatchedBackend&) = delete;
  WatchedBackend& operator=(const WatchedBackend&) = delete;

  [[nodiscard]] const dsplan_backend& table() const { return table_; }

  // Calls of one rank so far, failed ones included; all calls but `close` and `last_error`.
  [[nodiscard]] std::int64_t calls(int rank) const;
  // What they were ("copy"), in their order.
  [[nodiscard]] std::vector<std::string> names(int rank) const;
  // The name of the call that was failed ("copy"); empty: it did not come to that.
  [[nodiscard]] std::string failed() const;
  [[nodiscard]] std::int64_t open_devices() const { return open_devices_.load(); }

  // Before a call: counts it, waits, and says whether it is the one to fail. For the functions behind the table.
  [[nodiscard]] dsplan_status before(int rank, const char* call);
  [[nodiscard]] const dsplan_backend& inner() const { return inner_; }
  void add_open_devices(int count) { open_devices_ += count; }

 private:
  const dsplan_backend& inner_;
  std::optional<Fault> fault_;
  Delay delay_;
  dsplan_backend table_{};
  std::atomic<std::int64_t> open_devices_{0};
  mutable std::mutex mutex_;                     // Of the next two.
  std::vector<std::vector<const char*>> calls_;  // By rank.
  std::string failed_;
};

namespace watching {

// What a device handle of this backend points to.
struct Watched {
  WatchedBackend* owner = nullptr;
  dsplan_device* inner = nullptr;
  int rank = 0;
  std::string error;  // Of a failure that the inner device knows nothing of.
};

inline constexpr const char* kInjected = "failed on purpose";
inline thread_local bool open_was_failed = false;

inline Watched* watched(dsplan_device* device) { return reinterpret_cast<Watched*>(device); }
inline const Watched* watched(const dsplan_device* device) { return reinterpret_cast<const Watched*>(device); }

// The names of the calls, so that one can be a template argument.
#define DSPLAN_FORWARDED_CALLS(X)                                                                          \
  X(info)                                                                                                  \
  X(usage)                                                                                                 \
  X(allocate)                                                                                              \
  X(release)                                                                                               \
  X(reserve)                                                                                               \
  X(unreserve)                                                                                             \
  X(map)                                                                                                   \
  X(unmap)                                                                                                 \
  X(file_create)                                                                                           \
  X(file_write)                                                                                            \
  X(file_read)                                                                                             \
  X(file_remove)                                                                                           \
  X(copy)                                                                                                  \
  X(fill)                                                                                                  \
  X(combine)                                                                                               \
  X(stream_create)                                                                                         \
  X(stream_destroy)                                                                                        \
  X(stream_synchronize)                                                                                    \
  X(event_create)                                                                                          \
  X(event_destroy)                                                                                         \
  X(event_record)                                                                                          \
  X(event_wait) X(event_synchronize) X(event_query) X(event_elapsed) X(launch) X(workspace) X(comm_create) \
      X(comm_destroy) X(comm_run) X(comm_memory)

#define DSPLAN_NAME_OF(call) inline constexpr char kName_##call[] = #call;
DSPLAN_FORWARDED_CALLS(DSPLAN_NAME_OF)
#undef DSPLAN_NAME_OF

template <auto kMember, const char* kName, class... Arguments>
dsplan_status forward(dsplan_device* device, Arguments... arguments) {
  Watched* self = watched(device);
  self->error.clear();
  const dsplan_status status = self->owner->before(self->rank, kName);
  if (status != DSPLAN_OK) {
    self->error = kInjected;
    return status;
  }
  return (self->owner->inner().*kMember)(self->inner, arguments...);
}

inline dsplan_status open_watched(const dsplan_backend* self, const dsplan_open* how, dsplan_device** device) {
  auto* owner = static_cast<WatchedBackend*>(self->state);
  open_was_failed = false;
  dsplan_status status = owner->before(how->rank, "open");
  if (status != DSPLAN_OK) {
    open_was_failed = true;
    return status;
  }
  auto made = std::make_unique<Watched>();
  made->owner = owner;
  made->rank = how->rank;
  status = owner->inner().open(&owner->inner(), how, &made->inner);
  if (status != DSPLAN_OK) return status;
  owner->add_open_devices(1);
  *device = reinterpret_cast<dsplan_device*>(made.release());
  return DSPLAN_OK;
}

inline void close_watched(dsplan_device* device) {
  const std::unique_ptr<Watched> self(watched(device));
  if (!self) return;
  self->owner->inner().close(self->inner);
  self->owner->add_open_devices(-1);
}

inline const char* last_error(const dsplan_backend* self, const dsplan_device* device) {
  const dsplan_backend& inner = static_cast<WatchedBackend*>(self->state)->inner();
  if (device == nullptr) return open_was_failed ? kInjected : inner.last_error(&inner, nullptr);
  const Watched* own = watched(device);
  return own->error.empty() ? inner.last_error(&inner, own->inner) : own->error.c_str();
}

// Calls without a device are the inner backend's; no rank makes them.
inline const dsplan_backend& inner_of(const dsplan_backend* self) {
  return static_cast<WatchedBackend*>(self->state)->inner();
}
inline dsplan_status devices(const dsplan_backend* self, std::int32_t* count) {
  return inner_of(self).devices(&inner_of(self), count);
}
inline dsplan_status comm_library(const dsplan_backend* self, char* text, std::uint32_t bytes) {
  return inner_of(self).comm_library(&inner_of(self), text, bytes);
}
inline dsplan_status comm_id(const dsplan_backend* self, void* id) {
  return inner_of(self).comm_id(&inner_of(self), id);
}

}  // namespace watching

inline WatchedBackend::WatchedBackend(const dsplan_backend& inner, std::optional<Fault> fault, Delay delay)
    : inner_(inner), fault_(fault), delay_(std::move(delay)) {
  table_ = inner;  // Its name, and NULL where it has nothing.
  table_.state = this;
  table_.open = watching::open_watched;
  table_.close = watching::close_watched;
  table_.last_error = watching::last_error;
  table_.devices = watching::devices;
  if (inner.comm_library != nullptr) table_.comm_library = watching::comm_library;
  if (inner.comm_id != nullptr) table_.comm_id = watching::comm_id;
#define DSPLAN_FORWARD(call) \
  if (inner.call != nullptr) table_.call = &watching::forward<&dsplan_backend::call, watching::kName_##call>;
  DSPLAN_FORWARDED_CALLS(DSPLAN_FORWARD)
#undef DSPLAN_FORWARD
}

inline dsplan_status WatchedBackend::before(int rank, const char* call) {
  std::int64_t number = 0;
  dsplan_status status = DSPLAN_OK;
  {
    const std::lock_guard lock(mutex_);
    if (static_cast<std::size_t>(rank) >= calls_.size()) calls_.resize(static_cast<std::size_t>(rank) + 1);
    std::vector<const char*>& own = calls_[static_cast<std::size_t>(rank)];
    number = static_cast<std::int64_t>(own.size());
    own.push_back(call);
    if (fault_ && fault_->rank == rank && fault_->call == number) {
      failed_ = call;
      status = fault_->status;
    }
  }
  if (delay_) std::this_thread::sleep_for(delay_(rank, number));
  return status;
}

inline std::int64_t WatchedBackend::calls(int rank) const {
  const std::lock_guard lock(mutex_);
  if (static_cast<std::size_t>(rank) >= calls_.size()) return 0;
  return static_cast<std::int64_t>(calls_[static_cast<std::size_t>(rank)].size());
}

inline std::vector<std::string> WatchedBackend::names(int rank) const {
  const std::lock_guard lock(mutex_);
  if (static_cast<std::size_t>(rank) >= calls_.size()) return {};
  const std::vector<const char*>& own = calls_[static_cast<std::size_t>(rank)];
  return {own.begin(), own.end()};
}

inline std::string WatchedBackend::failed() const {
  const std::lock_guard lock(mutex_);
  return failed_;
}

}  // namespace dsplan::exec
