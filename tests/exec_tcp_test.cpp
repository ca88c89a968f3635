// Collectives between processes over connections: the same bits and the same bytes sent by each rank as between
// threads, whatever is called; and every way in which they can go wrong has an end.
#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "collective_cases.h"
#include "exec/host/host_backend.h"
#include "exec/packed_run.h"
#include "exec/ranks.h"
#include "exec/transport/tcp.h"
#include "exec/transport/threads.h"
#include "ports.h"
#include "strangers.h"

using namespace dsplan;
using namespace dsplan::exec;
using namespace collective_cases;
using namespace std::chrono_literals;

namespace {

// What one rank has after the call: its whole buffers, byte by byte, and what it sent.
struct Result {
  std::vector<char> input;
  std::vector<char> output;
  Bytes sent;
  friend bool operator==(const Result&, const Result&) = default;
};

// Numbers whose sums depend on the order; of the narrow types any bits will do.
void fill(const Case& c, int rank, char* input, std::int64_t elements) {
  for (std::int64_t at = 0; at < elements; ++at) {
    const auto mixed = static_cast<std::uint32_t>(at * 2654435761 + rank * 40503) >> 7;
    const double number = std::ldexp(static_cast<double>(mixed % 2000) / 3 - 333, static_cast<int>(mixed % 40));
    const auto narrow = static_cast<float>(number);
    if (c.dtype == DType::Float64) {
      std::memcpy(input + at * 8, &number, 8);
    } else if (c.dtype == DType::Float32) {
      std::memcpy(input + at * 4, &narrow, 4);
    } else {
      const std::int64_t size = bytes_per_element(c.dtype);
      for (std::int64_t byte = 0; byte < size; ++byte) {
        input[at * size + byte] = static_cast<char>(c.dtype == DType::Bool ? mixed % 2 : (mixed >> byte) % 120);
      }
    }
  }
}

Result play(const Case& c, int rank, Communicator& group) {
  const std::int64_t size = bytes_per_element(c.dtype);
  const bool parts = c.kind == Collective::AllGather;
  const std::int64_t own = parts ? c.elements / c.ranks : c.elements;
  Result result;
  result.output.assign(static_cast<std::size_t>(c.elements * size + 128), char(0x5a));
  result.input.resize(static_cast<std::size_t>(own * size + 1));
  char* output = result.output.data() + 64;
  char* input = result.input.data();
  if (c.in_place) input = output + (parts ? own * size * rank : 0);
  fill(c, rank, input, own);
  char* made = output;
  if (c.in_place && c.kind == Collective::ReduceScatter) made += c.elements / c.ranks * size * rank;
  CollectiveCall call{c.kind, c.dtype, c.how, c.elements, input, made, c.root};
  if (c.kind == Collective::SendRecv) {
    call.to = (rank + 1) % c.ranks;
    call.from = (rank - 1 + c.ranks) % c.ranks;
  }
  result.sent = group.run(call).sent.value();
  return result;
}

using dsplan::test::next_port;

// Each rank in a thread with connections of its own, as if it were a process. What each ended with.
std::vector<std::string> with_connections(int ranks, std::chrono::milliseconds timeout,
                                          const std::function<void(int, Rendezvous&, TcpTransport&)>& body) {
  std::vector<std::string> ends(static_cast<std::size_t>(ranks));
  const int port = next_port();
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      LaunchPlace place;
      place.rank = rank;
      place.ranks = ranks;
      place.host = "localhost";
      place.port = port;
      try {
        Rendezvous rendezvous(place, timeout);
        TcpTransport transport(rendezvous);
        transport.divide(Group::DataParallel, all_of(ranks));
        body(rank, rendezvous, transport);
        transport.leave(rank);
      } catch (const std::exception& error) {
        ends[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  threads.clear();
  return ends;
}

std::vector<std::vector<Result>> over_connections(const std::vector<Case>& cases, int ranks) {
  std::vector<std::vector<Result>> results(static_cast<std::size_t>(ranks));
  HostBackend host;
  const auto ends = with_connections(ranks, 60s, [&](int rank, Rendezvous&, TcpTransport& transport) {
    Device device(host.table(), {rank, 0, ""});
    const auto group = transport.connect(Group::DataParallel, device);
    for (const Case& c : cases) results[static_cast<std::size_t>(rank)].push_back(play(c, rank, *group));
  });
  for (const std::string& end : ends) CHECK(end.empty());
  CHECK(host.left_behind() == 0);
  return results;
}

std::vector<std::vector<Result>> between_threads(const std::vector<Case>& cases, int ranks) {
  std::vector<std::vector<Result>> results(static_cast<std::size_t>(ranks));
  HostBackend host;
  ThreadTransport transport(ranks, 60s);
  transport.divide(Group::DataParallel, all_of(ranks));
  const RanksOutcome outcome = run_ranks(ranks, transport, [&](RankScope& scope) {
    Device device(host.table(), {scope.rank, 0, ""});
    const auto group = transport.connect(Group::DataParallel, device);
    for (const Case& c : cases) results[static_cast<std::size_t>(scope.rank)].push_back(play(c, scope.rank, *group));
  });
  REQUIRE_FALSE(outcome.first);
  return results;
}

constexpr Collective kKinds[] = {Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather,
                                 Collective::Broadcast, Collective::Reduce,        Collective::AllToAll,
                                 Collective::SendRecv};
constexpr DType kTypes[] = {DType::Float64, DType::Float32, DType::Float16, DType::BFloat16, DType::Int64,
                            DType::Int32,   DType::Int8,    DType::UInt8,   DType::Bool};

std::vector<Case> cases_of(int ranks) {
  std::vector<Case> cases;
  for (const Collective kind : kKinds) {
    for (const DType dtype : kTypes) {
      for (std::int64_t elements : {0, 1, 7, 1025}) {
        const bool shares =
            kind == Collective::ReduceScatter || kind == Collective::AllGather || kind == Collective::AllToAll;
        if (shares) elements *= ranks;
        const bool in_place = kind != Collective::AllToAll && kind != Collective::SendRecv && elements % 2 == 1;
        cases.push_back({kind, dtype, ranks, elements, elements == 7 ? DSPLAN_MAX : DSPLAN_SUM, in_place,
                         static_cast<int>(cases.size()) % ranks});
      }
    }
    // Larger than what a connection holds, and than a block of what is added up.
    cases.push_back({kind, DType::Float32, ranks, 840'000 * ranks, DSPLAN_SUM, false, ranks - 1});
  }
  return cases;
}

bool any_has(const std::vector<std::string>& texts, const std::string& part) {
  for (const std::string& text : texts) {
    if (text.find(part) != std::string::npos) return true;
  }
  return false;
}
bool all_have(const std::vector<std::string>& texts, const std::string& part) {
  for (const std::string& text : texts) {
    if (text.find(part) == std::string::npos) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("every collective, dtype and number of ranks: the bits and the bytes sent are those of threads") {
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    const std::vector<Case> cases = cases_of(ranks);
    const auto tcp = over_connections(cases, ranks);
    const auto threads = between_threads(cases, ranks);
    for (std::size_t rank = 0; rank < tcp.size(); ++rank) {
      REQUIRE(tcp[rank].size() == cases.size());
      for (std::size_t at = 0; at < cases.size(); ++at) {
        CAPTURE(rank);
        CAPTURE(name(cases[at].kind));
        CAPTURE(name(cases[at].dtype));
        CAPTURE(cases[at].elements);
        CHECK((tcp[rank][at].output == threads[rank][at].output));
        CHECK((tcp[rank][at].input == threads[rank][at].input));
        CHECK(tcp[rank][at].sent == threads[rank][at].sent);
      }
    }
  }
}

TEST_CASE("what ranks do wrongly over connections ends the run on all of them, and is named") {
  HostBackend host;
  const auto calls = [&](const std::function<void(int, Communicator&, Rendezvous&)>& body,
                         std::chrono::milliseconds timeout = 20s) {
    return with_connections(3, timeout, [&](int rank, Rendezvous& rendezvous, TcpTransport& transport) {
      Device device(host.table(), {rank, 0, ""});
      const auto group = transport.connect(Group::DataParallel, device);
      body(rank, *group, rendezvous);
    });
  };
  float value = 1;
  CollectiveCall sum{Collective::AllReduce, DType::Float32, DSPLAN_SUM, 1, &value, &value};
  sum.event = 41;
  SUBCASE("another size") {
    const auto ends = calls([&](int rank, Communicator& group, Rendezvous&) {
      std::vector<float> values(16);
      CollectiveCall call = sum;
      call.elements = rank == 2 ? 9 : 8;
      call.input = call.output = values.data();
      (void)group.run(call);
    });
    CHECK_MESSAGE(all_have(ends, "the ranks of group dp disagree: "), ends[0]);
    CHECK_MESSAGE(all_have(ends, "rank 2 calls all_reduce of 9 fp32 from root 0 at event 41"), ends[0]);
  }
  SUBCASE("one call too few") {
    const auto ends = calls([&](int rank, Communicator& group, Rendezvous&) {
      float own = 1;
      CollectiveCall call = sum;
      call.input = call.output = &own;
      (void)group.run(call);
      if (rank != 1) (void)group.run(call);
    });
    CHECK_MESSAGE(any_has(ends, "rank 1 has finished, and takes no part in this call of group dp"), ends[0]);
    CHECK(ends[1].empty());
  }
  SUBCASE("a rank that does not come") {
    const auto ends = calls(
        [&](int rank, Communicator& group, Rendezvous&) {
          float own = 1;
          CollectiveCall call = sum;
          call.input = call.output = &own;
          if (rank == 1) std::this_thread::sleep_for(800ms);
          (void)group.run(call);
        },
        200ms);
    CHECK_MESSAGE(all_have(ends, "timed out: 200 ms for rank 1 of group dp"), ends[0]);
  }
  SUBCASE("a rank that fails") {
    const auto ends = calls([&](int rank, Communicator& group, Rendezvous& rendezvous) {
      float own = 1;
      CollectiveCall call = sum;
      call.input = call.output = &own;
      if (rank == 2) rendezvous.abort({DSPLAN_OUT_OF_MEMORY, 2, 17, "allocate", "1 B too many"});
      (void)group.run(call);
    });
    CHECK_MESSAGE(all_have(ends, "aborted: rank 2, event 17, allocate: out of memory: 1 B too many"), ends[0]);
  }
}

// Else the others would end without a report, with another exit code, as often as the machine is busy.
TEST_CASE("a rank that fails as soon as it is connected does not end the set-up of others") {
  for (int round = 0; round < 30; ++round) {
    CAPTURE(round);
    const auto ends = with_connections(3, 20s, [&](int rank, Rendezvous& rendezvous, TcpTransport&) {
      if (rank == 1 + round % 2) rendezvous.abort({DSPLAN_OUT_OF_MEMORY, rank, 1, "allocate", "1 B too many"});
    });
    for (const std::string& each : ends) CHECK(each.empty());
  }
}

TEST_CASE("strangers at the ports between ranks are dropped and counted") {
  LaunchPlace place;
  place.ranks = 2;
  place.host = "localhost";
  place.port = next_port();
  place.identity = "ours";
  std::int64_t strangers = -1;
  std::jthread first([&, place] {
    Rendezvous rendezvous(place, 20s);
    TcpTransport transport(rendezvous);
    strangers = rendezvous.strangers();
  });
  // The other rank, by hand: it learns where rank 0 listens, and strangers come there before it does.
  place.rank = 1;
  Rendezvous rendezvous(place, 20s);
  const std::vector<Blob> all = rendezvous.exchange(packed(rendezvous.address(), std::int32_t{0}), "the address");
  std::string host;
  std::int32_t port = 0;
  Unpacker(all.front())(host, port);
  CHECK(host == "127.0.0.1");
  CHECK(test::listening_at(port) == std::vector<std::string>{test::kLoopbackInKernel});
  const auto open = test::knock_in_all_ways(port);
  std::string why;
  const exec::Clock::time_point end = exec::Clock::now() + 20s;
  const Socket own = connect_to(host, port, end, why);
  CHECK(introduce(own, place, "rank 0", end, why));
  (void)rendezvous.exchange({}, "the connections");
  first.join();
  CHECK(strangers == test::kWaysToKnock);
}

TEST_CASE("what a rank measured goes through bytes and is the same") {
  Report report;
  RankFigures& f = report.run.figures;
  f.rank = 3;
  f.parameters_total = Elements(12);
  f.parameters_trainable = Elements(11);
  f.persistent[Counter::Requested] = Bytes(1);
  f.peak[Counter::Process] = Bytes(2);
  f.peak_phase = "steady";
  f.phases = {{"init", {{"begin", f.persistent}, {"end", f.peak}}, f.peak, Bytes(15), 16, Bytes(17)},
              {"steady", {}, {}, {}, {}, {}}};
  f.host.pinned = Bytes(5);
  f.host.pinned_requested = Bytes(4);
  f.host.pageable = Bytes(6);
  f.host.peak = Bytes(7);
  f.host.per_node = Bytes(8);
  f.host.nvme = Bytes(9);
  f.host.nvme_per_node = Bytes(10);
  f.host.nvme_read = Bytes(11);
  f.host.nvme_written = Bytes(12);
  f.host.capacity = Bytes(13);
  f.host.verdict = Verdict::Fits;
  f.host.verdict_reason = "why";
  f.communication = {{"all_gather", "dp", "forward", "bf16", "data", 3, Bytes(14), std::nullopt}};
  f.snapshot = "snapshot";
  f.absent = {{"what", "why not"}};
  report.run.losses = {1.5, 2.5};
  report.run.times = {{Stretch::SecondStep, 1, 2, 3, 4}};
  report.run.steps = {{1024, true}};
  report.parted = 77;
  report.parted_text = "parted";
  report.strangers = 3;
  const auto again = unpacked<Report>(packed(report));
  const RankFigures& g = again.run.figures;
  CHECK(g.rank == 3);
  CHECK(g.parameters_total == f.parameters_total);
  CHECK(g.parameters_trainable == f.parameters_trainable);
  CHECK((g.persistent == f.persistent));
  CHECK((g.peak == f.peak));
  CHECK(g.peak_phase == "steady");
  CHECK((g.phases == f.phases));
  CHECK(g.host.pinned == Bytes(5));
  CHECK(g.host.pinned_requested == Bytes(4));
  CHECK(g.host.pageable == Bytes(6));
  CHECK(g.host.peak == Bytes(7));
  CHECK(g.host.per_node == Bytes(8));
  CHECK(g.host.nvme == Bytes(9));
  CHECK(g.host.nvme_per_node == Bytes(10));
  CHECK(g.host.nvme_read == Bytes(11));
  CHECK(g.host.nvme_written == Bytes(12));
  CHECK(g.host.capacity == Bytes(13));
  CHECK((g.host.verdict == Verdict::Fits));
  CHECK(g.host.verdict_reason == "why");
  CHECK((g.communication == f.communication));
  CHECK(g.snapshot == "snapshot");
  CHECK(g.absent.at(0).why == "why not");
  CHECK(again.run.losses == report.run.losses);
  CHECK(again.run.times.at(0).communication == 4);
  CHECK(again.run.steps.at(0).skipped);
  CHECK(again.parted == report.parted);
  CHECK(again.parted_text == "parted");
  CHECK(again.strangers == 3);
  // Cut short, or too long: said, not guessed.
  Blob bytes = packed(report);
  bytes.pop_back();
  CHECK_THROWS_AS((void)unpacked<Report>(bytes), Garbled);
  bytes = packed(report);
  bytes.push_back(std::byte{0});
  CHECK_THROWS_AS((void)unpacked<Report>(bytes), Garbled);
}
