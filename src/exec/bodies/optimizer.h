// One element of an optimizer step, once for host and devices (torch/optim/{adam,adamw,sgd}.py).
#pragma once

#include <cmath>

#include "exec/bodies/both.h"

namespace dsplan::exec::bodies {

struct AdamNumbers {
  double rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double decay = 0;
  double step = 1;        // Counted from 1.
  bool decoupled = true;  // AdamW.
};

template <class C>
DSPLAN_BOTH inline void adam(C& weight, C& first, C& second, C gradient, const AdamNumbers& n, C correction1,
                             C correction2) {
  if (n.decoupled) {
    weight *= C(1) - C(n.rate) * C(n.decay);
  } else {
    gradient += C(n.decay) * weight;
  }
  first = C(n.beta1) * first + (C(1) - C(n.beta1)) * gradient;
  second = C(n.beta2) * second + (C(1) - C(n.beta2)) * gradient * gradient;
  weight -= C(n.rate) / correction1 * first / (std::sqrt(second) / std::sqrt(correction2) + C(n.epsilon));
}

template <class C>
DSPLAN_BOTH inline void sgd(C& weight, C* momentum, C gradient, C rate, C factor, C decay, bool first_step) {
  gradient += decay * weight;
  if (momentum != nullptr) {
    *momentum = first_step ? gradient : factor * *momentum + gradient;
    gradient = *momentum;
  }
  weight -= rate * gradient;
}

}  // namespace dsplan::exec::bodies
