// The host's kernels by themselves: random numbers, storage types, products of every layout, optimizer steps, sums and
// scans over ranges, and what they refuse.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/program.h"
#include "exec/bodies/philox.h"
#include "exec/host/gemm.h"
#include "exec/host/kernels.h"
#include "exec/host/strided.h"

using namespace dsplan;

namespace {

using namespace exec;  // NOLINT: the room under test.

// A contiguous tensor with memory of its own.
struct Own {
  std::vector<std::int64_t> dims;
  DType dtype;
  std::vector<unsigned char> bytes;
  dsplan_tensor tensor{};

  Own(std::vector<std::int64_t> shape, DType type, const std::vector<double>& values = {})
      : dims(std::move(shape)), dtype(type) {
    std::int64_t count = 1;
    tensor.rank = static_cast<std::int32_t>(dims.size());
    for (std::size_t d = dims.size(); d-- > 0;) {
      tensor.dims[d] = dims[d];
      tensor.strides[d] = count;
      count *= dims[d];
    }
    bytes.assign(static_cast<std::size_t>(count * bytes_per_element(dtype)), 0xee);
    tensor.data = bytes.data();
    tensor.dtype = static_cast<std::int32_t>(dtype);
    if (!values.empty()) host::store(host::strided(tensor), 0, count, values.data());
  }
  Own(const Own&) = delete;
  Own& operator=(const Own&) = delete;

  [[nodiscard]] std::vector<double> values() const {
    std::vector<double> read(static_cast<std::size_t>(host::count_of(tensor)));
    host::load(host::strided(tensor), 0, host::count_of(tensor), read.data());
    return read;
  }
};

struct Asked {
  Body body;
  std::vector<dsplan_tensor> inputs;
  std::vector<dsplan_tensor> made;
  std::vector<std::int64_t> integers = {};
  std::vector<double> numbers = {};
  dsplan_random random = {1, 0, 1};
};

int launched(const Asked& asked) {
  dsplan_launch call{};
  call.size = sizeof(call);
  call.body = static_cast<std::uint32_t>(asked.body);
  call.inputs = asked.inputs.data();
  call.input_count = static_cast<std::uint32_t>(asked.inputs.size());
  call.made = asked.made.data();
  call.made_count = static_cast<std::uint32_t>(asked.made.size());
  call.integers = asked.integers.data();
  call.integer_count = static_cast<std::uint32_t>(asked.integers.size());
  call.numbers = asked.numbers.data();
  call.number_count = static_cast<std::uint32_t>(asked.numbers.size());
  call.random = asked.random;
  return host::launch(call);
}

double wave(std::int64_t i, double which) { return std::sin(1.3 * static_cast<double>(i) + 0.7 * which + 0.1); }

std::vector<double> waves(std::int64_t count, double which) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = wave(i, which);
  return values;
}

// A matrix inside a larger block of memory: `layout` 0 by rows, 1 by columns, 2 with gaps everywhere.
host::Matrix inside(std::vector<unsigned char>& memory, DType dtype, std::int64_t rows, std::int64_t columns,
                    int layout) {
  const std::int64_t row = layout == 0 ? columns + 3 : layout == 1 ? 1 : 2 * columns + 5;
  const std::int64_t column = layout == 0 ? 1 : layout == 1 ? rows + 2 : 2;
  memory.assign(static_cast<std::size_t>((rows * row + columns * column + 8) * bytes_per_element(dtype)), 0);
  return {memory.data(), dtype, rows, columns, row, column};
}

double element(const host::Matrix& m, std::int64_t i, std::int64_t j) {
  double x = 0;
  host::load_run(m.data + (i * m.row + j * m.column) * bytes_per_element(m.dtype), m.dtype, 1, 1, &x);
  return x;
}

void set_element(const host::Matrix& m, std::int64_t i, std::int64_t j, double x) {
  host::store_run(m.data + (i * m.row + j * m.column) * bytes_per_element(m.dtype), m.dtype, 1, 1, &x);
}

// The largest error of a product of the given forms, relative to the length of its sums.
double product_error(DType dtype, std::int64_t m, std::int64_t n, std::int64_t k, int forms) {
  std::vector<unsigned char> ma;
  std::vector<unsigned char> mb;
  std::vector<unsigned char> mc;
  const host::Matrix a = inside(ma, dtype, m, k, forms % 3);
  const host::Matrix b = inside(mb, dtype, k, n, forms / 3 % 3);
  const host::Matrix c = inside(mc, dtype, m, n, forms / 9);
  for (std::int64_t i = 0; i < m * k; ++i) set_element(a, i / k, i % k, wave(i, 1));
  for (std::int64_t i = 0; i < k * n; ++i) set_element(b, i / n, i % n, wave(i, 2));
  host::multiply(a, b, c);
  double worst = 0;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t p = 0; p < k; ++p) sum += element(a, i, p) * element(b, p, j);
      worst = std::max(worst, std::abs(element(c, i, j) - sum) / std::sqrt(static_cast<double>(k)));
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("philox gives the published numbers") {
  const bodies::Words zero = bodies::philox({{0, 0, 0, 0}}, 0, 0);
  CHECK(zero.word[0] == 0x6627e8d5U);
  CHECK(zero.word[1] == 0xe169c58dU);
  CHECK(zero.word[2] == 0xbc57ac4cU);
  CHECK(zero.word[3] == 0x9b00dbd8U);
  const bodies::Words pi =
      bodies::philox({{0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}}, 0xa4093822U, 0x299f31d0U);
  CHECK(pi.word[0] == 0xd16cfe09U);
  CHECK(pi.word[3] == 0x24126ea1U);
}

TEST_CASE("initial values depend on the key and the place alone") {
  Own whole({1000}, DType::Float32);
  REQUIRE(launched({Body::LoadParameter, {}, {whole.tensor}, {2}, {0.02}, {7, 0, 1}}) == 0);
  Own part({300}, DType::Float32);
  REQUIRE(launched({Body::LoadParameter, {}, {part.tensor}, {2}, {0.02}, {7, 501, 1}}) == 0);
  const std::vector<double> all = whole.values();
  const std::vector<double> some = part.values();
  for (std::size_t i = 0; i < some.size(); ++i) REQUIRE(some[i] == all[501 + i]);
  double sum = 0;
  double squares = 0;
  for (const double x : all) {
    sum += x;
    squares += x * x;
  }
  CHECK(std::abs(sum / 1000) < 0.002);
  CHECK(std::abs(std::sqrt(squares / 1000) - 0.02) < 0.002);
  REQUIRE(launched({Body::LoadParameter, {}, {whole.tensor}, {1}, {0}}) == 0);
  CHECK(whole.values() == std::vector<double>(1000, 1.0));
}

namespace {

// doctest's Approx adds one to what it compares.
bool near(double a, double b, double part) { return std::abs(a - b) <= part * std::abs(b); }

}  // namespace

TEST_CASE("half precision is rounded to the nearest, ties to even") {
  const auto through = [](DType dtype, double x) { return Own({1}, dtype, {x}).values()[0]; };
  CHECK(through(DType::BFloat16, 1 + 0x1p-8) == 1);
  CHECK(through(DType::BFloat16, 1 + 3 * 0x1p-8) == 1 + 0x1p-6);
  CHECK(through(DType::BFloat16, 1e-40) == 0x1p-133);  // The smallest there is.
  CHECK(std::isnan(through(DType::BFloat16, std::numeric_limits<double>::quiet_NaN())));
  CHECK(through(DType::Float16, 1 + 0x1p-11) == 1);
  CHECK(through(DType::Float16, 1 + 3 * 0x1p-11) == 1 + 0x1p-9);
  CHECK(through(DType::Float16, 65519) == 65504);
  CHECK(std::isinf(through(DType::Float16, 65520)));
  CHECK(through(DType::Float16, 0x1p-24) == 0x1p-24);
  CHECK(through(DType::Float16, 0x1p-25) == 0);
  CHECK(through(DType::Float16, 0x1.8p-24) == 0x1p-23);
  CHECK(through(DType::Float16, -0x1p-14) == -0x1p-14);
  for (std::uint32_t bits = 0; bits < 0x7c00U; ++bits) {
    const float x = host::widen(host::Half{static_cast<std::uint16_t>(bits)});
    REQUIRE(host::to_half(x).bits == bits);
  }
}

TEST_CASE("products of every layout, with the library and without") {
  for (const bool own : {false, true}) {
    host::without_library(own);
    for (int forms = 0; forms < 27; ++forms) {
      INFO("own loops " << own << ", forms " << forms);
      CHECK(product_error(DType::Float32, 7, 5, 11, forms) < 1e-6);
      CHECK(product_error(DType::Float64, 7, 5, 11, forms) < 1e-14);
      CHECK(product_error(DType::BFloat16, 7, 5, 11, forms) < 0.01);
    }
    // One row, one column, one summand; more than one tile.
    CHECK(product_error(DType::Float32, 1, 5, 3, 0) < 1e-6);
    CHECK(product_error(DType::Float32, 5, 1, 3, 4) < 1e-6);
    CHECK(product_error(DType::Float32, 5, 4, 1, 8) < 1e-6);
    CHECK(product_error(DType::BFloat16, 130, 260, 300, 0) < 0.05);
    CHECK(product_error(DType::Float16, 130, 260, 300, 4) < 0.01);
  }
  host::without_library(false);
}

TEST_CASE("one step of AdamW, Adam and SGD") {
  const std::vector<double> numbers{0.01, 0.9, 0.999, 1e-8, 0.1, 0.5, 2};
  for (const std::int64_t kind : {0, 1}) {
    Own weight({1}, DType::Float64, {1.5});
    Own gradient({1}, DType::Float64, {0.25});
    Own first({1}, DType::Float64, {0.2});
    Own second({1}, DType::Float64, {0.04});
    REQUIRE(
        launched({Body::Update, {gradient.tensor}, {weight.tensor, first.tensor, second.tensor}, {kind, 3}, numbers}) ==
        0);
    double w = 1.5;
    double g = 0.5;
    if (kind == 1) {
      w *= 1 - 0.01 * 0.1;
    } else {
      g += 0.1 * w;
    }
    const double m = 0.9 * 0.2 + 0.1 * g;
    const double v = 0.999 * 0.04 + 0.001 * g * g;
    w -= 0.01 * (m / (1 - std::pow(0.9, 3))) / (std::sqrt(v / (1 - std::pow(0.999, 3))) + 1e-8);
    CHECK(near(weight.values()[0], w, 1e-13));
    CHECK(near(first.values()[0], m, 1e-13));
    CHECK(near(second.values()[0], v, 1e-13));
  }
  Own weight({1}, DType::Float64, {1.5});
  Own gradient({1}, DType::Float64, {0.25});
  Own momentum({1}, DType::Float64, {0.2});
  REQUIRE(launched({Body::Update, {gradient.tensor}, {weight.tensor, momentum.tensor}, {2, 2}, numbers}) == 0);
  CHECK(near(momentum.values()[0], 0.5 * 0.2 + 0.5 + 0.1 * 1.5, 1e-13));
  CHECK(near(weight.values()[0], 1.5 - 0.01 * (0.5 * 0.2 + 0.5 + 0.1 * 1.5), 1e-13));
  REQUIRE(launched({Body::Update, {gradient.tensor}, {weight.tensor}, {2, 1}, numbers}) == 0);
}

TEST_CASE("bodies over ranges") {
  Own a({600}, DType::Float32, waves(600, 1));
  Own b({600}, DType::BFloat16);
  REQUIRE(launched({Body::Copy, {a.tensor}, {b.tensor}}) == 0);
  REQUIRE(launched({Body::Add, {b.tensor}, {a.tensor}}) == 0);
  CHECK(near(a.values()[77], 2 * wave(77, 1), 0.005));
  REQUIRE(launched({Body::Scale, {}, {a.tensor}, {}, {0.5}}) == 0);
  CHECK(near(a.values()[77], wave(77, 1), 0.005));
  Own sum({1}, DType::Float64, {10});
  Own tens({3}, DType::Float32, {1, 2, 3});
  REQUIRE(launched({Body::SquareSum, {tens.tensor}, {sum.tensor}}) == 0);
  CHECK(sum.values()[0] == 24);
  Own verdict({1}, DType::Int64, {0});
  REQUIRE(launched({Body::OverflowScan, {tens.tensor}, {verdict.tensor}}) == 0);
  CHECK(verdict.values()[0] == 0);
  Own broken({3}, DType::Float16, {1, 1e9, 3});
  REQUIRE(launched({Body::OverflowScan, {broken.tensor}, {verdict.tensor}}) == 0);
  CHECK(verdict.values()[0] == 1);
  REQUIRE(launched({Body::Clear, {}, {a.tensor, b.tensor}}) == 0);
  CHECK(a.values() == std::vector<double>(600, 0.0));
}

TEST_CASE("a kernel refuses what does not fit, and says why") {
  Own three({3}, DType::Float32, {1, 2, 3});
  Own four({4}, DType::Float32, {1, 2, 3, 4});
  CHECK(launched({Body::Copy, {three.tensor}, {four.tensor}}) == 1);
  CHECK(std::string(host::launch_error()) == "copy: a copy has 4 elements, not 3");
  CHECK(launched({Body::AddGradients, {three.tensor, four.tensor}, {three.tensor}}) == 1);
  CHECK(std::string(host::launch_error()).find("other dimensions") != std::string::npos);
  CHECK(launched({Body::Update, {three.tensor}, {three.tensor}, {1, 1}, {0, 0, 0, 0, 0, 0, 1}}) == 1);
  CHECK(std::string(host::launch_error()).find("misses a moment") != std::string::npos);
  CHECK(launched({Body::MakeBatch, {}, {three.tensor}}) == 1);
  CHECK(std::string(host::launch_error()).find("no such kernel") != std::string::npos);
  CHECK(launched({Body::Forward, {}, {three.tensor}}) == 1);
}
