// The catalogue: Liger's kernels, version 0.8.5, as transformers' use_liger_kernel puts them in the place of a model's
// own operators. Their backward writes over what it is given.
#include "model/catalogue/rules.h"

namespace dsplan::rules {
namespace {

// Of an H100, where no device is named.
constexpr std::int64_t kMultiprocessors = 132;

std::int64_t multiprocessors_of(const Writer& w) {
  const std::int64_t there = w.options().device.multiprocessors;
  return there > 0 ? there : kMultiprocessors;
}

// Each multiprocessor sums its rows in fp32; then they are summed, and cast.
void gradient_of_weight(Writer& w) {
  if (!w.needs(1)) return w.backward_kernel();
  const Elements width = w.in(1).shape.elements();
  const Elements all(checked_mul(multiprocessors_of(w), width.value()));
  (void)w.temporary(storage(all, DType::Float32), DType::Float32);
  if (w.in(1).dtype == DType::Float32) return w.gradient(1);
  const std::uint8_t sum = w.temporary(storage(width, DType::Float32), DType::Float32);
  w.gradient(1);
  w.drop(sum);
}

}  // namespace

// Input, weight, and rstd per row in fp32. The gradient of the input is written over that of the output
// (rms_norm.py: LigerRMSNormFunction, in_place).
void liger_rms_norm(Writer& w) {
  const Shape& shape = w.in(0).shape;
  const Elements rows(shape.elements().value() / shape.dims[shape.rank - 1U]);
  w.save_input(0, "_saved_tensors");
  w.save_input(1, "_saved_tensors");
  w.output();
  w.extra(0, storage(rows, DType::Float32), DType::Float32, Visibility::Dispatch);
  w.kernel();
  w.save_extra(0, "_saved_tensors");
  w.pass(0, true);
  gradient_of_weight(w);
}

// Cosines and sines alone; queries and keys are turned where they lie, and so are their gradients, unless they come
// head by head and have to be copied first (rope.py: rope_forward, rope_backward).
void liger_rotary(Writer& w) {
  w.in_place(2);
  w.kernel();
  w.save_input(2, "_saved_tensors");
  w.save_input(3, "_saved_tensors");
  const auto copied = static_cast<unsigned>(w.node().number);
  bool over_given = false;
  for (std::size_t i = 0; i < 2; ++i) {
    if ((copied >> i & 1U) == 0) {
      w.pass(i, true);
      over_given |= w.needs(i);
    } else if (w.needs(i)) {
      w.gradient(i);
      w.seen_through_view(i);
    }
  }
  if (over_given) w.backward_kernel();  // Copies are turned by the kernel that is told with them.
}

// Gate and up, over which backward writes their gradients (swiglu.py: LigerSiLUMulFunction).
void liger_silu_mul(Writer& w) {
  w.save_input(0, "_saved_tensors");
  w.save_input(1, "_saved_tensors");
  w.output();
  w.kernel();
  w.hand_out(0, true);
  w.hand_out(1, true);
  w.backward_kernel();
}

}  // namespace dsplan::rules
