// The search over configurations, without the process.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "io/locate.h"
#include "io/machine_files.h"
#include "model/families.h"
#include "planner/plan/search.h"

namespace dsplan {
namespace {

// Items are candidates. The argument is how many bucket sizes the space of Llama-3-8B on 8 GPUs has, so that the time
// of one candidate is seen to stay the same, or fall, while their number grows.
void search_a_space(benchmark::State& state) {
  const ModelFiles files = locate_model("llama-3-8b");
  const ModelSpec model = build_model(files.document, files.name);
  const Cluster cluster = load_cluster("8xh100");
  const Hardware hardware = load_hardware(cluster.hardware);
  Request request;
  request.gpus = {8, option("--gpus")};
  request.host_memory = {Bytes(std::int64_t{1} << 40), option("--host-memory")};
  ListedSpace space;
  ListedAxis buckets{Axis::ReduceBucket, {}, option("--vary")};
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    buckets.values.push_back({std::to_string(500'000'000 - 10'000'000 * i), option("--vary")});
  }
  space.axes.push_back(buckets);
  const SearchInputs inputs{model, request, nullptr, &hardware, &cluster};
  std::int64_t candidates = 0;
  for (auto _ : state) candidates = search(inputs, space, {}).counts.candidates;
  state.SetItemsProcessed(state.iterations() * candidates);
}
BENCHMARK(search_a_space)->Arg(1)->Arg(4)->Arg(16)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace dsplan
