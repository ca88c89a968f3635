#include "exec/device.h"

#include "core/format.h"

namespace dsplan::exec {

Device::Device(const dsplan_backend& backend, const Options& options) : backend_(backend), rank_(options.rank) {
  if (backend.version != DSPLAN_BACKEND_VERSION || backend.size != sizeof(dsplan_backend)) {
    throw RunFailure({DSPLAN_UNAVAILABLE, rank_, kNoEvent, "open",
                      formatted("the backend speaks version {} of the interface in {} bytes, this dsplan version {} "
                                "in {}",
                                backend.version, backend.size, DSPLAN_BACKEND_VERSION, sizeof(dsplan_backend))});
  }
  const dsplan_open how{sizeof(dsplan_open), options.ordinal, options.rank,
                        options.directory.empty() ? nullptr : options.directory.c_str()};
  check(backend_.open(&backend_, &how, &device_), "open");
  info_.size = sizeof(dsplan_device_info);
  try {
    check(backend_.info(device_, &info_), "info");
  } catch (...) {
    backend_.close(device_);
    throw;
  }
}

Device::~Device() {
  if (device_ != nullptr) backend_.close(device_);
}

void Device::close() {
  if (device_ != nullptr) {
    for (std::size_t at = 0; at < streams_.size(); ++at) {
      if (streams_[at] != nullptr) note(backend_.stream_destroy(device_, streams_[at]), "stream_destroy");
    }
    streams_.clear();
    backend_.close(device_);
    device_ = nullptr;
  }
  throw_if_noted();
}

void Device::throw_if_noted() const {
  if (noted_) throw RunFailure(*noted_);
}

Failure Device::failure(dsplan_status status, const char* call) const {
  const char* text = backend_.last_error(&backend_, device_);
  return {status, rank_, kNoEvent, call, text == nullptr ? "" : text};
}

void Device::check(dsplan_status status, const char* call) const {
  if (status != DSPLAN_OK) throw RunFailure(failure(status, call));
}

// A failure to tell of a failure (no memory for its text) still leaves the status.
void Device::note(dsplan_status status, const char* call) noexcept {
  if (status == DSPLAN_OK || noted_) return;
  try {
    noted_ = failure(status, call);
  } catch (...) {
    noted_.emplace();
    noted_->status = status;
  }
}

dsplan_usage Device::usage() {
  dsplan_usage usage{sizeof(dsplan_usage), -1, -1, -1};
  check(backend_.usage(device_, &usage), "usage");
  return usage;
}

void* Device::try_allocate(Space space, Bytes bytes) {
  void* memory = nullptr;
  const dsplan_status status = backend_.allocate(device_, space_of(space), bytes.value(), &memory);
  if (status == DSPLAN_OUT_OF_MEMORY) return nullptr;
  check(status, "allocate");
  return memory;
}

void* Device::allocate(Space space, Bytes bytes) {
  void* memory = nullptr;
  check(backend_.allocate(device_, space_of(space), bytes.value(), &memory), "allocate");
  return memory;
}

void Device::release(Space space, void* memory, Bytes bytes) noexcept {
  note(backend_.release(device_, space_of(space), memory, bytes.value()), "release");
}

void* Device::reserve(Bytes bytes) {
  void* range = nullptr;
  check(backend_.reserve(device_, bytes.value(), &range), "reserve");
  return range;
}

void Device::unreserve(void* range, Bytes bytes) noexcept {
  note(backend_.unreserve(device_, range, bytes.value()), "unreserve");
}

bool Device::try_map(void* range, Bytes offset, Bytes bytes) {
  const dsplan_status status = backend_.map(device_, range, offset.value(), bytes.value());
  if (status == DSPLAN_OUT_OF_MEMORY) return false;
  check(status, "map");
  return true;
}

void Device::unmap(void* range, Bytes offset, Bytes bytes) noexcept {
  note(backend_.unmap(device_, range, offset.value(), bytes.value()), "unmap");
}

dsplan_file* Device::create_file(const std::string& name, Bytes bytes) {
  dsplan_file* file = nullptr;
  check(backend_.file_create(device_, name.c_str(), bytes.value(), &file), "file_create");
  return file;
}

void Device::write_file(dsplan_file* file, Bytes offset, const void* from, Bytes bytes) {
  check(backend_.file_write(device_, file, offset.value(), from, bytes.value()), "file_write");
  file_written_ += bytes;
}

void Device::read_file(dsplan_file* file, Bytes offset, void* to, Bytes bytes) {
  check(backend_.file_read(device_, file, offset.value(), to, bytes.value()), "file_read");
  file_read_ += bytes;
}

void Device::remove_file(dsplan_file* file) noexcept { note(backend_.file_remove(device_, file), "file_remove"); }

void Device::copy(void* to, Space to_space, const void* from, Space from_space, Bytes bytes, StreamId stream) {
  check(backend_.copy(device_, to, space_of(to_space), from, space_of(from_space), bytes.value(), this->stream(stream)),
        "copy");
}

void Device::fill(void* memory, Space space, std::uint8_t value, Bytes bytes, StreamId stream) {
  check(backend_.fill(device_, memory, space_of(space), value, bytes.value(), this->stream(stream)), "fill");
}

void Device::combine(dsplan_reduction how, DType dtype, void* target, const std::vector<const void*>& pieces,
                     std::int64_t elements, StreamId stream) {
  check(backend_.combine(device_, how, static_cast<std::int32_t>(dtype), target, pieces.data(),
                         static_cast<std::uint32_t>(pieces.size()), elements, this->stream(stream)),
        "combine");
}

void Device::launch(const dsplan_launch& what, StreamId stream) {
  check(backend_.launch(device_, &what, this->stream(stream)), "launch");
}

dsplan_stream* Device::stream(StreamId stream) {
  if (stream == kCurrentStream) stream = current_;
  if (stream >= streams_.size()) streams_.resize(stream + std::size_t{1}, nullptr);
  if (streams_[stream] == nullptr) check(backend_.stream_create(device_, &streams_[stream]), "stream_create");
  return streams_[stream];
}

void Device::synchronize(StreamId stream) {
  check(backend_.stream_synchronize(device_, this->stream(stream)), "stream_synchronize");
}

void Device::synchronize() {
  for (dsplan_stream* each : streams_) {
    if (each != nullptr) check(backend_.stream_synchronize(device_, each), "stream_synchronize");
  }
}

dsplan_event* Device::create_event() {
  dsplan_event* event = nullptr;
  check(backend_.event_create(device_, &event), "event_create");
  return event;
}

void Device::destroy_event(dsplan_event* event) noexcept {
  if (event != nullptr) note(backend_.event_destroy(device_, event), "event_destroy");
}

void Device::record(dsplan_event* event, StreamId stream) {
  check(backend_.event_record(device_, event, this->stream(stream)), "event_record");
}

void Device::wait(StreamId stream, dsplan_event* event) {
  check(backend_.event_wait(device_, this->stream(stream), event), "event_wait");
}

void Device::synchronize_event(dsplan_event* event) {
  check(backend_.event_synchronize(device_, event), "event_synchronize");
}

std::int64_t Device::elapsed(dsplan_event* start, dsplan_event* end) {
  std::int64_t nanoseconds = 0;
  check(backend_.event_elapsed(device_, start, end, &nanoseconds), "event_elapsed");
  return nanoseconds;
}

}  // namespace dsplan::exec
