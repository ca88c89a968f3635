// Full simulations of candidates: each is made once, by whoever asks first, or ahead of that on other processors.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/machine/in_parallel.h"
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

// As many as there are.
inline constexpr std::size_t kAll = SIZE_MAX;

class Simulations {
 public:
  // `detail`: of each simulation.
  Simulations(const SearchInputs& inputs, const Evaluator& evaluator, Verdicts& verdicts, Detail detail)
      : inputs_(inputs), evaluator_(evaluator), verdicts_(verdicts), detail_(detail) {}
  ~Simulations() { drop(); }
  Simulations(const Simulations&) = delete;
  Simulations& operator=(const Simulations&) = delete;

  // Simulates it, unless that has been done. nullptr: it is not what is wanted.
  [[nodiscard]] const Simulated* of(const Candidate& candidate, Wanted wanted);
  // What is known; nullptr: nobody has asked for it.
  [[nodiscard]] const Known* asked(const Candidate& candidate) const;
  // The first is asked for next, then perhaps the others: idle processors simulate them in the meantime. Others than
  // these are not wanted any more, and end, and so does one that comes behind `enough` that are what is wanted (of any,
  // clean ones). What is never asked for leaves no trace.
  void ahead(const std::vector<const Candidate*>& candidates, Wanted wanted, std::size_t enough);
  // Nothing more is asked for.
  void drop() { ahead({}, Wanted::Any, kAll); }

 private:
  // Ahead of whoever may ask for it.
  struct Coming;

  [[nodiscard]] std::string key_of(const Candidate& candidate) const;
  [[nodiscard]] Known simulated(const Candidate& candidate, Wanted wanted, const std::atomic<bool>* needless) const;
  void simulate(Coming& coming) const;
  // What has come of it, if that answers anything.
  [[nodiscard]] std::optional<Known> take(const std::string& key);

  const SearchInputs& inputs_;
  const Evaluator& evaluator_;
  Verdicts& verdicts_;
  Detail detail_;
  std::map<std::string, std::shared_ptr<Coming>> coming_;
  Crew crew_;  // Last: it reads the others until it has ended.
};

}  // namespace dsplan::detail
