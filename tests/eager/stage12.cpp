// DeepSpeed ZeRO-1 and ZeRO-2 (runtime/zero/stage_1_and_2.py).
#include <algorithm>

#include "eager/runtime.h"

namespace eager {
namespace {

class Stage12 : public Runtime {
 public:
  Stage12(const Plan& plan, Net& net) : Runtime(plan, net) {
    const std::int64_t unit = 2 * plan.world;  // nccl_start_alignment_factor.
    padded_ = (elements_ + unit - 1) / unit * unit;
    part_ = padded_ / plan.world;
    std::int64_t begin = 0;
    for (const Tensor& leaf : leaves_) {
      begin_.push_back(begin);
      begin += leaf->elements();
      const std::int64_t from = std::max(begin_.back(), plan.rank * part_);
      const std::int64_t to = std::min(begin, (plan.rank + 1) * part_);
      mine_.push_back(from < to);
      if (from >= to) continue;
      touching_ += leaf->elements();
      fragments_.push_back(to - from);
      padding_ -= to - from;
    }
    padding_ += part_;
  }

  void initialise() override {
    load();
    make_overflow_buffer();
    Block zeros;
    if (padded_ > elements_) zeros = block("padding of flat parameters", bytes(padded_ - elements_));
    const Block flat = block("flat parameters", bytes(padded_));
    for (const Tensor& leaf : leaves_) leaf->storage = flat;
    zeros.reset();
    Block master = block("clone of the partition", bytes(part_));
    if (plan_.mixed()) master = block("master", 4 * part_);
    master_ = master;
    passing("zero gradients", 4 * part_);
  }

  void backward_begins(bool boundary) override { boundary_ = boundary; }

  // setup_buckets: at the first gradient, full size; kept until they are emptied.
  void ready(const Tensor& leaf) override {
    while (bucket_.size() < (plan_.overlap ? 2U : 1U)) bucket_.push_back(block("bucket", bytes(plan_.bucket)));
    if (plan_.stage == 2 || (boundary_ && plan_.overlap)) take(index_of(leaf));
  }

  // Stage 1 without overlap walks the parameters once backward is over.
  void backward_ends(bool boundary) override {
    if (plan_.stage == 1 && !boundary) return;
    for (std::size_t at = 0; at < leaves_.size(); ++at) {
      if (leaves_[at]->grad) take(at);
    }
    flush();
    if (boundary_ && padding_ > 0) zeros_ = block("padding", bytes(padding_));
    bucket_.clear();
    late_.clear();
    if (!kept_) {
      kept_ = std::move(arriving_);
    }
    arriving_.reset();  // Added to what the earlier micro-batches left.
  }

  void step() override {
    if (plan_.scans_overflow && plan_.mixed()) passing("overflow flag", 1);
    for (const std::int64_t fragment : fragments_) {
      const Block wide = block("gradient in fp64", 8 * fragment);
      of_gradients_.push_back(block("norm of a gradient", 8));
    }
    combine_norms(8, 4);
    of_gradients_.clear();
    hold_norms(4, 0);
    Block gradient = kept_ ? kept_ : zeros_;
    if (fragments_.size() + (padding_ > 0 ? 1U : 0U) > 1) gradient = block("flat gradient", bytes(part_));
    if (plan_.mixed()) gradient = block("gradient in fp32", 4 * part_);
    kept_.reset();
    zeros_.reset();
    if (state_.empty()) make_state(4 * part_);
    if (!plan_.fused) passing("square root", 4 * part_);
    gradient.reset();
    let_go_of_norms();
  }

 private:
  struct Waiting {
    std::size_t leaf;
    std::int64_t elements;
  };

  [[nodiscard]] std::size_t index_of(const Tensor& leaf) const {
    return static_cast<std::size_t>(std::find(leaves_.begin(), leaves_.end(), leaf) - leaves_.begin());
  }

  void take(std::size_t at) {
    const std::int64_t size = leaves_[at]->elements();
    if (filled_ + size > plan_.bucket) flush();
    if (size > plan_.bucket) {  // extra_large_param_to_reduce: for the next flush.
      large_.assign(1, {at, size});
      filled_ += size;
      return;
    }
    leaves_[at]->grad.reset();  // Its data is in the bucket now.
    waiting_.push_back({at, size});
    filled_ += size;
  }

  void flush() {
    if (!large_.empty()) {
      const std::size_t at = large_.front().leaf;
      average(large_);
      keep(at);
      if (plan_.stage == 1 && !mine_[at]) late_.push_back(leaves_[at]->grad);
      leaves_[at]->grad.reset();
      large_.clear();
      filled_ = 0;
      return;
    }
    if (waiting_.empty()) return;
    average(waiting_);
    for (const Waiting& entry : waiting_) keep(entry.leaf);
    waiting_.clear();
    filled_ = 0;
  }

  // Slices by owner, adjacent ones merged; several are concatenated once their sum exceeds the bucket or they end.
  void average(const std::vector<Waiting>& entries) const {
    if (!plan_.reduce_scatter) return;
    std::vector<std::pair<std::int64_t, std::int64_t>> slices;  // Owner, elements.
    for (const Waiting& entry : entries) {
      std::int64_t at = begin_[entry.leaf];
      const std::int64_t end = at + entry.elements;
      while (at < end) {
        const std::int64_t owner = at / part_;
        const std::int64_t stop = std::min(end, (owner + 1) * part_);
        if (slices.empty() || slices.back().first != owner) slices.emplace_back(owner, 0);
        slices.back().second += stop - at;
        at = stop;
      }
    }
    std::int64_t sum = 0;
    int count = 0;
    for (std::size_t k = 0; k < slices.size(); ++k) {
      sum += slices[k].second;
      ++count;
      if (sum <= plan_.bucket && k + 1 < slices.size()) continue;
      if (count > 1) passing("joined gradients", bytes(sum));
      sum = 0;
      count = 0;
    }
  }

  void keep(std::size_t at) {
    if (mine_[at] && !arriving_) arriving_ = block("gradients in partition", bytes(touching_));
  }

  std::int64_t padded_ = 0;
  std::int64_t part_ = 0;
  std::int64_t touching_ = 0;  // G_r.
  std::int64_t padding_ = 0;
  std::vector<std::int64_t> fragments_;
  std::vector<std::int64_t> begin_;
  std::vector<bool> mine_;
  Block master_;
  std::vector<Block> bucket_;
  std::vector<Waiting> waiting_;
  std::vector<Waiting> large_;
  std::int64_t filled_ = 0;
  Block arriving_;
  Block kept_;
  Block zeros_;
  Tensors late_;  // ZeRO-1 lets go of other ranks' gradients when all are reduced.
  bool boundary_ = true;
};

}  // namespace

std::unique_ptr<Runtime> make_stage12(const Plan& plan, Net& net) { return std::make_unique<Stage12>(plan, net); }

}  // namespace eager
