#include "exec/scalars.h"

#include <cstring>

#include "core/error.h"
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

}  // namespace dsplan::exec
