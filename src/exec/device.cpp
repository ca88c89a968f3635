#include "exec/device.h"

#include "core/format.h"

namespace dsplan::exec {

DeviceCalls::DeviceCalls(const dsplan_backend& backend, int rank, int ordinal, const std::string& directory)
    : backend_(backend), rank_(rank) {
  if (backend.version != DSPLAN_BACKEND_VERSION || backend.size != sizeof(dsplan_backend)) {
    throw RunFailure({DSPLAN_UNAVAILABLE, rank_, kNoEvent, "open",
                      formatted("the backend speaks version {} of the interface in {} bytes, this dsplan version {} "
                                "in {}",
                                backend.version, backend.size, DSPLAN_BACKEND_VERSION, sizeof(dsplan_backend))});
  }
  const dsplan_open how{sizeof(dsplan_open), ordinal, rank, directory.empty() ? nullptr : directory.c_str()};
  check(backend_.open(&backend_, &how, &device_), "open");
}

void DeviceCalls::close() noexcept {
  if (device_ != nullptr) backend_.close(std::exchange(device_, nullptr));
}

void DeviceCalls::throw_if_noted() const {
  if (noted_) throw RunFailure(*noted_);
}

Failure DeviceCalls::failure(dsplan_status status, const char* call) const {
  const char* text = backend_.last_error(&backend_, device_);
  return {status, rank_, kNoEvent, call, text == nullptr ? "" : text};
}

void DeviceCalls::check(dsplan_status status, const char* call) const {
  if (status != DSPLAN_OK) throw RunFailure(failure(status, call));
}

// A failure to tell of a failure (no memory for its text) still leaves the status.
void DeviceCalls::note(dsplan_status status, const char* call) noexcept {
  if (status == DSPLAN_OK || noted_) return;
  try {
    noted_ = failure(status, call);
  } catch (...) {
    noted_.emplace();
    noted_->status = status;
  }
}

Device::Device(const dsplan_backend& backend, const Options& options)
    : calls_(backend, options.rank, options.ordinal, options.directory) {
  info_.size = sizeof(dsplan_device_info);
  calls_.run(&dsplan_backend::info, "info", &info_);
}

void Device::close() {
  if (calls_.handle() != nullptr) {
    for (dsplan_stream* each : streams_) {
      if (each != nullptr) calls_.give_back(&dsplan_backend::stream_destroy, "stream_destroy", each);
    }
    streams_.clear();
    calls_.close();
  }
  throw_if_noted();
}

dsplan_usage Device::usage() {
  dsplan_usage usage{sizeof(dsplan_usage), -1, -1, -1};
  calls_.run(&dsplan_backend::usage, "usage", &usage);
  return usage;
}

void* DeviceMemory::try_allocate(Space space, Bytes bytes) {
  void* memory = nullptr;
  const dsplan_status status = calls_.backend().allocate(calls_.handle(), space_of(space), bytes.value(), &memory);
  if (status == DSPLAN_OUT_OF_MEMORY) return nullptr;
  calls_.check(status, "allocate");
  return memory;
}

void* DeviceMemory::allocate(Space space, Bytes bytes) {
  void* memory = nullptr;
  calls_.run(&dsplan_backend::allocate, "allocate", space_of(space), bytes.value(), &memory);
  return memory;
}

void DeviceMemory::release(Space space, void* memory, Bytes bytes) noexcept {
  calls_.give_back(&dsplan_backend::release, "release", space_of(space), memory, bytes.value());
}

void* DeviceMemory::reserve(Bytes bytes) {
  void* range = nullptr;
  calls_.run(&dsplan_backend::reserve, "reserve", bytes.value(), &range);
  return range;
}

void DeviceMemory::unreserve(void* range, Bytes bytes) noexcept {
  calls_.give_back(&dsplan_backend::unreserve, "unreserve", range, bytes.value());
}

bool DeviceMemory::try_map(void* range, Bytes offset, Bytes bytes) {
  const dsplan_status status = calls_.backend().map(calls_.handle(), range, offset.value(), bytes.value());
  if (status == DSPLAN_OUT_OF_MEMORY) return false;
  calls_.check(status, "map");
  return true;
}

void DeviceMemory::unmap(void* range, Bytes offset, Bytes bytes) noexcept {
  calls_.give_back(&dsplan_backend::unmap, "unmap", range, offset.value(), bytes.value());
}

dsplan_file* DeviceFiles::create(const std::string& name, Bytes bytes) {
  dsplan_file* file = nullptr;
  calls_.run(&dsplan_backend::file_create, "file_create", name.c_str(), bytes.value(), &file);
  return file;
}

void DeviceFiles::write(dsplan_file* file, Bytes offset, const void* from, Bytes bytes) {
  calls_.run(&dsplan_backend::file_write, "file_write", file, offset.value(), from, bytes.value());
  written_ += bytes;
}

void DeviceFiles::read(dsplan_file* file, Bytes offset, void* to, Bytes bytes) {
  calls_.run(&dsplan_backend::file_read, "file_read", file, offset.value(), to, bytes.value());
  read_ += bytes;
}

void DeviceFiles::remove(dsplan_file* file) noexcept {
  calls_.give_back(&dsplan_backend::file_remove, "file_remove", file);
}

void Device::copy(void* to, Space to_space, const void* from, Space from_space, Bytes bytes, StreamId stream) {
  calls_.run(&dsplan_backend::copy, "copy", to, space_of(to_space), from, space_of(from_space), bytes.value(),
             this->stream(stream));
}

void Device::fill(void* memory, Space space, std::uint8_t value, Bytes bytes, StreamId stream) {
  calls_.run(&dsplan_backend::fill, "fill", memory, space_of(space), value, bytes.value(), this->stream(stream));
}

void Device::combine(dsplan_reduction how, DType dtype, void* target, const std::vector<const void*>& pieces,
                     std::int64_t elements, StreamId stream) {
  calls_.run(&dsplan_backend::combine, "combine", how, static_cast<std::int32_t>(dtype), target, pieces.data(),
             static_cast<std::uint32_t>(pieces.size()), elements, this->stream(stream));
}

void Device::launch(const dsplan_launch& what, StreamId stream) {
  calls_.run(&dsplan_backend::launch, "launch", &what, this->stream(stream));
}

dsplan_stream* Device::stream(StreamId stream) {
  if (stream == kCurrentStream) stream = current_;
  if (stream >= streams_.size()) streams_.resize(stream + std::size_t{1}, nullptr);
  if (streams_[stream] == nullptr) calls_.run(&dsplan_backend::stream_create, "stream_create", &streams_[stream]);
  return streams_[stream];
}

void Device::synchronize(StreamId stream) {
  calls_.run(&dsplan_backend::stream_synchronize, "stream_synchronize", this->stream(stream));
}

void Device::synchronize() {
  for (dsplan_stream* each : streams_) {
    if (each != nullptr) calls_.run(&dsplan_backend::stream_synchronize, "stream_synchronize", each);
  }
}

void Device::wait(StreamId stream, const DeviceEvent& event) {
  calls_.run(&dsplan_backend::event_wait, "event_wait", this->stream(stream), event.get());
}

DeviceEvent::DeviceEvent(Device& device) : device_(&device) {
  device.calls().run(&dsplan_backend::event_create, "event_create", &event_);
}

DeviceEvent::~DeviceEvent() {
  if (event_ != nullptr) device_->calls().give_back(&dsplan_backend::event_destroy, "event_destroy", event_);
}

void DeviceEvent::record(StreamId stream) {
  device_->calls().run(&dsplan_backend::event_record, "event_record", event_, device_->stream(stream));
}

void DeviceEvent::synchronize() const {
  device_->calls().run(&dsplan_backend::event_synchronize, "event_synchronize", event_);
}

std::int64_t DeviceEvent::since(const DeviceEvent& start) const {
  std::int64_t nanoseconds = 0;
  device_->calls().run(&dsplan_backend::event_elapsed, "event_elapsed", start.event_, event_, &nanoseconds);
  return nanoseconds;
}

}  // namespace dsplan::exec
