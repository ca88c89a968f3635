// The rules that people use today, each exactly as its framework cuts a chain. None looks at sizes, except Chen's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/chain.h"

namespace dsplan::detail {

enum class Rule : std::uint8_t {
  None,             // Everything stored.
  Full,             // Each stage its own checkpoint.
  Every,            // K consecutive stages each, the last group possibly shorter.
  Segments,         // torch.utils.checkpoint.checkpoint_sequential: K - 1 groups of floor(n / K); the rest is stored.
  Nth,              // The first of every K stages, alone.
  Sqrt,             // Groups of ceil(sqrt(n)).
  Chen,             // Groups that end where their saved bytes pass a threshold (Chen et al. 2016, algorithm 3).
  MegatronBlock,    // --recompute-method block: the first K stages alone, the rest stored.
  MegatronUniform,  // --recompute-method uniform: as Every.
};

struct RuleRow {
  std::string_view name;
  Rule rule;
  std::int64_t least;  // Of K; -1: takes none.
};
[[nodiscard]] const std::vector<RuleRow>& rules();

// The rule with its K for n stages; absent where checkpoint_sequential has fewer stages than segments. Groups are
// computed again without holding gathered weights.
[[nodiscard]] std::optional<std::vector<ChainSegment>> cut(Rule rule, std::int64_t k, const Chain& chain);

// One use of a rule, replayed.
struct RuleTry {
  std::int64_t k = -1;
  std::vector<ChainSegment> segments;
  Ticks time;
  Bytes peak;
};

struct RuleAnswer {
  std::optional<RuleTry> best;   // Within the budget: least time, then least peak, then least K.
  std::optional<RuleTry> least;  // Of least peak, then least time.
};

// With K, or over all K; in a chain with gathered weights each of both ways, held and gathered again.
[[nodiscard]] RuleAnswer try_rule(const Chain& chain, const RuleRow& rule, std::optional<std::int64_t> k,
                                  std::optional<Bytes> budget);

}  // namespace dsplan::detail
