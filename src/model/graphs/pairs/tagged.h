// Losses of rows that are desirable or not; for src/model/graphs/*.cpp only.
#pragma once

#include "model/graphs/builder.h"

namespace dsplan {

// Of desirable rows and of the others. kNone where there is no such row.
struct Sides {
  TensorId chosen = kNone;
  TensorId rejected = kNone;
};

// Of a micro-batch: half of its rows, the greater half of an odd number.
[[nodiscard]] std::int64_t desirable_rows(const GraphBuilder& g);
[[nodiscard]] std::int64_t undesirable_rows(const GraphBuilder& g);

// x[flags], of which `count` are set; kNone where none is.
[[nodiscard]] TensorId flagged_rows(GraphBuilder& g, TensorId x, TensorId flags, std::int64_t count);

// The mean of what `own` and `other` say of rows for the KL, of all ranks, 0 at least; out of autograd.
[[nodiscard]] TensorId divergence(GraphBuilder& g, TensorId own, TensorId other);

// kto_loss of one side. All of it stays alive.
struct SideLoss {
  TensorId ratio = kNone;
  TensorId losses = kNone;
  TensorId rewards = kNone;
};
[[nodiscard]] SideLoss side_loss(GraphBuilder& g, TensorId own, TensorId reference, TensorId kl, bool chosen);
// Both sides' losses, weighted, one after the other; the second may have none.
[[nodiscard]] TensorId tagged_loss(GraphBuilder& g, const SideLoss& chosen, const SideLoss& rejected);

// Of rows that are desirable, or of the others: where they are, and what is said of them. Nothing where there is none.
struct TaggedSide {
  std::int64_t rows = 0;
  TensorId places = kNone;
  TensorId sums = kNone;
  TensorId reference = kNone;
  SideLoss loss;
};
struct TaggedSides {
  TaggedSide chosen;
  TaggedSide rejected;

  void take_own(GraphBuilder& g, TensorId sums);
  void take_reference(GraphBuilder& g, TensorId sums);
  // The losses of all rows.
  [[nodiscard]] TensorId weigh(GraphBuilder& g, TensorId kl);
  void drop(GraphBuilder& g) const;
};
// nonzero of the tags and of their opposite.
[[nodiscard]] TaggedSides tagged_sides(GraphBuilder& g, TensorId tags);
// x.index_select(0, places)
[[nodiscard]] TensorId picked_rows(GraphBuilder& g, TensorId x, const TaggedSide& side);

// nanmean
[[nodiscard]] TensorId mean_of_numbers(GraphBuilder& g, TensorId losses);

}  // namespace dsplan
