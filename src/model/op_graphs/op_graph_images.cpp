// Op-graphs: what slides a window over images, and what makes them larger.
#include <algorithm>

#include "model/op_graphs/op_graph_call.h"

#include "core/format.h"

namespace dsplan::op_graph_rules {
namespace {

using Pair = std::array<std::int64_t, 2>;

// One number or two, for height and width.
Pair pair(OpCall& call, std::string_view key, std::int64_t least, std::optional<Pair> fallback) {
  if (!call.attributes.has(key) && fallback) return *fallback;
  const std::vector<std::int64_t> numbers = call.wholes(key);
  const bool fits = numbers.size() == 1 || numbers.size() == 2;
  if (!fits || *std::min_element(numbers.begin(), numbers.end()) < least) {
    call.refuse_key(key, formatted("\"{}\" is one number or two, at least {}", key, least));
  }
  return {numbers.front(), numbers.back()};
}

struct Window {
  Pair kernel;
  Pair stride;
  Pair padding;
  Pair dilation;
};

// The window's places along both dimensions.
Pair places(OpCall& call, const Window& window, std::size_t blamed) {
  Pair result{};
  for (std::size_t i : {0U, 1U}) {
    const std::int64_t kernel = checked_add(checked_mul(window.dilation[i], window.kernel[i] - 1), 1);
    const std::int64_t padded = checked_add(call.shape(0).dims[2 + i], checked_mul(2, window.padding[i]));
    if (kernel > padded) call.refuse_input(blamed, "Kernel size can't be greater than actual input size");
    result[i] = (padded - kernel) / window.stride[i] + 1;
  }
  return result;
}

void images(OpCall& call) {
  call.floating(0);
  if (call.shape(0).rank == 4) return;
  call.refuse_input(0, formatted("{} is modelled for a batch of images: four dimensions", call.op.op.text));
}

}  // namespace

Tensors conv2d(OpCall& call, Op op) {
  images(call);
  call.same_dtype(0, 1);
  const Shape x = call.shape(0);
  const Shape weight = call.shape(1);
  if (weight.rank != 4) call.refuse_input(1, "the weight of conv2d has four dimensions");
  const std::int64_t groups = call.whole("groups", 1, INT64_MAX, 1);
  const Window window{{weight.dims[2], weight.dims[3]},
                      pair(call, "stride", 1, Pair{1, 1}),
                      pair(call, "padding", 0, Pair{0, 0}),
                      pair(call, "dilation", 1, Pair{1, 1})};
  if (x.dims[1] % groups != 0 || weight.dims[0] % groups != 0 || weight.dims[1] != x.dims[1] / groups) {
    call.refuse_input(
        1, formatted("weight {} in {} groups does not fit the channels of {}", weight.text(), groups, x.text()));
  }
  if (call.in.size() == 3 && call.shape(2) != Shape{weight.dims[0]}) {
    call.refuse_input(2, formatted("the bias of {} channels has shape {}", weight.dims[0], call.shape(2).text()));
  }
  const Pair size = places(call, window, 1);
  return {call.w.make(op, Shape{x.dims[0], weight.dims[0], size[0], size[1]}, call.dtype(0), call.in)};
}

Tensors max_pool2d(OpCall& call, Op op) {
  images(call);
  const Pair kernel = pair(call, "kernel_size", 1, std::nullopt);
  const Window window{kernel, pair(call, "stride", 1, kernel), pair(call, "padding", 0, Pair{0, 0}),
                      pair(call, "dilation", 1, Pair{1, 1})};
  for (std::size_t i : {0U, 1U}) {
    if (window.padding[i] > kernel[i] / 2) {
      call.refuse_key("padding", "pad should be at most half of effective kernel size");
    }
  }
  const Pair size = places(call, window, 0);
  const Shape& x = call.shape(0);
  return {call.w.make(op, Shape{x.dims[0], x.dims[1], size[0], size[1]}, call.dtype(0), call.in)};
}

// nn.functional.interpolate with "size", or a whole "scale_factor".
Tensors interpolate(OpCall& call, Op op) {
  images(call);
  (void)call.choice("mode", {"nearest", "bilinear"}, "nearest");
  Shape shape = call.shape(0);
  if (call.attributes.has("size") == call.attributes.has("scale_factor")) {
    call.refuse("interpolate needs either \"size\" or \"scale_factor\"");
  }
  if (call.attributes.has("size")) {
    const Pair size = pair(call, "size", 1, std::nullopt);
    shape.dims[2] = size[0];
    shape.dims[3] = size[1];
  } else {
    const Pair factor = pair(call, "scale_factor", 1, std::nullopt);
    shape.dims[2] = checked_mul(shape.dims[2], factor[0]);
    shape.dims[3] = checked_mul(shape.dims[3], factor[1]);
  }
  return {call.w.make(op, shape, call.dtype(0), call.in)};
}

// nn.functional.unfold: a column for each place of the window.
Tensors unfold(OpCall& call, Op op) {
  images(call);
  const Window window{pair(call, "kernel_size", 1, std::nullopt), pair(call, "stride", 1, Pair{1, 1}),
                      pair(call, "padding", 0, Pair{0, 0}), pair(call, "dilation", 1, Pair{1, 1})};
  const Pair size = places(call, window, 0);
  const std::int64_t patch = checked_mul(call.shape(0).dims[1], checked_mul(window.kernel[0], window.kernel[1]));
  return {call.w.make(op, Shape{call.shape(0).dims[0], patch, checked_mul(size[0], size[1])}, call.dtype(0), call.in)};
}

}  // namespace dsplan::op_graph_rules
