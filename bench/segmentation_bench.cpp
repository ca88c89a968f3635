// Chains: flat plans, byte-exact and in slots, and as the baseline the dense table of nested plans. All on equal stages
// (a = 2, a-bar = 34) with 30 % of the memory that stores everything, as the literature measures.
#include <benchmark/benchmark.h>

#include "rotor.h"

#include "core/chain.h"
#include "planner/plan/recompute/flat.h"
#include "planner/plan/recompute/plan_chain.h"

namespace dsplan {
namespace {

constexpr std::int64_t kSlots = 500;

Chain chain_of(std::int64_t stages) {
  ChainStage stage;
  stage.output = stage.gradient = Bytes(2);
  stage.saved = Bytes(34);
  stage.forward_time = Ticks(1);
  stage.backward_time = Ticks(2);
  Chain chain;
  chain.input = chain.input_gradient = Bytes(2);
  chain.stages.assign(static_cast<std::size_t>(stages), stage);
  return chain;
}

std::int64_t capacity_of(std::int64_t stages) { return stages * 34 * 3 / 10; }

// The whole answer: bounds, plan, operations, replay.
void plan_a_chain(benchmark::State& state) {
  const Chain chain = chain_of(state.range(0));
  const ChainRequest request{"flat", Bytes(capacity_of(state.range(0)) + 2)};
  for (auto _ : state) benchmark::DoNotOptimize(plan_chain(chain, request));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(plan_a_chain)->Arg(96)->Arg(200)->Arg(1000)->Unit(benchmark::kMillisecond);

void flat_in_slots(benchmark::State& state) {
  const detail::ChainCosts costs(chain_of(state.range(0)));
  const std::int64_t capacity = capacity_of(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(detail::flat_slots_up(costs, capacity, kSlots, {}));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(flat_in_slots)->Arg(200)->Arg(1000)->Unit(benchmark::kMillisecond);

void flat_byte_exact(benchmark::State& state) {
  const detail::ChainCosts costs(chain_of(state.range(0)));
  const std::int64_t capacity = capacity_of(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(detail::flat_exact(costs, capacity, {}));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(flat_byte_exact)->Arg(200)->Arg(1000)->Unit(benchmark::kMillisecond);

void rotor_table(benchmark::State& state) {
  const detail::ChainCosts costs(chain_of(state.range(0)));
  const std::int64_t capacity = capacity_of(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(detail::rotor(costs, capacity, {kSlots, false}));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(rotor_table)->Arg(200)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace dsplan
