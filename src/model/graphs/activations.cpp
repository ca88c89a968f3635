// What transformers' ACT2FN runs (transformers 5.17.0, activations.py), operator by operator. Of an expression, each
// operand that is a temporary dies when its operator has returned.
#include "model/graphs/activations.h"

#include <array>

#include "core/error.h"
#include "model/graphs/graphs.h"

namespace dsplan {
namespace {

constexpr double kRootOfTwoOverPi = 0.7978845608028654;

// Of one tensor, which its caller holds.
using Written = TensorId (*)(GraphBuilder& g, TensorId x);

TensorId then(GraphBuilder& g, Op op, TensorId x, double number = 0) {
  const TensorId out = g.unary(op, x, number);
  g.drop({x});
  return out;
}

TensorId times(GraphBuilder& g, TensorId a, TensorId b) {
  const TensorId out = g.binary(Op::Mul, a, b);
  g.drop({a, b});
  return out;
}

template <Op op>
TensorId one(GraphBuilder& g, TensorId x) {
  return g.unary(op, x);
}

template <int tanh_form>
TensorId gelu(GraphBuilder& g, TensorId x) {
  return g.unary(Op::Gelu, x, tanh_form);
}

// 0.5 * x * (1 + tanh(c * (x + 0.044715 * x^3))).
TensorId gelu_new(GraphBuilder& g, TensorId x) {
  const TensorId halved = g.unary(Op::MulScalar, x, 0.5);
  const TensorId small = then(g, Op::MulScalar, g.unary(Op::PowScalar, x, 3), 0.044715);
  const TensorId sum = g.binary(Op::Add, x, small);
  g.drop({small});
  const TensorId scaled = then(g, Op::MulScalar, sum, kRootOfTwoOverPi);
  return times(g, halved, then(g, Op::AddScalar, then(g, Op::Tanh, scaled), 1));
}

// 0.5 * x * (1 + tanh(x * c * (1 + 0.044715 * x * x))).
TensorId gelu_fast(GraphBuilder& g, TensorId x) {
  const TensorId halved = g.unary(Op::MulScalar, x, 0.5);
  const TensorId scaled = g.unary(Op::MulScalar, x, kRootOfTwoOverPi);
  const TensorId small = g.unary(Op::MulScalar, x, 0.044715);
  const TensorId squared = g.binary(Op::Mul, small, x);
  g.drop({small});
  const TensorId inner = times(g, scaled, then(g, Op::AddScalar, squared, 1));
  return times(g, halved, then(g, Op::AddScalar, then(g, Op::Tanh, inner), 1));
}

// x * sigmoid(1.702 * x).
TensorId quick_gelu(GraphBuilder& g, TensorId x) {
  const TensorId gate = then(g, Op::Sigmoid, g.unary(Op::MulScalar, x, 1.702));
  const TensorId out = g.binary(Op::Mul, x, gate);
  g.drop({gate});
  return out;
}

// clip(gelu(x), -10, 10).
TensorId gelu_10(GraphBuilder& g, TensorId x) { return then(g, Op::Clamp, g.unary(Op::Gelu, x, 0), 10); }

TensorId relu2(GraphBuilder& g, TensorId x) { return then(g, Op::PowScalar, g.unary(Op::Relu, x), 2); }

TensorId sqrtsoftplus(GraphBuilder& g, TensorId x) { return then(g, Op::Sqrt, g.unary(Op::Softplus, x)); }

// Without its CUDA extension: where(x > 0, p * x * x + b * x, (expm1(min(x, eps)) - x) * n + b * x), where p and n come
// of parameters of the module's own.
TensorId xielu(GraphBuilder& g, TensorId x) {
  const TensorId beta = g.buffer("beta");
  const auto joined = [&](Op op, TensorId a, TensorId b) {
    const TensorId out = g.binary(op, a, b);
    g.drop({a});
    return out;
  };
  const auto straight = [&](TensorId curved) {
    const TensorId scaled = g.binary(Op::Mul, beta, x);
    const TensorId out = joined(Op::Add, curved, scaled);
    g.drop({scaled});
    return out;
  };
  const TensorId steep = g.unary(Op::Softplus, g.parameter("alpha_p"));
  const TensorId soft = g.unary(Op::Softplus, g.parameter("alpha_n"));
  const TensorId flat = g.binary(Op::Add, beta, soft);
  g.drop({soft});
  const TensorId above = g.make(Op::Greater, g.shape(x), DType::Bool, {x});
  const TensorId right = straight(joined(Op::Mul, g.binary(Op::Mul, steep, x), x));
  const TensorId bounded = then(g, Op::Expm1, g.binary(Op::Minimum, x, g.buffer("eps")));
  const TensorId left = straight(joined(Op::Mul, joined(Op::Sub, bounded, x), flat));
  const TensorId out = g.make(Op::Where, g.shape(x), g.dtype(right), {above, right, left}, true);
  g.drop({above, right, left, steep, flat});
  return out;
}

TensorId linear(GraphBuilder& g, TensorId x) { return g.keep(x); }

struct ActivationRow {
  std::string_view name;
  Written written;
};

constexpr std::array kActivationRows{
    ActivationRow{"gelu", gelu<0>},
    ActivationRow{"gelu_10", gelu_10},
    ActivationRow{"gelu_accurate", gelu_new},
    ActivationRow{"gelu_fast", gelu_fast},
    ActivationRow{"gelu_new", gelu_new},
    ActivationRow{"gelu_python_tanh", gelu_new},
    ActivationRow{"gelu_pytorch_tanh", gelu<1>},
    ActivationRow{"hardswish", one<Op::Hardswish>},
    ActivationRow{"leaky_relu", one<Op::LeakyRelu>},
    ActivationRow{"linear", linear},
    ActivationRow{"mish", one<Op::Mish>},
    ActivationRow{"quick_gelu", quick_gelu},
    ActivationRow{"relu", one<Op::Relu>},
    ActivationRow{"relu2", relu2},
    ActivationRow{"sigmoid", one<Op::Sigmoid>},
    ActivationRow{"silu", one<Op::Silu>},
    ActivationRow{"sqrtsoftplus", sqrtsoftplus},
    ActivationRow{"swish", one<Op::Silu>},
    ActivationRow{"tanh", one<Op::Tanh>},
    ActivationRow{"xielu", xielu},
};

const ActivationRow* row_of(std::string_view activation) {
  for (const ActivationRow& row : kActivationRows) {
    if (row.name == activation) return &row;
  }
  return nullptr;
}

}  // namespace

bool activation_has_graph(std::string_view activation) { return row_of(activation) != nullptr; }

TensorId activated(GraphBuilder& g, std::string_view activation, TensorId x) {
  const ActivationRow* row = row_of(activation);
  DSPLAN_CHECK(row != nullptr, "graph_unsupported refuses activations that no graph has");
  return row->written(g, x);
}

}  // namespace dsplan
