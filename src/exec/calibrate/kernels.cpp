// Kernels: what starting one takes, what only reads and writes, attention, products.
#include "exec/calibrate/operator.h"

#include "core/format.h"

namespace dsplan::exec {
namespace {

using Unit = MeasuredRow::Unit;

const std::vector<DType>& floats() {
  static const std::vector<DType> all = {DType::BFloat16, DType::Float32, DType::Float16};
  return all;
}

void launches(Bench& bench) {
  Operator least(bench.device(), Op::Add, DType::Float32, {{1}, {1}}, {1});
  bench.row("kernel", [&] {
    const std::vector<std::int64_t> times = bench.times([&] { least.forward(); });
    bench.add("kernel", Unit::Nanoseconds,
              formatted("an addition of one element, many in a row; {} samples, device events", times.size()), times);
  });
  if (bench.device().synchronous()) return;
  bench.row("launch", [&] {
    const std::vector<std::int64_t> times = bench.host_times([&] { least.forward(); });
    bench.add("launch", Unit::Nanoseconds,
              formatted("until the host has enqueued the same, without waiting; {} samples", times.size()), times);
  });
}

struct KernelKind {
  const char* name;
  Op op;
  int operands;
};
constexpr std::array kKinds = {KernelKind{"add", Op::Add, 2}, KernelKind{"mul", Op::Mul, 2},
                               KernelKind{"silu", Op::Silu, 1}, KernelKind{"layer_norm", Op::LayerNorm, 3},
                               KernelKind{"softmax", Op::Softmax, 1}};

void elementwise(Bench& bench, DType dtype, std::int64_t elements) {
  constexpr std::int64_t kColumns = 1024;
  const Shape shape{elements / kColumns, kColumns};
  for (const KernelKind& kind : kKinds) {
    const std::string row = formatted("elementwise:{}:{}:{}", kind.name, name(dtype), elements);
    bench.row(row, [&] {
      std::vector<Shape> inputs(static_cast<std::size_t>(kind.operands), shape);
      if (kind.op == Op::LayerNorm) inputs[1] = inputs[2] = {kColumns};
      Operator one(bench.device(), kind.op, dtype, inputs, shape, [](Node& node) { node.number = 1e-5; });
      bench.rate(row, Unit::BytesPerSecond, one.moved().value(), "forward; bytes of all inputs and of the output",
                 [&] { one.forward(); });
    });
  }
}

struct Heads {
  std::int64_t batch, heads, tokens, width;
};

// Operations as estimates count them: two products, the half that causal attention needs; in backward two and a half
// times as many.
void attention(Bench& bench, DType dtype, const Heads& of) {
  const AttentionKernel kernel = dtype == DType::Float32 ? AttentionKernel::MemoryEfficient : AttentionKernel::Flash;
  const std::string size = formatted("{}:{}x{}x{}x{}", name(dtype), of.batch, of.heads, of.tokens, of.width);
  const std::int64_t flops = 2 * of.batch * of.heads * of.tokens * of.tokens * of.width;
  bench.row("attention:" + size, [&] {
    const Shape shape{of.batch, of.heads, of.tokens, of.width};
    Operator one(bench.device(), Op::Attention, dtype, {shape, shape, shape}, shape,
                 [&](Node& node) { node.attention = kernel; });
    bench.rate("attention:" + size, Unit::FlopPerSecond, flops, "B x H x S x D, causal, forward",
               [&] { one.forward(); });
    bench.row("attention_backward:" + size, [&] {
      bench.rate("attention_backward:" + size, Unit::FlopPerSecond, flops / 2 * 5, "B x H x S x D, causal, backward",
                 [&] { one.backward(); });
    });
  });
}

struct Sides {
  std::int64_t m, n, k;
};
// Of layers small enough for a host, and of models of 1 to 70 B; the most telling first.
constexpr std::array kOfHosts = {Sides{256, 256, 256}, Sides{512, 512, 512},  Sides{64, 64, 64},
                                 Sides{128, 128, 128}, Sides{16, 64, 64},     Sides{64, 256, 64},
                                 Sides{32, 256, 64},   Sides{512, 2048, 512}, Sides{1024, 1024, 1024}};
constexpr std::array kOfDevices = {
    Sides{8192, 8192, 8192}, Sides{4096, 4096, 4096},  Sides{8192, 14336, 4096}, Sides{8192, 4096, 14336},
    Sides{2048, 8192, 2048}, Sides{4096, 28672, 8192}, Sides{16384, 4096, 4096}, Sides{2048, 2048, 2048},
    Sides{1024, 4096, 4096}, Sides{512, 4096, 4096},   Sides{1024, 1024, 1024},  Sides{8192, 768, 768},
    Sides{8192, 3072, 768},  Sides{4096, 512, 4096},   Sides{512, 512, 512},     Sides{256, 256, 256}};

void product(Bench& bench, DType dtype, const Sides& of) {
  const std::string row = formatted("gemm:{}:{}x{}x{}", name(dtype), of.m, of.n, of.k);
  bench.row(row, [&] {
    Operator one(bench.device(), Op::Linear, dtype, {{of.m, of.k}, {of.n, of.k}}, {of.m, of.n});
    bench.rate(row, Unit::FlopPerSecond, 2 * of.m * of.n * of.k, "M x K times (N x K) transposed, random data",
               [&] { one.forward(); });
  });
}

}  // namespace

void measure_kernels(Bench& bench) {
  launches(bench);
  const bool host = bench.host() || bench.options().quick;
  const std::vector<std::int64_t> sizes =
      host ? std::vector<std::int64_t>{1 << 16, 1 << 22} : std::vector<std::int64_t>{1 << 20, 1 << 26};
  for (const DType dtype : floats()) {
    if (bench.options().quick && dtype == DType::Float16) continue;
    for (const std::int64_t size : sizes) {
      if (bench.options().quick && size == sizes.back()) continue;
      elementwise(bench, dtype, size);
    }
  }
  const std::vector<Heads> heads = host ? std::vector<Heads>{{1, 4, 64, 32}, {1, 4, 256, 64}}
                                        : std::vector<Heads>{{4, 16, 1024, 64}, {2, 32, 2048, 128}};
  for (const DType dtype : {DType::BFloat16, DType::Float32}) {
    for (const Heads& each : heads) {
      if (!bench.options().quick || &each == &heads.front()) attention(bench, dtype, each);
    }
  }
}

void measure_products(Bench& bench) {
  const auto all = [&](const auto& shapes) {
    for (std::size_t at = 0; at < shapes.size(); ++at) {
      for (const DType dtype : floats()) {
        const bool left_out = bench.options().quick && (at >= 5 || dtype == DType::Float16);
        if (!left_out) product(bench, dtype, shapes[at]);
      }
    }
  };
  if (bench.host() || bench.options().quick) return all(kOfHosts);
  all(kOfDevices);
}

}  // namespace dsplan::exec
