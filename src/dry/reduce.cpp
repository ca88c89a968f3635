#include "dry/reduce.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace dsplan::dry {
namespace {

// Wide enough for every integer and every float of NCCL's.
using Wide = long double;

template <class T>
T load(const void* from, std::size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(from) + i * sizeof value, sizeof value);
  return value;
}

// A float of `exponent` and `mantissa` bits. Infinities and NaNs of the 8-bit formats are taken for numbers.
Wide small_float(unsigned bits, int exponent, int mantissa) {
  const unsigned sign = bits >> (exponent + mantissa) & 1;
  const int e = static_cast<int>(bits >> mantissa & ((1U << exponent) - 1));
  const unsigned m = bits & ((1U << mantissa) - 1);
  const int bias = (1 << (exponent - 1)) - 1;
  const Wide one = e == 0 ? 0 : 1;
  Wide value = std::ldexp(one + std::ldexp(static_cast<Wide>(m), -mantissa), std::max(e, 1) - bias);
  if (e == (1 << exponent) - 1 && exponent + mantissa == 15) value = m == 0 ? HUGE_VALL : std::nanl("");
  return sign != 0 ? -value : value;
}

// Round to nearest, ties to even, by way of the 32-bit float.
unsigned as_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return 0x7fc0;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

unsigned as_small_float(Wide value, int exponent, int mantissa) {
  const unsigned sign = std::signbit(value) ? 1U << (exponent + mantissa) : 0;
  if (std::isnan(value)) return sign | ((1U << (exponent + mantissa)) - 1);
  const int bias = (1 << (exponent - 1)) - 1;
  const Wide size = std::fabs(value);
  if (size == 0) return sign;
  const int e = std::max(static_cast<int>(std::floor(std::log2(size))), 1 - bias);
  const Wide units = std::nearbyint(std::ldexp(size, mantissa - e));  // Of the last bit.
  const auto most = static_cast<Wide>(((1U << exponent) - 1) << mantissa);
  const Wide bits = units + std::ldexp(static_cast<Wide>(e + bias - 1), mantissa);
  return sign | static_cast<unsigned>(std::min(bits, most));
}

Wide read(const void* from, std::size_t i, int type) {
  switch (type) {
    case 0: return load<std::int8_t>(from, i);
    case 1: return load<std::uint8_t>(from, i);
    case 2: return load<std::int32_t>(from, i);
    case 3: return load<std::uint32_t>(from, i);
    case 4: return load<std::int64_t>(from, i);
    case 5: return load<std::uint64_t>(from, i);
    case 6: return small_float(load<std::uint16_t>(from, i), 5, 10);
    case 7: return load<float>(from, i);
    case 8: return load<double>(from, i);
    case 9: return small_float(load<std::uint16_t>(from, i), 8, 7);
    case 10: return small_float(load<std::uint8_t>(from, i), 4, 3);
    default: return small_float(load<std::uint8_t>(from, i), 5, 2);
  }
}

template <class T>
void store(void* to, std::size_t i, T value) {
  std::memcpy(static_cast<char*>(to) + i * sizeof value, &value, sizeof value);
}

// As a device does: what is too large for an integer wraps around.
template <class T>
T as_integer(Wide value) {
  return static_cast<T>(value < 0 ? static_cast<std::uint64_t>(static_cast<std::int64_t>(value))
                                  : static_cast<std::uint64_t>(value));
}

void write(void* to, std::size_t i, int type, Wide value) {
  switch (type) {
    case 0: return store(to, i, as_integer<std::int8_t>(value));
    case 1: return store(to, i, as_integer<std::uint8_t>(value));
    case 2: return store(to, i, as_integer<std::int32_t>(value));
    case 3: return store(to, i, as_integer<std::uint32_t>(value));
    case 4: return store(to, i, as_integer<std::int64_t>(value));
    case 5: return store(to, i, as_integer<std::uint64_t>(value));
    case 6: return store(to, i, static_cast<std::uint16_t>(as_small_float(value, 5, 10)));
    case 7: return store(to, i, static_cast<float>(value));
    case 8: return store(to, i, static_cast<double>(value));
    case 9: return store(to, i, static_cast<std::uint16_t>(as_bfloat16(static_cast<float>(value))));
    case 10: return store(to, i, static_cast<std::uint8_t>(as_small_float(value, 4, 3)));
    default: return store(to, i, static_cast<std::uint8_t>(as_small_float(value, 5, 2)));
  }
}

Wide combine(Wide a, Wide b, int reduction) {
  switch (reduction) {
    case kProduct: return a * b;
    case kMax: return std::max(a, b);
    case kMin: return std::min(a, b);
    default: return a + b;
  }
}

}  // namespace

std::size_t bytes_of_type(int type) {
  switch (type) {
    case 0:
    case 1:
    case 10:
    case 11: return 1;
    case 6:
    case 9: return 2;
    case 2:
    case 3:
    case 7: return 4;
    default: return 8;
  }
}

const char* name_of_type(int type) {
  constexpr const char* kNames[] = {"int8", "uint8", "int32", "uint32", "int64",       "uint64",
                                    "fp16", "fp32",  "fp64",  "bf16",   "float8_e4m3", "float8_e5m2"};
  return type >= 0 && type < static_cast<int>(std::size(kNames)) ? kNames[type] : "unknown";
}

void reduce(void* out, std::size_t count, int type, int reduction, double scale, int ranks,
            const std::function<const void*(int)>& part) {
  const Wide factor = reduction >= kFirstScaledSum ? static_cast<Wide>(scale) : 1;
  for (std::size_t i = 0; i < count; ++i) {
    Wide sum = read(part(0), i, type) * factor;
    for (int rank = 1; rank < ranks; ++rank) sum = combine(sum, read(part(rank), i, type) * factor, reduction);
    write(out, i, type, reduction == kAverage ? sum / ranks : sum);
  }
}

void widen(double* out, const void* element, int type) { *out = static_cast<double>(read(element, 0, type)); }

}  // namespace dsplan::dry
