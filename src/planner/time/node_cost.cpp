#include "planner/time/node_cost.h"

#include <algorithm>
#include <optional>

#include "model/catalogue/catalogue.h"

namespace dsplan {
namespace {

// The host needs part of a launch for an operator that starts no kernel.
constexpr double kViewCall = 0.3;
// The engine's own walk makes an operator in backward cheaper than one that Python calls.
constexpr double kBackwardCall = 0.8;
// FlashAttention's backward computes the scores once more: five products to forward's two, of which four are counted.
constexpr double kAttentionBackward = 2.5;

class Coster {
 public:
  Coster(const Graph& graph, const Node& node, const Rates& rates) : graph_(graph), node_(node), rates_(rates) {}

  NodeCost run() {
    switch (node_.op) {
      case Op::Input:
      case Op::Custom: break;
      case Op::View:
      case Op::Detach:
      case Op::Expand:
      case Op::Slice:
      case Op::Select:
      case Op::Split:
      case Op::Unbind: view(); break;
      case Op::Linear: linear(); break;
      case Op::Matmul:
      case Op::Mm:
      case Op::Bmm: matmul(); break;
      case Op::GroupedMatmul: grouped(); break;
      case Op::Conv2d: convolution(); break;
      case Op::Attention: attention(); break;
      case Op::ChunkedLogProb:
      case Op::CutCrossEntropy:
      case Op::FusedLinearCrossEntropy: fused_loss(); break;
      case Op::AllReduce: cost_.forward_collectives = sum(input_bytes(0)); break;
      case Op::CopyToParallel:
        if (node_.requires_grad) cost_.backward_collectives = sum(input_bytes(0));
        break;
      case Op::ParallelCrossEntropy: parallel_loss(); break;
      default: elementwise(); break;
    }
    return cost_;
  }

 private:
  [[nodiscard]] const Tensor& input(std::size_t i) const { return graph_.tensor(graph_.input(node_, i)); }
  [[nodiscard]] const Tensor& output() const { return graph_.tensor(graph_.output(node_)); }
  [[nodiscard]] Bytes input_bytes(std::size_t i) const { return graph_.bytes(graph_.input(node_, i)); }
  [[nodiscard]] Bytes output_bytes() const { return graph_.bytes(graph_.output(node_)); }
  [[nodiscard]] bool wants(std::size_t i) const { return node_.requires_grad && input(i).requires_grad; }
  [[nodiscard]] double sum(Bytes bytes) const {
    return rates_.collective(Collective::AllReduce, Group::TensorParallel, bytes);
  }

  void forward(double seconds, double calls = 1) {
    cost_.forward += seconds;
    cost_.forward_calls += calls;
  }
  void backward(double seconds, double calls = 1) {
    cost_.backward += seconds;
    cost_.backward_calls += calls * kBackwardCall;
  }

  void view() {
    cost_.forward_calls = kViewCall;
    if (!node_.requires_grad) return;
    if (node_.op == Op::View || node_.op == Op::Detach) {
      cost_.backward_calls = kViewCall * kBackwardCall;
      if (node_.gradient_copied) backward(rates_.memory(input_bytes(0) * 2));
      return;
    }
    // Zeros and a copy, one cat, or a sum over what was repeated.
    if (wants(0)) backward(rates_.memory(input_bytes(0) + output_bytes() * 2));
  }

  // [m, k] x [k, n] in the order in which the library sees the rows' ends.
  // In the dtype of the output, unless another is named.
  double product(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k, bool aligned,
                 std::optional<DType> dtype = {}) const {
    return rates_.product(batch, m, n, k, dtype.value_or(output().dtype), aligned);
  }

  void linear() {
    const Shape& x = input(0).shape;
    const std::int64_t k = x.dims[x.rank - 1U];
    const std::int64_t n = output().shape.dims[output().shape.rank - 1U];
    const std::int64_t m = output().shape.elements().value() / std::max<std::int64_t>(n, 1);
    const bool aligned = k % 8 == 0 && n % 8 == 0;
    forward(product(1, m, n, k, aligned));
    const auto flops = static_cast<double>(forward_flops(graph_, node_));
    cost_.forward_flops = flops;
    if (wants(0)) {
      backward(product(1, m, k, n, aligned));
      cost_.backward_flops += flops;
    }
    if (wants(1)) {
      backward(product(1, n, k, m, aligned));
      cost_.backward_flops += flops;
    }
    if (node_.input_count > 2 && wants(2)) backward(rates_.memory(output_bytes()));
  }

  void matmul() {
    const Shape& x = input(0).shape;
    const Shape& out = output().shape;
    const std::int64_t k = x.dims[x.rank - 1U];
    const std::int64_t n = out.dims[out.rank - 1U];
    const std::int64_t m = out.rank > 1 ? out.dims[out.rank - 2U] : 1;
    const std::int64_t batch = out.elements().value() / std::max<std::int64_t>(n * m, 1);
    forward(product(batch, m, n, k, true));
    const auto flops = static_cast<double>(forward_flops(graph_, node_));
    cost_.forward_flops = flops;
    if (wants(0)) {
      backward(product(batch, m, k, n, true));
      cost_.backward_flops += flops;
    }
    if (wants(1)) {
      backward(product(batch, k, n, m, true));
      cost_.backward_flops += flops;
    }
  }

  // Rows lie evenly over the groups.
  void grouped() {
    const Shape& x = input(0).shape;
    const Shape& weight = input(1).shape;
    const std::int64_t groups = std::max<std::int64_t>(weight.dims[0], 1);
    const std::int64_t k = x.dims[x.rank - 1U];
    const std::int64_t n = output().shape.dims[output().shape.rank - 1U];
    const std::int64_t rows = output().shape.elements().value() / std::max<std::int64_t>(n, 1);
    const std::int64_t m = div_ceil(rows, groups);
    forward(product(groups, m, n, k, true));
    const auto flops = static_cast<double>(forward_flops(graph_, node_));
    cost_.forward_flops = flops;
    if (wants(0)) {
      backward(product(groups, m, k, n, true));
      cost_.backward_flops += flops;
    }
    if (wants(1)) {
      backward(product(groups, k, n, m, true));
      cost_.backward_flops += flops;
    }
  }

  void convolution() {
    const std::int64_t n = input(1).shape.dims[0];
    const std::int64_t k = input(1).shape.elements().value() / std::max<std::int64_t>(n, 1);
    const std::int64_t m = output().shape.elements().value() / std::max<std::int64_t>(n, 1);
    forward(product(1, m, n, k, true));
    const auto flops = static_cast<double>(forward_flops(graph_, node_));
    cost_.forward_flops = flops;
    for (std::size_t i = 0; i < 2; ++i) {
      if (!wants(i)) continue;
      backward(product(1, m, k, n, true));
      cost_.backward_flops += flops;
    }
  }

  void attention() {
    const auto flops = static_cast<double>(forward_flops(graph_, node_));
    cost_.forward_flops = flops;
    forward(rates_.attention(flops, output().dtype));
    if (!node_.requires_grad) return;
    cost_.backward_flops = 2 * flops;
    backward(rates_.attention_backward(flops * kAttentionBackward, output().dtype), 2);
  }

  // Logits and both gradients are made in forward; backward scales them.
  void fused_loss() {
    const Shape& x = input(0).shape;
    const std::int64_t k = x.dims[x.rank - 1U];
    const std::int64_t n = input(1).shape.dims[0];
    const std::int64_t m = x.elements().value() / std::max<std::int64_t>(k, 1);
    const bool aligned = n % 8 == 0;
    // The loss is in fp32, its products in the dtype of the hidden states, or of autocast.
    const bool scored = node_.op == Op::ChunkedLogProb;
    const bool chunked = scored || node_.op == Op::CutCrossEntropy;
    const DType dtype = scored ? static_cast<DType>(static_cast<int>(node_.number)) : input(0).dtype;
    if (chunked) {  // The product, once more in backward, and there both gradients.
      const double logits = rates_.memory(storage(Elements(checked_mul(m, n)), input(0).dtype));
      const double product_of_head = product(1, m, n, k, aligned, dtype);
      const auto whole = static_cast<double>(forward_flops(graph_, node_)) / 3;
      forward(product_of_head + logits * 2, 3);
      cost_.forward_flops = whole;
      if (!node_.requires_grad) return;
      const double of_weight = wants(1) ? product(1, n, k, m, aligned, dtype) : 0;
      backward(product_of_head + product(1, m, k, n, aligned, dtype) + of_weight + logits * 4, 5);
      cost_.backward_flops = whole * (wants(1) ? 2 : 1);
      return;
    }
    forward(
        product(1, m, n, k, aligned, dtype) + product(1, m, k, n, aligned, dtype) + product(1, n, k, m, aligned, dtype),
        3);
    // Logits in pieces: read, exponentiated and written again.
    forward(rates_.memory(storage(Elements(m) * n, input(0).dtype) * 4), 8);
    const auto flops = static_cast<double>(forward_flops(graph_, node_));
    cost_.forward_flops = flops / 3;
    cost_.backward_flops = flops / 3 * 2;
    if (node_.requires_grad) backward(rates_.memory(input_bytes(0) * 2 + input_bytes(1) * 2), 2);
  }

  // Maximum, exponentials, sum and pick: about ten passes over the logits of this rank in fp32, three small sums.
  void parallel_loss() {
    const Bytes logits = storage(input(0).shape.elements(), DType::Float32);
    forward(rates_.memory(logits * 8), 10);
    const Bytes rows = storage(Elements(input(0).shape.elements().value() /
                                        std::max<std::int64_t>(input(0).shape.dims[input(0).shape.rank - 1U], 1)),
                               DType::Float32);
    cost_.forward_collectives = 3 * sum(rows);
    if (node_.requires_grad) backward(rates_.memory(logits * 4), 3);
  }

  void elementwise() {
    if (node_.output_count == 0) return;
    const Bytes moved = forward_bytes(graph_, node_);
    forward(rates_.elementwise(moved));
    if (!node_.requires_grad) return;
    const Bytes out = output_bytes();
    switch (node_.op) {
      case Op::Add:
      case Op::Sub: break;  // The gradient itself; where both have another shape, a sum that is small.
      case Op::Cast:
      case Op::AddScalar:
      case Op::SubScalar:
        if (node_.op == Op::Cast) backward(rates_.elementwise(input_bytes(0) + out));
        break;
      case Op::MulScalar:
      case Op::DivScalar:
      case Op::Neg:
      case Op::Contiguous: backward(rates_.elementwise(out * 2)); break;
      case Op::Mul:
        for (std::size_t i = 0; i < 2; ++i) {
          if (wants(i)) backward(rates_.elementwise(out * 3));
        }
        break;
      case Op::Embedding:  // Zeros for the whole table, then the rows.
        backward(rates_.elementwise(input_bytes(0) + out * 3), 2);
        break;
      case Op::LayerNorm:
      case Op::RmsNorm: backward(rates_.elementwise(out * 5), 2); break;
      case Op::NllLoss: backward(rates_.elementwise(input_bytes(0) * 2), 2); break;
      case Op::MeanLast:
      case Op::SumDim: backward(rates_.elementwise(input_bytes(0) + out)); break;
      case Op::Cat:
      case Op::Stack: backward(rates_.elementwise(out * 2)); break;
      default: backward(rates_.elementwise(std::max(out, input_bytes(0)) * 3)); break;
    }
  }

  const Graph& graph_;
  const Node& node_;
  const Rates& rates_;
  NodeCost cost_;
};

}  // namespace

NodeCost& NodeCost::operator+=(const NodeCost& other) {
  add(other);
  forward_calls += other.forward_calls;
  backward_calls += other.backward_calls;
  return *this;
}

NodeCost node_cost(const Graph& graph, const Node& node, const Rates& rates) {
  return Coster(graph, node, rates).run();
}

}  // namespace dsplan
