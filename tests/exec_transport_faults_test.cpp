#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "collective_cases.h"
#include "exec/host/host_backend.h"
#include "exec/ranks.h"
#include "exec/transport/threads.h"
#include "watched_backend.h"

using namespace dsplan;
using namespace dsplan::exec;

namespace {

constexpr Collective kKinds[] = {Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather,
                                 Collective::Broadcast, Collective::Reduce,        Collective::AllToAll};

using collective_cases::all_of;

// A small run with every collective and messages, its buffers in memory that goes when a rank gives up.
void all_kinds(RankScope& scope, Transport& transport, const dsplan_backend& backend, int ranks) {
  Device device(backend, {scope.rank, 0, ""});
  {
    const std::unique_ptr<Communicator> group = transport.connect(Group::DataParallel, device);
    const std::int64_t elements = 64 * ranks;
    const Bytes bytes(elements * 4);
    void* in = device.memory().allocate(Space::Device, bytes);
    void* out = device.memory().allocate(Space::Device, bytes);
    const auto free_both = [&] {
      device.memory().release(Space::Device, in, bytes);
      device.memory().release(Space::Device, out, bytes);
    };
    try {
      device.fill(in, Space::Device, 0, bytes);
      for (const Collective kind : kKinds) {
        ++scope.event;
        (void)group->run({kind, DType::Float32, DSPLAN_SUM, elements, in, out, ranks - 1});
      }
      ++scope.event;
      CollectiveCall ring{Collective::SendRecv, DType::Float32, DSPLAN_SUM, elements, in, out};
      ring.to = (scope.rank + 1) % ranks;
      ring.from = (scope.rank + ranks - 1) % ranks;
      (void)group->run(ring);
    } catch (...) {
      free_both();
      throw;
    }
    free_both();
  }
  device.close();
}

RanksOutcome run_all_kinds(int ranks, WatchedBackend& backend) {
  ThreadTransport transport(ranks, std::chrono::seconds(60));
  transport.divide(Group::DataParallel, all_of(ranks));
  return run_ranks(ranks, transport, [&](RankScope& scope) {
    scope.event = 0;
    all_kinds(scope, transport, backend.table(), ranks);
  });
}

}  // namespace

TEST_CASE("whichever call fails on whichever rank: the run ends on all ranks, names it, and leaves nothing open") {
  for (const int ranks : {1, 2, 3}) {
    HostBackend host;
    WatchedBackend counting(host.table());
    const RanksOutcome sound = run_all_kinds(ranks, counting);
    if (ranks == 1) {
      REQUIRE(sound.first);  // One rank has nobody to send to.
      continue;
    }
    REQUIRE_FALSE(sound.first);
    CHECK(counting.open_devices() == 0);
    std::int64_t tried = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      for (std::int64_t call = 0; call < counting.calls(rank); ++call) {
        CAPTURE(ranks);
        CAPTURE(rank);
        CAPTURE(call);
        WatchedBackend faulty(host.table(), WatchedBackend::Fault{rank, call, DSPLAN_DEVICE});
        const RanksOutcome outcome = run_all_kinds(ranks, faulty);
        REQUIRE(outcome.first);
        CHECK(outcome.first->rank == rank);
        CHECK(outcome.first->call.find(faulty.failed()) != std::string::npos);
        CHECK(outcome.first->text == "failed on purpose");
        CHECK(faulty.open_devices() == 0);
        CHECK_THROWS_AS(outcome.rethrow_if_failed(), RunFailure);
        ++tried;
      }
    }
    CHECK(tried > 50 * ranks);
  }
}

TEST_CASE("a rank that fails keeps its memory until those who are slower have read it") {
  HostBackend host;
  WatchedBackend counting(host.table());
  REQUIRE_FALSE(run_all_kinds(2, counting).first);
  for (std::int64_t call = 0; call < counting.calls(0); ++call) {
    CAPTURE(call);
    WatchedBackend faulty(host.table(), WatchedBackend::Fault{0, call, DSPLAN_DEVICE},
                          [](int rank, std::int64_t) { return std::chrono::microseconds(rank == 1 ? 400 : 0); });
    const RanksOutcome outcome = run_all_kinds(2, faulty);
    REQUIRE(outcome.first);
    CHECK(outcome.first->rank == 0);
    CHECK(faulty.open_devices() == 0);
  }
}

TEST_CASE("ranks that are held up differently still agree") {
  HostBackend host;
  for (unsigned seed = 0; seed < 4; ++seed) {
    WatchedBackend slow(host.table(), std::nullopt, [seed](int rank, std::int64_t call) {
      const auto mixed =
          (static_cast<std::uint64_t>(call) * 2654435761U + static_cast<unsigned>(rank) * 97U + seed) >> 3;
      return std::chrono::microseconds(mixed % 5 == 0 ? mixed % 700 : 0);
    });
    const RanksOutcome outcome = run_all_kinds(4, slow);
    CHECK_FALSE(outcome.first);
    CHECK(slow.open_devices() == 0);
  }
  CHECK(host.left_behind() == 0);
}
