// How often a layer is gathered in backward, by counting (torch/distributed/fsdp/_fully_shard/_fsdp_state.py,
// _pre_forward and _pre_backward). A reentrant checkpoint runs the layer's forward hooks within backward, and with them
// its forward prefetches: of layers whose backward is over, which nobody needs.

#include <algorithm>

#include "planner/predict/footprint.h"

namespace dsplan {
namespace {

class Countdown {
 public:
  Countdown(const Training& training, const std::vector<std::int64_t>& reshards, bool tail)
      : t_(training), layers_(reshards.size() + 1), tail_(tail) {
    for (std::size_t at = 0; at < reshards.size(); ++at) {
      layers_[at] = {reshards[at], reshards[at] == 0, reshards[at] > 1, false, {}};
    }
  }

  std::vector<LayerGathers> run() {
    const std::size_t count = layers_.size() - 1;
    std::size_t last = count;  // The latest forward on record.
    if (count > 0) gather(count - 1);
    for (std::size_t at = count; at-- > 0;) {
      const bool reentrant = is_reentrant(at);
      if (reentrant) recompute(at);
      gather(at);
      copy_out(at);
      const auto back = static_cast<std::size_t>(t_.fsdp.backward_prefetch);
      for (std::size_t by = 1; by <= back && at >= back; ++by) gather(at - by);
      const bool records = reentrant && records_recomputation();
      if (back == 0 || at < back) {
        if (records) {
          gather(last);
        } else if (at > 0) {
          gather(at - 1);
        }
      }
      if (records) last = at;
      layers_[at].whole = layers_[at].among_fewer = false;
    }
    std::vector<LayerGathers> counted;
    for (const Layer& layer : layers_) counted.push_back(layer.gathers);
    return counted;
  }

 private:
  struct Layer {
    std::int64_t reshards = 0;
    bool whole = false;
    bool among_fewer = false;
    bool asked = false;
    LayerGathers gathers;
  };

  // Of 2.10 and later post_forward leaves everything as it is within backward.
  [[nodiscard]] bool records_recomputation() const { return t_.torch < Version{2, 10, 0}; }
  [[nodiscard]] bool is_reentrant(std::size_t at) const {
    return std::any_of(t_.checkpoint.groups.begin(), t_.checkpoint.groups.end(), [&](const CheckpointGroup& group) {
      return group.kind == CheckpointKind::Reentrant && static_cast<std::size_t>(group.first) == at;
    });
  }

  void recompute(std::size_t at) {
    gather(at);
    copy_out(at);
    const auto ahead = static_cast<std::size_t>(t_.fsdp.forward_prefetch);
    for (std::size_t by = 1; by <= ahead && at + ahead + 1 < layers_.size(); ++by) gather(at + by);
    Layer& layer = layers_[at];
    if (!records_recomputation() || layer.reshards == 0) return;
    layer.whole = false;
    layer.among_fewer = layer.reshards > 1;
  }

  void gather(std::size_t at) {
    Layer& layer = layers_[at];
    const bool root = at + 1 == layers_.size() && !tail_;  // The model's own group is whole until the end.
    if (layer.whole || layer.asked || root) return;
    layer.asked = true;
    ++(layer.among_fewer ? layer.gathers.of_fewer : layer.gathers.of_all);
  }

  void copy_out(std::size_t at) {
    Layer& layer = layers_[at];
    layer.whole = layer.whole || layer.asked;
    if (layer.asked) layer.among_fewer = false;
    layer.asked = false;
  }

  const Training& t_;
  std::vector<Layer> layers_;
  bool tail_;
};

}  // namespace

std::vector<LayerGathers> layer_gathers(const Training& training, const std::vector<std::int64_t>& reshards,
                                        bool tail) {
  return Countdown(training, reshards, tail).run();
}

}  // namespace dsplan
