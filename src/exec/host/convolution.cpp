// Convolutions of patches that lie beside each other: each patch is a row that is multiplied by the weight.
#include <vector>

#include "exec/host/patches.h"

namespace dsplan::exec::host {
namespace {

template <class C>
std::vector<C> all_of(const dsplan_tensor& tensor) {
  std::vector<C> values(static_cast<std::size_t>(count_of(tensor)));
  load(strided(tensor), 0, count_of(tensor), values.data());
  return values;
}

// The patches one after another, and the features of each.
struct Places {
  Strided patches;
  Strided features;
  std::size_t pixels;  // Of a patch.
  std::size_t width;   // Features.
  std::int64_t count;
};

Places places_of(const dsplan_tensor& picture, const dsplan_tensor& weight, const dsplan_tensor& made) {
  const PatchRows rows = patch_rows(picture, weight, made);
  return {strided(rows.patches), strided(rows.features), static_cast<std::size_t>(rows.pixels),
          static_cast<std::size_t>(rows.width), rows.count};
}

template <class C>
void forward(const Args& args) {
  const Places places = places_of(args.in(0), args.in(1), args.output());
  const std::vector<C> weight = all_of<C>(args.in(1));
  const std::vector<C> bias = args.has_in(2) ? all_of<C>(args.in(2)) : std::vector<C>(places.width);
  std::vector<C> patch(places.pixels);
  std::vector<C> made(places.width);
  for (std::int64_t at = 0; at < places.count; ++at) {
    load(places.patches, at * static_cast<std::int64_t>(places.pixels), static_cast<std::int64_t>(places.pixels),
         patch.data());
    for (std::size_t f = 0; f < places.width; ++f) {
      C sum = 0;
      for (std::size_t k = 0; k < places.pixels; ++k) sum += patch[k] * weight[f * places.pixels + k];
      made[f] = sum + bias[f];
    }
    store(places.features, at * static_cast<std::int64_t>(places.width), static_cast<std::int64_t>(places.width),
          made.data());
  }
}

// Of the weight and of the bias, summed over all places.
void backward(const Args& args) {
  const dsplan_tensor* to = args.find(SlotKind::Gradient, 1);
  const dsplan_tensor* to_bias = args.find(SlotKind::Gradient, 2);
  expect(args.find(SlotKind::Gradient, 0) == nullptr, "a picture takes no gradient");
  const Places places = places_of(args.saved_in(0), args.saved_in(1), args.gradient_of());
  std::vector<double> sums(places.width * places.pixels);
  std::vector<double> bias(places.width);
  std::vector<double> patch(places.pixels);
  std::vector<double> gradient(places.width);
  for (std::int64_t at = 0; at < places.count; ++at) {
    load(places.patches, at * static_cast<std::int64_t>(places.pixels), static_cast<std::int64_t>(places.pixels),
         patch.data());
    load(places.features, at * static_cast<std::int64_t>(places.width), static_cast<std::int64_t>(places.width),
         gradient.data());
    for (std::size_t f = 0; f < places.width; ++f) {
      bias[f] += gradient[f];
      for (std::size_t k = 0; k < places.pixels; ++k) sums[f * places.pixels + k] += gradient[f] * patch[k];
    }
  }
  if (to != nullptr) store(strided(*to), 0, count_of(*to), sums.data());
  if (to_bias != nullptr) store(strided(*to_bias), 0, count_of(*to_bias), bias.data());
}

}  // namespace

bool run_convolution(const Args& args) {
  if (args.op() != Op::Conv2d) return false;
  if (args.backward()) {
    backward(args);
  } else {
    with_arithmetic(dtype_of(args.in(0)), [&]<class C>(C) { forward<C>(args); });
  }
  return true;
}

}  // namespace dsplan::exec::host
