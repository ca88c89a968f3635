// FullyShardedDataParallel (torch/distributed/fsdp/_runtime_utils.py, _flat_param.py), as its Python reads: each unit
// has one parameter, whose storage comes and goes, and modules compute with views that torch.split makes of it.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "eager/runtime.h"

namespace eager {
namespace {

struct Flat {
  int module = 0;
  std::vector<int> breadth;  // Modules that it takes, breadth first.
  Tensors originals;         // By piece; none: padding.
  Sizes numels;
  std::int64_t total = 0;
  std::int64_t shard = 0;
  std::int64_t kept = 0;  // Bytes of an element of the shard.
  bool trains = false;
  Tensor parameter = {};    // FlatParameter, while it is whole.
  Block local = {};         // _local_shard
  Block stale = {};         // What views show since accelerate has cast it.
  Block low = {};           // _mp_shard
  Block whole = {};         // _full_param_padded
  Block moved = {};         // On its way from the host: flat_param.data,
  Block shown = {};         // and what views show.
  Block reduced = {};       // _saved_grad_shard, then `.grad`.
  bool summed = false;      // The parameter's own gradient has been reduced, in the shard's dtype.
  bool views_have = false;  // Views have a `.grad`.
  bool prefetched = false;
  bool needs_forward = false;
  bool needs_backward = false;
  bool ran = false;  // _ran_pre_backward_hook
  bool resharded = true;
  std::int64_t index = -1;  // _post_forward_index
};

enum class State { Forward, Pre, Post, None };

// handle.__init__, shard(), and what is done to modules before.
class Flattened : public Runtime {
 public:
  Flattened(const Plan& plan, Net& net) : Runtime(plan, net), ranks_(plan.world / plan.replicate) {
    for (const std::vector<int>& modules : plan.units) add(modules.front());
    std::sort(units_.begin(), units_.end(), [](const Flat& a, const Flat& b) { return a.module < b.module; });
    for (std::size_t at = 0; at < units_.size(); ++at) units_[at].parameter->parameter = static_cast<int>(at);
  }

  // _recursive_wrap: children first.
  void initialise() override {
    for (const int module : plan_.order) {
      if (Flat* unit = unit_of(module)) flatten(*unit);
    }
    for (Flat& unit : units_) widen(unit);
  }

 protected:
  [[nodiscard]] Flat* unit_of(int module) {
    const auto found = std::find_if(units_.begin(), units_.end(), [&](const Flat& f) { return f.module == module; });
    return found == units_.end() ? nullptr : &*found;
  }
  [[nodiscard]] std::int64_t rank() const { return plan_.rank % ranks_; }
  [[nodiscard]] bool whole() const { return ranks_ == 1; }  // NO_SHARD
  [[nodiscard]] std::int64_t made() const { return dsplan::bytes_per_element(plan_.flat.made); }

  // The part of a piece that this rank has.
  [[nodiscard]] std::int64_t in_shard(const Flat& unit, std::size_t piece) const {
    std::int64_t from = 0;
    for (std::size_t before = 0; before < piece; ++before) from += unit.numels[before];
    const std::int64_t begin = unit.shard * rank();
    return std::min(from + unit.numels[piece], begin + unit.shard) - std::max(from, begin);
  }
  [[nodiscard]] bool trained(const Tensor& original) const {
    return plan_.flat.frozen.empty() || !plan_.flat.frozen[static_cast<std::size_t>(original->parameter)];
  }

  std::int64_t ranks_;
  std::vector<Flat> units_;  // In the order of modules.

 private:
  // _init_flat_param_and_metadata.
  void add(int module) {
    Flat unit;
    unit.module = module;
    const auto own = static_cast<int>(
        std::find_if(plan_.units.begin(), plan_.units.end(), [&](const auto& u) { return u.front() == module; }) -
        plan_.units.begin());
    const auto takes = [&](int other) { return plan_.unit_of[static_cast<std::size_t>(other)] == own; };
    unit.breadth.push_back(module);
    for (std::size_t at = 0; at < unit.breadth.size(); ++at) {
      for (std::size_t child = 1; child < plan_.flat.parents.size(); ++child) {
        const bool inside = plan_.flat.parents[child] == unit.breadth[at];
        if (inside && takes(static_cast<int>(child))) unit.breadth.push_back(static_cast<int>(child));
      }
    }
    const auto pad = [&](std::int64_t multiple) {
      if (unit.total % multiple == 0) return;
      unit.originals.push_back(nullptr);
      unit.numels.push_back(multiple - unit.total % multiple);
      unit.total += unit.numels.back();
    };
    for (const Tensor& leaf : leaves_) {
      if (!takes(net_.module_of[static_cast<std::size_t>(leaf->parameter)])) continue;
      if (plan_.flat.views) pad(16 / plan_.width());
      unit.originals.push_back(leaf);
      unit.numels.push_back(leaf->elements());
      unit.total += leaf->elements();
      unit.trains = unit.trains || trained(leaf);
    }
    if (plan_.flat.views) pad(whole() ? plan_.world : ranks_);
    unit.shard = (unit.total + ranks_ - 1) / ranks_;
    unit.kept = unit.trains ? plan_.kept : made();
    unit.low = std::make_shared<Storage>(0);
    unit.whole = std::make_shared<Storage>(0);
    unit.parameter = std::make_shared<TensorImpl>();
    unit.parameter->storage = whole() ? unit.low : unit.whole;
    unit.parameter->sizes = {unit.total};
    unit.parameter->strides = {1};
    unit.parameter->dtype = plan_.dtype;
    unit.parameter->requires_grad = unit.trains;
    unit.parameter->hooked = true;
    units_.push_back(std::move(unit));
  }

  void flatten(Flat& unit) {
    if (plan_.flat.on_host) move(unit);
    if (plan_.flat.sends) send(unit);
    std::vector<Block> pads;
    for (std::size_t at = 0; at < unit.originals.size(); ++at) {
      if (unit.originals[at]) continue;
      const Block ones = block("ones", unit.numels[at] * made());
      pads.push_back(block("padding", unit.numels[at] * made()));
    }
    Block flat = block("flat parameter", unit.total * made());
    pads.clear();
    const std::int64_t real = std::min(unit.shard, unit.total - std::min(unit.total, unit.shard * rank()));
    if (whole()) unit.local = flat;
    if (real > 0 && !whole()) unit.local = block("chunk", real * made());
    if (real < unit.shard) unit.local = block("chunk, padded", unit.shard * made());
    flat.reset();
    if (plan_.flat.offloads && whole() && !plan_.flat.views) unit.stale = unit.local;
    if (plan_.flat.offloads) unit.local.reset();
    for (const Tensor& original : unit.originals) {
      if (original) original->storage.reset();
    }
  }

  // _move_module_to_device: all parameters, then all buffers.
  void move(const Flat& unit) {
    for (const int module : unit.breadth) {
      for (const Tensor& leaf : unit.originals) {
        const bool its = leaf && net_.module_of[static_cast<std::size_t>(leaf->parameter)] == module;
        if (its) leaf->storage = block("whole parameter", leaf->elements() * made());
      }
    }
    for (const int module : unit.breadth) plan_.make_buffers(net_, module);
  }

  // _sync_module_params_and_buffers: buffers once, though the call comes twice where there are replicas.
  void send(const Flat& unit) {
    for (int call = 0; call < (plan_.replicate > 1 && !whole() ? 2 : 1); ++call) {
      std::map<DType, std::pair<int, std::int64_t>> of_type;
      std::vector<DType> order;
      const auto add = [&](DType type, std::int64_t bytes) {
        auto& [count, sum] = of_type[type];
        if (count++ == 0) order.push_back(type);
        sum += bytes;
      };
      for (std::size_t at = 0; at < net_.buffers.size(); ++at) {
        const Tensor& buffer = net_.buffers[at];
        if (!buffer || !is_inside(plan_.flat.buffer_modules[at], unit.module) || !sent_.insert(at).second) continue;
        add(buffer->dtype, buffer->elements() * dsplan::bytes_per_element(buffer->dtype));
      }
      for (const Tensor& leaf : unit.originals) {
        if (leaf) add(plan_.flat.made, leaf->elements() * made());
      }
      Block before;
      for (const DType type : order) {
        const auto [count, sum] = of_type[type];
        Block flat;
        if (count > 1) flat = block("states to send", sum);
        before = std::move(flat);
      }
    }
  }
  [[nodiscard]] bool is_inside(int module, int around) const {
    while (module > around) module = plan_.flat.parents[static_cast<std::size_t>(module)];
    return module == around;
  }

  // accelerate's prepare_model casts what is trained.
  void widen(Flat& unit) {
    if (unit.kept == made() || plan_.flat.offloads) return;
    Block wide = block("shard in fp32", unit.shard * unit.kept);
    if (plan_.flat.views || whole()) unit.stale = unit.local;
    unit.local = std::move(wide);
  }

  std::set<std::size_t> sent_;
};

// What unshards and reshards, and what is gathered ahead.
class Gathered : public Flattened {
 public:
  using Flattened::Flattened;

  // _register_post_backward_reshard_only_hook.
  [[nodiscard]] bool hooks_inputs(int module) const override {
    return std::any_of(units_.begin(), units_.end(),
                       [&](const Flat& unit) { return unit.module == module && !unit.trains; });
  }
  void input_has_gradient(int module) override { reshard(*unit_of(module), State::Post); }

 protected:
  void root_pre_forward() {
    if (!std::exchange(started_, true)) lazy_init();
    for (Flat& unit : units_) {
      if (plan_.flat.prefetches_forward) unit.needs_forward = true;
      if (plan_.flat.prefetches_forward) unit.prefetched = false;
      // _reset_flat_param_grad_info_if_needed
      if (plan_.flat.views && !unit.views_have && whole()) unit.parameter->grad.reset();
      if (plan_.flat.views && !unit.views_have && !unit.parameter->grad) unit.reduced.reset();
    }
  }

  void lazy_init() {
    for (Tensor& buffer : net_.buffers) {
      const bool floats = buffer && (buffer->dtype == DType::Float32 || buffer->dtype == DType::BFloat16);
      if (!plan_.flat.casts_buffers || !floats || buffer->dtype == plan_.dtype) continue;
      const Doing doing("buffer, cast");
      buffer = empty(buffer->sizes, plan_.dtype);
    }
    for (const Flat& unit : units_) {
      if (mixes(unit)) passing("_mp_shard", bytes(unit.shard));
      if (!mixes(unit) && whole()) unit.parameter->storage = unit.local;
      if (whole()) continue;
      passing("_full_param_padded", bytes(unit.shard * ranks_));
      if (mixes(unit)) passing("_full_prec_full_param_padded", unit.shard * ranks_ * unit.kept);
    }
  }

  [[nodiscard]] bool mixes(const Flat& unit) const { return unit.kept != plan_.width(); }

  void unshard(Flat& unit, State state) {
    if (whole()) {  // flat_param.data is what was cast, or the shard.
      pre_unshard(unit);
      if (!plan_.flat.views) unit.stale.reset();
      unit.resharded = false;
      if (state == State::Forward) use_unsharded_views(unit);
      return;
    }
    if (!unit.whole->is_there() || plan_.flat.offloads) pre_unshard(unit);
    if (!unit.whole->is_there()) {
      const Doing doing("all-gather output");
      unit.whole->make(bytes(unit.shard * ranks_));
    }
    unit.moved.reset();
    unit.resharded = false;
    if (state == State::Forward) use_unsharded_views(unit);
    unit.low->free();
  }

  void pre_unshard(Flat& unit) {
    if (mixes(unit)) {
      const Doing doing("_mp_shard");
      unit.low->make(bytes(unit.shard));
      if (plan_.flat.offloads) passing("shard on the device", unit.shard * unit.kept);
    } else if (plan_.flat.offloads) {
      unit.moved = block("shard on the device", unit.shard * unit.kept);
      if (plan_.flat.views) unit.shown = unit.moved;
    }
  }

  // torch.split, and a view of each piece.
  void use_unsharded_views(const Flat& unit) {
    const auto node = make_node("split", {unit.parameter});
    if (node) {
      node->outputs = static_cast<std::uint32_t>(unit.numels.size());
      node->backward = [numels = unit.numels, total = unit.total, dtype = plan_.dtype](Tensors& g,
                                                                                       Tensors&) -> Tensors {
        Tensors zeros;
        g.resize(numels.size());
        for (std::size_t at = 0; at < numels.size(); ++at) {
          if (!g[at]) zeros.push_back(empty({numels[at]}, dtype));
        }
        return {empty({total}, dtype)};
      };
    }
    for (std::size_t at = 0; at < unit.numels.size(); ++at) {
      const Tensor piece = strided_view(unit.parameter, {unit.numels[at]}, {1});
      set_history(piece, node, static_cast<std::uint32_t>(at));
      if (unit.originals[at]) put(unit.originals[at], view(piece, unit.originals[at]->sizes));
    }
  }

  // Under all its names.
  void put(const Tensor& original, const Tensor& with) {
    auto& names = names_[original->parameter];
    if (names.empty()) {
      for (std::size_t at = 0; at < net_.parameters.size(); ++at) {
        if (net_.parameters[at] == original) names.push_back(at);
      }
    }
    for (const std::size_t at : names) net_.parameters[at] = with;
  }

  void use_sharded_views(Flat& unit) const {
    unit.shown.reset();
    if (!whole() || plan_.flat.views) unit.stale.reset();
  }

  void prefetch(const Flat& unit, State state) {
    Flat* next = nullptr;
    if (state == State::None) return;
    if (state == State::Forward) {
      const auto found = std::find(forward_order_.begin(), forward_order_.end(), &unit);
      if (plan_.flat.prefetches_forward && found + 1 != forward_order_.end()) next = *(found + 1);
      if (next == nullptr || !next->needs_forward) return;
    } else {
      const bool now = plan_.flat.prefetches_backward == (state == State::Pre ? 0 : 1);
      if (now && unit.index > 0) next = backward_order_[static_cast<std::size_t>(unit.index - 1)];
      if (next == nullptr || !next->needs_backward) return;
    }
    if (next->prefetched) return;
    unshard(*next, state);
    next->prefetched = true;
  }

  void reshard(Flat& unit, State state) {
    use_sharded_views(unit);
    unit.resharded = true;
    if (whole()) unit.low->free();
    if (reduces_ || plan_.flat.reshards) unit.whole->free();
    unit.prefetched = false;
    prefetch(unit, state);
  }

  [[nodiscard]] bool has_trained_views(const Flat& unit) const {
    for (std::size_t at = 0; at < unit.originals.size(); ++at) {
      if (unit.originals[at] && trained(unit.originals[at]) && in_shard(unit, at) > 0) return true;
    }
    return false;
  }

  std::vector<Flat*> forward_order_;
  std::vector<Flat*> backward_order_;
  bool reduces_ = true;

 private:
  std::map<int, std::vector<std::size_t>> names_;
  bool started_ = false;
};

class Fsdp1 : public Gathered {
 public:
  using Gathered::Gathered;

  [[nodiscard]] bool hooks_outputs(int module) const override {
    return std::any_of(units_.begin(), units_.end(), [&](const Flat& unit) { return unit.module == module; });
  }
  [[nodiscard]] bool around_checkpoints() const override { return true; }

  void pre_forward(int module) override {
    if (module == 0) root_pre_forward();
    Flat* unit = unit_of(module);
    if (unit == nullptr || unit->ran) return;  // Within a checkpoint that runs again, in BACKWARD_PRE.
    if (first_) forward_order_.push_back(unit);
    if (!unit->prefetched) unshard(*unit, State::Forward);
    unit->needs_forward = false;
    prefetch(*unit, State::Forward);
  }

  void post_forward(int module) override {
    Flat* unit = unit_of(module);
    if (unit == nullptr || unit->ran) return;
    if (unit->index <= 0) unit->index = static_cast<std::int64_t>(backward_order_.size());
    backward_order_.push_back(unit);
    const bool skips_views = plan_.flat.views && !plan_.flat.reshards && !whole();
    if (!skips_views) use_sharded_views(*unit);
    if (whole()) unit->low->free();  // post_reshard
    if (module != 0 && plan_.flat.reshards) unit->whole->free();
    unit->prefetched = false;
    if (!grad_enabled()) return;
    unit->ran = false;
    unit->needs_backward = true;
  }

  void pre_backward(int module) override {
    Flat& unit = *unit_of(module);
    if (unit.ran) return;
    if (unit.needs_backward && !unit.prefetched) unshard(unit, State::Pre);
    unit.needs_backward = false;
    prefetch(unit, State::Pre);
    unit.ran = true;
  }

  void backward_begins(bool boundary) override { reduces_ = boundary || plan_.sync_every; }
  // _post_backward_hook, behind AccumulateGrad.
  void ready(const Tensor& leaf) override { reduce(units_[static_cast<std::size_t>(leaf->parameter)]); }

  // _post_backward_final_callback.
  void autograd_ends() override {
    first_ = false;
    backward_order_.clear();
    for (Flat& unit : units_) {
      if (!unit.resharded) reshard(unit, State::None);
      unit.ran = unit.needs_backward = false;
      unit.index = -1;
      if (plan_.flat.offloads && reduces_) unit.reduced.reset();
      if (plan_.flat.offloads && reduces_) unit.parameter->grad.reset();
    }
  }

  void step() override {
    if (plan_.clips) whole() ? clip_whole() : clip();
    const std::vector<std::int64_t> given = given_to_optimizer();
    if (state_.empty() && !plan_.flat.offloads) {
      for (const std::int64_t bytes : given) {
        if (plan_.fused) state_.push_back(block("step counter", 4));
        make_state(bytes);
      }
    }
    std::vector<Block> roots;
    if (!plan_.fused && !plan_.flat.offloads) {
      for (const std::int64_t bytes : given) roots.push_back(block("square root", bytes));
    }
    roots.clear();
    for (Flat& unit : units_) {  // zero_grad
      unit.summed = false;
      unit.views_have = false;
      if (!plan_.flat.views) unit.reduced.reset();
      if (!plan_.flat.views && whole()) unit.parameter->grad.reset();
    }
  }

 private:
  void reduce(Flat& unit) {
    reshard(unit, State::Post);
    if (!reduces_) {
      if (plan_.flat.views) use_unsharded_grad_views(unit);
      return;
    }
    if (whole()) return reduce_no_shard(unit);
    const Tensor computed = std::move(unit.parameter->grad);
    unit.parameter->grad.reset();
    Block cast;
    if (plan_.reduced != plan_.width()) cast = block("gradient, cast", unit.total * plan_.reduced);
    Block padded;
    const std::int64_t all = unit.shard * ranks_;
    if (all != unit.total) padded = block("gradient, padded", all * plan_.reduced);
    Block mine = block("sharded gradient", unit.shard * plan_.reduced);
    if (plan_.reduced != unit.kept) mine = block("sharded gradient, cast", unit.shard * unit.kept);
    if (!unit.reduced) unit.reduced = std::move(mine);
    unit.views_have = has_trained_views(unit);  // _use_sharded_grad_views
  }

  // _reduce_grad_no_shard: `.grad` itself is cast, summed over the ranks and cast back.
  void reduce_no_shard(Flat& unit) {
    const auto cast = [&](std::int64_t width) {
      const Tensor made = std::make_shared<TensorImpl>();
      made->storage = block("gradient, cast", unit.total * width);
      made->sizes = {unit.total};
      made->strides = {1};
      made->dtype = plan_.dtype;
      return made;
    };
    const Tensor computed = unit.parameter->grad;
    const std::int64_t width = std::exchange(unit.summed, true) ? unit.kept : plan_.width();
    const Tensor sent = width == plan_.reduced ? computed : cast(plan_.reduced);
    unit.parameter->grad = plan_.reduced == unit.kept ? sent : cast(unit.kept);
    unit.views_have = true;
  }

  // What has not the parameter's shape and dtype comes into an empty `.grad`.
  void use_unsharded_grad_views(Flat& unit) {
    if (std::exchange(unit.views_have, true)) return;
    for (std::size_t at = 0; at < unit.originals.size(); ++at) {
      const std::int64_t has = in_shard(unit, at);
      if (!unit.originals[at] || has <= 0 || plan_.flat.offloads) continue;
      const bool shaped = whole() || unit.originals[at]->sizes == Sizes{has};
      const bool as_it_is = shaped && unit.kept == plan_.width();
      if (!as_it_is) passing("empty gradient", has * unit.kept);
    }
  }

  // Bytes of each, in the order of model.parameters().
  [[nodiscard]] std::vector<std::int64_t> given_to_optimizer() const {
    std::map<int, std::int64_t> views;
    std::vector<std::int64_t> given;
    for (const Flat& unit : units_) {
      if (!unit.trains) continue;
      if (!plan_.flat.views) given.push_back(unit.shard * unit.kept);
      for (std::size_t at = 0; at < unit.originals.size(); ++at) {
        const std::int64_t has = unit.originals[at] && trained(unit.originals[at]) ? in_shard(unit, at) : 0;
        if (has > 0) views[unit.originals[at]->parameter] = has * unit.kept;
      }
    }
    if (!plan_.flat.views) return given;
    for (const auto& [parameter, bytes] : views) given.push_back(bytes);
    return given;
  }

  // torch.nn.utils.clip_grad_norm_, behind the zero with which FullyShardedDataParallel's begins.
  void clip_whole() {
    if (!zero_) zero_ = block("zero", 4);
    norm_.reset();
    const std::vector<std::int64_t> given = given_to_optimizer();
    const std::int64_t one = plan_.kept;
    const std::int64_t longest = *std::max_element(given.begin(), given.end()) / one;
    const auto count = static_cast<std::int64_t>(given.size());
    std::vector<Block> norms;
    {
      const Block sums = block("sums by chunk", 4 * count * ((longest + 65535) / 65536));
      for (std::int64_t at = 0; at < count; ++at) norms.push_back(block("norm of a gradient", one));
    }
    Block norm;
    {
      const Block stacked = block("norms of gradients", one * count);
      norm = block("norm", one);
    }
    norms.clear();
    Block sum = block("norm, not zero", one);
    Block reciprocal = block("its reciprocal", one);
    const Block coefficient = block("coefficient", one);
    sum.reset();
    reciprocal.reset();
    const Block clamped = block("coefficient, clamped", one);
    if (plan_.keeps_norm) norm_ = std::move(norm);
  }

  // FullyShardedDataParallel.clip_grad_norm_, of gradients on the device or on the host.
  void clip() {
    const std::size_t count = given_to_optimizer().size();
    const bool host = plan_.flat.offloads;
    const auto number = [](const char* what, bool there) { return there ? block(what, 4) : nullptr; };
    if (!zero_) zero_ = block("zero", 4);
    norm_.reset();
    Block local = count > 0 ? nullptr : zero_;
    if (count > 0 && !host) {
      std::vector<Block> norms;
      for (std::size_t at = 0; at < count; ++at) norms.push_back(block("norm of a gradient", 4));
      const Block stacked = block("norms of gradients", 4 * static_cast<std::int64_t>(count));
      norms.clear();
      local = block("norm", 4);
    } else if (count > 0) {
      local = block("norm from the host", 4);
    }
    Block squared = block("norm, squared", 4);
    Block total = block("norm of all ranks", 4);
    squared.reset();
    if (host) total.reset();
    Block sum = number("norm, not zero", !host);
    Block reciprocal = number("its reciprocal", !host);
    const Block coefficient = number("coefficient", !host);
    sum.reset();
    reciprocal.reset();
    const Block clamped = number("coefficient, clamped", !host);
    if (host) return;
    if (plan_.kept != 4) {
      for (std::size_t at = 0; at < count; ++at) passing("coefficient, cast", plan_.kept);
      if (count > 0) total = block("norm, cast", plan_.kept);
    }
    if (plan_.keeps_norm) norm_ = std::move(total);
  }

  Block zero_;
  bool first_ = true;  // No backward has ended yet.
};

}  // namespace

std::unique_ptr<Runtime> make_fsdp1(const Plan& plan, Net& net) { return std::make_unique<Fsdp1>(plan, net); }

}  // namespace eager
