#include "exec/runner/flat.h"

#include <cstring>

#include "exec/host/narrow_floats.h"

namespace dsplan::exec {
namespace {

template <class T>
void store(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof value);
}

template <class T>
T load(const std::byte* from) {
  T value{};
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace

std::vector<Piece> stretch(std::span<const Piece> pieces, std::int64_t from, std::int64_t length) {
  std::vector<Piece> result;
  for (const Piece& piece : pieces) {
    if (from >= piece.elements) {
      from -= piece.elements;
      continue;
    }
    const std::int64_t count = std::min(length, piece.elements - from);
    if (count > 0) result.push_back(piece.part(from, count));
    length -= count;
    from = 0;
  }
  return result;
}

dsplan_tensor tensor_of(const Piece& piece) {
  dsplan_tensor tensor{};
  tensor.data = piece.data;
  tensor.dtype = static_cast<std::int32_t>(piece.dtype);
  tensor.rank = 1;
  tensor.dims[0] = piece.elements;
  tensor.strides[0] = 1;
  return tensor;
}

void encode_float(double value, DType dtype, std::byte* to) {
  switch (dtype) {
    case DType::Float64: return store(value, to);
    case DType::Float32: return store(static_cast<float>(value), to);
    case DType::BFloat16: return store(to_bf16(static_cast<float>(value)), to);
    case DType::Float16: return store(to_fp16(static_cast<float>(value)), to);
    default: DSPLAN_CHECK(false, "a number is written into a tensor that holds none");
  }
}

double decode_float(const std::byte* from, DType dtype) {
  switch (dtype) {
    case DType::Float64: return load<double>(from);
    case DType::Float32: return load<float>(from);
    case DType::BFloat16: return from_bf16(load<std::uint16_t>(from));
    case DType::Float16: return from_fp16(load<std::uint16_t>(from));
    default: DSPLAN_CHECK(false, "a number is read from a tensor that holds none");
  }
  return 0;
}

std::vector<std::byte> encoded(std::span<const double> values, DType dtype) {
  const auto each = static_cast<std::size_t>(bytes_per_element(dtype));
  std::vector<std::byte> bytes(values.size() * each);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::byte* const to = bytes.data() + i * each;
    if (dtype == DType::Int64) {  // Numbers of places.
      store(static_cast<std::int64_t>(values[i]), to);
    } else if (dtype == DType::Bool) {
      store(static_cast<std::uint8_t>(values[i]), to);
    } else {
      encode_float(values[i], dtype, to);
    }
  }
  return bytes;
}

}  // namespace dsplan::exec
