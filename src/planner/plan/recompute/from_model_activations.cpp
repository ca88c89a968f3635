// What the regions of a graph keep from forward to backward: one walk over the saved tensors, each storage counted
// once.
#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "model/graphs/graphs.h"
#include "planner/lower/autograd/activation_profile.h"
#include "planner/lower/autograd/graph_facts.h"
#include "planner/lower/lower.h"
#include "planner/lower/runtimes/named_parameters.h"
#include "planner/plan/recompute/from_model.h"

namespace dsplan {
namespace {

// Of a region or of a whole graph: what tells two that are alike from two that are not.
class Mixer {
 public:
  void add(std::uint64_t value) {
    state_ ^= value + 0x9e3779b97f4a7c15U + (state_ << 6U) + (state_ >> 2U);
    state_ *= 0xff51afd7ed558ccdU;
  }
  [[nodiscard]] std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325U;
};

class ActivationWalk {
 public:
  ActivationWalk(const Graph& graph, const RecipeBook& recipes)
      : graph_(graph),
        recipes_(recipes),
        regions_(graph.regions.size()),
        places_(graph.storages.size()),
        signatures_(graph.regions.size()) {
    holds_.reserve(graph.regions.size() * 40);
    into_.stored.resize(regions_);
    into_.checkpointed.resize(regions_);
    into_.both.resize(regions_);
    into_.kind.resize(regions_);
  }

  ActivationBytes run() {
    wanted_ = wanted_nodes(graph_);
    for (TensorId leaf : graph_.leaves) hold(graph_.tensor(leaf).storage, false);  // Until the loss goes.
    for (const Instruction& instruction : graph_.program) {
      switch (instruction.kind) {
        case Instruction::Kind::RegionBegins: begin(instruction.region()); break;
        case Instruction::Kind::RegionEnds: end(); break;
        case Instruction::Kind::Run: add_node(instruction.node()); break;
        default: break;
      }
    }
    settle();
    return std::move(into_);
  }

  [[nodiscard]] const std::vector<std::uint64_t>& signatures() const { return signatures_; }

 private:
  // Who keeps a storage.
  struct Place {
    std::int32_t first = kNone;  // Region.
    std::int32_t stored = 0;     // Regions that keep it so.
    std::int32_t checkpointed = 0;
    std::int32_t last_stored = kNone;
    std::int32_t last_checkpointed = kNone;
    std::int32_t counted = kNone;  // The checkpoint that it was counted for.
    bool before = false;           // Operators in front of the first region.
    bool after = false;
    bool touched = false;
  };
  struct Hold {
    std::int32_t region;
    StorageId storage;
    bool checkpointed;
  };

  void begin(std::int32_t region) {
    region_ = region;
    seen_ = true;
    mixer_ = {};
    const Region& asked = graph_.regions[static_cast<std::size_t>(region)];
    for (TensorId id : asked.arguments) hold_argument(id);
    for (TensorId id : asked.keywords) hold_argument(id);
    results_.clear();
    last_ = {};
  }

  void end() {
    // What the last operator makes is the next region's argument, and counted there.
    for (ActivationBytes::Kept& one : results_) {
      if (one.op == last_.op) one.bytes -= last_.bytes;
    }
    for (const ActivationBytes::Kept& one : results_) mixer_.add(static_cast<std::uint64_t>(one.bytes.value()));
    const auto at = static_cast<std::size_t>(region_);
    signatures_[at] = mixer_.value();
    const auto [kind, fresh] = kinds_.try_emplace(mixer_.value(), static_cast<std::int32_t>(into_.kept.size()));
    if (fresh) into_.kept.push_back(results_);
    into_.kind[at] = kind->second;
    region_ = kNone;
  }

  void hold_argument(TensorId id) {
    mixer_.add(static_cast<std::uint64_t>(graph_.bytes(id).value()) * 2 + (graph_.tensor(id).requires_grad ? 1 : 0));
    hold(graph_.tensor(id).storage, true);
  }

  void hold(StorageId id, bool checkpointed) {
    const Storage& storage = graph_.storages[id];
    if (storage.parameter != kNone || storage.buffer != kNone) return;
    Place& place = places_[id];
    if (!std::exchange(place.touched, true)) touched_.push_back(id);
    if (region_ == kNone) {
      (seen_ ? place.after : place.before) = true;
      return;
    }
    std::int32_t& last = checkpointed ? place.last_checkpointed : place.last_stored;
    if (last == region_) return;
    last = region_;
    ++(checkpointed ? place.checkpointed : place.stored);
    if (place.first == kNone) place.first = region_;
    holds_.push_back({region_, id, checkpointed});
  }

  void add_node(NodeId id) {
    const Node& node = graph_.node(id);
    const bool wanted = wanted_[id];
    if (region_ != kNone) sign(id, wanted);
    if (!wanted) return;
    for (const Saved& saved : recipes_.saved(id)) {
      if (saved.kind != Saved::Kind::Extra) {
        const bool input = saved.kind == Saved::Kind::Input;
        hold(graph_.tensor(input ? graph_.input(node, saved.index) : graph_.output(node, saved.index)).storage, false);
        continue;
      }
      for (const Slot& slot : recipes_.slots(id)) {
        if (slot.kind != SlotKind::Extra || slot.index != saved.index) continue;
        (region_ == kNone ? into_.rest : into_.stored[static_cast<std::size_t>(region_)]) += slot.bytes;
        if (region_ == kNone && !seen_) into_.early += slot.bytes;
      }
    }
  }

  // What decides how much memory an operator of a region takes, and what it would leave a selective checkpoint.
  void sign(NodeId id, bool wanted) {
    const Node& node = graph_.node(id);
    mixer_.add(static_cast<std::uint64_t>(node.op) * 4 + (node.requires_grad ? 2 : 0) + (wanted ? 1 : 0));
    for (TensorId input : graph_.in(node)) mixer_.add(graph_.tensor(input).requires_grad ? 1 : 0);
    Bytes kept;
    for (const Slot& slot : recipes_.slots(id)) {
      mixer_.add(static_cast<std::uint64_t>(slot.bytes.value()) * 8 + static_cast<std::uint64_t>(slot.kind));
      if (slot.kind == SlotKind::Output || slot.kind == SlotKind::Extra) kept += slot.bytes;
    }
    if (recipes_.entry(id).alias || kept == Bytes(0)) return;
    last_ = {node.op, kept};
    const auto found =
        std::find_if(results_.begin(), results_.end(), [&](const auto& one) { return one.op == node.op; });
    if (found != results_.end()) {
      found->bytes += kept;
    } else {
      results_.push_back({node.op, kept});
    }
  }

  // Each storage counts once, whatever is checkpointed: with what lies outside, or with the first region that keeps it.
  void settle() {
    const auto all = static_cast<std::int32_t>(regions_);
    for (StorageId id : touched_) {
      Place& place = places_[id];
      const bool always = all > 1 && place.stored == all && place.checkpointed == all;
      if (!place.before && !place.after && !always) continue;
      const Bytes bytes = graph_.storages[id].bytes;
      into_.rest += bytes;
      if (place.before || always) into_.early += bytes;
      place.first = kNone;
    }
    for (const Hold& hold : holds_) {
      Place& place = places_[hold.storage];
      if (place.first != hold.region) continue;
      const auto at = static_cast<std::size_t>(hold.region);
      const Bytes bytes = graph_.storages[hold.storage].bytes;
      (hold.checkpointed ? into_.checkpointed : into_.stored)[at] += bytes;
      if (!hold.checkpointed && place.counted == hold.region) into_.both[at] += bytes;  // Arguments come first.
      if (hold.checkpointed) place.counted = hold.region;
    }
  }

  const Graph& graph_;
  const RecipeBook& recipes_;
  std::size_t regions_;
  Indexed<StorageId, Place> places_;
  std::vector<std::uint64_t> signatures_;
  Indexed<NodeId, bool> wanted_;
  std::vector<StorageId> touched_;
  std::vector<Hold> holds_;
  std::vector<ActivationBytes::Kept> results_;  // Of the region under way.
  ActivationBytes::Kept last_;
  std::unordered_map<std::uint64_t, std::int32_t> kinds_;
  Mixer mixer_;
  std::int32_t region_ = kNone;
  bool seen_ = false;
  ActivationBytes into_;
};

// The moments of one region, as a small model had them.
struct Moments {
  Bytes forward;
  Bytes stored;
  Bytes checkpointed;
  Bytes recomputed;
  Bytes gradients;
};

// Of the small model, beyond what its own regions keep.
struct Measured {
  std::vector<std::uint64_t> signatures;
  std::vector<Moments> regions;
  Bytes head;
  Bytes end;
  Bytes head_gradients;
  Bytes end_gradients;
};

Bytes beyond(Bytes peak, Bytes kept) { return std::max(peak - kept, Bytes(0)); }

Measured measure(const ModelSpec& model, const Job& job) {
  const ModelSpec few = with_few_layers(model);
  const Graph graph = build_graph(few, graph_options(few, job));
  const RecipeBook recipes(graph, job.training.level, catalogue_options(job));
  const ModelSpec part = tensor_parallel_part(few, job.parallelism.tp);
  ActivationWalk walk(graph, recipes);
  const ActivationBytes kept = walk.run();
  Measured result;
  result.signatures = walk.signatures();
  const ActivationProfile stored = profile_activations(part, job, graph, recipes, {});
  Bytes all = kept.early;
  for (Bytes one : kept.stored) all += one;
  result.head = beyond(std::max(stored.head_forward, stored.head_backward), all);
  result.end = stored.end;
  result.head_gradients = stored.head_gradients;
  result.end_gradients = stored.end_gradients;
  if (!job.training.checkpoint.modules.empty()) return result;  // Regions are modules then, and not profiled.
  Checkpointing full;
  for (std::size_t at = 0; at < graph.regions.size(); ++at) {
    full.groups.push_back({static_cast<std::int32_t>(at), static_cast<std::int32_t>(at)});
  }
  const ActivationProfile again = profile_activations(part, job, graph, recipes, full);
  Bytes before = kept.early;
  Bytes closures = kept.early;
  for (std::size_t at = 0; at < graph.regions.size(); ++at) {
    const Bytes arguments = kept.checkpointed[at] - kept.both[at];
    result.regions.push_back({beyond(stored.forward[at], before), beyond(stored.backward[at], before),
                              beyond(std::max(again.recomputation[at], again.backward[at]), closures),
                              beyond(again.backward[at], closures + arguments), stored.gradients[at]});
    before += kept.stored[at];
    closures += kept.checkpointed[at];
  }
  return result;
}

// The least of those regions of the small model that may stand for region `at` of `count`; none: no such region.
const Moments* stand_in(const Measured& measured, std::uint64_t signature, std::size_t at, std::size_t count,
                        Moments& least) {
  const std::size_t few = measured.regions.size();
  std::size_t first = at;
  std::size_t last = at;
  if (count > few && few > 2) {
    const bool ends = at == 0 || at + 1 == count;
    first = ends ? (at == 0 ? 0 : few - 1) : 1;
    last = ends ? first : few - 2;
  }
  bool found = false;
  for (std::size_t i = first; i <= last && i < few; ++i) {
    if (measured.signatures[i] != signature) continue;
    const Moments& one = measured.regions[i];
    if (!found) {
      least = one;
    } else {
      least = {std::min(least.forward, one.forward), std::min(least.stored, one.stored),
               std::min(least.checkpointed, one.checkpointed), std::min(least.recomputed, one.recomputed),
               std::min(least.gradients, one.gradients)};
    }
    found = true;
  }
  return found ? &least : nullptr;
}

void add_moments(const Measured& measured, const std::vector<std::uint64_t>& signatures, ActivationBytes& into) {
  into.head = measured.head;
  into.end = measured.end;
  into.end_gradients = measured.end_gradients;
  const std::size_t count = into.stored.size();
  std::vector<Bytes> gradients(count);
  for (std::size_t at = 0; at < count; ++at) {
    Moments least;
    const Moments* const found = stand_in(measured, signatures[at], at, count, least);
    const Bytes again = into.stored[at] + into.checkpointed[at] - into.both[at];
    into.stored_forward.push_back(found != nullptr ? found->forward : Bytes(0));
    into.stored_backward.push_back(std::max(into.stored[at], found != nullptr ? found->stored : Bytes(0)));
    into.checkpointed_backward.push_back(std::max(again, found != nullptr ? found->checkpointed : Bytes(0)));
    into.recomputed_backward.push_back(std::max(into.stored[at], found != nullptr ? found->recomputed : Bytes(0)));
    gradients[at] = found != nullptr ? found->gradients : Bytes(0);
  }
  into.gradients_before.resize(count);
  Bytes before = measured.head_gradients;
  for (std::size_t at = count; at-- > 0;) {
    into.gradients_before[at] = before;
    before += gradients[at];
  }
  into.gradients = before + measured.end_gradients;
}

}  // namespace

ActivationBytes activation_bytes(const ModelSpec& model, const Job& job, const Graph& graph,
                                 const RecipeBook& recipes) {
  ActivationWalk walk(graph, recipes);
  ActivationBytes result = walk.run();
  add_moments(measure(model, job), walk.signatures(), result);
  const ModelSpec part = tensor_parallel_part(model, job.parallelism.tp);
  for (const NamedParameter& p : named_parameters(part, job.training)) {
    result.parameters += Elements(p.elements);
    if (p.trainable) result.trained += Elements(p.elements);
  }
  return result;
}

}  // namespace dsplan
