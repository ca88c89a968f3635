// DeepSpeed ZeRO-3 (runtime/zero/stage3.py, partition_parameters.py, parameter_offload.py and
// partitioned_param_coordinator.py), as its Python reads: a registry of parameters in flight whose handles own their
// buffers, a queue of what the recorded trace has next, and reference counts.
#include <algorithm>
#include <deque>
#include <set>
#include <stdexcept>

#include "eager/runtime.h"

namespace eager {
namespace {

struct Handle {
  Tensors members;
  Block flat;  // Several: they are copied out of it at the first wait.
  bool complete = false;
};

class Stage3 : public Runtime {
 public:
  Stage3(const Plan& plan, Net& net) : Runtime(plan, net) {
    for (std::size_t at = 0; at < net.parameters.size(); ++at) {
      Tensors& own = own_[net.module_of[at]];
      if (std::find(own.begin(), own.end(), net.parameters[at]) == own.end()) own.push_back(net.parameters[at]);
    }
    std::int64_t sum = 0;
    Tensors members;
    for (const Tensor& leaf : leaves_) {
      part_ += part(leaf);
      sum += part(leaf);
      members.push_back(leaf);
      if (sum < plan.sub_group && leaf != leaves_.back()) continue;
      groups_.push_back({sum, std::move(members)});
      sum = 0;
      members.clear();
    }
  }

  // They are there together; those that are tied elsewhere go later than the others.
  void construct(int module) override {
    std::deque<Block> whole;
    for (std::size_t at = 0; at < net_.parameters.size(); ++at) {
      if (net_.module_of[at] == module)
        whole.push_back(block("whole parameter", bytes(net_.parameters[at]->elements())));
    }
    for (std::size_t at = 0; at < net_.parameters.size(); ++at) {
      if (net_.module_of[at] != module) continue;
      const bool own = net_.parameters[at]->parameter == static_cast<int>(at);
      (own ? parts_ : tied_).push_back(block("partition", bytes(part(net_.parameters[at]))));
      whole.pop_front();
    }
  }

  void initialise() override {
    tied_.clear();  // When Python collects garbage.
    make_overflow_buffer();
    tracker_ = block("overflow tracker", 1);
    barrier_ = block("barrier", 1);
    parts_.clear();  // Defragmented through the host.
    flat_ = block("partitions", bytes(part_));
    {
      Block cast;  // Rebound by the next sub-group's.
      for (const Group& group : groups_) {
        if (plan_.mixed()) cast = block("master before the clone", 4 * group.elements);
        masters_.push_back(block("master", 4 * group.elements));
      }
    }
    std::int64_t largest = 0;
    for (const Group& group : groups_) largest = std::max(largest, group.elements);
    barrier_ = block("barrier", 1);
    passing("zero gradients", 4 * largest);
    barrier_ = block("barrier", 1);
    bucket_ = block("bucket", bytes(plan_.bucket));
    gradients_ = block("gradient partitions", bytes(part_));
    for (const Tensor& leaf : leaves_) passing("gather for the hook", bytes(part(leaf) * plan_.world));
  }

  [[nodiscard]] bool wraps_tensors(int) const override { return true; }

  // reset_step.
  void forward_begins() override {
    drop_in_flight();
    if (mode_ != Mode::Complete) compare(order_.size());
    if (mode_ == Mode::Record) {
      for (std::size_t step = 0; step < order_.size(); ++step) {
        for (const Tensor& leaf : own(order_[step])) trace_.push_back({leaf, static_cast<int>(step)});
      }
      compare(trace_.size());
      compare(trace_.size());
      mode_ = Mode::Complete;
    } else if (mode_ == Mode::Invalid) {
      mode_ = Mode::Record;
    }
    queue_.assign(trace_.begin(), trace_.end());
    latest_.clear();
    step_ = 0;
    available_ = 0;
  }

  void pre_forward(int module) override { fetch(module); }
  void post_forward(int module) override { release(module); }
  void pre_backward(int module) override {
    if (std::find(open_.begin(), open_.end(), module) == open_.end()) open_.push_back(module);
    fetch(module);
  }
  void post_backward(int module) override {
    std::erase(open_, module);
    release(module);
  }

  void ready(const Tensor& leaf) override {
    const std::int64_t size = leaf->elements();
    if (filled_ > 0 && filled_ + size > plan_.bucket) flush();
    filled_ += size;
    waiting_.push_back(leaf);
    if (size <= plan_.bucket) leaf->grad.reset();
  }

  void backward_ends(bool) override {
    flush();
    for (; !open_.empty(); open_.pop_back()) {
      for (const Tensor& leaf : own(open_.back())) {
        users_[leaf->parameter].erase(open_.back());
        if (!persistent(leaf)) let_go(leaf);
      }
    }
  }

  void step() override {
    for (const Tensor& leaf : leaves_) {
      if (in_flight_.count(leaf->parameter) > 0) wait(leaf);
      users_[leaf->parameter].clear();
      let_go(leaf);
    }
    for (const Group& group : groups_) measure(group);
    hold_norms(8, groups_.size());
    const bool first = state_.empty();
    for (const Group& group : groups_) {
      Block gradient;
      if (group.members.size() > 1) gradient = block("flat gradient", bytes(group.elements));
      if (plan_.mixed()) gradient = block("gradient in fp32", 4 * group.elements);
      if (first) make_state(4 * group.elements);
      if (!plan_.fused) passing("square root", 4 * group.elements);
    }
    gather_persistent();
    let_go_of_norms();
  }

 private:
  enum class Mode { Invalid, Record, Complete };
  struct Group {
    std::int64_t elements;
    Tensors members;
  };
  struct Use {
    Tensor leaf;
    int step;
  };

  [[nodiscard]] std::int64_t part(const Tensor& leaf) const {
    return (leaf->elements() + plan_.world - 1) / plan_.world;
  }
  [[nodiscard]] bool persistent(const Tensor& leaf) const { return leaf->elements() <= plan_.persistence; }
  // By ds_id.
  [[nodiscard]] Tensors own(int module) {
    Tensors list = own_[module];
    std::sort(list.begin(), list.end(), [](const Tensor& a, const Tensor& b) { return a->parameter < b->parameter; });
    return list;
  }
  [[nodiscard]] bool away(const Tensor& leaf) { return !leaf->storage && in_flight_.count(leaf->parameter) == 0; }

  void compare(std::size_t numbers) {
    passing("length of a list", 8);
    passing("list", 8 * static_cast<std::int64_t>(numbers));
  }

  void measure(const Group& group) {
    for (const Tensor& leaf : group.members) {
      const Block wide = block("gradient in fp64", 8 * part(leaf));
      of_gradients_.push_back(block("norm of a gradient", 8));
    }
    combine_norms(8, 8);
    of_gradients_.clear();
  }

  void fetch(int module) {
    if (mode_ == Mode::Complete && order_.at(static_cast<std::size_t>(step_)) != module) {
      throw std::logic_error("the trace does not repeat");
    }
    if (mode_ == Mode::Record) order_.push_back(module);
    const Tensors asked = own(module);
    Tensors missing;
    for (const Tensor& leaf : asked) {
      if (away(leaf)) missing.push_back(leaf);
    }
    if (!missing.empty()) gather(missing);
    for (const Tensor& leaf : asked) {
      users_[leaf->parameter].insert(module);
      if (in_flight_.count(leaf->parameter) > 0) wait(leaf);
    }
    if (mode_ == Mode::Complete) {
      pop(asked);
      if (plan_.prefetch > 0) prefetch();
    }
    ++step_;
  }

  [[nodiscard]] int latest(const Tensor& leaf) const {
    const auto found = latest_.find(leaf->parameter);
    return found == latest_.end() ? -1 : found->second;
  }

  void pop(const Tensors& asked) {
    std::set<int> expected;
    for (const Tensor& leaf : asked) {
      if (latest(leaf) < step_) expected.insert(leaf->parameter);
    }
    std::set<int> popped;
    while (!queue_.empty() && popped.size() < expected.size()) {
      popped.insert(queue_.front().leaf->parameter);
      latest_[queue_.front().leaf->parameter] = queue_.front().step;
      queue_.pop_front();
    }
    if (popped != expected) throw std::logic_error("tracing error");
  }

  void prefetch() {
    const std::int64_t most = std::min(plan_.max_live - available_, plan_.prefetch);
    Tensors ahead;
    std::int64_t elements = 0;
    while (!queue_.empty() && elements < most) {
      const Use use = queue_.front();
      queue_.pop_front();
      latest_[use.leaf->parameter] = std::max(latest(use.leaf), use.step);
      if (!away(use.leaf) || std::find(ahead.begin(), ahead.end(), use.leaf) != ahead.end()) continue;
      ahead.push_back(use.leaf);
      elements += use.leaf->elements();
    }
    if (!ahead.empty()) gather(ahead);
  }

  // all_gather_coalesced.
  void gather(Tensors members) {
    std::sort(members.begin(), members.end(),
              [](const Tensor& a, const Tensor& b) { return a->parameter < b->parameter; });
    const auto handle = std::make_shared<Handle>();
    handle->members = members;
    std::int64_t aligned = 0;
    for (const Tensor& leaf : members) {
      aligned += part(leaf) * plan_.world;
      available_ += leaf->elements();
      in_flight_[leaf->parameter] = handle;
    }
    if (plan_.world == 1) {
      for (const Tensor& leaf : members) leaf->storage = flat_;
    } else if (members.size() == 1 || plan_.sequential) {
      for (const Tensor& leaf : members) leaf->storage = block("gathered parameter", bytes(part(leaf) * plan_.world));
    } else if (plan_.all_reduce_fetch) {
      const Block sum = block("gather", bytes(aligned));
      for (const Tensor& leaf : members) leaf->storage = sum;
    } else {
      handle->flat = block("gather", bytes(aligned));
    }
  }

  // The handle leaves the registry, then it is waited for, then it may die.
  void wait(const Tensor& leaf) {
    const std::shared_ptr<Handle> handle = in_flight_.at(leaf->parameter);
    in_flight_.erase(leaf->parameter);
    finish(*handle);
  }

  void finish(Handle& handle) {
    if (!handle.complete && handle.flat) {
      for (const Tensor& leaf : handle.members) leaf->storage = block("gathered parameter", bytes(leaf->elements()));
    }
    handle.complete = true;
  }

  void drop_in_flight() {
    for (const Tensor& leaf : leaves_) {
      const auto found = in_flight_.find(leaf->parameter);
      if (found == in_flight_.end()) continue;
      finish(*found->second);
      let_go(leaf);
    }
    in_flight_.clear();
  }

  void let_go(const Tensor& leaf) {
    const auto found = in_flight_.find(leaf->parameter);
    const bool arrived = found == in_flight_.end() || found->second->complete;
    if (!leaf->storage || !arrived || !users_[leaf->parameter].empty()) return;
    leaf->storage.reset();
    available_ -= leaf->elements();
  }

  void release(int module) {
    std::set<int> released;
    if (mode_ == Mode::Complete) {
      const auto [known, fresh] = decided_.try_emplace({module, step_});
      if (fresh) known->second = decide(module);
      released = known->second;
    } else {
      for (const Tensor& leaf : own(module)) released.insert(leaf->parameter);
    }
    for (const Tensor& leaf : own(module)) {
      users_[leaf->parameter].erase(module);
      if (released.count(leaf->parameter) > 0) let_go(leaf);
    }
  }

  // Not what persists, nor what the prefetcher has passed over, nor what comes back within the reuse distance.
  [[nodiscard]] std::set<int> decide(int module) {
    std::set<int> released;
    for (const Tensor& leaf : own(module)) {
      if (!persistent(leaf) && latest(leaf) <= step_) released.insert(leaf->parameter);
    }
    std::int64_t passed = 0;
    for (std::size_t at = static_cast<std::size_t>(step_); at < order_.size() && passed < plan_.reuse; ++at) {
      for (const Tensor& leaf : own(order_[at])) {
        released.erase(leaf->parameter);
        passed += leaf->elements();
      }
    }
    return released;
  }

  // All of them are made before the first is gathered; with one rank several are their partitions.
  void gather_persistent() {
    Tensors list;
    for (const Tensor& leaf : leaves_) {
      if (persistent(leaf)) list.push_back(leaf);
    }
    const bool alias = plan_.world == 1 && list.size() > 1 && !plan_.sequential;
    for (const Tensor& leaf : list) {
      leaf->storage = alias ? flat_ : block("persistent parameter", bytes(part(leaf) * plan_.world));
    }
  }

  void flush() {
    if (!plan_.reduce_scatter && filled_ <= plan_.bucket) {
      reduce_in_bucket();
    } else {
      reduce_scattered();
    }
    for (const Tensor& leaf : waiting_) leaf->grad.reset();
    waiting_.clear();
    filled_ = 0;
  }

  // Where this rank's part reaches behind the parameter's end it is copied, padded.
  void reduce_in_bucket() {
    std::vector<Block> padded;
    if (plan_.world > 1 && filled_ > 0) padded.push_back(block("scaled bucket", bytes(filled_)));
    for (const Tensor& leaf : waiting_) {
      if (part(leaf) * (plan_.rank + 1) > leaf->elements()) {
        padded.push_back(block("padded gradient", bytes(part(leaf))));
      }
    }
  }

  // Padded, interleaved by rank; one gradient that divides evenly goes as it is.
  void reduce_scattered() {
    std::int64_t aligned = 0;
    for (const Tensor& leaf : waiting_) aligned += part(leaf) * plan_.world;
    const bool direct = waiting_.size() == 1 && waiting_[0]->elements() % plan_.world == 0;
    if (waiting_.empty() || direct) return;
    Tensors sorted = waiting_;  // By ds_id.
    std::sort(sorted.begin(), sorted.end(),
              [](const Tensor& a, const Tensor& b) { return a->parameter < b->parameter; });
    std::vector<Block> padding;  // Behind each end, until all was sent.
    for (std::int64_t rank = 0; rank < plan_.world; ++rank) {
      for (const Tensor& leaf : sorted) {
        const std::int64_t real = std::max<std::int64_t>(0, leaf->elements() - part(leaf) * rank);
        if (real < part(leaf)) padding.push_back(block("padding of gradients", bytes(part(leaf) - real)));
      }
    }
    const Block interleaved = block("interleaved gradients", bytes(aligned));
    padding.clear();
  }

  std::vector<Block> parts_;  // As they were cut.
  std::vector<Block> tied_;
  std::map<int, Tensors> own_;          // By module.
  std::map<int, std::set<int>> users_;  // Modules that are using a parameter.
  std::vector<Group> groups_;
  std::int64_t part_ = 0;
  Block flat_;
  Block gradients_;
  Block bucket_;
  std::vector<Block> masters_;
  Block tracker_;
  Block barrier_;
  Tensors waiting_;
  std::int64_t filled_ = 0;

  Mode mode_ = Mode::Invalid;
  int step_ = 0;
  std::int64_t available_ = 0;
  std::vector<int> order_;
  std::vector<Use> trace_;
  std::deque<Use> queue_;
  std::map<int, int> latest_;
  std::map<std::pair<int, int>, std::set<int>> decided_;
  std::map<int, std::shared_ptr<Handle>> in_flight_;
  std::vector<int> open_;  // Modules whose backward has begun.
};

}  // namespace

std::unique_ptr<Runtime> make_stage3(const Plan& plan, Net& net) { return std::make_unique<Stage3>(plan, net); }

}  // namespace eager
