// From a resolved job to its figures, part by part.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>

#include "planner/predict/predict.h"
#include "sim/memory.h"
#include "sim/placement.h"
#include "sim/traffic.h"
#include "workload.h"

namespace dsplan {
namespace {

// Llama-3-8B on 8 ranks, Llama-3-405B on 1024.
Workload workload_of(std::int64_t billions) {
  return billions == 8 ? stage3_workload("llama-3-8b", 8) : stage3_workload("llama-3-405b", 1024);
}

void lower_to_schedule(benchmark::State& state) {
  const Workload workload = workload_of(state.range(0));
  std::size_t events = 0;
  for (auto _ : state) events = make_schedule(workload).events.size();
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(events));
}
BENCHMARK(lower_to_schedule)->Arg(8)->Arg(405)->Unit(benchmark::kMillisecond);

// Items are events: both meters ride on one replay.
void replay_with_meters(benchmark::State& state) {
  const Schedule schedule = make_schedule(workload_of(state.range(0)));
  for (auto _ : state) {
    MemoryMeter memory(schedule);
    TrafficMeter traffic;
    replay(schedule, memory, traffic);
    benchmark::DoNotOptimize(memory.peak_requested());
    benchmark::DoNotOptimize(traffic.rows(schedule.dp));
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(schedule.events.size()));
}
BENCHMARK(replay_with_meters)->Arg(8)->Arg(405)->Unit(benchmark::kMillisecond);

// Items are events: the same schedule through the caching allocator.
void place_in_allocator(benchmark::State& state) {
  const Schedule schedule = make_schedule(workload_of(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(place(schedule, {}));
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(schedule.events.size()));
}
BENCHMARK(place_in_allocator)->Arg(8)->Arg(405)->Unit(benchmark::kMillisecond);

// Items are simulations: everything that `dsplan simulate` does between reading and printing.
void predict_one_rank(benchmark::State& state) {
  const Workload workload = workload_of(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(predict(workload.model, workload.job, 0));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(predict_one_rank)->Arg(8)->Arg(405)->Unit(benchmark::kMillisecond);

void predict_worst_rank(benchmark::State& state) {
  const Workload workload = workload_of(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(predict_asked(workload.model, workload.job));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(predict_worst_rank)->Arg(8)->Arg(405)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace dsplan
