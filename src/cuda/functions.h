// The elementwise functions as data: a kernel for each arithmetic type carries out any of them, so that there are few
// kernels to compile. The formulas are those of the host (exec/bodies).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cuda/grid.h"
#include "exec/bodies/elementwise.h"

namespace dsplan::cuda {

// Of operands a, b, c, the numbers n and m, and the element's own number i.
enum class Function : std::uint8_t {
  Fill,      // n
  Count,     // n + i, in steps of m: 0 stands for 1
  Copy,      // a
  Triangle,  // a where column i % n is not right of row i / n % m, else 0

  Add,
  Sub,
  ReversedSub,  // b - a
  Mul,
  Div,
  Minimum,
  Clamp,  // Not below n, not above m.
  AddNumber,
  SubNumber,
  MulNumber,
  DivNumber,
  FloorDivNumber,  // Of integers, by a positive one.
  Power,           // a ^ n
  PowerSlope,      // a ^ (n - 1)
  OneLess,         // 1 - a
  PowerOfTwo,      // a ^ b
  Neg,
  Abs,
  Sign,
  Exp,
  Log,
  Sqrt,
  Rsqrt,
  Reciprocal,
  Sin,
  Cos,
  Tanh,
  Sigmoid,
  Relu,
  Silu,
  Gelu,
  GeluTanh,
  Square,
  Cube,
  MulMul,  // a * b * n: dropout, by its mask.

  // Slopes: a is the gradient, b what was kept.
  OverKept,  // a / b
  TanhSlope,
  SigmoidSlope,
  ReluSlope,
  SiluSlope,
  GeluSlope,
  GeluTanhSlope,

  // Flags: 1 or 0.
  GreaterEqual,
  NotEqualNumber,
  EqualNumber,
  Equal,
  Both,
  Choose,  // b is set: a, else c.
  LessNumber,
  LessEqualNumber,
  GreaterEqualNumber,
  Either,
  Masked,  // b is set: n, else a.
};

// What integers are asked for; everything else is nothing to them.
template <class C>
[[nodiscard]] DSPLAN_KERNEL inline C of_integers(Function function, C a, C b, C c, std::int64_t i, C n) {
  switch (function) {
    case Function::Fill: return n;
    case Function::Count: return static_cast<C>(i);
    case Function::Add: return a + b;
    case Function::Sub: return a - b;
    case Function::Mul: return a * b;
    case Function::Div: return b == 0 ? C(0) : a / b;
    case Function::AddNumber: return a + n;
    case Function::SubNumber: return a - n;
    case Function::FloorDivNumber: return a >= 0 ? a / n : -((n - 1 - a) / n);
    case Function::Minimum: return b < a ? b : a;
    case Function::Choose: return b != 0 ? a : c;
    case Function::GreaterEqual: return a >= b ? C(1) : C(0);
    case Function::LessNumber: return a < n ? C(1) : C(0);
    case Function::GreaterEqualNumber: return a >= n ? C(1) : C(0);
    case Function::Either: return a != 0 || b != 0 ? C(1) : C(0);
    case Function::Masked: return b != 0 ? n : a;
    default: return a;
  }
}

template <class C>
[[nodiscard]] DSPLAN_KERNEL inline C slope(Function function, C a, C b) {
  switch (function) {
    case Function::OverKept: return a * (C(1) / b);
    case Function::TanhSlope: return a * (C(1) - b * b);
    case Function::SigmoidSlope: return a * (b * (C(1) - b));
    case Function::ReluSlope: return b > C(0) ? a : a * C(0);
    case Function::SiluSlope: return a * exec::bodies::silu_slope(b);
    case Function::GeluSlope: return a * exec::bodies::gelu_slope(b);
    default: return a * exec::bodies::gelu_tanh_slope(b);
  }
}

template <class C>
[[nodiscard]] DSPLAN_KERNEL inline C flag(Function function, C a, C b, C c, C n) {
  switch (function) {
    case Function::GreaterEqual: return a >= b ? C(1) : C(0);
    case Function::NotEqualNumber: return a != n ? C(1) : C(0);
    case Function::EqualNumber: return a == n ? C(1) : C(0);
    case Function::Equal: return a == b ? C(1) : C(0);
    case Function::Both: return a != C(0) && b != C(0) ? C(1) : C(0);
    case Function::LessNumber: return a < n ? C(1) : C(0);
    case Function::LessEqualNumber: return a <= n ? C(1) : C(0);
    case Function::GreaterEqualNumber: return a >= n ? C(1) : C(0);
    case Function::Either: return a != C(0) || b != C(0) ? C(1) : C(0);
    case Function::Masked: return b != C(0) ? n : a;
    default: return b != C(0) ? a : c;
  }
}

// Of one tensor, with the exponential and its kin.
template <class C>
[[nodiscard]] DSPLAN_KERNEL inline C curve(Function function, C a, C n) {
  switch (function) {
    case Function::Power: return exec::bodies::power(a, n);
    case Function::PowerSlope: return exec::bodies::power(a, n - C(1));
    case Function::Exp: return std::exp(a);
    case Function::Log: return std::log(a);
    case Function::Sqrt: return std::sqrt(a);
    case Function::Rsqrt: return C(1) / std::sqrt(a);
    case Function::Sin: return std::sin(a);
    case Function::Cos: return std::cos(a);
    case Function::Tanh: return std::tanh(a);
    case Function::Sigmoid: return exec::bodies::sigmoid(a);
    case Function::Silu: return exec::bodies::silu(a);
    case Function::Gelu: return exec::bodies::gelu(a);
    default: return exec::bodies::gelu_tanh(a);
  }
}

template <class C>
[[nodiscard]] DSPLAN_KERNEL inline C of_floats(Function function, C a, C b, C c, std::int64_t i, C n, C m) {
  switch (function) {
    case Function::Fill: return n;
    case Function::Count: return n + static_cast<C>(i) * (m == C(0) ? C(1) : m);
    case Function::Copy: return a;
    case Function::Triangle: {
      const auto columns = static_cast<std::int64_t>(n);
      return i % columns > i / columns % static_cast<std::int64_t>(m) ? C(0) : a;
    }
    case Function::Add: return a + b;
    case Function::Sub: return a - b;
    case Function::ReversedSub: return b - a;
    case Function::Mul: return a * b;
    case Function::Div: return a / b;
    case Function::Minimum: return b < a ? b : a;
    case Function::Clamp: return a < n ? n : a > m ? m : a;
    case Function::AddNumber: return a + n;
    case Function::SubNumber: return a - n;
    case Function::MulNumber: return a * n;
    case Function::DivNumber: return a / n;
    case Function::OneLess: return C(1) - a;
    case Function::PowerOfTwo: return std::pow(a, b);
    case Function::Neg: return -a;
    case Function::Abs: return std::abs(a);
    case Function::Sign: return a > C(0) ? C(1) : a < C(0) ? C(-1) : C(0);
    case Function::Reciprocal: return C(1) / a;
    case Function::Relu: return a < C(0) ? C(0) : a;  // What is no number stays none.
    case Function::Square: return a * a;
    case Function::Cube: return a * a * a;
    case Function::MulMul: return a * b * n;
    default: break;
  }
  if (function >= Function::GreaterEqual) return flag(function, a, b, c, n);
  if (function >= Function::OverKept) return slope(function, a, b);
  return curve(function, a, n);
}

template <class C>
[[nodiscard]] DSPLAN_KERNEL inline C apply(Function function, C a, C b, C c, std::int64_t i, C n, C m) {
  if constexpr (std::is_integral_v<C>) {
    return of_integers(function, a, b, c, i, n);
  } else {
    return of_floats(function, a, b, c, i, n, m);
  }
}

}  // namespace dsplan::cuda
