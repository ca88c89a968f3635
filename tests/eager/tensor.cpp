#include "eager/tensor.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>

namespace eager {
namespace {

Memory* current_memory = nullptr;

// The strides with which `x` may be seen as `sizes`, or nothing: each block of new dimensions must lie within old
// dimensions that follow each other without a gap (aten/src/ATen/TensorUtils.cpp, computeStride).
bool view_strides(const TensorImpl& x, const Sizes& sizes, Sizes& strides) {
  strides.assign(sizes.size(), 1);
  auto to = static_cast<std::ptrdiff_t>(sizes.size()) - 1;
  std::int64_t block = 1;
  std::int64_t filled = 1;
  std::int64_t step = x.strides.empty() ? 1 : x.strides.back();
  for (auto from = static_cast<std::ptrdiff_t>(x.sizes.size()) - 1; from >= 0; --from) {
    const auto at = static_cast<std::size_t>(from);
    block *= x.sizes[at];
    const bool ends = from == 0 || (x.sizes[at - 1] != 1 && x.strides[at - 1] != block * step);
    if (!ends) continue;
    while (to >= 0 && (filled < block || sizes[static_cast<std::size_t>(to)] == 1)) {
      strides[static_cast<std::size_t>(to)] = filled * step;
      filled *= sizes[static_cast<std::size_t>(to)];
      --to;
    }
    if (filled != block) return false;
    if (from > 0) {
      step = x.strides[at - 1];
      block = filled = 1;
    }
  }
  return to < 0;
}

}  // namespace

Memory::Memory() : before_(current_memory) { current_memory = this; }
Memory::~Memory() { current_memory = before_; }
Memory& Memory::current() {
  if (current_memory == nullptr) throw std::logic_error("no memory");
  return *current_memory;
}

std::int64_t TensorImpl::elements() const {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t TensorImpl::size(int dimension) const {
  return sizes.at(dimension < 0 ? sizes.size() - static_cast<std::size_t>(-dimension)
                                : static_cast<std::size_t>(dimension));
}

Sizes contiguous_strides(const Sizes& sizes) {
  Sizes strides(sizes.size(), 1);
  for (std::size_t at = sizes.size(); at-- > 1;) strides[at - 1] = strides[at] * sizes[at];
  return strides;
}

bool is_contiguous(const TensorImpl& x) {
  const Sizes wanted = contiguous_strides(x.sizes);
  for (std::size_t at = 0; at < x.sizes.size(); ++at) {
    if (x.sizes[at] != 1 && x.strides[at] != wanted[at]) return false;
  }
  return true;
}

namespace {

// Dimensions by descending stride, so that the innermost comes last.
std::vector<std::size_t> order_of(const TensorImpl& x) {
  std::vector<std::size_t> order(x.sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return x.strides[a] > x.strides[b]; });
  return order;
}

}  // namespace

bool is_dense(const TensorImpl& x) {
  std::int64_t expected = 1;
  const std::vector<std::size_t> order = order_of(x);
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    if (x.sizes[*at] == 1) continue;
    if (x.strides[*at] != expected) return false;
    expected *= x.sizes[*at];
  }
  return true;
}

Tensor empty(Sizes sizes, DType dtype) {
  auto made = std::make_shared<TensorImpl>();
  made->strides = contiguous_strides(sizes);
  made->sizes = std::move(sizes);
  made->dtype = dtype;
  made->storage = std::make_shared<Storage>(made->elements() * dsplan::bytes_per_element(dtype));
  return made;
}

Tensor empty_like(const Tensor& x, DType dtype) {
  Tensor made = empty(x->sizes, dtype);
  std::int64_t stride = 1;
  const std::vector<std::size_t> order = order_of(*x);
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    made->strides[*at] = stride;
    stride *= made->sizes[*at];
  }
  return made;
}

Tensor strided_view(const Tensor& x, Sizes sizes, Sizes strides) {
  auto made = std::make_shared<TensorImpl>();
  made->storage = x->storage;
  made->sizes = std::move(sizes);
  made->strides = std::move(strides);
  made->dtype = x->dtype;
  made->base = x->base ? x->base : x;
  return made;
}

Tensor transposed(const Tensor& x, int a, int b) {
  Sizes sizes = x->sizes;
  Sizes strides = x->strides;
  std::swap(sizes[static_cast<std::size_t>(a)], sizes[static_cast<std::size_t>(b)]);
  std::swap(strides[static_cast<std::size_t>(a)], strides[static_cast<std::size_t>(b)]);
  return strided_view(x, std::move(sizes), std::move(strides));
}

Tensor reshaped(const Tensor& x, const Sizes& sizes) {
  Sizes strides;
  if (view_strides(*x, sizes, strides)) return strided_view(x, sizes, strides);
  return empty(sizes, x->dtype);  // clone(contiguous), then _unsafe_view, which leaves no base behind.
}

Tensor detached(const Tensor& x) {
  auto made = std::make_shared<TensorImpl>(*x);
  made->requires_grad = false;
  made->grad_fn.reset();
  made->grad.reset();
  return made;
}

}  // namespace eager
