// A whole schedule laid out in one arena.
#include <benchmark/benchmark.h>

#include "sim/arena.h"
#include "workload.h"

namespace dsplan {
namespace {

// Items are buffers. Llama-3-8B on 8 ranks, Llama-3-405B on 1024.
void plan_an_arena(benchmark::State& state) {
  const Schedule schedule =
      make_schedule(state.range(0) == 8 ? stage3_workload("llama-3-8b", 8) : stage3_workload("llama-3-405b", 1024));
  const Lives lives = lives_of(schedule);
  for (auto _ : state) benchmark::DoNotOptimize(pack(lives.intervals));
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(lives.intervals.size()));
}
BENCHMARK(plan_an_arena)->Arg(8)->Arg(405)->Unit(benchmark::kMillisecond);

void lives_of_a_schedule(benchmark::State& state) {
  const Schedule schedule = make_schedule(stage3_workload("llama-3-8b", 8));
  for (auto _ : state) benchmark::DoNotOptimize(lives_of(schedule));
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(schedule.events.size()));
}
BENCHMARK(lives_of_a_schedule)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace dsplan
