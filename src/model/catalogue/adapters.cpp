// The catalogue: axolotl's functions of adapted projections (0.19.0, src/axolotl/kernels/lora.py), without DoRA and
// without biases of the adapters. A packed weight is unpacked for each product, and goes behind it
// (kernels/quantize.py).
#include <array>
#include <vector>

#include "model/catalogue/rules.h"

namespace dsplan::rules {
namespace {

// Where the inputs stand, projection by projection, and how large they are.
struct Inputs {
  explicit Inputs(const Writer& writer) : w(writer), compute(w.in(0).dtype), dropped(w.node().input_count % 3 == 2) {
    first = dropped ? 2 : 1;
    const Shape& x = w.in(0).shape;
    rows = x.elements().value() / x.dims[x.rank - 1U];
  }

  [[nodiscard]] std::size_t count() const { return (w.node().input_count - first) / 3; }
  [[nodiscard]] std::size_t a(std::size_t p) const { return first + 3 * p + 1; }
  [[nodiscard]] std::size_t b(std::size_t p) const { return a(p) + 1; }
  [[nodiscard]] std::int64_t rank(std::size_t p) const { return w.in(a(p)).shape.dims[0]; }
  [[nodiscard]] std::int64_t features(std::size_t p) const { return w.in(b(p)).shape.dims[0]; }
  [[nodiscard]] Elements weight(std::size_t p) const {
    return Elements(checked_mul(w.in(a(p)).shape.dims[1], features(p)));
  }
  [[nodiscard]] bool converts(std::size_t factor) const { return w.in(factor).dtype != compute; }

  const Writer& w;
  DType compute;
  bool dropped;
  std::size_t first = 1;
  std::int64_t rows = 0;
};

// Writes what the functions have in common.
class Adapted {
 public:
  explicit Adapted(Writer& w) : w_(w), of_(w) {
    packed_ = w.node().number > 0;
    nested_ = w.node().number >= kNestedScales;
    if (packed_) loaded_ = static_cast<DType>(static_cast<int>(w.node().number) % static_cast<int>(kNestedScales));
  }

  [[nodiscard]] const Inputs& of() const { return of_; }

  // matmul_lora into what `make` makes.
  template <class Make>
  void multiply(std::size_t p, Make make) {
    const std::uint8_t dense = unpacked(p);
    make();
    w_.kernel();
    if (packed_) w_.forward_drop(dense);
    std::vector<std::uint8_t> narrow;
    for (const std::size_t factor : {of_.a(p), of_.b(p)}) {
      if (of_.converts(factor)) narrow.push_back(passing(w_.in(factor).shape.elements(), of_.compute));
    }
    w_.forward_drop(passing(Elements(checked_mul(of_.rows, of_.rank(p))), of_.compute));
    for (const std::uint8_t one : narrow) w_.forward_drop(one);
  }

  // The input, the dropped one or the input again, and the factors as they are multiplied; `extra` is their first.
  void save_inputs() {
    w_.save_input(0, "_saved_tensors");
    w_.save_input(of_.dropped ? 1 : 0, "_saved_tensors");
  }
  void save_factors(std::size_t extra) {
    for (std::size_t p = 0; p < of_.count(); ++p) {
      for (const std::size_t factor : {of_.a(p), of_.b(p)}) {
        if (!of_.converts(factor)) {
          w_.save_input(factor, "_saved_tensors");
          continue;
        }
        w_.extra(extra, storage(w_.in(factor).shape.elements(), of_.compute), of_.compute, Visibility::Dispatch);
        w_.kernel();
        w_.save_extra(extra++, "_saved_tensors");
      }
    }
    w_.saves_after_kernel();
  }

  // The gradients of a projection's factors, and of what its B was given, which the function has to the end.
  void factors(std::size_t p) {
    const Elements thin(checked_mul(of_.rows, of_.rank(p)));
    held_.push_back(w_.temporary(storage(thin, of_.compute), of_.compute));
    for (const std::size_t factor : {of_.a(p), of_.b(p)}) {
      if (w_.needs(factor) && !of_.converts(factor)) {
        w_.allocate_gradient(factor);
        continue;
      }
      const Bytes bytes = storage(w_.in(factor).shape.elements(), of_.compute);
      const std::uint8_t made = w_.allocate_temporary(bytes, of_.compute, Visibility::Dispatch);
      if (w_.needs(factor)) {
        wide_[factor] = made;
      } else {
        held_.push_back(made);
      }
    }
    w_.backward_kernel();
    w_.drop(w_.temporary(storage(thin, of_.compute), of_.compute));
  }

  // A packed weight in backward; `use` is the product with it.
  template <class Use>
  void with_weight(std::size_t p, Use use) {
    const Bytes scales = storage(div_ceil(of_.weight(p), 64), DType::Float32);
    std::uint8_t dense = 0;
    if (packed_) dense = w_.allocate_temporary(storage(of_.weight(p), loaded_), loaded_, Visibility::Dispatch);
    if (packed_ && nested_) w_.drop(w_.temporary(scales, DType::Float32));
    if (packed_ && !nested_) w_.backward_kernel();
    use();
    if (packed_) w_.drop(dense);
  }

  // The gradient of input i in compute's dtype, asked for or not.
  void gradient_of_input(std::size_t i) {
    if (w_.needs(i)) {
      w_.gradient(i);
      return w_.seen_through_view(i);
    }
    // It is returned all the same, and goes with the function's other results.
    (void)w_.temporary(storage(w_.in(i).shape.elements(), of_.compute), of_.compute);
  }
  void hold(std::uint8_t made) { held_.push_back(made); }

  // What the function still has goes; then the engine brings gradients to their parameters' dtype.
  void leave() {
    for (const std::uint8_t one : held_) w_.drop(one);
    w_.function_returns();
    for (std::size_t i = of_.first; i < w_.node().input_count; ++i) {
      if ((i - of_.first) % 3 == 0 || !w_.needs(i)) continue;
      if (!of_.converts(i)) {
        w_.seen_through_view(i);
        continue;
      }
      w_.gradient(i);
      w_.drop(wide_[i]);
    }
  }

 private:
  std::uint8_t passing(Elements elements, DType dtype) {
    const std::uint8_t made = w_.forward_temporary(storage(elements, dtype), dtype);
    w_.kernel();
    return made;
  }
  std::uint8_t unpacked(std::size_t p) {
    if (!packed_) return 0;
    const std::uint8_t dense = w_.forward_temporary(storage(of_.weight(p), loaded_), loaded_);
    if (nested_) {
      w_.forward_drop(passing(div_ceil(of_.weight(p), 64), DType::Float32));
    } else {
      w_.kernel();
    }
    return dense;
  }

  Writer& w_;
  Inputs of_;
  bool packed_ = false;
  bool nested_ = false;
  DType loaded_ = DType::BFloat16;
  std::vector<std::uint8_t> held_;
  std::array<std::uint8_t, Node::kMostInputs> wide_{};  // By input: gradients that have still to be cast.
};

}  // namespace

// LoRA_QKV, and LoRA_O for a single projection, which makes the gradient of a dropped input with one tensor more.
void adapted_linear(Writer& w) {
  Adapted all(w);
  for (std::size_t p = 0; p < all.of().count(); ++p) {
    all.multiply(p, [&] { w.output(p); });
  }
  all.save_inputs();
  all.save_factors(0);
  for (std::size_t p = 0; p < all.of().count(); ++p) all.factors(p);
  for (std::size_t p = 0; p < all.of().count(); ++p) {
    all.with_weight(p, [&] {
      if (p == 0) all.gradient_of_input(0);  // To which the others are added.
    });
  }
  if (all.of().dropped) {
    const bool scales = all.of().count() == 1;
    const std::uint8_t product = scales ? w.temporary(w.bytes_in(1), w.in(1).dtype) : std::uint8_t{0};
    all.gradient_of_input(1);
    if (scales) w.drop(product);
  }
  all.leave();
}

// LoRA_MLP with kernels/swiglu.py: what leads to down's input is made again over gate, up and the gradient.
void adapted_gated(Writer& w) {
  constexpr std::size_t kGate = 0;
  constexpr std::size_t kUp = 1;
  constexpr std::size_t kDown = 2;
  Adapted all(w);
  const DType dtype = w.in(0).dtype;
  const Elements wide(checked_mul(all.of().rows, all.of().features(kGate)));
  for (const std::size_t p : {kGate, kUp}) {
    all.multiply(p, [&] { w.extra(p, storage(wide, dtype), dtype, Visibility::Dispatch); });
  }
  const std::uint8_t hidden = w.forward_temporary(storage(wide, dtype), dtype);
  w.kernel();
  all.multiply(kDown, [&] { w.output(); });
  all.save_inputs();
  w.save_extra(0, "_saved_tensors");
  w.save_extra(1, "_saved_tensors");
  all.save_factors(2);
  w.forward_drop(hidden);

  std::uint8_t inner = 0;
  all.with_weight(kDown, [&] { inner = w.temporary(storage(wide, dtype), dtype); });
  w.drop(w.temporary(storage(Elements(checked_mul(all.of().rows, all.of().rank(kDown))), dtype), dtype));
  all.hold(inner);
  for (const std::size_t p : {kDown, kUp, kGate}) all.factors(p);
  if (w.needs(0)) {
    all.with_weight(kUp, [&] { all.gradient_of_input(0); });
    all.with_weight(kGate, [] {});
    if (all.of().dropped) all.gradient_of_input(1);
  }
  all.leave();
}

}  // namespace dsplan::rules
