// Units as types. Bytes and elements are 63-bit integers whose arithmetic is checked: an overflow is a Refusal
// ("this does not fit in 63 bits"), never a wrapped number. There is no floating-point byte anywhere in dsplan.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dsplan {

[[noreturn]] void overflow(const char* operation);

[[nodiscard]] constexpr std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) overflow("addition");
  return sum;
}
[[nodiscard]] constexpr std::int64_t checked_sub(std::int64_t a, std::int64_t b) {
  std::int64_t difference = 0;
  if (__builtin_sub_overflow(a, b, &difference)) overflow("subtraction");
  return difference;
}
[[nodiscard]] constexpr std::int64_t checked_mul(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) overflow("multiplication");
  return product;
}

// A count of something. Construction is explicit, and only counts of the same thing add up.
template <class Tag>
class Count {
 public:
  constexpr Count() = default;
  explicit constexpr Count(std::int64_t value) : value_(value) {}
  [[nodiscard]] constexpr std::int64_t value() const { return value_; }

  friend constexpr auto operator<=>(Count, Count) = default;
  friend constexpr Count operator+(Count a, Count b) { return Count(checked_add(a.value_, b.value_)); }
  friend constexpr Count operator-(Count a, Count b) { return Count(checked_sub(a.value_, b.value_)); }
  friend constexpr Count operator*(Count a, std::int64_t k) { return Count(checked_mul(a.value_, k)); }
  friend constexpr Count operator*(std::int64_t k, Count a) { return a * k; }
  constexpr Count& operator+=(Count other) { return *this = *this + other; }
  constexpr Count& operator-=(Count other) { return *this = *this - other; }

 private:
  std::int64_t value_ = 0;
};

using Bytes = Count<struct BytesTag>;
using Elements = Count<struct ElementsTag>;

// Division is only by name, so that padding of shards is visible where it happens. divisor >= 1.
[[nodiscard]] constexpr std::int64_t div_ceil(std::int64_t a, std::int64_t divisor) {
  return a / divisor + (a % divisor > 0 ? 1 : 0);
}
[[nodiscard]] constexpr std::int64_t round_up(std::int64_t a, std::int64_t multiple) {
  return div_ceil(a, multiple) * multiple;
}
template <class Tag>
[[nodiscard]] constexpr Count<Tag> div_ceil(Count<Tag> a, std::int64_t divisor) {
  return Count<Tag>(div_ceil(a.value(), divisor));
}
template <class Tag>
[[nodiscard]] constexpr Count<Tag> div_floor(Count<Tag> a, std::int64_t divisor) {
  return Count<Tag>(a.value() / divisor);
}
template <class Tag>
[[nodiscard]] constexpr Count<Tag> round_up(Count<Tag> a, std::int64_t multiple) {
  return div_ceil(a, multiple) * multiple;
}

enum class DType : std::uint8_t { Float64, Float32, Float16, BFloat16, Int64, Int32, Int8, UInt8, Bool };

[[nodiscard]] constexpr bool is_floating(DType dtype) { return dtype <= DType::BFloat16; }

[[nodiscard]] constexpr std::int64_t bytes_per_element(DType dtype) {
  switch (dtype) {
    case DType::Float64:
    case DType::Int64: return 8;
    case DType::Float32:
    case DType::Int32: return 4;
    case DType::Float16:
    case DType::BFloat16: return 2;
    case DType::Int8:
    case DType::UInt8:
    case DType::Bool: return 1;
  }
  return 0;
}

// The only way from elements to bytes.
[[nodiscard]] constexpr Bytes storage(Elements elements, DType dtype) {
  return Bytes(checked_mul(elements.value(), bytes_per_element(dtype)));
}

// "fp32", "bf16", "int64", ...: the short names of the training file and the reports.
[[nodiscard]] std::string_view name(DType dtype);
// Of those in which a model computes, by either of its names: "bf16", "bfloat16".
[[nodiscard]] std::optional<DType> floating_type(std::string_view name);

// Rounding unit of PyTorch's caching allocator (kMinBlockSize, CUDACachingAllocator.cpp).
inline constexpr std::int64_t kBlockBytes = 512;
[[nodiscard]] constexpr Bytes rounded_to_block(Bytes requested) { return round_up(requested, kBlockBytes); }

// "14.96 GiB", "512 B": two decimals, powers of 1024, always labelled. Exact integers go to JSON, not here.
[[nodiscard]] std::string human(Bytes bytes);
// "1,003,782,656"
[[nodiscard]] std::string grouped(std::int64_t value);

}  // namespace dsplan
