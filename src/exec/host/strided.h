// Tensors as the host's kernels read and write them: elements in logical order, converted to the arithmetic type.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "core/units.h"
#include "exec/backend.h"

namespace dsplan::exec::host {

// Why a kernel cannot run; caught by launch().
struct Fault {
  std::string text;
};
void expect(bool condition, const char* what);

struct BFloat16 {
  std::uint16_t bits;
};
struct Half {
  std::uint16_t bits;
};
// Rounded to nearest, ties to even; what is no number stays none.
[[nodiscard]] inline float widen(BFloat16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }
[[nodiscard]] inline BFloat16 to_bfloat16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {static_cast<std::uint16_t>(bits >> 16 | 0x40U)};
  return {static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16)};
}
[[nodiscard]] float widen(Half x);
[[nodiscard]] Half to_half(float x);

[[nodiscard]] inline DType dtype_of(const dsplan_tensor& tensor) { return static_cast<DType>(tensor.dtype); }
[[nodiscard]] inline std::span<const std::int64_t> dims_of(const dsplan_tensor& tensor) {
  return {tensor.dims, static_cast<std::size_t>(tensor.rank)};
}
[[nodiscard]] std::int64_t count_of(const dsplan_tensor& tensor);
[[nodiscard]] inline std::int64_t last_of(const dsplan_tensor& tensor) {
  return tensor.rank == 0 ? 1 : tensor.dims[tensor.rank - 1];
}
[[nodiscard]] bool is_contiguous(const dsplan_tensor& tensor);
void expect_dims(const dsplan_tensor& tensor, std::span<const std::int64_t> dims, const char* what);
void expect_count(const dsplan_tensor& tensor, std::int64_t count, const char* what);

// The same elements in the same order, dimensions that lie as one merged; the last one is the innermost run.
struct Strided {
  unsigned char* data = nullptr;
  DType dtype = DType::Float32;
  std::size_t rank = 0;
  std::array<std::int64_t, DSPLAN_MOST_DIMS> dims{};
  std::array<std::int64_t, DSPLAN_MOST_DIMS> strides{};
};
[[nodiscard]] Strided strided(const dsplan_tensor& tensor);
// Seen at `dims`, to which it broadcasts.
[[nodiscard]] Strided broadcast(const dsplan_tensor& tensor, std::span<const std::int64_t> dims);
// Of what one kernel makes, one dimension less: `at` of dimension `dim`.
[[nodiscard]] dsplan_tensor selected(const dsplan_tensor& tensor, std::size_t dim, std::int64_t at);
[[nodiscard]] dsplan_tensor narrowed(const dsplan_tensor& tensor, std::size_t dim, std::int64_t start,
                                     std::int64_t length);

// Elements [begin, begin + count) in logical order. C: float, double or int64_t.
template <class C>
void load(const Strided& from, std::int64_t begin, std::int64_t count, C* to);
template <class C>
void store(const Strided& to, std::int64_t begin, std::int64_t count, const C* from);

// `count` elements with a fixed stride, without a tensor around them.
template <class C>
void load_run(const unsigned char* data, DType dtype, std::int64_t stride, std::int64_t count, C* to);
template <class C>
void store_run(unsigned char* data, DType dtype, std::int64_t stride, std::int64_t count, const C* from);

// How many elements kernels handle at once, in arrays on the stack.
inline constexpr std::int64_t kChunk = 512;

// out = f(inputs) element by element; inputs broadcast to the output's dimensions.
template <class C, std::size_t N, class F>
void map(const dsplan_tensor& out, const std::array<const dsplan_tensor*, N>& in, F f) {
  const Strided target = strided(out);
  std::array<Strided, N> sources;
  for (std::size_t i = 0; i < N; ++i) sources[i] = broadcast(*in[i], dims_of(out));
  std::array<std::array<C, kChunk>, N> read;
  std::array<C, kChunk> written;
  const std::int64_t count = count_of(out);
  for (std::int64_t begin = 0; begin < count; begin += kChunk) {
    const std::int64_t n = count - begin < kChunk ? count - begin : kChunk;
    for (std::size_t i = 0; i < N; ++i) load(sources[i], begin, n, read[i].data());
    for (std::size_t k = 0; k < static_cast<std::size_t>(n); ++k) {
      if constexpr (N == 0) written[k] = f(begin + static_cast<std::int64_t>(k));
      if constexpr (N == 1) written[k] = f(read[0][k]);
      if constexpr (N == 2) written[k] = f(read[0][k], read[1][k]);
      if constexpr (N == 3) written[k] = f(read[0][k], read[1][k], read[2][k]);
    }
    store(target, begin, n, written.data());
  }
}

// The arithmetic type of a kernel: double where something is fp64, else float.
template <class F>
void with_arithmetic(DType dtype, F f) {
  if (dtype == DType::Float64) {
    f(double{});
  } else {
    f(float{});
  }
}

}  // namespace dsplan::exec::host
