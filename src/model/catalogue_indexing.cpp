// The catalogue: views, parts and joins of tensors, and what selects elements.
#include "model/catalogue_rules.h"

namespace dsplan::rules {

// The gradients are views of the incoming one, unless the node says that it is copied.
void view(Writer& w) {
  if (w.node().gradient_copied) {
    w.gradient(0);
    return;
  }
  for (std::size_t i = 0; i < w.node().input_count; ++i) w.pass(i);
}

void cat(Writer& w) {
  w.output();
  w.kernel();
  view(w);
}

// slice: a zero-filled full tensor; split: one cat.
void part(Writer& w) { w.gradient(0); }

// values and indices; backward scatters into zeros.
void selection(Writer& w) {
  w.output(0);
  w.output(1);
  w.kernel();
  w.save_output(1, "_saved_indices");
  w.gradient(0);
}

// Zeros of the input's size, into which the gradient is put in place (FunctionsManual.cpp, index_backward: only
// tensor subclasses and dispatch modes take the form that copies).
void index(Writer& w) {
  w.output();
  w.kernel();
  w.save_input(1, "_saved_indices");
  w.gradient(0);
}

// The input is cast to the result's dtype first (ReduceOps.cpp, impl_func_cum_ops).
void cumulative_sum(Writer& w) {
  w.output();
  if (w.in(0).dtype != w.out().dtype) {
    w.extra(0, storage(w.out().shape.elements(), w.out().dtype), w.out().dtype, Visibility::Kernel);
  }
  w.kernel();
}

}  // namespace dsplan::rules
