// How many fields an aggregate has, so that a list of them can be held against the struct.
#pragma once

#include <cstddef>
#include <utility>

namespace dsplan {
namespace detail {

struct Anything {
  template <class T>
  operator T() const;  // Never defined: only asked for in unevaluated code.
};

template <class T, std::size_t... At>
constexpr bool takes(std::index_sequence<At...>) {
  return requires { T{(static_cast<void>(At), Anything())...}; };
}

}  // namespace detail

// The largest number of initializers that T takes. T holds no arrays of C and has no bases.
template <class T, std::size_t Found = 0>
consteval std::size_t field_count() {
  if constexpr (detail::takes<T>(std::make_index_sequence<Found + 1>())) {
    return field_count<T, Found + 1>();
  } else {
    return Found;
  }
}

}  // namespace dsplan
