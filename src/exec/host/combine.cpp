// Pieces of several ranks become one, in the order in which they are given. Block by block, so that the sums of a block
// stay in the cache and the compiler can work on many elements at once.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "exec/host/host_backend.h"
#include "exec/host/narrow_floats.h"

namespace dsplan::exec {
namespace {

constexpr std::int64_t kCombineBlock = 512;

// How one dtype is stored, and in what it adds up.
template <class StoredT, class SumT>
struct Plain {
  using Stored = StoredT;
  using Sum = SumT;
  static Sum load(Stored value) { return static_cast<Sum>(value); }
  static Stored store(Sum value) { return static_cast<Stored>(value); }
};
struct Bf16 {
  using Stored = std::uint16_t;
  using Sum = float;
  static Sum load(Stored value) { return from_bf16(value); }
  static Stored store(Sum value) { return to_bf16(value); }
};
struct Fp16 {
  using Stored = std::uint16_t;
  using Sum = float;
  static Sum load(Stored value) { return from_fp16(value); }
  static Stored store(Sum value) { return to_fp16(value); }
};

template <class T>
T larger(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
  }
  return std::max(a, b);
}

template <class Kind, bool kMax>
void combine_as(void* target, const void* const* pieces, std::size_t piece_count, std::int64_t elements) {
  using Stored = typename Kind::Stored;
  std::array<typename Kind::Sum, kCombineBlock> sums;
  for (std::int64_t begin = 0; begin < elements; begin += kCombineBlock) {
    const auto count = static_cast<std::size_t>(std::min(kCombineBlock, elements - begin));
    const Stored* first = static_cast<const Stored*>(pieces[0]) + begin;
    for (std::size_t e = 0; e < count; ++e) sums[e] = Kind::load(first[e]);
    for (std::size_t piece = 1; piece < piece_count; ++piece) {
      const Stored* next = static_cast<const Stored*>(pieces[piece]) + begin;
      for (std::size_t e = 0; e < count; ++e) {
        if constexpr (kMax) {
          sums[e] = larger(sums[e], Kind::load(next[e]));
        } else {
          sums[e] += Kind::load(next[e]);
        }
      }
    }
    Stored* out = static_cast<Stored*>(target) + begin;
    for (std::size_t e = 0; e < count; ++e) out[e] = Kind::store(sums[e]);
  }
}

template <class Kind>
void combine_how(dsplan_reduction how, void* target, const void* const* pieces, std::size_t count, std::int64_t n) {
  how == DSPLAN_MAX ? combine_as<Kind, true>(target, pieces, count, n)
                    : combine_as<Kind, false>(target, pieces, count, n);
}

// Signed integers add up as unsigned ones, which wrap around; their maximum needs the sign.
template <class Signed>
void combine_integers(dsplan_reduction how, void* target, const void* const* pieces, std::size_t count,
                      std::int64_t n) {
  using Unsigned = std::make_unsigned_t<Signed>;
  how == DSPLAN_MAX ? combine_as<Plain<Signed, Signed>, true>(target, pieces, count, n)
                    : combine_as<Plain<Unsigned, std::uint64_t>, false>(target, pieces, count, n);
}

}  // namespace

bool combine_pieces(dsplan_reduction how, DType dtype, void* target, const void* const* pieces, std::size_t piece_count,
                    std::int64_t elements) {
  if (how != DSPLAN_SUM && how != DSPLAN_MAX) return false;
  switch (dtype) {
    case DType::Float64: combine_how<Plain<double, double>>(how, target, pieces, piece_count, elements); return true;
    case DType::Float32: combine_how<Plain<float, double>>(how, target, pieces, piece_count, elements); return true;
    case DType::Float16: combine_how<Fp16>(how, target, pieces, piece_count, elements); return true;
    case DType::BFloat16: combine_how<Bf16>(how, target, pieces, piece_count, elements); return true;
    case DType::Int64: combine_integers<std::int64_t>(how, target, pieces, piece_count, elements); return true;
    case DType::Int32: combine_integers<std::int32_t>(how, target, pieces, piece_count, elements); return true;
    case DType::Int8: combine_integers<std::int8_t>(how, target, pieces, piece_count, elements); return true;
    case DType::UInt8:
      combine_how<Plain<std::uint8_t, std::uint64_t>>(how, target, pieces, piece_count, elements);
      return true;
    case DType::Bool:  // A sum of booleans is true where one is.
      combine_as<Plain<std::uint8_t, std::uint8_t>, true>(target, pieces, piece_count, elements);
      return true;
  }
  return false;
}

}  // namespace dsplan::exec
