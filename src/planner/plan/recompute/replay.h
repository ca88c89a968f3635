// Runs a list of operations with a clock and a ledger of its own. It shares nothing with the solvers, so that their
// figures and its figures are two derivations.
//
// What is alive: the input throughout; the gradient of the last output from the start until the last stage's backward;
// an output, on its own or inside what its stage saved; what was saved, until its backward; one gradient between two
// backwards; weights between gather and release. An operation holds its temporaries, what it reads and what it makes.
// A backward lets go of the stage's input unless that is inside what the stage before saved, or is the chain's own.
// The output of the last stage, where it is not saved, leaves the chain when its forward is done: whoever takes it
// holds it, and the gradient that comes back is counted here.
#pragma once

#include <string>
#include <vector>

#include "core/chain.h"

namespace dsplan {

struct ChainReplay {
  std::string fault;  // Empty: a legal schedule that runs every backward once.
  Ticks time;
  Bytes peak;
};

[[nodiscard]] ChainReplay replay(const Chain& chain, const std::vector<ChainOperation>& operations);

}  // namespace dsplan
