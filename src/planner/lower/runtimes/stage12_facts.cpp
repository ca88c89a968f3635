#include "planner/lower/runtimes/stage12_facts.h"

#include <algorithm>

namespace dsplan {

Stage12Facts::Stage12Facts(const Training& settings, const std::vector<NamedParameter>& trained, std::int64_t ranks,
                           std::int64_t rank)
    : training(settings),
      layout(settings.zero.round_robin_gradients ? dealt_out(trained, ranks) : trained, flat_alignment(ranks), ranks,
             rank),
      sums_partition(dsplan::sums_partition(settings)),
      widens(sums_partition && settings.zero.stage == 1),
      bucket_dtype(dsplan::bucket_dtype(settings)) {}

bool Stage12Facts::scans() const {
  return training.dtype == DType::Float16 || (training.dtype == DType::BFloat16 && training.check_grad_overflow);
}

void append_slices(const Stage12Facts& facts, std::size_t parameter, std::int64_t begin,
                   std::vector<GradientSlice>& slices) {
  const FlatLayout& layout = facts.layout;
  std::int64_t from = layout.offset[parameter];
  const std::int64_t end = from + layout.order[parameter].elements;
  while (from < end) {
    const std::int64_t owner = from / layout.partition;
    const std::int64_t to = std::min(end, (owner + 1) * layout.partition);
    // Adjacent slices of one owner merge, unless each of them is added to its place in the partition.
    const bool apart = facts.sums_partition && owner == layout.rank;
    if (!slices.empty() && slices.back().owner == owner && !apart) {
      slices.back().count += to - from;
    } else {
      slices.push_back({owner, begin, to - from, from - owner * layout.partition});
    }
    begin += to - from;
    from = to;
  }
}

void GradientSums::open() {
  if (sums_) return;
  const DType type = facts_.training.grad_accum_dtype;
  sums_ = eager_.zeros(storage(Elements(facts_.layout.partition), type), type, {Role::Gradients, "gradient partition"},
                       "zero gradient partition");
  tell_uses(eager_.emitter(), sums_.id(), false);  // The step reads it on another stream.
}

void GradientSums::add(BufferId from, std::int64_t begin, const GradientSlice& slice) {
  const DType narrow = eager_.emitter().dtype(from);
  const DType wide = facts_.training.grad_accum_dtype;
  const Part reduced(from, storage(Elements(begin), narrow), storage(Elements(slice.count), narrow));
  const Part target(sums_.id(), storage(Elements(slice.target), wide), storage(Elements(slice.count), wide));
  if (narrow == wide) return eager_.add(target, reduced, "add to gradient partition");
  const Variable cast = eager_.cast(
      reduced, wide, {Role::RuntimeBuffers, "reduced gradient in accumulation dtype", "zero/stage_1_and_2.py"},
      "cast reduced gradient");
  eager_.add(target, cast, "add to gradient partition");
}

}  // namespace dsplan
