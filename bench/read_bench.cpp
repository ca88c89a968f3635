// Reading: strict JSON with positions, and the whole way from a config.json to the parameter list.
#include <benchmark/benchmark.h>

#include <string>

#include "io/locate.h"
#include "io/text.h"
#include "model/families.h"

namespace dsplan {
namespace {

void parse_config_json(benchmark::State& state) {
  const std::string path = data_dir() + "/models/llama-3-8b.json";
  const std::string text = read_file(path);
  for (auto _ : state) benchmark::DoNotOptimize(parse_json(path, text));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}
BENCHMARK(parse_config_json);

// One large array of small objects: what a long table costs per byte.
void parse_long_json(benchmark::State& state) {
  std::string text = "[";
  for (int i = 0; i < 20'000; ++i) {
    if (i > 0) text += ',';
    text += R"({"name": "layer", "shape": [4096, 4096], "dtype": "bf16"})";
  }
  text += ']';
  for (auto _ : state) benchmark::DoNotOptimize(parse_json("long.json", text));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}
BENCHMARK(parse_long_json)->Unit(benchmark::kMillisecond);

void build_llama_3_8b(benchmark::State& state) {
  const ModelFiles files = locate_model("llama-3-8b");
  for (auto _ : state) benchmark::DoNotOptimize(build_model(files.document, files.name));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(build_llama_3_8b)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace dsplan
