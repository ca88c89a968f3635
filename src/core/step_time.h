// How long one optimizer step takes, as estimated. Seconds, as floating point: nothing exact follows from them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dsplan {

// One part of an optimizer step, all micro-batches together, on one rank.
struct PhaseTime {
  std::string name;      // "forward", "backward", "step"
  double compute = 0;    // Kernels, recomputation included.
  double recompute = 0;  // Of `compute`: backward only.
  double launch = 0;     // What the host needs to launch kernels beyond their own time.
  double exposed = 0;    // Collectives that nothing hides.
  double hidden = 0;     // Collectives under computation: not part of `total`.
  double host = 0;       // Copies to and from the host, its optimizer, files: as far as nothing hides them.

  [[nodiscard]] double total() const { return compute + launch + exposed + host; }
};

struct StepTime {
  std::vector<PhaseTime> phases;  // forward, backward, step
  double total = 0;
  double low = 0;  // The interval in which eight of ten measured steps lie (docs/time.md).
  double high = 0;
  double tokens_per_second = 0;  // Of all ranks together.
  double model_flops = 0;        // Of one rank and step; recomputation is not counted.
  double hardware_flops = 0;     // With recomputation.
  double mfu = 0;                // Of the peak rate of the dtype: 0 to 1.
  double hfu = 0;
  bool calibrated = false;  // By rates that were measured on the user's own machine; otherwise "estimated".
  std::string basis;        // Where the rates are from, in words.
};

}  // namespace dsplan
