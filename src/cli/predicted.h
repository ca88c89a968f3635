// Predictions for commands that look closer: the schedule of one rank behind the words of `simulate`, and a prediction
// from a receipt's own inputs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/assemble.h"
#include "core/allocator_config.h"
#include "core/prediction.h"
#include "core/receipt.h"
#include "core/schedule.h"
#include "core/timeline.h"
#include "report/comparison.h"

namespace dsplan {

struct Predicted {
  Inputs inputs;
  Job job;
  Prediction prediction;
  Schedule schedule;
  AllocatorConfig config;
  Bytes limit;  // What the allocator may reserve; CachingAllocator::kUnlimited without a capacity.
};

// Notices go to standard error. Refuses, under `what`, --rank all and jobs without a schedule.
[[nodiscard]] Predicted predicted_schedule(const SimulateWords& words, const std::string& what);
// The same of inputs that were read already; notices stay unsaid.
[[nodiscard]] Predicted predicted_schedule(Inputs inputs, const std::string& what);

// Along its events, with a clock where the prediction has a time.
[[nodiscard]] Timeline timeline_of(const Predicted& predicted);

// The allocator's settings in a job.
[[nodiscard]] AllocatorConfig allocator_config(const Job& job);

struct RepredictWords {
  std::optional<std::string> level;        // kernel or dispatch; by the receipt's device where absent.
  std::optional<std::string> calibration;  // A file.
};

struct Repredicted {
  Inputs inputs;
  Job job;
  std::vector<PredictedRank> ranks;  // One for each that was measured; rank 0 where none was.
  std::vector<std::string> notes;    // What was added to the inputs, and from where.
};

// Versions, capacity, limit and allocator settings are the environment's; the device is the bundled one of the GPU's
// name unless the options name one. What `cpu` and `fake` measured is held at --level dispatch. Ranks of a fake process
// group have no communicator. Refused, at their place in the receipt: what `simulate` refuses, and options that choose
// what to report or that say twice what the receipt holds whole.
[[nodiscard]] Repredicted repredict(const Receipt& receipt, const RepredictWords& words);

// Of what was measured, by its own ranks.
[[nodiscard]] std::vector<PredictedRank> predict_measured(const ModelSpec& model, const Job& job,
                                                          const Receipt& receipt);
// Refused: a receipt without a fingerprint, and predictions of another job; each names its file.
void require_same_job(const Receipt& receipt, const std::string& receipt_file,
                      const std::vector<PredictedRank>& predicted, const std::string& predicted_file);
// A receipt of the very job, held against its prediction, every rank that was measured. Refused: one of another job, by
// fingerprint, and one without.
[[nodiscard]] ReceiptComparison held_against(const std::string& receipt_file, const Predicted& predicted);

}  // namespace dsplan
