// Operators of tensor parallelism: lookups and the loss over this rank's words. Sums over ranks happen between them.
#include "cuda/kernels.h"

namespace dsplan::cuda {
namespace {

// A dense tensor with an element for each token.
const dsplan_tensor& plain(const dsplan_tensor& tensor, DType dtype, std::int64_t count) {
  expect(dtype_of(tensor) == dtype && exec::host::is_contiguous(tensor), "a tensor of another kind");
  expect_count(tensor, count, "a tensor of the loss");
  return tensor;
}

// The kernels in the order in which they run; they end where the next tensor is made, or ranks sum. Temporaries by
// number (exec/operators/parallel.cpp).
class CrossEntropy {
 public:
  CrossEntropy(const Args& args, const Queue& queue, const dsplan_tensor& rows, std::int64_t tokens)
      : args_(args), queue_(queue), rows_(rows), tokens_(tokens) {}

  void forward() const {
    std::uint32_t part = args_.part();
    if (!args_.flag(DSPLAN_FLAG_IN_PLACE)) {
      if (part == 0) return copy_in_order(queue_, args_.in(0), rows_);
      --part;
    }
    const auto first = args_.number();
    const double behind = first + static_cast<double>(last_of(rows_));
    const dsplan_tensor& targets = args_.in(1);
    const auto integers = [&](const dsplan_tensor& to, const Elementwise& what) {
      Elementwise in_order = what;
      in_order.in_order = true;
      map(queue_, Arithmetic::Integer, to, in_order);
    };
    switch (part) {
      case 0: return largest_of_rows(queue_, rows(), floats(wide(0)), places(index(1)));
      case 1:
        with_rows(queue_, Function::Sub, rows(), wide(0));
        return integers(flags(2), {Function::LessNumber, {&targets}, first});
      case 2: return integers(flags(3), {Function::GreaterEqualNumber, {&targets}, behind});
      case 3: return integers(outside(), {Function::Either, {&flags(2), &flags(3)}});
      case 4: return integers(index(4), {Function::AddNumber, {&targets}, -first});
      case 5: return integers(local(), {Function::Masked, {&index(4), &outside()}, 0});
      case 6: return integers(index(5), {Function::Count, {}});
      case 7: return pick(queue_, rows(), places(local()), nullptr, floats(wide(6)));
      case 8: return single(wide(7), {Function::Masked, {&wide(6), &outside()}, 0});
      case 9: return exponentials(queue_, rows(), floats(wide(8)));
      case 10: return single(wide(9), {Function::Log, {&wide(8)}});
      case 11:
        with_rows(queue_, Function::Div, rows(), wide(8));
        return single(plain(args_.output(1), DType::Float32, tokens_), {Function::Sub, {&wide(9), &wide(7)}});
      default: expect(false, "no such kernel");
    }
  }

  // In place of the softmax, which is the gradient unless its dtype is another.
  void backward() const {
    const dsplan_tensor& mask = plain(args_.saved_extra(1), DType::Bool, tokens_);
    const dsplan_tensor& local = plain(args_.saved_extra(2), DType::Int64, tokens_);
    switch (args_.part()) {
      case 0: return map(queue_, Arithmetic::Integer, index(0), {Function::Count, {}});
      case 1: return single(wide(1), {Function::NotEqualNumber, {&mask}, 0});
      case 2: return single(wide(2), {Function::EqualNumber, {&wide(1)}, 0});
      case 3:
        pick(queue_, rows(), places(local), floats(wide(2)), floats(wide(3)));
        return with_rows(queue_, Function::Mul, rows(), args_.gradient_of(1));
      case 4: return copy_in_order(queue_, rows_, args_.gradient(0));
      default: expect(false, "no such kernel");
    }
  }

 private:
  [[nodiscard]] WordRows rows() const {
    const std::int64_t words = last_of(rows_);
    return {floats(plain(rows_, DType::Float32, tokens_ * words)), tokens_, words};
  }
  [[nodiscard]] static float* floats(const dsplan_tensor& tensor) { return static_cast<float*>(tensor.data); }
  [[nodiscard]] static std::int64_t* places(const dsplan_tensor& tensor) {
    return static_cast<std::int64_t*>(tensor.data);
  }
  [[nodiscard]] const dsplan_tensor& wide(std::size_t at) const {
    return plain(args_.temporary(at), DType::Float32, tokens_);
  }
  [[nodiscard]] const dsplan_tensor& index(std::size_t at) const {
    return plain(args_.temporary(at), DType::Int64, tokens_);
  }
  [[nodiscard]] const dsplan_tensor& flags(std::size_t at) const {
    return plain(args_.temporary(at), DType::Bool, tokens_);
  }
  // Which targets are another rank's words, and the others counted from this rank's first word.
  [[nodiscard]] const dsplan_tensor& outside() const { return plain(args_.extra(1), DType::Bool, tokens_); }
  [[nodiscard]] const dsplan_tensor& local() const { return plain(args_.extra(2), DType::Int64, tokens_); }
  void single(const dsplan_tensor& to, const Elementwise& what) const {
    Elementwise in_order = what;
    in_order.in_order = true;
    map(queue_, Arithmetic::Single, to, in_order);
  }

  const Args& args_;
  const Queue& queue_;
  const dsplan_tensor& rows_;
  std::int64_t tokens_;
};

void cross_entropy(const Args& args, const Queue& queue) {
  if (args.backward()) {
    return CrossEntropy(args, queue, args.saved_out(0), count_of(args.saved_extra(1))).backward();
  }
  const dsplan_tensor& rows = args.flag(DSPLAN_FLAG_IN_PLACE) ? args.in(0) : args.output(0);
  CrossEntropy(args, queue, rows, count_of(args.in(1))).forward();
}

}  // namespace

bool run_parallel(const Args& args, const Queue& queue) {
  const bool flags = args.op() == Op::Less || args.op() == Op::BitwiseOr;
  if (flags && args.backward()) return false;
  switch (args.op()) {
    case Op::Less:
      map(queue, is_floating(dtype_of(args.in(0))) ? Arithmetic::Double : Arithmetic::Integer, args.output(),
          {Function::LessNumber, {&args.in(0)}, args.number()});
      return true;
    case Op::BitwiseOr:
      map(queue, Arithmetic::Integer, args.output(), {Function::Either, {&args.in(0), &args.in(1)}});
      return true;
    case Op::MaskedFillInPlace:
      if (args.backward()) {
        zero_rows(queue, args.gradient_of(), args.saved_in(1), args.gradient(0));
      } else if (args.number() != 0) {
        map(queue, any_arithmetic_of(dtype_of(args.in(0))), args.in(0),
            {Function::Masked, {&args.in(0), &args.in(1)}, args.number()});
      } else {
        zero_rows(queue, args.in(0), args.in(1), args.in(0));
      }
      return true;
    case Op::ParallelCrossEntropy: cross_entropy(args, queue); return true;
    default: return false;
  }
}

}  // namespace dsplan::cuda
