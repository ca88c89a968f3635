// fully_shard (torch/distributed/fsdp/_fully_shard), as its Python reads: units of modules with what they gather, what
// they hold until somebody else's turn, and reference counts.
#include <algorithm>
#include <map>
#include <set>

#include "eager/runtime.h"

namespace eager {
namespace {

struct Unit {
  std::vector<int> modules;
  Tensors leaves;
  std::int64_t reshard = 1;
  std::set<int> to_run = {};  // Of a forward under way.
  int first = -1;
  int last = -1;
  bool whole = false;
  bool reduced = false;  // Its post-backward has run.
  bool asked = false;    // Its pre-backward has run.
  Block gathered = {};   // Not copied out yet.
  std::map<int, Block> fewer = {};
  std::vector<std::size_t> places = {};  // In the order of forwards.
  Block summed = {};                     // Until an all-reduce is waited for.
};

// Units, what each rank has of their parameters, and gathers.
class Units : public Runtime {
 public:
  Units(const Plan& plan, Net& net) : Runtime(plan, net), ranks_(plan.world / plan.replicate) {
    for (std::size_t at = 0; at < plan.units.size(); ++at) {
      units_.push_back({plan.units[at], {}, plan.units[at].front() == 0 ? plan.reshard_root : plan.reshards[at]});
    }
    for (const int module : plan.order) {  // Children before their parents.
      for (const Tensor& leaf : leaves_) {
        if (net.module_of[static_cast<std::size_t>(leaf->parameter)] != module) continue;
        units_[static_cast<std::size_t>(plan.unit_of[static_cast<std::size_t>(module)])].leaves.push_back(leaf);
      }
    }
    for (const std::size_t at : plan.layers) layers_.push_back(&units_[at]);
    // Within a unit of several modules in the order in which they were passed.
    for (Unit& unit : units_) {
      std::stable_sort(unit.leaves.begin(), unit.leaves.end(),
                       [&](const Tensor& a, const Tensor& b) { return place(unit, a) < place(unit, b); });
    }
  }

 protected:
  [[nodiscard]] static bool has(const Unit& unit, int module) {
    return std::find(unit.modules.begin(), unit.modules.end(), module) != unit.modules.end();
  }
  [[nodiscard]] std::size_t place(const Unit& unit, const Tensor& leaf) const {
    if (unit.modules.size() == 1) return 0;
    const int owner = net_.module_of[static_cast<std::size_t>(leaf->parameter)];
    return static_cast<std::size_t>(std::find(unit.modules.begin(), unit.modules.end(), owner) - unit.modules.begin());
  }
  [[nodiscard]] Unit* unit_of(int module) {
    for (Unit& unit : units_) {
      if (has(unit, module) && !unit.leaves.empty()) return &unit;
    }
    return nullptr;
  }

  // The order of named_modules.
  [[nodiscard]] std::vector<Unit*> by_module() {
    std::vector<Unit*> sorted;
    for (Unit& unit : units_) sorted.push_back(&unit);
    const auto first = [](const Unit* unit) { return *std::min_element(unit->modules.begin(), unit->modules.end()); };
    std::sort(sorted.begin(), sorted.end(), [&](const Unit* a, const Unit* b) { return first(a) < first(b); });
    return sorted;
  }

  // ceil(rows / ranks) rows each; the last ranks what is left.
  [[nodiscard]] std::int64_t rows(const Tensor& leaf) const { return (leaf->size(0) + ranks_ - 1) / ranks_; }
  [[nodiscard]] std::int64_t row(const Tensor& leaf) const { return leaf->elements() / leaf->size(0); }
  [[nodiscard]] std::int64_t padded(const Tensor& leaf) const { return rows(leaf) * row(leaf); }
  [[nodiscard]] std::int64_t local(const Tensor& leaf) const {
    const std::int64_t before = rows(leaf) * (plan_.rank % ranks_);
    return std::max<std::int64_t>(0, std::min(rows(leaf), leaf->size(0) - before)) * row(leaf);
  }
  [[nodiscard]] std::int64_t all_padded(const Tensors& leaves) const {
    std::int64_t sum = 0;
    for (const Tensor& leaf : leaves) sum += padded(leaf);
    return sum;
  }

  void pad(const Unit& unit) {
    for (const Tensor& leaf : unit.leaves) {
      const auto made = padded_.find(leaf->parameter);
      if (made == padded_.end() || made->second) continue;
      shards_[leaf->parameter] = block("padded shard", padded(leaf) * plan_.kept);
      made->second = true;
    }
  }

  void unshard(Unit& unit) {
    if (unit.gathered || unit.whole) return;
    const std::int64_t among = unit.fewer.empty() ? ranks_ : unit.reshard;
    const std::int64_t share = bytes(all_padded(unit.leaves)) * (ranks_ / among);
    Block cast;
    if (plan_.kept != plan_.width()) cast = block("shards, cast", share);
    unit.gathered = block("all-gather output", share * among);
  }

  // torch.split_with_sizes_copy's table needs a device.
  void copy_out(Unit& unit, bool forward) {
    if (!unit.gathered) return;
    const Block before = forward ? std::move(ahead_) : nullptr;
    for (const Tensor& leaf : unit.leaves) leaf->storage = block("whole parameter", bytes(padded(leaf) * ranks_));
    unit.fewer.clear();
    unit.whole = true;
    if (forward) {
      ahead_ = std::move(unit.gathered);
    }
    unit.gathered.reset();
  }

  // Explicit prefetches: the next `count` layers, or those before; none where there are not as many.
  [[nodiscard]] std::vector<Unit*> ahead_of(const Unit* unit, std::size_t count, bool forward) const {
    const auto found = std::find(layers_.begin(), layers_.end(), unit);
    const auto at = static_cast<std::size_t>(found - layers_.begin());
    if (found == layers_.end() || count == 0 || (forward ? at + count >= layers_.size() : at < count)) return {};
    std::vector<Unit*> ahead;
    for (std::size_t by = 1; by <= count; ++by) ahead.push_back(layers_[forward ? at + by : at - by]);
    return ahead;
  }

  void free_whole(Unit& unit) {
    if (!unit.whole) return;
    unit.whole = false;
    for (const Tensor& leaf : unit.leaves) leaf->storage->free();
  }

  void to_fewer(Unit& unit) {
    for (const Tensor& leaf : unit.leaves) {
      unit.fewer[leaf->parameter] = block("shard among fewer", bytes(padded(leaf) * ranks_) / unit.reshard);
      leaf->storage->free();
    }
    unit.whole = false;
  }

  std::int64_t ranks_;
  std::vector<Unit> units_;
  std::vector<Unit*> layers_;
  std::map<int, Block> shards_;
  std::map<int, Block> grads_;  // Views keep what was reduced for the whole unit.
  std::map<int, Block> sums_;
  std::vector<Unit*> order_;
  Block ahead_;                 // What the unit before was copied out of.
  Block input_;                 // Of the latest reduction.
  std::map<int, bool> padded_;  // Of what has been made.
  bool backward_ = false;
  bool reduces_ = true;
};

class Fsdp : public Units {
 public:
  using Units::Units;

  [[nodiscard]] bool wraps_tensors(int module) const override {
    return std::any_of(units_.begin(), units_.end(), [&](const Unit& unit) { return has(unit, module); });
  }

  // to_empty: what is tied is made under each name.
  void initialise() override {
    for (const int module : plan_.order) {
      Block before;
      for (std::size_t at = 0; at < net_.parameters.size(); ++at) {
        if (net_.module_of[at] != module) continue;
        const Tensor& leaf = net_.parameters[at];
        if (!plan_.ignored.empty() && plan_.ignored[at]) {
          leaf->storage = block("ignored parameter", leaf->elements() * plan_.kept);
          continue;
        }
        Block made = block("shard", local(leaf) * plan_.kept);
        if (padded_[leaf->parameter]) before = std::move(shards_[leaf->parameter]);  // The unit's, until it pads.
        shards_[leaf->parameter] = std::move(made);
        padded_[leaf->parameter] = padded(leaf) == local(leaf);
      }
      plan_.make_buffers(net_, module);
      if (const Unit* unit = unit_of(module)) pad(*unit);
    }
  }

  // Again within backward where a reentrant checkpoint runs its function before the hook of its output.
  void pre_forward(int module) override {
    Unit* unit = unit_of(module);
    if (unit == nullptr || unit->asked) return;
    if (!unit->to_run.empty()) return;
    unit->to_run.insert(unit->modules.begin(), unit->modules.end());
    unit->first = module;
    unshard(*unit);
    copy_out(*unit, true);
    for (Unit* next : ahead_of(unit, plan_.forward_prefetch, true)) unshard(*next);
  }

  void post_forward(int module) override {
    if (Unit* unit = unit_of(module)) {
      if (unit->asked) return;
      unit->to_run.erase(module);
      if (backward_) return ahead_.reset();
      if (unit->to_run.empty()) {
        unit->last = module;
        if (unit->reshard == 1) free_whole(*unit);
        if (unit->reshard > 1) to_fewer(*unit);
        unit->places.push_back(order_.size());
        order_.push_back(unit);
      }
    }
    if (module == 0) ahead_.reset();
  }

  void pre_backward(int module) override {
    Unit* unit = unit_of(module);
    if (unit == nullptr || unit->last != module) return;
    unit->asked = true;
    unshard(*unit);
    copy_out(*unit, false);
    const std::vector<Unit*> ahead = ahead_of(unit, plan_.backward_prefetch, false);
    for (Unit* next : ahead) unshard(*next);
    if (!ahead.empty() || unit->places.empty()) return;
    const std::size_t before = unit->places.back();
    unit->places.pop_back();
    if (before > 0) unshard(*order_[before - 1]);
  }

  void post_backward(int module) override {
    Unit* unit = unit_of(module);
    if (unit != nullptr && unit->first == module) reduce(*unit);
  }

  void backward_begins(bool boundary) override {
    backward_ = true;
    reduces_ = boundary || plan_.sync_every;
  }
  void ready(const Tensor&) override {}

  void autograd_ends() override {
    for (Unit* unit : by_module()) {
      if (!unit->reduced) reduce(*unit);
      unit->reduced = unit->asked = false;
      unit->summed.reset();
      unit->gathered.reset();
      unit->places.clear();
    }
    order_.clear();
    input_.reset();
    backward_ = false;
  }

  void step() override {
    if (plan_.clips) clip();
    if (state_.empty()) {
      for (const Tensor& leaf : leaves_) {
        if (plan_.fused) state_.push_back(block("step counter", 4));
        make_state(local(leaf) * plan_.kept);
      }
    }
    std::vector<Block> roots;
    if (!plan_.fused) {
      for (const Tensor& leaf : leaves_) roots.push_back(block("square root", local(leaf) * plan_.kept));
    }
    roots.clear();
    grads_.clear();
  }

 private:
  // torch.nn.utils.clip_grad_norm_ over DTensors: a number for each local gradient, by way of a sum for each 65,536
  // elements; all in one tensor, whose squares are added up over the ranks in a tensor of its own; the roots of those,
  // and the norm. The coefficient is max_norm * (1 / (norm + 1e-6)), then clamped.
  void clip() {
    norm_.reset();
    const std::int64_t one = plan_.kept;
    const auto count = static_cast<std::int64_t>(leaves_.size());
    std::int64_t longest = 0;
    for (const Tensor& leaf : leaves_) longest = std::max(longest, local(leaf));
    std::vector<Block> norms;
    {
      const Block sums = block("sums by chunk", 4 * count * ((longest + 65535) / 65536));
      std::vector<Block> made;
      for (std::int64_t at = 0; at < count; ++at) made.push_back(block("norm of a shard", one));
      for (std::size_t at = 0; at < leaves_.size(); ++at) {
        norms.push_back(local(leaves_[at]) > 0 ? made[at] : block("norm of no rows, a zero", one));
      }
    }
    Block norm;
    {
      const Block stacked = block("norms of shards", one * count);
      Block squares = block("their squares", one * count);
      Block all = block("their sums over the ranks", one * count);
      const Block roots = block("roots of those", one * count);
      squares.reset();
      all.reset();
      norm = block("norm", one);
      norms.clear();
    }
    Block sum = block("norm, not zero", one);
    Block reciprocal = block("its reciprocal", one);
    const Block coefficient = block("coefficient", one);
    sum.reset();
    reciprocal.reset();
    const Block clamped = block("coefficient, clamped", one);
    if (plan_.keeps_norm) norm_ = std::move(norm);
  }

  void reduce(Unit& unit) {
    unit.reduced = true;
    for (const Tensor& leaf : unit.leaves) {
      if (sums_.count(leaf->parameter) > 0) leaf->grad.reset();
    }
    free_whole(unit);
    if (!reduces_) {
      if (plan_.reduced == plan_.width()) return;
      for (const Tensor& leaf : unit.leaves) {
        if (!leaf->grad) continue;
        sums_[leaf->parameter] = block("unreduced", leaf->elements() * plan_.reduced);
        leaf->grad.reset();
      }
      return;
    }
    Tensors with;
    for (const Tensor& leaf : unit.leaves) {
      if (leaf->grad || sums_.count(leaf->parameter) > 0) with.push_back(leaf);
    }
    if (with.empty()) return;
    input_.reset();
    unit.summed.reset();
    scatter(unit, with);
  }

  void scatter(Unit& unit, const Tensors& with) {
    Block input = block("reduce-scatter input", all_padded(with) * ranks_ * plan_.reduced);
    std::int64_t table = 6 * static_cast<std::int64_t>(with.size()) + 2;
    for (const Tensor& leaf : with) table += (padded(leaf) * plan_.reduced + 2047) / 2048;
    passing("table", 8 * table);
    for (const Tensor& leaf : with) {
      if (leaf != with.back()) drop(leaf);
    }
    Block output = block("reduce-scatter output", all_padded(with) * plan_.reduced);
    if (plan_.replicate > 1) unit.summed = output;
    if (plan_.kept != plan_.reduced) output = block("gradients, cast", all_padded(with) * plan_.kept);
    for (const Tensor& leaf : with) grads_.try_emplace(leaf->parameter, output);
    output.reset();
    drop(with.back());
    input_ = std::move(input);
  }

  void drop(const Tensor& leaf) {
    leaf->grad.reset();
    sums_.erase(leaf->parameter);
  }
};

}  // namespace

std::unique_ptr<Runtime> make_fsdp(const Plan& plan, Net& net) { return std::make_unique<Fsdp>(plan, net); }

}  // namespace eager
