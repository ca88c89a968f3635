#include "planner/plan/repeated_layers.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "model/parts.h"
#include "model/traits.h"

namespace dsplan::detail {
namespace {

constexpr std::int64_t kFew = 5;

// The parameters of each layer, in order.
std::vector<std::vector<const Parameter*>> by_layer(const ModelSpec& model) {
  std::vector<std::vector<const Parameter*>> layers(static_cast<std::size_t>(model.dims.layers));
  for (const Parameter& parameter : model.parameters) {
    const std::int32_t layer = model.module_at(parameter.module).layer;
    if (layer >= 0 && static_cast<std::size_t>(layer) < layers.size()) {
      layers[static_cast<std::size_t>(layer)].push_back(&parameter);
    }
  }
  return layers;
}

bool alike(const std::vector<const Parameter*>& a, const std::vector<const Parameter*>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Parameter* x, const Parameter* y) {
    return x->shape == y->shape && x->trainable == y->trainable && x->split == y->split && x->dtype == y->dtype &&
           x->tied_to == kNone && y->tied_to == kNone;
  });
}

// Of `layers`, which of five a region is.
std::size_t few_of(std::size_t region, std::size_t layers) {
  if (region == 0) return 0;
  return region + 1 == layers ? kFew - 1 : 1;
}

template <class T>
std::vector<T> spread(const std::vector<T>& five, std::size_t layers) {
  std::vector<T> all;
  all.reserve(layers);
  for (std::size_t at = 0; at < layers; ++at) all.push_back(five[few_of(at, layers)]);
  return all;
}

bool same(const PartTime& a, const PartTime& b) {
  return a.forward == b.forward && a.backward == b.backward && a.forward_collectives == b.forward_collectives &&
         a.forward_flops == b.forward_flops && a.backward_flops == b.backward_flops;
}

template <class T>
bool middle_alike(const std::vector<T>& five) {
  return five.size() == static_cast<std::size_t>(kFew) && five[1] == five[2] && five[2] == five[3];
}

}  // namespace

std::optional<FewLayers> few_layers(const ModelSpec& model, const std::function<ModelSpec(std::int64_t)>& with_layers) {
  if (!with_layers || model.dims.layers <= kFew || model.dims.sliding_window > 0) return std::nullopt;
  if (model.dims.decoder_layers > 0 || contrasts(model)) return std::nullopt;       // Layers of two kinds.
  if (model.parts != nullptr && !model.parts->turned.empty()) return std::nullopt;  // Positions in some layers only.
  const auto layers = by_layer(model);
  if (layers[1].empty()) return std::nullopt;
  for (std::size_t at = 2; at + 1 < layers.size(); ++at) {
    if (!alike(layers[1], layers[at])) return std::nullopt;
  }
  FewLayers few{with_layers(kFew)};
  const auto there = by_layer(few.five);
  const auto count = static_cast<std::size_t>(kFew);
  if (there.size() != count) return std::nullopt;
  for (std::size_t at = 0; at < count; ++at) {
    const std::size_t here = at + 1 == count ? layers.size() - 1 : at;
    if (!alike(there[at], layers[here])) return std::nullopt;
  }
  return few;
}

std::optional<GraphTimes> repeated(const GraphTimes& five, std::size_t layers) {
  if (five.regions.size() != static_cast<std::size_t>(kFew) || layers < five.regions.size()) return std::nullopt;
  for (const std::size_t at : {std::size_t{2}, std::size_t{3}}) {
    if (!same(five.regions[1], five.regions[at]) || !same(five.tails[1], five.tails[at])) return std::nullopt;
  }
  GraphTimes all = five;
  all.regions = spread(five.regions, layers);
  all.tails = spread(five.tails, layers);
  all.region_parameters = spread(five.region_parameters, layers);
  all.operators = spread(five.operators, layers);
  return all;
}

std::optional<ActivationBytes> repeated(const ActivationBytes& five, std::size_t layers, const FewLayers& few,
                                        const Job& job) {
  const auto added = static_cast<std::int64_t>(layers) - kFew;
  if (added < 0 || five.stored.size() != static_cast<std::size_t>(kFew)) return std::nullopt;
  ActivationBytes all = five;
  for (std::vector<Bytes> ActivationBytes::*list :
       {&ActivationBytes::stored, &ActivationBytes::checkpointed, &ActivationBytes::both,
        &ActivationBytes::stored_backward, &ActivationBytes::checkpointed_backward,
        &ActivationBytes::recomputed_backward, &ActivationBytes::stored_forward}) {
    if (!middle_alike(five.*list)) return std::nullopt;
    all.*list = spread(five.*list, layers);
  }
  if (!middle_alike(five.kind)) return std::nullopt;
  all.kind = spread(five.kind, layers);
  const auto few_by_layer = by_layer(few.five);
  for (const Parameter* parameter : few_by_layer[1]) {
    const Elements size = local_shape(few.five, *parameter, job.parallelism.tp).elements() * added;
    all.parameters += size;
    if (parameter->trainable) all.trained += size;
  }
  // Counted from the end: each layer's gradients join those of the layers behind it.
  const std::vector<Bytes>& before = five.gradients_before;
  const Bytes each = before[2] - before[3];
  if (before[1] - before[2] != each) return std::nullopt;
  all.gradients += each * added;
  all.gradients_before.assign(layers, Bytes(0));
  for (std::size_t at = 0; at < layers; ++at) {
    const auto behind = static_cast<std::int64_t>(layers - 1 - at);
    all.gradients_before[at] = behind == 0 ? before[4] : before[3] + each * (behind - 1);
  }
  return all;
}

}  // namespace dsplan::detail
