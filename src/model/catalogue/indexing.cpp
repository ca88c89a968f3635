// The catalogue: views, parts and joins of tensors, and what selects elements.
#include "model/catalogue/rules.h"

namespace dsplan::rules {

// The gradients are views of the incoming one, unless the node says that it is copied.
void view(Writer& w) {
  w.alias();
  if (w.node().gradient_copied) {
    w.gradient(0);
    return;
  }
  w.pass(0);
  w.seen_through_view(0);
}

// The gradients are slices of the incoming one, brought to the dtype of what was promoted.
void cat(Writer& w) {
  w.output();
  w.kernel();
  for (std::size_t i = 0; i < w.node().input_count; ++i) {
    if (w.in(i).dtype == w.out().dtype || w.bytes_in(i) == Bytes(0)) {
      w.pass(i);
    } else {
      w.gradient(i);
    }
  }
  w.passes_part();
}

// slice: a zero-filled full tensor; split: one cat; unbind: one stack. Zeros stand for the gradients that do not come,
// one number of them for unbind (FunctionsManual.cpp, split_with_sizes_backward, unbind_backward).
void part(Writer& w) {
  w.alias();
  if (w.node().undefined_outputs != 0 && w.needs(0)) {
    for (std::size_t i = 0; i < w.node().output_count; ++i) {
      if ((w.node().undefined_outputs >> i & 1U) == 0) continue;
      w.temporary(w.node().op == Op::Unbind ? storage(Elements(1), w.out().dtype) : w.bytes_out(i), w.out().dtype);
    }
  }
  w.gradient(0);
}

// The gradient is copied whole, and of the part a clone is the source's; then zeros are put in its place.
void copy_into(Writer& w) {
  w.in_place();
  w.kernel();
  std::uint8_t whole = 0;
  if (w.needs(0)) {
    w.gradient(0);
  } else {
    whole = w.temporary(w.bytes_in(0), w.in(0).dtype);
  }
  std::uint8_t clone = 0;
  const bool casts = w.needs(1) && w.in(1).dtype != w.in(0).dtype;
  const Bytes part = storage(w.in(1).shape.elements(), w.in(0).dtype);
  if (casts || !w.needs(1)) {
    clone = w.temporary(part, w.in(0).dtype);
  } else {
    w.gradient(1);
  }
  const std::uint8_t zeros = w.needs(0) ? w.temporary(part, w.in(0).dtype) : whole;
  if (casts) w.gradient(1);
  w.drop(zeros);
  if (casts || !w.needs(1)) w.drop(clone);
}

// Likewise, and the clone is the source's gradient, or what that is summed or cast from. Nothing is put in its place.
void add_into(Writer& w) {
  w.in_place();
  w.kernel();
  const std::uint8_t whole = w.needs(0) ? 0 : w.temporary(w.bytes_in(0), w.in(0).dtype);
  if (w.needs(0)) w.gradient(0);
  const auto from = static_cast<std::int64_t>(w.node().number);
  const std::int64_t length = w.in(0).shape.dims[static_cast<std::size_t>(w.node().axis)];
  const Elements part(w.in(0).shape.elements().value() / length * (length - from));
  const bool sums = w.in(1).shape.elements() != part;
  const bool casts = w.in(1).dtype != w.in(0).dtype;
  if (w.needs(1) && !sums && !casts) {
    w.gradient(1);
  } else {
    std::uint8_t last = w.temporary(storage(part, w.in(0).dtype), w.in(0).dtype);
    if (w.needs(1) && sums && casts) {
      const std::uint8_t sum = w.temporary(storage(w.in(1).shape.elements(), w.in(0).dtype), w.in(0).dtype);
      w.drop(last);
      last = sum;
    }
    if (w.needs(1) && !w.needs(0)) w.drop(whole);  // The engine sums and casts what the node has returned.
    if (w.needs(1)) w.gradient(1);
    w.drop(last);
    if (w.needs(1)) return;
  }
  if (!w.needs(0)) w.drop(whole);
}

// A torch.autograd.Function: its forward ran without gradients and made what stands among its outputs; it keeps what
// it was told to save, and its backward makes one tensor for each gradient that is asked for.
void custom(Writer& w) {
  w.alias();
  w.saves_after_kernel();
  for (std::size_t i = 0; i < w.node().input_count; ++i) {
    w.save_input(i, "_saved_tensors", (w.node().saved_inputs >> i & 1U) != 0);
  }
  for (std::size_t i = 0; i < w.node().output_count; ++i) {
    if ((w.node().saved_outputs >> i & 1U) != 0) w.save_output(i, "_saved_tensors");
  }
  for (std::size_t i = 0; i < w.node().input_count; ++i) w.gradient(i);
}

// share * chance, under no_grad. Backward: grad * share; the negative of that times all shares, into which it is
// scattered. What was left out is kept by the node of masked_fill behind it, which runs next, and makes nothing.
void sparse_mixer(Writer& w) {
  w.output();
  w.kernel();
  w.saves_after_kernel();
  for (const std::size_t i : {1U, 2U, 3U, 5U}) w.save_input(i, "_saved_tensors");
  if (!w.needs(0)) return;
  w.full_temporary();
  const std::uint8_t negative = w.full_temporary();
  w.gradient(0);
  w.drop(negative);
}

// values and indices; backward scatters into zeros.
void selection(Writer& w) {
  w.output(0);
  w.output(1);
  w.kernel();
  w.save_output(1, "_saved_indices");
  w.gradient(0);
}

// One row of whole numbers: where each came from is counted first, then what cub takes.
void sort(Writer& w) {
  w.output(0);
  w.output(1);
  const Bytes cubs = row_sort_scratch(w.in(0).shape.elements().value(), w.options().device);
  const std::uint8_t places = w.forward_temporary(w.bytes_out(1), DType::Int64, Visibility::Kernel);
  if (cubs > Bytes(0)) {
    const std::uint8_t taken = w.forward_temporary(cubs, DType::UInt8, Visibility::Kernel);
    w.kernel();
    w.forward_drop(taken);
  } else {
    w.kernel();
  }
  w.forward_drop(places);
  w.save_output(1, "_saved_indices");
  w.gradient(0);
}

namespace {

// Rows that are added into others in the order of their places (Indexing.cu, index_put_with_sort_kernel): places as one
// number each, those sorted, where each came from, what that was counted by, and what cub takes.
void add_rows_in_order(Writer& w) {
  const auto number = [&] { return w.allocate_temporary(w.bytes_in(1), DType::Int64, Visibility::Kernel); };
  const std::uint8_t places = number();  // In the place of what they are computed from.
  const std::uint8_t sorted = number();
  const std::uint8_t sources = number();
  const std::uint8_t range = number();
  const Bytes cubs = rows_in_order_scratch(w.in(1).shape.elements().value(), w.in(0).shape.dims[0], w.options().device);
  const std::uint8_t taken = w.allocate_temporary(cubs, DType::UInt8, Visibility::Kernel);
  w.backward_kernel();
  w.drop(taken);
  w.drop(range);
  w.drop(sources);
  w.drop(sorted);
  w.drop(places);
}

}  // namespace

// Zeros of the input's size, into which the gradient is put in place (FunctionsManual.cpp, index_backward: only
// tensor subclasses and dispatch modes take the form that copies).
void index(Writer& w) {
  for (std::size_t i = 1; i < w.node().input_count; ++i) w.save_input(i, "_saved_indices");
  w.output();
  w.kernel();
  w.gradient(0);
  const bool by_rows = w.node().input_count == 2 && w.in(1).dtype == DType::Int64 && w.in(1).shape.rank == 1;
  if (w.needs(0) && by_rows) add_rows_in_order(w);
}

// zeros of the input's size, added into (index_select_backward).
void index_select(Writer& w) {
  w.save_input(1, "_saved_index");
  w.output();
  w.kernel();
  w.gradient(0);
}

// The source is kept for its shape alone; its gradient is index_select of what comes.
void index_add(Writer& w) {
  w.save_input(1, "_saved_index", w.needs(2));
  w.save_input(2, "_saved_source", w.needs(2));
  w.output();
  w.kernel();
  w.pass(0);
  w.gradient(2);
}

// The input is kept for its shape alone (gather_backward).
void gather(Writer& w) {
  w.save_input(0, "_saved_self");
  w.save_input(1, "_saved_index");
  w.output();
  w.kernel();
  w.gradient(0);
}

void scatter(Writer& w) {
  w.save_input(1, "_saved_index");
  w.output();
  w.kernel();
  w.gradient(0);
  w.gradient(2);
}

void scatter_add(Writer& w) {
  w.save_input(1, "_saved_index", w.needs(2));
  w.output();
  w.kernel();
  w.pass(0);
  w.gradient(2);
}

namespace {

// nonzero of flags: how many there are, then the places of those, a number for each dimension.
struct Places {
  std::uint8_t count;
  std::uint8_t counting;
  std::uint8_t listed;
  std::uint8_t selecting;
};
// Temporaries of cub's reduction, and of its selection.
constexpr std::int64_t kCountedAtOnce = 4096;
constexpr std::int64_t kSelecting = 1023;

std::uint8_t kernel_bytes(Writer& w, std::int64_t bytes) {
  return w.slot(SlotKind::Temporary, 0, Bytes(bytes), DType::UInt8, Visibility::Kernel);
}

// What counting so many flags takes.
std::int64_t counting(std::int64_t flags) {
  const std::int64_t parts = div_ceil(flags, kCountedAtOnce);
  return parts < 2 ? 1 : 8 * parts;
}

Places places_of(Writer& w, std::int64_t chosen) {
  const Shape& flags = w.in(1).shape;
  const auto kernel = [&w](std::int64_t bytes) { return kernel_bytes(w, bytes); };
  return {kernel(4), kernel(counting(flags.elements().value())),
          w.slot(SlotKind::Temporary, 0, storage(Elements(checked_mul(chosen, flags.rank)), DType::Int64), DType::Int64,
                 Visibility::Kernel),
          kernel(kSelecting)};
}

void find_places(Writer& w, const Places& places, void (Writer::*make)(std::uint8_t),
                 void (Writer::*drop)(std::uint8_t)) {
  (w.*make)(places.count);
  (w.*make)(places.counting);
  (w.*drop)(places.counting);
  (w.*make)(places.listed);
  (w.*make)(places.selecting);
  (w.*drop)(places.selecting);
  (w.*drop)(places.count);
}

}  // namespace

// With Node::number 1 the input does not lie row by row, and is copied.
void nonzero(Writer& w) {
  const bool copies = w.node().number == 1;
  const std::uint8_t copy =
      copies ? w.forward_temporary(w.bytes_in(0), w.in(0).dtype, Visibility::Kernel) : std::uint8_t{0};
  const std::uint8_t count = kernel_bytes(w, 4);
  w.forward(count);
  const std::uint8_t sums = kernel_bytes(w, counting(w.in(0).shape.elements().value()));
  w.forward(sums);
  w.forward_drop(sums);
  w.output();
  const std::uint8_t selecting = kernel_bytes(w, kSelecting);
  w.forward(selecting);
  w.kernel();
  w.forward_drop(selecting);
  w.forward_drop(count);
  if (copies) w.forward_drop(copy);
}

// x[mask]: the places are listed, and again in backward, where rows are added into zeros in the order of their places
// (Indexing.cu, index_put_with_sort_kernel): numbers of 64 bits for each, sorted beside what they were. With
// Node::number 1 the flags do not lie row by row, and are copied.
void masked_rows(Writer& w) {
  w.save_input(1, "_saved_indices");
  const Bytes flags = storage(w.in(1).shape.elements(), DType::Bool);
  const bool copies = w.node().number == 1;
  const std::uint8_t copy = copies ? w.forward_temporary(flags, DType::Bool, Visibility::Kernel) : std::uint8_t{0};
  const Places forward = places_of(w, w.out().shape.dims[0]);
  find_places(w, forward, &Writer::forward, &Writer::forward_drop);
  if (copies) w.forward_drop(copy);
  w.output();
  w.kernel();
  w.forward_drop(forward.listed);
  if (!w.needs(0)) return;
  w.gradient(0);
  const std::int64_t chosen = w.out().shape.dims[0];
  const auto listed = Elements(checked_mul(chosen, w.in(1).shape.rank));
  const std::uint8_t places = w.allocate_temporary(storage(listed, DType::Int64), DType::Int64, Visibility::Kernel);
  const Bytes numbers = storage(Elements(chosen), DType::Int64);
  const auto number = [&] { return w.allocate_temporary(numbers, DType::Int64, Visibility::Kernel); };
  const std::uint8_t first = number();
  (void)number();  // The places as one number each.
  w.drop(first);
  const std::uint8_t second = number();
  const std::uint8_t third = number();
  w.drop(second);
  w.drop(third);
  w.drop(places);
  for (int i = 0; i < 3; ++i) (void)number();
  w.allocate_temporary(chosen < kCountedAtOnce ? Bytes(1) : numbers * 2, DType::UInt8, Visibility::Kernel);
  w.backward_kernel();
}

// x[mask] = values. The gradient of x is a copy of what comes, with zeros in the places; that of the values is what
// comes there (derivatives.yaml, index_put_). Each of the three lists the places for itself.
void masked_put(Writer& w) {
  w.save_input(1, "_saved_indices");
  w.in_place();
  const std::int64_t chosen = w.in(2).shape.dims[0];
  const Places forward = places_of(w, chosen);
  find_places(w, forward, &Writer::forward, &Writer::forward_drop);
  w.kernel();
  w.forward_drop(forward.listed);
  const auto listed = Elements(checked_mul(chosen, w.in(1).shape.rank));
  const auto list = [&] {
    return w.allocate_temporary(storage(listed, DType::Int64), DType::Int64, Visibility::Kernel);
  };
  if (w.needs(0)) {
    const std::uint8_t zeros = w.temporary(w.bytes_in(2), w.out().dtype);
    w.allocate_gradient(0);
    const std::uint8_t places = list();
    w.backward_kernel();
    w.drop(places);
    w.drop(zeros);
  }
  if (!w.needs(2)) return;
  const std::uint8_t places = list();
  w.allocate_gradient(2);
  w.backward_kernel();
  w.drop(places);
}

// A clone of the input, filled. Its kernel numbers the places by a running sum of the flags, which are spread over the
// input first (IndexKernel.cpp, masked_scatter__cuda). The source's gradient is masked_select of the whole gradient:
// the flags are spread, and then of each place that counts an index for each dimension is listed (index with a mask).
void masked_scatter(Writer& w) {
  w.save_input(1, "_saved_mask", w.needs(0) || w.needs(2));
  w.output();
  const std::int64_t places = w.out().shape.elements().value();
  const std::uint8_t sums =
      w.forward_temporary(storage(Elements(places), DType::Int64), DType::Int64, Visibility::Kernel);
  const std::uint8_t flags =
      w.forward_temporary(storage(Elements(places), DType::Bool), DType::Bool, Visibility::Kernel);
  w.kernel();
  w.forward_drop(flags);
  w.forward_drop(sums);
  w.gradient(0);
  if (!w.needs(2)) return;
  const std::int64_t chosen = w.in(2).shape.elements().value();
  const auto indices = Elements(checked_mul(chosen, w.out().shape.rank));
  const std::uint8_t spread =
      w.allocate_temporary(storage(Elements(places), DType::Bool), DType::Bool, Visibility::Kernel);
  const std::uint8_t listed = w.allocate_temporary(storage(indices, DType::Int64), DType::Int64, Visibility::Kernel);
  w.backward_kernel();
  w.drop(spread);
  w.allocate_gradient(2);
  w.backward_kernel();
  w.drop(listed);
}

void stack(Writer& w) { cat(w); }

void detach(Writer& w) { w.alias(); }

void repeat_interleave(Writer& w) { unary(w); }

// Values and the indices of the largest, in int64.
void max_pool(Writer& w) {
  w.save_input(0, "_saved_self");
  w.output();
  w.extra(0, storage(w.out().shape.elements(), DType::Int64), DType::Int64, Visibility::Dispatch);
  w.kernel();
  w.save_extra(0, "_saved_result1");
  w.gradient(0);
}

// The backward makes a gradient of the grid whether anybody asks for it or not.
void grid_sample(Writer& w) {
  w.save_input(1, "_saved_grid");
  w.save_input(0, "_saved_input");
  w.output();
  w.kernel();
  if (!w.needs(0)) return;
  w.allocate_gradient(0);
  const std::uint8_t grid = w.allocate_temporary(w.bytes_in(1), w.in(1).dtype, Visibility::Dispatch);
  w.backward_kernel();
  w.drop(grid);
}

// The backward's kernel makes a gradient contiguous that does not lie as its input does.
void average_pool(Writer& w) {
  w.save_input(0, "_saved_self");
  w.output();
  w.kernel();
  if (!w.needs(0)) return;
  w.allocate_gradient(0);
  if (!w.node().by_head) return w.backward_kernel();
  const std::uint8_t rows = w.allocate_temporary(w.bytes_out(), w.out().dtype, Visibility::Kernel);
  w.backward_kernel();
  w.drop(rows);
}

}  // namespace dsplan::rules
