// Elementwise formulas, once for host and devices, in the arithmetic type C (float or double).
#pragma once

#include <cmath>

#include "exec/bodies/both.h"

namespace dsplan::exec::bodies {

template <class C>
DSPLAN_BOTH inline C sigmoid(C x) {
  return C(1) / (C(1) + std::exp(-x));
}

template <class C>
DSPLAN_BOTH inline C silu(C x) {
  return x * sigmoid(x);
}
template <class C>
DSPLAN_BOTH inline C silu_slope(C x) {
  const C gate = sigmoid(x);
  return gate * (C(1) + x * (C(1) - gate));
}

inline constexpr double kRootOfHalf = 0.7071067811865476;
inline constexpr double kRootOfTwoOverPi = 0.7978845608028654;
inline constexpr double kGeluCubic = 0.044715;

template <class C>
DSPLAN_BOTH inline C gelu(C x) {
  return C(0.5) * x * (C(1) + std::erf(x * C(kRootOfHalf)));
}
template <class C>
DSPLAN_BOTH inline C gelu_slope(C x) {
  const C below = C(0.5) * (C(1) + std::erf(x * C(kRootOfHalf)));
  const C density = std::exp(C(-0.5) * x * x) * C(0.5 * kRootOfTwoOverPi);
  return below + x * density;
}

template <class C>
DSPLAN_BOTH inline C gelu_tanh(C x) {
  return C(0.5) * x * (C(1) + std::tanh(C(kRootOfTwoOverPi) * (x + C(kGeluCubic) * x * x * x)));
}
template <class C>
DSPLAN_BOTH inline C gelu_tanh_slope(C x) {
  const C t = std::tanh(C(kRootOfTwoOverPi) * (x + C(kGeluCubic) * x * x * x));
  const C inner = C(kRootOfTwoOverPi) * (C(1) + C(3 * kGeluCubic) * x * x);
  return C(0.5) * (C(1) + t) + C(0.5) * x * (C(1) - t * t) * inner;
}

// Small whole exponents are products, as everywhere.
template <class C>
DSPLAN_BOTH inline C power(C x, C exponent) {
  if (exponent == C(2)) return x * x;
  if (exponent == C(3)) return x * x * x;
  if (exponent == C(1)) return x;
  if (exponent == C(0)) return C(1);
  return std::pow(x, exponent);
}

}  // namespace dsplan::exec::bodies
