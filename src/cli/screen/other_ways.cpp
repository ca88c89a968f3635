// What would fit, asked of the planner for the screens of `simulate` and `plan`.
#include "cli/assemble.h"
#include "cli/screen/first_screen.h"
#include "planner/advise/what_fits.h"

namespace dsplan {

void add_changes(const Inputs& inputs, const Job& job, Prediction& p, bool screen) {
  const bool barely = p.verdict == Verdict::DoesNotFit || p.verdict == Verdict::Tight || p.retries_low > 0;
  if (p.capacity && barely)
    p.changes = what_fits(search_inputs(inputs), job, p, Reach::Far, screen ? kMostChanges : kAllChanges);
}

std::vector<FittingChange> other_ways_of(const Inputs& inputs, const SearchSpace& space) {
  return other_ways(search_inputs(inputs), space);
}

}  // namespace dsplan
