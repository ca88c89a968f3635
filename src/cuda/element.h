// Elements of strided tensors, read and written by kernels in their arithmetic type (float, double or int64). The same
// conversions as the host's: to the nearest, ties to even.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/units.h"
#include "cuda/grid.h"
#include "exec/host/narrow_floats.h"
#include "exec/host/strided.h"

namespace dsplan::cuda {

using exec::host::Strided;

template <class C>
[[nodiscard]] DSPLAN_KERNEL inline C load_at(const unsigned char* data, DType dtype, std::int64_t element) {
  switch (dtype) {
    case DType::Float32: return static_cast<C>(reinterpret_cast<const float*>(data)[element]);
    case DType::BFloat16: return static_cast<C>(exec::from_bf16(reinterpret_cast<const std::uint16_t*>(data)[element]));
    case DType::Float64: return static_cast<C>(reinterpret_cast<const double*>(data)[element]);
    case DType::Float16: return static_cast<C>(exec::from_fp16(reinterpret_cast<const std::uint16_t*>(data)[element]));
    case DType::Int64: return static_cast<C>(reinterpret_cast<const std::int64_t*>(data)[element]);
    case DType::Int32: return static_cast<C>(reinterpret_cast<const std::int32_t*>(data)[element]);
    case DType::Int8: return static_cast<C>(reinterpret_cast<const std::int8_t*>(data)[element]);
    case DType::UInt8: return static_cast<C>(data[element]);
    case DType::Bool: return static_cast<C>(data[element] != 0 ? 1 : 0);
  }
  return C(0);
}

template <class C>
DSPLAN_KERNEL inline void store_at(unsigned char* data, DType dtype, std::int64_t element, C x) {
  switch (dtype) {
    case DType::Float32: reinterpret_cast<float*>(data)[element] = static_cast<float>(x); return;
    case DType::BFloat16:
      reinterpret_cast<std::uint16_t*>(data)[element] = exec::to_bf16(static_cast<float>(x));
      return;
    case DType::Float64: reinterpret_cast<double*>(data)[element] = static_cast<double>(x); return;
    case DType::Float16: reinterpret_cast<std::uint16_t*>(data)[element] = exec::to_fp16(static_cast<float>(x)); return;
    case DType::Int64: reinterpret_cast<std::int64_t*>(data)[element] = static_cast<std::int64_t>(x); return;
    case DType::Int32: reinterpret_cast<std::int32_t*>(data)[element] = static_cast<std::int32_t>(x); return;
    case DType::Int8: reinterpret_cast<std::int8_t*>(data)[element] = static_cast<std::int8_t>(x); return;
    case DType::UInt8: data[element] = static_cast<std::uint8_t>(x); return;
    case DType::Bool: data[element] = x != C(0) ? 1 : 0; return;
  }
}

// Where the element with this number, in logical order, stands.
[[nodiscard]] DSPLAN_KERNEL inline std::int64_t place(const Strided& tensor, std::int64_t number) {
  if (tensor.rank == 1) return number * tensor.strides[0];
  std::int64_t offset = 0;
  if (number <= 0xffffffffLL) {  // Short division is several times faster on a device.
    auto rest = static_cast<std::uint32_t>(number);
    for (std::size_t d = tensor.rank; d-- > 1;) {
      const auto dim = static_cast<std::uint32_t>(tensor.dims[d]);
      offset += static_cast<std::int64_t>(rest % dim) * tensor.strides[d];
      rest /= dim;
    }
    return offset + static_cast<std::int64_t>(rest) * tensor.strides[0];
  }
  for (std::size_t d = tensor.rank; d-- > 1;) {
    offset += number % tensor.dims[d] * tensor.strides[d];
    number /= tensor.dims[d];
  }
  return offset + number * tensor.strides[0];
}

template <class C>
[[nodiscard]] DSPLAN_KERNEL inline C load(const Strided& tensor, std::int64_t number) {
  return load_at<C>(tensor.data, tensor.dtype, place(tensor, number));
}
template <class C>
DSPLAN_KERNEL inline void store(const Strided& tensor, std::int64_t number, C x) {
  store_at<C>(tensor.data, tensor.dtype, place(tensor, number), x);
}

}  // namespace dsplan::cuda
