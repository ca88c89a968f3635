// Full simulations of candidates: each is made once, by whoever asks first, or ahead of that on other processors.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "planner/plan/evaluator.h"

namespace dsplan::detail {

// What is known of a candidate: its simulation, or at least that it is not what was wanted.
struct Known {
  std::shared_ptr<const Simulated> whole;
  bool fails = false;    // Surely does not fit.
  bool unclean = false;  // That, or surely gives its cache back to fit.

  // Whether that answers the question.
  [[nodiscard]] bool answers(Wanted wanted) const {
    return whole != nullptr || (wanted == Wanted::IfFits && fails) || (wanted == Wanted::IfClean && unclean);
  }
};

// What full simulations have said, by what makes a candidate: several walks of one search share it.
using Verdicts = std::map<std::string, Known>;

// How many are simulated at once: a large model's schedule takes a hundred megabytes while it is looked at.
[[nodiscard]] std::size_t at_once();

class Simulations {
 public:
  // `detail`: of each simulation.
  Simulations(const SearchInputs& inputs, const Evaluator& evaluator, Verdicts& verdicts, Detail detail)
      : inputs_(inputs), evaluator_(evaluator), verdicts_(verdicts), detail_(detail) {}

  // Simulates it, unless that has been done. nullptr: it is not what is wanted.
  [[nodiscard]] const Simulated* of(const Candidate& candidate, Wanted wanted);
  // What is known; nullptr: nobody has asked for it.
  [[nodiscard]] const Known* asked(const Candidate& candidate) const;
  // Simulates those of which that is not known, at once; `of` finds them. One that is never asked for leaves no trace.
  // `first_of_all`: where the first is clean the others are needless, and end.
  void ahead(const std::vector<const Candidate*>& candidates, Wanted wanted, bool first_of_all);

 private:
  [[nodiscard]] std::string key_of(const Candidate& candidate) const;
  [[nodiscard]] Known simulated(const Candidate& candidate, Wanted wanted, const std::atomic<bool>* needless) const;

  const SearchInputs& inputs_;
  const Evaluator& evaluator_;
  Verdicts& verdicts_;
  Detail detail_;
  Verdicts ahead_;  // Of those that nobody has asked for.
};

}  // namespace dsplan::detail
