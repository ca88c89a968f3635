#include "exec/watched_backend.h"

#include <memory>
#include <thread>

namespace dsplan::exec {
namespace {

// What a device handle of this backend points to.
struct Watched {
  WatchedBackend* owner = nullptr;
  dsplan_device* inner = nullptr;
  int rank = 0;
  std::string error;  // Of a failure that the inner device knows nothing of.
};

constexpr const char* kInjected = "failed on purpose";
thread_local bool open_was_failed = false;

Watched* watched(dsplan_device* device) { return reinterpret_cast<Watched*>(device); }
const Watched* watched(const dsplan_device* device) { return reinterpret_cast<const Watched*>(device); }

// The names of the calls, so that one can be a template argument.
#define DSPLAN_FORWARDED_CALLS(X)                                                                                    \
  X(info)                                                                                                            \
  X(usage)                                                                                                           \
  X(allocate)                                                                                                        \
  X(release)                                                                                                         \
  X(reserve)                                                                                                         \
  X(unreserve)                                                                                                       \
  X(map)                                                                                                             \
  X(unmap) X(file_create) X(file_write) X(file_read) X(file_remove) X(copy) X(fill) X(combine) X(stream_create)      \
      X(stream_destroy) X(stream_synchronize) X(event_create) X(event_destroy) X(event_record) X(event_wait)         \
          X(event_synchronize) X(event_query) X(event_elapsed) X(launch) X(workspace) X(comm_create) X(comm_destroy) \
              X(comm_run) X(comm_memory)

#define DSPLAN_NAME_OF(call) constexpr char kName_##call[] = #call;
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

dsplan_status open_watched(const dsplan_backend* self, const dsplan_open* how, dsplan_device** device) {
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

void close_watched(dsplan_device* device) {
  const std::unique_ptr<Watched> self(watched(device));
  if (!self) return;
  self->owner->inner().close(self->inner);
  self->owner->add_open_devices(-1);
}

const char* last_error(const dsplan_backend* self, const dsplan_device* device) {
  const dsplan_backend& inner = static_cast<WatchedBackend*>(self->state)->inner();
  if (device == nullptr) return open_was_failed ? kInjected : inner.last_error(&inner, nullptr);
  const Watched* own = watched(device);
  return own->error.empty() ? inner.last_error(&inner, own->inner) : own->error.c_str();
}

// Calls without a device are the inner backend's; no rank makes them.
const dsplan_backend& inner_of(const dsplan_backend* self) {
  return static_cast<WatchedBackend*>(self->state)->inner();
}
dsplan_status devices(const dsplan_backend* self, std::int32_t* count) {
  return inner_of(self).devices(&inner_of(self), count);
}
dsplan_status comm_library(const dsplan_backend* self, char* text, std::uint32_t bytes) {
  return inner_of(self).comm_library(&inner_of(self), text, bytes);
}
dsplan_status comm_id(const dsplan_backend* self, void* id) { return inner_of(self).comm_id(&inner_of(self), id); }

}  // namespace

WatchedBackend::WatchedBackend(const dsplan_backend& inner, std::optional<Fault> fault, Delay delay)
    : inner_(inner), fault_(fault), delay_(std::move(delay)) {
  table_ = inner;  // Its name, and NULL where it has nothing.
  table_.state = this;
  table_.open = open_watched;
  table_.close = close_watched;
  table_.last_error = last_error;
  table_.devices = devices;
  if (inner.comm_library != nullptr) table_.comm_library = comm_library;
  if (inner.comm_id != nullptr) table_.comm_id = comm_id;
#define DSPLAN_FORWARD(call) \
  if (inner.call != nullptr) table_.call = &forward<&dsplan_backend::call, kName_##call>;
  DSPLAN_FORWARDED_CALLS(DSPLAN_FORWARD)
#undef DSPLAN_FORWARD
}

dsplan_status WatchedBackend::before(int rank, const char* call) {
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

std::int64_t WatchedBackend::calls(int rank) const {
  const std::lock_guard lock(mutex_);
  if (static_cast<std::size_t>(rank) >= calls_.size()) return 0;
  return static_cast<std::int64_t>(calls_[static_cast<std::size_t>(rank)].size());
}

std::vector<std::string> WatchedBackend::names(int rank) const {
  const std::lock_guard lock(mutex_);
  if (static_cast<std::size_t>(rank) >= calls_.size()) return {};
  const std::vector<const char*>& own = calls_[static_cast<std::size_t>(rank)];
  return {own.begin(), own.end()};
}

std::string WatchedBackend::failed() const {
  const std::lock_guard lock(mutex_);
  return failed_;
}

}  // namespace dsplan::exec
