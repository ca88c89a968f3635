// Convolutions of patches that lie beside each other: each patch is a row that is multiplied by the weight.
#include "cuda/element.h"
#include "cuda/grid.h"
#include "cuda/kernels.h"
#include "exec/host/patches.h"

namespace dsplan::cuda {
namespace {

// The patches one after another, and the features of each.
struct Places {
  Strided patches;
  Strided features;
  std::int64_t pixels;  // Of a patch.
  std::int64_t width;   // Features.
  std::int64_t count;
};

Places places_of(const dsplan_tensor& picture, const dsplan_tensor& weight, const dsplan_tensor& made) {
  const exec::host::PatchRows rows = exec::host::patch_rows(picture, weight, made);
  return {strided(rows.patches), strided(rows.features), rows.pixels, rows.width, rows.count};
}

struct FeatureKernel {
  Places places;
  Strided weight;
  Strided bias;
  bool has_bias;

  DSPLAN_KERNEL void operator()(std::int64_t i) const {
    const std::int64_t at = i / places.width;
    const std::int64_t feature = i % places.width;
    double sum = has_bias ? load<double>(bias, feature) : 0;
    for (std::int64_t k = 0; k < places.pixels; ++k) {
      sum += load<double>(places.patches, at * places.pixels + k) * load<double>(weight, feature * places.pixels + k);
    }
    store(places.features, i, sum);
  }
};

struct WeightKernel {
  Places places;
  Strided to;

  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t i) const {
    double sum = 0;
    for (std::int64_t at = team.lane(); at < places.count; at += Team::kLanes) {
      sum += load<double>(places.features, at * places.width + i / places.pixels) *
             load<double>(places.patches, at * places.pixels + i % places.pixels);
    }
    sum = team.sum(sum);
    if (team.lane() == 0) store(to, i, sum);
  }
};

struct BiasKernel {
  Places places;
  Strided to;

  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t feature) const {
    double sum = 0;
    for (std::int64_t at = team.lane(); at < places.count; at += Team::kLanes) {
      sum += load<double>(places.features, at * places.width + feature);
    }
    sum = team.sum(sum);
    if (team.lane() == 0) store(to, feature, sum);
  }
};

}  // namespace

void convolution(const Queue& queue, const dsplan_tensor& picture, const dsplan_tensor& weight,
                 const dsplan_tensor* bias, const dsplan_tensor& out) {
  const Strided added = bias != nullptr ? strided(*bias) : Strided{};
  each(queue, count_of(out), FeatureKernel{places_of(picture, weight, out), strided(weight), added, bias != nullptr});
}

void convolution_backward(const Queue& queue, const dsplan_tensor& picture, const dsplan_tensor& weight,
                          const dsplan_tensor& gradient, const dsplan_tensor* to, const dsplan_tensor* to_bias) {
  const Places places = places_of(picture, weight, gradient);
  if (to != nullptr) teams(queue, count_of(*to), WeightKernel{places, strided(*to)});
  if (to_bias != nullptr) teams(queue, places.width, BiasKernel{places, strided(*to_bias)});
}

}  // namespace dsplan::cuda
