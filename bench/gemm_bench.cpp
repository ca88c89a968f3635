// The host executor's products against the library that they go through, on the shapes of a small transformer.
#include <benchmark/benchmark.h>
#include <dlfcn.h>

#include <bit>
#include <vector>

#include "exec/host/gemm.h"

namespace dsplan {
namespace {

constexpr std::int64_t kShapes[][3] = {{256, 256, 256}, {512, 768, 768}, {512, 3072, 768}, {1024, 1024, 1024}};

exec::host::Matrix by_rows(std::vector<unsigned char>& memory, DType dtype, std::int64_t rows, std::int64_t columns) {
  memory.assign(static_cast<std::size_t>(rows * columns * bytes_per_element(dtype)), 0);
  return {memory.data(), dtype, rows, columns, columns, 1};
}

// Items are floating-point operations. The first argument is a shape, the second the dtype.
void multiply_matrices(benchmark::State& state) {
  const auto& [m, n, k] = kShapes[state.range(0)];
  const auto dtype = static_cast<DType>(state.range(1));
  std::vector<unsigned char> memory[3];
  const exec::host::Matrix a = by_rows(memory[0], dtype, m, k);
  const exec::host::Matrix b = by_rows(memory[1], dtype, k, n);
  const exec::host::Matrix c = by_rows(memory[2], dtype, m, n);
  for (auto _ : state) {
    exec::host::multiply(a, b, c);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * 2 * m * n * k);
  state.SetLabel(exec::host::product_library());
}
BENCHMARK(multiply_matrices)
    ->ArgsProduct({{0, 1, 2, 3}, {static_cast<int>(DType::Float32), static_cast<int>(DType::BFloat16)}})
    ->Unit(benchmark::kMillisecond);

using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);

// cblas_sgemm alone, one thread; what the above is held against.
void library_alone(benchmark::State& state) {
  void* const library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return state.SkipWithError("there is no OpenBLAS here");
  std::bit_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"))(1);
  const auto sgemm = std::bit_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
  const auto& [m, n, k] = kShapes[state.range(0)];
  std::vector<float> a(static_cast<std::size_t>(m * k));
  std::vector<float> b(static_cast<std::size_t>(k * n));
  std::vector<float> c(static_cast<std::size_t>(m * n));
  const auto narrow = [](std::int64_t value) { return static_cast<int>(value); };
  for (auto _ : state) {
    sgemm(101, 111, 111, narrow(m), narrow(n), narrow(k), 1, a.data(), narrow(k), b.data(), narrow(n), 0, c.data(),
          narrow(n));
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * 2 * m * n * k);
}
BENCHMARK(library_alone)->DenseRange(0, 3)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace dsplan
