// Collectives between ranks that share this device: threads on a host, virtual ranks on one GPU. What they take says
// nothing of any link between devices.
#include <algorithm>
#include <vector>

#include "core/format.h"
#include "exec/calibrate/bench.h"
#include "exec/ranks.h"
#include "exec/transport/threads.h"

namespace dsplan::exec {
namespace {

using Unit = MeasuredRow::Unit;

struct Kind {
  const char* name;
  Collective collective;
};
constexpr std::array kCollectiveKinds = {Kind{"all_reduce", Collective::AllReduce},
                                         Kind{"all_gather", Collective::AllGather},
                                         Kind{"reduce_scatter", Collective::ReduceScatter}};

// Nanoseconds of one call, as rank 0 sees them; the ranks keep each other in step.
std::vector<std::int64_t> times_of(const Bench& bench, Collective kind, int ranks, std::int64_t elements, int samples,
                                   int calls) {
  std::vector<std::int64_t> times;
  ThreadTransport transport(ranks, std::chrono::minutes(1));
  std::vector<int> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
  transport.divide(Group::DataParallel, {all});
  const RanksOutcome outcome = run_ranks(ranks, transport, [&](RankScope& scope) {
    Device device(*bench.options().backend, {scope.rank, 0, {}});
    {
      const std::unique_ptr<Communicator> with = transport.connect(Group::DataParallel, device);
      const DeviceBlock input(device, Space::Device, storage(Elements(elements), DType::Float32));
      const DeviceBlock output(device, Space::Device, input.bytes());
      device.fill(input.data(), Space::Device, 0, input.bytes());
      device.fill(output.data(), Space::Device, 0, input.bytes());
      CollectiveCall call;
      call.kind = kind;
      call.elements = elements;
      call.input = input.data();
      call.output = output.data();
      for (int sample = -1; sample < samples; ++sample) {
        const Bench::Clock::time_point begin = Bench::Clock::now();
        for (int at = 0; at < calls; ++at) (void)with->run(call);
        device.synchronize();
        const auto taken = std::chrono::duration_cast<std::chrono::nanoseconds>(Bench::Clock::now() - begin);
        if (scope.rank == 0 && sample >= 0) times.push_back(std::max<std::int64_t>(taken.count() / calls, 1));
      }
    }
    device.close();
  });
  outcome.rethrow_if_failed();
  return times;
}

}  // namespace

void measure_collectives(Bench& bench) {
  const char* between = bench.host() ? "threads" : "virtual";
  const bool quick = bench.options().quick;
  for (const int ranks : quick ? std::vector<int>{2} : std::vector<int>{2, 4}) {
    for (const std::int64_t elements : {std::int64_t{1} << 20, std::int64_t{1} << 14}) {
      for (const Kind& kind : kCollectiveKinds) {
        const std::int64_t bytes = 4 * elements;
        const std::string row = formatted("collective_{}:{}:{}:{}", between, kind.name, ranks, bytes);
        bench.row(row, [&] {
          const std::vector<std::int64_t> times =
              times_of(bench, kind.collective, ranks, elements, quick ? 3 : 7, elements > (1 << 16) ? 3 : 30);
          bench.add(row, Unit::BytesPerSecond,
                    formatted("payload of one call in fp32, {} ranks of this one device; {} samples, wall clock", ranks,
                              times.size()),
                    Bench::per_second(times, bytes));
        });
      }
    }
  }
}

}  // namespace dsplan::exec
