// One walk over a space: counts, bounds, orders and simulates. The objectives and the explanations are made of walks.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/plan/evaluator.h"
#include "planner/plan/search.h"
#include "planner/plan/simulations.h"

namespace dsplan::detail {

class Walk {
 public:
  Walk(const SearchInputs& inputs, SearchSpace space, const SearchOptions& options, Verdicts& verdicts);
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;

  // Counts the whole space and keeps what the bounds leave open.
  void count();
  // Simulates in order of speed (Objective::Gpus: of ranks, then of speed) until one fits: the best. Absent: none does.
  // One that fits only after the allocator has given its cache back is slower than its estimate says, and one that is
  // tight may fail: the former is taken where nothing else fits (on so many ranks), the latter where not even that
  // does.
  struct Found {
    std::optional<std::size_t> best;
    std::optional<std::size_t> tight;  // The first in order that is, of what was judged.
  };
  [[nodiscard]] Found best();
  // Simulates those of least memory first until one fits well enough, as `best` has them: not worse than `worst`.
  [[nodiscard]] bool anything_fits(Fate worst);
  // Memory, time and traffic: what no other candidate beats in all three.
  [[nodiscard]] std::vector<PlanRow> front();
  // What misses least of those with the smallest bounds; absent only where nothing is possible.
  [[nodiscard]] std::optional<PlanRow> nearest();
  // The fastest after the best one that fit, each with another layout of the states; few are tried.
  [[nodiscard]] std::vector<PlanRow> after(std::size_t best, std::size_t most);

  // With what its simulation said, if there was one.
  [[nodiscard]] PlanRow row(const Candidate& candidate) const;
  [[nodiscard]] const Candidate& open(std::size_t index) const { return open_[index]; }
  // nullptr: not what is wanted.
  [[nodiscard]] const Simulated* simulated(const Candidate& candidate, Wanted wanted);
  [[nodiscard]] Simulations& simulations() { return simulations_; }
  [[nodiscard]] Evaluator& evaluator() { return evaluator_; }
  [[nodiscard]] const SearchSpace& space() const { return space_; }
  // What was never looked at counts as slower. All of them but `candidates` sum to it.
  [[nodiscard]] SearchCounts counts() const;
  [[nodiscard]] std::vector<RefusalCount> refusals() const;
  [[nodiscard]] bool interrupted() const { return interrupted_; }
  // Whether nothing at all was possible.
  [[nodiscard]] bool impossible() const { return unopened_.empty() && counts_.candidates == counts_.refused; }

 private:
  void refuse(const std::string& why, std::int64_t count);
  void count_family(std::size_t index);
  // Those that may hold the next one: their candidates are counted, bounded and put among the others.
  void open_families();
  // Puts what an `auto` of `open_` stands for in its place.
  template <class Later>
  void write_out(std::size_t index, const Later& later);
  // Of two of `open_`: whether the second comes first.
  [[nodiscard]] bool comes_later(std::size_t a, std::size_t b) const;
  // The next of `open_` in the order of the objective, `auto` written out as far as it is reached. Absent: none left.
  [[nodiscard]] std::optional<std::size_t> next();
  void put(Candidate candidate);
  // The first in order that fits without retries, else with them, else that is tight.
  [[nodiscard]] Found first_to_fit();
  // `first` and those of `waiting_` that are likely to be asked for next, as many as are simulated at once behind it.
  [[nodiscard]] std::vector<const Candidate*> likely(std::size_t first) const;
  [[nodiscard]] bool go_on(const PlanRow* best = nullptr);

  const SearchInputs& inputs_;
  SearchSpace space_;
  const SearchOptions& options_;
  Evaluator evaluator_;
  Simulations simulations_;
  std::deque<Candidate> open_;
  std::vector<std::size_t> waiting_;  // Of `open_`: a heap by the objective.
  // Families whose candidates nobody has looked at, the fastest last: by ranks, and the speed that none exceeds.
  struct Unopened {
    std::int64_t ranks = 0;
    double speed = 0;
    std::size_t family = 0;
  };
  std::vector<Unopened> unopened_;
  bool opens_ = true;
  std::vector<std::size_t> judged_;  // Taken from it by `best`.
  std::vector<Candidate> smallest_;  // The least bound of each family, whatever the limit.
  std::map<std::string, std::int64_t> refusals_;
  SearchCounts counts_;
  std::int64_t written_out_ = 0;  // Of `open_`: `auto`s in whose place others stand.
  bool interrupted_ = false;
};

}  // namespace dsplan::detail
