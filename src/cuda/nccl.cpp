#include "cuda/nccl.h"

#include <dlfcn.h>
#include <algorithm>
#include <cstdlib>
#include <thread>

#include "core/format.h"
#include "core/schedule.h"
#include "core/units.h"

namespace dsplan::cuda {
namespace {

constexpr int kLeastVersion = 21800;  // The first with all that NcclConfig has.

template <class Call>
void look_up(void* library, const char* name, Call*& into) {
  void* found = ::dlsym(library, name);
  if (found == nullptr) throw NcclFailure(DSPLAN_UNAVAILABLE, formatted("the NCCL library has no {}", name));
  into = reinterpret_cast<Call*>(found);
}

std::string in_words(int version) { return formatted("{}.{}.{}", version / 10000, version / 100 % 100, version % 100); }

NcclLibrary load() {
  const char* given = std::getenv("DSPLAN_NCCL_LIBRARY");
  const std::string path = given != nullptr && *given != '\0' ? given : "libnccl.so.2";
  ::dlerror();
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    throw NcclFailure(DSPLAN_UNAVAILABLE, formatted("NCCL is not here: {}", why == nullptr ? path.c_str() : why));
  }
  NcclLibrary made;
  int (*get_version)(int*) = nullptr;
  look_up(library, "ncclGetVersion", get_version);
  if (get_version(&made.version) != kNcclSuccess || made.version < kLeastVersion) {
    throw NcclFailure(DSPLAN_UNAVAILABLE, formatted("{} is NCCL {}; {} or later is needed", path,
                                                    in_words(made.version), in_words(kLeastVersion)));
  }
  look_up(library, "ncclGetUniqueId", made.get_unique_id);
  look_up(library, "ncclCommInitRankConfig", made.comm_init_rank_config);
  look_up(library, "ncclCommFinalize", made.comm_finalize);
  look_up(library, "ncclCommDestroy", made.comm_destroy);
  look_up(library, "ncclCommAbort", made.comm_abort);
  look_up(library, "ncclCommGetAsyncError", made.comm_get_async_error);
  look_up(library, "ncclGetErrorString", made.get_error_string);
  look_up(library, "ncclGetLastError", made.get_last_error);
  look_up(library, "ncclAllReduce", made.all_reduce);
  look_up(library, "ncclReduceScatter", made.reduce_scatter);
  look_up(library, "ncclAllGather", made.all_gather);
  look_up(library, "ncclBroadcast", made.broadcast);
  look_up(library, "ncclReduce", made.reduce);
  look_up(library, "ncclSend", made.send);
  look_up(library, "ncclRecv", made.receive);
  look_up(library, "ncclGroupStart", made.group_start);
  look_up(library, "ncclGroupEnd", made.group_end);
  Dl_info place{};
  const bool placed = ::dladdr(reinterpret_cast<void*>(get_version), &place) != 0 && place.dli_fname != nullptr;
  made.description = formatted("NCCL {} ({})", in_words(made.version), placed ? place.dli_fname : path.c_str());
  return made;
}

// ncclDataType_t. A flag is a byte.
int type_of(DType dtype) {
  switch (dtype) {
    case DType::Int8: return 0;
    case DType::UInt8:
    case DType::Bool: return 1;
    case DType::Int32: return 2;
    case DType::Int64: return 4;
    case DType::Float16: return 6;
    case DType::Float32: return 7;
    case DType::Float64: return 8;
    case DType::BFloat16: return 9;
  }
  throw NcclFailure(DSPLAN_INVALID, "a dtype that NCCL does not have");
}

// What a result of the library means at the boundary.
dsplan_status status_of(int result) {
  switch (result) {
    case kNcclInvalidArgument:
    case kNcclInvalidUsage: return DSPLAN_INVALID;
    case kNcclSystemError: return DSPLAN_UNAVAILABLE;
    case kNcclRemoteError: return DSPLAN_ABORTED;
    default: return DSPLAN_DEVICE;
  }
}

double seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; }

}  // namespace

const NcclLibrary& nccl() {
  static const NcclLibrary library = load();
  return library;
}

NcclCommunicator::NcclCommunicator(const NcclLibrary& library, const NcclId& id, const dsplan_group& group)
    : library_(library), group_(group) {
  NcclConfig config;
  config.blocking = 0;
  if (group.most_blocks > 0) {
    config.min_ctas = 1;
    config.max_ctas = group.most_blocks;
  }
  NcclComm made = nullptr;
  const std::lock_guard lock(calling_);
  const int result = library_.comm_init_rank_config(&made, group.ranks, id, group.rank, &config);
  comm_ = made;
  try {
    settle(result, "ncclCommInitRankConfig");
  } catch (...) {
    end();
    throw;
  }
}

NcclCommunicator::~NcclCommunicator() {
  const std::lock_guard lock(calling_);
  if (comm_ == nullptr) return;
  try {
    settle(library_.comm_finalize(comm_), "ncclCommFinalize");
  } catch (const NcclFailure&) {  // `fail` has aborted it.
  }
  if (const NcclComm comm = comm_.exchange(nullptr); comm != nullptr) (void)library_.comm_destroy(comm);
}

void NcclCommunicator::end() noexcept {
  aborted_ = true;
  if (const NcclComm comm = comm_.exchange(nullptr); comm != nullptr) (void)library_.comm_abort(comm);
}

// Whoever is within a call of the library and waits there sees the flag and leaves; who does not is somewhere that only
// the library's own abort reaches.
void NcclCommunicator::abort() noexcept {
  aborted_ = true;
  std::unique_lock lock(calling_, std::defer_lock);
  (void)lock.try_lock_for(std::chrono::seconds(1));
  end();
}

void NcclCommunicator::fail(dsplan_status status, const std::string& text) {
  end();
  throw NcclFailure(status, text);
}

// Calls return before they are done. Until they are nothing may be enqueued.
void NcclCommunicator::settle(int result, const char* call) {
  const auto end = std::chrono::steady_clock::now() + timeout();
  while (result == kNcclInProgress) {
    if (given_up()) fail(DSPLAN_ABORTED, formatted("{}: aborted", call));
    if (std::chrono::steady_clock::now() > end) {
      fail(DSPLAN_TIMEOUT,
           formatted("{}: {} s for the other ranks of {}", call, seconds(group_.timeout), group_.ranks));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    const int asked = library_.comm_get_async_error(comm_, &result);
    if (asked != kNcclSuccess) result = asked;
  }
  if (result == kNcclSuccess) return;
  const char* more = library_.get_last_error(comm_);
  fail(status_of(result), formatted("{}: {}{}{}", call, library_.get_error_string(result),
                                    more == nullptr || *more == '\0' ? "" : ": ", more == nullptr ? "" : more));
}

void NcclCommunicator::check_alive() {
  const std::lock_guard lock(calling_);
  if (given_up() || comm_ == nullptr) fail(DSPLAN_ABORTED, "the communicator was aborted");
  int state = kNcclSuccess;
  const int asked = library_.comm_get_async_error(comm_, &state);
  settle(asked == kNcclSuccess ? state : asked, "ncclCommGetAsyncError");
}

void NcclCommunicator::run(const dsplan_collective& call, void* stream) {
  if (call.elements == 0) return;
  const int type = type_of(static_cast<DType>(call.dtype));
  // Flags are 0 and 1: their sum is whether any is set.
  const bool flags = static_cast<DType>(call.dtype) == DType::Bool;
  const int how = call.reduction == DSPLAN_MAX || flags ? 2 : 0;  // ncclMax, ncclSum.
  const std::lock_guard lock(calling_);
  if (given_up() || comm_ == nullptr) fail(DSPLAN_ABORTED, "the communicator was aborted");
  collective(call, type, how, stream);
}

void NcclCommunicator::collective(const dsplan_collective& call, int type, int how, void* stream) {
  const auto all = static_cast<std::size_t>(call.elements);
  const std::size_t share = all / static_cast<std::size_t>(group_.ranks);
  void* const output = call.output != nullptr ? call.output : const_cast<void*>(call.input);
  const void* const input = call.input != nullptr ? call.input : call.output;
  switch (static_cast<Collective>(call.kind)) {
    case Collective::AllReduce:
      return settle(library_.all_reduce(input, output, all, type, how, comm_, stream), "ncclAllReduce");
    case Collective::ReduceScatter:
      return settle(library_.reduce_scatter(input, output, share, type, how, comm_, stream), "ncclReduceScatter");
    case Collective::AllGather:
      return settle(library_.all_gather(input, output, share, type, comm_, stream), "ncclAllGather");
    case Collective::Broadcast:
      return settle(library_.broadcast(input, output, all, type, call.root, comm_, stream), "ncclBroadcast");
    case Collective::Reduce:
      return settle(library_.reduce(input, output, all, type, how, call.root, comm_, stream), "ncclReduce");
    case Collective::AllToAll: return all_to_all(call, type, stream);
    case Collective::SendRecv: return point_to_point(call, type, stream);
  }
  throw NcclFailure(DSPLAN_UNSUPPORTED, "a collective that NCCL does not have");
}

void NcclCommunicator::all_to_all(const dsplan_collective& call, int type, void* stream) {
  const std::size_t share = static_cast<std::size_t>(call.elements) / static_cast<std::size_t>(group_.ranks);
  const std::size_t bytes = share * static_cast<std::size_t>(bytes_per_element(static_cast<DType>(call.dtype)));
  settle(library_.group_start(), "ncclGroupStart");
  for (int rank = 0; rank < group_.ranks; ++rank) {
    const std::size_t at = bytes * static_cast<std::size_t>(rank);
    settle(library_.send(static_cast<const char*>(call.input) + at, share, type, rank, comm_, stream), "ncclSend");
    settle(library_.receive(static_cast<char*>(call.output) + at, share, type, rank, comm_, stream), "ncclRecv");
  }
  settle(library_.group_end(), "ncclGroupEnd");
}

void NcclCommunicator::point_to_point(const dsplan_collective& call, int type, void* stream) {
  const auto all = static_cast<std::size_t>(call.elements);
  settle(library_.group_start(), "ncclGroupStart");
  if (call.to >= 0) settle(library_.send(call.input, all, type, call.to, comm_, stream), "ncclSend");
  if (call.from >= 0) settle(library_.receive(call.output, all, type, call.from, comm_, stream), "ncclRecv");
  settle(library_.group_end(), "ncclGroupEnd");
}

void wait_with(const std::vector<std::unique_ptr<NcclCommunicator>>& communicators, const std::function<bool()>& done) {
  const auto began = std::chrono::steady_clock::now();
  while (!done()) {
    std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max();
    for (const auto& each : communicators) {
      each->check_alive();
      timeout = std::min(timeout, each->timeout());
    }
    if (std::chrono::steady_clock::now() - began > timeout) {
      for (const auto& each : communicators) each->abort();
      throw NcclFailure(DSPLAN_TIMEOUT,
                        formatted("{} s for work on the device, collectives among it", seconds(timeout.count())));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace dsplan::cuda
