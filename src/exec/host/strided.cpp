#include "exec/host/strided.h"

#include <algorithm>
#include <limits>
#include <type_traits>

namespace dsplan::exec::host {
namespace {

template <class T, class C>
C converted(T x) {
  if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>) {
    return static_cast<C>(widen(x));
  } else {
    return static_cast<C>(x);
  }
}

template <class T, class C>
T narrowed_to(C x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, Half>) {
    return to_half(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, bool>) {
    return x != C(0);
  } else if constexpr (std::is_integral_v<T> && std::is_floating_point_v<C>) {
    // What no integer can say is the lowest one, as processors make it.
    constexpr auto kBeyond = -static_cast<C>(std::numeric_limits<T>::min());
    const bool known = x >= -kBeyond && x < kBeyond;
    return std::is_unsigned_v<T> || known ? static_cast<T>(x) : std::numeric_limits<T>::min();
  } else {
    return static_cast<T>(x);
  }
}

template <class F>
void with_storage(DType dtype, F f) {
  switch (dtype) {
    case DType::Float64: return f(double{});
    case DType::Float32: return f(float{});
    case DType::Float16: return f(Half{});
    case DType::BFloat16: return f(BFloat16{});
    case DType::Int64: return f(std::int64_t{});
    case DType::Int32: return f(std::int32_t{});
    case DType::Int8: return f(std::int8_t{});
    case DType::UInt8: return f(std::uint8_t{});
    case DType::Bool: return f(bool{});
  }
  throw Fault{"a tensor of no known dtype"};
}

// Where element `begin` stands, then runs of the innermost dimension: f(offset in elements, length).
template <class F>
void runs(const Strided& tensor, std::int64_t begin, std::int64_t count, F f) {
  std::array<std::int64_t, DSPLAN_MOST_DIMS> at{};
  std::int64_t offset = 0;
  for (std::size_t d = tensor.rank; d-- > 0;) {
    at[d] = begin % tensor.dims[d];
    begin /= tensor.dims[d];
    offset += at[d] * tensor.strides[d];
  }
  const std::size_t last = tensor.rank - 1;
  while (count > 0) {
    const std::int64_t n = std::min(count, tensor.dims[last] - at[last]);
    f(offset, n);
    count -= n;
    if (count == 0) return;
    offset -= at[last] * tensor.strides[last];
    at[last] = 0;
    for (std::size_t d = last; d-- > 0;) {
      offset += tensor.strides[d];
      if (++at[d] < tensor.dims[d]) break;
      offset -= tensor.dims[d] * tensor.strides[d];
      at[d] = 0;
    }
  }
}

Strided merged(const Strided& tensor) {
  Strided result = tensor;
  result.rank = 0;
  for (std::size_t d = 0; d < tensor.rank; ++d) {
    if (tensor.dims[d] == 1) continue;
    if (result.rank > 0 && result.strides[result.rank - 1] == tensor.strides[d] * tensor.dims[d]) {
      result.dims[result.rank - 1] *= tensor.dims[d];
      result.strides[result.rank - 1] = tensor.strides[d];
    } else {
      result.dims[result.rank] = tensor.dims[d];
      result.strides[result.rank++] = tensor.strides[d];
    }
  }
  if (result.rank == 0) {
    result.rank = 1;
    result.dims[0] = 1;
    result.strides[0] = 1;
  }
  return result;
}

}  // namespace

void expect(bool condition, const char* what) {
  if (!condition) throw Fault{what};
}

float widen(Half x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000U) << 16;
  const std::uint32_t exponent = x.bits >> 10 & 31U;
  const std::uint32_t mantissa = x.bits & 1023U;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

Half to_half(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return {static_cast<std::uint16_t>(sign | 0x7e00U)};
  if (magnitude >= 0x477ff000U) return {static_cast<std::uint16_t>(sign | 0x7c00U)};
  if (magnitude < 0x38800000U) {
    // Below the normal numbers: adding a number of the right size rounds to the last place that is left.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U))};
  }
  const std::uint32_t odd = magnitude >> 13 & 1U;
  return {static_cast<std::uint16_t>(sign | (magnitude - 0x38000000U + 0xfffU + odd) >> 13)};
}

std::int64_t count_of(const dsplan_tensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t dim : dims_of(tensor)) count *= dim;
  return count;
}

bool is_contiguous(const dsplan_tensor& tensor) {
  std::int64_t expected = 1;
  for (std::size_t d = static_cast<std::size_t>(tensor.rank); d-- > 0;) {
    if (tensor.dims[d] != 1 && tensor.strides[d] != expected) return false;
    expected *= tensor.dims[d];
  }
  return true;
}

void expect_dims(const dsplan_tensor& tensor, std::span<const std::int64_t> dims, const char* what) {
  if (!std::ranges::equal(dims_of(tensor), dims)) throw Fault{std::string(what) + " has other dimensions"};
}

void expect_count(const dsplan_tensor& tensor, std::int64_t count, const char* what) {
  if (count_of(tensor) != count) {
    throw Fault{std::string(what) + " has " + std::to_string(count_of(tensor)) + " elements, not " +
                std::to_string(count)};
  }
}

Strided strided(const dsplan_tensor& tensor) { return broadcast(tensor, dims_of(tensor)); }

Strided broadcast(const dsplan_tensor& tensor, std::span<const std::int64_t> dims) {
  const auto rank = static_cast<std::size_t>(tensor.rank);
  expect(rank <= dims.size(), "a tensor has more dimensions than what it broadcasts to");
  Strided seen;
  seen.data = static_cast<unsigned char*>(tensor.data);
  seen.dtype = dtype_of(tensor);
  seen.rank = dims.size();
  const std::size_t missing = dims.size() - rank;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const std::int64_t own = d < missing ? 1 : tensor.dims[d - missing];
    expect(own == dims[d] || own == 1, "dimensions do not broadcast");
    seen.dims[d] = dims[d];
    seen.strides[d] = own == dims[d] && d >= missing ? tensor.strides[d - missing] : 0;
  }
  return merged(seen);
}

dsplan_tensor selected(const dsplan_tensor& tensor, std::size_t dim, std::int64_t at) {
  dsplan_tensor part = narrowed(tensor, dim, at, 1);
  for (std::size_t d = dim; d + 1 < static_cast<std::size_t>(part.rank); ++d) {
    part.dims[d] = part.dims[d + 1];
    part.strides[d] = part.strides[d + 1];
  }
  --part.rank;
  return part;
}

dsplan_tensor narrowed(const dsplan_tensor& tensor, std::size_t dim, std::int64_t start, std::int64_t length) {
  expect(dim < static_cast<std::size_t>(tensor.rank) && start >= 0 && start + length <= tensor.dims[dim],
         "a part lies outside its tensor");
  dsplan_tensor part = tensor;
  part.data =
      static_cast<unsigned char*>(tensor.data) + start * tensor.strides[dim] * bytes_per_element(dtype_of(tensor));
  part.dims[dim] = length;
  return part;
}

template <class C>
void load_run(const unsigned char* data, DType dtype, std::int64_t stride, std::int64_t count, C* to) {
  with_storage(dtype, [&]<class T>(T) {
    const T* from = reinterpret_cast<const T*>(data);
    if (stride == 1) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = converted<T, C>(from[i]);
    } else {
      for (std::int64_t i = 0; i < count; ++i) to[i] = converted<T, C>(from[i * stride]);
    }
  });
}

template <class C>
void store_run(unsigned char* data, DType dtype, std::int64_t stride, std::int64_t count, const C* from) {
  with_storage(dtype, [&]<class T>(T) {
    T* to = reinterpret_cast<T*>(data);
    if (stride == 1) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = narrowed_to<T, C>(from[i]);
    } else {
      for (std::int64_t i = 0; i < count; ++i) to[i * stride] = narrowed_to<T, C>(from[i]);
    }
  });
}

template <class C>
void load(const Strided& from, std::int64_t begin, std::int64_t count, C* to) {
  const std::int64_t width = bytes_per_element(from.dtype);
  runs(from, begin, count, [&](std::int64_t offset, std::int64_t n) {
    load_run(from.data + offset * width, from.dtype, from.strides[from.rank - 1], n, to);
    to += n;
  });
}

template <class C>
void store(const Strided& to, std::int64_t begin, std::int64_t count, const C* from) {
  const std::int64_t width = bytes_per_element(to.dtype);
  runs(to, begin, count, [&](std::int64_t offset, std::int64_t n) {
    store_run(to.data + offset * width, to.dtype, to.strides[to.rank - 1], n, from);
    from += n;
  });
}

#define DSPLAN_FOR_ARITHMETIC(C)                                                       \
  template void load(const Strided&, std::int64_t, std::int64_t, C*);                  \
  template void store(const Strided&, std::int64_t, std::int64_t, const C*);           \
  template void load_run(const unsigned char*, DType, std::int64_t, std::int64_t, C*); \
  template void store_run(unsigned char*, DType, std::int64_t, std::int64_t, const C*);
DSPLAN_FOR_ARITHMETIC(float)
DSPLAN_FOR_ARITHMETIC(double)
DSPLAN_FOR_ARITHMETIC(std::int64_t)
#undef DSPLAN_FOR_ARITHMETIC

}  // namespace dsplan::exec::host
