#include "core/units.h"

#include "core/error.h"
#include "core/format.h"

namespace dsplan {

void overflow(const char* operation) {
  throw Refusal("sizes", formatted("a {} of sizes does not fit in 63 bits", operation),
                "the model, the batch or the number of ranks is too large to be counted in bytes");
}

std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::Float64: return "fp64";
    case DType::Float32: return "fp32";
    case DType::Float16: return "fp16";
    case DType::BFloat16: return "bf16";
    case DType::Int64: return "int64";
    case DType::Int32: return "int32";
    case DType::Int8: return "int8";
    case DType::UInt8: return "uint8";
    case DType::Bool: return "bool";
  }
  return "?";
}

std::optional<DType> floating_type(std::string_view name) {
  if (name == "bf16" || name == "bfloat16") return DType::BFloat16;
  if (name == "fp16" || name == "float16") return DType::Float16;
  if (name == "fp32" || name == "float32") return DType::Float32;
  return std::nullopt;
}

std::string human(Bytes bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  const std::int64_t value = bytes.value();
  const std::uint64_t size = value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  std::size_t unit = 0;
  while (unit + 1 < std::size(kUnits) && (size >> (10 * (unit + 1))) > 0) ++unit;
  const char* sign = value < 0 ? "-" : "";
  if (unit == 0) return formatted("{}{} B", sign, size);
  return formatted("{}{:.2f} {}", sign, static_cast<double>(size) / static_cast<double>(1ULL << (10 * unit)),
                   kUnits[unit]);
}

std::string grouped(std::int64_t value) {
  std::string digits = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

}  // namespace dsplan
