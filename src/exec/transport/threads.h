// Transport between ranks that are threads of this process and reach each other's memory: on the host, or as virtual
// ranks on one GPU. Nothing is staged: a rank copies what it needs out of its peers' buffers, and reads the pieces that
// it adds up where they lie.
//
// A call begins when all ranks of the group have come, and ends when all have taken what they need, so that buffers may
// be used again at once. On a device that works asynchronously the threads only meet; its streams wait for each other's
// events.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "exec/transport/transport.h"

namespace dsplan::exec {

struct ThreadGroup;  // Where the ranks of one group meet; private to threads.cpp.

class ThreadTransport : public Transport {
 public:
  // `timeout`: how long a rank waits for another before it gives the run up.
  explicit ThreadTransport(int ranks, std::chrono::milliseconds timeout = std::chrono::minutes(10));
  ~ThreadTransport() override;
  ThreadTransport(const ThreadTransport&) = delete;
  ThreadTransport& operator=(const ThreadTransport&) = delete;

  void divide(Group group, std::vector<std::vector<int>> groups) override;
  [[nodiscard]] std::unique_ptr<Communicator> connect(Group group, Device& device) override;
  void abort(const Failure& failure) noexcept override;
  [[nodiscard]] std::optional<Failure> first_failure() const override;
  void leave(int rank) noexcept override;

  [[nodiscard]] bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  [[nodiscard]] bool has_left(int rank) const { return left_[static_cast<std::size_t>(rank)].load(); }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }

 private:
  void wake_all() noexcept;

  int ranks_;
  std::chrono::milliseconds timeout_;
  std::map<Group, std::vector<std::unique_ptr<ThreadGroup>>> groups_;
  std::vector<std::atomic<bool>> left_;
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;  // Of the next.
  std::optional<Failure> first_;
};

}  // namespace dsplan::exec
