// Every collective between virtual ranks of a device that only enqueues, each on a stream of its own: of the library
// that DSPLAN_TEST_BACKEND names (on a machine with a GPU: build/release/libdsplan_cuda.so), else of the one that tests
// make on the host. Over the dry device numbers are left out.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <vector>

#include "collective_cases.h"
#include "exec/plugin.h"
#include "exec/ranks.h"
#include "exec/transport/threads.h"

using namespace dsplan;
using namespace dsplan::exec;
using namespace collective_cases;

namespace {

Bytes bytes_of(std::int64_t elements) { return Bytes(elements * static_cast<std::int64_t>(sizeof(float))); }

// One rank's part: its buffers, the call on `stream`, and how many elements are wrong behind it.
int play(const Case& c, int rank, StreamId stream, Transport& transport, const dsplan_backend& backend) {
  Device device(backend, {rank, 0, ""});
  int wrong = 0;
  {
    const std::unique_ptr<Communicator> group = transport.connect(Group::DataParallel, device);
    void* input = device.memory().allocate(Space::Device, bytes_of(input_elements(c)));
    void* output = device.memory().allocate(Space::Device, bytes_of(output_elements(c)));
    std::vector<float> values(static_cast<std::size_t>(input_elements(c)));
    for (std::size_t e = 0; e < values.size(); ++e)
      values[e] = static_cast<float>(sample(c.dtype, rank, static_cast<std::int64_t>(e)));
    device.copy(input, Space::Device, values.data(), Space::Pageable, bytes_of(input_elements(c)), stream);
    CollectiveCall call{c.kind, c.dtype, c.how, c.elements, input, output, c.root};
    call.stream = stream;
    if (c.kind == Collective::SendRecv) {
      call.to = (rank + 1) % c.ranks;
      call.from = (rank - 1 + c.ranks) % c.ranks;
    }
    (void)group->run(call);
    std::vector<float> got(static_cast<std::size_t>(output_elements(c)));
    device.copy(got.data(), Space::Pageable, output, Space::Device, bytes_of(output_elements(c)), stream);
    device.synchronize();
    for (std::size_t e = 0; e < got.size(); ++e) {
      const std::optional<double> value = expected(c, rank, static_cast<std::int64_t>(e));
      if (value && computes(device.info()) && static_cast<double>(got[e]) != *value) ++wrong;
    }
    device.memory().release(Space::Device, input, bytes_of(input_elements(c)));
    device.memory().release(Space::Device, output, bytes_of(output_elements(c)));
  }
  device.close();
  return wrong;
}

}  // namespace

TEST_CASE("every collective between virtual ranks of a device, on every stream") {
  const char* path = std::getenv("DSPLAN_TEST_BACKEND");
  const Plugin plugin = load_plugin_from(path != nullptr ? path : DSPLAN_TEST_BACKENDS "/libdsplan_backend_on_host.so");
  REQUIRE_MESSAGE(plugin.table != nullptr, plugin.why);
  std::size_t calls = 0;
  for (const Collective kind :
       {Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather, Collective::Broadcast,
        Collective::Reduce, Collective::AllToAll, Collective::SendRecv}) {
    for (const int ranks : {2, 3, 4, 8}) {
      for (const std::int64_t each : {1, 1000, 40'961}) {
        Case c{kind, DType::Float32, ranks, each * ranks};
        c.root = ranks - 1;
        const StreamId stream = static_cast<StreamId>(calls++ % kStreams);
        CAPTURE(name(kind));
        CAPTURE(ranks);
        CAPTURE(each);
        ThreadTransport transport(ranks, std::chrono::seconds(60));
        transport.divide(Group::DataParallel, all_of(ranks));
        std::vector<int> wrong(static_cast<std::size_t>(ranks), 0);
        const RanksOutcome outcome = run_ranks(ranks, transport, [&](RankScope& scope) {
          wrong[static_cast<std::size_t>(scope.rank)] = play(c, scope.rank, stream, transport, *plugin.table);
        });
        REQUIRE_MESSAGE(!outcome.first, describe(outcome.first.value_or(Failure{})));
        CHECK(wrong == std::vector<int>(wrong.size(), 0));
      }
    }
  }
  CHECK(calls == 84);
}
