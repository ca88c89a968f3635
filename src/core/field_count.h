// How many fields an aggregate has, so that a list of them can be held against the struct; and one struct of settings
// over another, by such a list.
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

// A setting as the upper layer has it, where that mentions it.
template <class Setting>
void prefer(Setting& below, const Setting& above) {
  if (above.mentioned()) below = above;
}

// `below` with each of `fields` as `above` has it, where it mentions it. All of the struct's fields but `Others` are
// named.
template <std::size_t Others, class Struct, class... Fields>
[[nodiscard]] Struct laid_over(Struct below, const Struct& above, Fields Struct::*... fields) {
  static_assert(field_count<Struct>() == sizeof...(Fields) + Others, "each field is laid over the other here");
  (prefer(below.*fields, above.*fields), ...);
  return below;
}

}  // namespace dsplan
