// Full simulations of candidates: each is made once, by whoever asks first, or ahead of that on other processors.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "planner/plan/evaluator.h"

namespace dsplan::detail {

// What full simulations have said, by what makes a candidate: several walks of one search share it.
using Verdicts = std::map<std::string, std::shared_ptr<const Simulated>>;

// How many are simulated at once: a large model's schedule takes a hundred megabytes while it is looked at.
[[nodiscard]] std::size_t at_once();
// How many that may never be asked for.
[[nodiscard]] std::size_t ahead_of_need();

class Simulations {
 public:
  // `detail`: of each simulation.
  Simulations(const SearchInputs& inputs, const Evaluator& evaluator, Verdicts& verdicts, Detail detail)
      : inputs_(inputs), evaluator_(evaluator), verdicts_(verdicts), detail_(detail) {}

  // Simulates it, unless that has been done.
  [[nodiscard]] const Simulated& of(const Candidate& candidate);
  // What was asked for before; nullptr: nobody has.
  [[nodiscard]] const Simulated* asked(const Candidate& candidate) const;
  // Whether it need not be simulated any more.
  [[nodiscard]] bool known(const Candidate& candidate) const { return knows(key_of(candidate)); }
  // Simulates those that are not known, at once; `of` finds them. One that is never asked for leaves no trace.
  void ahead(const std::vector<const Candidate*>& candidates);

 private:
  [[nodiscard]] std::string key_of(const Candidate& candidate) const;
  [[nodiscard]] bool knows(const std::string& key) const;

  const SearchInputs& inputs_;
  const Evaluator& evaluator_;
  Verdicts& verdicts_;
  Detail detail_;
  Verdicts ahead_;  // Of those that nobody has asked for.
};

}  // namespace dsplan::detail
