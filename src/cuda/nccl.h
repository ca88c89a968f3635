// NCCL as far as a run needs it: the library looked up when it is asked for, and communicators that neither wait for
// ever nor outlive a failure. Nothing here calls CUDA: tests run the same lines over a library of their own.
//
// The library is the one that $DSPLAN_NCCL_LIBRARY names (and then no other), else libnccl.so.2 as the loader finds it.
// Its types are written down here as of NCCL 2.18, whose layouts later releases keep; where the build finds nccl.h it
// holds them against it (plugin/nccl_prototypes.cpp).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "exec/backend.h"

namespace dsplan::cuda {

class NcclFailure : public std::runtime_error {
 public:
  NcclFailure(dsplan_status status, const std::string& text) : std::runtime_error(text), status_(status) {}
  [[nodiscard]] dsplan_status status() const { return status_; }

 private:
  dsplan_status status_;
};

struct NcclId {
  char bytes[DSPLAN_COMMUNICATOR_ID_BYTES];
};
using NcclComm = void*;

// ncclConfig_t of 2.18.
struct NcclConfig {
  static constexpr int kUndefined = INT32_MIN;
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
};

enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclSystemError = 2,
  kNcclInternalError = 3,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
  kNcclInProgress = 7,
};

struct NcclLibrary {
  int version = 0;          // As NCCL numbers it: 22809.
  std::string description;  // "NCCL 2.28.9 (/usr/lib/libnccl.so.2)"

  int (*get_unique_id)(NcclId*) = nullptr;
  int (*comm_init_rank_config)(NcclComm*, int, NcclId, int, NcclConfig*) = nullptr;
  int (*comm_finalize)(NcclComm) = nullptr;
  int (*comm_destroy)(NcclComm) = nullptr;
  int (*comm_abort)(NcclComm) = nullptr;
  int (*comm_get_async_error)(NcclComm, int*) = nullptr;
  const char* (*get_error_string)(int) = nullptr;
  const char* (*get_last_error)(NcclComm) = nullptr;
  // Counts are in elements, streams are CUDA's.
  int (*all_reduce)(const void*, void*, std::size_t, int, int, NcclComm, void*) = nullptr;
  int (*reduce_scatter)(const void*, void*, std::size_t, int, int, NcclComm, void*) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t, int, NcclComm, void*) = nullptr;
  int (*broadcast)(const void*, void*, std::size_t, int, int, NcclComm, void*) = nullptr;
  int (*reduce)(const void*, void*, std::size_t, int, int, int, NcclComm, void*) = nullptr;
  int (*send)(const void*, std::size_t, int, int, NcclComm, void*) = nullptr;
  int (*receive)(void*, std::size_t, int, int, NcclComm, void*) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
};
// Looked up once. Throws NcclFailure (DSPLAN_UNAVAILABLE) with what is missing.
[[nodiscard]] const NcclLibrary& nccl();

class NcclCommunicator {
 public:
  // Waits for the others of the group. Throws NcclFailure.
  NcclCommunicator(const NcclLibrary& library, const NcclId& id, const dsplan_group& group);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Enqueues on `stream` (CUDA's).
  void run(const dsplan_collective& call, void* stream);
  // Throws where it was aborted, or where something went wrong since.
  void check_alive();
  // By any thread: whoever waits for this communicator's work gets it back.
  void abort() noexcept;
  [[nodiscard]] std::chrono::nanoseconds timeout() const { return std::chrono::nanoseconds(group_.timeout); }

 private:
  void collective(const dsplan_collective& call, int type, int how, void* stream);
  void settle(int result, const char* call);
  void point_to_point(const dsplan_collective& call, int type, void* stream);
  void all_to_all(const dsplan_collective& call, int type, void* stream);
  [[noreturn]] void fail(dsplan_status status, const std::string& text);
  [[nodiscard]] bool given_up() const { return aborted_ || (group_.give_up != nullptr && *group_.give_up != 0); }
  void end() noexcept;

  const NcclLibrary& library_;
  dsplan_group group_;
  std::atomic<NcclComm> comm_{nullptr};
  std::atomic<bool> aborted_{false};
  std::timed_mutex calling_;  // Held within calls of the library.
};

// Repeats `done` until it is true. Throws NcclFailure where one of the communicators was aborted or failed, or where
// their timeout ends; then all of them are aborted.
void wait_with(const std::vector<std::unique_ptr<NcclCommunicator>>& communicators, const std::function<bool()>& done);

}  // namespace dsplan::cuda
