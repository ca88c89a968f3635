// A rank's device behind the C table: failures become RunFailure, and what was opened is closed.
//
// Whatever gives something back (release, unmap, destroy) does not throw, because it runs while other things fail: it
// notes the first failure, and `throw_if_noted` or `close` tells it. No failed call goes unnoticed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/schedule.h"
#include "core/units.h"
#include "exec/backend.h"
#include "exec/failure.h"

namespace dsplan::exec {

// Not of Nvme. What DeepSpeed locks itself and what PyTorch's pool holds is the same kind of memory.
[[nodiscard]] constexpr dsplan_space space_of(Space space) {
  if (space == Space::Device) return DSPLAN_SPACE_DEVICE;
  return space == Space::Pageable ? DSPLAN_SPACE_PAGEABLE : DSPLAN_SPACE_PINNED;
}

inline constexpr StreamId kCurrentStream = 254;

// The calls of one opened device: its handle behind the table, and what failed.
class DeviceCalls {
 public:
  // Refuses (RunFailure) a table of another version or size. The table must outlive this.
  DeviceCalls(const dsplan_backend& backend, int rank, int ordinal, const std::string& directory);
  ~DeviceCalls() { close(); }
  DeviceCalls(const DeviceCalls&) = delete;
  DeviceCalls& operator=(const DeviceCalls&) = delete;

  [[nodiscard]] const dsplan_backend& backend() const { return backend_; }
  [[nodiscard]] dsplan_device* handle() const { return device_; }
  [[nodiscard]] int rank() const { return rank_; }

  // A call of the table that must succeed: throws RunFailure where it does not. `name`: for messages.
  template <class... Parameters, class... Arguments>
  void run(dsplan_status (*dsplan_backend::*call)(dsplan_device*, Parameters...), const char* name,
           Arguments... arguments) const {
    check((backend_.*call)(device_, arguments...), name);
  }
  // One that gives something back.
  template <class... Parameters, class... Arguments>
  void give_back(dsplan_status (*dsplan_backend::*call)(dsplan_device*, Parameters...), const char* name,
                 Arguments... arguments) noexcept {
    note((backend_.*call)(device_, arguments...), name);
  }
  // Throws unless `status` is DSPLAN_OK.
  void check(dsplan_status status, const char* call) const;
  void note(dsplan_status status, const char* call) noexcept;
  void throw_if_noted() const;
  void close() noexcept;

 private:
  [[nodiscard]] Failure failure(dsplan_status status, const char* call) const;

  const dsplan_backend& backend_;
  int rank_;
  dsplan_device* device_ = nullptr;
  std::optional<Failure> noted_;
};

// Memory of any space but Nvme, and ranges of addresses of the device.
class DeviceMemory {
 public:
  explicit DeviceMemory(DeviceCalls& calls) : calls_(calls) {}

  // nullptr: out of memory. Every other failure throws.
  [[nodiscard]] void* try_allocate(Space space, Bytes bytes);
  [[nodiscard]] void* allocate(Space space, Bytes bytes);
  void release(Space space, void* memory, Bytes bytes) noexcept;
  [[nodiscard]] void* reserve(Bytes bytes);
  void unreserve(void* range, Bytes bytes) noexcept;
  [[nodiscard]] bool try_map(void* range, Bytes offset, Bytes bytes);  // False: out of memory.
  void unmap(void* range, Bytes offset, Bytes bytes) noexcept;

 private:
  DeviceCalls& calls_;
};

class DeviceFiles {
 public:
  explicit DeviceFiles(DeviceCalls& calls) : calls_(calls) {}

  [[nodiscard]] dsplan_file* create(const std::string& name, Bytes bytes);
  void write(dsplan_file* file, Bytes offset, const void* from, Bytes bytes);
  void read(dsplan_file* file, Bytes offset, void* to, Bytes bytes);
  void remove(dsplan_file* file) noexcept;
  // So far.
  [[nodiscard]] Bytes bytes_written() const { return written_; }
  [[nodiscard]] Bytes bytes_read() const { return read_; }

 private:
  DeviceCalls& calls_;
  Bytes written_;
  Bytes read_;
};

class DeviceEvent;

// Else it stands in for a device: what is read back from it are no results, and times are no durations.
[[nodiscard]] inline bool computes(const dsplan_device_info& info) { return (info.flags & DSPLAN_NO_NUMBERS) == 0; }

class Device {
 public:
  struct Options {
    int rank = 0;
    int ordinal = 0;
    std::string directory;  // Where files are made; empty: none can be made.
  };

  Device(const dsplan_backend& backend, const Options& options);

  // Closes, and throws what was noted. The destructor does the first alone.
  void close();
  void throw_if_noted() const { calls_.throw_if_noted(); }

  [[nodiscard]] int rank() const { return calls_.rank(); }
  [[nodiscard]] DeviceCalls& calls() { return calls_; }
  [[nodiscard]] const dsplan_device_info& info() const { return info_; }
  [[nodiscard]] bool host_readable() const { return (info_.flags & DSPLAN_HOST_READABLE) != 0; }
  // Every call has done its work when it returns.
  [[nodiscard]] bool synchronous() const { return (info_.flags & DSPLAN_SYNCHRONOUS) != 0; }
  [[nodiscard]] dsplan_usage usage();

  [[nodiscard]] DeviceMemory& memory() { return memory_; }
  [[nodiscard]] DeviceFiles& files() { return files_; }
  [[nodiscard]] const DeviceFiles& files() const { return files_; }

  // Where no stream is named, on the one that was chosen last; the compute stream at first.
  void use(StreamId stream) { current_ = stream; }
  void copy(void* to, Space to_space, const void* from, Space from_space, Bytes bytes,
            StreamId stream = kCurrentStream);
  void fill(void* memory, Space space, std::uint8_t value, Bytes bytes, StreamId stream = kCurrentStream);
  void combine(dsplan_reduction how, DType dtype, void* target, const std::vector<const void*>& pieces,
               std::int64_t elements, StreamId stream = kCurrentStream);
  void launch(const dsplan_launch& what, StreamId stream = kCurrentStream);
  void wait(StreamId stream, const DeviceEvent& event);  // Also an event of another device of this backend.

  // Streams come into being when they are first named.
  [[nodiscard]] dsplan_stream* stream(StreamId stream);
  void synchronize(StreamId stream);
  void synchronize();  // All of them.

 private:
  DeviceCalls calls_;
  DeviceMemory memory_{calls_};
  DeviceFiles files_{calls_};
  dsplan_device_info info_{};
  std::vector<dsplan_stream*> streams_;
  StreamId current_ = kComputeStream;
};

// An event of a device, which goes with this; nothing where it was moved from. The device must outlive it.
class DeviceEvent {
 public:
  DeviceEvent() = default;
  explicit DeviceEvent(Device& device);
  ~DeviceEvent();
  DeviceEvent(DeviceEvent&& other) noexcept : device_(other.device_), event_(std::exchange(other.event_, nullptr)) {}
  DeviceEvent& operator=(DeviceEvent&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(event_, other.event_);
    return *this;
  }

  [[nodiscard]] dsplan_event* get() const { return event_; }
  void record(StreamId stream);
  void synchronize() const;                                          // The host waits.
  [[nodiscard]] std::int64_t since(const DeviceEvent& start) const;  // Nanoseconds.

 private:
  Device* device_ = nullptr;
  dsplan_event* event_ = nullptr;
};

// Memory that is given back at the end of a scope.
class DeviceBlock {
 public:
  // Throws RunFailure where there is none.
  DeviceBlock(Device& device, Space space, Bytes bytes)
      : device_(device), space_(space), bytes_(bytes), memory_(device.memory().allocate(space, bytes)) {}
  ~DeviceBlock() { device_.memory().release(space_, memory_, bytes_); }
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(memory_); }
  [[nodiscard]] Bytes bytes() const { return bytes_; }

 private:
  Device& device_;
  Space space_;
  Bytes bytes_;
  void* memory_;
};

}  // namespace dsplan::exec
