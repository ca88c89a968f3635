// The catalogue in words: every row's recipe for a sample of its operator, in which each tensor has a size of its own.
#pragma once

#include <string>
#include <vector>

#include "model/catalogue/catalogue.h"

namespace dsplan {

// One row, as `dsplan show operators` and docs/operators.md print it. Sizes are named after the tensor that has as many
// elements: "input", "out", "out (fp32)", "rows (fp32)". The dtype is written where it is not that of the first input.
struct OperatorEntry {
  struct Kept {
    std::string name;  // PyTorch's attribute: "_saved_self".
    std::string what;
    std::string when;  // Which inputs must need a gradient; empty: any.
  };
  struct Made {
    std::string what;
    bool kernel = false;  // Made inside a kernel: only a GPU sees it.
  };
  std::string name;
  std::vector<std::string> inputs;
  std::vector<Kept> saved;
  std::vector<Made> forward;   // Temporaries, in order.
  std::vector<Made> backward;  // Likewise; gradients are not listed.
  std::string unknown;         // Memory that nobody can say beforehand; empty: none.
  std::string flops;
  std::string witness;
  std::string since;  // "2.9.0"; empty: every torch that is modelled.
  std::string source;
};

// In the order of Op; attention has an entry for each kernel. An operator that options.torch does not have is left out.
[[nodiscard]] std::vector<OperatorEntry> describe_catalogue(const CatalogueOptions& options = {});

}  // namespace dsplan
