// DeepSpeed ZeRO-3 (runtime/zero/stage3.py, partition_parameters.py, parameter_offload.py), gathering and releasing
// module by module.
#include <algorithm>
#include <set>

#include "eager/runtime.h"

namespace eager {
namespace {

class Stage3 : public Runtime {
 public:
  Stage3(const Plan& plan, Net& net) : Runtime(plan, net) {
    for (std::size_t at = 0; at < net.parameters.size(); ++at) own_[net.module_of[at]].push_back(net.parameters[at]);
    for (const Tensor& leaf : leaves_) {
      part_ += part(leaf);
      largest_ = std::max(largest_, part(leaf));
    }
    std::int64_t sum = 0;
    std::size_t count = 0;
    for (const Tensor& leaf : leaves_) {
      sum += part(leaf);
      ++count;
      if (sum < plan.sub_group && leaf != leaves_.back()) continue;
      groups_.push_back({sum, count});
      sum = 0;
      count = 0;
    }
  }

  void initialise() override {
    std::vector<Block> parts;
    for (const Tensor& leaf : leaves_) {
      const Block whole = block("whole parameter", bytes(leaf->elements()));
      parts.push_back(block("partition", bytes(part(leaf))));
    }
    parts.clear();  // Defragmented through the host.
    flat_ = block("partitions", bytes(part_));
    gradients_ = block("gradient partitions", bytes(part_));
    bucket_ = block("bucket", bytes(plan_.bucket));
    if (plan_.mixed()) make_masters();
    std::int64_t largest = 0;
    for (const Group& group : groups_) largest = std::max(largest, group.elements);
    passing("zero gradients", 4 * largest);
    for (const Tensor& leaf : leaves_) passing("gather for the hook", bytes(part(leaf) * plan_.world));
  }

  [[nodiscard]] bool wraps_tensors() const override { return true; }
  void forward_begins() override { complete_ = forwards_++ > 0; }

  void pre_forward(int module) override { fetch(module); }
  void post_forward(int module) override { release(module); }
  void pre_backward(int module) override { fetch(module); }
  void post_backward(int module) override { release(module); }

  void ready(const Tensor& leaf) override {
    const std::int64_t size = leaf->elements();
    if (filled_ + size > plan_.bucket) flush();
    filled_ += size;
    waiting_.push_back(leaf);
    if (size <= plan_.bucket) leaf->grad.reset();
  }

  void backward_ends(bool) override { flush(); }

  void step() override {
    for (const Tensor& leaf : leaves_) leaf->storage.reset();
    passing("norm", 8 * largest_);
    for (std::size_t k = 0; k < groups_.size(); ++k) passing("norm", 8);
    const bool first = state_.empty();
    for (const Group& group : groups_) {
      Block gradient;
      if (group.parameters > 1) gradient = block("flat gradient", bytes(group.elements));
      if (plan_.mixed()) gradient = block("gradient in fp32", 4 * group.elements);
      if (first) make_state(4 * group.elements);
    }
    for (const Tensor& leaf : leaves_) {
      if (persistent(leaf)) gather({leaf});
    }
  }

 private:
  struct Group {
    std::int64_t elements;
    std::size_t parameters;
  };

  [[nodiscard]] std::int64_t part(const Tensor& leaf) const {
    return (leaf->elements() + plan_.world - 1) / plan_.world;
  }
  [[nodiscard]] bool persistent(const Tensor& leaf) const { return leaf->elements() <= plan_.persistence; }

  void make_masters() {
    Block cast;  // Rebound when the next sub-group's master is there.
    for (const Group& group : groups_) {
      Block made = block("master before the clone", 4 * group.elements);
      masters_.push_back(block("master", 4 * group.elements));
      cast = std::move(made);
    }
  }

  void fetch(int module) {
    Tensors missing;
    for (const Tensor& leaf : own_[module]) {
      users_[leaf->parameter].insert(module);
      if (!leaf->storage) missing.push_back(leaf);
    }
    if (!missing.empty()) gather(missing);
  }

  void release(int module) {
    for (const Tensor& leaf : own_[module]) {
      std::set<int>& users = users_[leaf->parameter];
      if (users.erase(module) == 0 || !users.empty()) continue;
      if (!complete_ || !persistent(leaf)) leaf->storage.reset();
    }
  }

  // One parameter is used where it arrives; several are copied out of the flat buffer.
  void gather(const Tensors& wanted) {
    std::int64_t aligned = 0;
    for (const Tensor& leaf : wanted) aligned += part(leaf) * plan_.world;
    const Block flat = block("gather", bytes(aligned));
    if (wanted.size() == 1) {
      wanted[0]->storage = flat;
      return;
    }
    for (const Tensor& leaf : wanted) leaf->storage = block("gathered parameter", bytes(leaf->elements()));
  }

  // Padded, interleaved by rank; one gradient that divides evenly goes as it is.
  void flush() {
    std::int64_t aligned = 0;
    for (const Tensor& leaf : waiting_) aligned += part(leaf) * plan_.world;
    const bool direct = waiting_.size() == 1 && waiting_[0]->elements() % plan_.world == 0;
    if (!waiting_.empty() && !direct) passing("interleaved gradients", bytes(aligned));
    for (const Tensor& leaf : waiting_) leaf->grad.reset();
    waiting_.clear();
    filled_ = 0;
  }

  std::map<int, Tensors> own_;          // By module.
  std::map<int, std::set<int>> users_;  // Modules that are using a parameter.
  std::vector<Group> groups_;
  std::int64_t part_ = 0;
  std::int64_t largest_ = 0;
  Block flat_;
  Block gradients_;
  Block bucket_;
  std::vector<Block> masters_;
  Tensors waiting_;
  std::int64_t filled_ = 0;
  int forwards_ = 0;
  bool complete_ = false;
};

}  // namespace

std::unique_ptr<Runtime> make_stage3(const Plan& plan, Net& net) { return std::make_unique<Stage3>(plan, net); }

}  // namespace eager
