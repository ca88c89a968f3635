// Kernels of tensor parallelism: lookups and the loss over this rank's words. Sums over ranks happen between them.
#include <algorithm>
#include <cmath>

#include "exec/host/args.h"

namespace dsplan::exec::host {
namespace {

void less(const Args& args) {
  if (is_floating(dtype_of(args.in(0)))) {
    const double below = args.number();
    return map<double, 1>(args.output(), {&args.in(0)}, [=](double x) { return x < below ? 1.0 : 0.0; });
  }
  const auto limit = static_cast<std::int64_t>(args.number());
  map<std::int64_t, 1>(args.output(), {&args.in(0)}, [=](std::int64_t x) { return std::int64_t{x < limit ? 1 : 0}; });
}

void either(const Args& args) {
  map<std::int64_t, 2>(args.output(), {&args.in(0), &args.in(1)},
                       [](std::int64_t a, std::int64_t b) { return std::int64_t{a != 0 || b != 0 ? 1 : 0}; });
}

// x[mask] = number of a mask with as many or fewer dimensions: each of its flags stands for a row.
void fill_rows(const dsplan_tensor& from, const dsplan_tensor& mask, const dsplan_tensor& to, double number) {
  const std::int64_t flags = count_of(mask);
  expect(flags > 0 && count_of(to) % flags == 0, "the mask does not fit");
  const std::int64_t row = count_of(to) / flags;
  const Strided set = strided(mask);
  const Strided source = strided(from);
  const auto run = [&]<class C>(C) {
    map<C, 0>(to, {}, [&](std::int64_t at) {
      std::int64_t flag = 0;
      C x = static_cast<C>(number);
      load(set, at / row, 1, &flag);
      if (flag == 0) load(source, at, 1, &x);
      return x;
    });
  };
  if (is_floating(dtype_of(to))) {
    with_arithmetic(dtype_of(to), run);
  } else {
    run(std::int64_t{});
  }
}

template <class T>
T* plain(const dsplan_tensor& tensor, DType dtype, std::int64_t count) {
  expect(dtype_of(tensor) == dtype && is_contiguous(tensor), "a tensor of another kind");
  expect_count(tensor, count, "a tensor of the loss");
  return static_cast<T*>(tensor.data);
}

// The tensors of the loss over one rank's words. Temporaries by number.
class LossTensors {
 protected:
  explicit LossTensors(const Args& args)
      : args_(args),
        logits_(args.flag(DSPLAN_FLAG_IN_PLACE) ? args.in(0) : args.output(0)),
        words_(last_of(logits_)),
        tokens_(count_of(args.in(1))),
        first_(static_cast<std::int64_t>(args.number())) {}

  [[nodiscard]] float* wide(std::size_t at) const { return plain<float>(args_.temporary(at), DType::Float32, tokens_); }
  [[nodiscard]] std::int64_t* index(std::size_t at) const {
    return plain<std::int64_t>(args_.temporary(at), DType::Int64, tokens_);
  }
  [[nodiscard]] unsigned char* flags(const dsplan_tensor& tensor) const {
    return plain<unsigned char>(tensor, DType::Bool, tokens_);
  }
  [[nodiscard]] float* row(std::int64_t token) const {
    return plain<float>(logits_, DType::Float32, tokens_ * words_) + token * words_;
  }
  [[nodiscard]] std::int64_t target(std::int64_t token) const {
    std::int64_t value = 0;
    load(strided(args_.in(1)), token, 1, &value);
    return value;
  }

  const Args& args_;
  const dsplan_tensor& logits_;
  std::int64_t words_;
  std::int64_t tokens_;
  std::int64_t first_;
};

// The kernels in the order in which they run.
class CrossEntropy : private LossTensors {
 public:
  explicit CrossEntropy(const Args& args) : LossTensors(args) {}

  void run() {
    std::uint32_t part = args_.part();
    if (!args_.flag(DSPLAN_FLAG_IN_PLACE)) {
      if (part == 0) return copy_in_order(args_.in(0), logits_);
      --part;
    }
    switch (part) {
      case 0: return largest();
      case 1: subtract(); return outside(1);
      case 2: return outside(2);
      case 3: return masks();
      case 4: return local_targets();
      case 5: return masked_targets();
      case 6: return each(index(5), [](std::int64_t at) { return at; });
      case 7: return picked();
      case 8: return predicted();
      case 9: return exponentials();
      case 10: return each(wide(9), [sums = wide(8)](std::int64_t at) { return std::log(sums[at]); });
      case 11: return losses();
      default: expect(false, "no such kernel");
    }
  }

 private:
  template <class T, class F>
  void each(T* to, F f) const {
    for (std::int64_t at = 0; at < tokens_; ++at) to[at] = static_cast<T>(f(at));
  }

  void largest() const {
    float* values = wide(0);
    std::int64_t* places = index(1);
    for (std::int64_t at = 0; at < tokens_; ++at) {
      const float* most = std::max_element(row(at), row(at) + words_);
      values[at] = *most;
      places[at] = most - row(at);
    }
  }
  void subtract() const {
    const float* most = wide(0);
    for (std::int64_t at = 0; at < tokens_; ++at) {
      for (std::int64_t k = 0; k < words_; ++k) row(at)[k] -= most[at];
    }
  }
  void outside(std::uint32_t side) const {
    each(flags(args_.temporary(side + 1)),
         [&](std::int64_t at) { return side == 1 ? target(at) < first_ : target(at) >= first_ + words_; });
  }
  void masks() const {
    const unsigned char* below = flags(args_.temporary(2));
    const unsigned char* above = flags(args_.temporary(3));
    each(flags(args_.extra(1)), [&](std::int64_t at) { return below[at] != 0 || above[at] != 0; });
  }
  void local_targets() const {
    each(index(4), [&](std::int64_t at) { return target(at) - first_; });
  }
  void masked_targets() const {
    const unsigned char* mask = flags(args_.extra(1));
    const std::int64_t* local = index(4);
    each(plain<std::int64_t>(args_.extra(2), DType::Int64, tokens_),
         [&](std::int64_t at) { return mask[at] != 0 ? 0 : local[at]; });
  }
  void picked() const {
    const auto* local = plain<std::int64_t>(args_.extra(2), DType::Int64, tokens_);
    each(wide(6), [&](std::int64_t at) { return row(at)[local[at]]; });
  }
  void predicted() const {
    const unsigned char* mask = flags(args_.extra(1));
    const float* picked = wide(6);
    each(wide(7), [&](std::int64_t at) { return mask[at] != 0 ? 0.0F : picked[at]; });
  }
  void exponentials() const {
    each(wide(8), [&](std::int64_t at) {
      double sum = 0;
      for (std::int64_t k = 0; k < words_; ++k) {
        row(at)[k] = std::exp(row(at)[k]);
        sum += static_cast<double>(row(at)[k]);
      }
      return sum;
    });
  }
  void losses() const {
    const float* sums = wide(8);
    const float* logarithms = wide(9);
    const float* predicted = wide(7);
    each(plain<float>(args_.output(1), DType::Float32, tokens_), [&](std::int64_t at) {
      for (std::int64_t k = 0; k < words_; ++k) row(at)[k] /= sums[at];
      return logarithms[at] - predicted[at];
    });
  }
};

void cross_entropy_backward(const Args& args) {
  const dsplan_tensor& softmax = args.saved_out(0);
  const std::int64_t words = last_of(softmax);
  const std::int64_t tokens = count_of(args.saved_extra(1));
  auto* rows = plain<float>(softmax, DType::Float32, tokens * words);
  const auto* mask = plain<unsigned char>(args.saved_extra(1), DType::Bool, tokens);
  const auto* local = plain<std::int64_t>(args.saved_extra(2), DType::Int64, tokens);
  const auto temporary = [&](std::size_t at) { return plain<float>(args.temporary(at), DType::Float32, tokens); };
  const auto each = [&](auto* to, auto f) {
    for (std::int64_t at = 0; at < tokens; ++at) to[at] = f(at);
  };
  const auto by_gradient = [&] {
    const Strided gradients = strided(args.gradient_of(1));
    for (std::int64_t at = 0; at < tokens; ++at) {
      float gradient = 0;
      load(gradients, at, 1, &gradient);
      for (std::int64_t k = 0; k < words; ++k) rows[at * words + k] *= gradient;
    }
  };
  switch (args.part()) {
    case 0:
      return each(plain<std::int64_t>(args.temporary(0), DType::Int64, tokens), [](std::int64_t at) { return at; });
    case 1: return each(temporary(1), [&](std::int64_t at) { return mask[at] != 0 ? 1.0F : 0.0F; });
    case 2: return each(temporary(2), [&, flags = temporary(1)](std::int64_t at) { return 1.0F - flags[at]; });
    case 3: {
      const float* update = temporary(2);
      each(temporary(3), [&](std::int64_t at) { return rows[at * words + local[at]] -= update[at]; });
      return by_gradient();
    }
    case 4: return copy_in_order(softmax, args.gradient(0));
    default: expect(false, "no such kernel");
  }
}

}  // namespace

bool run_parallel(const Args& args) {
  const bool flags = args.op() == Op::Less || args.op() == Op::BitwiseOr;
  if (flags && args.backward()) return false;
  switch (args.op()) {
    case Op::Less: less(args); return true;
    case Op::BitwiseOr: either(args); return true;
    case Op::MaskedFillInPlace:
      if (args.backward()) {
        fill_rows(args.gradient_of(), args.saved_in(1), args.gradient(0), 0);
      } else {
        fill_rows(args.in(0), args.in(1), args.in(0), args.number());
      }
      return true;
    case Op::ParallelCrossEntropy:
      if (args.backward()) {
        cross_entropy_backward(args);
      } else {
        CrossEntropy(args).run();
      }
      return true;
    default: return false;
  }
}

}  // namespace dsplan::exec::host
