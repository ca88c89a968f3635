// The catalogue: losses.
#include <algorithm>
#include <array>
#include <bit>

#include "model/catalogue/rules.h"

namespace dsplan::rules {
namespace {

// A loss of each element is reduced afterwards, outside the operator that made it.
Bytes each(const Writer& w) { return w.bytes_in(0); }

}  // namespace

// The scalar result and total_weight; backward fills a dense N x V gradient (NLLLoss.cu).
void nll_loss(Writer& w) {
  w.save_input(0, "_saved_self");
  w.save_input(1, "_saved_target");
  w.output();
  w.extra(0, storage(Elements(1), w.out().dtype), w.out().dtype, Visibility::Dispatch);
  w.kernel();
  w.save_extra(0, "_saved_total_weight");
  w.gradient(0);
}

// (input - target).abs() and its reduction: the difference is kept, and its sign made in backward
// (torch/nn/functional.py; Loss.cpp, l1_loss).
void l1_loss(Writer& w) {
  const DType dtype = w.in(0).dtype;
  w.extra(0, each(w), dtype, Visibility::Dispatch);
  w.kernel();
  if (w.node().reduction != Reduction::None) {
    w.forward_temporary(each(w), dtype);
    w.kernel();
  }
  w.output();
  w.kernel();
  w.save_extra(0, "_saved_self");
  if (!w.node().requires_grad) return;
  std::uint8_t divided = 0;
  if (w.node().reduction == Reduction::Mean) divided = w.temporary(each(w), dtype);
  const std::uint8_t sign = w.temporary(each(w), dtype);
  if (w.needs(0)) {
    w.gradient(0);
  } else {
    w.temporary(each(w), dtype);
  }
  if (!w.needs(1)) return;
  if (w.node().reduction == Reduction::Mean) w.drop(divided);
  w.drop(sign);
  w.gradient(1);
}

void pair_loss(Writer& w) {
  w.save_input(0, "_saved_self");
  w.save_input(1, "_saved_target");
  w.output();
  w.kernel();
  w.gradient(0);
  w.gradient(1);
}

void binary_cross_entropy(Writer& w) {
  w.save_input(0, "_saved_self");
  w.save_input(1, "_saved_target");
  w.output();
  w.kernel();
  w.gradient(0);
}

// (1 - target) * input - log_sigmoid(input), and its reduction, below the dispatcher; backward works in place on
// sigmoid(input) (Loss.cpp, binary_cross_entropy_with_logits).
void binary_cross_entropy_with_logits(Writer& w) {
  const DType dtype = w.in(0).dtype;
  w.save_input(0, "_saved_self");
  w.save_input(1, "_saved_target");
  w.forward_temporary(each(w), dtype, Visibility::Kernel);
  w.kernel();
  if (w.node().reduction != Reduction::None) {
    w.forward_temporary(each(w), dtype, Visibility::Kernel);
    w.kernel();
  }
  w.output();
  w.kernel();
  w.gradient(0);
}

// xlogy(target, target) - target * input and its reduction (Loss.cpp, kl_div). The product keeps the target.
void kl_div(Writer& w) {
  const DType dtype = w.in(0).dtype;
  w.save_input(1, "_saved_self");
  const std::uint8_t entropy = w.forward_temporary(each(w), dtype);
  w.kernel();
  const std::uint8_t product = w.forward_temporary(each(w), dtype);
  w.kernel();
  if (w.node().reduction != Reduction::None) {
    w.forward_temporary(each(w), dtype);
    w.kernel();
    w.forward_drop(entropy);
    w.forward_drop(product);
  }
  w.output();
  w.kernel();
  if (!w.needs(0)) return;
  if (w.node().reduction == Reduction::Mean) {
    const std::uint8_t divided = w.temporary(each(w), dtype);
    w.temporary(each(w), dtype);
    w.drop(divided);
  } else {
    w.temporary(each(w), dtype);
  }
  w.gradient(0);
}

namespace {

// What liger_kernel/ops/fused_linear_cross_entropy.py does with the pieces of the logits, by release: 0.5.10 to 0.8.5
// were read and run.
// Since then the product that is the weight's gradient of a piece is made apart, cast to fp32 and added.
constexpr Version kLigerCasts{0, 6, 2};
// Since then the transposed piece keeps the piece before it until the weight's next gradient.
constexpr Version kLigerHoldsTransposed{0, 8, 1};
// Since then all pieces lie in one buffer in turn, and products are written where they belong; the weight's only from
// compute capability 8.0 on.
constexpr Version kLigerOneBuffer{0, 8, 3};
constexpr std::int64_t kAmpere = 80;

// The pieces of Liger's loss: as many rows of logits at a time as take about what the hidden states take.
class LigerPieces {
 public:
  explicit LigerPieces(Writer& w)
      : w_(w),
        rows_(w.in(0).shape.dims[0]),
        hidden_(std::max<std::int64_t>(1, w.in(0).shape.dims[1])),
        vocabulary_(w.in(1).shape.dims[0]),
        dtype_(w.in(0).dtype) {
    const std::int64_t widening = std::max<std::int64_t>(1, div_ceil(Elements(vocabulary_), hidden_).value());
    const auto wished = static_cast<std::uint64_t>(div_ceil(Elements(rows_), widening).value());
    chunk_ = std::min(rows_, static_cast<std::int64_t>(std::bit_ceil(wished)));
  }

  // Releases from 0.8.3 on.
  void in_one_buffer() {
    const std::uint8_t logits = temporary(piece(chunk_, vocabulary_), dtype_);
    slots_of_weight();
    make(logits);
    for (std::int64_t at = 0; at < rows_ && product_ != kNone; at += chunk_) weight_gradient();
    w_.forward_drop(logits);
  }

  // Those before it. What the last piece holds dies with the function: it is returned.
  [[nodiscard]] std::uint8_t one_by_one() {
    const std::array<std::uint8_t, 2> logits{temporary(piece(chunk_, vocabulary_), dtype_),
                                             temporary(piece(chunk_, vocabulary_), dtype_)};
    const std::uint8_t states = temporary(piece(chunk_, hidden_), dtype_);
    slots_of_weight();
    const bool held = w_.needs(1) && release() >= kLigerHoldsTransposed;
    std::uint8_t before = kNone;
    for (std::int64_t at = 0, number = 0; at < rows_; at += chunk_, ++number) {
      const std::int64_t left = std::min(chunk_, rows_ - at);
      const bool rest = left != chunk_;
      const std::uint8_t now =
          rest ? temporary(piece(left, vocabulary_), dtype_) : logits[static_cast<std::size_t>(number % 2)];
      const std::uint8_t gradient = rest ? temporary(piece(left, hidden_), dtype_) : states;
      make(now);
      if (before != kNone && !held) w_.forward_drop(before);
      make(gradient);
      w_.forward_drop(gradient);
      if (before != kNone && held) w_.forward_drop(before);
      if (product_ != kNone) weight_gradient();
      before = now;
    }
    return before;
  }

 private:
  static constexpr std::uint8_t kNone = 255;

  [[nodiscard]] const Version& release() const { return w_.options().liger; }
  [[nodiscard]] Bytes piece(std::int64_t rows, std::int64_t width) const {
    return storage(Shape{rows, width}.elements(), dtype_);
  }
  std::uint8_t temporary(Bytes bytes, DType dtype) {
    return w_.slot(SlotKind::Temporary, 0, bytes, dtype, Visibility::Dispatch);
  }
  void slots_of_weight() {
    const std::int64_t capability = w_.options().device.capability;
    const bool in_place = release() >= kLigerOneBuffer && (capability <= 0 || capability >= kAmpere);
    if (!w_.needs(1) || release() < kLigerCasts || in_place) return;
    const Elements weight = Shape{vocabulary_, hidden_}.elements();
    product_ = temporary(storage(weight, dtype_), dtype_);
    wide_ = temporary(storage(weight, DType::Float32), DType::Float32);
  }
  void make(std::uint8_t slot) {
    w_.forward(slot);
    w_.kernel();
  }
  void weight_gradient() {
    make(product_);
    make(wide_);
    w_.forward_drop(product_);
    w_.forward_drop(wide_);
  }

  Writer& w_;
  std::int64_t rows_;
  std::int64_t hidden_;
  std::int64_t vocabulary_;
  DType dtype_;
  std::int64_t chunk_ = 1;
  std::uint8_t product_ = kNone;
  std::uint8_t wide_ = kNone;
};

// The gradients of hidden state and weight, in the order in which the release makes them.
void liger_gradients(Writer& w) {
  const auto states = [&w] {
    w.extra(0, w.bytes_in(0), w.in(0).dtype, Visibility::Dispatch);
    w.kernel();
  };
  const bool weight_first = w.options().liger < kLigerCasts;
  if (!weight_first) states();
  if (w.needs(1)) {
    w.extra(1, w.bytes_in(1), w.in(1).dtype, Visibility::Dispatch);
    w.kernel();
  }
  if (weight_first) states();
}

}  // namespace

// Liger's: the gradients are made in the forward, piece by piece of the logits, which become their own gradient;
// backward hands them out as they are, once the loss's gradient is found to be one
// (liger_kernel/ops/fused_linear_cross_entropy.py, without a bias, reduction mean or sum). Inputs: hidden state [N, H],
// weight [V, H], target [N].
void fused_linear_cross_entropy(Writer& w) {
  const std::int64_t rows = w.in(0).shape.dims[0];
  liger_gradients(w);
  const std::uint8_t losses = w.forward_temporary(storage(Elements(rows), DType::Float32), DType::Float32);
  w.kernel();
  const std::uint8_t mask = w.forward_temporary(storage(Elements(rows), DType::Bool), DType::Bool);
  w.kernel();
  const std::uint8_t count = w.forward_temporary(storage(Elements(1), DType::Int64), DType::Int64);
  w.kernel();
  w.forward_drop(count);
  LigerPieces pieces(w);
  const bool one_buffer = w.options().liger >= kLigerOneBuffer;
  std::uint8_t last = 0;
  if (one_buffer) {
    pieces.in_one_buffer();
  } else {
    last = pieces.one_by_one();
  }
  w.output();
  w.kernel();
  if (!one_buffer) w.forward_drop(last);
  w.forward_drop(mask);
  w.forward_drop(losses);
  w.save_extra(0, "_saved_tensors");
  if (w.needs(1)) w.save_extra(1, "_saved_tensors");
  w.hand_out(0);
  w.hand_out(1);
  if (!w.node().requires_grad) return;
  w.temporary(storage(Elements(1), DType::Float32), DType::Float32);
  for (int flag = 0; flag < 2; ++flag) {  // at::cuda::equal: whether they are alike, and whether all are.
    w.temporary(storage(Elements(1), DType::Bool), DType::Bool, Visibility::Kernel);
  }
}

namespace {

// trl/kernels/chunked_logprob.py: rows of the hidden state, and words of the vocabulary, at a time.
constexpr std::int64_t kRowsAtOnce = 4096;
constexpr std::int64_t kWordsAtOnce = 32768;

// The tiles of one pass over the logits, all in one buffer. Casts of a piece of the hidden state live until the next is
// made, those of a piece of the weight until its product is made, and in backward as long.
class LogitTiles {
 public:
  LogitTiles(Writer& w, bool backward)
      : w_(w),
        backward_(backward),
        rows_(w.in(0).shape.dims[0]),
        width_(w.in(0).shape.dims[1]),
        words_(w.in(1).shape.dims[0]),
        computed_(static_cast<DType>(static_cast<int>(w.node().number))) {}

  void walk() {
    tile_ = make(std::min(rows_, kRowsAtOnce), kWordsAtOnce);
    kernel();
    for (std::int64_t row = 0; row < rows_ && pieces_ < kMostPieces; row += kRowsAtOnce) {
      replace(state_, w_.in(0).dtype, std::min(kRowsAtOnce, rows_ - row));
      for (std::int64_t word = 0; word < words_; word += kWordsAtOnce) {
        replace(piece_, w_.in(1).dtype, std::min(kWordsAtOnce, words_ - word));
        if (!backward_) drop(piece_);
      }
    }
  }
  // The function returns.
  void drop_all() {
    drop(state_);
    drop(piece_);
    drop(tile_);
  }

 private:
  static constexpr std::uint8_t kNothing = 255;
  static constexpr int kMostPieces = 100;  // More are as these.

  std::uint8_t make(std::int64_t rows, std::int64_t width) {
    const std::uint8_t made = w_.slot(SlotKind::Temporary, 0, storage(Shape{rows, width}.elements(), computed_),
                                      computed_, Visibility::Dispatch);
    if (backward_) {
      w_.drop(made, RecipeStep::Kind::Make);
    } else {
      w_.forward(made);
    }
    return made;
  }
  void drop(std::uint8_t& slot) {
    if (slot == kNothing) return;
    if (backward_) {
      w_.drop(slot);
    } else {
      w_.forward_drop(slot);
    }
    slot = kNothing;
  }
  // The next is made while the variable still holds the last. Nothing where nothing is cast.
  void replace(std::uint8_t& held, DType from, std::int64_t rows) {
    if (from == computed_) return;
    const std::uint8_t next = make(rows, width_);
    kernel();
    drop(held);
    held = next;
    ++pieces_;
  }
  void kernel() {
    if (backward_) return w_.backward_kernel();
    w_.kernel();
  }

  Writer& w_;
  bool backward_;
  std::int64_t rows_;
  std::int64_t width_;
  std::int64_t words_;
  DType computed_;
  int pieces_ = 0;
  std::uint8_t tile_ = kNothing;
  std::uint8_t state_ = kNothing;
  std::uint8_t piece_ = kNothing;
};

void log_prob_outputs(Writer& w) {
  const Bytes row = storage(w.out().shape.elements(), DType::Float32);
  const Bytes flag = storage(w.out().shape.elements(), DType::Bool);
  const auto shortly = [&w](Bytes bytes, DType dtype) {
    const std::uint8_t made = w.forward_temporary(bytes, dtype);
    w.kernel();
    return made;
  };
  const std::uint8_t logs = shortly(row, DType::Float32);
  w.extra(0, row, DType::Float32, Visibility::Dispatch);  // log_z
  w.kernel();
  w.forward_drop(logs);
  w.output(0);
  w.kernel();
  const std::size_t outputs = w.node().output_count;
  if (outputs < 3) return;
  const bool likeliest = w.out(outputs - 1).dtype == DType::Bool;
  const std::uint8_t ratio = shortly(row, DType::Float32);
  w.output(1);
  w.kernel();
  w.forward_drop(ratio);
  if (outputs > 3 || !likeliest) {
    w.output(2);
    w.kernel();
  }
  if (!likeliest) return;
  const std::uint8_t reaches = shortly(flag, DType::Bool);
  const std::uint8_t exceeds = shortly(flag, DType::Bool);
  w.output(outputs - 1);
  w.kernel();
  w.forward_drop(reaches);
  w.forward_drop(exceeds);
}

}  // namespace

// TRL's ChunkedLogProbFunction: statistics of each row in fp32, folded tile by tile of the logits; backward makes the
// tiles again, and sums both gradients in fp32. Inputs: hidden state [N, H], weight [V, H], target [N], bias [V].
void chunked_log_prob(Writer& w) {
  const Bytes row = storage(w.out().shape.elements(), DType::Float32);
  w.save_input(0, "_saved_tensors");
  w.save_input(1, "_saved_tensors");
  if (w.has_in(3)) w.save_input(3, "_saved_tensors");
  w.save_input(2, "_saved_tensors");
  constexpr std::size_t kStatistics = 7;
  std::array<std::uint8_t, kStatistics> statistics{};
  for (std::uint8_t& one : statistics) {
    one = w.forward_temporary(row, DType::Float32);
    w.kernel();
  }
  LogitTiles forward(w, false);
  forward.walk();
  log_prob_outputs(w);
  for (const std::uint8_t one : statistics) w.forward_drop(one);
  forward.drop_all();
  w.save_extra(0, "_saved_tensors");
  if (w.node().output_count > 1) w.save_output(1, "_saved_tensors");
  if (!w.node().requires_grad) return;
  const std::array<std::size_t, 3> given{0, 1, 3};
  const auto sums = [&](std::size_t i) { return w.has_in(i) && w.needs(i); };
  for (const std::size_t i : given) {
    if (!sums(i)) continue;
    if (w.in(i).dtype == DType::Float32) {
      w.allocate_gradient(i);
    } else {
      w.allocate_temporary(storage(w.in(i).shape.elements(), DType::Float32), DType::Float32, Visibility::Dispatch);
    }
  }
  LogitTiles(w, true).walk();  // With the first product, before which the thread has no workspace.
  for (const std::size_t i : given) {
    if (sums(i) && w.in(i).dtype != DType::Float32) w.gradient(i);
  }
}

namespace {

// cub's, of one row of fp32 numbers beside where each came from: four passes of 8 bits, in one block of memory whose
// parts lie on 256 bytes (measured on PyTorch 2.11). Up to 4,096 are sorted without.
Bytes sorted_numbers_scratch(std::int64_t count, const DeviceThreads& device) {
  constexpr std::int64_t kSortedInBlock = 4096;
  constexpr std::int64_t kAligned = 256;
  constexpr std::int64_t kBins = 256;
  constexpr std::int64_t kPasses = 4;
  if (device.capability <= 0 || count <= kSortedInBlock) return Bytes(0);
  const std::int64_t tile = device.capability >= 90 ? 5376 : 3072;
  std::int64_t all = kAligned - 1;
  for (const std::int64_t part :
       {kPasses * kBins * 8, div_ceil(count, tile) * kBins * 4, count * 4, count * 8, kPasses * 4}) {
    all += round_up(part, kAligned);
  }
  return Bytes(all);
}

}  // namespace

// LinearCrossEntropyFunction of axolotl's fork (cce.py, cce_lse_forward.py, cce_backward.py): no logits. The words are
// visited in the order of their mean logit, by which compiled code sorts them: a copy of the means, and where each came
// from, beside what a sort takes. The kernels add into both gradients, in their own dtype, under locks.
void cut_cross_entropy(Writer& w) {
  constexpr std::int64_t kLocked = 128;  // Rows or words.
  constexpr std::int64_t kLockedWide = 64;
  const std::int64_t rows = w.in(3).shape.dims[0];
  const std::int64_t words = w.in(1).shape.dims[0];
  const std::int64_t across = div_ceil(w.in(1).shape.dims[1], kLockedWide);
  const auto locks = [](std::int64_t of) { return div_ceil(of, kLocked); };
  const auto numbers = [](std::int64_t count, DType dtype) { return storage(Elements(count), dtype); };
  const Bytes means = numbers(words, DType::Float32);
  w.save_input(0, "_saved_tensors");
  w.save_input(1, "_saved_tensors");
  w.extra(0, numbers(rows, DType::Float32), DType::Float32, Visibility::Dispatch);
  w.kernel();
  const std::uint8_t lock = w.forward_temporary(numbers(locks(rows), DType::Int32), DType::Int32);
  w.kernel();
  if (w.node().requires_grad) w.extra(1, means, DType::Float32, Visibility::Dispatch);
  w.kernel();
  w.forward_drop(lock);
  const std::uint8_t losses = w.forward_temporary(numbers(rows, DType::Float32), DType::Float32);
  w.kernel();
  w.output();
  w.kernel();
  w.forward_drop(losses);
  w.save_extra(0, "_saved_tensors");
  w.save_input(2, "_saved_tensors");
  w.hold(3, true);  // Saved, and among the parameters of the call.
  if (!w.node().requires_grad) return;
  w.save_extra(1, "_saved_tensors");
  const Bytes places = numbers(words, DType::Int64);
  const std::uint8_t sorted = w.allocate_temporary(means, DType::Float32, Visibility::Dispatch);
  const std::uint8_t order = w.allocate_temporary(places, DType::Int64, Visibility::Dispatch);
  const std::uint8_t counted = w.allocate_temporary(places, DType::Int64, Visibility::Kernel);
  const Bytes scratch = sorted_numbers_scratch(words, w.options().device);
  if (scratch > Bytes(0)) w.drop(w.temporary(scratch, DType::UInt8, Visibility::Kernel));
  w.drop(counted);
  w.drop(sorted);
  w.temporary(numbers(words, DType::Int32), DType::Int32);
  w.drop(order);
  w.gradient(0);
  w.gradient(1);
  if (w.needs(0)) w.temporary(numbers(locks(rows) * across, DType::Int32), DType::Int32);
  if (w.needs(1)) w.temporary(numbers(locks(words) * across, DType::Int32), DType::Int32);
}

}  // namespace dsplan::rules
