#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "collective_cases.h"
#include "exec/host/host_backend.h"
#include "exec/host/narrow_floats.h"
#include "exec/ranks.h"
#include "exec/transport/threads.h"
#include "sim/traffic.h"

using namespace dsplan;
using namespace dsplan::exec;
using namespace collective_cases;

namespace {

using Buffer8 = std::vector<char>;

void put(void* memory, DType dtype, std::int64_t element, double value) {
  const auto at = static_cast<std::size_t>(element);
  switch (dtype) {
    case DType::Float64: static_cast<double*>(memory)[at] = value; return;
    case DType::Float32: static_cast<float*>(memory)[at] = static_cast<float>(value); return;
    case DType::Float16: static_cast<std::uint16_t*>(memory)[at] = to_fp16(static_cast<float>(value)); return;
    case DType::BFloat16: static_cast<std::uint16_t*>(memory)[at] = to_bf16(static_cast<float>(value)); return;
    case DType::Int64: static_cast<std::int64_t*>(memory)[at] = static_cast<std::int64_t>(value); return;
    case DType::Int32: static_cast<std::int32_t*>(memory)[at] = static_cast<std::int32_t>(value); return;
    case DType::Int8: static_cast<std::int8_t*>(memory)[at] = static_cast<std::int8_t>(value); return;
    case DType::UInt8: static_cast<std::uint8_t*>(memory)[at] = static_cast<std::uint8_t>(value); return;
    case DType::Bool: static_cast<std::uint8_t*>(memory)[at] = value != 0 ? 1 : 0; return;
  }
}

double got(const void* memory, DType dtype, std::int64_t element) {
  const auto at = static_cast<std::size_t>(element);
  switch (dtype) {
    case DType::Float64: return static_cast<const double*>(memory)[at];
    case DType::Float32: return static_cast<double>(static_cast<const float*>(memory)[at]);
    case DType::Float16: return static_cast<double>(from_fp16(static_cast<const std::uint16_t*>(memory)[at]));
    case DType::BFloat16: return static_cast<double>(from_bf16(static_cast<const std::uint16_t*>(memory)[at]));
    case DType::Int64: return static_cast<double>(static_cast<const std::int64_t*>(memory)[at]);
    case DType::Int32: return static_cast<double>(static_cast<const std::int32_t*>(memory)[at]);
    case DType::Int8: return static_cast<double>(static_cast<const std::int8_t*>(memory)[at]);
    default: return static_cast<double>(static_cast<const std::uint8_t*>(memory)[at]);
  }
}

// One rank's part of a case: makes its buffers, calls, and looks at every element and at the bytes around the output.
CallRecord play(const Case& c, int rank, Transport& transport, const dsplan_backend& backend, int& wrong) {
  Device device(backend, {rank, 0, ""});
  CallRecord record;
  {
    const std::unique_ptr<Communicator> group = transport.connect(Group::DataParallel, device);
    const auto size = static_cast<std::size_t>(bytes_per_element(c.dtype));
    const std::size_t margin = 64;
    Buffer8 out(static_cast<std::size_t>(c.elements) * size + 2 * margin, char(0x5a));
    Buffer8 in(static_cast<std::size_t>(input_elements(c)) * size + 1);
    char* output = out.data() + margin;
    char* input = in.data();
    if (c.in_place) {
      input = output;
      if (c.kind == Collective::AllGather) input += input_elements(c) * rank * bytes_per_element(c.dtype);
    }
    char* result = output;
    if (c.in_place && c.kind == Collective::ReduceScatter) {
      result += output_elements(c) * rank * bytes_per_element(c.dtype);
    }
    for (std::int64_t e = 0; e < input_elements(c); ++e) put(input, c.dtype, e, sample(c.dtype, rank, e));
    CollectiveCall call{c.kind, c.dtype, c.how, c.elements, input, result, c.root};
    if (c.kind == Collective::SendRecv) {
      call.to = (rank + 1) % c.ranks;
      call.from = (rank - 1 + c.ranks) % c.ranks;
    }
    record = group->run(call);
    for (std::int64_t e = 0; e < output_elements(c); ++e) {
      const std::optional<double> value = expected(c, rank, e);
      if (value && got(result, c.dtype, e) != *value) ++wrong;
    }
    for (std::size_t at = 0; at < margin; ++at) {
      if (out[at] != char(0x5a) || out[out.size() - 1 - at] != char(0x5a)) ++wrong;
    }
  }
  device.close();
  return record;
}

void check_case(const Case& c) {
  CAPTURE(name(c.kind));
  CAPTURE(name(c.dtype));
  CAPTURE(c.ranks);
  CAPTURE(c.elements);
  CAPTURE(c.in_place);
  CAPTURE(c.root);
  HostBackend host;
  ThreadTransport transport(c.ranks, std::chrono::seconds(60));
  transport.divide(Group::DataParallel, all_of(c.ranks));
  std::vector<CallRecord> records(static_cast<std::size_t>(c.ranks));
  std::vector<int> wrong(static_cast<std::size_t>(c.ranks), 0);
  const RanksOutcome outcome = run_ranks(c.ranks, transport, [&](RankScope& scope) {
    const auto at = static_cast<std::size_t>(scope.rank);
    records[at] = play(c, scope.rank, transport, host.table(), wrong[at]);
  });
  REQUIRE_MESSAGE(!outcome.first, describe(outcome.first.value_or(Failure{})));
  CHECK(std::accumulate(wrong.begin(), wrong.end(), 0) == 0);
  CHECK(host.left_behind() == 0);

  // Summed over the ranks exactly k (W - 1) payload; by rank the ring's figure, rounded to whole elements of a chunk.
  const std::int64_t size = bytes_per_element(c.dtype);
  const std::int64_t payload = c.elements * size;
  std::int64_t sum = 0;
  for (const CallRecord& record : records) {
    CHECK(record.payload == Bytes(payload));
    sum += record.sent.value().value();
  }
  const int factor = c.kind == Collective::AllReduce ? 2 : 1;
  CHECK(sum == (c.kind == Collective::SendRecv ? c.ranks : factor * (c.ranks - 1)) * payload);
  for (int rank = 0; rank < c.ranks; ++rank) {
    const std::int64_t sent = records[static_cast<std::size_t>(rank)].sent.value().value();
    const std::int64_t wire = wire_bytes(c.kind, Bytes(payload), c.ranks).value();
    const bool silent = (c.kind == Collective::Broadcast && rank == (c.root + c.ranks - 1) % c.ranks) ||
                        (c.kind == Collective::Reduce && rank == c.root);
    const std::int64_t slack = c.kind == Collective::AllReduce && c.elements % c.ranks != 0 ? size * c.ranks : 0;
    CHECK(std::abs(sent - (silent ? 0 : wire)) <= slack);
  }
}

constexpr Collective kKinds[] = {Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather,
                                 Collective::Broadcast, Collective::Reduce,        Collective::AllToAll};
constexpr DType kTypes[] = {DType::Float64, DType::Float32, DType::Float16, DType::BFloat16, DType::Int64,
                            DType::Int32,   DType::Int8,    DType::UInt8,   DType::Bool};

bool in_shares(Collective kind) {
  return kind == Collective::ReduceScatter || kind == Collective::AllGather || kind == Collective::AllToAll;
}

}  // namespace

TEST_CASE(
    "every collective, dtype and number of ranks: the values, the neighbours of the buffers, and the bytes sent") {
  int cases = 0;
  for (const Collective kind : kKinds) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      for (std::int64_t elements : {0, 1, 5, 7, 1023, 1025}) {
        if (in_shares(kind)) elements = elements * ranks;
        const DType dtype = kTypes[static_cast<std::size_t>(cases) % std::size(kTypes)];
        check_case({kind, dtype, ranks, elements, DSPLAN_SUM, false, cases % ranks});
        ++cases;
      }
    }
  }
  for (const Collective kind : kKinds) {
    for (const DType dtype : kTypes) check_case({kind, dtype, 3, 3 * 700, DSPLAN_SUM, false, 1});
  }
  CHECK(cases == 180);
}

TEST_CASE("in place, where the buffers may be the same; maxima") {
  for (const Collective kind : kKinds) {
    if (kind == Collective::AllToAll) continue;
    for (const int ranks : {1, 2, 4, 8})
      check_case({kind, DType::Float32, ranks, ranks * 333, DSPLAN_SUM, true, ranks - 1});
  }
  for (const DType dtype : kTypes) check_case({Collective::AllReduce, dtype, 4, 1031, DSPLAN_MAX, true});
  for (const int ranks : {2, 3, 8}) check_case({Collective::SendRecv, DType::BFloat16, ranks, 77});
}

namespace {

// Runs `body(rank, device, group)` on `ranks` ranks of the host, and tells the first failure.
template <class Body>
RanksOutcome on_ranks(int ranks, Body body, std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  HostBackend host;
  ThreadTransport transport(ranks, timeout);
  transport.divide(Group::DataParallel, all_of(ranks));
  RanksOutcome outcome = run_ranks(ranks, transport, [&](RankScope& scope) {
    Device device(host.table(), {scope.rank, 0, ""});
    {
      const std::unique_ptr<Communicator> group = transport.connect(Group::DataParallel, device);
      body(scope, device, *group);
    }
    device.close();
  });
  CHECK(host.left_behind() == 0);
  return outcome;
}

// Values whose sum depends on the order: of very different sizes, with both signs.
std::vector<double> rough(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 17U);
  std::vector<double> values(count);
  for (double& value : values) {
    const double mantissa = static_cast<double>(static_cast<int>(random() % 2'000'000U)) - 1'000'000;
    value = std::ldexp(mantissa, static_cast<int>(random() % 90U) - 45);
  }
  return values;
}

}  // namespace

TEST_CASE("a sum does not depend on how the buffer is cut into calls, and is made in rank order") {
  constexpr std::size_t kCount = 4001;
  for (const int ranks : {2, 3, 4, 8}) {
    CAPTURE(ranks);
    std::vector<double> sums(kCount, 0);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<double> values = rough(rank, kCount);
      for (std::size_t e = 0; e < kCount; ++e) sums[e] += values[e];
    }
    for (const std::size_t bucket : {std::size_t{1}, std::size_t{64}, std::size_t{1000}, kCount}) {
      if (bucket == 1 && ranks > 2) continue;
      std::vector<int> different(static_cast<std::size_t>(ranks), 0);
      const RanksOutcome outcome = on_ranks(ranks, [&](RankScope& scope, Device&, Communicator& group) {
        std::vector<double> values = rough(scope.rank, kCount);
        for (std::size_t begin = 0; begin < kCount; begin += bucket) {
          const std::size_t count = std::min(bucket, kCount - begin);
          (void)group.run({Collective::AllReduce, DType::Float64, DSPLAN_SUM, static_cast<std::int64_t>(count),
                           values.data() + begin, values.data() + begin});
        }
        if (std::memcmp(values.data(), sums.data(), kCount * sizeof(double)) != 0) {
          different[static_cast<std::size_t>(scope.rank)] = 1;
        }
      });
      REQUIRE_FALSE(outcome.first);
      CHECK(std::accumulate(different.begin(), different.end(), 0) == 0);
    }
  }
}

TEST_CASE("groups inside and between, at the same time, and many calls in a row") {
  constexpr int kRanks = 8;
  HostBackend host;
  ThreadTransport transport(kRanks, std::chrono::seconds(60));
  transport.divide(Group::DataParallel, all_of(kRanks));
  transport.divide(Group::DataParallelInside, {{0, 1, 2, 3}, {4, 5, 6, 7}});
  transport.divide(Group::TensorParallel, {{0, 4}, {1, 5}, {2, 6}, {3, 7}});
  std::vector<std::int64_t> results(kRanks, 0);
  const RanksOutcome outcome = run_ranks(kRanks, transport, [&](RankScope& scope) {
    Device device(host.table(), {scope.rank, 0, ""});
    const auto all = transport.connect(Group::DataParallel, device);
    const auto inside = transport.connect(Group::DataParallelInside, device);
    const auto pair = transport.connect(Group::TensorParallel, device);
    const auto none = transport.connect(Group::ExpertParallel, device);
    CHECK(none->ranks() == 1);
    CHECK(inside->rank() == scope.rank % 4);
    CHECK(pair->rank() == scope.rank / 4);
    std::int64_t value = scope.rank;
    const auto sum = [&](Communicator& group) {
      (void)group.run({Collective::AllReduce, DType::Int64, DSPLAN_SUM, 1, &value, &value});
    };
    for (int round = 0; round < 20; ++round) {
      value = scope.rank;
      sum(*pair);    // r + (r xor 4): 2 r' + 4, where r' is the rank within its half.
      sum(*inside);  // 12 + 16.
      sum(*all);     // 8 times 28.
      sum(*none);
    }
    results[static_cast<std::size_t>(scope.rank)] = value;
  });
  REQUIRE_FALSE(outcome.first);
  CHECK(results == std::vector<std::int64_t>(kRanks, 224));
  CHECK(host.left_behind() == 0);
}

TEST_CASE("what one rank calls wrongly ends the run on all, and is named") {
  const auto first_text = [](const RanksOutcome& outcome) { return outcome.first ? describe(*outcome.first) : ""; };
  float one = 1;
  SUBCASE("another size") {
    const RanksOutcome outcome = on_ranks(4, [&](RankScope& scope, Device&, Communicator& group) {
      std::vector<float> values(16);
      CollectiveCall call{Collective::AllReduce,   DType::Float32, DSPLAN_SUM,
                          scope.rank == 2 ? 9 : 8, values.data(),  values.data()};
      call.event = 41;
      (void)group.run(call);
    });
    CHECK(first_text(outcome).find("rank 2 calls all_reduce of 9 fp32") != std::string::npos);
    CHECK(first_text(outcome).find("event 41") != std::string::npos);
    for (const auto& each : outcome.by_rank) CHECK(each.has_value());
  }
  SUBCASE("one call too few") {
    const RanksOutcome outcome = on_ranks(3, [&](RankScope& scope, Device&, Communicator& group) {
      float value = one;
      const CollectiveCall call{Collective::AllReduce, DType::Float32, DSPLAN_SUM, 1, &value, &value};
      (void)group.run(call);
      if (scope.rank != 1) (void)group.run(call);
    });
    CHECK(first_text(outcome).find("rank 1 has finished") != std::string::npos);
  }
  SUBCASE("a rank that does not come") {
    const RanksOutcome outcome = on_ranks(
        2,
        [&](RankScope& scope, Device&, Communicator& group) {
          float value = one;
          if (scope.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
          (void)group.run({Collective::AllReduce, DType::Float32, DSPLAN_SUM, 1, &value, &value});
        },
        std::chrono::milliseconds(30));
    CHECK(first_text(outcome).find("rank 0, all_reduce: timed out: 30 ms for rank 1") != std::string::npos);
  }
  SUBCASE("a rank that throws something of its own") {
    const RanksOutcome outcome = on_ranks(4, [&](RankScope& scope, Device&, Communicator& group) {
      scope.event = 7;
      float value = one;
      if (scope.rank == 3) throw Refusal("--steps", "must be positive");
      (void)group.run({Collective::AllReduce, DType::Float32, DSPLAN_SUM, 1, &value, &value});
    });
    REQUIRE(outcome.first);
    CHECK(outcome.first->rank == 3);
    CHECK(outcome.first->event == 7);
    CHECK_THROWS_AS(outcome.rethrow_if_failed(), Refusal);
    CHECK(outcome.by_rank[0]->status == DSPLAN_ABORTED);
    CHECK(outcome.by_rank[0]->text.find("must be positive") != std::string::npos);
  }
  SUBCASE("calls that cannot be") {
    const RanksOutcome outcome = on_ranks(2, [&](RankScope&, Device&, Communicator& group) {
      float values[4] = {1, 2, 3, 4};
      const CollectiveCall odd{Collective::AllGather, DType::Float32, DSPLAN_SUM, 3, values, values};
      CHECK_THROWS_AS((void)group.run(odd), RunFailure);
      const CollectiveCall same{Collective::AllToAll, DType::Float32, DSPLAN_SUM, 4, values, values};
      CHECK_THROWS_AS((void)group.run(same), RunFailure);
      const CollectiveCall nowhere{Collective::AllReduce, DType::Float32, DSPLAN_SUM, 4, values, nullptr};
      CHECK_THROWS_AS((void)group.run(nowhere), RunFailure);
      const CollectiveCall root{Collective::Broadcast, DType::Float32, DSPLAN_SUM, 4, values, values, 2};
      CHECK_THROWS_AS((void)group.run(root), RunFailure);
    });
    CHECK_FALSE(outcome.first);
  }
}
