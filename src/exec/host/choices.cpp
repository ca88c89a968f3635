// Elementwise kernels that choose: by a condition, a mask or bounds.
#include <algorithm>

#include "exec/host/args.h"

namespace dsplan::exec::host {
namespace {

template <class C>
void clamp(const Args& args) {
  const Bounds bounds = bounds_of(args);
  const C low = static_cast<C>(bounds.low);
  const C high = static_cast<C>(bounds.high);
  map<C, 1>(args.output(), {&args.in(0)}, [=](C x) { return x < low ? low : x > high ? high : x; });
}

// A zero; for each bound what lies within it, the second with the first; what of the gradient stays.
template <class C>
void clamp_backward(const Args& args) {
  const Bounds bounds = bounds_of(args);
  const C low = static_cast<C>(bounds.low);
  const C high = static_cast<C>(bounds.high);
  const bool both = bounds.both;
  const dsplan_tensor& x = args.saved_in(0);
  if (args.part() == 0) return map<C, 0>(args.temporary(0), {}, [](std::int64_t) { return C(0); });
  if (args.part() == 1) {
    const bool lower = both || bounds.lower_alone;
    return map<C, 1>(args.temporary(1), {&x}, [=](C v) { return (lower ? v >= low : v <= high) ? C(1) : C(0); });
  }
  if (both && args.part() == 2) {
    return map<C, 2>(args.temporary(2), {&x, &args.temporary(1)},
                     [=](C v, C above) { return above != C(0) && v <= high ? C(1) : C(0); });
  }
  map<C, 3>(args.gradient(0), {&args.gradient_of(), &args.temporary(both ? 2 : 1), &args.temporary(0)},
            [](C g, C within, C zero) { return within != C(0) ? g : zero; });
}

// The first choice where the condition is set.
template <class C>
void where(const Args& args) {
  map<C, 3>(args.output(), {&args.in(0), &args.in(1), &args.in(2)},
            [](C set, C first, C second) { return set != C(0) ? first : second; });
}

// By turns a zero and a gradient.
template <class C>
void where_backward(const Args& args) {
  const std::int64_t now = args.slot(args.made_count() - 1);
  if (now / 256 == static_cast<std::int64_t>(SlotKind::Temporary)) {
    return map<C, 0>(args.latest(), {}, [](std::int64_t) { return C(0); });
  }
  const bool first = now % 256 == 1;
  map<C, 2>(args.latest(), {&args.saved_in(0), &args.gradient_of()},
            [=](C set, C g) { return (set != C(0)) == first ? g : C(0); });
}

template <class C>
void fill_masked(const dsplan_tensor& to, const dsplan_tensor& from, const dsplan_tensor& mask, double number) {
  const C filled = static_cast<C>(number);
  map<C, 2>(to, {&from, &mask}, [=](C x, C set) { return set != C(0) ? filled : x; });
}

template <class C>
bool choose(const Args& args) {
  switch (args.op()) {
    case Op::Clamp: args.backward() ? clamp_backward<C>(args) : clamp<C>(args); return true;
    case Op::Where: args.backward() ? where_backward<C>(args) : where<C>(args); return true;
    case Op::Minimum:
      if (args.backward()) return false;
      map<C, 2>(args.output(), {&args.in(0), &args.in(1)}, [](C a, C b) { return std::min(a, b); });
      return true;
    default: break;
  }
  if (args.backward()) {
    fill_masked<C>(args.gradient(0), args.gradient_of(), args.saved_in(1), 0);
  } else {
    fill_masked<C>(args.output(), args.in(0), args.in(1), args.number());
  }
  return true;
}

bool chooses(const Args& args) {
  const Op op = args.op();
  return op == Op::Clamp || op == Op::Where || op == Op::Minimum || fills_masked(args);
}

}  // namespace

bool run_choices(const Args& args) {
  if (!chooses(args)) return false;
  const DType dtype = dtype_of(args.backward() ? args.gradient_of() : args.output());
  if (!is_floating(dtype)) return choose<std::int64_t>(args);
  bool done = false;
  with_arithmetic(dtype, [&]<class C>(C) { done = choose<C>(args); });
  return done;
}

}  // namespace dsplan::exec::host
