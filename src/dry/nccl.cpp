// NCCL: every call is counted and put on its stream; small collectives are carried out among the peers at once.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dry/cudart.h"
#include "dry/ledger.h"
#include "dry/memory.h"
#include "dry/peers.h"
#include "dry/reduce.h"

using namespace dsplan::dry;

namespace {

enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclCudaError = 1,
  kNcclSystemError = 2,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
};
constexpr int kNcclVersion = 22809;

struct Id {
  char name[128];
};

struct Communicator {
  std::string name;
  int ranks = 1;
  int rank = 0;
  int device = 0;
  int splits = 0;
  std::atomic<bool> aborted{false};
  std::unique_ptr<Peers> peers;
  std::map<int, double> scales;  // Of reductions that multiply first.
};

// What is still to do of a call: tried until it says that it is done.
using Attempt = std::function<bool()>;
struct Pending {
  Communicator* communicator;
  bool ordered;  // After everything before it of the same communicator.
  Attempt attempt;
};
struct Group {
  int depth = 0;
  std::vector<Pending> calls;
  std::pair<const char*, Communicator*> booked{};  // What its last call was.
};
Group& group() {
  thread_local Group open;
  return open;
}

// Each call of one communicator's waits for those before it, but a message waits for no other: ranks may send and
// receive in any order.
bool pass(std::vector<Pending>& calls) {
  std::vector<const Communicator*> blocked;
  bool progressed = false;
  for (auto call = calls.begin(); call != calls.end();) {
    const bool waits = call->ordered && std::find(blocked.begin(), blocked.end(), call->communicator) != blocked.end();
    if (!waits && call->attempt()) {
      call = calls.erase(call);
      progressed = true;
      continue;
    }
    if (call->ordered) blocked.push_back(call->communicator);
    ++call;
  }
  return progressed;
}

NcclResult finish(std::vector<Pending> calls) {
  using Clock = std::chrono::steady_clock;
  const std::chrono::seconds patience(setting("DSPLAN_DRY_PATIENCE", 600));
  auto deadline = Clock::now() + patience;
  for (int idle = 0; !calls.empty();) {
    if (pass(calls)) {
      deadline = Clock::now() + patience;
      idle = 0;
      continue;
    }
    for (const Pending& call : calls) {
      if (call.communicator->aborted) return kNcclRemoteError;
    }
    if (Clock::now() > deadline) return kNcclRemoteError;
    if (++idle < 100) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  return kNcclSuccess;
}

NcclResult issue(Communicator* communicator, bool ordered, Attempt attempt) {
  group().calls.push_back({communicator, ordered, std::move(attempt)});
  return group().depth > 0 ? kNcclSuccess : finish(std::exchange(group().calls, {}));
}

Nanoseconds collective_time(std::size_t bytes) { return 10000 + bytes / device().link_bytes_per_ns; }

// What several calls of a group send is one collective, as the framework made one call.
void book(Communicator* c, const char* name, std::size_t elements, int type, void* stream) {
  const std::size_t payload = elements * bytes_of_type(type);
  enum : int { kUint8 = 1, kFirstFloat = 6 };
  const bool control = elements == 1 || (type < kFirstFloat && type != kUint8);
  const bool again = group().depth > 0 && group().booked == std::pair<const char*, Communicator*>{name, c};
  if (group().depth > 0) group().booked = {name, c};
  count_collective({name, name_of_type(type), c->ranks, control}, payload, again);
  streams().launch(stream_of(stream), collective_time(payload));
}

// Everybody lays down `bytes`; when all have, `use` takes what it wants. Larger ones are left out.
NcclResult exchange(Communicator* c, const void* mine, std::size_t bytes, std::function<void(const Peers&)> use) {
  if (bytes > copy_limit()) return kNcclSuccess;
  return issue(c, true, [c, mine, bytes, use = std::move(use), laid = false]() mutable {
    if (!laid && !(laid = c->peers->lay_down(mine, bytes))) return false;
    if (!c->peers->all_lie()) return false;
    use(*c->peers);
    c->peers->looked();
    return true;
  });
}

double scale_of(const Communicator* c, int reduction) {
  const auto found = c->scales.find(reduction);
  return found == c->scales.end() ? 1 : found->second;
}

void reduce_parts(Communicator* c, const Peers& peers, void* out, std::size_t count, int type, int reduction,
                  std::size_t offset) {
  reduce(out, count, type, reduction, scale_of(c, reduction), c->ranks,
         [&](int rank) { return peers.of(rank) + offset; });
}

NcclResult join(Communicator** out, const std::string& name, int ranks, int rank) {
  if (ranks < 1 || rank < 0 || rank >= ranks) return kNcclInvalidArgument;
  auto made = std::make_unique<Communicator>();
  made->name = name;
  made->ranks = ranks;
  made->rank = rank;
  made->device = current_device();
  made->peers = peers_are_mirrored() || ranks == 1 ? mirrored() : meet(name, ranks, rank);
  if (made->peers == nullptr) return kNcclSystemError;
  *out = made.release();
  return kNcclSuccess;
}

}  // namespace

DSPLAN_DRY_CALL NcclResult ncclGetVersion(int* version) {
  *version = kNcclVersion;
  return kNcclSuccess;
}
DSPLAN_DRY_CALL NcclResult ncclGetUniqueId(Id* id) {
  std::memset(id, 0, sizeof *id);
  new_meeting_name().copy(id->name, kMeetingName);
  return kNcclSuccess;
}
DSPLAN_DRY_CALL const char* ncclGetErrorString(NcclResult result) {
  switch (result) {
    case kNcclSuccess: return "no error";
    case kNcclCudaError: return "unhandled cuda error";
    case kNcclSystemError: return "unhandled system error: no shared memory for ranks to meet in";
    case kNcclRemoteError: return "remote process exited or there was a network error: another rank never came";
    default: return "invalid usage";
  }
}
DSPLAN_DRY_CALL const char* ncclGetLastError(Communicator*) { return ""; }

DSPLAN_DRY_CALL NcclResult ncclCommInitRank(Communicator** out, int ranks, Id id, int rank) {
  id.name[kMeetingName] = '\0';
  return join(out, id.name, ranks, rank);
}
DSPLAN_DRY_CALL NcclResult ncclCommInitRankConfig(Communicator** out, int ranks, Id id, int rank, void*) {
  return ncclCommInitRank(out, ranks, id, rank);
}
DSPLAN_DRY_CALL NcclResult ncclCommInitRankScalable(Communicator** out, int ranks, int rank, int, Id* ids, void*) {
  return ncclCommInitRank(out, ranks, ids[0], rank);
}
DSPLAN_DRY_CALL NcclResult ncclCommInitAll(Communicator** out, int ranks, const int* devices) {
  const std::string name = new_meeting_name();
  for (int rank = 0; rank < ranks; ++rank) {
    if (const NcclResult joined = join(out + rank, name, ranks, rank); joined != kNcclSuccess) return joined;
    out[rank]->device = devices != nullptr ? devices[rank] : rank;
  }
  return kNcclSuccess;
}
DSPLAN_DRY_CALL NcclResult ncclCommSplit(Communicator* c, int color, int key, Communicator** out, void*) {
  struct Choice {
    int color, key;
  };
  const Choice mine{color, key};
  int ranks = 0;
  int rank = 0;
  const NcclResult said = exchange(c, &mine, sizeof mine, [&](const Peers& peers) {
    for (int r = 0; r < c->ranks; ++r) {
      Choice other;
      std::memcpy(&other, peers.of(r), sizeof other);
      if (other.color != color) continue;
      ++ranks;
      rank += other.key < key || (other.key == key && r < c->rank) ? 1 : 0;
    }
  });
  if (said != kNcclSuccess) return said;
  *out = nullptr;
  const std::string name = c->name.substr(0, 44) + "-" + std::to_string(++c->splits) + "-" + std::to_string(color);
  return color < 0 ? kNcclSuccess : join(out, name, ranks, rank);
}
DSPLAN_DRY_CALL NcclResult ncclCommFinalize(Communicator*) { return kNcclSuccess; }
DSPLAN_DRY_CALL NcclResult ncclCommDestroy(Communicator* c) {
  delete c;
  return kNcclSuccess;
}
// Another thread may wait in it: it is kept.
DSPLAN_DRY_CALL NcclResult ncclCommAbort(Communicator* c) {
  c->aborted = true;
  return kNcclSuccess;
}
DSPLAN_DRY_CALL NcclResult ncclCommCount(const Communicator* c, int* ranks) {
  *ranks = c->ranks;
  return kNcclSuccess;
}
DSPLAN_DRY_CALL NcclResult ncclCommUserRank(const Communicator* c, int* rank) {
  *rank = c->rank;
  return kNcclSuccess;
}
DSPLAN_DRY_CALL NcclResult ncclCommCuDevice(const Communicator* c, int* device) {
  *device = c->device;
  return kNcclSuccess;
}
DSPLAN_DRY_CALL NcclResult ncclCommGetAsyncError(const Communicator* c, int* error) {
  *error = c->aborted ? kNcclRemoteError : kNcclSuccess;
  return kNcclSuccess;
}
DSPLAN_DRY_CALL NcclResult ncclCommRegister(const Communicator*, void* at, std::size_t, void** handle) {
  *handle = at;
  return kNcclSuccess;
}
DSPLAN_DRY_CALL NcclResult ncclCommDeregister(const Communicator*, void*) { return kNcclSuccess; }
DSPLAN_DRY_CALL NcclResult ncclMemAlloc(void** at, std::size_t bytes) {
  *at = memory_of(current_device()).allocate(bytes);
  return *at != nullptr ? kNcclSuccess : kNcclCudaError;
}
DSPLAN_DRY_CALL NcclResult ncclMemFree(void* at) {
  const int device = device_of(at);
  return device >= 0 && memory_of(device).free(at) ? kNcclSuccess : kNcclInvalidArgument;
}
DSPLAN_DRY_CALL NcclResult ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int, Communicator* c) {
  double value = 1;
  widen(&value, scalar, type);
  *op = kFirstScaledSum + static_cast<int>(c->scales.size());
  c->scales[*op] = value;
  return kNcclSuccess;
}
DSPLAN_DRY_CALL NcclResult ncclRedOpDestroy(int, Communicator*) { return kNcclSuccess; }

DSPLAN_DRY_CALL NcclResult ncclGroupStart() {
  ++group().depth;
  return kNcclSuccess;
}
DSPLAN_DRY_CALL NcclResult ncclGroupEnd() {
  if (group().depth == 0) return kNcclInvalidUsage;
  if (group().depth == 1) group().booked = {};
  return --group().depth > 0 ? kNcclSuccess : finish(std::exchange(group().calls, {}));
}

DSPLAN_DRY_CALL NcclResult ncclAllReduce(const void* in, void* out, std::size_t count, int type, int op,
                                         Communicator* c, void* stream) {
  const std::size_t bytes = count * bytes_of_type(type);
  book(c, "all_reduce", count, type, stream);
  return exchange(c, in, bytes, [=](const Peers& peers) { reduce_parts(c, peers, out, count, type, op, 0); });
}
DSPLAN_DRY_CALL NcclResult ncclReduce(const void* in, void* out, std::size_t count, int type, int op, int root,
                                      Communicator* c, void* stream) {
  const std::size_t bytes = count * bytes_of_type(type);
  book(c, "reduce", count, type, stream);
  return exchange(c, in, bytes, [=](const Peers& peers) {
    if (c->rank == root) reduce_parts(c, peers, out, count, type, op, 0);
  });
}
DSPLAN_DRY_CALL NcclResult ncclBroadcast(const void* in, void* out, std::size_t count, int type, int root,
                                         Communicator* c, void* stream) {
  const std::size_t bytes = count * bytes_of_type(type);
  book(c, "broadcast", count, type, stream);
  // Only the root's `in` is read by NCCL; here everybody lays down what would be there afterwards if all were alike.
  return exchange(c, c->rank == root ? in : out, bytes,
                  [=](const Peers& peers) { std::memcpy(out, peers.of(root), bytes); });
}
DSPLAN_DRY_CALL NcclResult ncclBcast(void* at, std::size_t count, int type, int root, Communicator* c, void* stream) {
  return ncclBroadcast(at, at, count, type, root, c, stream);
}
DSPLAN_DRY_CALL NcclResult ncclAllGather(const void* in, void* out, std::size_t count, int type, Communicator* c,
                                         void* stream) {
  const std::size_t bytes = count * bytes_of_type(type);
  book(c, "all_gather", count * static_cast<std::size_t>(c->ranks), type, stream);
  return exchange(c, in, bytes, [=](const Peers& peers) {
    for (int r = 0; r < c->ranks; ++r) {
      std::memcpy(static_cast<char*>(out) + static_cast<std::size_t>(r) * bytes, peers.of(r), bytes);
    }
  });
}
DSPLAN_DRY_CALL NcclResult ncclReduceScatter(const void* in, void* out, std::size_t count, int type, int op,
                                             Communicator* c, void* stream) {
  const std::size_t bytes = count * bytes_of_type(type);
  const std::size_t all = bytes * static_cast<std::size_t>(c->ranks);
  book(c, "reduce_scatter", count * static_cast<std::size_t>(c->ranks), type, stream);
  return exchange(c, in, all, [=](const Peers& peers) {
    reduce_parts(c, peers, out, count, type, op, bytes * static_cast<std::size_t>(c->rank));
  });
}
DSPLAN_DRY_CALL NcclResult ncclAlltoAll(const void* in, void* out, std::size_t count, int type, Communicator* c,
                                        void* stream) {
  const std::size_t bytes = count * bytes_of_type(type);
  const std::size_t all = bytes * static_cast<std::size_t>(c->ranks);
  book(c, "all_to_all", count * static_cast<std::size_t>(c->ranks), type, stream);
  return exchange(c, in, all, [=](const Peers& peers) {
    for (int r = 0; r < c->ranks; ++r) {
      std::memcpy(static_cast<char*>(out) + static_cast<std::size_t>(r) * bytes,
                  peers.of(r) + static_cast<std::size_t>(c->rank) * bytes, bytes);
    }
  });
}

DSPLAN_DRY_CALL NcclResult ncclSend(const void* in, std::size_t count, int type, int to, Communicator* c,
                                    void* stream) {
  const std::size_t bytes = count * bytes_of_type(type);
  book(c, "send_recv", count, type, stream);
  if (bytes > copy_limit()) return kNcclSuccess;
  return issue(c, false, [=] { return c->peers->send(to, in, bytes); });
}
DSPLAN_DRY_CALL NcclResult ncclRecv(void* out, std::size_t count, int type, int from, Communicator* c, void* stream) {
  const std::size_t bytes = count * bytes_of_type(type);
  streams().launch(stream_of(stream), collective_time(bytes));
  if (bytes > copy_limit()) return kNcclSuccess;
  return issue(c, false, [=] { return c->peers->receive(from, out, bytes); });
}
